"""Finds Redis streams and cuts what is new in them into ranges of ids: the source's enumerator.

Ranges are between ids that Redis has given already. New ids are always above those, so the same range gives
the same entries at any later time, until they are trimmed or deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import floor
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.redis_streams.position import (
    FIRST,
    EntryId,
    Position,
    StreamState,
    behind,
    lost,
    parse_id,
    parse_position,
    parse_state,
    settle,
)
from pillarbox.sources.connectors.redis_streams.split import RedisStreamSplit
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.errors import DataLossError

if TYPE_CHECKING:
    from pillarbox.sources.connectors.redis_streams.source import RedisStreamSource

log = logging.getLogger("pillarbox")

PIECE = 1000
"""Entries that are counted by one script call, so that Redis is not held for long."""

# The last of at most so many entries from an id on, how many these are, and their bytes; the first always.
COUNT = """
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local most, rows, bytes, last = tonumber(ARGV[4]), 0, 0, ''
for _, entry in ipairs(found) do
  local size = 0
  for _, text in ipairs(entry[2]) do size = size + #text end
  if most >= 0 and bytes + size > most then return {last, rows, bytes, entry[1]} end
  rows, bytes, last = rows + 1, bytes + size, entry[1]
end
return {last, rows, bytes, ''}
"""

Checkpoint = dict[str, Any]
"""known: the streams that were found; waiting: ranges of them that were not given out; begun: whether every
stream of the first look was found, so that those which come now are new."""


class RedisStreamEnumerator(SplitEnumerator[RedisStreamSplit, Checkpoint]):
    """The enumerator of a `RedisStreamSource`. Confined to its thread, but `discover`."""

    def __init__(
        self,
        source: RedisStreamSource,
        context: EnumeratorContext[RedisStreamSplit],
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._client = source.address.connect()
        # Of the discovery thread alone.
        self._said: set[bytes] = set()
        # Of the enumerator's thread: streams that were not there when they were last looked at.
        self._gone: set[str] = set()
        self.discovery_interval = (
            None if source.bounded or source.pattern is None else source.discovery_interval
        )

    def discover(self, checkpoint: Checkpoint, most: int) -> tuple[Sequence[RedisStreamSplit], Checkpoint]:
        """Streams that are there now: those that were named, or that match the pattern."""
        known, waiting = list(checkpoint["known"]), list(checkpoint["waiting"])
        begun = checkpoint["begun"]
        if not waiting:
            with self._asking("looking for streams"):
                new = self._new_streams(set(known))
                for stream in new[:most]:
                    waiting += [_written(split) for split in self._splits_of(stream, not begun)]
                    known.append(stream)
                begun = begun or len(new) <= most
        splits = [RedisStreamSplit(**fields) for fields in waiting[:most]]
        return splits, {"known": known, "waiting": waiting[most:], "begun": begun}

    def _new_streams(self, known: set[str]) -> list[str]:
        if self._source.pattern is None:
            return [stream for stream in self._source.streams if stream not in known]
        keys = self._client.scan_iter(match=self._source.pattern, count=1000, _type="stream")
        return sorted({name for key in keys if (name := self._name(key)) is not None} - known)

    def _name(self, key: bytes) -> str | None:
        """The name of a stream; None, with a warning, for one that is not UTF-8."""
        try:
            return key.decode()
        except UnicodeDecodeError:
            if key not in self._said:
                self._said.add(key)
                log.warning("%r: key %r is passed over: a stream's name must be UTF-8", self._source, key)
            return None

    def _splits_of(self, stream: str, first_look: bool) -> list[RedisStreamSplit]:
        """What is to be read of a stream that was found now."""
        source = self._source
        state = self._state(stream)
        if state is not None and state.added is None and source.on_data_loss == "fail":
            raise ValueError(
                f"{source.address!r} is older than Redis 7 and does not say how many entries a stream had. "
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
        stop = Position(state.last.next, state.added)
        return self._ranges(stream, start, stop, state)

    def _ranges(
        self, stream: str, start: Position, stop: Position, state: StreamState
    ) -> list[RedisStreamSplit]:
        """The entries between, in as many parts as are asked for, cut where an entry begins."""
        parts = self._source.splits_per_stream
        begin = max(start.next, state.first or FIRST)
        span = stop.next.ms - begin.ms
        edges = [start]
        for part in range(1, parts):
            found = self._client.execute_command(
                "XRANGE", stream, f"{begin.ms + span * part // parts}-0", "+", "COUNT", 1
            )
            if found and edges[-1].next < parse_id(found[0][0]) < stop.next:
                edges.append(Position(parse_id(found[0][0])))
        edges.append(stop)
        if len(edges) == 2:
            return [_range(stream, stream, start, stop)]
        return [
            _range(f"{stream}#{number}", stream, low, high)
            for number, (low, high) in enumerate(pairwise(edges))
        ]

    def advance(self, split: RedisStreamSplit, limit: ReadLimit) -> RedisStreamSplit | None:
        """What is there now of a stream, at most so much. Redis counts; nothing is fetched."""
        with self._asking(f"looking for entries of stream {split.stream!r}"):
            state = self._state(split.stream)
            start = parse_position(split.start)
            if state is None:
                self._gone.add(split.stream)
                return None
            self._gone.discard(split.stream)
            if self._source.on_data_loss == "fail":
                check_loss(split.stream, start, state)
            start = settle(start, state)
            end = Position(state.last.next, state.added)
            if split.stop is not None and parse_position(split.stop).next <= end.next:
                end = parse_position(split.stop)
            if start.next >= end.next or (state.first is None):
                return None
            there = _range(split.split_id, split.stream, start, end)
            if limit.nbytes is None and (
                limit.rows is None or (there.entries is not None and there.entries <= limit.rows)
            ):
                piece = there if self._any_in(there) else None
            else:
                piece = self._cut(there, start, end, limit, state)
        if piece is not None and split.stop is not None and piece.stop == str(end):
            return replace(piece, stop=split.stop)
        return piece

    def _any_in(self, split: RedisStreamSplit) -> bool:
        start, stop = parse_position(split.start).next, parse_position(split.stop).next
        return bool(
            self._client.execute_command("XRANGE", split.stream, str(start), str(stop.before), "COUNT", 1)
        )

    def _cut(
        self, there: RedisStreamSplit, start: Position, end: Position, limit: ReadLimit, state: StreamState
    ) -> RedisStreamSplit | None:
        """The front of `there` that has at most so many rows and bytes, but one row at least."""
        rows, size, at = 0, 0, start.next
        last: EntryId | None = None
        while at < end.next and (limit.rows is None or rows < limit.rows):
            most = PIECE if limit.rows is None else min(PIECE, limit.rows - rows)
            left = -1 if limit.nbytes is None else max(0, limit.nbytes - size)
            if last is None and left >= 0:
                # The first is taken whatever it weighs.
                most = 1
                left = -1
            answer = self._client.eval(
                COUNT, 1, there.stream, str(at), str(end.next.before), str(most), str(left)
            )
            if answer[1]:
                last = parse_id(answer[0])
                at = last.next
            rows, size = rows + answer[1], size + answer[2]
            if answer[3] or answer[1] < most:
                if not answer[3]:
                    at = end.next
                break
        if last is None:
            return None
        if at == end.next:
            return replace(there, entries=rows, size=size)
        return replace(there, stop=str(behind(start, last, rows, state)), entries=rows, size=size)

    def let_go(self, splits: Sequence[RedisStreamSplit]) -> Collection[str]:
        """Streams that were deleted, of those that a pattern finds, where loss is ignored.

        Where it is not, the old position must stay, by which a stream that is made anew is told.
        """
        if not self._gone or not self._source.lets_go:
            return ()
        # A split without end has the name of its stream.
        gone = {split.split_id for split in splits} & self._gone
        self._gone -= gone
        self._forget(gone)
        return gone

    def handle_finished(self, splits: Sequence[RedisStreamSplit]) -> None:
        """Streams that a task has let go of, for good."""
        # spec: SplitAssignment!Complete
        if self._source.lets_go:
            self._forget({split.stream for split in splits})

    def handle_restored(self, unread: Collection[RedisStreamSplit]) -> None:
        """Forget the streams that no reader had any more."""
        # spec: SplitAssignment!Restore
        if self._source.lets_go:
            there = {split.stream for split in unread}
            there.update(fields["stream"] for fields in self.checkpoint["waiting"])
            self._forget(set(self.checkpoint["known"]) - there)

    def _forget(self, streams: Collection[str]) -> None:
        if streams:
            known = [stream for stream in self.checkpoint["known"] if stream not in streams]
            self.checkpoint = {**self.checkpoint, "known": known}

    def position_at(self, split: RedisStreamSplit, timestamp: float) -> str | None:
        """Where the ids of a later time begin, if those are the event time."""
        if self._source.event_time != "id":
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

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError) as error:
            raise self._source.address.failed(doing, error) from None


def check_loss(stream: str, position: Position, state: StreamState) -> None:
    """Raise DataLossError if entries from `position` on are gone."""
    missing = lost(position, state)
    if missing is not None:
        if missing.endswith(("was", "were", "been")):
            missing += " trimmed or deleted before they were read"
        raise DataLossError(
            f"stream {stream!r}, from {position.next} on: {missing}. on_data_loss='ignore' goes on with what "
            "is left"
        )


def _range(split_id: str, stream: str, start: Position, stop: Position) -> RedisStreamSplit:
    entries = None
    if start.added is not None and stop.added is not None:
        entries = stop.added - start.added
    return RedisStreamSplit(split_id, str(start), str(stop), stream, entries)


def _written(split: RedisStreamSplit) -> dict[str, Any]:
    return {name: value for name, value in vars(split).items() if value is not None}
