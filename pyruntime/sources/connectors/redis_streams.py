"""Redis Streams as a source: `RedisStreamSource`, positions and splits, the address, reader and enumerator.

A position is the least id that comes next, and the number of entries that were added to the stream before
it, where that is known: "1526919030474-56", or "1526919030474-56@1024". Columns whose names begin with `_`
tell of the entry: `_stream`, `_id`, `_time` (when it was added, from its id) and `_fields`, all its fields
as a map. Every other column is the field of that name, read as text of its type; null where an entry has no
such field.
"""

# Why a position has a count beside the id. Redis trims a stream at its front, and who reads on from an id
# that is gone gets the next that is there: ids alone do not tell whether anything was between.
# `entries-added` (Redis 7) counts all that ever came; less what is there, and less what was read, it is what
# was lost. A count that is only probable would end good jobs: where entries were deleted singly
# (`has_holes`), or nobody knows how many were read, the text says "may".
#
# Why the ids of a stream that was deleted and made again are not trusted alone: Redis gives a stream no
# identity, and a new one may go on with ids above the old. A count or an id that went back shows it.
#
# Ranges of ids are read (XRANGE), never a consumer group: a group gives an entry to whoever asks first, so
# what was read could not be read again in the same way after a crash. Ranges are between ids that Redis has
# given already. New ids are always above those, so the same range gives the same entries at any later time,
# until they are trimmed or deleted.
#
# XREAD only waits, for all streams that have nothing at once. What is read is read by XRANGE, in one step
# with XINFO STREAM, which says whether entries are missing. Neither changes anything in Redis, so nothing is
# lost when a wait is given up. Now and then all are read, as only that tells which of them are gone.

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from itertools import accumulate, chain
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pillarbox.redaction import password_from, redacted
from pillarbox.sources.connectors.log import (
    LOOK_S,
    Checkpoint,
    Cursor,
    LogEnumerator,
    LogReader,
    LogSource,
    LogSplit,
    Part,
    masked,
)
from pillarbox.sources.connectors.redis_pattern import matches
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.reader import Fetched
from pillarbox.sources.source import option, words
from pillarbox.validate import naming_arguments

LAST_SEQUENCE = 2**64 - 1


class EntryId(NamedTuple):
    """The id of an entry: milliseconds since 1970, and a number among those of one millisecond."""

    ms: int
    sequence: int

    @classmethod
    def parse(cls, text: str | bytes) -> EntryId:
        """The id that Redis writes so. Raises ValueError."""
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        ms, dash, sequence = text.partition("-")
        if not (ms.isdecimal() and (sequence.isdecimal() if dash else True)):
            raise ValueError(f"{text!r}: must be an id of a stream's entry, such as '1526919030474-55'")
        return cls(int(ms), int(sequence or 0))

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"

    @property
    def next(self) -> EntryId:
        """The least id above it."""
        if self.sequence == LAST_SEQUENCE:
            return EntryId(self.ms + 1, 0)
        return EntryId(self.ms, self.sequence + 1)

    @property
    def before(self) -> EntryId:
        """The greatest id below it; of the least one, itself."""
        if self.sequence:
            return EntryId(self.ms, self.sequence - 1)
        return EntryId(self.ms - 1, LAST_SEQUENCE) if self.ms else self


FIRST = EntryId(0, 0)
MIN_ID = EntryId(0, 1)
"""The least id that an entry can have."""


class StreamState(NamedTuple):
    """The state of a stream, as Redis says it."""

    length: int
    first: EntryId | None
    last: EntryId
    """The id that was given last; its entry may be gone."""
    added: int | None
    """Entries ever added; None before Redis 7."""
    deleted: EntryId
    """The greatest id that was deleted singly, by XDEL."""

    @classmethod
    def parse(cls, answer: Mapping[bytes, Any] | Sequence[Any]) -> StreamState:
        """Return what XINFO STREAM has answered, as RESP 2 or 3 gives it."""
        if not isinstance(answer, Mapping):
            answer = dict(zip(answer[::2], answer[1::2], strict=True))
        first = answer[b"first-entry"]
        return cls(
            length=int(answer[b"length"]),
            first=EntryId.parse(first[0]) if first else None,
            last=EntryId.parse(answer[b"last-generated-id"]),
            added=answer.get(b"entries-added"),
            deleted=EntryId.parse(answer.get(b"max-deleted-entry-id", b"0-0")),
        )

    @property
    def end(self) -> Position:
        """The position behind all that was ever added."""
        return Position(self.last.next, self.added)

    @property
    def has_holes(self) -> bool:
        """True if entries were deleted behind the first that is left: then counts say too much."""
        return self.first is not None and self.deleted >= self.first


class Position(NamedTuple):
    """The least id that comes next, and how many entries were added before it; None if unknown."""

    next: EntryId = FIRST
    added: int | None = None

    @classmethod
    def parse(cls, written: str | None) -> Position:
        """The position that is written so; None is the beginning. Raises ValueError."""
        if written is None:
            return cls()
        text, mark, added = written.partition("@")
        if mark and not added.isdecimal():
            raise ValueError(f"position={written!r}: behind the @ must be a number of entries")
        return cls(EntryId.parse(text), int(added) if mark else None)

    def __str__(self) -> str:
        return str(self.next) if self.added is None else f"{self.next}@{self.added}"

    def missing(self, state: StreamState) -> str | None:
        """Say what is missing of the entries from here on, in words; None if all are there.

        Where it cannot be told, because the count is not known or single entries were deleted, it may be
        missing.
        """
        if state.added is None or self == Position():
            return None
        if self.added is not None and (self.added > state.added or self.next > state.last.next):
            return "the stream was deleted and made anew"
        if self.next > state.last or (state.first is not None and state.first < self.next):
            return None
        missing = state.added - state.length - (self.added or 0)
        if missing <= 0:
            return None
        entries = f"{missing} entries were" if missing > 1 else "1 entry was"
        if self.added is None or state.has_holes:
            entries = "some entries may have been"
        return f"{entries} trimmed or deleted before they were read"

    def settled(self, state: StreamState) -> Position:
        """The same place, with the count that `state` gives, where it gives one."""
        if state.added is None or self.next > state.last.next:
            # Nobody has been there yet. With a count it would be what was read of a stream that is no more.
            return Position(self.next)
        if self.next > state.last:
            return state.end
        if (state.first is None or state.first >= self.next) and not state.has_holes:
            return Position(self.next, state.added - state.length)
        if self.added is not None and self.added > state.added:
            return Position(self.next)
        return self

    def behind(self, last_read: EntryId, rows: int, state: StreamState) -> Position:
        """The position after `rows` entries from here on, the last of which is `last_read`."""
        if last_read >= state.last:
            return Position(last_read.next, state.added)
        if self.added is None or state.deleted >= max(self.next, MIN_ID):
            return Position(last_read.next)
        return Position(last_read.next, self.added + rows)


@dataclass(frozen=True)
class RedisStreamSplit(LogSplit):
    """The entries of a stream from position `start` up to `stop`.

    entries: how many there are, where they were counted.
    """

    stream: str = ""
    entries: int | None = None

    @property
    def rows(self) -> int | None:
        """As they were counted."""
        return self.entries

    @property
    def part(self) -> Part:
        """See `LogSplit.part`. Redis gives a stream no identity."""
        return Part(self.stream, 0, "")


Entry = tuple[bytes, list[bytes]]
"""An id, and names and values of fields in turn."""
DEFAULT = pa.schema(
    [
        ("_stream", pa.string()),
        ("_id", pa.string()),
        ("_time", pa.timestamp("us", "UTC")),
        ("_fields", pa.map_(pa.string(), pa.string())),
    ]
)
"""The columns of a stream of which nothing is known."""
BAD_VALUE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError)


def check_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` if entries can be read so. Raises ValueError that names the column."""
    for column in schema:
        name, kind = column.name, column.type
        if name in ("_stream", "_id"):
            good, allowed = _is_text(kind), "a string"
        elif name == "_time":
            good, allowed = types.is_timestamp(kind), "a timestamp"
        elif name == "_fields":
            good, allowed = types.is_map(kind), "a map of strings or binaries"
            good = good and all(
                _is_text(part) or types.is_binary(part) for part in (kind.key_type, kind.item_type)
            )
        elif name.startswith("_"):
            raise ValueError(f"column {name!r}: must be _stream, _id, _time, _fields, or a field's name")
        else:
            good = not types.is_nested(kind) and not types.is_null(kind)
            allowed = "a type that text can be read as"
        if not good:
            raise ValueError(f"column {name!r} is {kind}: must be {allowed}")
    return schema


def to_batch(stream: str, entries: list[Entry], schema: pa.Schema) -> pa.RecordBatch:
    """The entries as rows of `schema`. Raises ValueError for a value that its column cannot hold."""
    held = _held(entries, schema)
    columns = []
    for column in schema:
        try:
            columns.append(_column(stream, entries, held, column))
        except BAD_VALUE as error:
            if len(entries) > 1:
                # Which entry it was is only looked for when there is one.
                for entry in entries:
                    to_batch(stream, [entry], schema)
                raise
            (entry_id, fields), *_ = entries
            value = held[0].get(column.name.encode(), fields) if held else fields
            raise ValueError(
                f"stream {stream!r}, entry {entry_id.decode()}: {value!r:.50} cannot be read as "
                f"column {column.name!r}, {column.type}: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def mean_size(entries: list[Entry]) -> int:
    """Bytes of an entry, about, of these, at least one; at least 1."""
    sample = entries[:: max(1, len(entries) // 20)]
    return max(1, sum(sum(map(len, fields)) + 20 for _, fields in sample) // len(sample))


def _held(entries: list[Entry], schema: pa.Schema) -> list[dict[bytes, bytes]]:
    """The fields of each entry, by their names, if any column asks for them."""
    if all(name.startswith("_") for name in schema.names):
        return []
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]


def _column(stream: str, entries: list[Entry], held: list[dict[bytes, bytes]], column: pa.Field) -> pa.Array:
    kind = column.type
    if column.name == "_stream":
        return pa.repeat(pa.scalar(stream, kind), len(entries))
    if column.name == "_id":
        return _cast([entry_id for entry_id, _ in entries], kind)
    if column.name == "_time":
        ms = pa.array([int(entry_id.partition(b"-")[0]) for entry_id, _ in entries], pa.int64())
        return ms.cast(pa.timestamp("ms", kind.tz)).cast(kind)
    if column.name == "_fields":
        counts = accumulate((len(fields) // 2 for _, fields in entries), initial=0)
        flat = list(chain.from_iterable(fields for _, fields in entries))
        parts = _cast(flat[::2], kind.key_type), _cast(flat[1::2], kind.item_type)
        return pa.MapArray.from_arrays(pa.array(counts, pa.int32()), *parts, type=kind)
    name = column.name.encode()
    return _cast([fields.get(name) for fields in held], kind)


def _cast(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    made = pa.array(values, pa.binary())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return made.cast(kind)
    text: Any = made.cast(pa.string())
    if types.is_timestamp(kind) and kind.tz is not None:
        # Arrow wants a zone in all or in none: what has none is UTC.
        zoned = pc.match_substring_regex(text, r":.*(Z|[+-]\d\d(:?\d\d)?)$")
        bare = pc.if_else(zoned, None, text).cast(pa.timestamp(kind.unit)).cast(kind)
        return pc.coalesce(bare, pc.if_else(zoned, text, None).cast(kind))
    return text.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


ANSWER_S = 10.0
"""Seconds for Redis to answer, besides the time that it is told to wait."""
MISSING = 'Redis Streams need the package redis, here and where tasks run: pip install "pillarbox[redis]"'
SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, repr=False)
class RedisAddress:
    """The address of a Redis. A value; pickles with the password that may be in it, its `repr` has none.

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://.
    password_env: the name of an environment variable that holds the password. It is read where a client is
        made, so that the password travels to no task; it has to be set here, too.

    Raises TypeError or ValueError for another text. What that says does not hold the text: it may have a
    password in it, in any place if it is not escaped.
    """

    url: str
    password_env: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise TypeError(f"url: must be a str, not {type(self.url).__name__}")
        try:
            parts = urlsplit(self.url)
        except ValueError:
            # What this says has a part of the text.
            raise ValueError(
                "url: cannot be read; write what is not a letter or digit in a user or password as %XX"
            ) from None
        if parts.scheme not in SCHEMES or not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError("url: must begin with redis://, rediss:// or unix:// and name a server")
        if "@" in parts.path + parts.query or parts.fragment:
            raise ValueError("url: write / ? # @ in a user or password as %2F %3F %23 %40")
        try:
            parts.port  # noqa: B018 - it is the reading that checks
        except ValueError:
            raise ValueError("url: the port must be a number from 0 to 65535") from None
        if parts.scheme != "unix" and not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
            raise ValueError("url: what follows the server must be the number of a database")
        self._password()

    def __repr__(self) -> str:
        parts = urlsplit(self.url)
        where = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}{parts.path}"
        return f"Redis at {where}"

    def connect(self) -> Any:
        """A client, thread-safe, that connects when it is used. Raises ImportError without the package."""
        try:
            import redis
        except ImportError:
            raise ImportError(MISSING) from None
        client = redis.Redis.from_url(
            self.url,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            decode_responses=False,
            **self._password(),
        )
        pool = client.connection_pool
        try:
            # Made, but not connected.
            pool.connection_class(**pool.connection_kwargs)
        except TypeError as error:
            raise ValueError(
                f"url: its query has what the client does not know: {self.hide(error)}"
            ) from None
        # As Redis has sent it: what the client makes of entries costs more than all else.
        for command in ("XRANGE", "XREAD", "XINFO STREAM"):
            client.set_response_callback(command, lambda answer, **_: answer)
        return client

    def _password(self) -> dict[str, str]:
        return {} if self.password_env is None else {"password": password_from(self.password_env)}

    def hide(self, error: BaseException) -> str:
        """The text of an error, without the passwords that it might have in it."""
        parts = urlsplit(self.url)
        # The password, and that of a key (ssl_password).
        found: list[str | None] = [
            value for name, value in parse_qsl(parts.query) if name.endswith("password")
        ]
        found += [os.environ.get(self.password_env or ""), parts.password]
        return redacted(masked(str(error) or type(error).__name__, found))

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Raise ConnectionError or RuntimeError for what the client raises: it says where and at what."""
        from redis import exceptions as redis

        try:
            yield
        except (redis.RedisError, OSError) as error:
            lost = (redis.ConnectionError, redis.TimeoutError, OSError)
            kind = ConnectionError if isinstance(error, lost) else RuntimeError
            raise kind(f"{self!r}: {doing}: {self.hide(error)}") from None


# -- reading ---------------------------------------------------------------------------------------

STREAMS_PER_REQUEST = 4
"""Streams that are read by one request."""
FIRST_ROWS, MAX_ROWS = 200, 10_000
"""Rows of one stream in one request: in the first one, and at most."""
BATCH_BYTES = 2_000_000
"""Bytes of them, about."""
BLOCK_MS_PER_STREAM = 0.1
"""Milliseconds that XREAD blocks besides, for a request that names many streams costs more."""


class StreamCursor(Cursor[RedisStreamSplit]):
    """A split that is read, and where reading stands."""

    def __init__(self, split: RedisStreamSplit) -> None:
        super().__init__(split)
        self.position = Position.parse(split.start)
        self.stop: Position | None = None if split.stop is None else Position.parse(split.stop)
        self.ended = self.stop is not None and self.position.next >= self.stop.next
        self.hot = True
        """True if there is something to read, or nobody has looked yet."""
        self.due = False
        """True if there were entries that were not read."""
        self.missed: float | None = None
        """The time at which the stream was seen to be gone, if it has not been there since."""
        self.rows = FIRST_ROWS


class RedisStreamReader(LogReader[RedisStreamSplit, StreamCursor]):
    """One client for any number of streams."""

    source: RedisStreamSource
    cursor_type = StreamCursor

    def __init__(self, source: RedisStreamSource, schema: pa.Schema) -> None:
        super().__init__(source, schema)
        self._client = source.service.connect()
        self._looked = 0.0
        self._looked_at_all = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def read(self, live: Sequence[StreamCursor]) -> list[Fetched]:
        """A batch of each of some streams that have entries."""
        with self.source.service.asking("reading streams"):
            if time.monotonic() - self._looked_at_all >= self.source.discovery_interval:
                # XREAD does not say which streams are gone; what reads them does.
                self._looked_at_all = time.monotonic()
                for cursor in live:
                    cursor.hot = True
            self._look(live)
            return list(self._take([cursor for cursor in live if cursor.hot][:STREAMS_PER_REQUEST]))

    def _look(self, live: Sequence[StreamCursor]) -> None:
        """Find out which of the streams that had nothing have something now; wait, where all had nothing."""
        idle = [cursor for cursor in live if not cursor.hot]
        waits = len(idle) == len(live)
        if not idle or not (waits or time.monotonic() - self._looked >= LOOK_S):
            return
        names = [cursor.split.stream for cursor in idle]
        after = [str(cursor.position.next.before) for cursor in idle]
        block = ["BLOCK", int(1000 * LOOK_S + BLOCK_MS_PER_STREAM * len(idle))] if waits else []
        answer = self._client.execute_command("XREAD", "COUNT", 1, *block, "STREAMS", *names, *after)
        self._looked = time.monotonic()
        # RESP 2 gives pairs.
        found = dict(answer or {})
        for cursor in idle:
            cursor.hot = cursor.due = cursor.split.stream.encode() in found

    def _take(self, hot: Sequence[StreamCursor]) -> Iterator[Fetched]:
        """Read streams that have something."""
        pipeline = self._client.pipeline(transaction=True)
        for cursor in hot:
            stream, stop = cursor.split.stream, "+" if cursor.stop is None else str(cursor.stop.next.before)
            pipeline.execute_command("XINFO STREAM", stream)
            pipeline.execute_command("XRANGE", stream, str(cursor.position.next), stop, "COUNT", cursor.rows)
            # The others have their turn before it comes again.
            self.cursors[cursor.split.split_id] = self.cursors.pop(cursor.split.split_id)
        answers = pipeline.execute(raise_on_error=False)
        for cursor, info, entries in zip(hot, answers[::2], answers[1::2], strict=True):
            if isinstance(info, Exception) and "no such key" in str(info).lower():
                yield from self._gone(cursor)
                continue
            for answer in (entries, info):
                if isinstance(answer, Exception):
                    raise answer
            yield from self._taken(cursor, info, entries)

    def _taken(
        self, cursor: StreamCursor, info: Mapping[bytes, Any] | Sequence[Any], entries: list[Any]
    ) -> Iterator[Fetched]:
        split, state, stop = cursor.split, StreamState.parse(info), cursor.stop
        self.source.check_loss(split.stream, cursor.position, state)
        exhausted = len(entries) < cursor.rows
        cursor.missed, cursor.position = None, cursor.position.settled(state)
        records: Any = ()
        if entries:
            last = EntryId.parse(entries[-1][0])
            cursor.position = cursor.position.behind(last, len(entries), state)
            # As many next time as make a batch of the wanted size.
            cursor.rows = max(1, min(MAX_ROWS, BATCH_BYTES // mean_size(entries), cursor.rows * 8))
            records = to_batch(split.stream, entries, self.schema)
        cursor.hot = not exhausted
        cursor.due = cursor.hot and cursor.position.next <= state.last
        at_end = stop is not None and (exhausted or cursor.position.next >= stop.next)
        if stop is not None and at_end and state.last.next < stop.next:
            # Nobody knows when an id behind its end is given, nor that those in front of it are the same.
            end = f"ends at {state.last} now, and was to be read up to {stop.next}"
            self.source.lost(f"stream {split.stream!r} {end}")
        if at_end:
            yield self.finish(cursor, records)
        elif entries:
            yield Fetched(split.split_id, records, str(cursor.position))

    def _gone(self, cursor: StreamCursor) -> Iterator[Fetched]:
        """There is no such stream; where it has no end, it is another one when it comes again."""
        now, stop = time.monotonic(), cursor.stop
        since, cursor.missed, cursor.hot = cursor.missed, cursor.missed or now, False
        if self.source.on_data_loss == "fail":
            if cursor.due or stop is not None:
                entries = f"{cursor.position.next} {'on' if stop is None else f'up to {stop.next}'}"
                self.source.lost(f"stream {cursor.split.stream!r} is gone, with the entries from {entries}")
            # By the old position it is told that it is another one.
        elif stop is not None:
            yield self.finish(cursor)
        elif since is None and cursor.position != self.source.beginning:
            # spec: SplitAssignment!StartAgain
            cursor.position = self.source.beginning
            yield Fetched(cursor.split.split_id, (), str(cursor.position))
        elif since is not None and self.source.lets_go and now - since >= self.source.discovery_interval:
            # spec: SplitAssignment!EndGone
            yield self.finish(cursor)


COUNTED_FIRST = 16
"""Entries that are read to be counted, as long as nobody knows how large they are; then"""
COUNTED_BYTES, MAX_COUNTED = 2**20, 1000
"""at most so many bytes, about, and entries by one request, so that Redis is not held for long."""


class RedisStreamEnumerator(LogEnumerator[RedisStreamSplit]):
    """The enumerator of a `RedisStreamSource`. Confined to its thread, but for what `discover` calls."""

    _source: RedisStreamSource

    def __init__(
        self,
        source: RedisStreamSource,
        context: EnumeratorContext[RedisStreamSplit],
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(source, context, checkpoint)
        self._client = source.service.connect()
        # Of the enumerator's thread: streams that were not there when they were last looked at.
        self._gone: set[str] = set()
        if source.pattern is None:
            self.discovery_interval = None

    def find(self, *, first_look: bool) -> Mapping[str, tuple[str, int]]:
        """Those that were named, there or not, or that match the pattern."""
        names = [*self._source.names]
        if self._source.pattern is not None:
            with self._source.service.asking("looking for streams"):
                for key in self._client.scan_iter(match=self._source.pattern, count=1000, _type="stream"):
                    try:
                        names.append(key.decode())
                    except UnicodeDecodeError:
                        self.warn_once(
                            f"{self._source!r}: key {key!r} is passed over: a stream's name must be UTF-8"
                        )
        return dict.fromkeys(sorted({*names}), ("", 1))

    def open(self, parts: Sequence[Part], *, first_look: bool) -> list[RedisStreamSplit]:
        """Streams, or what is there of them; `start=latest` is about those of the first look."""
        with self._source.service.asking("looking for streams"):
            return [split for part in parts for split in self._open(part.name, first_look)]

    def _open(self, stream: str, first_look: bool) -> list[RedisStreamSplit]:
        source, state = self._source, self._state(stream)
        if state is not None and state.added is None and source.on_data_loss == "fail":
            raise ValueError(
                f"{source.service!r} is older than Redis 7 and does not say how many entries a stream had. "
                "So it cannot be told whether any are trimmed before they are read: on_data_loss='ignore' "
                "does without"
            )
        start = source.beginning
        if source.start == "latest" and first_look:
            start = Position() if state is None else Position(state.last.next)
        if state is not None:
            start = start.settled(state)
        if not source.bounded:
            return [RedisStreamSplit(stream, str(start), None, stream)]
        if state is None or not state.length or start.next > state.last:
            return []
        return [_range(RedisStreamSplit(stream, stream=stream), start, state.end)]

    def ahead(self, split: RedisStreamSplit, limit: ReadLimit) -> RedisStreamSplit | None:
        """Return what is there now of a stream, at most so many rows. Raises DataLossError."""
        stream, start = split.stream, Position.parse(split.start)
        with self._source.service.asking(f"looking for entries of stream {stream!r}"):
            state = self._state(stream)
            if state is None:
                self._gone.add(stream)
                return None
            self._gone.discard(stream)
            self._source.check_loss(stream, start, state)
            start, end, stop = start.settled(state), state.end, split.stop
            # A limit of event time may be an id that is still to come: what is there has the end of now.
            is_there = stop is not None and Position.parse(stop).next <= end.next
            if is_there:
                end = Position.parse(stop)
            if start.next >= end.next or state.first is None:
                return None
            there = _range(split, start, end)
            if limit.rows is None or (there.entries is not None and there.entries <= limit.rows):
                piece = there if self._range(stream, start.next, end.next.before, 1) else None
            else:
                piece = self._cut(there, start, end, max(1, limit.rows), state)
        if piece is not None and is_there and piece.stop == str(end):
            return replace(piece, stop=stop)
        return piece

    def _cut(
        self, there: RedisStreamSplit, start: Position, end: Position, rows: int, state: StreamState
    ) -> RedisStreamSplit | None:
        """The front of `there` that has at most so many rows.

        Only entries themselves tell where so many end. They are read for it, some at a time: a script that
        counts them in Redis would hold it for seconds, with a copy of all of them.
        """
        counted, at, most = 0, start.next, COUNTED_FIRST
        while at < end.next and counted < rows:
            asked = min(most, rows - counted)
            entries = self._range(there.stream, at, end.next.before, asked)
            counted += len(entries)
            at = EntryId.parse(entries[-1][0]).next if len(entries) == asked else end.next
            most = max(1, min(MAX_COUNTED, COUNTED_BYTES // mean_size(entries))) if entries else most
        if not counted:
            return None
        stop = there.stop if at >= end.next else str(start.behind(at.before, counted, state))
        return replace(there, stop=stop, entries=counted)

    def is_gone(self, split: RedisStreamSplit) -> bool:
        """True if it was not there when it was last looked at."""
        return split.stream in self._gone

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Trim what was read, if that was asked for."""
        if self._source.trim:
            with self._source.service.asking("trimming what was read"):
                pipeline = self._client.pipeline(transaction=False)
                for stream, position in positions.items():
                    if position:
                        next_id = str(Position.parse(position).next)
                        pipeline.execute_command("XTRIM", stream, "MINID", "=", next_id)
                pipeline.execute()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _state(self, stream: str) -> StreamState | None:
        from redis.exceptions import ResponseError

        try:
            return StreamState.parse(self._client.execute_command("XINFO STREAM", stream))
        except ResponseError as error:
            if "no such key" in str(error).lower():
                return None
            raise

    def _range(self, stream: str, first: EntryId, last: EntryId | str, count: int) -> list[Any]:
        found: list[Any] = self._client.execute_command(
            "XRANGE", stream, str(first), str(last), "COUNT", count
        )
        return found


@naming_arguments
@dataclass(eq=False, repr=False)
class RedisStreamSource(LogSource[RedisStreamSplit]):
    """Entries of Redis streams, in the order of the ids within each stream. Redis 6.2 or later; one server.

        >>> from pillarbox.sources.connectors.redis_streams import RedisStreamSource
        >>> source = RedisStreamSource("redis://localhost:6379/0", "orders", bounded=True)
        >>> source
        <streams orders of Redis at localhost:6379/0>
        >>> source.arrow_schema().names
        ['_stream', '_id', '_time', '_fields']

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://. The password is
        never shown; `password_env` names an environment variable that holds it.
    streams: names, or `pattern`: those whose names match, as SCAN does it; new ones are looked for every
        `discovery_interval` seconds, which walks all keys of the database. As often a task looks whether
        those that have nothing are still there.
    schema: see `redis_streams.rows`: columns `_stream`, `_id`, `_time`, `_fields`, and any field by name.
        None: these four.
    start: "earliest", "latest" (streams that come later are read from their beginning), or an id.
    bounded: whether it ends with what is there at the start.
    on_data_loss, on_change: as in `LogSource`; "fail" about loss needs Redis 7.
    trim: whether entries that are committed downstream are removed (XTRIM MINID).

    Raises TypeError or ValueError for a bad argument.
    """

    split_type = RedisStreamSplit
    enumerator_type = RedisStreamEnumerator
    reader_type = RedisStreamReader
    logs = "streams"

    url: str = option()
    streams: str | Sequence[str] | None = option(None, parse=words)
    _: KW_ONLY
    start: str = option("earliest")
    trim: bool = option(False)

    def __post_init__(self) -> None:
        self.service = RedisAddress(self.url, self.password_env)
        super().__post_init__()
        if self.start not in ("earliest", "latest"):
            try:
                EntryId.parse(self.start)
            except ValueError:
                raise ValueError(
                    f"start={self.start!r}: must be 'earliest', 'latest' or an entry's id"
                ) from None
        if self.bounded and (self.trim or self.start == "latest"):
            raise ValueError("bounded=True: trim and start='latest' are for streams without end")

    def default_schema(self) -> pa.Schema:
        """The four columns that every stream has."""
        return DEFAULT

    def check_schema(self, schema: pa.Schema) -> pa.Schema:
        """See `rows.check_schema`."""
        return check_schema(schema)

    def matches(self, name: str) -> bool:
        """See `LogSource.matches`. As SCAN does."""
        return matches(self.pattern or "", name)

    @property
    def beginning(self) -> Position:
        """The position from which a stream is read that was not there at the first look."""
        return Position() if self.start in ("earliest", "latest") else Position(EntryId.parse(self.start))

    @property
    def lets_go(self) -> bool:
        """True if streams that are gone are forgotten: those that a pattern finds, where loss is ignored."""
        return self.pattern is not None and super().lets_go

    def check_loss(self, stream: str, position: Position, state: StreamState) -> None:
        """Raise DataLossError if entries from `position` on are missing, and that is an error."""
        if self.on_data_loss == "fail" and (missing := position.missing(state)) is not None:
            self.lost(f"stream {stream!r}, from {position.next} on: {missing}")


def _range(split: RedisStreamSplit, start: Position, stop: Position) -> RedisStreamSplit:
    """A range of a stream; with the number of its entries, where both ends have counts."""
    entries = None if start.added is None or stop.added is None else stop.added - start.added
    return replace(split, start=str(start), stop=str(stop), entries=entries)
