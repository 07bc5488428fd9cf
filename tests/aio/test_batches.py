"""Batches: whose result is whose, and how they go together with the other options."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox import Batch, Budget, CallFailed, Rate, Timeout, async_map
from tests.aio.virtual import HOUR, Job, Scripted, Service, again, answers, infos, loop_of, play
from tests.threads import begun


async def squares(rows: list[int]) -> list[int]:
    await asyncio.sleep(0.001 * (rows[0] % 3))
    return [row * row for row in rows]


def blocking_squares(rows: list[int]) -> list[int]:
    return [row * row for row in rows]


def generated_squares(rows: list[int]) -> Iterator[int]:
    return (row * row for row in rows)


@pytest.mark.contract("Each row of a batch gets its own result.")
@pytest.mark.parametrize("fn", [squares, blocking_squares, generated_squares])
@pytest.mark.parametrize("ordered", [True, False])
def test_each_row_gets_its_own_result(fn: Callable[[list[int]], Any], ordered: bool) -> None:
    for rows in (range(1000), iter(range(1000))):
        results = async_map(rows, fn, batch=Batch(7, linger=0.001), capacity=5, ordered=ordered)
        found = list(results)
        assert (found if ordered else sorted(found)) == [row * row for row in range(1000)]
        counts = results.statistics()
        assert counts is not None
        assert (counts.calls, counts.latency.measurements, counts.in_flight) == (1000, 1000, 0)
        assert counts.batches >= 1000 / 7


# -- blocking functions --------------------------------------------------------------------------


def test_batches_of_a_blocking_function_run_in_threads_up_to_the_capacity() -> None:
    barrier = threading.Barrier(3)
    names: set[str] = set()

    def call(rows: list[int]) -> list[int]:
        names.add(threading.current_thread().name)
        barrier.wait()
        return rows

    assert list(async_map(range(24), call, batch=Batch(4), capacity=3)) == list(range(24))
    assert all(name.startswith("pillarbox-call-") for name in names)


def test_a_failed_batch_of_a_blocking_function_is_split_too() -> None:
    def call(rows: list[int]) -> list[int]:
        if 5 in rows:
            raise ValueError("bad row")
        return rows

    results = list(async_map(range(16), call, batch=Batch(8), errors="null"))
    assert results == [None if row == 5 else row for row in range(16)]


def test_a_plain_function_of_batches_that_returns_an_awaitable_is_refused_with_advice() -> None:
    def call(rows: list[int]) -> Any:
        return squares(rows)

    with pytest.raises(CallFailed, match="make it `async def`"):
        list(async_map([1], call, batch=Batch(1)))


def test_a_blocking_batch_that_meets_its_time_out_is_ignored_and_joined_at_the_end() -> None:
    began, release = threading.Event(), threading.Event()

    def call(rows: list[int]) -> list[int]:
        if 0 in rows:
            began.set()
            release.wait(30)
        return rows

    def give_up(row: int) -> str:
        # Of the first batch the second row is late a moment after the first.
        if row > 0:
            release.set()
        return f"late {row}"

    results = async_map(range(4), call, batch=Batch(2), capacity=1, timeout=Timeout(0.05, fallback=give_up))
    first, second, *others = results
    assert (first, second) == ("late 0", "late 1")
    # The other batch ends at once, which is late where the machine is busy.
    assert [each in (row, f"late {row}") for row, each in enumerate(others, 2)] == [True, True]
    assert began.is_set()
    assert begun() == []


# -- isolation -----------------------------------------------------------------------------------


def test_what_one_batch_sets_in_its_context_reaches_no_other() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    async def call(rows: list[int]) -> list[str]:
        seen = variable.get()
        variable.set(f"batch of {rows[0]}")
        return [seen] * len(rows)

    def blocking(rows: list[int]) -> list[str]:
        seen = variable.get()
        variable.set(f"batch of {rows[0]}")
        return [seen] * len(rows)

    for fn in (call, blocking):
        assert list(async_map(range(9), fn, batch=Batch(2), capacity=1)) == ["caller"] * 9


def test_a_batch_that_cancels_its_own_task_cancels_no_other() -> None:
    async def call(rows: list[int]) -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if 2 in rows:
            await asyncio.sleep(0)
        return rows

    results = list(async_map(range(6), call, batch=Batch(1), capacity=1, errors="null"))
    assert results == [0, 1, None, 3, 4, 5]


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_batch_that_raises_what_ends_loops_fails_its_poison_row_alone(kind: type[BaseException]) -> None:
    async def call(rows: list[int]) -> list[int]:
        if 2 in rows:
            raise kind
        return rows

    assert list(async_map(range(5), call, batch=Batch(4), errors="null")) == [0, 1, None, 3, 4]


# -- with the other options ----------------------------------------------------------------------


def test_the_gate_is_asked_once_for_a_batch_with_the_weight_of_its_rows() -> None:
    async def script() -> None:
        service = Service()
        # A bucket of 60 units that gets 1 a second, by the monotonic clock: it does not refill here.
        rate = Rate(units_per_minute=60, weight=lambda row: row, burst=60)
        job = Job(service, capacity=2, rate=rate, batch=Batch(3, linger=HOUR))
        job.push(10, 10, 10, 15, 5, 10, 50, 1, 1)
        await asyncio.sleep(0.5)
        assert [rows for _, rows in service.calls] == [[10, 10, 10], [15, 5, 10]]
        counts = job.statistics()
        # The third weighs 52: it is held back, in front of the others, and has no slot.
        assert (counts.rate_granted, counts.in_flight, counts.waiting) == (2, 0, 3)
        await job.stop()

    play(script)


def test_a_row_that_the_rate_cannot_weigh_fails_alone() -> None:
    async def script() -> None:
        service = Service()
        rate = Rate(units_per_minute=1e9, weight=lambda row: 1 / row)
        job = Job(service, rate=rate, batch=Batch(4), errors="column")
        job.push(1, 0, 2)
        await job.end()
        assert [rows for _, rows in service.calls] == [[1, 2]]
        assert infos(job)[0].type == "ZeroDivisionError"

    play(script)


@pytest.mark.contract
def test_max_calls_counts_calls_of_batches_and_marks_the_rows_that_are_left() -> None:
    async def script() -> None:
        service = Service()
        job = Job(
            service, capacity=1, budget=Budget(max_calls=2), batch=Batch(3, linger=HOUR), errors="column"
        )
        job.push(*range(10))
        await job.end()
        assert [rows for _, rows in service.calls] == [[0, 1, 2], [3, 4, 5]]
        assert {row: info.type for row, info in infos(job).items()} == dict.fromkeys(
            range(6, 10), "NotCalled"
        )
        assert job.statistics().not_called == 4

    play(script)


def test_halves_that_may_not_be_called_any_more_are_marked_with_the_error_of_their_batch() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        raise ValueError("bad")

    async def script() -> None:
        service = Scripted(reply)
        job = Job(
            service, capacity=1, budget=Budget(max_calls=2), batch=Batch(4, linger=HOUR), errors="column"
        )
        job.push(*range(4))
        await job.end()
        assert [rows for _, rows in service.calls] == [[0, 1, 2, 3], [0, 1]]
        said = {row: (info.type, info.attempts) for row, info in infos(job).items()}
        assert said == {row: ("NotCalled", 2 if row < 2 else 1) for row in range(4)}
        assert infos(job)[3].message.endswith("the attempt before ended with ValueError: bad")
        assert job.statistics().not_called == 4
        assert job.statistics().waiting == 0

    play(script)


def test_equal_rows_share_one_place_in_a_batch() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, dedupe=True, batch=Batch(3, linger=HOUR))
        job.push(1, 2, 1, 1, 3, 2)
        await job.end()
        assert [rows for _, rows in service.calls] == [[1, 2, 3]]
        assert job.results == answers(1, 2, 1, 1, 3, 2)
        assert job.statistics().shared == 3

    play(script)


@pytest.mark.contract
def test_rows_that_share_a_poison_row_fail_with_it() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if 2 in rows:
            raise ValueError("bad")
        return answers(*rows)

    async def script() -> None:
        job = Job(Scripted(reply), dedupe=True, errors="null", batch=Batch(3, linger=HOUR))
        job.push(1, 2, 2, 3)
        await job.end()
        assert [row for row, result in job.emitted if result == ("answer", row)] == [1, 3]
        assert Counter(row for row, result in job.emitted) == {1: 1, 2: 2, 3: 1}

    play(script)


def test_usage_is_asked_for_each_row() -> None:
    async def script() -> None:
        job = Job(Service(), budget=Budget(usage=lambda row, result: row), batch=Batch(3))
        job.push(1, 2, 3, 4)
        await job.end()
        assert job.statistics().cost == 10

    play(script)


def test_waiting_rows_are_counted_wherever_they_wait() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if 0 in rows:
            raise OSError("down")
        return answers(*rows)

    async def script() -> None:
        job = Job(Scripted(reply, seconds=10), capacity=1, batch=Batch(2, linger=HOUR), retry=again(9, HOUR))
        job.push(*range(5))
        await asyncio.sleep(1)
        assert (job.statistics().waiting, job.statistics().in_flight) == (3, 1)
        await asyncio.sleep(10)
        # The first batch pauses for an hour, the second is called, one row waits.
        assert (job.statistics().waiting, job.statistics().in_flight) == (3, 1)
        await job.stop()

    play(script)


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("when", [0.5, 1.5, 3.0])
def test_stopping_in_mid_batch_leaves_no_task_and_no_timer_and_calls_nothing_more(when: float) -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if number <= 2:
            raise OSError("down")
        return rows

    async def script() -> None:
        service = Scripted(reply, seconds=1)
        retry = again(9, 1.2)
        job = Job(service, capacity=2, batch=Batch(3, linger=5), timeout=Timeout(60, attempt=50), retry=retry)
        job.push(*range(10))
        await asyncio.sleep(when)
        calls = len(service.calls)
        await job.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert loop_of().armed_timers == 0
        await asyncio.sleep(100)
        assert (len(service.calls), service.running) == (calls, 0)

    play(script)


def test_the_first_row_that_fails_for_good_ends_the_job_and_counts_once() -> None:
    async def script() -> None:
        service = Scripted(lambda number, rows: [ValueError(row) for row in rows])
        job = Job(service, batch=Batch(5))
        job.push(*range(5))
        await job.end()
        assert isinstance(job.error, CallFailed)
        assert "for row 0: ValueError: 0" in str(job.error)
        assert job.statistics().errors == 1

    play(script)
