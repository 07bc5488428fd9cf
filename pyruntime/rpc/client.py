"""The client's side: `RpcHandle` is the way to a service, `Reconnector` connects to it, again and again.

A handle is a value, for any thread; a `Reconnector` is confined to the loop on which its client lives.
"""

# A client connects again without its task seeing it. Nothing here knows which of its messages were heard
# before a connection broke: clients of each service say counts since the beginning of their task, which may
# be said again. So no message needs a number, an acknowledgement, or a session that outlives the connection.

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pillarbox.rpc.connection import BROKEN, Connection, connect

FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0
"""Seconds before a client connects again, at most: first, and after many attempts."""


@dataclass(frozen=True, repr=False)
class RpcHandle:
    """The place where a server listens, the secret that it asks for, and a service of it. A plain value.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    fingerprint: the SHA-256 of the server's certificate, for TLS; None for none.
    """

    addresses: tuple[tuple[str, int], ...]
    secret: bytes
    service: str
    fingerprint: bytes | None = None

    def __repr__(self) -> str:
        return f"<service {self.service!r} at {self.where}>"

    @property
    def where(self) -> str:
        """The addresses, as errors show them."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)


class Reconnector:
    """Connects to a service, at one of its addresses after the other. Confined to a loop."""

    def __init__(self, handle: RpcHandle) -> None:
        self.trouble: BaseException | None = None
        """The error that has ended the last connection."""
        self._handle = handle
        self._addresses = itertools.cycle(handle.addresses)
        self._pause_s = FIRST_PAUSE_S

    async def attempt(
        self,
        talk: Callable[[Connection], Awaitable[None]],
        hello: Callable[[], list[Any]],
        direct: bool = False,
    ) -> None:
        """Connect once, say `hello`, and have `talk` use the connection. `trouble` says how it broke.

        direct: see `connect`. Raises RefusedError if the service will not have this client.
        """
        handle = self._handle
        host, port = next(self._addresses)
        try:
            opening = connect(host, port, handle.secret, handle.fingerprint, direct=direct)
            async with opening as connection:
                connection.send("open", handle.service, *hello())
                await talk(connection)
        except BROKEN as error:
            self.trouble = error

    async def pause(self, longest_s: float) -> None:
        """Wait before the next attempt, a little longer each time."""
        # Full jitter, so that all clients do not come back at once (Brooker, 2015).
        await asyncio.sleep(min(random.uniform(0.0, self._pause_s), longest_s))
        self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)

    def connected(self) -> None:
        """The service was there: begin with short pauses."""
        self._pause_s = FIRST_PAUSE_S

    def __str__(self) -> str:
        trouble = self.trouble
        detail = "" if trouble is None else f" ({str(trouble) or type(trouble).__name__})"
        return f"{self._handle.where}{detail}"
