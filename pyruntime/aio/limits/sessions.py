"""What a coordinator has of each client and of each gate. Confined to the thread of its loop."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from typing import Any, NamedTuple

from pillarbox.aio.limits.book import Book
from pillarbox.wire.frames import BROKEN, Channel

log = logging.getLogger("pillarbox")


class SharedStatistics(NamedTuple):
    """What all tasks of one gate have done so far."""

    calls: int
    """Calls begun, as far as is known."""
    held: int
    """Calls granted that may still begin."""
    cost: float
    clients: int
    cool_downs: int


class Session:
    """A client that is known by its secret."""

    def __init__(self, channel: Channel, writer: asyncio.StreamWriter) -> None:
        self.channel = channel
        self.writer = writer
        self.heard = 0.0
        self.client = ""
        self.gate: SharedGate | None = None
        self.is_cut = False

    def cut(self) -> None:
        """End the connection, whatever the client has still to say."""
        self.is_cut = True
        self.channel.abort()

    def is_heard_out(self) -> bool:
        """Whether nothing is missing of what the client said, now that there is no more.

        The end that a system makes of a connection comes after all that was sent (FIN). A reset does not, nor
        does what we did.
        """
        theirs = self.writer.get_extra_info("socket")
        try:
            return not self.is_cut and not theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except (OSError, RuntimeError):
            return False

    def send(self, message: dict[str, Any]) -> None:
        """Send now. Who cannot be told is cut off, which is no trouble of the others."""
        try:
            told = self.channel.send(message)
        except (*BROKEN, RuntimeError) as error:
            log.debug("a message cannot be sent: %s", error)
            told = False
        if not told:
            self.cut()


class SharedGate:
    """One gate: its accounts, and the connections of those who share it."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.sessions: dict[str, Session] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.told_over = False
        self.idle_at = time.monotonic()
        """When its last client left."""
        self.is_put_away = False
        self._text: str | None = None
        self.kept = book.limits.max_calls is not None or book.limits.max_cost is not None

    @property
    def is_idle(self) -> bool:
        """Whether no client is there, or may come back to what it holds."""
        return not self.sessions and not self.book.clients

    def use(self) -> None:
        """Somebody uses it again."""
        self.is_put_away = False
        self._text = None

    def put_away(self) -> None:
        """Keep only the sums of an idle one."""
        self.book.forget_clients()
        self.is_put_away = True
        self._text = None

    def written(self) -> str:
        """What is written down of it; made once for an idle one, however often it is written."""
        if self._text is not None:
            return self._text
        text = json.dumps(self.book.to_json())
        self._text = text if self.is_idle else None
        return text
