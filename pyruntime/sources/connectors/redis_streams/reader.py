"""Reads ranges of many Redis streams with one client: `RedisStreamReader`, on its fetcher's thread.

XREAD only waits, for all streams that have nothing at once. What is read is read by XRANGE, in one step with
XINFO STREAM, which says whether entries are missing. Neither changes anything in Redis, so nothing is lost
when a wait is given up. EXISTS tells which of those that have nothing are gone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.log import LogSplitReader
from pillarbox.sources.connectors.redis_streams.position import (
    Position,
    RedisStreamSplit,
    behind,
    loss,
    parse_id,
    parse_position,
    parse_state,
    settle,
)
from pillarbox.sources.connectors.redis_streams.rows import mean_size, to_batch
from pillarbox.sources.reader import Fetched, SplitsAdded, SplitsChange

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.redis_streams.source import RedisStreamSource

STREAMS_PER_REQUEST = 4
"""Streams that are read by one request."""
FIRST_ROWS = 200
MAX_ROWS = 10_000
BATCH_BYTES = 2_000_000
"""Of one stream in one request, about."""
WAIT = 1.0
"""Seconds that one fetch waits for entries."""
STREAMS_PER_LOOK = 1000
"""Streams that are asked for at once, whether they are there."""
LOOK_INTERVAL_S = 0.05
"""Seconds after which streams that have nothing are looked at, while others have."""
BLOCK_MS, BLOCK_MS_PER_STREAM, MAX_BLOCK_MS = 50, 0.1, 1000
"""How long XREAD blocks before it is seen whether the wait is to end."""


@dataclass
class _Reading:
    """A split, and how far it has been read."""

    split: RedisStreamSplit
    position: Position
    stop: Position | None
    paused: bool = False
    hot: bool = True
    """Whether there is something to read, or nobody has looked yet."""
    due: bool = False
    """Whether there were entries that were not read."""
    missed: float | None = None
    """When the stream was seen to be gone, if it has not been there since."""
    rows: int = FIRST_ROWS


class RedisStreamReader(LogSplitReader[RedisStreamSplit]):
    """One client for any number of streams. Its fetcher's thread calls all but `wake_up`."""

    def __init__(self, source: RedisStreamSource, schema: pa.Schema) -> None:
        super().__init__()
        self._source = source
        self._schema = schema
        self._client = source.service.connect()
        self._splits: dict[str, _Reading] = {}
        self._looked = 0.0
        self._looked_for = time.monotonic()

    def handle_splits_changes(self, change: SplitsChange[RedisStreamSplit]) -> None:
        """Take splits up, or let go of them."""
        if not isinstance(change, SplitsAdded):
            for split_id in change.split_ids:
                self._splits.pop(split_id, None)
            return
        for split in self._selected(self._source, change.splits):
            stop = None if split.stop is None else parse_position(split.stop)
            self._splits[split.split_id] = _Reading(split, parse_position(split.start), stop)

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Leave the streams `pause` alone until they are in `resume`."""
        for ids, paused in ((pause, True), (resume, False)):
            for split_id in ids:
                if split_id in self._splits:
                    self._splits[split_id].paused = paused

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def fetch(self) -> Sequence[Fetched]:
        """A batch of each of some streams that have entries; waits up to a second for the first."""
        from redis.exceptions import RedisError

        live = [each for each in self._splits.values() if not each.paused]
        try:
            if self._ended:
                return self._take_ended()
            if not live:
                self._woken.wait(WAIT)
                return []
            if gone := self._look_for(live):
                return gone
            self._look([each for each in live if not each.hot], wait=not any(each.hot for each in live))
            return self._read([each for each in live if each.hot][:STREAMS_PER_REQUEST])
        except (RedisError, OSError) as error:
            streams = ", ".join(sorted({each.split.stream for each in live})[:3])
            raise self._source.service.failed(f"reading {streams}", error) from None
        finally:
            self._woken.clear()

    def _look(self, idle: list[_Reading], *, wait: bool) -> None:
        """Find out which of the streams that had nothing have something now."""
        if not idle or (not wait and time.monotonic() - self._looked < LOOK_INTERVAL_S):
            return
        names = [each.split.stream for each in idle]
        after = [str(each.position.next.before) for each in idle]
        block = min(MAX_BLOCK_MS, int(BLOCK_MS + BLOCK_MS_PER_STREAM * len(idle)))
        until = time.monotonic() + WAIT
        while True:
            blocking = ["BLOCK", block] if wait and not self._woken.is_set() else []
            answer = self._client.execute_command("XREAD", "COUNT", 1, *blocking, "STREAMS", *names, *after)
            self._looked = time.monotonic()
            if answer or not blocking or self._looked >= until:
                break
        found = {bytes(stream) for stream, _ in _pairs(answer)}
        for each in idle:
            each.hot = each.due = each.split.stream.encode() in found

    def _look_for(self, live: list[_Reading]) -> list[Fetched]:
        """Now and then: find out which of the streams that have nothing are gone. XREAD does not say it."""
        if time.monotonic() - self._looked_for < self._source.discovery_interval:
            return []
        idle = [each for each in live if not each.hot and each.stop is None]
        fetched = []
        for at in range(0, len(idle), STREAMS_PER_LOOK):
            part = idle[at : at + STREAMS_PER_LOOK]
            for each, there in zip(part, self._are_there([each.split.stream for each in part]), strict=True):
                if not there:
                    fetched.append(self._gone(each))
                elif each.missed is not None:
                    # What it is now is found by reading it.
                    each.missed, each.hot = None, True
        self._looked_for = time.monotonic()
        return [found for found in fetched if found is not None]

    def _are_there(self, streams: list[str]) -> list[bool]:
        if self._client.exists(*streams) == len(streams):
            return [True] * len(streams)
        pipeline = self._client.pipeline(transaction=False)
        for stream in streams:
            pipeline.exists(stream)
        return [bool(answer) for answer in pipeline.execute()]

    def _read(self, hot: list[_Reading]) -> list[Fetched]:
        if not hot:
            return []
        pipeline = self._client.pipeline(transaction=True)
        for each in hot:
            pipeline.execute_command("XINFO STREAM", each.split.stream)
            stop = "+" if each.stop is None else str(each.stop.next.before)
            pipeline.execute_command(
                "XRANGE", each.split.stream, str(each.position.next), stop, "COUNT", each.rows
            )
            # The others have their turn before it comes again.
            self._splits[each.split.split_id] = self._splits.pop(each.split.split_id)
        answers = pipeline.execute(raise_on_error=False)
        fetched = []
        for at, each in enumerate(hot):
            found = self._take_up(each, answers[2 * at], answers[2 * at + 1])
            if found is not None:
                fetched.append(found)
        return fetched

    def _take_up(self, each: _Reading, info: Any, entries: Any) -> Fetched | None:
        """What Redis has answered for one split; None if there is nothing yet."""
        if isinstance(entries, Exception):
            raise entries
        if isinstance(info, Exception):
            if "no such key" not in str(info).lower():
                raise info
            return self._gone(each)
        state = parse_state(info)
        each.missed = None
        empty = each.stop is not None and each.position.next >= each.stop.next
        if self._source.on_data_loss == "fail" and not empty:
            why = loss(each.split.stream, each.position, state)
            if why is not None:
                self._source.lost(why)
        if empty:
            entries = []
        asked, each.position = each.rows, settle(each.position, state)
        if entries:
            each.position = behind(each.position, parse_id(entries[-1][0]), len(entries), state)
            # As many next time as make a batch of the wanted size.
            each.rows = max(1, min(MAX_ROWS, BATCH_BYTES // mean_size(entries), each.rows * 8))
        exhausted = len(entries) < asked
        finished = each.stop is not None and (
            each.position.next >= each.stop.next or (exhausted and state.last.next >= each.stop.next)
        )
        each.hot = not exhausted
        each.due = each.hot and each.position.next <= state.last
        if finished:
            del self._splits[each.split.split_id]
        elif not entries:
            return None
        timestamp = None
        if self._source.event_time == "id" and entries:
            timestamp = parse_id(entries[-1][0]).ms / 1000
        return Fetched(
            each.split.split_id,
            to_batch(each.split.stream, entries, self._schema),
            str(each.position),
            finished,
            timestamp,
        )

    def _gone(self, each: _Reading) -> Fetched | None:
        """There is no such stream."""
        each.hot = False
        if self._source.on_data_loss == "fail" and (each.due or each.stop is not None):
            upto = "on" if each.stop is None else f"up to {each.stop.next}"
            self._source.lost(
                f"stream {each.split.stream!r} is gone, with the entries from {each.position.next} {upto}"
            )
        if each.stop is None:
            return self._missed(each)
        return self._end(each, each.stop)

    def _missed(self, each: _Reading) -> Fetched | None:
        """A stream without end is gone: when it comes again it is another one. Later it is ended."""
        now = time.monotonic()
        since, each.missed = each.missed, now if each.missed is None else each.missed
        if self._source.on_data_loss == "fail":
            # By the old position it is told that it is another one.
            return None
        if since is None:
            if each.position == self._source.beginning:
                return None
            # spec: SplitAssignment!StartAgain
            each.position = self._source.beginning
            nothing = to_batch(each.split.stream, [], self._schema)
            return Fetched(each.split.split_id, nothing, str(each.position))
        if self._source.lets_go and now - since >= self._source.discovery_interval:
            # spec: SplitAssignment!EndGone
            return self._end(each, each.position)
        return None

    def _end(self, each: _Reading, position: Position) -> Fetched:
        del self._splits[each.split.split_id]
        nothing = to_batch(each.split.stream, [], self._schema)
        return Fetched(each.split.split_id, nothing, str(position), finished=True)


def _pairs(answer: Any) -> Iterable[tuple[Any, Any]]:
    """Streams and their entries, as RESP 2 or 3 gives them."""
    if not answer:
        return ()
    return answer.items() if isinstance(answer, dict) else answer
