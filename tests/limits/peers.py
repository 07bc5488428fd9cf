"""A peer of a coordinator that says what a test wants, and keeps what it has sent. One loop's thread."""

from __future__ import annotations

import asyncio
from typing import Any

from pillarbox.aio.limits.coordinator import Coordinator
from pillarbox.aio.limits.shared import Limits
from pillarbox.wire.frames import Channel, introduce

LIMITS = Limits(max_calls=1000)


class Peer:
    """A connection of somebody who knows the secret and keeps what he sends."""

    async def connect(self, coordinator: Coordinator) -> Peer:
        self.reader, self.writer = await asyncio.open_connection(*coordinator.address)
        self.channel: Channel = await introduce(self.reader, self.writer, coordinator._secret)
        self.sent: list[bytes] = []
        write = self.writer.write

        def keep(data: bytes) -> None:
            self.sent.append(bytes(data))
            write(data)

        self.writer.write = keep  # type: ignore[method-assign, assignment]
        return self

    def say(self, **message: Any) -> None:
        self.channel.send({"report": [0, 0, 0, 0.0], **message})

    def open(self, gate: str = "g", client: str = "c", limits: Limits = LIMITS, **more: Any) -> None:
        self.say(**{"is": "open", "gate": gate, "limits": [*limits], "client": client, **more})

    async def ended(self) -> bool:
        """Whether the other side closes the connection; what it says until then is passed over."""
        try:
            while await asyncio.wait_for(self.reader.read(4096), 10):
                pass
        except ConnectionError:
            pass
        self.writer.close()
        return True
