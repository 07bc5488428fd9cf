"""A real process that is killed while it holds slots: a real coordinator, and a service that counts."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.limits.unit import holding_slots
from tests.limits.unit.coordinating import Hasty
from tests.limits.unit.holding_slots import Counting
from tests.waiting import until

SLOTS = 4
CALL_S = 0.3
LEASE_S = 2.0


class Leasing(Hasty):
    """Leases slots for longer than a call takes, and not for as long as users' coordinators do."""

    _slot_lease_s = LEASE_S


@pytest.mark.contract(
    "The slots of a process that was killed come back after its lease, with never more calls at the service.",
    convicts=["slots_expire_early"],
)
def test_slots_of_a_killed_process_come_back_after_its_lease_and_never_more_calls_are_in_flight() -> None:
    async def script() -> None:
        service = Counting(CALL_S)
        port = await service.start()
        with Leasing() as coordinator:
            shared = coordinator.named("g")
            first, second = (holding_slots.start(shared, SLOTS, port, name) for name in ("a", "b"))
            try:
                await until(lambda: service.in_flight["a"] > 0 and service.in_flight["b"] > 0)
                first.kill()
                killed_at = time.monotonic()
                first.wait()
                await until(lambda: service.in_flight["b"] == SLOTS)
                # Its connection ended with it; the lease began then.
                assert time.monotonic() - killed_at >= LEASE_S
                await until(lambda: service.in_flight["a"] == 0)
                assert service.most == SLOTS
            finally:
                for program in (first, second):
                    program.kill()
                    program.wait()
        await service.close()

    asyncio.run(script())
