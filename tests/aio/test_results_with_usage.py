"""Results and errors that say what their call used, and errors that ask for their row to be called again."""

from __future__ import annotations

import asyncio
import builtins
import pickle
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    AskAgain,
    Batch,
    Budget,
    Collector,
    Dedupe,
    Ledger,
    Options,
    Result,
    Retry,
    Step,
    Timeout,
    Usage,
    async_map,
    current_call,
)

pytestmark = pytest.mark.usefixtures("each_loop")

USED = Usage(0.5, input_tokens=7, output_tokens=3)


def cost_of(results: Any) -> tuple[float, float]:
    counts = results.statistics()
    assert counts is not None
    return counts.cost, counts.tokens


# -- results ---------------------------------------------------------------------------------------------


async def by_coroutine(row: int) -> Result:
    return Result(row, USED)


def by_thread(row: int) -> Result:
    return Result(row, USED)


def by_future(row: int) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(Result(row, USED))
    return future


def by_collector(row: int, collector: Collector[Any]) -> None:
    collector.complete(Result(row, USED))


@pytest.mark.contract
@pytest.mark.parametrize("fn", [by_coroutine, by_thread, by_future, by_collector])
@pytest.mark.parametrize("retry", [None, 2])
def test_a_result_with_usage_is_billed_and_its_value_emitted(fn: Callable[..., Any], retry: Any) -> None:
    results = async_map(range(10), fn, retry=retry)
    assert list(results) == [*range(10)]
    assert cost_of(results) == (5.0, 100.0)


@pytest.mark.contract
def test_a_generator_is_billed_for_all_that_it_gives() -> None:
    async def parts(row: int) -> AsyncIterator[Any]:
        yield "first"
        yield Result("last", Usage(row))

    def blocking(row: int) -> Iterator[Any]:
        yield Result("first", Usage(row, 1))
        yield Result("last", Usage(row, 2))

    results = async_map([1, 2], parts)
    assert list(results) == [["first", "last"]] * 2
    assert cost_of(results) == (3.0, 0.0)
    results = async_map([1, 2], blocking)
    assert list(results) == [["first", "last"]] * 2
    assert cost_of(results) == (6.0, 6.0)


@pytest.mark.contract
def test_a_batch_is_billed_by_row_or_as_a_whole() -> None:
    async def by_row(rows: list[int]) -> list[Any]:
        return [Result(row, USED) if row % 2 else row for row in rows]

    async def whole(rows: list[int]) -> Result:
        return Result(list(rows), USED)

    def blocking(rows: list[int]) -> Result:
        return Result((row for row in rows), 0.25)

    results = async_map(range(8), by_row, batch=Batch(4))
    assert list(results) == [*range(8)]
    assert cost_of(results) == (2.0, 40.0)
    results = async_map(range(8), whole, batch=Batch(4))
    assert list(results) == [*range(8)]
    counts = results.statistics()
    assert counts is not None and counts.cost == 0.5 * counts.batches
    results = async_map(range(8), blocking, batch=Batch(8), capacity=1)
    assert list(results) == [*range(8)]
    counts = results.statistics()
    assert counts is not None and counts.cost == 0.25 * counts.batches


@pytest.mark.contract
def test_a_bound_on_the_cost_needs_no_hook_where_results_say_it() -> None:
    called: list[int] = []

    async def call(row: int) -> Result:
        called.append(row)
        return Result(row, 2)

    outcomes = list(async_map(range(6), call, budget=Budget(max_cost=5), errors="column", capacity=1))
    # The third call makes 6: what a call costs is known only afterwards.
    assert called == [0, 1, 2]
    assert [outcome.error.type for outcome in outcomes[3:] if outcome.error] == ["NotCalled"] * 3


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_a_bound_on_the_cost_ends_the_job_at_a_result_that_does_not_say_it(batch: Batch | None) -> None:
    called: list[Any] = []

    async def call(row: Any) -> Any:
        called.append(row)
        return row

    with pytest.raises(TypeError, match="max_cost=5: the function gave a result of type int "):
        list(async_map(range(600), call, budget=Budget(max_cost=5), errors="column", capacity=2, batch=batch))
    assert len(called) <= 4


@pytest.mark.contract
def test_a_bound_on_the_cost_takes_that_of_a_whole_batch() -> None:
    async def whole(rows: list[int]) -> Result:
        return Result(list(rows), 1)

    budget = Budget(max_cost=3)
    outcomes = list(async_map(range(20), whole, batch=Batch(2), budget=budget, errors="null", capacity=1))
    assert outcomes == [0, 1, 2, 3, 4, 5, *[None] * 14]


UNKNOWN = Usage(0.5, 5, unknown_cost="the service counts no tokens")


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(2)])
@pytest.mark.parametrize("fails", [False, True])
def test_a_bound_on_the_cost_ends_the_job_at_a_call_that_nobody_knows_the_cost_of(
    batch: Batch | None, fails: bool
) -> None:
    called: list[Any] = []

    async def call(row: Any) -> Any:
        called.append(row)
        if fails:
            raise UsedUp(UNKNOWN)
        return Result(row, UNKNOWN)

    with pytest.raises(TypeError, match="max_cost=50: the bound cannot be held, .*: the service counts no t"):
        list(async_map(range(60), call, budget=Budget(max_cost=50), errors="null", capacity=2, batch=batch))
    assert len(called) <= 4


class UsedUp(Exception):
    """An error of an answer that was paid for."""

    def __init__(self, usage: Usage) -> None:
        super().__init__("no answer")
        self.usage = usage


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_the_hook_is_asked_where_a_result_does_not_know_its_cost(batch: Batch | None) -> None:
    async def whole(rows: Any) -> Result:
        return Result(rows, UNKNOWN)

    budget = Budget(max_cost=50, usage=lambda row, result: Usage(2.0, 1))
    results = async_map(range(6), whole, budget=budget, batch=batch, errors="null")
    assert list(results) == [*range(6)]
    assert cost_of(results) == (12.0, 6.0)


def test_what_is_known_of_an_unknown_cost_counts_without_a_bound() -> None:
    async def call(row: int) -> Result:
        return Result(row, UNKNOWN)

    results = async_map(range(4), call)
    assert list(results) == [*range(4)]
    assert cost_of(results) == (2.0, 20.0)
    assert pickle.loads(pickle.dumps(UNKNOWN)) == UNKNOWN


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_a_request_of_unknown_cost_among_known_ones_ends_a_job_that_is_bounded(batch: Batch | None) -> None:
    called: list[Any] = []

    async def call(rows: Any) -> Any:
        called.append(rows)
        running = current_call()
        running.bill_request(Usage(0.0 if len(called) == 3 else 1.0), 0.1, knows_cost=len(called) != 3)
        return rows

    with pytest.raises(TypeError, match="max_cost=50"):
        list(async_map(range(60), call, budget=Budget(max_cost=50), errors="null", capacity=1, batch=batch))
    assert len(called) == 3


@pytest.mark.contract
def test_the_hook_is_asked_only_for_results_that_say_nothing() -> None:
    asked: list[int] = []

    def usage(row: int, result: int) -> float:
        asked.append(result)
        return 10.0

    async def call(row: int) -> Any:
        return (row, Result(row, 1.0), Result(row))[row % 3]

    results = async_map(range(6), call, budget=Budget(usage=usage))
    assert list(results) == [*range(6)]
    assert sorted(asked) == [0, 2, 3, 5]
    assert cost_of(results)[0] == 42.0


@pytest.mark.contract
def test_what_looks_at_results_sees_their_values() -> None:
    seen: list[Any] = []

    async def call(row: int) -> Result:
        return Result(row * current_call().attempt, 1.0)

    def is_bad(result: Any) -> bool:
        seen.append(result)
        return bool(result < 20)

    results = async_map([10], call, retry=Retry(3, initial=0.0, result=is_bad))
    assert list(results) == [20]
    assert seen == [10, 20] and cost_of(results)[0] == 2.0


def test_equal_rows_share_a_value_and_its_bill() -> None:
    async def call(row: int) -> Result:
        return Result(row, 1.0)

    results = async_map([1, 1, 1], call, options=Options(dedupe=Dedupe(memo=5)))
    assert list(results) == [1, 1, 1]
    assert cost_of(results)[0] == 1.0


def test_the_next_function_of_a_chain_gets_the_value() -> None:
    async def first(row: int) -> Result:
        return Result({"doubled": row * 2}, 1.0)

    async def second(row: Any) -> Result:
        return Result(row.doubled + 1, 1.0)

    steps = [Step(first, uid="first"), Step(second, uid="second")]
    assert list(async_map([1, 2], steps)) == [3, 5]


@pytest.mark.contract
def test_a_result_that_comes_too_late_is_billed() -> None:
    release = threading.Event()

    def call(row: int) -> Result:
        if row == 0:
            assert release.wait()
        return Result(row, 1.0)

    results = async_map(range(3), call, capacity=1, timeout=0.3, errors="null")
    assert next(results) is None
    release.set()
    assert list(results) == [1, 2]
    assert cost_of(results)[0] == 3.0


@pytest.mark.contract
def test_the_ledger_keeps_the_value_and_the_cost_of_all_attempts(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", run="r")
    calls = Counter[int]()

    async def call(row: int) -> Result:
        calls[row] += 1
        if calls[row] == 1:
            raise AskAgain("again", usage=Usage(0.25))
        return Result({"answer": row}, Usage(1.0, 10))

    assert list(async_map(range(5), call, ledger=ledger)) == [{"answer": row} for row in range(5)]
    assert ledger.spent("r", "ask") == (10, 6.25)
    again = async_map(range(5), call, ledger=ledger)
    assert list(again) == [{"answer": row} for row in range(5)]
    assert calls == dict.fromkeys(range(5), 2)
    assert cost_of(again)[0] == 0.0


# -- errors ----------------------------------------------------------------------------------------------


class Cut(Exception):
    """An answer that was cut off, and paid for."""

    def __init__(self, usage: Any) -> None:
        super().__init__("cut off")
        self.usage = usage


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["coroutine", "thread", "collector", "batch", "row of a batch"])
def test_a_failed_attempt_is_billed_for_what_its_error_says(kind: str) -> None:
    error = Cut(Usage(0.5, 4))

    async def coroutine(row: int) -> int:
        raise error

    def thread(row: int) -> int:
        raise error

    def collector(row: int, collector: Collector[Any]) -> None:
        collector.fail(error)

    async def batch(rows: list[int]) -> list[Any]:
        raise error

    async def row_of_a_batch(rows: list[int]) -> list[Any]:
        return [error for _ in rows]

    fn: Any = locals()[kind.replace(" ", "_")]
    results = async_map(
        [1], fn, retry=Retry(3, initial=0.0), errors="null", batch=Batch(1) if "batch" in kind else None
    )
    assert list(results) == [None]
    assert cost_of(results) == (1.5, 12.0)


def test_a_usage_of_others_is_not_taken_for_one() -> None:
    async def call(row: int) -> int:
        raise Cut({"total_tokens": 3})

    results = async_map([1], call, errors="null")
    assert list(results) == [None]
    assert cost_of(results) == (0.0, 0.0)


@pytest.mark.contract
def test_a_budget_counts_the_cost_of_failed_attempts() -> None:
    async def call(row: int) -> Result:
        raise Cut(Usage(2.0))

    outcomes = list(async_map(range(6), call, budget=Budget(max_cost=5), errors="column", capacity=1))
    assert [outcome.error.type for outcome in outcomes if outcome.error] == ["Cut"] * 3 + ["NotCalled"] * 3


# -- rows that are asked again ---------------------------------------------------------------------------


class Misfit(AskAgain):
    """An answer of another form than was asked for."""


@pytest.mark.contract(convicts=["asked_again_counts_as_attempt"])
@pytest.mark.parametrize("kind", ["coroutine", "thread", "collector", "batch", "row of a batch"])
@pytest.mark.parametrize(("retry", "most"), [(None, 3), (Retry(3, initial=0.0), 5)])
def test_an_error_may_ask_for_its_row_again_apart_from_the_attempts_of_retry(
    kind: str, retry: Retry | None, most: int
) -> None:
    attempts: list[int] = []

    def error() -> Misfit:
        attempts.append(current_call().attempt)
        return Misfit("not JSON", 2, 1.0)

    async def coroutine(row: int) -> int:
        raise error()

    def thread(row: int) -> int:
        raise error()

    def collector(row: int, collector: Collector[Any]) -> None:
        collector.fail(error())

    async def batch(rows: list[int]) -> list[Any]:
        raise error()

    async def row_of_a_batch(rows: list[int]) -> list[Any]:
        return [error() for _ in rows]

    fn: Any = locals()[kind.replace(" ", "_")]
    results = async_map([1], fn, retry=retry, errors="column", batch=Batch(1) if "batch" in kind else None)
    (outcome,) = results
    assert attempts == [*range(1, most + 1)]
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message, outcome.error.attempts) == ("Misfit", "not JSON", most)
    counts = results.statistics()
    assert counts is not None
    assert (counts.calls, counts.cost, counts.retries_by_reason["Misfit"]) == (most, most, most - 1)


@pytest.mark.contract
def test_a_row_that_is_asked_again_waits_for_nothing() -> None:
    async def call(row: int) -> int:
        if current_call().attempt == 1:
            raise AskAgain("again")
        return row

    # The pause of a retry would be an hour.
    retry = Retry(2, initial=3600.0, maximum=3600.0, jitter=False)
    assert list(async_map(range(20), call, retry=retry, capacity=3)) == [*range(20)]


@pytest.mark.contract
def test_asking_again_stays_within_the_budget_of_calls() -> None:
    called: list[int] = []

    async def call(row: int) -> int:
        called.append(row)
        raise AskAgain("again", times=5)

    (outcome,) = async_map([1], call, budget=Budget(max_calls=3), errors="column")
    assert called == [1, 1, 1]
    assert outcome.error is not None and outcome.error.type == "NotCalled"
    assert "the attempt before ended with AskAgain: again" in outcome.error.message


@pytest.mark.contract
def test_asking_again_stays_within_the_time_of_the_row() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(0.02)
        raise AskAgain("again", times=1_000_000)

    (outcome,) = async_map([1], call, timeout=Timeout(0.2), errors="column")
    assert outcome.error is not None and outcome.error.type == "CallTimeout"


@pytest.mark.contract
def test_rows_that_ask_again_share_the_slots_with_the_others() -> None:
    running, most = 0, 0

    async def call(row: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if row % 2 and current_call().attempt < 3:
            raise AskAgain("again")
        return row

    assert list(async_map(range(100), call, capacity=4)) == [*range(100)]
    assert most <= 4


@pytest.mark.contract
def test_rows_of_a_batch_ask_again_each_for_itself() -> None:
    calls = Counter[int]()

    async def call(rows: list[int]) -> list[Any]:
        calls.update(rows)
        return [AskAgain("again", times=row) if row and calls[row] <= row else row for row in rows]

    assert list(async_map(range(4), call, batch=Batch(4))) == [*range(4)]
    assert calls == {0: 1, 1: 2, 2: 3, 3: 4}


@pytest.mark.contract
def test_a_group_of_errors_asks_again_if_each_of_them_does() -> None:
    group: Any = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        pytest.skip("exception groups are Python's since 3.11")

    async def call(row: int) -> int:
        if current_call().attempt == 1:
            errors: list[Exception] = [AskAgain("one"), AskAgain("two") if row else ValueError("two")]
            raise group("both", errors)
        return row

    outcomes = list(async_map([0, 1], call, errors="column"))
    assert outcomes[0].error is not None and outcomes[1] == (1, None)


# -- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Usage(-1.0), "cost=-1.0: must be finite and not below 0"),
        (lambda: Usage(tokens=float("nan")), "tokens=nan: must be finite"),
        (lambda: Usage(input_tokens="3"), "input_tokens='3': must be a number"),
        (lambda: Usage(model=3), "model=3: must be a text or None"),
        (lambda: Result(1, True), "Result: usage=True: must be a number, a pillarbox.Usage or None"),
        (lambda: AskAgain("x", 0), "times=0: must be at least 1"),
        (lambda: AskAgain("x", usage=-1), "AskAgain: usage=-1: must be finite"),
    ],
)
def test_a_bad_usage_is_named_where_it_is_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_usage_adds_tokens_up_where_only_their_parts_are_given() -> None:
    used = Usage(1.0, input_tokens=3, output_tokens=4, model="small", operation="chat", provider="openai")
    assert used.tokens == 7
    assert Usage(1.0, 9, input_tokens=3).tokens == 9
    assert pickle.loads(pickle.dumps(used)) == used


def test_an_error_that_asks_again_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(Misfit("not JSON", 4, Usage(1.0, 3))))
    assert (str(error), error.times, error.usage) == ("not JSON", 4, Usage(1.0, 3))
