"""Hedges: a second call of a row whose first is slow. In virtual time."""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    Budget,
    CallFailed,
    Hedge,
    Ledger,
    Options,
    Rate,
    Result,
    Retry,
    RetryBudget,
    Step,
    Timeout,
    Usage,
    async_map,
    current_call,
)
from pillarbox.ledger import Scope
from pillarbox.policies import CallPolicy, CallSuperseded, PolicyServices
from tests.aio.overloaded import Overloaded
from tests.aio.virtual import HOUR, Job, now, play, results_of

SLOW = 100.0


def hedge(after: float | str = 2.0, budget: float = 1.0, **more: Any) -> Hedge:
    return Hedge(after=after, budget=budget, idempotent=True, **{"calls": 2, **more})


class Calls:
    """An async function: what call number n of a row takes and gives is `script(row, n)`, n from 1.

    A number is seconds; with a second value, that is the result, or the error that is raised.
    """

    def __init__(self, script: Callable[[Any, int], Any]) -> None:
        self.script = script
        self.begun: list[tuple[float, Any]] = []
        self.cancelled: list[tuple[float, Any]] = []
        self.counts: Counter[Any] = Counter()
        self.running = self.most = 0

    async def __call__(self, row: Any) -> Any:
        self.counts[row] += 1
        self.begun.append((now(), row))
        found = self.script(row, self.counts[row])
        seconds, value = found if isinstance(found, tuple) else (found, row)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append((now(), row))
            raise
        finally:
            self.running -= 1
        if isinstance(value, BaseException):
            raise value
        return value


def slow_first(*rows: Any, seconds: float = SLOW) -> Calls:
    """The first calls of these rows take so many seconds, all others one."""
    return Calls(lambda row, number: seconds if number == 1 and row in rows else 1.0)


def run(fn: Any, rows: Sequence[Any], **options: Any) -> Job:
    """The job over the rows, which has ended."""

    async def script() -> Job:
        job = Job(fn, **options)
        job.push(*rows)
        await job.end()
        return job

    return play(script)


@pytest.mark.contract(
    "While the call of a row is slow another begins; the first good answer counts, the other ends.",
    convicts=["slower_call_goes_on"],
)
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "as finished"])
def test_the_first_good_answer_counts_and_the_slower_call_is_cancelled(ordered: bool) -> None:
    fn = slow_first(1)

    async def script() -> Any:
        job = Job(fn, hedge=hedge(), ordered=ordered)
        job.push(0, 1, 2)
        await asyncio.sleep(3.5)
        assert (sorted(job.results), job.results[1 if ordered else 2]) == ([0, 1, 2], 1)
        assert max(job.came) == pytest.approx(3.0)
        # The job goes on, without the slower call.
        assert (fn.running, fn.cancelled) == (0, [(3.0, 1)])
        await job.end()
        return job.statistics()

    counts = play(script)
    assert fn.begun == [(0.0, 0), (0.0, 1), (0.0, 2), (2.0, 1)]
    assert (counts.hedged, counts.hedges_won, counts.calls, counts.results) == (1, 1, 4, 3)
    assert (counts.retries, counts.in_flight) == (0, 0)


def test_a_first_call_that_answers_before_its_hedge_counts() -> None:
    fn = Calls(lambda row, number: (2.5, "first") if number == 1 else (5.0, "second"))
    job = run(fn, [0], hedge=hedge())
    assert (job.results, fn.cancelled) == (["first"], [(2.5, 0)])
    counts = job.statistics()
    assert (counts.hedged, counts.hedges_won) == (1, 0)


@pytest.mark.contract(
    "An error of one of the calls lets the other go on.", convicts=["first_error_is_the_rows"]
)
@pytest.mark.parametrize("fails", [1, 2])
def test_an_error_of_one_call_lets_the_other_go_on(fails: int) -> None:
    fn = Calls(lambda row, number: (4.0, OSError("away")) if number == fails else (6.0, number))
    job = run(fn, [0], hedge=hedge())
    assert (job.error, job.results) == (None, [3 - fails])
    assert job.came == [6.0 if fails == 2 else 8.0]


@pytest.mark.contract("The calls of a row are one attempt of `Retry`.", convicts=["hedge_is_an_attempt"])
def test_the_calls_of_a_row_are_one_attempt() -> None:
    attempts: list[int] = []

    def script(row: Any, number: int) -> Any:
        attempts.append(current_call().attempt)
        return (3.0, OSError(f"call {number}")) if number < 4 else 1.0

    job = run(Calls(script), [0], hedge=hedge(), retry=Retry(2, initial=0.0, jitter=False))
    assert (job.error, job.results) == (None, [0])
    # Two calls that fail, and their retry: one call that fails, and one that answers.
    assert attempts == [1, 1, 2, 2]
    assert job.statistics().retries == 1


@pytest.mark.contract(convicts=["hedges_pay_for_retries"])
def test_hedges_add_nothing_to_the_budget_of_retries() -> None:
    fn = Calls(lambda row, number: (3.0, OSError("away")))
    retry = Retry(5, initial=0.0, jitter=False, budget=RetryBudget(share=1.0, least=0))
    job = run(fn, [0], hedge=hedge(), retry=retry)
    assert isinstance(job.error, CallFailed)
    # One row has paid for one retry.
    assert job.statistics().retries == 1


def test_where_both_calls_fail_the_row_fails_with_the_last_error() -> None:
    fn = Calls(lambda row, number: (3.0, OSError(f"call {number}")))
    job = run(fn, [0], hedge=hedge())
    assert isinstance(job.error, CallFailed) and "call 2" in str(job.error)
    assert fn.counts[0] == 2


def test_a_result_that_is_refused_lets_the_other_call_go_on() -> None:
    fn = Calls(lambda row, number: (3.0, "bad") if number == 1 else (4.0, "good"))
    job = run(fn, [0], hedge=hedge(), retry=Retry(1, result=lambda result: result == "bad"))
    assert (job.error, job.results, fn.counts[0]) == (None, ["good"], 2)


@pytest.mark.contract(
    "With hedges, too, there are never more calls in flight than the capacity.",
)
def test_a_hedge_waits_for_a_slot_and_goes_before_rows_that_wait() -> None:
    fn = Calls(lambda row, number: SLOW if (row, number) == (0, 1) else 3.0)
    job = run(fn, range(6), hedge=hedge(), capacity=2, ordered=False)
    assert sorted(job.results) == [*range(6)]
    assert fn.most == 2
    # Its slot is the first that is free, although rows wait.
    assert [row for at, row in fn.begun if at == 3.0] == [0]


@pytest.mark.contract(convicts=["ended_row_is_hedged"])
def test_a_row_whose_call_ends_while_its_hedge_waits_for_a_slot_is_not_hedged() -> None:
    fn = Calls(lambda row, number: 5.0)
    job = run(fn, [0, 1], hedge=hedge(), capacity=1)
    assert (job.results, fn.begun) == ([0, 1], [(0.0, 0), (5.0, 1)])
    assert job.statistics().hedged == 0


@pytest.mark.contract(
    "Hedges are at most a share of the calls, and two besides.", convicts=["hedges_cost_nothing"]
)
def test_hedges_are_at_most_a_share_of_the_calls() -> None:
    fn = Calls(lambda row, number: 5.0)
    job = run(fn, range(400), hedge=hedge(budget=0.1), capacity=20)
    assert job.results == [*range(400)]
    counts = job.statistics()
    assert 30 <= counts.hedged <= 42
    assert counts.calls == 400 + counts.hedged


def test_what_a_later_call_pays_for_begins_with_it() -> None:
    # Two are free; the third has to wait for ten calls.
    fn = Calls(lambda row, number: SLOW if number == 1 and row < 3 else 1.0)

    async def script() -> None:
        job = Job(fn, hedge=hedge(budget=0.1), ordered=False)
        job.push(0, 1, 2)
        await asyncio.sleep(10.0)
        assert sorted(job.results) == [0, 1]
        job.push(*range(3, 10))
        await asyncio.sleep(2.0)
        assert 2 in job.results and now_of(fn, 2) == [0.0, 10.0]
        await job.end()
        assert sorted(job.results) == [*range(10)]
        assert now() < SLOW

    play(script)


@pytest.mark.contract("With a quantile a call is slow that takes longer than so many of the last calls.")
def test_a_quantile_is_of_the_times_of_the_last_calls() -> None:
    # 1 s, but for the last row: that one hangs.
    fn = Calls(lambda row, number: HOUR if row == 60 and number == 1 else 1.0)
    job = run(fn, range(61), hedge=hedge("p95"), capacity=10)
    assert job.results == [*range(61)]
    assert now_of(fn, 60) == [6.0, pytest.approx(7.0, abs=0.01)]
    assert job.statistics().hedged == 1


def now_of(fn: Calls, row: Any) -> list[float]:
    return [at for at, each in fn.begun if each == row]


def test_what_began_before_it_was_known_what_calls_take_is_hedged_once_it_is() -> None:
    fn = Calls(lambda row, number: HOUR if row == 0 and number == 1 else 1.0)
    job = run(fn, range(40), hedge=hedge("p95"), capacity=4)
    assert job.results == [*range(40)]
    # Three calls a second: 20 have ended after 7 s, and then three others have begun in their slots.
    assert now_of(fn, 0) == [0.0, 8.0]


def test_nothing_is_hedged_before_anything_is_known_of_the_times() -> None:
    fn = Calls(lambda row, number: 1.0 + row)
    job = run(fn, range(15), hedge=hedge("p50"))
    assert (job.results, job.statistics().hedged) == ([*range(15)], 0)


@pytest.mark.contract(
    "The times of a quantile are those of first calls, also where a hedge was faster.",
    convicts=["times_of_hedges_count"],
)
def test_hedges_that_win_do_not_make_the_quantile_fall() -> None:
    # Four rows of ten are slow, so that the median is among the fast ones, whoever wins.
    fn = Calls(lambda row, number: 10.0 if number == 1 and row % 10 < 4 else 1.0 + row % 10 / 100)
    job = run(fn, range(600), hedge=hedge("p70"), capacity=10, ordered=False)
    assert sorted(job.results) == [*range(600)]
    counts = job.statistics()
    # Those in ten that are slow are hedged at most, and not those that are fast too.
    assert counts.hedged <= 0.4 * 600 + 10


def test_a_third_call_begins_where_the_second_is_slow_too() -> None:
    fn = Calls(lambda row, number: SLOW if number < 3 else 1.0)
    job = run(fn, [0], hedge=hedge(calls=3))
    assert (job.results, job.came) == ([0], [5.0])
    assert fn.begun == [(0.0, 0), (2.0, 0), (4.0, 0)]
    assert fn.cancelled == [(5.0, 0), (5.0, 0)]


@pytest.mark.contract("A rate counts hedges as calls.", convicts=["hedges_pass_the_gate"])
def test_a_rate_counts_hedges() -> None:
    fn = slow_first(0)
    job = run(fn, range(5), hedge=hedge(), rate=Rate(0.5, burst=0.001), capacity=3)
    assert job.results == [*range(5)]
    begun = [at for at, _ in fn.begun]
    assert len(begun) == 6
    assert all(later - earlier >= 2.0 - 0.01 for earlier, later in itertools.pairwise(begun))
    assert job.statistics().rate_granted == 6


@pytest.mark.contract("A budget of calls counts hedges as calls.")
def test_a_budget_of_calls_counts_hedges() -> None:
    fn = slow_first(0)

    async def script() -> None:
        job = Job(fn, hedge=hedge(), budget=Budget(max_calls=3), errors="null")
        job.push(0)
        await asyncio.sleep(10.0)
        job.push(1, 2)
        await job.end()
        assert job.results == [0, 1, None]
        assert len(fn.begun) == 3

    play(script)


def test_where_the_budget_is_used_up_there_is_no_hedge() -> None:
    fn = Calls(lambda row, number: 5.0)
    job = run(fn, [0, 1], hedge=hedge(), budget=Budget(max_calls=2), errors="null")
    assert (job.results, len(fn.begun)) == ([0, 1], 2)


@pytest.mark.contract("While an overloaded service holds calls back, none is hedged.")
def test_while_calls_are_held_back_none_is_hedged() -> None:
    def script(row: Any, number: int) -> Any:
        if row > 0 and number == 1:
            return 1.0, Overloaded(20.0)
        return 10.0 if row == 0 else 1.0

    fn = Calls(script)
    job = run(fn, [*range(11)], hedge=hedge(), retry=Retry(2))
    assert job.results == [*range(11)]
    assert now_of(fn, 0) == [0.0]
    assert job.statistics().hedged == 0


@pytest.mark.contract(
    "A service that was overloaded is tried again by rows, and not by hedges.", convicts=["hedges_probe"]
)
def test_a_service_that_was_overloaded_gets_no_hedge_before_it_has_answered() -> None:
    def script(row: Any, number: int) -> Any:
        if row > 0 and number == 1:
            return 1.0, Overloaded(20.0)
        return 40.0 if (row, number) == (0, 1) else 5.0

    fn = Calls(script)
    job = run(fn, [*range(11)], hedge=hedge(30.0), retry=Retry(2), ordered=False)
    assert sorted(job.results) == [*range(11)]
    fn = Calls(script)
    job = run(fn, [*range(11)], hedge=hedge(10.0), retry=Retry(2), ordered=False)
    # After 21 s rows begin again, one by one; the first of them is answered after 26 s.
    (began, hedged) = now_of(fn, 0)
    again = [at for at, row in fn.begun if row > 0 and at > 1.0]
    assert began == 0.0 and min(again) >= 21.0 and hedged >= min(again) + 5.0


def test_the_time_of_an_attempt_is_that_of_all_its_calls() -> None:
    fn = Calls(lambda row, number: SLOW)
    job = run(fn, [0], hedge=hedge(), timeout=Timeout(attempt=5.0), errors="column")
    assert job.results[0].type == "CallTimeout"
    assert fn.cancelled == [(5.0, 0), (5.0, 0)]
    assert job.statistics().timeouts == 1


@pytest.mark.contract(convicts=["time_of_attempt_goes_on"])
def test_the_time_of_an_attempt_ends_with_its_last_call() -> None:
    # The next attempt, from 4.5 s on, has all of its time.
    fn = Calls(lambda row, number: ((3.0, 1.5)[number - 1], OSError("away")) if number < 3 else 4.5)
    retry = Retry(2, initial=1.0, jitter=False)
    job = run(fn, [0], hedge=hedge(calls=2, budget=0.1), retry=retry, timeout=Timeout(attempt=5.0))
    assert (job.error, job.results) == (None, [0])


@pytest.mark.contract("A time-out of a row ends all its calls.", convicts=["hedge_outlives_its_row"])
@pytest.mark.parametrize("fails", [False, True], ids=["both run", "the first has failed"])
@pytest.mark.parametrize("timeout", [Timeout(5.0), Timeout(attempt=5.0)], ids=["row", "attempt"])
def test_a_time_out_ends_all_calls_of_a_row(fails: bool, timeout: Timeout) -> None:
    fn = Calls(lambda row, number: (3.0, OSError("away")) if fails and number == 1 else SLOW)

    async def script() -> None:
        job = Job(fn, hedge=hedge(), timeout=timeout, errors="column")
        job.push(0)
        await asyncio.sleep(5.5)
        assert (job.results[0].type, job.came) == ("CallTimeout", [5.0])
        assert (fn.running, job.statistics().in_flight) == (0, 0)
        await job.end()
        assert now_of(fn, 0) == [0.0, 2.0]

    play(script)


def test_the_end_cancels_hedges() -> None:
    async def script() -> None:
        fn = Calls(lambda row, number: SLOW)
        job = Job(fn, hedge=hedge())
        job.push(0, 1)
        await asyncio.sleep(4.0)
        assert fn.running == 4
        await job.stop()
        assert (fn.running, job.results) == (0, [])

    play(script)


class Stubborn(Calls):
    """Answers all the same when it is cancelled, a second later."""

    async def __call__(self, row: Any) -> Any:
        try:
            return await super().__call__(row)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            return Result(row, Usage(cost=1.0))


@pytest.mark.contract("What both calls of a row have used is paid for.", convicts=["late_hedge_is_free"])
@pytest.mark.parametrize("wins", [1, 2])
def test_what_both_calls_used_is_paid_for(wins: int) -> None:
    fn = Stubborn(
        lambda row, number: (
            (3.0 if number == wins else SLOW, Result(row, Usage(cost=1.0))) if row == 0 else 9.0
        )
    )
    job = run(
        fn, [0, 1], hedge=hedge(5.0 if wins == 2 else 1.0), budget=Budget(usage=lambda row, result: 0.0)
    )
    assert job.results == [0, 1]
    counts = job.statistics()
    assert (counts.cost, counts.late) == (2.0, 1)


@pytest.mark.contract(
    "What a request of a hedge used is paid for by its row.", convicts=["hedge_pays_for_itself"]
)
def test_what_a_request_of_a_hedge_used_is_of_its_row() -> None:
    async def fn(row: int) -> int:
        calls.append(row)
        current_call().bill_request(Usage(cost=1.0), 0.1, knows_cost=True)
        await asyncio.sleep(SLOW if len(calls) == 1 else 1.0)
        return row

    calls: list[int] = []
    costs: list[float] = []

    class Costs(CallPolicy):
        def finish(self, call: Any, result: Any) -> None:
            costs.append(call.cost)

    job = run(fn, [0], hedge=hedge(), policies=[Costs()])
    assert (job.results, job.statistics().cost, costs) == ([0], 2.0, [2.0])


@pytest.mark.contract(
    "A hedge that its process had no means for does not count for a budget of calls.",
    convicts=["lacking_hedge_is_paid"],
)
def test_a_hedge_that_lacked_something_of_its_process_is_given_back_to_the_budget() -> None:
    def script(row: Any, number: int) -> Any:
        if (row, number) == (0, 2):
            return 1.0, OSError(errno.EMFILE, "Too many open files")
        return 9.0 if row == 0 else 1.0

    async def whole() -> Job:
        job = Job(Calls(script), hedge=hedge(5.0), budget=Budget(max_calls=3), errors="null", capacity=2)
        job.push(0)
        await asyncio.sleep(10.0)
        job.push(1, 2)
        await job.end()
        return job

    job = play(whole)
    assert job.results == [0, 1, 2] and job.statistics().hedged == 1


def test_an_error_that_says_what_it_cost_is_paid_for() -> None:
    class Charged(Exception):
        usage = Usage(cost=0.25)

    fn = Calls(lambda row, number: (3.0, Charged()) if number == 1 else (2.0, Result(row, Usage(cost=1.0))))
    job = run(fn, [0], hedge=hedge())
    assert (job.results, job.statistics().cost) == ([0], 1.25)


@pytest.mark.contract("A ledger has one record of a row that was hedged.")
@pytest.mark.parametrize("wins", [1, 2])
def test_a_ledger_has_one_record_of_a_row_that_was_hedged(tmp_path: Path, wins: int) -> None:
    calls = 0

    async def fn(row: int) -> str:
        nonlocal calls
        if row:
            # The job lasts until the slower call has answered.
            await late.wait()
            return f"answer {row}"
        calls += 1
        number = calls
        if number == 2:
            hedged.set()
        try:
            await (hedged if number == wins else never).wait()
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(0.0, late.set)
            return "late"
        return "answer 0"

    async def job() -> Any:
        nonlocal hedged, late, never
        hedged, late, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
        results = async_map(
            range(2),
            fn,
            ledger=Ledger(tmp_path, uid="a", run="one"),
            hedge=hedge(0.01),
            options=Options(policies=[OnlyFirstRow()]),
        )
        assert [result async for result in results] == ["answer 0", "answer 1"]
        return results.statistics()

    hedged = late = never = asyncio.Event()
    counts = asyncio.run(job())
    assert (counts.hedged, counts.late) == (1, 1)
    reader = Ledger(tmp_path).reader(Scope.of("one", "a", {"key": None}))
    assert sorted(record.value for record in reader.records()) == ["answer 0", "answer 1"]
    attempts, _ = reader.spent()
    assert attempts == 2


class OnlyFirstRow(CallPolicy):
    """Holds hedges of other rows than the first back."""

    def may_begin(self, calls: Sequence[Any]) -> float:
        return HOUR if calls[0].hedges is not None and calls[0].row else 0.0


@pytest.mark.contract(
    "The policy that chooses an endpoint for a hedge sees the endpoints of the calls that run.",
    convicts=["hedge_has_no_endpoints_to_avoid"],
)
def test_a_hedge_goes_to_another_endpoint() -> None:
    class Elsewhere(CallPolicy):
        def choose(self, calls: Sequence[Any]) -> str:
            return next(each for each in ("one", "two", "three") if each not in calls[0].avoided)

    async def fn(row: int) -> str:
        endpoint: str = current_call().endpoint
        await asyncio.sleep(SLOW if endpoint != "three" else 1.0)
        return endpoint

    job = run(fn, [0], hedge=hedge(calls=3), policies=[Elsewhere()])
    assert job.results == ["three"]
    assert job.came == [5.0]


@pytest.mark.contract(convicts=["failed_endpoint_is_the_rows"])
def test_a_hedge_may_go_to_an_endpoint_at_which_a_call_of_its_row_has_failed() -> None:
    avoided: list[tuple[str, ...]] = []

    class Elsewhere(CallPolicy):
        def choose(self, calls: Sequence[Any]) -> str:
            avoided.append(calls[0].avoided)
            return next(each for each in ("one", "two", "three") if each not in calls[0].avoided)

    async def fn(row: int) -> str:
        endpoint: str = current_call().endpoint
        if endpoint == "one" and len(avoided) == 1:
            await asyncio.sleep(3.0)
            raise OSError("away")
        await asyncio.sleep(SLOW if endpoint == "two" else 1.0)
        return endpoint

    job = run(fn, [0], hedge=hedge(calls=3), policies=[Elsewhere()])
    assert (job.results, job.came) == (["one"], [5.0])
    assert [{*each} for each in avoided] == [set(), {"one"}, {"two"}]


class Log(CallPolicy):
    """Notes what begins and ends, in a list that its copies share."""

    def __init__(self) -> None:
        self.moments: list[Any] = []

    def open(self, services: PolicyServices) -> None:
        self.clock = services.clock

    def begin(self, calls: Sequence[Any]) -> None:
        self.moments.append((self.clock(), "begin", calls[0].hedges is not None))

    def ended(self, calls: Sequence[Any], error: BaseException | None, seconds: float) -> None:
        self.moments.append((self.clock(), type(error).__name__, calls[0].hedges is not None, seconds))


@pytest.mark.contract(
    "A policy sees each call of a hedged row begin and end, a cancelled one with its own error."
)
def test_a_policy_sees_each_call_begin_and_end() -> None:
    log = Log()
    run(slow_first(0), [0], hedge=hedge(), policies=[log])
    assert [tuple(pytest.approx(each) for each in moment) for moment in log.moments] == [
        (0.0, "begin", False),
        (2.0, "begin", True),
        (3.0, CallSuperseded.__name__, False, 3.0),
        (3.0, "NoneType", True, 1.0),
    ]


@pytest.mark.parametrize("fails", [1, 2])
@pytest.mark.parametrize("timeout", [None, Timeout(attempt=4.5)], ids=["answers", "times out"])
def test_every_call_that_a_policy_saw_begin_it_sees_end(fails: int, timeout: Timeout | None) -> None:
    log = Log()
    fn = Calls(lambda row, number: (3.0, OSError("away")) if number == fails else 9.0)
    run(fn, [0], hedge=hedge(), policies=[log], timeout=timeout, errors="null")
    assert [moment[1] == "begin" for moment in log.moments].count(True) == 2
    assert len(log.moments) == 4


def test_a_policy_that_raises_for_a_hedge_fails_its_row() -> None:
    class Refuses(CallPolicy):
        def begin(self, calls: Sequence[Any]) -> None:
            if calls[0].hedges is not None:
                raise ValueError("no hedges here")

    fn = Calls(lambda row, number: SLOW)
    job = run(fn, [0], hedge=hedge(), policies=[Refuses()], errors="column")
    assert "no hedges here" in job.results[0].message
    assert (fn.running, fn.cancelled) == (0, [(2.0, 0)])


def test_the_function_sees_in_a_hedge_the_row_and_the_time_that_is_left() -> None:
    seen: list[Any] = []

    async def fn(row: int) -> int:
        call = current_call()
        left = call.seconds_left
        assert left is not None
        seen.append((call.identity, call.attempt, round(left, 3)))
        await asyncio.sleep(SLOW if len(seen) == 1 else 1.0)
        return row

    run(fn, [7], hedge=hedge(), timeout=Timeout(20.0, attempt=9.0))
    (first, second) = seen
    assert first[0] == second[0]
    assert (first[1:], second[1:]) == ((1, 9.0), (1, 7.0))


def test_each_function_of_a_list_has_its_own_hedge() -> None:
    first, second = slow_first(1), slow_first(2)

    async def script() -> list[Any]:
        steps = [Step(first, uid="first", hedge=hedge()), Step(second, uid="second", hedge=hedge(1.5))]
        return [result async for result in async_map(range(4), steps)]

    assert play(script) == [0, 1, 2, 3]
    assert [first.counts[1], second.counts[2], first.counts[0]] == [2, 2, 1]


# -- what may be hedged ---------------------------------------------------------------------------


async def plain_async(row: int) -> int:
    return row


@pytest.mark.contract(
    "A function that does not say that it is idempotent is not hedged: an error says what to do."
)
def test_a_function_must_say_that_it_is_idempotent() -> None:
    with pytest.raises(ValueError, match=r"plain_async.*idempotent=True"):
        async_map([1], plain_async, hedge=Hedge())
    with pytest.raises(ValueError, match="idempotent=True"):
        async_map([1], [Step(plain_async, hedge=Hedge())])


def test_a_function_that_says_that_it_is_idempotent_is_hedged() -> None:
    class Looks:
        idempotent = True

        async def __call__(self, row: int) -> int:
            return row

    assert results_of([1, 2], Looks(), hedge=Hedge()) == [1, 2]
    assert results_of([1, 2], functools.partial(Looks()), hedge=Hedge()) == [1, 2]


def test_a_function_that_blocks_cannot_be_hedged() -> None:
    def blocks(row: int) -> int:
        return row

    with pytest.raises(TypeError, match="plain function, whose calls cannot be cancelled"):
        async_map([1], blocks, hedge=hedge())


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"after": 0}, ValueError, r"after=0: must be a finite number above 0 of seconds, or 'p50' to 'p99'"),
        ({"after": "p100"}, ValueError, r"after='p100': must be a quantile"),
        ({"after": "95"}, ValueError, r"after='95'"),
        ({"after": None}, TypeError, r"after=None"),
        ({"budget": 0}, ValueError, r"budget=0"),
        ({"budget": 1.5}, ValueError, r"budget=1.5: must be a fraction of the calls, at most 1"),
        ({"calls": 1}, ValueError, r"calls=1: must be from 2 to 5"),
        ({"idempotent": 1}, TypeError, r"idempotent=1"),
    ],
)
def test_a_hedge_names_what_does_not_fit(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Hedge(**given)


def test_what_is_no_hedge_is_refused() -> None:
    with pytest.raises(TypeError, match=r"hedge=2.0: must be a pillarbox.Hedge"):
        Options(hedge=2.0)  # type: ignore[arg-type]
