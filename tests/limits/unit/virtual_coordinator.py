"""A coordinator and its tasks on one loop with virtual time. All is for the thread that runs the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.limits.coordinator import DEFAULT_UPKEEP, LimitService, SharedStatistics, Upkeep
from pillarbox.aio.limits.fact_link import FactLink
from pillarbox.aio.limits.facts import FACTS, FactService
from pillarbox.aio.limits.lease import LeasedLimiter
from pillarbox.aio.limits.messages import SERVICE
from pillarbox.aio.limits.rate import Limits, Rate, SharedLimits
from pillarbox.aio.limits.slot_lease import SlotLease
from pillarbox.aio.limits.slots import LEASE_S, SLOTS, SlotService
from pillarbox.rpc.connection import DEFAULT_TIMING, RpcHandle, Timing
from pillarbox.rpc.server import RpcServer
from tests.rpc.unit.virtual_network import HOST, PORT

SECRET = bytes(32)
HANDLE = RpcHandle(((HOST, PORT),), SECRET, SERVICE)


def limiter(limits: Limits, name: str = "g", patience: float = 60.0, **how: Any) -> LeasedLimiter:
    """A task's limiter on the clock of the running loop."""
    clock = asyncio.get_running_loop().time
    return LeasedLimiter(HANDLE, name, limits, patience, clock, **how)


class VirtualCoordinator:
    """A coordinator in memory, in an `async with` block. state: what it goes on from."""

    def __init__(
        self,
        state: dict[str, Any] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        timing: Timing = DEFAULT_TIMING,
        slot_lease_s: float = LEASE_S,
    ) -> None:
        self.address, self._secret = (HOST, PORT), SECRET
        clock = asyncio.get_running_loop().time
        self.service = LimitService(SECRET, None, state, upkeep, clock)
        self._server = RpcServer(SERVICE, self.service, HOST, PORT, timing=timing)
        self._server._secret = SECRET
        self.facts = self._server._others[FACTS] = FactService(clock)
        self.slots = self._server._others[SLOTS] = SlotService(clock, slot_lease_s)

    async def __aenter__(self) -> VirtualCoordinator:
        await self._server._listen()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._server._stop()

    def statistics(self) -> dict[str, SharedStatistics]:
        return self.service.statistics()


class VirtualLimits(SharedLimits):
    """The limits of the coordinator that listens on the running loop, for operators."""

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> LeasedLimiter:
        return limiter(Limits.of(rate, max_calls, max_cost))

    def open_slots(self, calls: int | Adaptive) -> SlotLease:
        clock = asyncio.get_running_loop().time
        return SlotLease(RpcHandle(((HOST, PORT),), SECRET, SLOTS), "g", calls, 60.0, clock)

    def open_facts(self) -> FactLink:
        return FactLink(RpcHandle(((HOST, PORT),), SECRET, FACTS), "g")

    def named(self, name: str | None = None) -> VirtualLimits:
        return self
