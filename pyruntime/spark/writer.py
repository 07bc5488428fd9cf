"""Makes output batches of chunks of results: kept columns as Arrow, results, errors. For the task's thread.

Confined to one task. `RowWriter` is what `async_map` uses, `ChainWriter` where it calls several functions.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.errors import Failed
from pillarbox.aio.options import Options
from pillarbox.aio.scheduler import Call
from pillarbox.aio.task_io import Chunk
from pillarbox.spark.error_column import ERROR, ERROR_ARROW, error_array
from pillarbox.spark.letters import LetterWriter
from pillarbox.spark.record import Columns
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.types import arrow_field

Part: TypeAlias = tuple[pa.RecordBatch, Sequence[int], Sequence[Any]]
"""Results of one input slice: the slice, the rows' places in it, their results."""


class RowWriter:
    """Writes the results of `async_map`.

    kept: input columns that stand before the results. letters: where failed rows are put aside, or None.
    runs: results come in the order in which they are to be written, but not one row of the input after the
    other; otherwise that is so where `options` say that they are ordered, and else they may change places.
    `encoder` converts the results that it takes.
    """

    _is_chain = False

    def __init__(
        self,
        kept: list[str],
        schema: T.StructType,
        zone: datetime.tzinfo | None,
        options: Options,
        letters: LetterWriter | None,
        *,
        runs: bool = False,
    ) -> None:
        self._kept = kept
        self._parts = _parts_in_runs if runs else _parts_in_order if options.ordered else _parts
        self._says_errors = options.errors.mode == "column"
        self.counts: list[int] | None = None
        """The rows of each result that was written last; None for one each."""
        self._letters = letters
        self.encoder = RowEncoder(schema, zone, drop=options.errors.mode == "drop")
        self._types = [arrow_field(field).type for field in schema.fields]
        self._names = [*kept, *schema.names, *([ERROR] if self._says_errors else [])]

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        """The output batch of a chunk; it may be empty."""
        calls, results = zip(*chunk, strict=True)
        if self._letters is None and not self._kept:
            return self._batch([], results)
        parts = list(self._parts(calls, results))
        if self._letters is not None:
            for batch, indices, some in parts:
                bad = [place for place, result in enumerate(some) if type(result) is Failed]
                if bad:
                    rows = batch.take(pa.array([indices[place] for place in bad], pa.int64()))
                    self._letters.add(rows, [some[place] for place in bad])
        if self._parts is _parts and len(parts) > 1:
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
            taken.append(_take(batch.select(self._kept), indices))
        kept = taken[0].columns
        if len(taken) > 1:
            kept = [pa.concat_arrays([part.column(name) for part in taken]) for name in self._kept]
        return pa.RecordBatch.from_arrays([*kept, *arrays], self._names)


class _Source(NamedTuple):
    """Stands for the call of the first function, whose row a result of the last one belongs to."""

    row: Any


class ChainWriter(RowWriter):
    """Writes the results of a chain of functions.

    form: that in which failed rows leave, as `errors` says. ordered: whether all functions give results in
    order. letters: where rows that failed in one of the functions are put aside, by its name. drops: the
    functions whose failed rows leave nothing else.
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
        letters: Mapping[str, LetterWriter],
        drops: frozenset[str],
        has_source: bool,
    ) -> None:
        super().__init__(kept, schema, zone, Options(errors=form, ordered=ordered), None, runs=ordered)
        self._letters_of = letters
        self._drops = drops
        self._has_source = has_source

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        """The output batch of a chunk; it may be empty."""
        sourced: Any = chunk
        if self._has_source:
            sourced = [(_Source(call.source), result) for call, result in chunk]
        if any(type(result) is Failed for _, result in sourced):
            self._put_aside(sourced)
            if self._drops:
                sourced = [
                    pair
                    for pair in sourced
                    if type(pair[1]) is not Failed or pair[1].info.uid not in self._drops
                ]
        if not sourced:
            return pa.RecordBatch.from_pylist([])
        return super().write(sourced)

    def _put_aside(self, chunk: Any) -> None:
        failed: dict[str, list[tuple[Any, Failed]]] = {}
        for call, result in chunk:
            if type(result) is Failed:
                failed.setdefault(str(result.info.uid), []).append((call, result))
        for uid, some in failed.items():
            letters = self._letters_of.get(uid)
            if letters is not None:
                for batch, indices, results in _parts(*zip(*some, strict=True)):
                    letters.add(batch.take(pa.array(indices, pa.int64())), list(results))


def _parts_in_order(calls: Sequence[Call], results: Sequence[Any]) -> Iterator[Part]:
    # In order, the rows of a chunk follow one another in their slices, and the slices too.
    place = 0
    while place < len(calls):
        row = calls[place].row
        batch = row._columns.batch
        count = min(batch.num_rows - row._index, len(calls) - place)
        end = place + count
        yield batch, range(row._index, row._index + count), results[place:end]
        place = end


def _parts_in_runs(calls: Sequence[Call], results: Sequence[Any]) -> Iterator[Part]:
    for _, run in groupby(zip(calls, results, strict=True), key=lambda pair: id(pair[0].row._columns)):
        some, theirs = zip(*run, strict=True)
        yield some[0].row._columns.batch, [call.row._index for call in some], theirs


def _parts(calls: Sequence[Call], results: Sequence[Any]) -> Iterator[Part]:
    groups: dict[int, tuple[Columns, list[int], list[Any]]] = {}
    before = None
    for call, result in zip(calls, results, strict=True):
        row = call.row
        columns = row._columns
        if columns is not before:
            before = columns
            _, indices, some = groups.setdefault(id(columns), (columns, [], []))
        indices.append(row._index)
        some.append(result)
    for columns, indices, some in groups.values():
        yield columns.batch, indices, some


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _take(batch: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
    count = len(indices)
    if count and indices[-1] - indices[0] == count - 1:
        run = range(indices[0], indices[0] + count)
        if indices == run or (isinstance(indices, list) and indices == list(run)):
            return batch.slice(indices[0], count)
    return batch.take(pa.array(indices, pa.int64()))
