"""Functions that are handed a collector, and functions that return a future: how and when calls end."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pillarbox
from pillarbox import (
    Batch,
    Budget,
    CallFailed,
    CallTimeout,
    Collector,
    ErrorInfo,
    Retry,
    Timeout,
    Usage,
    async_map,
)
from tests.aio.virtual import HOUR, Job, again, now, play
from tests.search import examples

if TYPE_CHECKING:
    from pillarbox import Collector as Sink

ANYTHING = Retry(3, initial=0.0, maximum=0.0, jitter=False, on=Exception)


class Keeper:
    """A function that keeps what it was handed, and leaves the rest to the test."""

    def __init__(self) -> None:
        self.handed: list[tuple[Any, Collector[Any]]] = []

    def __call__(self, row: Any, collector: Collector[Any]) -> None:
        self.handed.append((row, collector))

    def of(self, row: Any) -> Collector[Any]:
        """The collector of the last attempt of `row`."""
        return next(collector for each, collector in reversed(self.handed) if each == row)


async def turns() -> None:
    """Let the loop do what there is to do now."""
    for _ in range(20):
        await asyncio.sleep(0)


# -- where results come from ------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_a_function_brings_its_result_by_a_collector_from_any_thread(ordered: bool) -> None:
    with ThreadPoolExecutor(4) as pool:

        def double(row: int, collector: Collector[int]) -> None:
            if row % 3:
                pool.submit(lambda: collector.complete(2 * row))
            else:
                assert collector.complete(2 * row)

        results = list(async_map(range(200), double, ordered=ordered))
    assert (results if ordered else sorted(results)) == [2 * row for row in range(200)]


def test_on_the_callers_loop_the_function_runs_there_and_results_come_from_elsewhere() -> None:
    threads = set()

    async def run() -> list[int]:
        with ThreadPoolExecutor(2) as pool:

            def double(row: int, collector: Collector[int]) -> None:
                threads.add(threading.current_thread())
                pool.submit(lambda: collector.complete(2 * row))

            return [result async for result in async_map(range(20), double)]

    assert asyncio.run(run()) == [2 * row for row in range(20)]
    assert threads == {threading.main_thread()}


def test_each_call_has_a_copy_of_the_callers_context() -> None:
    number = contextvars.ContextVar("number", default=0)
    number.set(7)

    def read(row: int, collector: Collector[int]) -> None:
        collector.complete(number.get())
        number.set(row)

    assert list(async_map(range(3), read)) == [7, 7, 7]


@pytest.mark.contract
def test_the_first_completion_decides_and_later_ones_return_false_and_are_counted() -> None:
    said: list[list[bool]] = []

    def answer(row: int, collector: Collector[int]) -> None:
        said.append([collector.complete(row), collector.complete(-1), collector.fail(ValueError())])

    results = async_map(range(5), answer, ordered=False)
    assert sorted(results) == [0, 1, 2, 3, 4]
    assert said == [[True, False, False]] * 5
    statistics = results.statistics()
    assert statistics is not None and statistics.late == 10


@pytest.mark.contract
def test_of_threads_that_complete_at_once_one_comes_first() -> None:
    start = threading.Barrier(4)
    said: list[tuple[int, bool]] = []

    async def script() -> tuple[Any, int]:
        keeper = Keeper()
        job = Job(keeper)
        job.push("row")
        await turns()

        def complete(number: int) -> None:
            start.wait(30)
            said.append((number, keeper.of("row").complete(number)))

        threads = [threading.Thread(target=complete, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await job.end()
        return job.emitted, job.statistics().late

    for _ in range(10):
        said.clear()
        emitted, late = play(script)
        (first,) = [number for number, was_first in said if was_first]
        assert emitted == [("row", first)] and late == 3


def test_what_a_function_raises_fails_the_attempt() -> None:
    said = []

    def refuse(row: int, collector: Collector[int]) -> None:
        said.append(collector)
        raise ValueError(row)

    with pytest.raises(CallFailed, match="ValueError: 0") as caught:
        list(async_map([0], refuse, retry=Retry(2, initial=0.0, maximum=0.0, on=ValueError)))
    assert caught.value.attempts == 2 and isinstance(caught.value.cause, ValueError)
    assert [collector.complete(1) for collector in said] == [False, False]


@pytest.mark.contract(convicts=["raise_after_complete_counts"])
def test_what_a_function_raises_after_it_has_completed_comes_too_late() -> None:
    def answer(row: int, collector: Collector[int]) -> None:
        collector.complete(row)
        raise ValueError(row)

    assert list(async_map(range(3), answer)) == [0, 1, 2]


@pytest.mark.contract
def test_a_failure_is_tried_again_as_if_the_function_had_raised_it() -> None:
    asked: list[int] = []

    def answer(row: int, collector: Collector[int]) -> None:
        asked.append(row)
        if asked.count(row) < 3:
            collector.fail(ConnectionError(row))
        else:
            collector.complete(row)

    assert list(async_map(range(4), answer, retry=ANYTHING)) == [0, 1, 2, 3]
    assert sorted(asked) == sorted([0, 1, 2, 3] * 3)


def test_only_an_exception_can_be_failed_with() -> None:
    def answer(row: int, collector: Collector[int]) -> None:
        with pytest.raises(TypeError, match="error must be an exception, not 'no'"):
            collector.fail("no")  # type: ignore[arg-type]
        collector.complete(row)

    assert list(async_map([1], answer)) == [1]


def test_a_result_that_is_to_be_rejected_is_asked_for_again() -> None:
    asked: list[int] = []

    def answer(row: int, collector: Collector[Any]) -> None:
        asked.append(row)
        collector.complete(None if len(asked) == 1 else "done")

    retry = Retry(2, initial=0.0, maximum=0.0, on=(), result=lambda result: result is None)
    assert list(async_map([1], answer, retry=retry)) == ["done"]


# -- limits of time ---------------------------------------------------------------------------


@pytest.mark.contract(convicts=["collector_not_revoked"])
def test_a_completion_after_the_time_out_has_no_effect_and_is_counted() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(keeper, timeout=5.0, errors="column")
        job.push("slow")
        await asyncio.sleep(6)
        ((row, failed),) = job.emitted
        assert row == "slow" and isinstance(failed, ErrorInfo) and failed.type == CallTimeout.__name__
        assert not keeper.of("slow").is_open
        assert [keeper.of("slow").complete(1), keeper.of("slow").complete(2)] == [False, False]
        await job.end()
        assert len(job.emitted) == 1 and job.statistics().late == 2

    play(script)


@pytest.mark.contract(convicts=["collector_of_any_attempt"])
def test_a_completion_of_an_earlier_attempt_has_no_effect() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(keeper, timeout=Timeout(attempt=5.0), retry=again(2, 1.0))
        job.push("row")
        await asyncio.sleep(7)
        (_, first), (_, second) = keeper.handed
        assert first.complete("of the first") is False
        await turns()
        assert job.emitted == []
        assert second.complete("of the second") is True
        await job.end()
        assert job.emitted == [("row", "of the second")] and job.statistics().late == 1

    play(script)


def test_a_completion_that_a_time_out_overtakes_on_its_way_is_late() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(keeper, timeout=5.0, errors="column")
        job.push("row")
        await turns()
        loop = asyncio.get_running_loop()
        # In one turn of the loop with the time-out, and behind the mail that it has put.
        loop.call_at(5.0, lambda: keeper.of("row").complete("late"))
        await asyncio.sleep(5)
        await job.end()
        assert len(job.emitted) == 1
        assert job.statistics().late == (type(job.emitted[0][1]) is ErrorInfo)

    play(script)


@pytest.mark.contract(convicts=["collector_slot_kept"])
def test_a_time_out_gives_the_slot_to_the_next_row() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(keeper, timeout=5.0, errors="column", capacity=1)
        job.push("stuck", "next")
        await turns()
        assert [row for row, _ in keeper.handed] == ["stuck"]
        await asyncio.sleep(5.5)
        assert [row for row, _ in keeper.handed] == ["stuck", "next"]
        keeper.of("next").complete("done")
        await job.end()
        assert [type(result) for result in job.results] == [ErrorInfo, str]

    play(script)


@pytest.mark.contract
def test_never_more_calls_are_handed_out_than_the_capacity_allows() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(keeper, capacity=3, ordered=False)
        job.push(*range(10))
        done = 0
        while done < 10:
            await turns()
            assert len(keeper.handed) - done == min(3, 10 - done)
            assert job.statistics().in_flight == min(3, 10 - done)
            keeper.handed[done][1].complete(None)
            done += 1
        await job.end()

    play(script)


def test_what_comes_late_counts_where_it_is_paid_for() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(
            keeper, timeout=5.0, errors="null", budget=Budget(usage=lambda row, result: Usage(cost=result))
        )
        job.push("slow", "next")
        await asyncio.sleep(1)
        keeper.of("next").complete(1.0)
        await asyncio.sleep(5)
        assert keeper.of("slow").complete(2.0) is False
        await turns()
        await job.end()
        assert job.statistics().cost == 3.0

    play(script)


# -- the end ----------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_completion_after_the_end_of_the_job_returns_false() -> None:
    handed: list[Collector[int]] = []

    def keep(row: int, collector: Collector[int]) -> None:
        handed.append(collector)
        if row == 0:
            collector.complete(row)

    results = async_map(range(8), keep, ordered=False)
    assert next(results) == 0
    results.close()
    assert [collector.complete(1) for collector in handed] == [False] * len(handed)
    assert [collector.fail(ValueError()) for collector in handed] == [False] * len(handed)
    assert not any(collector.is_open for collector in handed)


def test_a_job_that_fails_lets_go_of_what_is_on_its_way() -> None:
    async def script() -> None:
        keeper = Keeper()
        job = Job(keeper)
        job.push("good", "bad")
        await turns()
        assert keeper.of("bad").fail(ValueError("bad"))
        assert keeper.of("good").complete("good")
        await job.ended()
        assert isinstance(job.error, CallFailed)
        assert [row for row, _ in job.emitted] in ([], ["good"])
        assert keeper.of("good").complete("again") is False

    play(script)


def test_in_the_child_of_a_fork_nobody_is_there_to_complete() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork")

    def answer(row: int, collector: Collector[int]) -> None:
        child = os.fork()
        if child == 0:
            os._exit(3 if collector.complete(0) is False else 4)
        _, status = os.waitpid(child, 0)
        collector.complete(os.waitstatus_to_exitcode(status))

    assert list(async_map([1], answer)) == [3]


# -- any order --------------------------------------------------------------------------------

TIME_OUT = 10
EVENT = st.tuples(st.integers(0, 20).map(lambda tick: tick + 0.5), st.booleans(), st.integers(1, 3))
"""The time, the outcome (complete or fail), and the number of threads that give it at once."""
ATTEMPT = st.lists(EVENT, max_size=3)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(ATTEMPT, ATTEMPT), min_size=1, max_size=5),
    st.integers(1, 3),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_whatever_threads_do_each_attempt_ends_once_by_whoever_came_first(
    rows: list[tuple[list[tuple[float, bool, int]], ...]], capacity: int, ordered: bool, stop: int | None
) -> None:
    said: dict[Any, list[tuple[Any, bool, bool, float]]] = {}
    begun: dict[int, int] = dict.fromkeys(range(len(rows)), 0)

    def handed(row: int, collector: Collector[Any]) -> None:
        attempt = begun[row]
        begun[row] += 1
        said[row, attempt] = []
        for event, (at, completes, threads) in enumerate(rows[row][attempt]):
            loop = asyncio.get_running_loop()
            loop.call_later(at, fire, (row, attempt, at, event), collector, completes, threads)

    def fire(event: tuple[Any, ...], collector: Collector[Any], completes: bool, threads: int) -> None:
        at = now()

        def act(number: int) -> None:
            what = (*event, number)
            first = collector.complete(what) if completes else collector.fail(KeyError(what))
            said[event[:2]].append((what, completes, first, at))

        # One of them is the loop's own.
        running = [threading.Thread(target=act, args=[number]) for number in range(1, threads)]
        for thread in running:
            thread.start()
        act(0)
        for thread in running:
            thread.join()

    async def script() -> tuple[Job, float]:
        options: dict[str, Any] = {"capacity": capacity, "ordered": ordered, "errors": "column"}
        job = Job(handed, timeout=Timeout(attempt=TIME_OUT), retry=again(2, 1.0, on=Exception), **options)
        job.push(*range(len(rows)))
        if stop is None:
            await job.end()
        else:
            await asyncio.sleep(stop)
            await job.stop()
        ended = now()
        emitted = len(job.results)
        await asyncio.sleep(HOUR)
        assert len(job.results) == emitted, "a result came after the end"
        return job, ended

    job, ended = play(script)
    results = [result for result in job.results if type(result) is not ErrorInfo]
    failures = [result for result in job.results if type(result) is ErrorInfo]
    # A result has its row first.
    outcomes = {result[0]: result for result in results}
    assert len(outcomes) == len(results)
    if ordered:
        assert all(result[0] == row for row, result in job.emitted if type(result) is not ErrorInfo)
    winners = {of: [what for what, _, first, _ in calls if first] for of, calls in said.items()}
    assert all(len(each) <= 1 for each in winners.values()), "two came first"
    for (row, attempt), calls in said.items():
        in_time = [each for each in calls if each[0][2] < TIME_OUT]
        if stop is None:
            # Whoever came before the time-out came first; nobody did after it.
            assert bool(winners[row, attempt]) == bool(in_time)
            earliest = min((each[0][2] for each in in_time), default=None)
            assert all(what[2] == earliest for what in winners[row, attempt])
        for what, completes, first, _ in calls:
            if completes and not first:
                assert outcomes.get(row) != what
    assert all(winners[row, begun[row] - 1] == [outcome] for row, outcome in outcomes.items())
    failed = [row for row in range(len(rows)) if row not in outcomes]
    # A row that has failed for good has had its last attempt.
    of_failed = ["KeyError" if winners[row, 1] else CallTimeout.__name__ for row in failed if begun[row] == 2]
    assert not Counter(failure.type for failure in failures) - Counter(of_failed)
    if stop is None:
        assert len(failures) == len(failed) == len(of_failed)
        # The counts are those of the end.
        late = [each for calls in said.values() for each in calls if not each[2] and each[3] <= ended]
        assert job.statistics().late == len(late)


# -- how a function says that it takes one ----------------------------------------------------


def by_name(row: int, collector: Collector[int]) -> None:
    collector.complete(row)


def by_another_name(row: int, out: Sink[int]) -> None:
    out.complete(row)


def by_keyword(row: int, *, out: Collector) -> None:  # type: ignore[type-arg]
    out.complete(row)


def third(row: int, extra: int = 1, out: pillarbox.Collector[int] = None) -> None:  # type: ignore[assignment]
    out.complete(row * extra)


def by_place(row: int, out: Collector[int], /) -> None:
    out.complete(row)


class Handed:
    """An object whose `__call__` takes a collector."""

    def __call__(self, row: int, collector: Collector[int]) -> None:
        collector.complete(row)

    def method(self, row: int, collector: Collector[int]) -> None:
        collector.complete(row)


@pytest.mark.parametrize(
    "fn",
    [
        by_name,
        by_keyword,
        third,
        by_place,
        Handed(),
        Handed().method,
        functools.partial(third, extra=1),
        functools.wraps(by_name)(lambda row, collector: by_name(row, collector)),
    ],
)
def test_a_parameter_that_is_annotated_collector_gets_it(fn: Callable[..., None]) -> None:
    assert list(async_map(range(3), fn)) == [0, 1, 2]


def test_an_annotation_that_is_text_counts_if_it_says_collector() -> None:
    with pytest.raises(CallFailed, match="missing 1 required positional argument: 'out'"):
        list(async_map([1], by_another_name))
    made: dict[str, Any] = {"Collector": Collector}
    exec("def named(row, out: Collector[int]): out.complete(row)", made)
    assert list(async_map([1], made["named"])) == [1]


@pytest.mark.parametrize(
    ("fn", "row", "result"), [(len, "ab", 2), (print, "ab", None), (str.split, "a b", ["a", "b"])]
)
def test_other_functions_are_called_with_the_row_alone(fn: Callable[..., Any], row: str, result: Any) -> None:
    assert list(async_map([row], fn)) == [result]


async def is_async(row: int, collector: Collector[int]) -> None: ...


def two(row: int, one: Collector[int], other: Collector[int]) -> None: ...


def alone(collector: Collector[int]) -> None: ...


@pytest.mark.contract
@pytest.mark.parametrize(
    ("fn", "options", "told"),
    [
        (is_async, {}, r"is async and takes a Collector \(collector\); return the result"),
        (by_name, {"batch": Batch(2)}, r"takes a Collector \(collector\), which is for one row, and batch"),
        (two, {}, "must take the row first and one Collector behind it, not"),
        (alone, {}, "must take the row first and one Collector behind it, not"),
    ],
)
def test_a_function_whose_collector_cannot_be_is_refused_at_the_call(
    fn: Callable[..., Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(TypeError, match=told):
        async_map([1], fn, **options)


def test_nobody_makes_a_collector() -> None:
    with pytest.raises(TypeError, match="made by the operator"):
        Collector()


def test_a_plain_function_with_a_collector_that_returns_an_awaitable_fails() -> None:
    async def nobody() -> None: ...

    def start(row: int, collector: Collector[int]) -> object:
        return nobody()

    with pytest.raises(CallFailed, match="returned an awaitable"):
        list(async_map([1], start))


# -- functions that return a future -----------------------------------------------------------


@pytest.mark.contract
def test_a_function_that_returns_a_future_gives_what_the_future_gives() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(async_map(range(50), lambda row: pool.submit(lambda: 2 * row))) == [*range(0, 100, 2)]
        assert list(
            async_map(range(50), lambda rows: pool.submit(lambda: [2 * row for row in rows]), batch=Batch(8))
        ) == [*range(0, 100, 2)]


def test_what_a_future_raises_fails_the_attempt() -> None:
    asked: list[int] = []

    def ask(row: int) -> Future[int]:
        asked.append(row)
        future: Future[int] = Future()
        if len(asked) < 3:
            future.set_exception(ConnectionError(row))
        else:
            future.set_result(row)
        return future

    assert list(async_map([5], ask, retry=ANYTHING)) == [5]
    assert asked == [5, 5, 5]


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(1)])
@pytest.mark.parametrize("limit", ["timeout", "timeout.attempt"])
def test_a_future_is_cancelled_by_the_time_out_of_its_call(batch: Batch | None, limit: str) -> None:
    futures: list[Future[Any]] = []

    def wait(row: Any) -> Future[Any]:
        futures.append(Future())
        return futures[-1]

    timeout = Timeout(0.05) if limit == "timeout" else Timeout(attempt=0.05)
    results = async_map([1], wait, batch=batch, errors="column", timeout=timeout)
    (outcome,) = results
    assert outcome.error is not None and outcome.error.type == CallTimeout.__name__
    assert futures[0].cancelled()
    statistics = results.statistics()
    assert statistics is not None and (statistics.late, statistics.abandoned) == (0, 0)


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(1)])
def test_a_future_that_somebody_else_cancels_is_a_failed_attempt(batch: Batch | None) -> None:
    asked: list[Any] = []

    def ask(row: Any) -> Future[Any]:
        asked.append(row)
        future: Future[Any] = Future()
        if len(asked) == 1:
            future.cancel()
        else:
            future.set_result(row)
        return future

    assert list(async_map([1], ask, batch=batch, retry=Retry(2, initial=0.0, maximum=0.0))) == [1]
    asked.clear()
    with pytest.raises(CallFailed, match="returned was cancelled") as caught:
        list(async_map([1], ask, batch=batch))
    assert isinstance(caught.value.cause, CancelledError)


def test_a_future_holds_its_slot_and_no_thread() -> None:
    futures: list[Future[int]] = []
    threads: set[int] = set()
    enough = threading.Event()

    def ask(row: int) -> Future[int]:
        threads.add(threading.get_ident())
        future: Future[int] = Future()
        futures.append(future)
        if len(futures) == 4:
            enough.set()
        return future

    def answer() -> None:
        assert enough.wait()
        statistics = results.statistics()
        assert statistics is not None and statistics.in_flight == 4
        answered = 0
        while answered < 40:
            if len(futures) > answered:
                futures[answered].set_result(answered)
                answered += 1

    results = async_map(range(40), ask, capacity=4, ordered=False)
    answering = threading.Thread(target=answer)
    answering.start()
    assert sorted(results) == [*range(40)]
    answering.join()
    assert 1 <= len(threads) <= 5


def test_the_end_of_the_job_cancels_futures() -> None:
    futures: list[Future[int]] = []

    def ask(row: int) -> Future[int]:
        future: Future[int] = Future()
        futures.append(future)
        if row == 0:
            future.set_result(0)
        return future

    results = async_map(range(4), ask, ordered=False)
    assert next(results) == 0
    results.close()
    assert all(future.cancelled() for future in futures if not future.done() or future is not futures[0])
