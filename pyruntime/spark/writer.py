"""Output batches of chunks of results: kept columns as Arrow, results, errors. For the task's thread.

Confined to one task. `called` and `Interleaver` have the rows that are not called, as `where` does not hold.
"""

# Kept columns never become Python objects: they are taken from the slices of the input by the places of their
# rows. In order, these follow one another, and a slice of a slice costs nothing; as calls finish, the rows of
# each slice are collected first, since one `take` for each run of rows would cost more than the rows.

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.calls import Call, Chunk
from pillarbox.aio.errors import CallFailed, Failed, describe, shorten
from pillarbox.kernel.alike import apart
from pillarbox.redaction import DEFAULT, Redact
from pillarbox.spark.border import Border
from pillarbox.spark.error_column import ERROR, ERROR_ARROW, ERROR_ARROW_OF_CHAIN, PutsAside, error_array
from pillarbox.spark.records import array_of_numpy, concat_rows, flags_of, take_rows
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.schema import arrow_field
from pillarbox.task.protocols import LeftOut

Part: TypeAlias = tuple[pa.RecordBatch, Sequence[int], Sequence[Any]]
"""Results of one input slice: the slice, the rows' places in it, their results."""


class RowWriter:
    """Writes the results of `async_map`: of one function, or of the last one of a chain.

    kept: input columns that stand before the results. errors: the form in which failed rows leave. ordered:
    whether results come in the order of their rows. dead_letters: where rows that failed in a function are
    put aside, by its name. drops: functions whose failed rows leave nothing else, whatever `errors` says.
    uid: the function of a chain whose results these are; failed rows say in which one they did. is_behind:
    the rows of the input are those of the first function's calls, and the results those of another one.
    one_row: as for a `RowEncoder`. redact: for the text of a row in an error.
    `encoder` converts the results that it takes. `counts` are the rows of each result that was written last;
    None for one each. `misfits` are failures that stood for results of the last chunk, by their places in it:
    these may not go to Spark's Java process.
    """

    _encoder_type = RowEncoder

    def __init__(
        self,
        kept: Sequence[str],
        schema: T.StructType,
        zone: datetime.tzinfo | None,
        *,
        errors: str = "fail",
        ordered: bool = True,
        dead_letters: Mapping[str | None, PutsAside] | None = None,
        drops: Collection[str | None] = (),
        uid: str | None = None,
        is_behind: bool = False,
        one_row: bool = False,
        redact: Redact = DEFAULT,
    ) -> None:
        self._kept = list(kept)
        self._ordered = ordered
        self._error_type = None
        if errors == "column":
            self._error_type = ERROR_ARROW if uid is None else ERROR_ARROW_OF_CHAIN
        self.misfits: dict[int, Failed] = {}
        self.counts: list[int] | None = None
        self._errors, self._uid, self._redact = errors, uid, redact
        self._dead_letters = dead_letters or {}
        self._drops = drops
        self._is_behind = is_behind
        self.encoder = self._encoder_type(schema, zone, drop=errors == "drop", one_row=one_row)
        fields = [arrow_field(field) for field in schema.fields]
        self._types = [field.type for field in fields]
        if errors in ("null", "column"):
            # A failed row has no result.
            fields = [field.with_nullable(True) for field in fields]
        self.border = Border(fields)
        self._names = [*kept, *schema.names, *([] if self._error_type is None else [ERROR])]

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        """The output batch of a chunk; it may be empty.

        Raises CallFailed where `errors` is "fail" and a result may not go to Spark's Java process.
        """
        if self._dead_letters or self._drops:
            chunk = self._put_aside(chunk)
        self.misfits = {}
        try:
            return self._written(chunk)
        except _MisfitError:
            return self._written(self._without_misfits(chunk), is_checked=True)

    def _written(self, chunk: Chunk, *, is_checked: bool = False) -> pa.RecordBatch:
        if not chunk:
            return pa.RecordBatch.from_pylist([])
        calls, results = apart(chunk)
        parts: list[Part] = []
        if self._kept:
            parts = self._in_order(calls, results) if self._ordered else self._by_slice(calls, results)
            if not self._ordered and len(parts) > 1:
                # Rows of one slice go together, which costs nothing, as there is no order among them.
                results = [result for _, _, some in parts for result in some]
        return self._batch(parts, results, is_checked)

    def _without_misfits(self, chunk: Chunk) -> Chunk:
        """The chunk, in which results that may not leave are errors of their rows."""
        left: Chunk = []
        for place, (call, result) in enumerate(chunk):
            wrong = {} if type(result) is Failed else self.border.misfits(self.encoder.encode([result])[0])
            if not wrong:
                left.append((call, result))
                continue
            row = None if self._redact.rows else shorten(call.row, redact=self._redact)
            error = CallFailed(call.attempt, self.encoder.misfit(result, next(iter(wrong.values()))), row)
            if self._errors == "fail":
                raise error.with_trace()
            failed = self.misfits[place] = Failed(describe(error, 0.0)._replace(uid=self._uid))
            left += self._put_aside([(call, failed)])
        return left

    def nulls(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The output for input rows that were not called: what is kept of them, and nulls."""
        kinds = [*self._types, *([] if self._error_type is None else [self._error_type])]
        kept = [rows.column(name) for name in self._kept]
        return pa.RecordBatch.from_arrays(
            [*kept, *(pa.nulls(rows.num_rows, kind) for kind in kinds)], self._names
        )

    def _put_aside(self, chunk: Chunk) -> Chunk:
        """Write the dead letters of failed rows; returns the results that leave besides."""
        failed = [pair for pair in chunk if type(pair[1]) is Failed]
        for uid, writer in self._dead_letters.items():
            theirs = [pair for pair in failed if pair[1].info.uid == uid]
            if theirs:
                for batch, indices, results in self._by_slice(*zip(*theirs, strict=True)):
                    writer.add(take_rows(batch, indices), results)
        if not failed or not self._drops:
            return chunk
        return [pair for pair in chunk if type(pair[1]) is not Failed or pair[1].info.uid not in self._drops]

    def _in_order(self, calls: Sequence[Call], results: Sequence[Any]) -> list[Part]:
        if self._is_behind:
            # A row of the input may have any number of results, which follow one another.
            return self._by_slice(calls, results)
        # The rows of a chunk follow one another in their slices, and so do the slices.
        parts: list[Part] = []
        place = 0
        while place < len(calls):
            row = calls[place].row
            batch = row.__columns__.batch
            end = min(place + batch.num_rows - row.__place__, len(calls))
            parts.append((batch, range(row.__place__, row.__place__ + end - place), results[place:end]))
            place = end
        return parts

    def _by_slice(self, calls: Sequence[Call], results: Sequence[Any]) -> list[Part]:
        """Results by their slices, whatever the order in which they come."""
        groups: dict[int, tuple[pa.RecordBatch, list[int], list[Any]]] = {}
        before = None
        for call, result in zip(calls, results, strict=True):
            row = call.source if self._is_behind else call.row
            columns = row.__columns__
            if columns is not before:
                before = columns
                _, indices, some = groups.setdefault(id(columns), (columns.batch, [], []))
            indices.append(row.__place__)
            some.append(result)
        return list(groups.values())

    def _batch(self, parts: list[Part], results: Sequence[Any], is_checked: bool) -> pa.RecordBatch:
        arrays, counts = self.encoder.encode(results)
        if not is_checked and self.border.misfit(arrays) is not None:
            raise _MisfitError
        self.counts = counts
        if self._error_type is not None:
            if counts is not None:
                results = _repeated(results, counts)
            arrays.append(error_array(results, self._error_type))
        taken = []
        offset = 0
        for batch, indices, _ in parts:
            if counts is not None:
                some = counts[offset : offset + len(indices)]
                offset += len(indices)
                indices = _repeated(indices, some)
            taken.append(self._kept_rows(batch, indices))
        kept = concat_rows(taken).columns if taken else []
        return self._made([*kept, *arrays])

    def _made(self, columns: list[Any]) -> Any:
        """The output batch of these columns."""
        return pa.RecordBatch.from_arrays(columns, self._names)

    def _kept_rows(self, batch: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
        """The columns of the rows at these places of a slice that leave beside their results."""
        return take_rows(batch.select(self._kept), indices)


class _MisfitError(Exception):
    """A result of the chunk may not leave."""


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


# -- rows that are not called ---------------------------------------------------------------------

WHERE = "__pillarbox_where"
"""The column of the condition, the last one of the input."""

Ints: TypeAlias = npt.NDArray[np.int64]


class LeftOutRows(LeftOut):
    """The rows of an input batch that are not called. Read on one thread, written on the task's.

    in_front: for each row, the number of called rows of the batch in front of it. rows: what leaves of them.
    """

    __slots__ = ("in_front", "rows")

    def __init__(self, in_front: Ints, rows: pa.RecordBatch) -> None:
        self.in_front, self.rows = in_front, rows

    @property
    def nbytes(self) -> int:
        """The bytes that they hold."""
        held: int = self.in_front.nbytes + self.rows.nbytes
        return held


def called(batches: Iterable[pa.RecordBatch], kept: Sequence[str]) -> Iterator[pa.RecordBatch | LeftOutRows]:
    """Yield the rows of batches that are to be called, without the last column, which says which these are.

    In front of those of a batch come its rows that are left out, of which the columns `kept` are held.
    """
    for batch in batches:
        *columns, mask = batch.columns
        is_called = flags_of(mask)
        in_front = np.cumsum(is_called, dtype=np.int64)[~is_called]
        if len(in_front):
            # Where nothing of them leaves, the condition says how many they are.
            names = [*kept] or batch.schema.names[-1:]
            yield LeftOutRows(in_front, batch.select(names).filter(array_of_numpy(~is_called)))
        if len(in_front) < batch.num_rows:
            rows = pa.RecordBatch.from_arrays(columns, batch.schema.names[:-1])
            yield rows.filter(array_of_numpy(is_called))


class Interleaver:
    """Puts rows that are left out back among the results, at their places. For the task's thread.

    ordered: whether results come in the order of their rows; otherwise rows that are left out leave as soon
    as they come.
    """

    # At most one batch of them is held: when the next one comes, all called rows of the one before have left.

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._held: LeftOutRows | None = None
        # Of its rows, those that have left; results that have left since it came.
        self._left = self._results = 0
        self._places: list[Ints] = []
        self._rows: list[pa.RecordBatch] = []

    def write(self, chunk: Chunk, writer: RowWriter) -> pa.RecordBatch:
        """The output batch of a chunk; it may be empty."""
        results: Chunk = []
        start = 0
        for at in [at for at, (_, result) in enumerate(chunk) if isinstance(result, LeftOut)]:
            results += self._passed(chunk[start:at], len(results))
            self._take(None, len(results))
            self._held, self._left, self._results = chunk[at][1], 0, 0
            start = at + 1
        results += self._passed(chunk[start:], len(results))
        return self._batch(results, writer)

    def rest(self, writer: RowWriter) -> pa.RecordBatch:
        """The output batch of what is left when all results have been written; it may be empty."""
        self._take(None, 0)
        return self._batch([], writer)

    def _passed(self, results: Chunk, place: int) -> Chunk:
        """Have the rows leave that these results let leave. place: that of the first in the output."""
        if self._held is not None:
            before = self._results
            self._results += len(results)
            self._take(self._results if self._ordered else None, place - before, least=place)
        return results

    def _take(self, results: int | None, offset: int, least: int = 0) -> None:
        """Have rows leave that have at most so many results in front; None for all."""
        held = self._held
        if held is None:
            return
        end = len(held.in_front)
        if results is not None:
            end = int(np.searchsorted(held.in_front, results, side="right"))
        if end > self._left:
            some = held.in_front[self._left : end]
            places = some + offset if results is not None else np.full(len(some), max(offset, least))
            self._places.append(places.clip(least))
            self._rows.append(held.rows.slice(self._left, end - self._left))
            self._left = end
        if end == len(held.in_front):
            self._held = None

    def _batch(self, results: Chunk, writer: RowWriter) -> pa.RecordBatch:
        written = writer.write(results)
        if not self._rows:
            return written
        nulls = writer.nulls(concat_rows(self._rows))
        places = np.concatenate(self._places)
        self._places, self._rows = [], []
        return put_back(written, nulls, places, writer.counts) if written.num_rows else nulls


def put_back(
    written: pa.RecordBatch, skipped: pa.RecordBatch, places: Ints, counts: list[int] | None
) -> pa.RecordBatch:
    """The rows of both, of the same columns: of those that are left out each in front of one of the results.

    places: the results in front of each. counts: the rows of each result; None for one each.
    """
    if counts is not None:
        places = np.cumsum([0, *counts])[places.clip(max=len(counts))]
    # Results that were put aside have no rows here.
    places = places.clip(max=written.num_rows)
    behind = np.arange(written.num_rows, written.num_rows + skipped.num_rows)
    indices = np.insert(np.arange(written.num_rows), places, behind)
    return concat_rows([written, skipped]).take(array_of_numpy(indices))
