"""The memory of a coordinator: a gate may be forgotten after a while, a budget never."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits.coordinator import Upkeep
from pillarbox.aio.limits.messages import UsageReport
from pillarbox.aio.limits.quota import QuotaAllocator
from pillarbox.aio.limits.rate import CoordinatorError, Limits
from pillarbox.testing import FakeClock
from tests.limits.unit.calling import Caller
from tests.waiting import until

RATE = Limits(per_second=1000.0, burst=0.1)
BUDGET = Limits(max_calls=5)


def is_fresh(coordinator: Coordinator, name: str) -> bool:
    return coordinator._ask(lambda: coordinator._limits._accounts[name].allocator.is_fresh())


def check(test: Callable[[Coordinator], Awaitable[None]], names: int, state: Path | None = None) -> None:
    class Forgetful(Coordinator):
        _upkeep = Upkeep(max_names=names)

    with Forgetful(state=state) as coordinator:
        asyncio.run(test(coordinator))


async def use(coordinator: Coordinator, name: str | None, limits: Limits, number: int = 1) -> int:
    async with Caller(coordinator.named(name).open(limits)) as caller:
        return await caller.calls(number=number)


@pytest.mark.contract
def test_a_rate_that_nobody_uses_is_forgotten_and_one_in_use_is_not() -> None:
    async def test(coordinator: Coordinator) -> None:
        async with Caller(coordinator.named("used").open(RATE)) as caller:
            assert await caller.call()
            for name in ("a", "b", "c"):
                assert await use(coordinator, name, RATE) == 1
                # By then its bucket is full, as a new one's would be.
                await until(lambda name=name: is_fresh(coordinator, name))  # type: ignore[misc]
            assert {*coordinator.statistics()} == {"used", "c"}
            assert await caller.call()

    check(test, 3)


@pytest.mark.contract
def test_a_budget_that_nobody_uses_still_counts(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator) -> None:
        assert await use(coordinator, "g", BUDGET, 3) == 3
        for name in ("a", "b"):
            assert await use(coordinator, name, RATE) == 1
            await until(lambda name=name: is_fresh(coordinator, name))  # type: ignore[misc]
        assert {*coordinator.statistics()} == {"g", "b"}
        assert await use(coordinator, "g", BUDGET, 100) == 2

    check(test, 2, tmp_path / "state")
    assert json.loads((tmp_path / "state").read_text())["gates"]["g"]["sums"] == [5, 5, 0.0]


def test_a_budget_too_many_is_refused_at_once_and_none_is_forgotten() -> None:
    async def test(coordinator: Coordinator) -> None:
        for name in ("a", "b"):
            assert await use(coordinator, name, BUDGET, 3) == 3
        with pytest.raises(CoordinatorError, match="2 names of limits are in use, or have budgets"):
            await use(coordinator, "c", BUDGET)
        for name in ("a", "b"):
            assert await use(coordinator, name, BUDGET, 100) == 2

    check(test, 2)


def test_only_what_a_new_book_would_not_grant_twice_is_fresh() -> None:
    clock = FakeClock(100.0)
    book = QuotaAllocator(Limits(per_second=10.0, units_per_second=5.0, burst=1.0), clock)
    assert book.is_fresh()
    book.register("a", UsageReport())
    assert not book.is_fresh()
    book.want("a", 0, 1, 1.0)
    assert len(book.grant()[0]) == 1
    book.leave("a", UsageReport(1, 1))
    assert not book.is_fresh()
    clock.advance(10.0)
    assert book.is_fresh()
    book.cool_down(3.0)
    assert not book.is_fresh()
    clock.advance(3.0)
    assert book.is_fresh()
    assert not QuotaAllocator(Limits(max_calls=1), clock).is_fresh()
    assert not QuotaAllocator(Limits(max_cost=1.0), clock).is_fresh()
