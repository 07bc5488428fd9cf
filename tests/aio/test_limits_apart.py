"""The limits of an operator, each by itself: calls in flight, rows not emitted, bytes. Time is virtual."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pillarbox import Adaptive, Buffer, Options, Rate, Retry, async_map
from tests.aio.virtual import HOUR, Job, again, now, play


class Gated:
    """An async function whose calls end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.doors: dict[Any, asyncio.Event] = {}
        self.running = self.most = 0

    async def __call__(self, row: Any) -> Any:
        self.begun.append(row)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.doors.setdefault(row, asyncio.Event()).wait()
        finally:
            self.running -= 1
        return row

    async def let_go(self, *rows: Any) -> None:
        """End the calls of the rows, and give what follows from that its turns."""
        for row in rows:
            self.doors.setdefault(row, asyncio.Event()).set()
        await asyncio.sleep(0.001)


@pytest.mark.contract
def test_in_order_calls_go_on_behind_a_slow_one_until_the_window_is_full() -> None:
    async def script() -> None:
        gated = Gated()
        job = Job(gated, capacity=2, buffer=Buffer(5))
        job.push(*range(10))
        await gated.let_go(1, 2, 3, 4, 5, 6)
        # Row 0 holds back the emission of 1 to 4, not their calls; 5 has no place yet.
        assert (gated.begun, job.results) == ([0, 1, 2, 3, 4], [])
        counts = job.statistics()
        assert (counts.in_flight, counts.rows_in, counts.finished_waiting) == (1, 5, 4)
        await gated.let_go(0)
        assert job.results == [0, 1, 2, 3, 4, 5, 6]
        await gated.let_go(7, 8, 9)
        await job.end()
        assert (job.results, gated.most) == ([*range(10)], 2)

    play(script)


@pytest.mark.contract
def test_unordered_a_slow_call_holds_back_no_other_row() -> None:
    async def script() -> None:
        gated = Gated()
        job = Job(gated, capacity=2, buffer=Buffer(2), ordered=False)
        job.push(*range(10))
        await gated.let_go(*range(1, 10))
        assert job.results == [*range(1, 10)]
        await gated.let_go(0)
        await job.end()
        assert job.results == [*range(1, 10), 0]

    play(script)


def test_a_row_that_pauses_holds_its_place_in_the_window_and_no_slot() -> None:
    calls: list[int] = []

    async def call(row: int) -> int:
        calls.append(row)
        if row == 0 and calls.count(0) == 1:
            raise OSError("busy")
        return row

    async def script() -> None:
        job = Job(call, capacity=1, buffer=Buffer(3), retry=again(2, 100))
        job.push(*range(6))
        await asyncio.sleep(50)
        assert calls == [0, 1, 2]
        counts = job.statistics()
        assert (counts.in_flight, counts.waiting, counts.rows_in) == (0, 1, 3)
        await job.end()
        assert (job.results, calls[3]) == ([*range(6)], 0)

    play(script)


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_max_bytes_bounds_the_rows_that_are_held(ordered: bool) -> None:
    class Measuring(Gated):
        async def __call__(self, row: bytes) -> int:
            await super().__call__(row)
            return row[0]

    async def script() -> None:
        gated = Measuring()
        rows = [bytes([number]) * 100_000 for number in range(7)]
        # The third is the one that is too much.
        job = Job(gated, capacity=100, buffer=Buffer(max_bytes=250_000), ordered=ordered)
        job.push(*rows)
        await gated.let_go()
        assert gated.begun == rows[:3]
        for row in rows:
            assert job.statistics().held_bytes < 302_000
            assert gated.running <= 3
            await gated.let_go(row)
        assert gated.begun == rows
        await job.end()
        assert job.results == [*range(7)]
        assert job.statistics().held_bytes == 0

    play(script)


def test_without_max_bytes_no_bytes_are_counted() -> None:
    async def script() -> None:
        gated = Gated()
        job = Job(gated, capacity=50, buffer=Buffer(max_bytes=None))
        job.push(*range(50))
        await gated.let_go()
        assert len(gated.begun) == 50
        # Not a sum that only grows.
        assert job.statistics().held_bytes == 0
        await job.stop()

    play(script)


def test_rows_of_an_iterable_are_weighed_each_by_itself() -> None:
    held: list[int] = []
    most = 300_000

    async def call(row: bytes) -> int:
        held.append(len(row))
        counts = results.statistics()
        assert counts is not None
        # The last row that was let in may be too much by itself, never one more.
        assert counts.held_bytes < most + 110_000
        await asyncio.sleep(0.001)
        return len(row)

    rows = [bytes(100_000 if number % 2 else 10) for number in range(60)]
    results = async_map(rows, call, capacity=50, options=Options(buffer=Buffer(max_bytes=most)))
    assert list(results) == [len(row) for row in rows]
    counts = results.statistics()
    assert counts is not None and counts.held_bytes == 0


def test_a_row_that_is_larger_than_max_bytes_is_let_in_alone() -> None:
    async def script() -> None:
        gated = Gated()
        rows = [bytes([number]) * 1000 for number in range(3)]
        job = Job(gated, buffer=Buffer(max_bytes=5))
        job.push(*rows)
        for number, row in enumerate(rows, 1):
            await gated.let_go()
            assert gated.begun == rows[:number]
            await gated.let_go(row)
        await job.end()
        assert job.results == rows

    play(script)


@pytest.mark.contract
def test_a_full_output_holds_up_the_input_and_loses_nothing() -> None:
    began = threading.Semaphore(0)

    async def call(row: int) -> int:
        began.release()
        return row

    rows = iter(range(1000))
    results = async_map(rows, call, capacity=2, options=Options(buffer=Buffer(4)))
    assert next(results) == 0
    # One chunk waits to be taken, one is built, and the window is full: then nothing more is called.
    while began.acquire(timeout=0.2):
        pass
    counts = results.statistics()
    assert counts is not None and counts.calls < 100
    assert list(results) == [*range(1, 1000)]


# -- a capacity that is found --------------------------------------------------------------------


class Busy(Exception):
    """An answer that says "overloaded"."""

    status = 429


@pytest.mark.contract(
    "A capacity that grows begins more calls at once, and one that shrinks begins none and ends none.",
    convicts=["runners_never_retire"],
)
def test_a_limit_that_grows_begins_more_calls_at_once_and_one_that_shrinks_none() -> None:
    refused = range(8, 15)

    class Refusing(Gated):
        async def __call__(self, row: int) -> int:
            await super().__call__(row)
            if row in refused:
                raise Busy
            return row

    async def script() -> None:
        gated = Refusing()
        job = Job(gated, capacity=Adaptive(start=1, most=4), errors="null")
        job.push(*range(30))

        async def ends(*rows: int) -> None:
            for row in rows:
                await asyncio.sleep(0.1)
                await gated.let_go(row)

        # One is not measured, one is, and with the next the limit is doubled.
        await ends(0, 1)
        assert (gated.begun, job.statistics().capacity) == ([0, 1, 2], 1)
        await ends(2)
        assert (gated.begun, job.statistics().capacity) == ([*range(5)], 2)
        await ends(3, 4)
        assert (gated.begun, job.statistics().capacity) == ([*range(7)], 2)
        await ends(5)
        assert (gated.begun, job.statistics().capacity) == ([*range(10)], 4)
        # Refusals of calls that began before, or with, the change say nothing about it; four others are few.
        await ends(*range(8, 14))
        assert (len(gated.begun), job.statistics().capacity) == (16, 4)
        # The calls that run are left alone, and none begins in excess.
        await ends(14)
        assert (len(gated.begun), job.statistics().capacity) == (16, 3)
        assert gated.running == 3
        await ends(6)
        assert len(gated.begun) == 17
        await ends(7, *range(15, 30))
        await job.end()
        assert (gated.most, job.results) == (4, [None if row in refused else row for row in range(30)])

    play(script)


@pytest.mark.parametrize("kind", ["nothing", "errors", "refusals", "time-outs"])
def test_what_finds_the_capacity_sees_errors_refusals_and_time_outs(kind: str) -> None:
    capacities: list[int] = []

    async def call(row: int) -> int:
        capacities.append(job.statistics().capacity)
        await asyncio.sleep(HOUR if kind == "time-outs" and row % 2 and row >= 200 else 0.02)
        if row % 2 and row >= 200:
            if kind == "errors":
                raise ValueError(row)
            if kind == "refusals":
                raise Busy
        return row

    async def script() -> None:
        nonlocal job
        job = Job(call, capacity=Adaptive(start=16, most=16), errors="null", timeout=0.03)
        job.push(*range(600))
        await job.end()

    job: Any = None
    play(script)
    assert {*capacities[:200]} == {16}
    assert (min(capacities) < 16) == (kind != "nothing")


def test_with_auto_the_capacity_is_found_while_it_runs() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(0.001)
        return row

    results = async_map(range(2000), call, capacity="auto")
    capacities: set[int] = set()
    for row, result in enumerate(results):
        assert result == row
        counts = results.statistics()
        assert counts is not None
        capacities.add(counts.capacity)
    # It may be what it began with again at the end.
    assert capacities - {Adaptive().start}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"capacity": 4, "options": Options(capacity=2, buffer=Buffer(3))},
            "buffer=3: must be at least capacity",
        ),
        ({"capacity": "all"}, "capacity='all': must be one of 'auto'"),
        ({"capacity": 2**22}, "the window of rows may be at most"),
    ],
    ids=repr,
)
def test_limits_that_make_no_sense_are_refused_at_the_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async_map([], Gated(), **given)
    with pytest.raises(ValueError, match="max_bytes=0: must be at least 1"):
        Buffer(max_bytes=0)


@pytest.mark.contract(
    "A heavy row that waits for a rate is not overtaken by the retries of others.",
    convicts=["retries_overtake_held_row"],
)
def test_a_heavy_row_that_waits_for_a_rate_is_not_overtaken_by_retries() -> None:
    async def script() -> None:
        began: dict[str, list[float]] = {}

        async def call(row: str) -> str:
            began.setdefault(row, []).append(now())
            await asyncio.sleep(0.1)
            if row != "heavy" and len(began[row]) < 20:
                raise OSError("away")
            return row

        rate = Rate(units_per_minute=60.0, burst=10.0, weight=lambda row: 10.0 if row == "heavy" else 1.0)
        retry = Retry(20, initial=1.0, multiplier=1.0, jitter=False)
        job = Job(call, rate=rate, retry=retry, capacity=8)
        light = [f"light {number}" for number in range(5)]
        job.push(*light, "heavy")
        await job.end()
        assert job.results == [*light, "heavy"]
        # Five units of ten are left by the others; the rest is there after five seconds.
        assert began["heavy"] == [pytest.approx(5.0, abs=0.01)]

    play(script)
