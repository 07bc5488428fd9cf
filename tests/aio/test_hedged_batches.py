"""Hedges of batches: a second call of the same rows while the first is slow. In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import (
    Batch,
    Budget,
    Endpoints,
    Hedge,
    Ledger,
    Options,
    Rate,
    Result,
    Retry,
    Timeout,
    Usage,
    async_map,
    current_call,
)
from pillarbox.ledger import Scope
from pillarbox.policies import CallPolicy, CallSuperseded, PolicyServices
from tests.aio.overloaded import Overloaded
from tests.aio.test_hedging import SLOW, Calls, hedge, run
from tests.aio.virtual import Job, lost, play
from tests.search import examples

URLS = ("http://one", "http://two", "http://three")
ROWS = [0, 1, 2, 3]


class Batches(Calls):
    """The same of lists of rows, which are told apart by their first row; rows that are errors stay so."""

    async def __call__(self, rows: list[Any]) -> Any:
        found = await super().__call__(rows[0])
        if isinstance(found, Result | list):
            return found
        return [found if found != rows[0] else row for row in rows]


def slow_first(seconds: float = SLOW) -> Batches:
    """The first call of row 0 takes so many seconds, all others one."""
    return Batches(lambda row, number: seconds if number == 1 and row == 0 else 1.0)


def options(**more: Any) -> dict[str, Any]:
    return {"batch": Batch(2, linger=0.0), "hedge": hedge(), **more}


@pytest.mark.contract(
    "While the call of a batch is slow another begins; the first answer is that of all of its rows.",
    convicts=["slower_batch_goes_on"],
)
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "as finished"])
def test_the_first_answer_counts_and_the_slower_call_is_cancelled(ordered: bool) -> None:
    fn = slow_first()

    async def script() -> Any:
        job = Job(fn, ordered=ordered, **options())
        job.push(*ROWS)
        await asyncio.sleep(3.5)
        assert sorted(job.results) == ROWS
        assert max(job.came) == pytest.approx(3.0)
        assert (fn.running, fn.cancelled) == (0, [(3.0, 0)])
        await job.end()
        return job.statistics()

    counts = play(script)
    assert fn.begun == [(0.0, 0), (0.0, 2), (2.0, 0)]
    assert (counts.hedged, counts.hedges_won, counts.batches, counts.calls) == (1, 1, 3, 6)
    assert (counts.results, counts.retries, counts.in_flight) == (4, 0, 0)


def test_a_first_call_that_answers_before_its_hedge_counts() -> None:
    fn = Batches(lambda row, number: (2.5, ["a", "b"]) if number == 1 else (5.0, ["c", "d"]))
    job = run(fn, ROWS[:2], **options())
    assert (job.results, fn.cancelled) == (["a", "b"], [(2.5, 0)])
    counts = job.statistics()
    assert (counts.hedged, counts.hedges_won) == (1, 0)


@pytest.mark.contract("An error of one of the calls of a batch lets the other go on.")
@pytest.mark.parametrize("fails", [1, 2])
def test_an_error_of_one_call_lets_the_other_go_on(fails: int) -> None:
    fn = Batches(lambda row, number: (4.0, OSError("away")) if number == fails else (6.0, [number, number]))
    job = run(fn, ROWS[:2], **options())
    assert (job.error, job.results) == (None, [3 - fails] * 2)
    assert max(job.came) == (6.0 if fails == 2 else 8.0)


def test_the_calls_of_a_batch_are_one_attempt() -> None:
    attempts: list[int] = []

    def script(row: Any, number: int) -> Any:
        attempts.append(current_call().attempt)
        return (4.0, OSError("away")) if number <= 2 else 1.0

    fn = Batches(script)
    job = run(fn, ROWS[:2], retry=Retry(2, initial=1.0, jitter=False), **options())
    assert job.results == ROWS[:2] and attempts == [1, 1, 2]
    assert job.statistics().retries == 2


def test_where_all_calls_fail_the_batch_is_looked_into_for_its_bad_row() -> None:
    def script(row: Any, number: int) -> Any:
        return 4.0

    class Bad(Batches):
        async def __call__(self, rows: list[Any]) -> Any:
            found = await super().__call__(rows)
            if 1 in rows:
                raise ValueError("bad row")
            return found

    fn = Bad(script)
    job = run(fn, ROWS, errors="column", batch=Batch(4, linger=0.0), hedge=hedge())
    assert [result for result in job.results if type(result) is int] == [0, 2, 3]


@pytest.mark.contract("An error of one row in the answer of a batch is that row's, and no other call of it.")
def test_an_answer_with_an_error_for_a_row_counts_for_all_rows() -> None:
    def script(row: Any, number: int) -> Any:
        return (SLOW, [7, 7]) if number == 1 else (1.0, ["good", ValueError("bad")])

    job = run(Batches(script), ROWS[:2], errors="column", **options())
    assert job.results[0] == "good" and job.results[1].type == "ValueError"


@pytest.mark.contract("What both calls of a batch used is paid for.", convicts=["late_batch_is_free"])
@pytest.mark.parametrize("wins", [1, 2])
def test_what_both_calls_used_is_paid_for(wins: int) -> None:
    paid = Usage(cost=1.0)

    class Stubborn(Batches):
        async def __call__(self, rows: list[Any]) -> Any:
            try:
                return await super().__call__(rows)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)
                return Result(rows, paid)

    fn = Stubborn(
        lambda row, number: (
            (3.0 if number == wins else SLOW, Result([0, 1], paid))
            if row == 0
            else (9.0, Result([2, 3], None))
        )
    )
    job = run(
        fn,
        ROWS,
        batch=Batch(2, linger=0.0),
        hedge=hedge(5.0 if wins == 2 else 1.0),
        budget=Budget(usage=lambda row, result: 0.0),
    )
    assert job.results == ROWS
    assert job.statistics().cost == 2.0


def test_an_error_that_says_what_it_cost_is_paid_for() -> None:
    class Charged(Exception):
        usage = Usage(cost=0.25)

    fn = Batches(
        lambda row, number: (3.0, Charged()) if number == 1 else (2.0, Result([0, 1], Usage(cost=1.0)))
    )
    job = run(fn, ROWS[:2], **options())
    assert (job.results, job.statistics().cost) == ([0, 1], 1.25)


@pytest.mark.contract("A ledger has one record of each row of a batch that was hedged.")
@pytest.mark.parametrize("wins", [1, 2])
def test_a_ledger_has_one_record_of_each_row(tmp_path: Path, wins: int) -> None:
    calls = 0

    async def fn(rows: list[int]) -> list[str]:
        nonlocal calls
        if rows[0]:
            # The job lasts until the slower call has answered.
            await late.wait()
            return [f"answer {row}" for row in rows]
        calls += 1
        number = calls
        if number == 2:
            hedged.set()
        try:
            await (hedged if number == wins else never).wait()
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(0.0, late.set)
            return ["late"] * len(rows)
        return [f"answer {row}" for row in rows]

    class OnlyFirst(CallPolicy):
        def may_begin(self, calls: Sequence[Any]) -> float:
            return 3600.0 if calls[0].hedges is not None and calls[0].row else 0.0

    async def job() -> Any:
        nonlocal hedged, late, never
        hedged, late, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
        results = async_map(
            range(4),
            fn,
            ledger=Ledger(tmp_path, uid="a", run="one"),
            hedge=hedge(0.01),
            batch=Batch(2),
            options=Options(policies=[OnlyFirst()]),
        )
        assert [result async for result in results] == [f"answer {row}" for row in range(4)]
        return results.statistics()

    hedged = late = never = asyncio.Event()
    counts = asyncio.run(job())
    assert (counts.hedged, counts.late) == (1, 2)
    reader = Ledger(tmp_path).reader(Scope.of("one", "a", {"key": None}))
    assert sorted(record.value for record in reader.records()) == [f"answer {row}" for row in range(4)]


# -- slots, rates, times -----------------------------------------------------------------------------


def test_a_hedge_of_a_batch_waits_for_a_slot_and_goes_before_rows_that_wait() -> None:
    fn = Batches(lambda row, number: SLOW if row == 0 and number == 1 else 4.0)
    job = run(fn, [*range(8)], capacity=2, **options())
    assert job.results == [*range(8)]
    assert fn.most == 2
    assert fn.begun[:4] == [(0.0, 0), (0.0, 2), (4.0, 0), (8.0, 4)]


def test_hedges_of_batches_are_at_most_a_share_of_the_calls() -> None:
    fn = Batches(lambda row, number: 10.0)
    counts = run(
        fn, [*range(200)], capacity=4, batch=Batch(2, linger=0.0), hedge=hedge(budget=0.1)
    ).statistics()
    assert counts.hedged <= 2 + 0.1 * 100


def test_a_budget_of_calls_counts_the_rows_of_hedges() -> None:
    fn = slow_first()

    async def script() -> None:
        job = Job(fn, budget=Budget(max_calls=4), errors="null", **options())
        job.push(0, 1)
        await asyncio.sleep(10.0)
        job.push(2, 3)
        await job.end()
        assert job.results == [0, 1, 2, 3] or job.results == [0, 1, None, None]
        assert len(fn.begun) <= 3

    play(script)


def test_a_quantile_is_of_the_times_of_the_last_batches() -> None:
    fn = Batches(lambda row, number: SLOW if row == 60 and number == 1 else 1.0 + row / 100)
    job = run(fn, [*range(62)], capacity=1, batch=Batch(2, linger=0.0), hedge=hedge("p90"), ordered=False)
    assert sorted(job.results) == [*range(62)]
    # With one slot nothing is hedged; with two the slow batch is, after the time of nine of ten.
    assert job.statistics().hedged == 0
    fn = Batches(lambda row, number: SLOW if row == 60 and number == 1 else 1.0)
    job = run(fn, [*range(62)], capacity=2, batch=Batch(2, linger=0.0), hedge=hedge("p90"), ordered=False)
    assert sorted(job.results) == [*range(62)]
    slow = [at for at, row in fn.begun if row == 60]
    assert [later - slow[0] for later in slow[1:]] == [pytest.approx(1.0, abs=0.01)]


def test_a_third_call_begins_where_the_second_is_slow_too() -> None:
    fn = Batches(lambda row, number: SLOW if number < 3 else 1.0)
    job = run(fn, [0, 1], batch=Batch(2, linger=0.0), hedge=hedge(calls=3))
    assert (job.results, max(job.came)) == ([0, 1], 5.0)
    assert (len(fn.cancelled), fn.running) == (2, 0)


def test_a_rate_counts_hedges_of_batches() -> None:
    fn = slow_first()
    job = run(fn, ROWS, rate=Rate(1.0, burst=2.0), batch=Batch(4, linger=0.0), hedge=hedge(0.5))
    assert job.results == ROWS and fn.begun[0][0] == 0.0
    assert len(fn.begun) == 2


def test_while_calls_are_held_back_no_batch_is_hedged() -> None:
    def script(row: Any, number: int) -> Any:
        if row > 0 and number == 1:
            return 1.0, Overloaded(20.0)
        return 10.0 if row == 0 else 1.0

    fn = Batches(script)
    job = run(fn, [*range(22)], retry=2, **options())
    assert job.results == [*range(22)]
    assert [at for at, row in fn.begun if row == 0] == [0.0]
    assert job.statistics().hedged == 0


@pytest.mark.contract("A time-out of a batch ends all of its calls.", convicts=["hedge_outlives_its_batch"])
@pytest.mark.parametrize("timeout", [Timeout(5.0), Timeout(attempt=5.0)], ids=["total", "attempt"])
@pytest.mark.parametrize("fails", [0, 1])
def test_a_time_out_ends_all_calls_of_a_batch(fails: int, timeout: Timeout) -> None:
    fn = Batches(lambda row, number: (3.0, OSError("away")) if number == fails else SLOW)
    job = run(fn, [0], timeout=timeout, errors="column", **options())
    assert [info.type for info in job.results] == ["CallTimeout"]
    assert job.came == [5.0] and fn.running == 0
    assert job.statistics().in_flight == 0


def test_a_row_that_runs_out_of_time_leaves_and_the_others_go_on() -> None:
    fn = Batches(lambda row, number: 6.0)

    async def script() -> Job:
        job = Job(
            fn, timeout=5.5, errors="column", batch=Batch(2, linger=10.0), hedge=hedge(2.0), ordered=False
        )
        job.push(0)
        await asyncio.sleep(1.0)
        job.push(1)
        await job.end()
        return job

    job = play(script)
    # Both began at once, and the time of a row begins with its call.
    assert {getattr(each, "type", each) for each in job.results} == {"CallTimeout"}


def test_the_end_cancels_hedges_of_batches() -> None:
    fn = Batches(lambda row, number: SLOW)

    async def script() -> None:
        job = Job(fn, **options())
        job.push(*ROWS)
        await asyncio.sleep(3.0)
        assert fn.running == 4
        await job.stop()
        assert (fn.running, job.results) == (0, [])

    play(script)


# -- endpoints and policies ------------------------------------------------------------------------------


@pytest.mark.contract("A hedge of a batch goes to another endpoint than the call that it hedges.")
def test_a_hedge_of_a_batch_goes_to_another_endpoint() -> None:
    went: dict[int, list[str]] = {}

    async def fn(rows: list[int]) -> list[int]:
        url = current_call().endpoint.url
        went.setdefault(rows[0], []).append(url)
        await asyncio.sleep(1000.0 if url == URLS[0] else 0.1)
        return rows

    job = run(
        fn, [*range(100)], endpoints=Endpoints(URLS), hedge=hedge(1.0), batch=Batch(4, linger=0.0), capacity=6
    )
    assert lost(job, 100) == 0
    hedged = [urls for urls in went.values() if len(urls) > 1]
    assert hedged and all(urls[0] == URLS[0] != urls[1] for urls in hedged)


class Log(CallPolicy):
    """Notes what begins and ends, in a list that its copies share."""

    def __init__(self) -> None:
        self.moments: list[Any] = []

    def open(self, services: PolicyServices) -> None:
        self.clock = services.clock

    def begin(self, calls: Sequence[Any]) -> None:
        self.moments.append((self.clock(), "begin", calls[0].hedges is not None, len(calls)))

    def ended(self, calls: Sequence[Any], error: BaseException | None, seconds: float) -> None:
        told = type(error).__name__, calls[0].hedges is not None, len(calls), round(seconds, 6)
        self.moments.append((round(self.clock(), 6), *told))


def test_a_policy_sees_each_call_of_a_batch_begin_and_end() -> None:
    log = Log()
    run(slow_first(), ROWS[:2], policies=[log], **options())
    assert log.moments == [
        (0.0, "begin", False, 2),
        (2.0, "begin", True, 2),
        (3.0, CallSuperseded.__name__, False, 2, 3.0),
        (3.0, "NoneType", True, 2, 1.0),
    ]


def test_a_policy_that_raises_for_a_hedge_fails_the_rows_of_its_batch() -> None:
    class Raises(CallPolicy):
        def begin(self, calls: Sequence[Any]) -> None:
            if calls[0].hedges is not None:
                raise ValueError("no hedges here")

    job = run(slow_first(), ROWS, policies=[Raises()], errors="column", **options())
    assert [getattr(each, "type", each) for each in job.results] == ["ValueError", "ValueError", 2, 3]


@settings(max_examples=examples(80))
@given(
    seconds=st.lists(st.sampled_from([0.05, 0.1, 1.0, 5.0]), min_size=3, max_size=3),
    failing=st.sampled_from([None, *URLS]),
    bad=st.booleans(),
    timeout=st.sampled_from([None, Timeout(attempt=0.7), Timeout(3.0)]),
    calls=st.sampled_from([2, 3]),
    seed=st.integers(0, 2**16),
)
def test_whatever_hedged_batches_do_each_row_has_one_result(
    seconds: list[float], failing: str | None, bad: bool, timeout: Any, calls: int, seed: int
) -> None:
    random.seed(seed)
    chosen: set[Any] = set()
    begun: Counter[str] = Counter()

    async def fn(rows: list[int]) -> list[Any]:
        endpoint = current_call().endpoint
        chosen.add(endpoint)
        begun[endpoint.url] += 1
        await asyncio.sleep(seconds[URLS.index(endpoint.url)] * random.uniform(0.5, 1.5))
        if endpoint.url == failing:
            raise Overloaded(1.0)
        if bad and 13 in rows:
            raise ValueError("bad row")
        return rows

    log = Log()
    job = run(
        fn,
        [*range(60)],
        batch=Batch(4, linger=0.0),
        endpoints=Endpoints(URLS),
        hedge=Hedge(0.3, budget=0.5, calls=calls, idempotent=True),
        retry=Retry(3, initial=0.1),
        timeout=timeout,
        errors="column",
        capacity=5,
        policies=[log],
    )
    assert job.error is None and len(job.results) == 60
    assert all(type(each) is not int or each == row for row, each in enumerate(job.results))
    if timeout is None:
        assert lost(job, 60) == bad
    assert {each.in_flight for each in chosen} == {0}
    begins = sum(moment[1] == "begin" for moment in log.moments)
    assert begins == sum(begun.values())


# -- what may be hedged -------------------------------------------------------------------------------------


def test_a_function_of_lists_must_be_async_and_say_that_it_is_idempotent() -> None:
    def blocks(rows: list[int]) -> list[int]:
        return rows

    async def many(rows: list[int]) -> list[int]:
        return rows

    with pytest.raises(TypeError, match="plain function"):
        async_map([1], blocks, hedge=hedge(), batch=Batch(4))
    with pytest.raises(ValueError, match="idempotent=True"):
        async_map([1], many, hedge=Hedge(), batch=Batch(4))
    assert list(async_map([1, 2], many, hedge=hedge(), batch=Batch(4))) == [1, 2]
