"""Redis Streams as a source: `RedisStreamSource`, a value that pickles, its address and its enumerator.

Ranges of ids are read (XRANGE), never a consumer group: a group gives an entry to whoever asks first, so
what was read could not be read again in the same way after a crash. Ranges are between ids that Redis has
given already. New ids are always above those, so the same range gives the same entries at any later time,
until they are trimmed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from math import floor
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.log import Checkpoint, LogEnumerator, LogSource, Part
from pillarbox.sources.connectors.options import password_from
from pillarbox.sources.connectors.redis_streams.position import (
    FIRST,
    EntryId,
    Position,
    RedisStreamSplit,
    StreamState,
    behind,
    loss,
    parse_id,
    parse_position,
    parse_state,
    settle,
)
from pillarbox.sources.connectors.redis_streams.reader import RedisStreamReader
from pillarbox.sources.connectors.redis_streams.rows import check_schema, default_schema, mean_size
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.wire.redis_url import RedisUrl

if TYPE_CHECKING:
    import pyarrow as pa

ANSWER = 10.0
"""Seconds for Redis to answer, besides the time that it is told to wait."""
MISSING = 'Redis Streams need the package redis, here and where tasks run: pip install "pillarbox[redis]"'
COUNTED_FIRST = 16
"""Entries that are read to be counted, as long as nobody knows how large they are; then"""
COUNTED_BYTES, MAX_COUNTED = 2**20, 1000
"""at most so many bytes, about, and entries by one request, so that Redis is not held for long."""


class RedisAddress:
    """Where a Redis is. A value; pickles with its password, and its text has none.

    url: see `RedisUrl`. password_env: the name of an environment variable, read now, that holds the password.
    Raises TypeError or ValueError, without the text.
    """

    def __init__(self, url: str, password_env: str | None = None) -> None:
        self._url = RedisUrl(url, None if password_env is None else password_from(password_env))

    def __repr__(self) -> str:
        return repr(self._url)

    def connect(self) -> Any:
        """A client, thread-safe, that connects when it is used. Raises ImportError without the package."""
        try:
            import redis
        except ImportError:
            raise ImportError(MISSING) from None
        given = {} if self._url.password is None else {"password": self._url.password}
        client = redis.Redis.from_url(
            self._url.text,
            socket_timeout=ANSWER,
            socket_connect_timeout=ANSWER,
            decode_responses=False,
            **given,
        )
        pool = client.connection_pool
        try:
            # Made, but not connected.
            pool.connection_class(**pool.connection_kwargs)
        except TypeError as error:
            raise ValueError(
                f"url: its query has what the client does not know: {self._url.hide(error)}"
            ) from None
        # As Redis has sent it: what the client makes of entries costs more than all else.
        for command in ("XRANGE", "XREAD", "XINFO STREAM"):
            client.set_response_callback(command, lambda answer, **_: answer)
        return client

    def failed(self, doing: str, error: BaseException) -> Exception:
        """What to raise for what the client has raised: it says where and at what."""
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import TimeoutError as Late

        text = f"{self!r}: {doing}: {self._url.hide(error)}"
        return ConnectionError(text) if isinstance(error, Lost | Late | OSError) else RuntimeError(text)


class RedisStreamSource(LogSource[RedisStreamSplit]):
    """Entries of Redis streams, each stream in the order of its ids. Redis 6.2 or later; one server.

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://. The password is
        never shown; `password_env` names an environment variable that holds it.
    streams: names, or `pattern`: those whose names match, as SCAN does it; new ones are looked for every
        `discovery_interval` seconds, which walks all keys of the database. As often a task looks whether
        those that have nothing are still there.
    schema: see `redis_streams.rows`: columns `_stream`, `_id`, `_time`, `_fields`, and any field by name.
        None: these four.
    start: "earliest", "latest" (streams that come later are read from their beginning), or an id.
    bounded: whether it ends with what is there at the start; then `splits_per_stream` parts of a stream can
        be read at the same time.
    on_data_loss: what is done when entries were trimmed before they were read: "fail" or "ignore". "fail"
        needs Redis 7.
    on_change: what is done when a checkpoint is of other streams, or of another pattern: "fail", or "follow",
        which lets go of what is no longer named and reads what is new from its beginning.
    event_time: "id" if the time in the ids is the event time: then alignment cuts exactly. Otherwise None.
    trim: whether entries that are committed downstream are removed (XTRIM MINID). positions_key: a hash in
        which the next id of each stream is written down then, for others to see.

    Raises TypeError or ValueError for a bad argument.
    """

    split_type = RedisStreamSplit
    logs = "streams"
    event_times = "id"

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        schema: pa.Schema | None = None,
        start: str = "earliest",
        bounded: bool = False,
        splits_per_stream: int = 1,
        discovery_interval: float = 10.0,
        on_data_loss: str = "fail",
        on_change: str = "fail",
        event_time: str | None = None,
        trim: bool = False,
        positions_key: str | None = None,
        password_env: str | None = None,
    ) -> None:
        super().__init__(
            RedisAddress(url, password_env), streams, pattern, schema=schema, bounded=bounded,
            discovery_interval=discovery_interval, on_data_loss=on_data_loss, on_change=on_change,
            event_time=event_time,
        )  # fmt: skip
        if start not in ("earliest", "latest"):
            try:
                parse_id(start)
            except ValueError:
                raise ValueError(f"start={start!r}: must be 'earliest', 'latest' or an entry's id") from None
        if isinstance(splits_per_stream, bool) or not isinstance(splits_per_stream, int):
            raise TypeError(f"splits_per_stream={splits_per_stream!r}: must be an int")
        if splits_per_stream < 1 or (splits_per_stream > 1 and not bounded):
            raise ValueError(
                f"splits_per_stream={splits_per_stream}: must be at least 1, and 1 where bounded is False"
            )
        if bounded and (trim or positions_key or start == "latest"):
            raise ValueError(
                "bounded=True: trim, positions_key and start='latest' are for streams without end"
            )
        self.start = start
        self.splits_per_stream = splits_per_stream
        self.trim = trim
        self.positions_key = positions_key

    def default_schema(self) -> pa.Schema:
        """The four columns that every stream has."""
        return default_schema()

    def check_schema(self, schema: pa.Schema) -> pa.Schema:
        """See `rows.check_schema`."""
        return check_schema(schema)

    def matches(self, name: str) -> bool:
        """See `LogSource.matches`. Redis writes [^a] for what is [!a] elsewhere."""
        return fnmatchcase(name, (self.pattern or "").replace("[^", "[!"))

    @property
    def beginning(self) -> Position:
        """The position from which a stream is read that was not there at the first look."""
        return Position() if self.start in ("earliest", "latest") else Position(parse_id(self.start))

    @property
    def lets_go(self) -> bool:
        """True if streams that are gone are forgotten: those that a pattern finds, where loss is ignored."""
        return self.pattern is not None and super().lets_go

    def create_enumerator(self, context: EnumeratorContext[RedisStreamSplit]) -> RedisStreamEnumerator:
        """The enumerator of a new run. Raises ImportError without the package `redis`."""
        return RedisStreamEnumerator(self, context, None)

    def restore_enumerator(
        self, context: EnumeratorContext[RedisStreamSplit], checkpoint: Checkpoint
    ) -> RedisStreamEnumerator:
        """The enumerator of a run that goes on. Raises ValueError for a checkpoint of other streams."""
        return RedisStreamEnumerator(self, context, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[RedisStreamSplit]:
        """A reader with one client for all its streams. Raises ImportError without the package `redis`."""
        schema = self.arrow_schema() if context.schema is None else check_schema(context.schema)
        return FetchingReader(
            context, lambda: RedisStreamReader(self, schema), threading=Threading.MANY_SPLITS
        )

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> RedisStreamSource:
        """See `Source.from_options`. The options are the arguments; `streams` are parted by commas."""
        return cls._from_options(options, schema)


class RedisStreamEnumerator(LogEnumerator[RedisStreamSplit]):
    """The enumerator of a `RedisStreamSource`. Confined to its thread, but for what `discover` calls."""

    def __init__(
        self,
        source: RedisStreamSource,
        context: EnumeratorContext[RedisStreamSplit],
        checkpoint: Checkpoint | None,
    ) -> None:
        super().__init__(source, context, checkpoint)
        self._source = source
        self._client = source.service.connect()
        # Of the enumerator's thread: streams that were not there when they were last looked at.
        self._gone: set[str] = set()
        self.discovery_interval = (
            None if source.bounded or source.pattern is None else source.discovery_interval
        )

    def find(self, *, first_look: bool) -> Mapping[str, tuple[str, int]]:
        """Those that were named, there or not, or that match the pattern."""
        names = [*self._source.names]
        if self._source.pattern is not None:
            with self._asking("looking for streams"):
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
        with self._asking("looking for streams"):
            return [split for part in parts for split in self._open(part.name, first_look)]

    def _open(self, stream: str, first_look: bool) -> list[RedisStreamSplit]:
        source = self._source
        state = self._state(stream)
        if state is not None and state.added is None and source.on_data_loss == "fail":
            raise ValueError(
                f"{source.service!r} is older than Redis 7 and does not say how many entries a stream had. "
                "So it cannot be told whether any are trimmed before they are read: on_data_loss='ignore' "
                "does without"
            )
        start = source.beginning
        if source.start == "latest" and first_look:
            start = Position(FIRST if state is None else state.last.next)
        if state is not None:
            start = settle(start, state)
        if not source.bounded:
            return [RedisStreamSplit(stream, str(start), None, stream)]
        if state is None or not state.length or start.next > state.last:
            return []
        # In as many parts as are asked for, cut where an entry begins.
        edges, stop = [start], Position(state.last.next, state.added)
        begin = max(start.next, state.first or FIRST)
        span = stop.next.ms - begin.ms
        for part in range(1, source.splits_per_stream):
            edge = f"{begin.ms + span * part // source.splits_per_stream}-0"
            found = self._range(stream, edge, "+", 1)
            if found and edges[-1].next < parse_id(found[0][0]) < stop.next:
                edges.append(Position(parse_id(found[0][0])))
        edges.append(stop)
        if len(edges) == 2:
            return [_split(stream, stream, start, stop)]
        return [
            _split(f"{stream}#{number}", stream, low, high)
            for number, (low, high) in enumerate(pairwise(edges))
        ]

    def ahead(self, split: RedisStreamSplit, limit: ReadLimit) -> RedisStreamSplit | None:
        """What is there now of a stream, at most so much. Raises DataLossError."""
        with self._asking(f"looking for entries of stream {split.stream!r}"):
            state = self._state(split.stream)
            start = parse_position(split.start)
            if state is None:
                self._gone.add(split.stream)
                return None
            self._gone.discard(split.stream)
            if self._source.on_data_loss == "fail" and (why := loss(split.stream, start, state)):
                self.lost(why)
            start = settle(start, state)
            end = Position(state.last.next, state.added)
            if split.stop is not None and parse_position(split.stop).next <= end.next:
                end = parse_position(split.stop)
            if start.next >= end.next or state.first is None:
                return None
            there = _split(split.split_id, split.stream, start, end)
            counted = there.entries is not None and limit.rows is not None and there.entries <= limit.rows
            if limit.nbytes is None and (limit.rows is None or counted):
                any_in = self._range(split.stream, str(start.next), str(end.next.before), 1)
                piece = there if any_in else None
            else:
                piece = self._cut(there, start, end, limit, state)
        if piece is not None and split.stop is not None and piece.stop == str(end):
            return replace(piece, stop=split.stop)
        return piece

    def _cut(
        self, there: RedisStreamSplit, start: Position, end: Position, limit: ReadLimit, state: StreamState
    ) -> RedisStreamSplit | None:
        """The front of `there` that has at most so many rows and bytes, but one row at least.

        Only entries themselves tell where so many end. They are read for it, some at a time: a script that
        counts them in Redis would hold it for seconds, with a copy of all of them.
        """
        rows, size, at, most = 0, 0, start.next, COUNTED_FIRST
        last: EntryId | None = None
        while at < end.next and rows != limit.rows:
            asked = most if limit.rows is None else min(most, limit.rows - rows)
            entries = self._range(there.stream, str(at), str(end.next.before), asked)
            taken = 0
            for entry_id, fields in entries:
                nbytes = sum(map(len, fields))
                if limit.nbytes is not None and last is not None and size + nbytes > limit.nbytes:
                    break
                rows, size, taken, last = rows + 1, size + nbytes, taken + 1, parse_id(entry_id)
            if last is not None:
                at = last.next
            if taken < len(entries):
                break
            if len(entries) < asked:
                at = end.next
            else:
                most = max(1, min(MAX_COUNTED, COUNTED_BYTES // mean_size(entries)))
        if last is None:
            return None
        if at >= end.next:
            return replace(there, entries=rows, size=size)
        return replace(there, stop=str(behind(start, last, rows, state)), entries=rows, size=size)

    def is_gone(self, split: RedisStreamSplit) -> bool:
        """True if it was not there when it was last looked at."""
        return split.stream in self._gone

    def position_at(self, split: RedisStreamSplit, timestamp: float) -> str | None:
        """The first id of a later time, if ids are the event time."""
        if self._source.event_time is None:
            return None
        return str(EntryId(max(0, floor(timestamp * 1000) + 1), 0))

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Trim what was read, or write down how far it was, if that was asked for."""
        source = self._source
        if not (source.trim or source.positions_key):
            return
        with self._asking("saying what was read"):
            pipeline = self._client.pipeline(transaction=False)
            for split_id, position in positions.items():
                if position is None:
                    continue
                if source.trim:
                    pipeline.execute_command(
                        "XTRIM", split_id, "MINID", "=", str(parse_position(position).next)
                    )
                if source.positions_key:
                    pipeline.hset(source.positions_key, split_id, str(parse_position(position).next))
            pipeline.execute()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _state(self, stream: str) -> StreamState | None:
        from redis.exceptions import ResponseError

        try:
            return parse_state(self._client.execute_command("XINFO STREAM", stream))
        except ResponseError as error:
            if "no such key" in str(error).lower():
                return None
            raise

    def _range(self, stream: str, first: str, last: str, count: int) -> list[Any]:
        found: list[Any] = self._client.execute_command("XRANGE", stream, first, last, "COUNT", count)
        return found

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError) as error:
            raise self._source.service.failed(doing, error) from None


def _split(split_id: str, stream: str, start: Position, stop: Position) -> RedisStreamSplit:
    counted = start.added is not None and stop.added is not None
    entries = (stop.added or 0) - (start.added or 0) if counted else None
    return RedisStreamSplit(split_id, str(start), str(stop), stream, entries)
