"""A segment is an Arrow IPC stream in which a short message before each batch says how to trust it.

A segment is what any reader of Arrow streams opens: a schema, then batches. Each group commit is a *frame*
of two messages: a batch without rows, whose metadata holds one line of text, the *line*, and the batch with
the records. The line has the identity of the segment, the frame's own place, lengths and checksums, all of
fixed width:

    v2 id=0123456789abcdef own=0123456789abcdef pos=00000000000000b8 head=00000250 data=0000000000000400
    rows=00000002 keys=00000200 ksum=89abcdef dsum=89abcdef sum=89abcdef

(in one line). `own` stands for the run, operator, configuration and micro-batch that the header names: a
segment is believed where these are asked for, and nowhere else, even if its header is damaged. `sum` is the
CRC-32 of the first message with the digits of `sum` as zeros, `dsum` that of the second one, `ksum` that of
the keys, which lie `keys` bytes into it, 16 bytes a row. So a scan of millions of records reads the heads and
the keys only. After damage a scan goes on with the next line that is right and
in its own place.

Idea: the sync markers of Hadoop's sequence files and Avro, the framed log records of LevelDB, whose place in
the file is checked as in ZFS. Pure functions: any thread.
"""

# docs/decisions/ledger-format.md compares SQLite, Parquet and lines of JSON with this, in figures. What the
# code relies on:
#
# - Nothing that a file says is believed before a checksum over it is right: no length is allocated, no batch
#   is given to Arrow's reader, which is fast because it believes its input. A checksum can be forged with the
#   numbers, so a batch is validated in full besides.
# - The line has a fixed width, so that `sum` can be put in at its place after it was reckoned over the rest;
#   and the message around it is made by Arrow once, with a line of zeros, and copied for each frame.
# - A line says where it stands and in which segment. Else a ledger that somebody has kept as a value in this
#   one, or a block that a file system has put at another place, would be a frame like others.
# - CRC-32 and not a cryptographic hash: it is there against disks, and who can write into the folder can
#   write whole frames that are right.

from __future__ import annotations

import datetime
import functools
import math
import re
import secrets
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

from pillarbox.kernel.checksum import crc32
from pillarbox.ledger.errors import Damage, LedgerError, LedgerValueError
from pillarbox.ledger.keys import EXECUTION_BYTES, KEY_BYTES, config_hash
from pillarbox.ledger.values import decode, vector_form

VERSION = 2
MAGIC = b"pillarbox.frame"
LINE = re.compile(
    rb"v2 id=([0-9a-f]{16}) own=([0-9a-f]{16}) pos=([0-9a-f]{16}) "
    rb"head=([0-9a-f]{8}) data=([0-9a-f]{16}) rows=([0-9a-f]{8}) "
    rb"keys=([0-9a-f]{8}) ksum=([0-9a-f]{8}) dsum=([0-9a-f]{8}) sum=([0-9a-f]{8})"
)
ZERO_LINE = (
    f"v2 id={0:016x} own={0:016x} pos={0:016x} head={0:08x} data={0:016x} rows={0:08x} "
    f"keys={0:08x} ksum={0:08x} dsum={0:08x} sum={0:08x}"
).encode()
NAMES = ("run", "batch", "uid", "config")
"""The header of a segment."""
SCAN_CHUNK_BYTES = 4096
"""Bytes read at a time by a scan: a head, and the keys of a small batch."""
MAX_FRAME_ROWS = 2**21
"""Records of a frame: a commit has at most half as many, and a merge adds few to those of one."""
MAX_HEADER_BYTES = 2**20
"""Bytes of a header, which holds a few names of `MAX_NAME_CHARACTERS`."""
SEARCH_CHUNK_BYTES = 2**20
"""Bytes read at a time in search of a line after damage."""

Read = Callable[[int, int], bytes]
"""Offset and length to bytes; fewer at the end of the file."""


class ForeignSegmentError(LedgerError):
    """A segment stands in the folder of another run or operator; says whose it is."""


class Frame(NamedTuple):
    """The place of a group commit's records. Its keys were checked; records are when they are read."""

    segment: str
    offset: int
    """Of the message with the records."""
    length: int
    rows: int
    sum: int
    begin: int
    """Of the frame."""

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.length


@functools.cache
def schema() -> Any:
    """The Arrow schema of the records."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("key", pa.binary(KEY_BYTES), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("value", pa.string(), nullable=False),
            pa.field("floats", pa.list_(pa.list_(pa.float64())), nullable=False),
            pa.field("blobs", pa.list_(pa.binary()), nullable=False),
            pa.field("attempts", pa.int32(), nullable=False),
            pa.field("latency", pa.float64(), nullable=False),
            pa.field("cost", pa.float64(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("input", pa.binary(), nullable=False),
            pa.field("version", pa.string(), nullable=False),
            pa.field("execution", pa.binary(EXECUTION_BYTES), nullable=False),
        ]
    )


@functools.cache
def _types() -> list[Any]:
    return [field.type for field in schema()]


NOBODY = "0" * 16
"""The owner of a segment that belongs to no scope."""


def owner_of(about: Mapping[str, str]) -> str:
    """The mark in each line of the run, operator, configuration and micro-batch of a segment."""
    return config_hash(about)


def describe_owner(read: Read, size: int) -> str:
    """The run and operator that a segment's header names, in words."""
    said = _metadata(read, size)
    if said is None:
        return "somebody, its header is damaged"
    return ", ".join(f"{name}={said.get(name, '')!r}" for name in NAMES)


def _metadata(read: Read, size: int) -> dict[str, str] | None:
    """The texts of a segment's header; None if it is damaged."""
    import pyarrow as pa

    try:
        begin = read(0, _header_length(read(0, 8), size))
        said = pa.ipc.read_schema(pa.py_buffer(begin)).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    return {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, text in said.items()}


def is_of(read: Read, size: int, segment: str, about: Mapping[str, str]) -> bool:
    """Return True for a segment of this run, operator, configuration and micro-batch, be it damaged.

    By its first whole frame; without one, by its header. Raises OSError.
    """
    segment_id = segment.removesuffix(".arrow")
    try:
        found = scan(read, size, segment, segment_id, owner=owner_of(about))
        if any(not isinstance(item, Damage) for item in found):
            return True
    except ForeignSegmentError:
        return False
    said = _metadata(read, size)
    if said is not None:
        return said.get("segment") == segment_id and {name: said.get(name) for name in NAMES} == dict(about)
    # Killed before its first commit was whole, a writer leaves a part of its header, or nothing.
    begin = header(segment_id, about)
    return begin.startswith(read(0, len(begin)))


def header(segment_id: str, about: Mapping[str, str]) -> bytes:
    """The beginning of a segment: the schema, with the version, the segment's id and what it is about."""
    metadata = {"pillarbox.ledger": str(VERSION), "segment": segment_id, **about}
    serialized: bytes = schema().with_metadata(metadata).serialize().to_pybytes()
    return serialized


@functools.cache
def _head() -> tuple[bytes, int]:
    """A message without rows, with a line of zeros in its metadata, and where in it the line begins."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema()) as stream:
        # The schema is written with the first batch.
        stream.write_batch(_empty())
        begin = sink.tell()
        stream.write_batch(_empty(), {MAGIC: ZERO_LINE})
        end = sink.tell()
    message = sink.getvalue().to_pybytes()[begin:end]
    if message.count(ZERO_LINE) != 1 or message.count(MAGIC) != 1 or len(message) > SCAN_CHUNK_BYTES // 2:
        raise LedgerError("this pyarrow writes the metadata of a batch in an unknown way")
    return message, message.index(ZERO_LINE)


def _empty() -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema()], schema=schema())


def keys_of(batch: Any) -> bytes:
    """The keys of a batch of records, 16 bytes each."""
    return _fixed(batch.column(0), KEY_BYTES)


def _fixed(column: Any, width: int) -> bytes:
    content: bytes = column.buffers()[1].to_pybytes()
    return content[column.offset * width :][: len(column) * width]


class Message(NamedTuple):
    """Arrow's message with the records of a frame, in parts that follow one another."""

    parts: tuple[bytes | memoryview, ...]
    rows: int
    keys: bytes
    """The keys of the records, 16 bytes each."""
    keys_at: int
    """The place of the keys in the message, in its first part."""


def message_of(batch: Any) -> Message:
    """The message of a batch of records."""
    # In memory of Arrow, which it has from the frames before: new pages cost more than all the rest.
    content = memoryview(batch.serialize()).cast("B")
    keys = keys_of(batch)
    # The first of its buffers that is not empty.
    at = 8 + struct.unpack_from("<i", content, 4)[0]
    if content[at : at + len(keys)] != keys:
        raise LedgerError("this pyarrow writes the keys of a batch in an unknown way")
    return Message((content,), batch.num_rows, keys, at)


def encode_frame(
    message: Message, segment_id: str, position: int, owner: str = NOBODY
) -> tuple[Frame, tuple[bytes | memoryview, ...]]:
    """The frame of a message, and its two messages in parts, to be written at `position` of the segment.

    owner: see `owner_of`.
    """
    head, place = _head()
    length = data_sum = 0
    for part in message.parts:
        data_sum = crc32(part, data_sum)
        length += len(part)
    line = (
        f"v2 id={segment_id} own={owner} pos={position:016x} head={len(head):08x} data={length:016x} "
        f"rows={message.rows:08x} keys={message.keys_at:08x} "
        f"ksum={crc32(message.keys):08x} dsum={data_sum:08x} sum="
    ).encode()
    before, after = head[:place] + line, head[place + len(ZERO_LINE) :]
    total = crc32(before + b"00000000" + after)
    offset = position + len(head)
    frame = Frame(f"{segment_id}.arrow", offset, length, message.rows, data_sum, position)
    return frame, (b"".join((before, f"{total:08x}".encode(), after)), *message.parts)


class _Line(NamedTuple):
    owner: int
    position: int
    head: int
    data: int
    rows: int
    keys: int
    keys_sum: int
    data_sum: int


def _trusted(chunk: bytes, begin: int, position: int, segment_id: str) -> _Line | None:
    """The line of the frame at `begin` of the chunk, which is at `position` of the file; None if wrong."""
    match = LINE.search(chunk, begin, begin + SCAN_CHUNK_BYTES // 2)
    if match is None or match[1] != segment_id.encode() or int(match[3], 16) != position:
        return None
    line = _Line(*(int(match[n], 16) for n in range(2, 10)))
    whole = chunk[begin : begin + line.head]
    at = match.start(10) - begin
    if line.head < at + 8:
        return None
    total = crc32(whole[:at] + b"00000000" + whole[at + 8 :])
    if len(whole) < line.head or total != int(match[10], 16):
        return None
    return line


def scan(
    read: Read, size: int, segment: str, segment_id: str, start: int = 0, owner: str = NOBODY
) -> Iterator[tuple[Frame, bytes] | Damage]:
    """The frames of a segment from byte `start` on, each with its keys, and what between them is damaged.

    Nothing here depends on what is damaged being readable: bytes that are not in a trusted frame are
    skipped. A frame that is not there to its end is damage with `is_tail`, unless another one follows. The
    header does not count as damage. Raises ForeignSegmentError for a segment of another owner.
    """
    owned = int(owner, 16)
    position = start or _header_length(read(0, 8), size)
    # A header whose length is wrong must not hide the first frame.
    searched = start
    while position < size:
        chunk = read(position, SCAN_CHUNK_BYTES)
        line = _trusted(chunk, 0, position, segment_id)
        if line is None:
            found = _next_line(read, size, searched, segment_id)
            end = size if found is None else found
            # Before the first frame the header may be what is damaged. A line that was being written at the
            # first look may be whole at the second: then there is no damage.
            if end > searched:
                yield Damage(segment, searched, end - searched, "no whole frame", found is None)
            position = searched = end
            continue
        if line.owner != owned:
            raise ForeignSegmentError(describe_owner(read, size))
        offset = position + line.head
        end = offset + line.data
        if end > size:
            follows = _next_line(read, size, position + line.head, segment_id)
            stop = size if follows is None else follows
            yield Damage(segment, position, stop - position, "a frame is cut off", follows is None)
            position = searched = stop
            continue
        # Before room is made for them: a number of rows may be anything.
        length = line.rows * KEY_BYTES
        if line.rows > MAX_FRAME_ROWS or line.keys + length > line.data:
            reason = f"it cannot hold the {line.rows:,} records that it says"
            yield Damage(segment, position, end - position, reason, False)
            position = searched = end
            continue
        keys = chunk[line.head + line.keys :][:length]
        if len(keys) < length:
            keys = read(offset + line.keys, length)
        if len(keys) < length or crc32(keys) != line.keys_sum:
            yield Damage(segment, position, end - position, "the checksum of the keys is wrong", False)
        else:
            yield Frame(segment, offset, line.data, line.rows, line.data_sum, position), keys
        position = searched = end


def _header_length(begin: bytes, size: int) -> int:
    """The end of the first message, as it says; 0 if that cannot be. Nothing relies on it."""
    mark, length = struct.unpack("<Ii", begin.ljust(8, b"\0")[:8])
    whole = mark == 0xFFFFFFFF and 0 < length <= min(size - 8, MAX_HEADER_BYTES)
    return 8 + length if whole else 0


def _next_line(read: Read, size: int, start: int, segment_id: str) -> int | None:
    """The place of the first frame at or after `start` that can be trusted."""
    position = start
    while position < size:
        chunk = read(position, SEARCH_CHUNK_BYTES)
        for match in LINE.finditer(chunk):
            if match[1] != segment_id.encode():
                continue
            begin = int(match[3], 16)
            if (
                begin < start
                or begin >= size
                or not begin <= position + match.start() < begin + SCAN_CHUNK_BYTES // 2
            ):
                continue
            if _trusted(read(begin, SCAN_CHUNK_BYTES), 0, begin, segment_id) is not None:
                return begin
        if position + len(chunk) >= size or not chunk:
            return None
        # A line may lie across two reads.
        position += max(1, len(chunk) - SCAN_CHUNK_BYTES)
    return None


def open_frame(frame: Frame, read: Read) -> Any | Damage:
    """The batch of records of a frame, or why it cannot be trusted."""
    import pyarrow as pa

    try:
        content = read(frame.offset, frame.length)
    except MemoryError:
        # A file may have holes, and say that it is larger than any memory.
        return _refused(frame, f"its {frame.length:,} bytes need more memory than there is")
    if len(content) < frame.length or crc32(content) != frame.sum:
        return _refused(frame, "the checksum of the records is wrong")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema())
        # A checksum can be forged with the numbers: no offset may lead out of a column.
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        return _refused(frame, f"Arrow cannot read it: {error}")
    if batch.num_rows != frame.rows:
        return _refused(frame, "another number of records than said")
    if any(column.null_count for column in batch.columns):
        return _refused(frame, "a record is not whole")
    return batch


def _refused(frame: Frame, reason: str) -> Damage:
    return Damage(frame.segment, frame.begin, frame.end - frame.begin, reason, False)


VALUE = "value"
ERROR = "error"
_EMPTY = memoryview(b"")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Record(NamedTuple):
    """A finished call as it was found."""

    key: bytes
    value: Any
    """The result of the call; for a row that failed for good, what was kept about its error."""
    is_error: bool
    attempts: int
    latency: float
    """Seconds."""
    cost: float
    at: datetime.datetime
    """The time when it was kept, by the clock of the machine that did."""
    input: bytes = b""
    """The fingerprint of the row's input, as a `RowIdentity` makes it."""
    version: str = ""
    """That of the function, as JSON; empty where none was given."""
    execution: bytes = bytes(EXECUTION_BYTES)
    """The execution that called: one action of one run, with all its tasks and their retries."""


class Origin(NamedTuple):
    """The question that a record answers, where another was asked."""

    input: bytes
    version: str
    execution: bytes


Row = tuple[bytes, str, str, Sequence[Sequence[float]], Sequence[bytes], int, float, float, int, bytes]
"""A finished call on its way to a segment; a column of the schema each, but for what all of a commit share.

A plain tuple: one with names is made in five times the time.
"""


def size_of(entry: Row) -> int:
    """Bytes of what the call gave, about."""
    size = len(entry[2])
    if entry[3]:
        size += 8 * sum(map(len, entry[3]))
    return size + sum(map(len, entry[4])) if entry[4] else size


def _column(kind: object, length: int, *buffers: object, children: object = None) -> Any:
    import pyarrow as pa

    parts = [None, *[pa.py_buffer(part) for part in buffers]]
    return pa.Array.from_buffers(kind, length, parts, children=children)


def _bytes_column(kind: object, parts: Sequence[bytes]) -> Any:
    return _column(kind, len(parts), _offsets(parts), b"".join(parts))


@functools.lru_cache(maxsize=64)
def _repeated(place: int, part: bytes, count: int) -> Any:
    """The column at a place of the schema that has the same text in each row."""
    offsets = array("i", accumulate(repeat(len(part), count), initial=0))
    return _column(_types()[place], count, offsets, part * count)


def to_batch(entries: Sequence[Row], version: str = "", execution: bytes = bytes(EXECUTION_BYTES)) -> Any:
    """The Arrow batch of these entries, one at least, of one version and one execution.

    From buffers made here: Arrow's own way from Python's objects is slower, and has the first commit of a
    process wait for the import of pandas.
    """
    import pyarrow as pa

    keys, kinds, texts, floats, blobs, *numbers, inputs = zip(*entries, strict=True)
    count = len(entries)
    types = _types()

    lists = [part if isinstance(part, array) else array("d", part) for row in floats for part in row]
    flat = _column(pa.float64(), sum(map(len, lists)), b"".join(lists))
    inner = _column(types[3].value_type, len(lists), _offsets(lists), children=[flat])
    arrays = [
        _column(types[0], count, b"".join(keys)),
        _bytes_column(types[1], [kind.encode() for kind in kinds]),
        _bytes_column(types[2], [text.encode() for text in texts]),
        _column(types[3], count, _offsets(floats), children=[inner]),
        _column(
            types[4],
            count,
            _offsets(blobs),
            children=[_bytes_column(pa.binary(), [*chain.from_iterable(blobs)])],
        ),
    ]
    for code, values, kind in zip("iddq", numbers, types[5:9], strict=True):
        arrays.append(_column(kind, count, array(code, values)))
    arrays.append(_bytes_column(types[9], inputs))
    arrays.append(_repeated(10, version.encode(), count))
    arrays.append(_column(types[11], count, execution * count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _offsets(parts: Sequence[Sized]) -> array[int]:
    return array("i", accumulate(map(len, parts), initial=0))


# Why the message of a block is not written by Arrow: it copies the vectors into its message, and makes some
# thirty objects for the columns of a block, between which it lets go of the GIL, which the thread of the
# calls wants as well. All that differs between the messages of blocks of one form are the bytes of eight
# columns. So Arrow writes one message of each form, from which the rest of it is cut out, and a second one,
# which must be what is put together here: another version of Arrow could write in another way.

MAX_FORMS = 256
"""Forms of blocks that are held, of some 10 kB each: the last block of a task has fewer rows than others."""

MIN_FOUND_BYTES = 64
"""Bytes of vectors that are found again in a message: fewer random ones might be in it by chance."""


@dataclass(frozen=True)
class RowBlock:
    """Entries whose values are vectors of one form, one after another in memory.

    text: the JSON of each. content: their blobs, of one length. latency, at: of all of them.
    """

    keys: Sequence[bytes]
    inputs: Sequence[bytes]
    text: str
    content: memoryview
    attempts: Sequence[int]
    latency: float
    costs: Sequence[float]
    at: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return len(self.content) // len(self.keys)

    def parts(self, rows: int) -> Iterator[RowBlock]:
        """Blocks of at most so many of these entries, without a copy of their values."""
        if len(self) <= rows:
            yield self
            return
        width = self.width
        for start in range(0, len(self), rows):
            some = slice(start, start + rows)
            yield RowBlock(
                self.keys[some],
                self.inputs[some],
                self.text,
                self.content[start * width : (start + rows) * width],
                self.attempts[some],
                self.latency,
                self.costs[some],
                self.at,
            )

    def entries(self) -> list[Row]:
        """The entries, one by one."""
        width = self.width
        return [
            (
                *(key, VALUE, self.text, [], [bytes(self.content[place * width :][:width])], attempts),
                *(self.latency, cost, self.at, input),
            )
            for place, (key, input, attempts, cost) in enumerate(
                zip(self.keys, self.inputs, self.attempts, self.costs, strict=True)
            )
        ]

    def message(self, version: str, execution: bytes) -> Message:
        """The message of these entries, byte for byte what Arrow writes of `to_batch` of them.

        Raises LedgerError where this Arrow writes batches in an unknown way.
        """
        input_bytes = set(map(len, self.inputs))
        if len(input_bytes) > 1 or len(self.content) < MIN_FOUND_BYTES:
            return message_of(to_batch(self.entries(), version, execution))
        form = _Form(len(self), self.width, input_bytes.pop(), self.text, version)
        fixed, columns = _fixed_parts(form), _columns(self, execution)
        before = b"".join((fixed[0], columns[0], fixed[1]))
        after = b"".join(chain(*zip(fixed[2:], columns[2:], strict=False), fixed[-1:]))
        return Message((before, self.content, after), len(self), columns[0], len(fixed[0]))


class _Form(NamedTuple):
    """All that messages of blocks have in common where only their columns differ."""

    rows: int
    width: int
    input_bytes: int
    text: str
    version: str


def _columns(block: RowBlock, execution: bytes) -> list[Any]:
    """The bytes of the columns of a block that are not always the same, in the order of the schema."""
    rows = len(block)
    return [
        b"".join(block.keys),
        block.content,
        array("i", block.attempts).tobytes(),
        array("d", [block.latency]).tobytes() * rows,
        array("d", block.costs).tobytes(),
        array("q", [block.at]).tobytes() * rows,
        b"".join(block.inputs),
        execution * rows,
    ]


@functools.lru_cache(MAX_FORMS)
def _fixed_parts(form: _Form) -> tuple[bytes, ...]:
    """The bytes of a message of this form that are around its `_columns`."""
    columns, message = _sample(form)
    fixed, begin = [], 0
    for column in columns:
        at = message.find(column, begin)
        fixed.append(message[begin:at])
        begin = at + len(column)
    fixed.append(message[begin:])
    columns, message = _sample(form)
    if b"".join(chain(*zip(fixed, columns, strict=False), fixed[-1:])) != message:
        raise LedgerError("this pyarrow writes a batch in an unknown way")
    return tuple(fixed)


def _sample(form: _Form) -> tuple[list[Any], bytes]:
    """The columns of a block of this form, with random bytes for all that may differ, and its message."""
    rows, chance = form.rows, secrets.token_bytes
    block = RowBlock(
        [chance(KEY_BYTES) for _ in range(rows)],
        [chance(form.input_bytes) for _ in range(rows)],
        form.text,
        memoryview(chance(rows * form.width)),
        [secrets.randbits(31) for _ in range(rows)],
        float(secrets.randbits(52)),
        [float(secrets.randbits(52)) for _ in range(rows)],
        secrets.randbits(62),
    )
    execution = chance(EXECUTION_BYTES)
    message = message_of(to_batch(block.entries(), form.version, execution))
    return _columns(block, execution), bytes(message.parts[0])


def add_time(times: dict[bytes, tuple[float, float]], execution: bytes, time: tuple[float, float]) -> None:
    """Widen the time of an execution, seconds since 1970, so that it holds another."""
    begin, end = times.get(execution, time)
    times[execution] = min(begin, time[0]), max(end, time[1])


class Rows:
    """The records of a frame. batch: as `open_frame` has checked it."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.count: int = batch.num_rows
        self._keys, self._executions = keys_of(batch), _fixed(batch.column(11), EXECUTION_BYTES)
        self._floats, self._blobs = batch.column(3), batch.column(4)
        self._has_floats, self._has_blobs = len(self._floats.values) > 0, len(self._blobs.values) > 0
        # One at a time from their buffers: a value of Arrow's is an object, which costs as much as a record.
        self.attempts, self._latency, self.cost, self._at = (
            _numbers(batch.column(place), code) for place, code in enumerate("iddq", 5)
        )

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each: "value" or "error"."""
        kinds: list[str] = self.batch.column(1).to_pylist()
        return kinds

    @cached_property
    def _texts(self) -> list[str]:
        texts: list[str] = self.batch.column(2).to_pylist()
        return texts

    @cached_property
    def inputs(self) -> list[bytes]:
        """The fingerprints of the inputs that they answer."""
        inputs: list[bytes] = self.batch.column(9).to_pylist()
        return inputs

    @cached_property
    def versions(self) -> list[str]:
        """The versions of the function that gave them."""
        versions: list[str] = self.batch.column(10).to_pylist()
        return versions

    @cached_property
    def vectors(self) -> Any | None:
        """The values as a read-only matrix of NumPy, where all are vectors of one form; else None."""
        import numpy

        texts, blobs, count = self._texts, self._blobs, self.count
        form = vector_form(texts[0]) if count else None
        if form is None or texts.count(texts[0]) != count or self.kinds.count(VALUE) != count:
            return None
        parts = blobs.flatten()
        if (numpy.diff(blobs.offsets.to_numpy()) != 1).any() or len(parts) != count or parts.null_count:
            return None
        dtype, length = form
        _, offsets, content = parts.buffers()
        places = numpy.frombuffer(offsets, "i4", count + 1, parts.offset * 4)
        if (numpy.diff(places) != length * dtype.itemsize).any():
            return None
        return numpy.frombuffer(content, dtype, count * length, places[0]).reshape(count, length)

    def execution(self, row: int) -> bytes:
        """The execution that kept it."""
        return self._executions[row * EXECUTION_BYTES : (row + 1) * EXECUTION_BYTES]

    def origin(self, row: int) -> Origin:
        """The question that it answers."""
        return Origin(self.inputs[row], self.versions[row], self.execution(row))

    def key(self, row: int) -> bytes:
        """The key of a record."""
        return self._keys[row * KEY_BYTES : (row + 1) * KEY_BYTES]

    def keys(self, begin: int, end: int) -> bytes:
        """The keys of the records from `begin` to before `end`, one after another."""
        return self._keys[begin * KEY_BYTES : end * KEY_BYTES]

    @cached_property
    def executions(self) -> set[bytes]:
        """The executions that kept them."""
        return set(map(self.execution, range(self.count)))

    def at(self, row: int) -> int:
        """The time when it was kept: microseconds since 1970."""
        return int(self._at[row])

    def spent(self) -> tuple[int, float]:
        """Attempts and cost of all records."""
        return sum(self.attempts), math.fsum(self.cost)

    def times(self) -> dict[bytes, tuple[float, float]]:
        """The begin of the first call of each execution and the end of its last, in seconds since 1970."""
        times: dict[bytes, tuple[float, float]] = {}
        for row, (end, latency) in enumerate(zip(self._at, self._latency, strict=True)):
            add_time(times, self.execution(row), (end / 1e6 - max(0.0, latency), end / 1e6))
        return times

    def value(self, row: int) -> Any:
        """The value of a record. Raises LedgerValueError if it cannot be read."""
        if self._has_floats or self._has_blobs:
            return self.record(row).value
        return decode(self._texts[row], (), ())

    def record(self, row: int, key: bytes | None = None) -> Record:
        """A record. Raises LedgerValueError if its value cannot be read. key: where it is known."""
        floats: list[Sequence[float]] = []
        blobs: list[bytes] = []
        try:
            if self._has_floats:
                floats = [_numbers(part.values, "d").tolist() for part in self._floats[row].values]
            if self._has_blobs:
                blobs = self._blobs[row].as_py()
            # Arrow's own way to a datetime needs a package for time zones.
            at = EPOCH + datetime.timedelta(microseconds=self._at[row])
        except (TypeError, OverflowError) as error:
            raise LedgerValueError(f"a kept value cannot be read: {type(error).__name__}: {error}") from error
        return Record(
            self.key(row) if key is None else key,
            decode(self._texts[row], floats, blobs),
            self.kinds[row] == ERROR,
            self.attempts[row],
            self._latency[row],
            self.cost[row],
            at,
            self.inputs[row],
            self.versions[row],
            self.execution(row),
        )


def _numbers(column: Any, code: str) -> memoryview:
    """The numbers of a column without nulls."""
    buffer = column.buffers()[1]
    view = _EMPTY if buffer is None else memoryview(buffer).cast("B")
    size = struct.calcsize(code)
    return view[column.offset * size :][: len(column) * size].cast(code)  # type: ignore[call-overload,no-any-return]
