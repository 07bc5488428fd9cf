"""Rows that are not called, as `where` does not hold: in their places, and few of them held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from pillarbox import CallFailed, Options
from pillarbox.aio.calls import Chunk
from pillarbox.aio.options import Buffer
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import ResultStream
from pillarbox.loop_thread import LoopThread
from pillarbox.spark import records
from pillarbox.spark.dataframe import MapTask
from pillarbox.spark.operator_plan import plan_operator
from pillarbox.spark.records import ArrowInput, sliced
from pillarbox.spark.writer import Interleaver, LeftOutRows, called
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


MAX_BYTES = 4_000_000


@pytest.fixture
def few_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "READ_AHEAD_BYTES", MAX_BYTES)


@pytest.mark.contract
@pytest.mark.usefixtures("few_are_read_ahead")
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_are_not_called_leave_though_no_row_is_and_few_are_held(ordered: bool) -> None:
    reading = Reading(lambda number: batch_of(200 * number, [False] * 200, TEXT), 60)
    held, left = 0, 0
    for batch in task_of(twice, ordered=ordered, buffer=Buffer(max_bytes=MAX_BYTES)).run(iter(reading)):
        assert batch.column("n").to_pylist() == [*range(left, left + batch.num_rows)]
        assert batch.column("answer").null_count == batch.num_rows
        left += batch.num_rows
        held = max(held, 200 * reading.read - left)
    assert left == 60 * 200
    # Read ahead, in the window, and a batch on each of its ways.
    assert held * len(TEXT) <= 2 * MAX_BYTES + 8 * 200 * len(TEXT)


async def until_nothing_is_read(reading: Reading) -> None:
    """Wait until the reading thread has stopped for a while, as there is room for nothing more."""
    read, turns = -1, 0
    while turns < 2000:
        turns = turns + 1 if reading.read == read else 0
        read = reading.read
        await asyncio.sleep(0)


@pytest.mark.contract
@pytest.mark.usefixtures("few_are_read_ahead")
def test_nothing_is_read_while_too_many_rows_wait_for_a_result_in_front_of_them() -> None:
    reading = Reading(lambda number: batch_of(200 * number, [number == 0] + [False] * 199, TEXT), 60)
    seen = []

    async def slow(row: Any) -> dict[str, int]:
        await until_nothing_is_read(reading)
        seen.append(reading.read)
        return {"answer": 2 * row.n}

    out = [*task_of(slow, buffer=Buffer(max_bytes=MAX_BYTES)).run(iter(reading))]
    assert [n for batch in out for n in batch.column("n").to_pylist()] == [*range(60 * 200)]
    assert seen[0] * 200 * len(TEXT) <= 2 * MAX_BYTES + 8 * 200 * len(TEXT)


@pytest.mark.contract
@pytest.mark.usefixtures("few_are_read_ahead")
def test_a_job_ends_with_its_error_while_too_many_rows_wait() -> None:
    reading = Reading(lambda number: batch_of(200 * number, [number == 0] + [False] * 199, TEXT), 60)

    async def fail(row: Any) -> None:
        await until_nothing_is_read(reading)
        raise ValueError("not today")

    with pytest.raises(CallFailed, match="not today"):
        list(task_of(fail, buffer=Buffer(max_bytes=MAX_BYTES)).run(iter(reading)))
    assert reading.read < 60
    assert not [each.name for each in threading.enumerate() if each.name.startswith("pillarbox-read-")]


@settings(max_examples=examples(60))
@given(
    batches=st.lists(st.lists(st.sampled_from([True, False, None]), max_size=5), max_size=6),
    max_bytes=st.sampled_from([1, 50, 200, None]),
    ordered=st.booleans(),
    capacity=st.integers(1, 3),
)
def test_however_few_may_be_held_each_row_leaves_once_and_in_its_place(
    batches: list[list[bool | None]], max_bytes: int | None, ordered: bool, capacity: int
) -> None:
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    given_batches = [batch_of(start, mask) for start, mask in zip(starts, batches, strict=True)]
    options = {"ordered": ordered, "capacity": capacity, "buffer": Buffer(max_bytes=max_bytes)}
    out = [*task_of(twice, **options).run(iter(given_batches))]
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
    left_out, is_called = called([rows], kept)
    assert isinstance(left_out, LeftOutRows) and left_out.rows.num_rows == 99
    assert left_out.rows.nbytes < 1000 and set(kept) <= set(left_out.rows.schema.names)
    assert is_called.schema.names == ["n", "text"] and is_called.column("n").to_pylist() == [99]


class Writer:
    """Writes so many rows of each result, which is its number, and no others."""

    def __init__(self, counts: list[int]) -> None:
        self._of_each = counts
        self.counts: list[int] | None = None

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        self.counts = [self._of_each[result] for _, result in chunk]
        values = [number for (number, _), count in zip(chunk, self.counts, strict=True) for _ in range(count)]
        return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["n"])

    def nulls(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows


@pytest.mark.contract(convicts=["left_out_rows_count_as_results"])
def test_rows_that_are_left_out_are_counted_neither_in_nor_out() -> None:
    batches = [batch_of(0, [True, False, False]), batch_of(3, [False] * 3), batch_of(6, [False, True, True])]
    loop_thread = LoopThread("test")
    rows = ArrowInput(sliced(called(batches, ["n"])))
    stream = ResultStream([Stage(twice, Options())], rows, loop_thread=loop_thread)
    try:
        while stream.take() is not None:
            pass
        totals = stream.statistics()[None]
        assert totals is not None and (totals.rows_in, totals.results) == (3, 3)
    finally:
        stream.close()
        loop_thread.close(5.0)


@pytest.mark.contract(
    "Rows that are not called leave at their places among the results, however these are cut.",
    convicts=["left_out_rows_counted_from_the_first_batch"],
)
@given(
    batches=st.lists(st.lists(st.sampled_from([True, False, None]), max_size=6), max_size=5),
    chunks=st.lists(st.integers(1, 4), min_size=40, max_size=40),
    counts=st.lists(st.integers(0, 2), min_size=30, max_size=30),
)
def test_rows_that_are_left_out_stand_at_their_places_however_results_are_cut(
    batches: list[list[bool | None]], chunks: list[int], counts: list[int]
) -> None:
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    given_batches = [
        batch_of(start, mask).select(["n", "is called"]) for start, mask in zip(starts, batches, strict=True)
    ]
    elements: list[Any] = []
    for part in called(given_batches, ["n"]):
        if isinstance(part, LeftOutRows):
            elements.append((None, part))
        else:
            before = sum(type(result) is int for _, result in elements)
            elements += [(n, before + at) for at, n in enumerate(part.column("n").to_pylist())]
    numbers = [n for n, result in elements if type(result) is int]
    expected: list[int] = []
    for number, each in enumerate(flag for mask in batches for flag in mask):
        expected += [number] * (counts[numbers.index(number)] if each else 1)
    writer: Any = Writer(counts)
    interleaver = Interleaver(ordered=True)
    out: list[int] = []
    place = 0
    for size in chunks:
        out += interleaver.write(elements[place : place + size], writer).column(0).to_pylist()
        place += size
    out += interleaver.rest(writer).column(0).to_pylist()
    assert out == expected
