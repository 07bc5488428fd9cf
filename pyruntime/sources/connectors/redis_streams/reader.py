"""Reads ranges of many Redis streams with one client: `RedisStreamReader`, on its fetcher's thread.

XREAD only waits, for all streams that have nothing at once. What is read is read by XRANGE, in one step with
XINFO STREAM, which says whether entries are missing. Neither changes anything in Redis, so nothing is lost
when a wait is given up. EXISTS tells which of those that have nothing are gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.log import LOOK_S, Cursor, LogReader
from pillarbox.sources.connectors.redis_streams.entries import (
    EntryId,
    Position,
    RedisStreamSplit,
    StreamState,
    mean_size,
    to_batch,
)
from pillarbox.sources.reader import Fetched

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.redis_streams.source import RedisStreamSource

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
        self._looked_for = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def read(self, live: Sequence[StreamCursor]) -> list[Fetched]:
        """A batch of each of some streams that have entries."""
        with self.source.service.asking("reading streams"):
            if gone := list(self._look_for_gone(live)):
                return gone
            self._look(live)
            return list(self._take([cursor for cursor in live if cursor.hot][:STREAMS_PER_REQUEST]))

    def _look_for_gone(self, live: Sequence[StreamCursor]) -> Iterator[Fetched]:
        """Now and then: find out which of the streams that have nothing are gone. XREAD does not say it."""
        if time.monotonic() - self._looked_for < self.source.discovery_interval:
            return
        idle = [cursor for cursor in live if not cursor.hot and cursor.stop is None]
        pipeline = self._client.pipeline(transaction=False)
        for cursor in idle:
            pipeline.exists(cursor.split.stream)
        for cursor, there in zip(idle, pipeline.execute(), strict=True):
            if not there:
                yield from self._gone(cursor)
            elif cursor.missed is not None:
                # What it is now is found by reading it.
                cursor.missed, cursor.hot = None, True
        self._looked_for = time.monotonic()

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

    def _taken(self, cursor: StreamCursor, info: Any, entries: list[Any]) -> Iterator[Fetched]:
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
