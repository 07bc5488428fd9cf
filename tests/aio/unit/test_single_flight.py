"""Equal rows share one call (`dedupe`), and results are kept for later ones (`memo`). Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import Budget, CallFailed, Dedupe, Errors, Options, Timeout, TooManyFailures, async_map
from pillarbox.aio.errors import Failed
from tests.aio.unit.virtual import HOUR, Rig, again, infos, play


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
        rig = Rig(one, dedupe=True, ordered=ordered)
        rig.push("a", "b", "a", "a")
        await asyncio.sleep(0.5)
        rig.push("b")
        await rig.end()
        assert one.calls == ["a", "b"]
        assert sorted(rig.emitted) == [("a", ("a", 1))] * 3 + [("b", ("b", 2))] * 2
        if ordered:
            assert [row for row, _ in rig.emitted] == ["a", "b", "a", "a", "b"]
        counts = rig.operator.statistics()
        assert (counts.rows_in, counts.results, counts.calls, counts.shared) == (5, 5, 2, 3)

    play(script)


@pytest.mark.contract
def test_without_dedupe_equal_rows_are_called_each_for_itself() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one)
        rig.push("a", "a")
        await rig.end()
        assert one.calls == ["a", "a"]

    play(script)


def test_a_row_that_comes_after_the_call_has_ended_is_called() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one, dedupe=True)
        rig.push("a")
        await asyncio.sleep(2)
        rig.push("a")
        await rig.end()
        assert rig.results == [("a", 1), ("a", 2)]

    play(script)


def test_a_row_that_shares_a_call_takes_no_slot() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one, dedupe=True, capacity=2)
        rig.push("a", "a", "a", "b")
        await asyncio.sleep(0.5)
        assert one.calls == ["a", "b"]
        await rig.end()

    play(script)


def test_a_function_says_what_is_compared() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one, dedupe=lambda row: row["id"])
        rig.push({"id": 1, "at": 0}, {"id": 2, "at": 1}, {"id": 1, "at": 2})
        rows = [row["at"] for row in one.calls]
        assert rows == []
        done: list[Any] = []
        rig.collect = lambda batch: done.extend(batch.rows)  # type: ignore[method-assign]
        await rig.end()
        assert [row["at"] for row in one.calls] == [0, 1]
        assert [call.row["at"] for call, _ in done] == [0, 1, 2]
        assert done[2][1] == ({"id": 1, "at": 0}, 1)

    play(script)


def test_of_tuples_of_arguments_the_function_gets_the_arguments() -> None:
    async def call(name: str, number: int) -> str:
        calls.append(number)
        return f"{name}{number}"

    calls: list[int] = []

    async def script() -> None:
        rig = Rig(call, spread=True, dedupe=lambda name, number: name)
        rig.push(("a", 1), ("a", 2), ("b", 3))
        await rig.end()
        assert (rig.results, calls) == (["a1", "a1", "b3"], [1, 3])

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
        rig = Rig(one, dedupe=lambda row: 10 / row, errors="column")
        rig.push(1, 0, 2)
        await rig.end()
        assert one.calls == [1, 2]
        assert (infos(rig)[0].type, infos(rig)[0].attempts) == ("ZeroDivisionError", 0)
        assert rig.operator.statistics().errors == 1

    play(script)


@pytest.mark.contract
def test_rows_that_share_a_call_share_its_failure_and_are_all_counted() -> None:
    async def script() -> None:
        one = One(bad="a")
        rig = Rig(one, dedupe=True, errors="column")
        rig.push("a", "a", "b", "a")
        await rig.end()
        assert [type(result) is Failed for result in rig.results] == [True, True, False, True]
        assert one.calls == ["a", "b"]
        counts = rig.operator.statistics()
        assert (counts.errors, counts.errors_by_type) == (3, {"ValueError": 3})

    play(script)


def test_fail_after_counts_the_rows_that_share_a_failure() -> None:
    async def script() -> None:
        rig = Rig(One(bad="a"), dedupe=True, errors=Errors("null", stop_after=2))
        rig.push("a", "a", "a", "b")
        await rig.end()
        assert isinstance(rig.error, TooManyFailures)
        assert rig.error.failed == 3

    play(script)


def test_rows_join_a_call_that_waits_for_its_retry() -> None:
    async def script() -> None:
        one = One(bad="a")
        rig = Rig(one, dedupe=True, retry=again(2, HOUR))
        rig.push("a")
        await asyncio.sleep(2)
        rig.push("a")
        one.bad = None
        await rig.end()
        assert rig.results == [("a", 2), ("a", 2)]

    play(script)


def test_rows_that_share_a_call_share_its_time_out() -> None:
    async def script() -> None:
        one = One(seconds=HOUR)
        rig = Rig(one, dedupe=True, timeout=Timeout(5, fallback="slow"))
        rig.push("a")
        await asyncio.sleep(3)
        rig.push("a")
        await rig.end()
        assert (rig.results, one.calls) == (["slow", "slow"], ["a"])

    play(script)


def test_rows_that_share_a_row_that_is_not_called_are_marked_and_counted() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one, dedupe=True, budget=Budget(max_calls=1), errors="column", capacity=1)
        rig.push("a", "b", "b", "a")
        await rig.end()
        assert {row: info.type for row, info in infos(rig).items()} == {"b": "NotCalled"}
        assert one.calls == ["a"]
        counts = rig.operator.statistics()
        assert (counts.not_called, counts.errors) == (2, 0)

    play(script)


# -- memo ----------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_result_that_is_kept_is_given_to_later_rows_without_a_call() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one, dedupe=Dedupe(memo=10))
        rig.push("a", "b", "a")
        await asyncio.sleep(5)
        rig.push("b", "a")
        await rig.end()
        assert one.calls == ["a", "b"]
        assert rig.results == [("a", 1), ("b", 2), ("a", 1), ("b", 2), ("a", 1)]
        assert rig.operator.statistics().shared == 3

    play(script)


@pytest.mark.contract("No more results are kept in the memo than asked for; the longest unused goes.")
def test_no_more_results_are_kept_than_asked_for_the_longest_unused_goes() -> None:
    async def script() -> None:
        one = One()
        rig = Rig(one, dedupe=Dedupe(memo=2), capacity=1)
        for row in "abacab":
            rig.push(row)
            await asyncio.sleep(2)
        await rig.end()
        # When "c" came, "b" had been unused for longer than "a".
        assert one.calls == ["a", "b", "c", "b"]

    play(script)


def test_a_result_of_none_is_kept_too() -> None:
    calls: list[int] = []

    async def call(row: int) -> None:
        calls.append(row)

    async def script() -> None:
        rig = Rig(call, dedupe=Dedupe(memo=2))
        rig.push(1)
        await asyncio.sleep(1)
        rig.push(1)
        await rig.end()
        assert (rig.results, calls) == ([None, None], [1])

    play(script)


@pytest.mark.contract
def test_a_failure_is_never_kept() -> None:
    async def script() -> None:
        one = One(bad="a")
        rig = Rig(one, dedupe=Dedupe(memo=10), errors="null")
        rig.push("a")
        await asyncio.sleep(5)
        one.bad = None
        rig.push("a")
        await rig.end()
        assert type(rig.results[0]) is Failed
        assert rig.results[1] == ("a", 2)

    play(script)


def test_what_stands_for_a_time_out_is_not_kept() -> None:
    async def script() -> None:
        one = One(seconds=HOUR)
        rig = Rig(one, dedupe=Dedupe(memo=10), timeout=Timeout(5, fallback="slow"))
        rig.push("a")
        await asyncio.sleep(10)
        one.seconds = 1
        rig.push("a")
        await rig.end()
        assert rig.results == ["slow", ("a", 2)]

    play(script)
