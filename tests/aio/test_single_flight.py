"""Equal rows share one call (`dedupe`), and results are kept for later ones (`memo`). Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import (
    Budget,
    CallFailed,
    Dedupe,
    ErrorInfo,
    Errors,
    Options,
    Timeout,
    TooManyFailures,
    async_map,
)
from tests.aio.virtual import HOUR, Job, again, infos, play


class One:
    """An async function of a row that takes `seconds`; keeps the rows that it was called with."""

    def __init__(self, seconds: float = 1.0, bad: Any = None) -> None:
        self.seconds = seconds
        self.bad = bad
        self.calls: list[Any] = []

    async def __call__(self, row: Any) -> Any:
        self.calls.append(row)
        number = len(self.calls)
        await asyncio.sleep(self.seconds)
        if row == self.bad:
            raise ValueError(f"bad row, call {number}")
        return (row, number)


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_equal_rows_in_flight_share_one_call_and_each_gets_its_result(ordered: bool) -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=True, ordered=ordered)
        job.push("a", "b", "a", "a")
        await asyncio.sleep(0.5)
        job.push("b")
        await job.end()
        assert one.calls == ["a", "b"]
        assert sorted(job.results) == [("a", 1)] * 3 + [("b", 2)] * 2
        if ordered:
            assert [row for row, _ in job.results] == ["a", "b", "a", "a", "b"]
        counts = job.statistics()
        assert (counts.rows_in, counts.results, counts.calls, counts.shared) == (5, 5, 2, 3)

    play(script)


@pytest.mark.contract
def test_without_dedupe_equal_rows_are_called_each_for_itself() -> None:
    async def script() -> None:
        one = One()
        job = Job(one)
        job.push("a", "a")
        await job.end()
        assert one.calls == ["a", "a"]

    play(script)


def test_a_row_that_comes_after_the_call_has_ended_is_called() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=True)
        job.push("a")
        await asyncio.sleep(2)
        job.push("a")
        await job.end()
        assert job.results == [("a", 1), ("a", 2)]

    play(script)


def test_a_row_that_shares_a_call_takes_no_slot() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=True, capacity=2)
        job.push("a", "a", "a", "b")
        await asyncio.sleep(0.5)
        assert one.calls == ["a", "b"]
        await job.end()

    play(script)


def test_a_function_says_what_is_compared() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=lambda row: row["id"])
        job.push({"id": 1, "at": 0}, {"id": 2, "at": 1}, {"id": 1, "at": 2})
        await job.end()
        assert [row["at"] for row in one.calls] == [0, 1]
        assert job.results == [
            ({"id": 1, "at": 0}, 1),
            ({"id": 2, "at": 1}, 2),
            ({"id": 1, "at": 0}, 1),
        ]

    play(script)


def test_rows_of_one_hash_that_are_not_equal_are_called_each_for_itself() -> None:
    class Same:
        def __init__(self, name: str) -> None:
            self.name = name

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Same) and other.name == self.name

    async def call(row: Same) -> str:
        await asyncio.sleep(0)
        return row.name

    rows = [Same("a"), Same("b"), Same("a"), Same("c")]
    assert list(async_map(rows, call, options=Options(dedupe=Dedupe(memo=10)))) == ["a", "b", "a", "c"]


def test_a_row_that_cannot_be_compared_fails_with_the_reason() -> None:
    async def call(row: Any) -> Any:
        return row

    words = (
        "a value of type list has no hash .*: give a function of what is compared, such as dedupe=lambda row"
    )
    with pytest.raises(CallFailed, match=words):
        list(async_map([1, [2]], call, options=Options(dedupe=True)))
    assert list(async_map([1, [2], 3, [2]], call, errors="null", options=Options(dedupe=True))) == [
        1,
        None,
        3,
        None,
    ]


def test_a_key_that_raises_fails_its_row_alone() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=lambda row: 10 / row, errors="column")
        job.push(1, 0, 2)
        await job.end()
        assert one.calls == [1, 2]
        assert (infos(job)[0].type, infos(job)[0].attempts) == ("ZeroDivisionError", 0)
        assert job.statistics().errors == 1

    play(script)


@pytest.mark.contract
def test_rows_that_share_a_call_share_its_failure_and_are_all_counted() -> None:
    async def script() -> None:
        one = One(bad="a")
        job = Job(one, dedupe=True, errors="column")
        job.push("a", "a", "b", "a")
        await job.end()
        assert [type(result) is ErrorInfo for result in job.results] == [True, True, False, True]
        assert one.calls == ["a", "b"]
        counts = job.statistics()
        assert (counts.errors, counts.errors_by_type) == (3, {"ValueError": 3})

    play(script)


def test_fail_after_counts_the_rows_that_share_a_failure() -> None:
    async def script() -> None:
        job = Job(One(bad="a"), dedupe=True, errors=Errors("null", stop_after=2))
        job.push("a", "a", "a", "b")
        await job.end()
        assert isinstance(job.error, TooManyFailures)
        assert job.error.failed == 3

    play(script)


def test_rows_join_a_call_that_waits_for_its_retry() -> None:
    async def script() -> None:
        one = One(bad="a")
        job = Job(one, dedupe=True, retry=again(2, HOUR))
        job.push("a")
        await asyncio.sleep(2)
        job.push("a")
        one.bad = None
        await job.end()
        assert job.results == [("a", 2), ("a", 2)]

    play(script)


def test_rows_that_share_a_call_share_its_time_out() -> None:
    async def script() -> None:
        one = One(seconds=HOUR)
        job = Job(one, dedupe=True, timeout=Timeout(5, fallback="slow"))
        job.push("a")
        await asyncio.sleep(3)
        job.push("a")
        await job.end()
        assert (job.results, one.calls) == (["slow", "slow"], ["a"])

    play(script)


def test_rows_that_share_a_row_that_is_not_called_are_marked_and_counted() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=True, budget=Budget(max_calls=1), errors="column", capacity=1)
        job.push("a", "b", "b", "a")
        await job.end()
        assert {row: info.type for row, info in infos(job).items()} == {"b": "NotCalled"}
        assert one.calls == ["a"]
        counts = job.statistics()
        assert (counts.not_called, counts.errors) == (2, 0)

    play(script)


# -- memo ----------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_result_that_is_kept_is_given_to_later_rows_without_a_call() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=Dedupe(memo=10))
        job.push("a", "b", "a")
        await asyncio.sleep(5)
        job.push("b", "a")
        await job.end()
        assert one.calls == ["a", "b"]
        assert job.results == [("a", 1), ("b", 2), ("a", 1), ("b", 2), ("a", 1)]
        assert job.statistics().shared == 3

    play(script)


@pytest.mark.contract("No more results are kept in the memo than asked for; the longest unused goes.")
def test_no_more_results_are_kept_than_asked_for_the_longest_unused_goes() -> None:
    async def script() -> None:
        one = One()
        job = Job(one, dedupe=Dedupe(memo=2), capacity=1)
        for row in "abacab":
            job.push(row)
            await asyncio.sleep(2)
        await job.end()
        # When "c" came, "b" had been unused for longer than "a".
        assert one.calls == ["a", "b", "c", "b"]

    play(script)


def test_a_result_of_none_is_kept_too() -> None:
    calls: list[int] = []

    async def call(row: int) -> None:
        calls.append(row)

    async def script() -> None:
        job = Job(call, dedupe=Dedupe(memo=2))
        job.push(1)
        await asyncio.sleep(1)
        job.push(1)
        await job.end()
        assert (job.results, calls) == ([None, None], [1])

    play(script)


@pytest.mark.contract
def test_a_failure_is_never_kept() -> None:
    async def script() -> None:
        one = One(bad="a")
        job = Job(one, dedupe=Dedupe(memo=10), errors="column")
        job.push("a")
        await asyncio.sleep(5)
        one.bad = None
        job.push("a")
        await job.end()
        assert type(job.results[0]) is ErrorInfo
        assert job.results[1] == ("a", 2)

    play(script)


def test_what_stands_for_a_time_out_is_not_kept() -> None:
    async def script() -> None:
        one = One(seconds=HOUR)
        job = Job(one, dedupe=Dedupe(memo=10), timeout=Timeout(5, fallback="slow"))
        job.push("a")
        await asyncio.sleep(10)
        one.seconds = 1
        job.push("a")
        await job.end()
        assert job.results == ["slow", ("a", 2)]

    play(script)
