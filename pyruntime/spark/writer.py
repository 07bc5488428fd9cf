"""Output batches of chunks of results: kept columns as Arrow, results, errors. For the task's thread.

Confined to one task. `RowWriter` is what `async_map` uses, `ChainWriter` where it calls several functions.
`SkippedRows` has the rows that are not called, as `where` does not hold for them.
"""

# Kept columns never become Python objects: they are taken from the slices of the input by the places of their
# rows. In order, these follow one another, and a slice of a slice costs nothing; as calls finish, the rows of
# each slice are collected first, since one `take` for each run of rows would cost more than the rows.

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import Failed
from pillarbox.aio.options import Options
from pillarbox.aio.task_run import Chunk
from pillarbox.spark.dead_letters import DeadLetterWriter
from pillarbox.spark.error_column import ERROR, ERROR_ARROW, error_array
from pillarbox.spark.records import Columns, take_rows
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.schema import arrow_field

Part: TypeAlias = tuple[pa.RecordBatch, Sequence[int], Sequence[Any]]
"""Results of one input slice: the slice, the rows' places in it, their results."""


class RowWriter:
    """Writes the results of `async_map`.

    kept: input columns that stand before the results. dead_letters: where failed rows are put aside, or None.
    `encoder` converts the results that it takes. `counts` are the rows of each result that was written last;
    None for one each.
    """

    _is_chain = False

    def __init__(
        self,
        kept: list[str],
        schema: T.StructType,
        zone: datetime.tzinfo | None,
        options: Options,
        dead_letters: DeadLetterWriter | None,
    ) -> None:
        self._kept = kept
        self._is_ordered = options.ordered
        self._says_errors = options.errors.mode == "column"
        self.counts: list[int] | None = None
        self._dead_letters = dead_letters
        # The row of the input that a call belongs to.
        self._row_of: Callable[[Call], Any] = attrgetter("row")
        self.encoder = RowEncoder(schema, zone, drop=options.errors.mode == "drop")
        self._types = [arrow_field(field).type for field in schema.fields]
        self._names = [*kept, *schema.names, *([ERROR] if self._says_errors else [])]

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        """The output batch of a chunk; it may be empty."""
        calls, results = zip(*chunk, strict=True)
        if self._dead_letters is None and not self._kept:
            return self._batch([], results)
        parts = list(self._parts(calls, results))
        if self._dead_letters is not None:
            for batch, indices, some in parts:
                bad = [place for place, result in enumerate(some) if type(result) is Failed]
                if bad:
                    rows = batch.take(pa.array([indices[place] for place in bad], pa.int64()))
                    self._dead_letters.add(rows, [some[place] for place in bad])
        if not self._is_ordered and len(parts) > 1:
            # Rows of one slice go together, which costs nothing in order, as there is none among them.
            results = tuple(result for _, _, some in parts for result in some)
        return self._batch(parts, results)

    def nulls(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The output for input rows that were not called: what is kept of them, and nulls."""
        count = rows.num_rows
        arrays = [*rows.select(self._kept).columns] if self._kept else []
        arrays += [pa.nulls(count, kind) for kind in self._types]
        if self._says_errors:
            arrays.append(pa.nulls(count, ERROR_ARROW))
        return pa.RecordBatch.from_arrays(arrays, self._names)

    def _parts(self, calls: Sequence[Call], results: Sequence[Any]) -> Iterator[Part]:
        if not self._is_ordered:
            yield from self._grouped(calls, results)
            return
        # In order, the rows of a chunk follow one another in their slices, and the slices too.
        place = 0
        while place < len(calls):
            row = calls[place].row
            batch = row._columns.batch
            count = min(batch.num_rows - row._index, len(calls) - place)
            end = place + count
            yield batch, range(row._index, row._index + count), results[place:end]
            place = end

    def _grouped(self, calls: Sequence[Call], results: Sequence[Any]) -> Iterator[Part]:
        """Results by their slices, whatever the order in which they come."""
        groups: dict[int, tuple[Columns, list[int], list[Any]]] = {}
        before = None
        for row, result in zip(map(self._row_of, calls), results, strict=True):
            columns = row._columns
            if columns is not before:
                before = columns
                _, indices, some = groups.setdefault(id(columns), (columns, [], []))
            indices.append(row._index)
            some.append(result)
        for columns, indices, some in groups.values():
            yield columns.batch, indices, some

    def _batch(self, parts: list[Part], results: Sequence[Any]) -> pa.RecordBatch:
        arrays, counts = self.encoder.encode(results)
        self.counts = counts
        if self._says_errors:
            if counts is not None:
                results = _repeated(results, counts)
            arrays.append(error_array(results, of_chain=self._is_chain))
        if not self._kept:
            return pa.RecordBatch.from_arrays(arrays, self._names)
        taken = []
        offset = 0
        for batch, indices, _ in parts:
            if counts is not None:
                some = counts[offset : offset + len(indices)]
                offset += len(indices)
                indices = _repeated(indices, some)
            taken.append(take_rows(batch.select(self._kept), indices))
        kept = taken[0].columns
        if len(taken) > 1:
            kept = [pa.concat_arrays([part.column(name) for part in taken]) for name in self._kept]
        return pa.RecordBatch.from_arrays([*kept, *arrays], self._names)


class ChainWriter(RowWriter):
    """Writes the results of a chain of functions.

    form: that in which failed rows leave, as `errors` says. ordered: whether all functions give results in
    order. dead_letters: where rows that failed in one of the functions are put aside, by its name. drops: the
    functions whose failed rows leave nothing else. has_source: the rows of the input are those of the first
    function's calls, and the results those of the last one.
    """

    _is_chain = True

    def __init__(
        self,
        kept: list[str],
        schema: T.StructType,
        zone: datetime.tzinfo | None,
        *,
        form: Any,
        ordered: bool,
        dead_letters: Mapping[str, DeadLetterWriter],
        drops: frozenset[str],
        has_source: bool,
    ) -> None:
        super().__init__(kept, schema, zone, Options(errors=form, ordered=ordered), None)
        self._writers = dead_letters
        self._drops = drops
        if has_source:
            self._row_of = attrgetter("source")

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        """The output batch of a chunk; it may be empty."""
        failed = [pair for pair in chunk if type(pair[1]) is Failed]
        for uid, writer in self._writers.items():
            theirs = [pair for pair in failed if pair[1].info.uid == uid]
            if theirs:
                for batch, indices, results in self._grouped(*zip(*theirs, strict=True)):
                    writer.add(batch.take(pa.array(indices, pa.int64())), list(results))
        if failed and self._drops:
            chunk = [
                (call, result)
                for call, result in chunk
                if type(result) is not Failed or result.info.uid not in self._drops
            ]
        return super().write(chunk) if chunk else pa.RecordBatch.from_pylist([])

    def _parts(self, calls: Sequence[Call], results: Sequence[Any]) -> Iterator[Part]:
        if not self._is_ordered:
            yield from self._grouped(calls, results)
            return
        # A row of the input may have any number of results.
        rows = zip(map(self._row_of, calls), results, strict=True)
        for _, run in groupby(rows, key=lambda pair: id(pair[0]._columns)):
            some, theirs = zip(*run, strict=True)
            yield some[0]._columns.batch, [row._index for row in some], theirs


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


# -- rows that are not called ---------------------------------------------------------------------

WHERE = "__pillarbox_where"
"""The column of the condition, the last one of the input."""

Ints: TypeAlias = npt.NDArray[np.int64]


class SkippedRows:
    """The rows of a task that are not called. ordered: whether they stand at their places among others.

    The operator never sees them, so they count for no limit and no budget. `called` runs on the thread that
    reads the input, `beside` on the task's.
    """

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._called = 0
        # Grows on the thread that reads the input, shrinks on the task's. For each row, the number of rows
        # in front of it that are called.
        self._skipped: deque[tuple[Ints, pa.RecordBatch]] = deque()
        self._left = 0

    def called(self, batches: Iterator[tuple[pa.RecordBatch, pa.BooleanArray]]) -> Iterator[pa.RecordBatch]:
        """Of batches, each with its mask, the rows that are to be called."""
        for batch, mask in batches:
            is_called = mask.fill_null(False).to_numpy(zero_copy_only=False)
            in_front = self._called + np.cumsum(is_called, dtype=np.int64)[~is_called]
            if len(in_front):
                self._skipped.append((in_front, batch.filter(pa.array(~is_called))))
            if len(in_front) < batch.num_rows:
                self._called += batch.num_rows - len(in_front)
                yield batch.filter(pa.array(is_called))

    def beside(self, results: int | None) -> tuple[Ints, pa.RecordBatch | None]:
        """The rows that leave with the next results, and how many of these stand in front of each.

        results: their number; None for all rows that are left. None for no rows.
        """
        end = self._called if results is None or not self._ordered else self._left + results
        places, rows = [], []
        while self._skipped:
            in_front, batch = self._skipped[0]
            count = int(np.searchsorted(in_front, end, side="right"))
            if count:
                places.append(in_front[:count] - self._left)
                rows.append(batch.slice(0, count))
            if count < len(in_front):
                self._skipped[0] = in_front[count:], batch.slice(count)
                break
            self._skipped.popleft()
        self._left += results or 0
        if not rows:
            return np.zeros(0, np.int64), None
        found = np.concatenate(places)
        # Without an order they all leave behind the results that are there.
        return found.clip(0, results), pa.Table.from_batches(rows).combine_chunks().to_batches()[0]


def put_nulls(array: pa.Array, places: Ints) -> pa.Array:
    """The array with a null in front of each of these places."""
    if not len(places):
        return array
    indices = np.insert(np.arange(len(array)), places, -1)
    return array.take(pa.array(indices, mask=indices < 0))


def put_back(
    written: pa.RecordBatch, skipped: pa.RecordBatch, places: Ints, counts: list[int] | None
) -> pa.RecordBatch:
    """The rows of both, of the same columns, as `SkippedRows.beside` orders them.

    counts: the rows of each result; None for one each.
    """
    if counts is not None:
        places = np.cumsum([0, *counts])[places]
    behind = np.arange(written.num_rows, written.num_rows + skipped.num_rows)
    indices = np.insert(np.arange(written.num_rows), places, behind)
    arrays = [pa.concat_arrays(each) for each in zip(written.columns, skipped.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, written.schema.names).take(pa.array(indices))
