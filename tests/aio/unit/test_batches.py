"""Batches: whose result is whose, and how they go together with the other options."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox import Batch, Budget, CallFailed, CallTimeout, Rate, Timeout, async_map
from pillarbox.aio import task_run
from pillarbox.aio.options import Intervals
from tests.aio.unit.intervals import options_with
from tests.aio.unit.virtual import HOUR, Rig, Scripted, Service, again, answers, infos, play
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


def test_of_rows_that_are_tuples_of_arguments_the_function_gets_a_list_for_each_argument() -> None:
    calls: list[tuple[list[str], list[int]]] = []

    async def call(names: list[str], numbers: list[int]) -> list[str]:
        calls.append((names, numbers))
        return [name * number for name, number in zip(names, numbers, strict=True)]

    async def script() -> None:
        batch = Batch(10, weight=lambda name, number: number, max_weight=5)
        rig = Rig(call, spread=True, batch=batch)
        rig.push(("a", 3), ("b", 2), ("c", 1))
        await rig.end()
        assert rig.results == ["aaa", "bb", "c"]
        assert calls == [(["a", "b"], [3, 2]), (["c"], [1])]

    play(script)


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
        rig = Rig(service, capacity=2, rate=rate, batch=Batch(3, linger=HOUR))
        rig.push(10, 10, 10, 15, 5, 10, 50, 1, 1)
        await asyncio.sleep(0.5)
        assert [rows for _, rows in service.calls] == [[10, 10, 10], [15, 5, 10]]
        counts = rig.operator.statistics()
        # The third weighs 52: it is held back, in front of the others, and has no slot.
        assert (counts.rate_granted, counts.in_flight, counts.waiting) == (2, 0, 3)
        await rig.stop()

    play(script)


def test_a_row_that_the_rate_cannot_weigh_fails_alone() -> None:
    async def script() -> None:
        service = Service()
        rate = Rate(units_per_minute=1e9, weight=lambda row: 1 / row)
        rig = Rig(service, rate=rate, batch=Batch(4), errors="null")
        rig.push(1, 0, 2)
        await rig.end()
        assert [rows for _, rows in service.calls] == [[1, 2]]
        assert infos(rig)[0].type == "ZeroDivisionError"

    play(script)


@pytest.mark.contract
def test_max_calls_counts_calls_of_batches_and_marks_the_rows_that_are_left() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(
            service, capacity=1, budget=Budget(max_calls=2), batch=Batch(3, linger=HOUR), errors="column"
        )
        rig.push(*range(10))
        await rig.end()
        assert [rows for _, rows in service.calls] == [[0, 1, 2], [3, 4, 5]]
        assert {row: info.type for row, info in infos(rig).items()} == dict.fromkeys(
            range(6, 10), "NotCalled"
        )
        assert rig.operator.statistics().not_called == 4

    play(script)


def test_halves_that_may_not_be_called_any_more_are_marked_with_the_error_of_their_batch() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        raise ValueError("bad")

    async def script() -> None:
        service = Scripted(reply)
        rig = Rig(
            service, capacity=1, budget=Budget(max_calls=2), batch=Batch(4, linger=HOUR), errors="column"
        )
        rig.push(*range(4))
        await rig.end()
        assert [rows for _, rows in service.calls] == [[0, 1, 2, 3], [0, 1]]
        said = {row: (info.type, info.attempts) for row, info in infos(rig).items()}
        assert said == {row: ("NotCalled", 2 if row < 2 else 1) for row in range(4)}
        assert infos(rig)[3].message.endswith("the attempt before ended with ValueError: bad")
        assert rig.operator.statistics().not_called == 4
        assert rig.operator.statistics().waiting == 0

    play(script)


def test_equal_rows_share_one_place_in_a_batch() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, dedupe=True, batch=Batch(3, linger=HOUR))
        rig.push(1, 2, 1, 1, 3, 2)
        await rig.end()
        assert [rows for _, rows in service.calls] == [[1, 2, 3]]
        assert rig.results == answers(1, 2, 1, 1, 3, 2)
        assert rig.operator.statistics().shared == 3

    play(script)


@pytest.mark.contract
def test_rows_that_share_a_poison_row_fail_with_it() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if 2 in rows:
            raise ValueError("bad")
        return answers(*rows)

    async def script() -> None:
        rig = Rig(Scripted(reply), dedupe=True, errors="null", batch=Batch(3, linger=HOUR))
        rig.push(1, 2, 2, 3)
        await rig.end()
        assert [row for row, result in rig.emitted if result == ("answer", row)] == [1, 3]
        assert Counter(row for row, result in rig.emitted) == {1: 1, 2: 2, 3: 1}

    play(script)


def test_usage_is_asked_for_each_row() -> None:
    async def script() -> None:
        rig = Rig(Service(), budget=Budget(usage=lambda row, result: row), batch=Batch(3))
        rig.push(1, 2, 3, 4)
        await rig.end()
        assert rig.operator.statistics().cost == 10

    play(script)


def test_waiting_rows_are_counted_wherever_they_wait() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if 0 in rows:
            raise OSError("down")
        return answers(*rows)

    async def script() -> None:
        rig = Rig(Scripted(reply, seconds=10), capacity=1, batch=Batch(2, linger=HOUR), retry=again(9, HOUR))
        rig.push(*range(5))
        await asyncio.sleep(1)
        assert (rig.operator.statistics().waiting, rig.operator.statistics().in_flight) == (3, 1)
        await asyncio.sleep(10)
        # The first batch pauses for an hour, the second is called, one row waits.
        assert (rig.operator.statistics().waiting, rig.operator.statistics().in_flight) == (3, 1)
        await rig.stop()

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
        before = rig_loop().armed()
        service = Scripted(reply, seconds=1)
        retry = again(9, 1.2)
        rig = Rig(service, capacity=2, batch=Batch(3, linger=5), timeout=Timeout(60, attempt=50), retry=retry)
        rig.push(*range(10))
        await asyncio.sleep(when)
        calls = len(service.calls)
        await rig.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert rig_loop().armed() == before
        await asyncio.sleep(100)
        assert (len(service.calls), service.running) == (calls, 0)

    play(script)


def rig_loop() -> Any:
    return asyncio.get_running_loop()


def test_the_first_row_that_fails_for_good_ends_the_job_and_counts_once() -> None:
    async def script() -> None:
        service = Scripted(lambda number, rows: [ValueError(row) for row in rows])
        rig = Rig(service, batch=Batch(5))
        rig.push(*range(5))
        await rig.end()
        assert isinstance(rig.error, CallFailed)
        assert "for row 0: ValueError: 0" in str(rig.error)
        assert rig.operator.statistics().errors == 1

    play(script)


@pytest.mark.parametrize("limit", ["timeout", "timeout.attempt"])
def test_a_batch_that_blocks_the_loop_is_found_and_named(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_run, "TAKE_S", 0.05)
    options = options_with(Intervals(stall_timeout=0.05, close_timeout=0.05))
    release = threading.Event()

    async def blocks(rows: list[int]) -> list[int]:
        release.wait(30)
        return rows

    timeout = {"timeout": Timeout(0.1), "timeout.attempt": Timeout(attempt=0.1)}[limit]
    with pytest.raises(CallTimeout) as caught:
        list(async_map([7, 8], blocks, batch=Batch(2), timeout=timeout, options=options))
    release.set()
    assert (caught.value.limit, caught.value.seconds, caught.value.row) == (limit, 0.1, "7")
    assert "release.wait(30)" in str(caught.value)
