"""The way to a `SourceChannel`, as it travels to tasks: where it listens and its secret. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox.sources.channel.client import CONNECT_TIMEOUT_S, ChannelClient


class ChannelHandle:
    """The place where a channel listens, and the secret that it asks for. A plain value, thread-safe.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    """

    def __init__(self, addresses: tuple[tuple[str, int], ...], secret: bytes, service: str) -> None:
        self.addresses = addresses
        self.service = service
        self._secret = secret

    def named(self, service: str) -> ChannelHandle:
        """The way to another service of the same channel."""
        return ChannelHandle(self.addresses, self._secret, service)

    def connect(
        self,
        about: Any = None,
        *,
        receive: Callable[[Any], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        patience: float = CONNECT_TIMEOUT_S,
    ) -> ChannelClient:
        """A client of the service, on a thread of its own. See `ChannelClient`. Does not block."""
        return ChannelClient(
            self.addresses,
            self._secret,
            self.service,
            about,
            receive=receive,
            failed=failed,
            patience=patience,
        )

    def __repr__(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<source channel at {where}, service {self.service!r}>"
