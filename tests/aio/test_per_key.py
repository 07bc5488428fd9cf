"""Rows of one key are called in their order (`per_key`). Time is virtual."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Batch, Budget, Ledger, Limit, Options, Retry, Timeout, async_map
from tests.aio.virtual import Job, infos, now, play


def first(row: Any) -> Any:
    """The key of a row of these tests."""
    return row[0]


class Keyed:
    """An async function of (key, number, seconds); keeps when the calls of each key began and ended.

    bad: rows that fail each time; flaky: rows that fail the first time.
    """

    def __init__(self, bad: Any = (), flaky: Any = ()) -> None:
        self.bad = {*bad}
        self.flaky = {*flaky}
        self.began: dict[Any, list[Any]] = defaultdict(list)
        self.running: dict[Any, int] = defaultdict(int)
        self.most: dict[Any, int] = defaultdict(int)
        self.times: dict[Any, tuple[float, float]] = {}

    async def __call__(self, row: Any) -> Any:
        key, number, seconds = row
        began = now()
        self.began[key].append(number)
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running[key] -= 1
        self.times[row] = began, now()
        if row in self.bad or row in self.flaky:
            self.flaky.discard(row)
            raise ConnectionError(f"row {number}")
        return number


@pytest.mark.contract(convicts=["newest_row_of_key_first", "one_row_of_key_too_many", "key_never_goes_on"])
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_one_key_are_called_one_after_the_other_in_their_order_and_keys_side_by_side(
    ordered: bool,
) -> None:
    async def script() -> None:
        service = Keyed()
        job = Job(service, per_key=Limit(first), ordered=ordered)
        job.push(("a", 1, 5.0), ("a", 2, 1.0), ("b", 3, 2.0), ("a", 4, 1.0), ("b", 5, 2.0))
        await job.end()
        assert service.began == {"a": [1, 2, 4], "b": [3, 5]}
        assert service.most == {"a": 1, "b": 1}
        # Seven seconds of one key and four of the other one take seven.
        assert now() == 7.0
        assert sorted(job.results) == [1, 2, 3, 4, 5]
        if ordered:
            assert job.results == [1, 2, 3, 4, 5]

    play(script)


@pytest.mark.contract
def test_no_more_rows_of_one_key_than_allowed_are_in_flight() -> None:
    async def script() -> None:
        service = Keyed()
        job = Job(service, per_key=Limit(first, at_once=2))
        job.push(*[("a", number, 1.0) for number in range(6)])
        await job.end()
        assert service.began == {"a": [0, 1, 2, 3, 4, 5]}
        assert service.most == {"a": 2} and now() == 3.0

    play(script)


@pytest.mark.contract
def test_a_row_keeps_the_place_of_its_key_until_its_retries_are_over() -> None:
    async def script() -> None:
        service = Keyed(flaky=[("a", 1, 1.0)])
        job = Job(service, per_key=Limit(first), retry=Retry(2, initial=10.0, jitter=False))
        job.push(("a", 1, 1.0), ("a", 2, 1.0), ("b", 3, 1.0))
        await job.end()
        assert service.began == {"a": [1, 1, 2], "b": [3]}
        assert service.times["b", 3, 1.0] == (0.0, 1.0)

    play(script)


@pytest.mark.contract
def test_a_row_that_fails_or_times_out_lets_the_next_one_of_its_key_go_on() -> None:
    async def script() -> None:
        service = Keyed(bad=[("a", 1, 1.0)])
        job = Job(service, per_key=Limit(first), timeout=Timeout(5.0), errors="column")
        job.push(("a", 1, 1.0), ("a", 2, 60.0), ("a", 3, 1.0))
        await job.end()
        assert [info.type for info in infos(job).values()] == ["ConnectionError", "CallTimeout"]
        assert job.results[2] == 3 and service.began == {"a": [1, 2, 3]}

    play(script)


def test_a_time_limit_begins_with_the_call_and_not_in_the_queue_of_its_key() -> None:
    async def script() -> None:
        job = Job(Keyed(), per_key=Limit(first), timeout=5.0)
        job.push(*[("a", number, 4.0) for number in range(5)])
        await job.end()
        assert job.results == [0, 1, 2, 3, 4] and job.error is None

    play(script)


@pytest.mark.contract
def test_rows_of_one_key_that_a_budget_does_not_pay_for_end_however_many_they_are() -> None:
    async def script() -> None:
        service = Keyed()
        job = Job(service, per_key=Limit(first), budget=Budget(max_calls=2), errors="column", capacity=1000)
        job.push(*[("a", number, 1.0) for number in range(5000)])
        await job.end()
        assert job.error is None
        assert service.began == {"a": [0, 1]} and len(infos(job)) == 4998

    play(script)


@pytest.mark.contract
def test_no_batch_has_more_rows_of_one_key_than_allowed() -> None:
    async def script() -> None:
        batches = []

        async def call(rows: list[Any]) -> list[Any]:
            batches.append([first(row) for row in rows])
            await asyncio.sleep(1.0)
            return [row[1] for row in rows]

        job = Job(call, per_key=Limit(first), batch=Batch(8, max_weight=100.0, weight=lambda row: 1.0))
        job.push(*[("abc"[number % 3], number) for number in range(30)])
        await job.end()
        assert job.results == [*range(30)]
        assert all(len(keys) == len({*keys}) for keys in batches) and max(map(len, batches)) == 3

    play(script)


def test_a_row_of_a_batch_that_cannot_be_weighed_lets_its_key_go_on() -> None:
    async def script() -> None:
        async def call(rows: list[Any]) -> list[Any]:
            return [row[1] for row in rows]

        def weight(row: Any) -> float:
            return 1.0 / row[1] if row[1] > 0 else 1 // 0

        batch = Batch(8, max_weight=100.0, weight=weight)
        job = Job(call, per_key=Limit(first), batch=batch, errors="column")
        job.push(("a", 5), ("a", 0), ("a", -1), ("a", 4))
        await job.end()
        assert [info.type for info in infos(job).values()] == ["ZeroDivisionError"] * 2
        assert (job.results[0], job.results[3]) == (5, 4)

    play(script)


@pytest.mark.contract(
    "A function may change its row, its key too: the order is that of the keys that rows came with.",
    convicts=["key_of_a_changed_row"],
)
def test_a_row_whose_key_changes_while_it_is_called_counts_by_the_one_it_came_with() -> None:
    async def script() -> None:
        began: list[tuple[str, int, float]] = []

        async def call(row: dict[str, Any]) -> int:
            began.append((row["user"], row["number"], now()))
            row["user"] = "done"
            await asyncio.sleep(1.0)
            return int(row["number"])

        job = Job(call, per_key=Limit(lambda row: row["user"]))
        job.push(*[{"user": user, "number": number} for number, user in enumerate("aabab")])
        await job.end()
        assert (job.error, job.results) == (None, [0, 1, 2, 3, 4])
        assert sorted(began) == [("a", 0, 0.0), ("a", 1, 1.0), ("a", 3, 2.0), ("b", 2, 0.0), ("b", 4, 1.0)]

    play(script)


@pytest.mark.contract
def test_rows_without_a_key_are_not_limited() -> None:
    async def script() -> None:
        service = Keyed()
        job = Job(service, per_key=Limit(first))
        job.push(*[(None, number, 1.0) for number in range(5)])
        await job.end()
        assert now() == 1.0 and service.most == {None: 5}

    play(script)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("key", "words"),
    [(lambda row: row[9], "IndexError"), (lambda row: [row], "per_key: key returned a value of type list")],
)
def test_a_row_whose_key_cannot_be_had_fails_alone(key: Any, words: str) -> None:
    async def script() -> None:
        service = Keyed()
        job = Job(service, per_key=Limit(lambda row: "b" if row[0] == "b" else key(row)), errors="column")
        job.push(("a", 1, 1.0), ("b", 2, 1.0))
        await job.end()
        [info] = infos(job).values()
        assert words in f"{info.type}: {info.message}" and job.results[1] == 2
        assert service.began == {"b": [2]}

    play(script)


@pytest.mark.contract
def test_rows_whose_results_a_ledger_has_are_not_called_and_the_others_keep_their_order(
    tmp_path: Path,
) -> None:
    rows = [("a", 1, 0.0), ("b", 2, 0.0), ("a", 3, 0.0), ("a", 4, 0.0), ("b", 5, 0.0)]
    for bad, expected in (([rows[2]], {"a": [1, 3, 4], "b": [2, 5]}), ([], {"a": [3]})):
        service = Keyed(bad=bad)
        options = Options(
            per_key=Limit(first),
            ledger=Ledger(str(tmp_path), uid="keyed-v1", run="1"),
            errors="column",
        )
        outcomes = list(async_map(rows, service, options=options))
        assert service.began == expected
        assert sum(outcome.error is None for outcome in outcomes) == 5 - len(bad)


def test_equal_rows_share_a_call_and_hold_no_place_of_their_key() -> None:
    async def script() -> None:
        service = Keyed()
        job = Job(service, per_key=Limit(first), dedupe=True)
        job.push(("a", 1, 1.0), ("a", 1, 1.0), ("a", 2, 1.0))
        await job.end()
        assert job.results == [1, 1, 2] and service.began == {"a": [1, 2]}

    play(script)


def test_rows_that_queue_are_counted_among_those_that_wait() -> None:
    async def script() -> None:
        job = Job(Keyed(), per_key=Limit(first))
        job.push(*[("a", number, 1.0) for number in range(5)])
        await asyncio.sleep(0.5)
        counts = job.statistics()
        assert (counts.in_flight, counts.waiting, counts.policies["queued_by_key"]) == (1, 4, 4.0)
        await job.stop()

    play(script)


@pytest.mark.contract(convicts=["row_of_key_overtakes"])
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from([0.0, 0.5, 1.0]),
            st.sampled_from(["good", "flaky", "bad"]),
        ),
        max_size=25,
    ),
    at_once=st.integers(1, 3),
    capacity=st.integers(1, 5),
    ordered=st.booleans(),
)
def test_whatever_comes_keys_keep_their_order_and_every_row_ends(
    rows: list[Any], at_once: int, capacity: int, ordered: bool
) -> None:
    async def script() -> None:
        all_rows = [(key, number, seconds) for number, (key, seconds, _) in enumerate(rows)]
        kinds = {row: kind for row, (_, _, kind) in zip(all_rows, rows, strict=True)}
        service = Keyed(
            bad=[row for row in all_rows if kinds[row] == "bad"],
            flaky=[row for row in all_rows if kinds[row] == "flaky"],
        )
        job = Job(
            service,
            per_key=Limit(first, at_once=at_once),
            capacity=capacity,
            ordered=ordered,
            retry=Retry(2, initial=0.25, jitter=False),
            errors="column",
        )
        job.push(*all_rows)
        await job.end()
        assert job.error is None and len(job.results) == len(rows)
        assert all(most <= at_once for most in service.most.values())
        for numbers in service.began.values():
            firsts = [number for place, number in enumerate(numbers) if number not in numbers[:place]]
            assert firsts == sorted(firsts)
            if at_once == 1:
                assert numbers == sorted(numbers)

    play(script)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Limit("user"), "key='user': must be a function of the row that returns its key"),
        (lambda: Limit(first, at_once=0), "at_once=0"),
        (lambda: Options(per_key=first), "must be a pillarbox.Limit or None"),
    ],
)
def test_a_limit_by_key_that_cannot_be_is_refused_where_it_is_given(make: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert words in str(refused.value)
