"""Snapshots of tasks as bytes. For any thread.

A snapshot is references and numbers, taken on the mailbox thread; bytes are made of it elsewhere, while the
task goes on. Rows and results are values as a ledger keeps them (`pillarbox.ledger.values`), so that reading
one runs no code; numbers stand in columns. What rows are is the business of a `PlainRows`: on Spark, of one
that makes Arrow batches of them.
"""

# Alternatives, and why they are worse.
#
# To pickle the snapshot: reading it runs whatever stands in it, and the folder may be in a shared place; and
# a class that has moved since makes it unreadable. So the code that reads it names each class that may be in
# it, and what only pickle has a form for is refused.
#
# To write the operator's state as Arrow: this package must run without pyarrow, and rows without Spark have
# no schema. On Spark rows are Arrow batches all the same, by way of `PlainRows`.
#
# To make the bytes on the mailbox thread: no call begins meanwhile, and a row is emitted late. What is taken
# there are references and numbers; nobody changes a row or a result afterwards.

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pillarbox.aio.calls import Call, CallState
from pillarbox.aio.chained import ChainedRow, ResultRecord, as_fields, as_record, chained_call, chained_row
from pillarbox.aio.error_policy import FailureCounts
from pillarbox.aio.errors import ErrorInfo, Failed, error_of, said
from pillarbox.aio.scheduler import SchedulerState
from pillarbox.aio.task_io import OutputState
from pillarbox.kernel import PillarboxError
from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.values import Encoded, decode, encode
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, OperatorSnapshot, TaskSnapshot
from pillarbox.task.protocols import Idleness, RowBatch, Watermark


class FinishedRow(NamedTuple):
    """A row that has its result, and is not called again.

    is_durable: whether the ledger has the result; without a ledger nothing waits for one. For one that it has
    not: attempts, those begun; latency, the seconds of the last one.
    """

    row: Any
    result: Any
    cost: float
    is_durable: bool
    attempts: int = 0
    latency: float = 0.0


Entry = CallState | FinishedRow | list[Watermark | Idleness]
"""A list of watermarks and statuses stands for those between rows."""

# In the column of results: no result yet, and an entry that is not in the columns. None is a result.
_UNFINISHED: Any = object()
_APART: Any = object()


class StateEntries:
    """Entries of a state, in the order of admission. Filled by the mailbox thread; then for any thread.

    Most are rows of which nothing has failed, and rows with their results. They stand in columns: so many
    objects that the garbage collector follows would make it run within each checkpoint, and look at all that
    the process has every so often. An entry is made when it is asked for.
    """

    __slots__ = ("_apart", "_costs", "_marks", "_results", "_rows", "_spent")

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._results: list[Any] = []
        self._spent: list[float] = []
        self._costs: list[float] = []
        self._apart: dict[int, Entry] = {}
        self._marks = 0

    @property
    def rows(self) -> int:
        """Entries that are rows."""
        return len(self._rows) - self._marks

    def add_call(self, row: Any, spent: float, cost: float) -> None:
        """Add a row of which no attempt has failed. spent: seconds of its first one."""
        self._rows.append(row)
        self._results.append(_UNFINISHED)
        self._spent.append(spent)
        self._costs.append(cost)

    def add_finished(self, row: Any, result: Any, cost: float) -> None:
        """Add a row whose result nothing is to be done with but to emit it."""
        self._rows.append(row)
        self._results.append(result)
        self._spent.append(0.0)
        self._costs.append(cost)

    def add(self, entry: Entry) -> None:
        """Add any entry."""
        self._apart[len(self._rows)] = entry
        self._marks += type(entry) is list
        self.add_finished(None, _APART, 0.0)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Entry]:
        columns = zip(self._rows, self._results, self._spent, self._costs, strict=True)
        for place, (row, result, spent, cost) in enumerate(columns):
            if result is _UNFINISHED:
                yield CallState(row, 0, spent, None, None, cost)
            elif result is _APART:
                yield self._apart[place]
            else:
                yield FinishedRow(row, result, cost, True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateEntries | tuple) and [*self] == [*other]


class AsyncWaitState(NamedTuple):
    """An async operator in a snapshot.

    entries: in the order of admission. finished: rows that had left, for what counts them.
    """

    ordered: bool
    entries: StateEntries | tuple[Entry, ...]
    scheduler: SchedulerState
    finished: int


# -- bytes ----

VERSION = 3
"""The format of the bytes; another one is refused."""

_MAGIC = b"pillarbox task\n\0"
_HEAD = struct.Struct("<16sII")
"""The magic, the version, and the CRC-32 of what follows."""
_COUNTS = struct.Struct("<QQ")
"""The number of parts behind the head, and of the lists of floats among them, behind the JSON."""

Convert = Callable[[Any], Any]


class SnapshotError(PillarboxError):
    """The snapshot of a task cannot be written or read; the text says why."""


class PlainRows:
    """Makes values of the rows of a task: here, those that they are."""

    def encode(self, rows: Sequence[Any]) -> Any:
        """Rows as values of a snapshot."""
        return list(rows)

    def decode(self, given: Any) -> list[Any]:
        """The rows that were encoded."""
        rows: list[Any] = given
        return rows


class SnapshotCodec:
    """Makes bytes of the snapshots of a task, and snapshots of bytes. Any thread.

    Rows and results are values that a ledger can keep. rows: makes values of rows. prepare: makes of a result
    of the last operator a value to keep, and convert a result of that; None where results are such values.

    Errors of attempts are kept as their class and text: a row that is tried again has one of such a class.
    """

    def __init__(
        self,
        *,
        rows: PlainRows | None = None,
        prepare: Convert | None = None,
        convert: Convert | None = None,
    ) -> None:
        self._rows = PlainRows() if rows is None else rows
        self._prepare = prepare
        self._convert = convert

    def encode(self, snapshot: TaskSnapshot) -> bytes:
        """The bytes of a snapshot. Raises SnapshotError for rows, results or states that have no form."""
        try:
            return _pack(encode(_Writer(self._rows, self._prepare, careful=False).task(snapshot)))
        except LedgerValueError:
            # Something in it has no form. To look which takes each value on its own, and most snapshots have
            # nothing of the kind.
            return _pack(encode(_Writer(self._rows, self._prepare, careful=True).task(snapshot)))

    def decode(self, data: bytes) -> TaskSnapshot:
        """The snapshot of bytes. Raises SnapshotError for another format, a later version, and damage."""
        return _Reader(self._rows, self._convert).task(_unpack(data))


class _Writer:
    """Makes a value that `pillarbox.ledger.values` encodes of one snapshot.

    careful: look at each row, result and state whether it has a form, so that an error names its type.
    """

    def __init__(self, rows: PlainRows, prepare: Convert | None, careful: bool) -> None:
        self._row_codec = rows
        self._prepare = prepare
        self._careful = careful

    def task(self, snapshot: TaskSnapshot) -> dict[str, Any]:
        barrier = snapshot.barrier
        last = list(snapshot.operators)[-1:]
        return {
            "barrier": [barrier.id, barrier.timestamp, barrier.options.aligned],
            "input": self._checked("state of the input", [snapshot.input]),
            "operators": [
                [
                    uid,
                    self._state(each.state, uid in last),
                    [self._element(element) for element in each.pending],
                    each.finished,
                ]
                for uid, each in snapshot.operators.items()
            ],
            "output": self._output(snapshot.output),
            "time_ended": snapshot.time_ended,
        }

    def _output(self, state: Any) -> Any:
        if not isinstance(state, OutputState):
            return {"other": self._checked("state of the output", state)}
        return {"taken": state.taken, "ended": state.has_ended, "rows": self._pairs(state.rows, True)}

    def _state(self, state: Any, is_last: bool) -> Any:
        if not isinstance(state, AsyncWaitState):
            return {"other": self._checked("state of an operator", state)}
        entries = [*state.entries]
        calls = [each for each in entries if isinstance(each, CallState)]
        finished = [each for each in entries if isinstance(each, FinishedRow)]
        marks = [each for each in entries if isinstance(each, list)]
        failures, *scheduler = state.scheduler
        return {
            "ordered": state.ordered,
            "finished": state.finished,
            "kinds": "".join([_KINDS[type(each)] for each in entries]),
            # In the order of admission: whoever writes results in order counts on that.
            "rows": self._rows([each.row for each in entries if not isinstance(each, list)]),
            "calls": _columns([(*each[1:4], _error(each.error), *each[5:]) for each in calls]),
            # The next function of a chain gets the same row of a dict as of what the dict was made of.
            "results": self._results(
                [each.result if is_last else as_fields(each.result) for each in finished], is_last
            ),
            "results_of": _columns([each[2:] for each in finished]),
            "marks": [[self._element(each) for each in mark] for mark in marks],
            "failures": [failures.errors, dict(failures.by_type), failures.last and list(failures.last)],
            "scheduler": scheduler,
        }

    def _element(self, element: Any) -> list[Any]:
        if type(element) is Watermark:
            return ["watermark", element.timestamp]
        if type(element) is Idleness:
            return ["idleness", element.idle]
        if type(element) is not RowBatch:
            return ["record", self._checked("record", element)]
        left = element.rows[element.position :]
        about = [element.row_bytes, element.held_bytes]
        if all(type(each) is tuple and len(each) == 2 and isinstance(each[0], Call) for each in left):
            return ["results", *about, self._pairs(left, False)]
        return ["rows", *about, self._rows(left)]

    def _pairs(self, pairs: Iterable[tuple[Call, Any]], is_last: bool) -> Any:
        calls, results = [call for call, _ in pairs], [result for _, result in pairs]
        return [
            # Of a function behind another one with what it comes from.
            self._rows([chained_row(call) if hasattr(call, "source") else call.row for call in calls]),
            [call.held for call in calls],
            self._results(results, is_last),
        ]

    def _rows(self, rows: Sequence[Any]) -> Any:
        if rows and type(rows[0]) is ChainedRow:
            return self._chained(rows)
        given = self._row_codec.encode(rows)
        # In a list of its own, which tells it from rows of a chain.
        return [self._several("row", given) if isinstance(given, list) else given]

    def _chained(self, rows: Sequence[ChainedRow]) -> dict[str, Any]:
        """Rows that another function gave: the names of their columns stand beside the values."""
        given = [
            each.row
            if type(each.row) is Failed
            else [list(each.row._fields), list(each.row)]
            if isinstance(each.row, ResultRecord)
            else [each.row]
            for each in rows
        ]
        return {
            "rows": self._results(given, False),
            "sources": self._rows([each.source for each in rows]),
            "ordinals": [list(each.ordinal) for each in rows],
            "identities": [each.identity for each in rows],
        }

    def _results(self, results: Sequence[Any], is_last: bool) -> Any:
        prepare = self._prepare if is_last else None
        failed = [
            [place, result.not_called, *result.info]
            for place, result in enumerate(results)
            if type(result) is Failed
        ]
        kept = [
            None if type(each) is Failed else each if prepare is None else prepare(each) for each in results
        ]
        return [self._several("result", kept), failed]

    def _several(self, what: str, values: list[Any]) -> list[Any]:
        return [self._checked(what, value) for value in values] if self._careful else values

    def _checked(self, what: str, value: Any) -> Any:
        """The value. Raises SnapshotError for one that has no form."""
        if self._careful:
            try:
                encode(value)
            except LedgerValueError as error:
                kind = type(value)
                raise SnapshotError(
                    f"a {what} of type {kind.__module__}.{kind.__qualname__} cannot be kept in a snapshot, "
                    "which keeps what a ledger does: let it be of such types"
                ) from error
        return value


_KINDS: dict[type, str] = {CallState: "c", FinishedRow: "f", list: "m"}


def _columns(entries: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The columns of entries of one length."""
    # Most columns of most states have one value: nothing has failed. So they cost next to nothing.
    columns = [list(column) for column in zip(*entries, strict=True)]
    return [column[:1] if column.count(column[0]) == len(column) else column for column in columns]


def _entries(columns: list[list[Any]], count: int) -> Iterator[tuple[Any, ...]]:
    """The inverse of `_columns`."""
    return zip(*[column if len(column) == count else column * count for column in columns], strict=True)


def _error(error: BaseException | None) -> Any:
    return None if error is None else [type(error).__name__, said(error)]


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self, rows: PlainRows, convert: Convert | None) -> None:
        self._row_codec = rows
        self._convert = convert

    def task(self, given: Any) -> TaskSnapshot:
        id_, timestamp, *options = given["barrier"]
        operators = given["operators"]
        return TaskSnapshot(
            CheckpointBarrier(id_, timestamp, CheckpointOptions(*options)),
            given["input"][0],
            {
                uid: OperatorSnapshot(
                    self._state(state, place == len(operators) - 1),
                    tuple([self._element(element) for element in pending]),
                    finished,
                )
                for place, (uid, state, pending, finished) in enumerate(operators)
            },
            self._output(given["output"]),
            given["time_ended"],
        )

    def _output(self, given: Any) -> Any:
        if "other" in given:
            return given["other"]
        return OutputState(given["taken"], tuple(self._pairs(given["rows"], True)), given["ended"])

    def _state(self, given: Any, is_last: bool) -> Any:
        if "other" in given:
            return given["other"]
        kinds: str = given["kinds"]
        rows = iter(self._rows(given["rows"]))
        calls = _entries(given["calls"], kinds.count("c"))
        results = iter(self._results(given["results"], is_last))
        results_of = _entries(given["results_of"], kinds.count("f"))
        marks = iter(given["marks"])
        entries: list[Entry] = []
        for kind in kinds:
            if kind == "m":
                entries.append([self._element(each) for each in next(marks)])
            elif kind == "f":
                entries.append(FinishedRow(next(rows), next(results), *next(results_of)))
            else:
                attempts, spent, pause, error, *more = next(calls)
                failed = None if error is None else error_of(*error)
                entries.append(CallState(next(rows), attempts, spent, pause, failed, *more))
        errors, by_type, last = given["failures"]
        failures = FailureCounts(errors, by_type, None if last is None else ErrorInfo(*last))
        scheduler = SchedulerState(failures, *given["scheduler"])
        return AsyncWaitState(given["ordered"], tuple(entries), scheduler, given["finished"])

    def _element(self, given: list[Any]) -> Any:
        kind, *parts = given
        if kind == "watermark":
            return Watermark(parts[0])
        if kind == "idleness":
            return Idleness(parts[0])
        if kind == "record":
            return parts[0]
        row_bytes, held_bytes, rows = parts
        read = self._pairs(rows, False) if kind == "results" else self._rows(rows)
        return RowBatch(read, row_bytes, held_bytes=held_bytes)

    def _pairs(self, given: Any, is_last: bool) -> list[tuple[Call, Any]]:
        rows, held, results = given
        calls = map(_call_of, self._rows(rows), held)
        return list(zip(calls, self._results(results, is_last), strict=True))

    def _rows(self, given: Any) -> list[Any]:
        if isinstance(given, dict):
            return self._chained(given)
        return self._row_codec.decode(given[0])

    def _chained(self, given: dict[str, Any]) -> list[Any]:
        rows = [
            each
            if type(each) is Failed
            else as_record(dict(zip(*each, strict=True)))
            if len(each) == 2
            else each[0]
            for each in self._results(given["rows"], False)
        ]
        ordinals = map(tuple, given["ordinals"])
        return [*map(ChainedRow, rows, self._rows(given["sources"]), ordinals, given["identities"])]

    def _results(self, given: Any, is_last: bool) -> list[Any]:
        results, failed = given
        convert = self._convert if is_last else None
        places = {place: Failed(ErrorInfo(*info), not_called) for place, not_called, *info in failed}
        return [
            places[place] if place in places else each if convert is None else convert(each)
            for place, each in enumerate(results)
        ]


def _call_of(row: Any, held: int) -> Call:
    return chained_call(Call, row, held) if type(row) is ChainedRow else Call(row, held)


def _pack(encoded: Encoded) -> bytes:
    """The JSON of an encoded value, and its lists of floats and its bytes behind it."""
    lists = [array("d", part).tobytes() for part in encoded.floats]
    parts = [encoded.json.encode(), *lists, *encoded.blobs]
    sizes = array("Q", [len(parts), len(lists), *map(len, parts)]).tobytes()
    body = b"".join([sizes, *parts])
    return _HEAD.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


def _unpack(data: bytes) -> Any:
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        raise SnapshotError("it is not the snapshot of a task")
    _, version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot has version {version}, and this Pillarbox knows version {VERSION} only: use that "
            "of the Pillarbox which has written it"
        )
    body = memoryview(data)[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise SnapshotError("the snapshot is damaged: its checksum is another")
    count, lists = _COUNTS.unpack_from(body)
    sizes = array("Q", body[_COUNTS.size : _COUNTS.size + 8 * count].tobytes())
    ends = [*accumulate(sizes, initial=_COUNTS.size + 8 * count)]
    text, *parts = [bytes(body[start:end]) for start, end in pairwise(ends)]
    floats = [array("d", part).tolist() for part in parts[:lists]]
    try:
        return decode(text.decode(), floats, parts[lists:])
    except LedgerValueError as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error
