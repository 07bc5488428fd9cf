"""Event time in a reader: strategy, the latest time of a batch, watermarks of splits, idleness, the limit.

Confined to whoever reads. All times are seconds since 1970. That each split has a watermark of its own, so
that one which is ahead does not make the records of another late, is Flink's (FLIP-27, FLIP-217).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, Generic, NamedTuple, TypeVar

from pillarbox.sources.fetcher import approximate_nbytes
from pillarbox.sources.reader import Fetched, SourceReader
from pillarbox.sources.split import Split
from pillarbox.task.moments import check_callable, check_duration
from pillarbox.task.output import MAX_WATERMARK

S = TypeVar("S", bound=Split)

TOLERANCE_S = 1e-6
"""No difference: sums of times are not exact."""
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DAY_S = 86_400
MAX_BUFFERED_NBYTES = 64 * 2**20
"""Of splits that are held; what comes of them then is given out all the same."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """The event time of a record, how late it may come, and how far splits may drift apart.

    timestamp: the name of a column, or a function of a record, that gives its event time: seconds since
    1970, or an Arrow timestamp; None where the reader says it (`Fetched.timestamp`).
    out_of_order: seconds by which a record may be earlier than one before it in its split. The watermark of a
        split is its latest event time less this.
    idle_after: seconds of looking without a record after which a split is idle: nobody waits for its
        watermark until it has a record again. It must be longer than a fetch takes, all of which counts as
        looking. None: never.
    max_drift: seconds by which the watermark of a split may be ahead of the slowest one's that is not idle;
    it is held back while it is. None: no limit.
    """

    timestamp: str | Callable[[Any], float] | None = None
    out_of_order: float = 0.0
    idle_after: float | None = None
    max_drift: float | None = None


def check_strategy(strategy: WatermarkStrategy) -> None:
    """TypeError or ValueError, which names the field, for a strategy that says what cannot be. Any thread."""
    if strategy.timestamp is not None and not isinstance(strategy.timestamp, str):
        check_callable("timestamp", strategy.timestamp)
    check_duration("out_of_order", strategy.out_of_order)
    if strategy.idle_after is not None:
        check_duration("idle_after", strategy.idle_after, above_zero=True)
    if strategy.max_drift is not None:
        check_duration("max_drift", strategy.max_drift)


class EventTimes:
    """Reads the latest event time off batches. Confined.

    strategy: says where it is. A column holds timestamps of any unit, dates, or numbers of seconds; a time
        without a zone is UTC. A function is given each row of a sequence, and an Arrow batch as a whole.
    columns: the names of the columns, for rows that are tuples.

    Raises TypeError or ValueError for a bad strategy, ValueError for a column that is not among `columns`.
    """

    def __init__(self, strategy: WatermarkStrategy, columns: Sequence[str] | None = None) -> None:
        check_strategy(strategy)
        self._timestamp = strategy.timestamp
        self._at: int | None = None
        if isinstance(self._timestamp, str) and columns is not None:
            if self._timestamp not in columns:
                raise ValueError(f"timestamp={self._timestamp!r}: must be one of the columns {list(columns)}")
            self._at = list(columns).index(self._timestamp)

    def latest(self, fetched: Fetched) -> float | None:
        """The latest event time in the rows: what the reader says, or else the strategy; None for none.

        Raises ValueError for a column that is not there, TypeError for a value that is no time.
        """
        if fetched.timestamp is not None:
            return fetched.timestamp
        timestamp, records = self._timestamp, fetched.records
        if timestamp is None:
            return None
        if hasattr(records, "column"):
            if isinstance(timestamp, str):
                return _latest_in_column(records, timestamp)
            return seconds_of(timestamp(records))
        latest = -math.inf
        for value in self._values(records):
            moment = seconds_of(value)
            if moment is not None and moment > latest:
                latest = moment
        return None if latest == -math.inf else latest

    def _values(self, records: Sequence[Any]) -> Any:
        timestamp, at = self._timestamp, self._at
        if not isinstance(timestamp, str):
            assert timestamp is not None
            return map(timestamp, records)
        if records and isinstance(records[0], Mapping):
            return (row[timestamp] for row in records)
        if at is None:
            raise ValueError(
                f"timestamp={timestamp!r}: the rows are no Arrow batches and the source has no arrow_schema, "
                "so that nothing says where this column is; give a function of a row"
            )
        return (row[at] for row in records)


def seconds_of(value: Any) -> float | None:
    """A time as seconds since 1970: a number, a datetime or a date, in UTC if without a zone; None for None.

    Raises TypeError for what is none of them. Any thread.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(value, date):
        return float((value - date(1970, 1, 1)).days * DAY_S)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"event time {value!r}: must be a number of seconds, a datetime or a date, "
                f"not {type(value).__name__}"
            ) from None
    return None if math.isnan(value) else float(value)


def _latest_in_column(batch: Any, name: str) -> float | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    at = batch.schema.get_field_index(name)
    if at < 0:
        raise ValueError(f"timestamp={name!r}: must be one of the columns {batch.schema.names}")
    column = batch.column(at)
    kind = column.type
    if pa.types.is_timestamp(kind):
        value = pc.max(column).value
        return None if value is None else value / UNITS[kind.unit]
    return seconds_of(pc.max(column).as_py())


class Merged(NamedTuple):
    """The event time of all splits of a reader. A plain value."""

    watermark: float | None
    """The lowest watermark of those that are not idle, and never less than it was; None if unknown."""
    idle: bool
    """True if all of them are idle, or there is none: nobody need wait."""


class _Clock(NamedTuple):
    """The latest event time of a split, and when a record last came."""

    watermark: float
    at: float


class SplitWatermarks:
    """The watermarks of the splits that one reader has, and their lowest. Confined.

    A split that has had no record yet holds the lowest back, until it is idle. It is idle if it has had
    nothing for `idle_after` seconds, not if its records are there and nobody has taken them: one that is
    paused does not become idle, nor one for which nobody has `looked`. What an update costs does not grow
    with the number of splits, in the long run.

    clock: seconds, monotonic; by default `time.monotonic`. looked: how many seconds somebody has looked for
    records of a split since the last one, and found none; None: always. Raises TypeError or ValueError for
    a bad strategy.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        clock: Callable[[], float] = time.monotonic,
        looked: Callable[[str], float] | None = None,
    ) -> None:
        check_strategy(strategy)
        self._strategy = strategy
        self._clock = clock
        self._looked = looked
        self._live: dict[str, _Clock] = {}
        # One entry for each live split, at the latest when it may become idle; and those that were live.
        self._due: list[tuple[float, str]] = []
        self._watched: set[str] = set()
        self._idle: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        self._changed: dict[str, float | None] = {}
        # The split that has the lowest watermark; None: look again.
        self._lowest: str | None = None
        self._merged: float | None = None
        self._ended = False

    def add(self, split_ids: Collection[str]) -> None:
        """These splits are there; nothing is known of them."""
        now = self._clock()
        for split_id in split_ids:
            self._live[split_id] = _Clock(-math.inf, now)
            self._watch(split_id, now)
        self._lowest = None

    def remove(self, split_ids: Collection[str]) -> None:
        """These splits are finished or gone: nobody waits for them."""
        for split_id in split_ids:
            for known in (self._live, self._idle, self._paused, self._changed):
                known.pop(split_id, None)
            if split_id == self._lowest:
                self._lowest = None

    def seen(self, split_id: str, latest: float | None) -> float:
        """Rows of the split have come; `latest` is the latest event time in them, None if they have none.

        Returns its watermark, which is -inf while it has none.
        """
        # spec: Alignment!Read, Alignment!Wake
        now = self._clock()
        if split_id in self._paused:
            watermark = self._paused[split_id]
        elif split_id in self._idle:
            watermark = self._idle.pop(split_id)
            self._lowest = None
            if watermark > -math.inf:
                self._changed[split_id] = watermark
        elif split_id in self._live:
            watermark = self._live[split_id].watermark
        else:
            return -math.inf
        if latest is not None and latest - self._strategy.out_of_order > watermark:
            watermark = latest - self._strategy.out_of_order
            self._changed[split_id] = watermark
            if split_id == self._lowest:
                self._lowest = None
        if split_id in self._paused:
            self._paused[split_id] = watermark
        else:
            self._live[split_id] = _Clock(watermark, now)
            self._watch(split_id, now)
        return watermark

    def pause_or_resume(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Nothing is read of the splits `pause` until they are in `resume`: they do not become idle."""
        now = self._clock()
        for split_id in pause:
            if split_id in self._live:
                self._paused[split_id] = self._live.pop(split_id).watermark
        for split_id in resume:
            if split_id in self._paused:
                self._live[split_id] = _Clock(self._paused.pop(split_id), now)
                self._watch(split_id, now)

    def set_idle(self, split_id: str) -> None:
        """Wait for the split no more until its next record: its reader says that nothing comes now."""
        known = self._live.pop(split_id, None)
        if known is not None:
            # spec: Alignment!GoIdle
            self._idle[split_id] = known.watermark
            self._changed[split_id] = None
            self._lowest = None

    def wake(self, split_id: str) -> None:
        """Rows of a split have come that are not given out yet: it is idle no more."""
        if split_id in self._idle:
            self._paused[split_id] = self._changed[split_id] = self._idle.pop(split_id)
            self._lowest = None

    def end(self) -> None:
        """No other split comes: when the last one is finished, event time has come to its end."""
        self._ended = True

    def merged(self) -> Merged:
        """Merge them as they are now. Finds those that have become idle meanwhile."""
        self._find_idle()
        if self._live or self._paused:
            low = self._lowest_watermark()
            if low > -math.inf and (self._merged is None or low > self._merged):
                self._merged = low
            return Merged(self._merged, False)
        if not self._idle and self._ended:
            self._merged = MAX_WATERMARK
            return Merged(MAX_WATERMARK, False)
        return Merged(self._merged, True)

    def next_idle(self) -> float | None:
        """The moment, by the clock, at which the next split may become idle; None: never."""
        return self._due[0][0] if self._due else None

    @property
    def has_changes(self) -> bool:
        """True if `take_changes` has anything, as far as `merged` has found it."""
        return bool(self._changed)

    def take_changes(self) -> dict[str, float | None]:
        """The watermarks that have changed since the last call, by split; None for one that is idle now."""
        self._find_idle()
        changed, self._changed = self._changed, {}
        return changed

    def _find_idle(self) -> None:
        after = self._strategy.idle_after
        if after is None:
            return
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            _, split_id = heapq.heappop(self._due)
            known = self._live.get(split_id)
            if known is None:
                self._watched.discard(split_id)
                continue
            due = known.at + after
            if due <= now and self._looked is not None:
                left = after - self._looked(split_id)
                if left > TOLERANCE_S:
                    # Not much sooner either: it may come nearer by little.
                    due = now + max(left, after / 16)
            if due > now:
                heapq.heappush(self._due, (due, split_id))
                continue
            self._watched.discard(split_id)
            self.set_idle(split_id)

    def _watch(self, split_id: str, now: float) -> None:
        after = self._strategy.idle_after
        if after is not None and split_id not in self._watched:
            self._watched.add(split_id)
            heapq.heappush(self._due, (now + after, split_id))

    def _lowest_watermark(self) -> float:
        if self._lowest is None:
            known = {split_id: each.watermark for split_id, each in self._live.items()} | self._paused
            self._lowest = min(known, key=known.__getitem__)
        if self._lowest in self._paused:
            return self._paused[self._lowest]
        return self._live[self._lowest].watermark


class IdlenessTracker:
    """Counts the seconds between a `poll` that found nothing and the moment at which something was there.

    For readers that cannot say it of their clients. A split is idle only if it has nothing. That the task did
    not look, for it was busy or held up, says nothing: its rows may be there.

    Confined, but for `something`. clock: seconds, monotonic; any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._total = 0.0
        self._began: float | None = None
        self._ended: float | None = None
        self._from: dict[str, float] = {}

    def begin(self, split_ids: Collection[str]) -> None:
        """Begin to count for these splits, again."""
        self._from.update(dict.fromkeys(split_ids, self._total))

    def forget(self, split_id: str) -> None:
        """Count for this split no more."""
        self._from.pop(split_id, None)

    def nothing(self) -> None:
        """A poll has found nothing."""
        now = self._clock()
        # Whatever rang in between: there were no rows up to now.
        if self._began is not None:
            self._total += now - self._began
        self._began, self._ended = now, None

    def something(self) -> None:
        """Rows may be there from now on. Any thread."""
        if self._ended is None:
            self._ended = self._clock()

    def found(self) -> None:
        """A poll has found rows."""
        began, ended = self._began, self._ended
        self._began = None
        if began is not None and ended is not None:
            self._total += max(0.0, ended - began)

    def looked(self, split_id: str) -> float:
        """Seconds counted for the split, up to the last poll that found nothing."""
        return self._total - self._from.get(split_id, self._total)


class LimitedReader(Generic[S]):
    """Polls `reader`, and holds back its splits that are beyond the limit, which is infinite at first.

    A reader that is told to pause a split has fetched some of it already: that is buffered here, and comes
    first when the split goes on. So no split gives anything beyond the limit but the batch with which it has
    passed it.

    paused_or_resumed: called when splits of the reader have been paused or resumed. came: called when rows of
    a split that is paused have come, and are buffered.
    """

    def __init__(
        self,
        reader: SourceReader[S],
        paused_or_resumed: Callable[[Collection[str], Collection[str]], None],
        came: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._told = paused_or_resumed
        self._came = came
        self._limit = math.inf
        self._watermarks: dict[str, float] = {}
        self._held: set[str] = set()
        # A split of which something is buffered is paused, held or not.
        self._buffered: dict[str, deque[tuple[Fetched, int]]] = {}
        self._nbytes = 0
        # Those of which something is buffered and which may go on, in that order.
        self._ready: dict[str, None] = {}

    def poll(self) -> Fetched | None:
        """The next rows of a split that is not held; None if there are none. Raises what the reader does."""
        for split_id in self._ready:
            return self._take_buffered(split_id)
        # spec: Alignment!Read
        while (fetched := self._reader.poll()) is not None:
            split_id = fetched.split_id
            # What is behind something that was buffered is buffered too.
            if split_id not in self._held and split_id not in self._buffered:
                return fetched
            self._buffer(split_id, fetched)
            if self._nbytes > MAX_BUFFERED_NBYTES:
                return self._take_buffered(split_id)
        return None

    @property
    def holds(self) -> bool:
        """True if any split is held."""
        return bool(self._held)

    def limit(self, to: float) -> None:
        """Splits may be read up to this event time, in seconds, from now on."""
        # spec: Alignment!Obey
        before, self._limit = self._limit, to
        if to < before:
            self._hold([each for each, at in self._watermarks.items() if at > to and each not in self._held])
        else:
            self._release([each for each in self._held if self._watermarks[each] <= to])

    def passed(self, split_id: str, watermark: float) -> None:
        """Note that what `poll` has given of the split is given out, and has brought it to this watermark."""
        self._watermarks[split_id] = watermark
        if watermark > self._limit and split_id not in self._held:
            self._hold([split_id])

    def finished(self, split_id: str) -> None:
        """The split has been given out to its end."""
        self._watermarks.pop(split_id, None)
        self._held.discard(split_id)

    def _hold(self, split_ids: Collection[str]) -> None:
        self._held.update(split_ids)
        for split_id in split_ids:
            self._ready.pop(split_id, None)
        self._order([each for each in split_ids if each not in self._buffered], ())

    def _release(self, split_ids: Collection[str]) -> None:
        self._held.difference_update(split_ids)
        self._ready.update(dict.fromkeys(each for each in split_ids if each in self._buffered))
        self._order((), [each for each in split_ids if each not in self._buffered])

    def _buffer(self, split_id: str, fetched: Fetched) -> None:
        # spec: Alignment!WakeHeld
        self._came(split_id)
        nbytes = approximate_nbytes(fetched.records)
        self._nbytes += nbytes
        self._buffered.setdefault(split_id, deque()).append((fetched, nbytes))

    def _take_buffered(self, split_id: str) -> Fetched:
        buffered = self._buffered[split_id]
        fetched, nbytes = buffered.popleft()
        self._nbytes -= nbytes
        if not buffered:
            del self._buffered[split_id]
            self._ready.pop(split_id, None)
            if not fetched.finished and split_id not in self._held:
                self._order((), (split_id,))
        return fetched

    def _order(self, pause: Collection[str], resume: Collection[str]) -> None:
        if pause or resume:
            self._reader.pause_or_resume_splits(pause, resume)
            self._told(pause, resume)
