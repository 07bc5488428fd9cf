"""A peer of a coordinator that says what a test wants, and keeps what it has sent. One loop's thread."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from pillarbox import Coordinator
from pillarbox.aio.limits.messages import SERVICE, TO_COORDINATOR, TO_TASK, Open, UsageReport
from pillarbox.aio.limits.rate import Limits
from pillarbox.rpc.connection import Connection, client_handshake
from tests.limits.unit.virtual_coordinator import VirtualCoordinator

LIMITS = Limits(max_calls=1000)
NOTHING_DONE = UsageReport()


class Peer:
    """A connection of somebody who knows the secret and keeps what he sends."""

    async def connect(self, coordinator: Coordinator | VirtualCoordinator) -> Peer:
        self.reader, self.writer = await asyncio.open_connection(*coordinator.address)
        self.channel: Connection = await client_handshake(self.reader, self.writer, coordinator._secret)
        self.sent: list[bytes] = []
        write = self.writer.write

        def keep(data: bytes) -> None:
            self.sent.append(bytes(data))
            write(data)

        self.writer.write = keep  # type: ignore[method-assign, assignment]
        return self

    def say(self, message: Any) -> None:
        self.channel.send(*TO_COORDINATOR.to_json(message))

    def open(
        self, gate: str = "g", client: str = "c", limits: Limits = LIMITS, report: UsageReport = NOTHING_DONE
    ) -> None:
        opening = Open(gate, limits, client, None, report)
        self.channel.send("open", SERVICE, *TO_COORDINATOR.to_json(opening)[1:])

    async def hear(self) -> Any:
        return TO_TASK.from_json(await self.channel.receive())

    def fall_silent(self) -> None:
        """Say nothing more, not even a heartbeat, and do not mind that nothing is heard."""
        self.channel.send = lambda *_: True  # type: ignore[method-assign]
        self.channel._heard_at = math.inf

    async def ended(self) -> bool:
        """True if the other side closes the connection; its messages until then are passed over."""
        try:
            while await self.reader.read(4096):
                pass
        except ConnectionError:
            pass
        self.writer.close()
        return True
