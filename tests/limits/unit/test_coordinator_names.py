"""The memory of a coordinator: a gate may be forgotten after a while, a budget never."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits import coordinator as coordinator_module
from pillarbox.aio.limits.quota import QuotaAllocator, UsageReport
from pillarbox.aio.limits.shared import CoordinatorError, Limits
from pillarbox.testing import FakeClock
from tests.limits.unit.calling import Caller, wait_until

RATE = Limits(per_second=1000.0, burst=0.1)
BUDGET = Limits(max_calls=5)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "IDLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(coordinator_module, "SWEEP_INTERVAL_S", 0.05)


def check(test: Callable[[Coordinator], Awaitable[None]], state: Path | None = None) -> None:
    with Coordinator(state=state) as coordinator:
        asyncio.run(asyncio.wait_for(test(coordinator), 60))


async def use(coordinator: Coordinator, name: str | None, limits: Limits, number: int = 1) -> int:
    async with Caller(coordinator.named(name).open(limits)) as caller:
        return await caller.calls(number=number)


@pytest.mark.contract
@pytest.mark.usefixtures("quick")
def test_a_rate_that_nobody_uses_is_forgotten_and_one_in_use_is_not(tmp_path: Path) -> None:
    async def test(coordinator: Coordinator) -> None:
        async with Caller(coordinator.named("used").open(RATE)) as caller:
            assert await caller.call()
            for _ in range(3):
                assert await use(coordinator, None, RATE) == 1
            assert len(coordinator.statistics()) >= 1
            await wait_until(lambda: {*coordinator.statistics()} == {"used"})
            assert await caller.call()
        await wait_until(lambda: coordinator.statistics() == {})
        await wait_until(lambda: json.loads((tmp_path / "state").read_text())["gates"] == {})

    check(test, tmp_path / "state")


@pytest.mark.contract
@pytest.mark.usefixtures("quick")
def test_a_budget_that_nobody_uses_still_counts_and_takes_little_room(tmp_path: Path) -> None:
    def written() -> dict[str, object]:
        gate: dict[str, object] = json.loads((tmp_path / "state").read_text())["gates"]["g"]
        return gate

    async def test(coordinator: Coordinator) -> None:
        assert await use(coordinator, "g", BUDGET, 3) == 3
        assert await use(coordinator, "late", RATE) == 1
        # By then the budget would have been forgotten too.
        await wait_until(lambda: {*coordinator.statistics()} == {"g"})
        await wait_until(lambda: written()["remembered"] == {})
        assert written()["sums"] == [3, 3, 0.0]
        assert await use(coordinator, "g", BUDGET, 100) == 2

    check(test, tmp_path / "state")
    assert written()["sums"] == [5, 5, 0.0]


def test_a_budget_too_many_is_refused_at_once_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "MAX_NAMES", 2)

    async def test(coordinator: Coordinator) -> None:
        for name in ("a", "b"):
            assert await use(coordinator, name, BUDGET, 3) == 3
        with pytest.raises(CoordinatorError, match="2 names of limits are in use, or have budgets"):
            await use(coordinator, "c", BUDGET)
        for name in ("a", "b"):
            assert await use(coordinator, name, BUDGET, 100) == 2

    check(test)


def test_only_what_a_new_book_would_not_grant_twice_is_fresh() -> None:
    clock = FakeClock(100.0)
    book = QuotaAllocator(Limits(per_second=10.0, units_per_second=5.0, burst=1.0), clock)
    assert book.is_fresh()
    book.register("a", UsageReport())
    assert not book.is_fresh()
    book.want("a", 0, 1, 1.0, 1.0)
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
