"""The gate of one task, on a clock that stands still until it is moved."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Rate
from pillarbox.aio.limits.rate import LocalLimiter
from pillarbox.testing import FakeClock


def gate_of(rate: Rate | None = None, calls: int | None = None, cost: float | None = None) -> LocalLimiter:
    return LocalLimiter(rate, calls, cost, FakeClock(1e6))


def clock_of(gate: LocalLimiter) -> FakeClock:
    clock = gate._clock
    assert isinstance(clock, FakeClock)
    return clock


def admit_all(gate: LocalLimiter, until: float, units: list[float]) -> list[tuple[float, float]]:
    """Admit calls of these units, one after the other, as soon as the gate lets them; when and what."""
    clock = clock_of(gate)
    begun = []
    for each in units:
        while (wait := gate.admit(each)) > 0.0:
            if clock() + wait > until:
                return begun
            clock.advance(wait)
        begun.append((clock(), each))
    return begun


rates = st.floats(0.01, 20_000.0)
bursts = st.floats(0.001, 10.0)
idles = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=8)


@pytest.mark.contract
@given(rates, bursts, idles)
def test_never_more_calls_begin_than_burst_and_rate_allow_over_any_time(
    rate: float, burst: float, idle: list[float]
) -> None:
    gate = gate_of(Rate(rate, burst=burst))
    clock = clock_of(gate)
    begun: list[float] = []
    for pause in idle:
        clock.advance(pause)
        begun += [at for at, _ in admit_all(gate, clock() + 30 / rate, [1.0] * 40)]
    most = max(1.0, rate * burst)
    for first, start in enumerate(begun):
        for last in range(first, len(begun)):
            allowed = most + rate * (begun[last] - start)
            assert last - first + 1 <= allowed * (1 + 1e-6) + 1e-6


@given(
    st.floats(1.0, 1e6), bursts, st.lists(st.floats(0.0, 5_000.0), min_size=1, max_size=60), st.floats(0, 9)
)
def test_never_more_units_begin_than_burst_and_rate_or_one_heavy_call_allow(
    per_minute: float, burst: float, units: list[float], idle: float
) -> None:
    gate = gate_of(Rate(units_per_minute=per_minute, weight=float, burst=burst))
    clock_of(gate).advance(idle)
    begun = admit_all(gate, math.inf, units)
    assert len(begun) == len(units)
    most = max(per_minute / 60 * burst, max(units))
    for first, (start, _) in enumerate(begun):
        total = 0.0
        for at, weight in begun[first:]:
            total += weight
            assert total <= (most + per_minute / 60 * (at - start)) * (1 + 1e-6) + 1e-3


@pytest.mark.parametrize("rate", [0.5, 3.0, 7.7, 9_999.0])
def test_the_rate_is_exact_in_the_long_run(rate: float) -> None:
    gate = gate_of(Rate(rate, burst=0.25))
    begun = admit_all(gate, math.inf, [1.0] * 20_000)
    # Each wait is rounded up by a microsecond, which the next one gets back.
    assert (len(begun) - 1 - max(1.0, rate * 0.25)) / (begun[-1][0] - begun[0][0]) == pytest.approx(
        rate, 2e-4
    )


def test_a_call_needs_room_in_both_buckets_and_takes_from_both_or_none() -> None:
    gate = gate_of(Rate(10.0, 600.0, weight=float, burst=1.0))
    assert gate.admit(10.0) == 0.0
    # Nine requests are left and no units. What waits takes no request, so the bucket is full again.
    assert [gate.admit(5.0) == pytest.approx(0.5, abs=1e-5) for _ in range(50)] == [True] * 50
    clock_of(gate).advance(0.5001)
    assert gate.admit(5.0) == 0.0
    assert [gate.admit(0.0) for _ in range(9)] == [0.0] * 9
    assert gate.admit(0.0) > 0.0
    assert gate.statistics() == (11, 15.0, 0.0, 0)


def test_a_call_heavier_than_the_burst_goes_when_nothing_is_used_and_the_others_pay_for_it() -> None:
    gate = gate_of(Rate(units_per_minute=60.0, weight=float, burst=10.0))
    assert gate.admit(1.0) == 0.0
    assert gate.admit(100.0) == pytest.approx(1.0, abs=1e-5)
    clock_of(gate).advance(1.0001)
    assert gate.admit(100.0) == 0.0
    assert gate.admit(1.0) == pytest.approx(91.0, abs=1e-3)


@pytest.mark.contract
def test_max_calls_ends_the_calls_with_the_last_that_is_allowed() -> None:
    gate = gate_of(calls=3)
    assert [gate.admit() for _ in range(2)] == [0.0, 0.0]
    assert gate.exhausted is None
    assert gate.admit() == 0.0
    assert gate.exhausted == "max_calls=3"
    assert gate.admit() == math.inf
    assert gate.statistics().granted == 3


@pytest.mark.contract
def test_max_cost_ends_the_calls_when_it_is_reached() -> None:
    gate = gate_of(cost=1.0)
    for _ in range(3):
        assert gate.admit() == 0.0
        gate.spend(0.25)
    assert gate.exhausted is None
    gate.spend(0.25)
    assert gate.exhausted == "max_cost=1.0"
    assert gate.admit() == math.inf
    assert gate.statistics().cost == 1.0


def test_of_several_cool_downs_the_one_that_ends_last_counts() -> None:
    gate = gate_of(Rate(100.0, cool_down=2.0))
    gate.cool_down(5.0)
    gate.cool_down(None)
    gate.cool_down(1.0)
    assert gate.admit() == pytest.approx(5.0, abs=1e-5)
    clock_of(gate).advance(4.0)
    gate.cool_down(None)
    assert gate.admit() == pytest.approx(2.0, abs=1e-5)
    clock_of(gate).advance(2.1)
    assert gate.admit() == 0.0
    assert gate.statistics().cool_downs == 4


@pytest.mark.contract
def test_after_a_cool_down_there_is_no_burst() -> None:
    gate = gate_of(Rate(100.0, 60_000.0, weight=float, burst=1.0))
    gate.cool_down(10.0)
    clock_of(gate).advance(10.1)
    assert gate.admit(20.0) == 0.0
    assert gate.admit(5.0) > 0.0
    clock_of(gate).advance(0.0101)
    assert gate.admit(5.0) == 0.0
    assert gate.admit(5.0) > 0.0


def test_a_gate_without_a_rate_cools_down_too() -> None:
    gate = gate_of(calls=10)
    gate.cool_down(None)
    assert gate.admit() == pytest.approx(1.0, abs=1e-5)


def test_a_local_gate_wakes_nobody_and_closes_at_once() -> None:
    async def run() -> None:
        gate = gate_of(calls=1)
        gate.start(asyncio.get_running_loop(), lambda: pytest.fail("woken"))
        gate.admit()
        await gate.close()

    asyncio.run(run())
