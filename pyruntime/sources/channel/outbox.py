"""The messages of one side of a channel, in order, once: kept until the other side has it. One loop's thread.

The messages are numbered. What the other side has not acknowledged when a connection breaks is said again on
the next one, and what it has had already it passes over. The idea is that of TCP itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from pillarbox.wire.frames import Channel, ProtocolError

MAGIC = b"pillarbox-source-1\n"
MAX_FRAME = 256 * 1024
"""Bytes of the text of a frame."""
MAX_MESSAGE = MAX_FRAME - 1024
"""Bytes of a message as JSON."""
MAX_UNSENT_NBYTES = 256 * 1024
"""Bytes that may wait for the system: more are sent when the other side has acknowledged some."""
MAX_KEPT = 64 * 1024 * 1024
"""Bytes of messages that may wait for a peer. One that leaves more is given up."""


class Outbox:
    """The messages to one peer, over one connection after another."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._bytes = 0
        self._acknowledged = 0
        self._sent = 0
        self._channel: Channel | None = None

    @property
    def is_empty(self) -> bool:
        """True if the peer has everything."""
        return not self._kept

    def put(self, kind: str, body: bytes) -> None:
        """Say this too, now or as soon as there is a connection. Raises ProtocolError if too much waits."""
        if self._bytes + len(body) > MAX_KEPT:
            raise ProtocolError(f"a peer that takes nothing: {self._bytes:,} bytes wait for it")
        self._kept.append(b'{"is":"%b","body":%b,"n":' % (kind.encode(), body))
        self._bytes += len(self._kept[-1])
        self._pump()

    def connected(self, channel: Channel, received: int) -> None:
        """There is a connection again, and the peer has had the messages up to number `received`."""
        self.acknowledged(received)
        self._sent = self._acknowledged
        self._channel = channel
        self._pump()

    def disconnected(self) -> None:
        """The connection has gone."""
        self._channel = None

    def acknowledged(self, number: int) -> None:
        """The peer has had the messages up to `number`. Raises ProtocolError for what was never said."""
        if not self._acknowledged <= number <= self._acknowledged + len(self._kept):
            raise ProtocolError(f"message {number!r} was acknowledged and does not exist")
        for _ in range(number - self._acknowledged):
            self._bytes -= len(self._kept.popleft())
        self._acknowledged = number
        self._pump()

    def _pump(self) -> None:
        while self._channel is not None and self._sent - self._acknowledged < len(self._kept):
            if self._channel.unsent > MAX_UNSENT_NBYTES:
                return
            text = self._kept[self._sent - self._acknowledged]
            self._sent += 1
            self._channel.send_text(text + b"%d}" % self._sent)


class Inbox:
    """Counts what one peer has said, so that nothing is heard twice."""

    def __init__(self) -> None:
        self.received = 0

    def is_new(self, message: dict[str, Any]) -> bool:
        """Return True if a message was not heard before. Raises ProtocolError if one is missing."""
        number = message["n"]
        if type(number) is not int or number > self.received + 1:
            raise ProtocolError(f"message {number!r} comes after {self.received}")
        if number <= self.received:
            return False
        self.received = number
        return True
