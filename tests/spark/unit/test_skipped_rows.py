"""Rows that are not called, as `where` does not hold: in their places, and few of them held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pillarbox import CallFailed, Options
from pillarbox.spark import dataframe
from pillarbox.spark.dataframe import MapTask
from pillarbox.spark.operator_plan import plan_operator
from pillarbox.spark.writer import MAX_SKIPPED_BYTES, SkippedRows, put_back
from tests.search import examples

SCHEMA = T.StructType([T.StructField("answer", T.LongType())])
TEXT = "x" * 10_000


def batch_of(first: int, mask: list[bool | None], text: str = "") -> pa.RecordBatch:
    numbers = pa.array(range(first, first + len(mask)), pa.int64())
    columns = [numbers, pa.array([text] * len(mask)), pa.array(mask, pa.bool_())]
    return pa.RecordBatch.from_arrays(columns, ["n", "text", "is called"])


def task_of(fn: Callable[..., Any], **options: Any) -> MapTask:
    plan = plan_operator(
        fn,
        Options(**options),
        session=None,
        token="token",
        progress=None,
        columns=["n", "text"],
        results=SCHEMA,
        streaming=False,
    )
    return MapTask([plan], SCHEMA, ["n", "text"], "fail", skips=True)


class Reading:
    """An input that counts what was read of it."""

    def __init__(self, batches: Callable[[int], pa.RecordBatch], count: int) -> None:
        self.read = 0
        self._batches = batches
        self._count = count

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._count):
            self.read += 1
            yield self._batches(number)


async def twice(row: Any) -> dict[str, int]:
    return {"answer": 2 * row.n}


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_are_not_called_leave_though_no_row_is_and_few_are_held(ordered: bool) -> None:
    reading = Reading(lambda number: batch_of(200 * number, [False] * 200, TEXT), 60)
    held, left = 0, 0
    for batch in task_of(twice, ordered=ordered).run(iter(reading)):
        assert batch.column("n").to_pylist() == [*range(left, left + batch.num_rows)]
        assert batch.column("answer").null_count == batch.num_rows
        left += batch.num_rows
        held = max(held, 200 * reading.read - left)
    assert left == 60 * 200
    # And the batch with which they became too many.
    assert held * len(TEXT) <= MAX_SKIPPED_BYTES + 200 * len(TEXT)


@pytest.mark.contract
def test_nothing_is_read_while_too_many_rows_wait_for_a_result_in_front_of_them() -> None:
    reading = Reading(lambda number: batch_of(10 * number, [number == 0] + [False] * 9, TEXT), 100)
    skipped = SkippedRows(["n", "text"], ordered=True, max_bytes=1_000_000)
    waits, called = threading.Event(), []
    skipped.wake = waits.set

    def read() -> None:
        called.extend(batch.column("n")[0].as_py() for batch in skipped.called(reading))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert waits.wait(60)
    assert 10 <= reading.read <= 12 and skipped.are_too_many()
    assert skipped.beside(0) is None
    numbers: list[int] = []
    chunk = 1
    while len(numbers) < 999:
        beside = skipped.beside(chunk)
        if beside is not None:
            chunk = 0
            numbers += beside[1].column("n").to_pylist()
    thread.join(60)
    assert called == [0] and numbers == [*range(1, 1000)] and not skipped.are_too_many()


@pytest.mark.contract
def test_a_job_ends_with_its_error_while_too_many_rows_wait() -> None:
    reading = Reading(lambda number: batch_of(200 * number, [number == 0] + [False] * 199, TEXT), 60)

    async def fail(row: Any) -> None:
        while reading.read * 200 * len(TEXT) <= MAX_SKIPPED_BYTES:
            await asyncio.sleep(0)
        raise ValueError("not today")

    with pytest.raises(CallFailed, match="not today"):
        list(task_of(fail).run(iter(reading)))
    assert reading.read < 60
    assert not [each.name for each in threading.enumerate() if each.name.startswith("pillarbox-read-")]


@settings(max_examples=examples(60))
@given(
    batches=st.lists(st.lists(st.sampled_from([True, False, None]), max_size=5), max_size=6),
    max_bytes=st.sampled_from([0, 50, 200]),
    ordered=st.booleans(),
    capacity=st.integers(1, 3),
)
def test_however_few_may_be_held_each_row_leaves_once_and_in_its_place(
    batches: list[list[bool | None]], max_bytes: int, ordered: bool, capacity: int
) -> None:
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    given_batches = [batch_of(start, mask) for start, mask in zip(starts, batches, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataframe, "SkippedRows", partial(SkippedRows, max_bytes=max_bytes))
        out = [*task_of(twice, ordered=ordered, capacity=capacity).run(iter(given_batches))]
    rows = [(row["n"], row["answer"]) for batch in out for row in batch.to_pylist()]
    flags = [flag for mask in batches for flag in mask]
    expected = [(n, 2 * n if flag else None) for n, flag in enumerate(flags)]
    assert (rows if ordered else sorted(rows)) == expected


@pytest.mark.contract
@pytest.mark.parametrize("kept", [["n"], []])
def test_of_rows_that_are_not_called_only_what_leaves_is_held(kept: list[str]) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"n": list(range(100)), "text": ["x" * 10_000] * 100, "is called": [False] * 99 + [True]}
    )
    skipped = SkippedRows(kept, ordered=True)
    (called,) = skipped.called([rows])
    assert called.schema.names == ["n", "text"] and called.column("n").to_pylist() == [99]
    beside = skipped.beside(None)
    assert beside is not None and beside[1].num_rows == 99
    assert beside[1].nbytes < 1000 and set(kept) <= set(beside[1].schema.names)


@given(
    batches=st.lists(st.lists(st.sampled_from([True, False, None]), max_size=6), max_size=5),
    chunks=st.lists(st.integers(1, 4), min_size=40, max_size=40),
    counts=st.lists(st.integers(0, 2), min_size=30, max_size=30),
)
def test_skipped_rows_stand_at_their_places_however_results_are_cut(
    batches: list[list[bool | None]], chunks: list[int], counts: list[int]
) -> None:
    skipped = SkippedRows(["n"], ordered=True)
    called: list[int] = []

    def given_batches() -> Iterator[pa.RecordBatch]:
        start = 0
        for mask in batches:
            values = pa.array(range(start, start + len(mask)), pa.int64())
            yield pa.RecordBatch.from_arrays([values, pa.array(mask, pa.bool_())], ["n", "is called"])
            start += len(mask)

    for batch in skipped.called(given_batches()):
        called += batch.column(0).to_pylist()
    expected: list[int] = []
    for number, each in enumerate(flag for mask in batches for flag in mask):
        expected += [number] * (counts[called.index(number)] if each else 1)
    out: list[int] = []
    place = 0
    for size in chunks:
        some = called[place : place + size]
        if not some:
            break
        theirs = counts[place : place + len(some)]
        place += len(some)
        values = [n for n, count in zip(some, theirs, strict=True) for _ in range(count)]
        written = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["n"])
        beside = skipped.beside(len(some))
        if beside is not None:
            places, rows = beside
            written = put_back(written, rows, places, theirs)
        out += written.column(0).to_pylist()
    last = skipped.beside(None)
    out += [] if last is None else last[1].column(0).to_pylist()
    assert out == expected
