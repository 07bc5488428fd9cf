"""The plan of a stream, the committed state of one bucket of it, and the next one that follows. Any thread.

A micro-batch emits the *leaving* outputs of the state that the one before it has committed, and nothing else,
so that each of its executions emits the same. What has finished meanwhile it records in the state that it
writes itself: outputs that leave with the next micro-batch, and, where rows of a key keep their order,
outputs that are *blocked* by a row in front of them. A row that *waits* for its call stands there with its
columns.
"""

# A row is known by the time of the micro-batch that has read it, which is the same in every execution, the
# hash of its key, the digest of all its columns, and its number among rows that are equal. Rows that differ
# have digests that do: executions may see them in another order each, and a number among rows that only share
# a hash would be that of another row then. Neither tickets nor the numbers of micro-batches would do: a task
# of an action in a plain thread of `foreachBatch` does not know its micro-batch, and an execution cannot know
# the tickets that another one has given.
#
# A blob is an Arrow IPC stream of one row, whose waiting rows and outputs are such streams in turn: the state
# store keeps it as it is, an output leaves in the form that it has there, and a bucket without pending rows
# has none. A ListState of rows is 30 times slower to write, and pickle would run code of a checkpoint.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox.kernel import PillarboxError
from pillarbox.spark.border import Border
from pillarbox.spark.records import concat_rows, from_ipc, to_ipc
from pillarbox.spark.stream.bad_state import BadRow
from pillarbox.spark.stream.row_digests import Digests

if TYPE_CHECKING:
    from pyspark.sql import types as T

    from pillarbox.spark.dead_letters import DeadLetter
    from pillarbox.spark.operator_plan import OperatorPlan

VERSION = 2
"""Of the blob."""

HASHED_VERSION = 1
"""Of blobs whose rows are known by a hash of 64 bits, where a digest stands now. They are read."""

MAX_OUTPUT_BYTES = 8 * 2**20
"""Bytes of a blob of outputs, about: each becomes an object of Spark's Java process."""

IDENTITY, BATCH, SEQUENCE, KEY = (
    "__pillarbox_identity",
    "__pillarbox_batch",
    "__pillarbox_sequence",
    "__pillarbox_key",
)
OWN_COLUMNS = (IDENTITY, BATCH, SEQUENCE)
"""Columns beside those of a row that waits. (key, sequence) stand beside those of a blocked output."""

_VERSION = b"pillarbox.stream.version"
_OUTPUT = b"pillarbox.stream.output"

_BLOB = pa.schema(
    {
        "next_sequence": pa.int64(),
        "waiting": pa.large_binary(),
        "blocked": pa.large_binary(),
        "leaving": pa.list_(pa.large_binary()),
        "dead_letters": pa.list_(pa.large_binary()),
    }
)

_IDENTITY = np.dtype([("time", ">i8"), ("key", ">i8"), ("row", ">u8", 2), ("equal", ">i4")])
IDENTITY_BYTES = _IDENTITY.itemsize
_NO_DIGEST = bytes(8)
"""The second half of a digest where a row is known by a hash; one digest in 2^64 has it too."""
_SECOND_HALF = slice(24, 32)

_REMEDY = "let the query run to its end with the columns of before (trigger availableNow), then change them"

Ints: TypeAlias = npt.NDArray[np.int64]

Columns: TypeAlias = Sequence[tuple[str, pa.DataType | None]]
"""Names of the input's columns, and their types where these are known."""


@dataclass(frozen=True)
class StreamPlan:
    """The arguments of `async_stream` that a task needs.

    name: tells this stream apart. operator: as `ordered` is kept here, it gives results as they come.
    schema: the columns of results. kept: input columns in front of them. columns: those of the input. output:
    what leaves, in words. max_wait: seconds. required: columns of the input that are NOT NULL. leaves: the
    fields of what leaves, a null type where Arrow has none that is known. bad_state: where rows of the
    committed state are put aside that nothing can go on from; None to end the query with them.
    """

    name: str
    operator: OperatorPlan
    schema: T.StructType
    kept: tuple[str, ...]
    columns: Columns
    output: str
    ordered: bool
    max_wait: float
    required: tuple[str, ...] = ()
    leaves: tuple[pa.Field, ...] = ()
    bad_state: DeadLetter | None = None


class StreamStateError(PillarboxError):
    """Error of a stream whose state cannot be read. `reason` says why.

        >>> from pillarbox.spark.stream.bucket_state import StreamStateError
        >>> print(StreamStateError("it has version 9"))
        the state of async_stream in the checkpoint cannot be read: it has version 9

    It ends the query; the checkpoint is unchanged.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the state of async_stream in the checkpoint cannot be read: {self.reason}"


class Finished(NamedTuple):
    """The calls of rows that wait, as far as they have ended at one moment."""

    places: Ints
    """Places, among the rows that were asked for, of those that have finished, in the order of `outputs`."""
    outputs: pa.RecordBatch | None
    """None where none has finished."""
    counts: Ints | None
    """Outputs of each of `places`; None for one each."""
    dead_letters: pa.RecordBatch | None = None
    """The dead letters of those of `places` that have failed."""

    def beside(self, rows: pa.RecordBatch, kept: Sequence[str]) -> Finished:
        """The same, with columns of the rows that were asked for in front of the outputs."""
        if self.outputs is None or not kept:
            return self
        places = self.places if self.counts is None else np.repeat(self.places, self.counts)
        columns = rows.select(kept).take(pa.array(places)).columns
        names = [*kept, *self.outputs.schema.names]
        return self._replace(outputs=pa.RecordBatch.from_arrays([*columns, *self.outputs.columns], names))


@dataclass(frozen=True)
class BucketState:
    """The state that a bucket leaves for the next micro-batch.

    next_sequence: the number of the next row that comes.
    waiting: rows without a result, in the order in which they came, None for none. blocked: outputs that wait
    for rows in front of them. leaving, dead_letters: outputs and dead letters that leave next, as Arrow IPC.
    """

    next_sequence: int = 0
    waiting: pa.RecordBatch | None = None
    blocked: pa.RecordBatch | None = None
    leaving: Sequence[bytes] = field(default=())
    dead_letters: Sequence[bytes] = field(default=())

    @property
    def is_empty(self) -> bool:
        """True if nothing of the bucket is pending."""
        return self.waiting is None and self.blocked is None and not self.leaving and not self.dead_letters

    def with_rows(
        self, rows: pa.RecordBatch | None, time: int, keys: Ints, digests: Digests, *, batch: int = -1
    ) -> pa.RecordBatch | None:
        """The rows that wait and those that have come, with their identities; None for none at all.

        rows: those that have come, in their order, as the waiting ones are without columns of their own.
        time: of the micro-batch that reads them, in ms. keys: hashes of each row's key. digests: of the whole
        of each row. batch: the number of the micro-batch, -1 where the task does not know it.
        """
        if rows is None or not rows.num_rows:
            return self.waiting
        count = rows.num_rows
        sequences = np.arange(self.next_sequence, self.next_sequence + count, dtype=np.int64)
        come = with_columns(
            rows,
            {
                IDENTITY: identities(time, keys, digests),
                BATCH: pa.array(np.full(count, batch, np.int64)),
                SEQUENCE: pa.array(sequences),
            },
        )
        return come if self.waiting is None else concat_rows([self.waiting, come])

    def after(
        self,
        rows: pa.RecordBatch | None,
        finished: Finished | None,
        *,
        ordered: bool,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> BucketState:
        """The state that an execution writes: of `rows`, those that have finished leave next or are blocked.

        rows: as `with_rows` gives them. finished: about these rows; None where nothing waits. ordered: rows
        of a key leave in the order in which they came. max_output_bytes: of a blob of outputs, about.
        """
        # Numbers never fall back: rows that come would leave in front of outputs that are blocked.
        following = self.next_sequence
        if rows is None or finished is None:
            return BucketState(following)
        identity = rows.column(IDENTITY)
        keys = keys_of(identity)
        sequences = rows.column(SEQUENCE).to_numpy()
        following = max(following, int(sequences[-1]) + 1)
        is_waiting = np.ones(rows.num_rows, bool)
        is_waiting[finished.places] = False
        leaving, blocked = finished.outputs, None
        # Blocked ones leave too where the order counts no more.
        if ordered or self.blocked is not None:
            candidates = [] if self.blocked is None else [self.blocked]
            if leaving is not None:
                places = finished.places
                if finished.counts is not None:
                    places = np.repeat(places, finished.counts)
                own = {KEY: pa.array(keys[places]), SEQUENCE: pa.array(sequences[places])}
                candidates.append(with_columns(leaving, own))
            if candidates:
                in_front = is_waiting if ordered else np.zeros_like(is_waiting)
                leaving, blocked = _parted(concat_rows(candidates), keys[in_front], sequences[in_front])
        waiting = rows.filter(pa.array(is_waiting)) if is_waiting.any() else None
        blobs, dead_letters = (_blobs(batch, max_output_bytes) for batch in (leaving, finished.dead_letters))
        return BucketState(following, waiting, blocked, blobs, dead_letters)


def identities(time: int, keys: Ints, digests: Digests) -> pa.Array:
    """The identities, each of `IDENTITY_BYTES` bytes, of the rows that a micro-batch has read."""
    count = len(keys)
    # Equal rows stand next to each other then, in the order in which they came.
    order = np.lexsort((np.arange(count), digests[:, 1], digests[:, 0], keys))
    is_first = np.ones(count, bool)
    by_key, by_digest = keys[order], digests[order]
    is_first[1:] = (by_key[1:] != by_key[:-1]) | (by_digest[1:] != by_digest[:-1]).any(axis=1)
    places = np.arange(count)
    made = np.empty(count, _IDENTITY)
    made["time"], made["key"], made["row"] = time, keys, digests
    made["equal"][order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return _identity_column(made.tobytes(), count)


def _identity_column(whole: bytes, count: int) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(IDENTITY_BYTES), count, [None, pa.py_buffer(whole)])


def _from_hashes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a state of `HASHED_VERSION`, with identities of this version."""
    at = rows.schema.get_field_index(IDENTITY)
    given = rows.column(at).to_pylist()
    start = _SECOND_HALF.start
    whole = b"".join(identity[:start] + _NO_DIGEST + identity[start:] for identity in given)
    if len(whole) != len(given) * IDENTITY_BYTES:
        raise ValueError("identities of another length")
    # Not `set_column`, which batches of the oldest pyarrow do not have.
    columns = rows.columns
    columns[at] = _identity_column(whole, len(given))
    fields = [each if each.name != IDENTITY else pa.field(IDENTITY, columns[at].type) for each in rows.schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))


def ledger_key(identity: bytes, batch: int) -> bytes:
    """The key of a row in a ledger: a new checkpoint has other times, and can have the same micro-batches.

    batch: the number of the micro-batch, which not every task knows; -1 where it does not count.
    """
    if identity[_SECOND_HALF] == _NO_DIGEST:
        # What the version before has kept of it is found.
        identity = identity[: _SECOND_HALF.start] + identity[_SECOND_HALF.stop :]
    return identity if batch < 0 else batch.to_bytes(8, "big") + b"batch" + identity[8:]


def keys_of(identity: pa.Array) -> Ints:
    """The hashes of the keys of rows with these identities."""
    whole = np.frombuffer(identity.buffers()[1], _IDENTITY)
    return whole["key"][identity.offset : identity.offset + len(identity)].astype(np.int64)


def encode(state: BucketState, output: str) -> bytes | None:
    """The blob of a state, None for an empty one. output: the columns that leave, in words."""
    if state.is_empty:
        return None
    row = {
        "next_sequence": state.next_sequence,
        "waiting": None if state.waiting is None else to_ipc(state.waiting),
        "blocked": None if state.blocked is None else to_ipc(state.blocked),
        "leaving": state.leaving,
        "dead_letters": state.dead_letters,
    }
    metadata = {_VERSION: str(VERSION).encode(), _OUTPUT: output.encode()}
    return to_ipc(pa.RecordBatch.from_pylist([row], _BLOB.with_metadata(metadata)))


def decode(
    blob: bytes | None,
    columns: Columns,
    output: str,
    required: Collection[str] = (),
    leaves: Sequence[pa.Field] = (),
    results: Sequence[str] = (),
) -> tuple[BucketState, list[BadRow]]:
    """The state that `encode` has made a blob of, an empty one of None; and what nothing can go on from.

    columns: those of the input now: one that the state does not have is null, one that the input does not
    have any more is left out. output: the columns that leave now, in words. required: columns that are NOT
    NULL. leaves: the fields that leave now, `results` the names of those that the function gives; where there
    are none, nothing of outputs is looked at.

    Bad are rows with a null where there may be none now, with text that is not UTF-8, or with a value that a
    column cannot hold, and bytes that cannot be decoded: the state is without them. Raises StreamStateError
    for a state of another version, and where the columns themselves are others.
    """
    if blob is None:
        return BucketState(), []
    bad: list[BadRow] = []
    try:
        with pa.ipc.open_stream(blob) as reader:
            metadata = reader.schema.metadata or {}
            version = int(metadata.get(_VERSION, b"0"))
            if version not in (HASHED_VERSION, VERSION):
                raise StreamStateError(
                    f"it has version {version}, and this Pillarbox knows {HASHED_VERSION} and {VERSION}: let "
                    "the query run to its end with the Pillarbox that has written it (trigger availableNow), "
                    "or begin a new checkpoint"
                )
            batch = reader.read_next_batch()
        (found,) = batch.to_pylist()
        waiting, blocked, leaving, letters = [
            found[name] for name in ("waiting", "blocked", "leaving", "dead_letters")
        ]
    except _DAMAGED as error:
        return BucketState(), [_damaged("state", blob, error)]
    # Outputs leave in the form that they have in the state, so nothing could cast them on their way.
    before = metadata.get(_OUTPUT, b"").decode()
    if before != output and (leaving or blocked is not None):
        raise StreamStateError(
            f"it has outputs with the columns {before}, and what leaves now has {output}: {_REMEDY}"
        )
    border = Border(leaves, results)
    rows = None
    if waiting is not None:
        rows = _decoded("waiting", waiting, bad)
        if rows is not None and version == HASHED_VERSION:
            try:
                rows = _from_hashes(rows)
            except (ValueError, TypeError) as error:
                bad.append(_damaged("waiting", waiting, error))
                rows = None
    state = BucketState(
        found["next_sequence"],
        None if rows is None else _with_required(rows, columns, required, bad),
        None if blocked is None else _sound("blocked", _decoded("blocked", blocked, bad), border, bad),
        _sound_blobs("leaving", leaving, border, bad),
        _sound_blobs("dead_letters", letters, None, bad),
    )
    return state, bad


_DAMAGED = (pa.ArrowException, OSError, StopIteration, LookupError, ValueError, TypeError)
"""Errors of the decoding of bytes that are not a state."""


def _damaged(part: str, raw: bytes, error: Exception) -> BadRow:
    return BadRow(part, f"it is damaged ({type(error).__name__}: {error})", raw, None)


def _decoded(part: str, blob: bytes, bad: list[BadRow]) -> pa.RecordBatch | None:
    """The batch in a blob; None, and one more bad row, where it cannot be decoded."""
    try:
        return next(from_ipc(blob))
    except _DAMAGED as error:
        bad.append(_damaged(part, blob, error))
        return None


def _sound_blobs(
    part: str, blobs: Sequence[bytes], border: Border | None, bad: list[BadRow]
) -> Sequence[bytes]:
    """The blobs without bad rows: the same ones where there are none."""
    left = []
    for blob in blobs:
        batch = _decoded(part, blob, bad)
        if batch is None:
            continue
        sound = _sound(part, batch, border or Border(batch.schema, ()), bad)
        if sound is batch:
            left.append(blob)
        elif sound is not None:
            left.append(to_ipc(sound))
    return left


def _sound(
    part: str, batch: pa.RecordBatch | None, border: Border, bad: list[BadRow]
) -> pa.RecordBatch | None:
    """The batch without the rows that may not leave; None for none of them."""
    return None if batch is None else _without(part, batch, batch, border.misfits(batch.columns), bad)


def _without(
    part: str, before: pa.RecordBatch, rows: pa.RecordBatch, wrong: Mapping[int, str], bad: list[BadRow]
) -> pa.RecordBatch | None:
    """`rows`, which were `before`, without those at the places of `wrong`; None for no rows."""
    # spec: StreamState!Sound
    if not wrong:
        return rows
    names = [name for name in before.schema.names if name not in (*OWN_COLUMNS, KEY)]
    for place, reason in wrong.items():
        one = before.take(pa.array([place]))
        bad.append(BadRow(part, reason, to_ipc(one), one.select(names)))
    left = rows.take(pa.array([place for place in range(rows.num_rows) if place not in wrong], pa.int64()))
    return left if left.num_rows else None


def conform(rows: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """`rows` with these columns, and with those of the state.

    Raises StreamStateError for a column that cannot be cast.
    """
    arrays, fields = [], []
    for name, kind in columns:
        index = rows.schema.get_field_index(name)
        if index < 0:
            arrays.append(pa.nulls(rows.num_rows, kind))
            fields.append(pa.field(name, arrays[-1].type))
            continue
        array, given = rows.column(index), rows.schema.field(index)
        if kind is not None and array.type != kind:
            try:
                array = array.cast(kind)
            except pa.ArrowException as error:
                raise StreamStateError(
                    f"its column {name!r} is {given.type}, and the input has {kind} now ({error}): {_REMEDY}"
                ) from error
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=given.metadata))
    own = [name for name in OWN_COLUMNS if name in rows.schema.names]
    arrays += [rows.column(rows.schema.get_field_index(name)) for name in own]
    fields += [rows.schema.field(name) for name in own]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _with_required(
    before: pa.RecordBatch, columns: Columns, required: Collection[str], bad: list[BadRow]
) -> pa.RecordBatch | None:
    """The rows of `before` that can go on with these columns; None for none of them.

    Raises StreamStateError where no row could: for a column that is not there, or of a type of its own.
    """
    remedy = f"{_REMEDY}, or make it a column that may be null"
    for name in required:
        if name not in before.schema.names:
            raise StreamStateError(
                f"the column {name!r} of the input is NOT NULL, and rows that wait for their calls do not "
                f"have it: {remedy}"
            )
    wrong: dict[int, str] = {}
    try:
        rows = conform(before, columns)
    except StreamStateError:
        # Without a row it is the types that do not fit.
        conform(before.slice(0, 0), columns)
        for place in range(before.num_rows):
            try:
                conform(before.slice(place, 1), columns)
            except StreamStateError as error:
                wrong[place] = error.reason
        sound = _without("waiting", before, before, wrong, bad)
        if sound is None:
            return None
        before, rows, wrong = sound, conform(sound, columns), {}
    for name in required:
        if rows.column(name).null_count:
            for place in np.flatnonzero(rows.column(name).is_null().to_numpy(zero_copy_only=False)).tolist():
                wrong[place] = (
                    f"the column {name!r} of the input is NOT NULL, and rows that wait for their calls have "
                    f"null: {remedy}"
                )
    fields = [pa.field(name, rows.column(name).type if kind is None else kind) for name, kind in columns]
    nested = Border(fields, ()).misfits([rows.column(field.name) for field in fields])
    return _without("waiting", before, rows, {**nested, **wrong}, bad)


def _parted(
    outputs: pa.RecordBatch, waiting_keys: Ints, waiting_sequences: Ints
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Outputs that leave, in order, and those with a row of their key in front of them that waits."""
    keys, sequences = outputs.column(KEY).to_numpy(), outputs.column(SEQUENCE).to_numpy()
    # A row can have several outputs, whose order stays.
    order = np.argsort(sequences, kind="stable")
    is_blocked = np.zeros(len(keys), bool)
    if len(waiting_keys):
        # Rows that wait are in the order in which they came, so the first of a key is in front of the others.
        unique, first = np.unique(waiting_keys, return_index=True)
        at = np.minimum(np.searchsorted(unique, keys), len(unique) - 1)
        is_blocked = (unique[at] == keys) & (sequences > waiting_sequences[first][at])
    own = outputs.select([name for name in outputs.schema.names if name not in (KEY, SEQUENCE)])
    leaving = own.take(pa.array(order[~is_blocked[order]]))
    staying = order[is_blocked[order]]
    return leaving, outputs.take(pa.array(staying)) if len(staying) else None


def _blobs(batch: pa.RecordBatch | None, max_bytes: int) -> list[bytes]:
    if batch is None:
        return []
    rows = max(1, batch.num_rows * max_bytes // max(1, batch.nbytes))
    return [to_ipc(batch.slice(start, rows)) for start in range(0, batch.num_rows, rows)]


def with_columns(batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """The batch with more columns behind its own."""
    fields = [*batch.schema, *(pa.field(name, array.type) for name, array in columns.items())]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns.values()], schema=pa.schema(fields))
