"""Event time in a reader: strategy, the latest time of a batch, watermarks of splits, idleness, the limit.

Confined to whoever reads. All times are seconds since 1970. That each split has a watermark of its own, so
that one which is ahead does not make the records of another late, is Flink's (FLIP-27, FLIP-217).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from operator import attrgetter, itemgetter
from typing import Any

from pillarbox.sources.reader import Fetched, SourceReader, approximate_nbytes
from pillarbox.validate import check_callable, check_duration

TOLERANCE_S = 1e-6
"""Seconds that make no difference: sums of times are not exact."""
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
MAX_BUFFERED_NBYTES = 64 * 2**20
"""Bytes of splits that are held; what comes of them then is given out all the same."""
REPORT_INTERVAL_S = 0.1
"""Seconds between two reports of watermarks to the coordinator."""


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

    Raises TypeError or ValueError, which names the field, for what cannot be.
    """

    timestamp: str | Callable[[Any], float] | None = None
    out_of_order: float = 0.0
    idle_after: float | None = None
    max_drift: float | None = None

    def __post_init__(self) -> None:
        if self.timestamp is not None and not isinstance(self.timestamp, str):
            check_callable("timestamp", self.timestamp)
        check_duration("out_of_order", self.out_of_order)
        if self.idle_after is not None:
            check_duration("idle_after", self.idle_after, above_zero=True)
        if self.max_drift is not None:
            check_duration("max_drift", self.max_drift)


class EventTimes:
    """Reads the latest event time off batches. Confined.

    strategy: says where it is. A column holds timestamps of any unit, dates, or numbers of seconds; a time
        without a zone is UTC. A function is given each row of a sequence, and an Arrow batch as a whole.
    columns: the names of the columns, for rows that are tuples.

    Raises ValueError for a column that is not among `columns`.
    """

    def __init__(self, strategy: WatermarkStrategy, columns: Sequence[str] | None = None) -> None:
        self._timestamp = strategy.timestamp
        self._at: int | None = None
        if isinstance(self._timestamp, str) and columns is not None:
            self._at = _place(self._timestamp, columns)

    def latest(self, fetched: Fetched) -> float | None:
        """The latest event time in the rows: what the reader says, or else the strategy; None for none.

        Raises ValueError for a column that is not there, TypeError for a value that is not a time.
        """
        if fetched.timestamp is not None:
            return fetched.timestamp
        timestamp, records = self._timestamp, fetched.records
        if timestamp is None:
            return None
        if not isinstance(records, Sequence):
            if isinstance(timestamp, str):
                return _latest_in_column(records, timestamp)
            return seconds_of(timestamp(records))
        if isinstance(timestamp, str):
            key = timestamp if records and isinstance(records[0], Mapping) else self._at
            if key is None:
                raise ValueError(
                    f"timestamp={timestamp!r}: the rows are not Arrow batches and the source has no "
                    "arrow_schema, so that nothing says where this column is; give a function of a row"
                )
            timestamp = itemgetter(key)
        moments = map(seconds_of, map(timestamp, records))
        return max((moment for moment in moments if moment is not None), default=None)


def seconds_of(value: Any) -> float | None:
    """A time as seconds since 1970: a number, a datetime or a date, in UTC if without a zone; None for None.

    Raises TypeError for what is none of them. Any thread.
    """
    if value is None:
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).timestamp()
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"event time {value!r}: must be a number of seconds, a datetime or a date, "
            f"not {type(value).__name__}"
        ) from None
    return None if math.isnan(seconds) else seconds


def _place(timestamp: str, columns: Sequence[str]) -> int:
    if timestamp not in columns:
        raise ValueError(f"timestamp={timestamp!r}: must be one of the columns {list(columns)}")
    return list(columns).index(timestamp)


def _latest_in_column(batch: Any, name: str) -> float | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column(_place(name, batch.schema.names))
    latest = pc.max(column)
    if pa.types.is_timestamp(column.type):
        # Python's datetime has no nanoseconds.
        return None if latest.value is None else latest.value / UNITS[column.type.unit]
    return seconds_of(latest.as_py())


@dataclass(slots=True, eq=False)
class _SplitTime:
    """The event time of one split."""

    since: float = 0.0
    """The time of its last record, or at which it was begun or resumed, by the clock."""
    watermark: float = -math.inf
    idle: bool = False
    held: bool = False
    """True if it is beyond the limit."""
    buffered: deque[Fetched] = field(default_factory=deque)
    """The rows of it that came while it was held."""

    @property
    def is_paused(self) -> bool:
        """True if its reader was told to pause it: what is buffered comes first when it goes on."""
        return self.held or bool(self.buffered)


class EventTimeReader:
    """Polls `reader` and keeps the watermarks of its splits: the lowest, what to report, and who is held.

    *Watermarks.* A split that has had no record yet holds the lowest back, until it is idle. It is idle if it
    has had nothing for `idle_after` seconds, not if its records are there and nobody has taken them: one that
    is paused does not become idle, nor one for which nobody has looked, as `looked` of the reader says. One
    without that method is taken to have what there is when it is polled: its splits become idle when it has
    nothing at all.

    *The limit*, which is infinite at first. A split whose watermark is beyond it is held. A reader that is
    told to pause a split has fetched some of it already: that is buffered here, and comes first when the
    split goes on. So no split gives anything beyond the limit but the batch with which it has passed it.

    Confined. columns: as in `EventTimes`. clock: seconds, monotonic. report_interval: seconds between two
    reports. Raises what `EventTimes` does.
    """

    def __init__(
        self,
        reader: SourceReader[Any],
        strategy: WatermarkStrategy,
        columns: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        report_interval: float = REPORT_INTERVAL_S,
    ) -> None:
        self._reader = reader
        self._event_times = EventTimes(strategy, columns)
        self._out_of_order = strategy.out_of_order
        self._idle_after = math.inf if strategy.idle_after is None else strategy.idle_after
        self._clock = clock
        self._splits: dict[str, _SplitTime] = {}
        # The lowest that is not idle; None: look for it. So an update costs the same with any number of them.
        self._lowest: _SplitTime | None = None
        self._merged = -math.inf
        # No split becomes idle before.
        self._next_idle = math.inf
        self._looked: Callable[[str], float] | None = getattr(reader, "looked", None)
        self._limit = math.inf
        self._held = 0
        # Splits of which something is buffered and which may go on, in that order.
        self._ready: dict[str, None] = {}
        self._nbytes = 0
        self._changed: dict[str, float | None] = {}
        self._report_interval = report_interval
        # Without a limit nothing is reported.
        self._report_at = math.inf if strategy.max_drift is None else -math.inf

    # -- rows --------------------------------------------------------------------------------------

    def poll(self) -> Fetched | None:
        """The next rows of a split that is not held; None if there are none now. Raises as the reader."""
        if self._ready:
            return self._take_buffered(next(iter(self._ready)))
        # spec: Alignment!Read
        while (fetched := self._reader.poll()) is not None:
            # What breaks the contract of readers is for whoever refuses it.
            split = self._splits.get(fetched.split_id) if isinstance(fetched, Fetched) else None
            # What is behind something that was buffered is buffered too.
            if split is None or not split.is_paused:
                break
            if split.idle:
                self._wake(fetched.split_id, split)  # spec: Alignment!WakeHeld
            split.buffered.append(fetched)
            self._nbytes += approximate_nbytes(fetched.records)
            if self._nbytes > MAX_BUFFERED_NBYTES:
                return self._take_buffered(fetched.split_id)
        return fetched

    def passed(self, fetched: Fetched) -> None:
        """Note that the rows which `poll` gave are given out."""
        split_id = fetched.split_id
        if len(fetched.records) or fetched.timestamp is not None:
            self.seen(split_id, self._event_times.latest(fetched))
        if fetched.idle and not self._splits[split_id].is_paused:
            self._set_idle(split_id)
        if fetched.finished:
            self.remove(split_id)

    # -- splits ------------------------------------------------------------------------------------

    def add(self, split_ids: Collection[str]) -> None:
        """These splits are there; nothing is known of them."""
        for split_id in split_ids:
            split = self._splits[split_id] = _SplitTime()
            self._begin(split)
        self._lowest = None

    def remove(self, split_id: str) -> None:
        """The split is finished: nobody waits for it."""
        self._held -= self._splits.pop(split_id).held
        self._changed.pop(split_id, None)
        self._lowest = None

    def seen(self, split_id: str, latest: float | None) -> None:
        """Rows of the split have come; `latest` is the latest event time in them, None if they have none."""
        # spec: Alignment!Read, Alignment!Wake
        split = self._splits[split_id]
        if split.idle:
            self._wake(split_id, split)
        self._begin(split)
        if latest is not None and latest - self._out_of_order > split.watermark:
            split.watermark = self._changed[split_id] = latest - self._out_of_order
            if split is self._lowest:
                self._lowest = None
            if split.watermark > self._limit:
                self._obey([split_id])

    def limit(self, to: float) -> None:
        """Splits may be read up to this event time from now on."""
        # spec: Alignment!Obey
        self._limit = to
        self._obey(self._splits)

    # -- what is said of them ----------------------------------------------------------------------

    def merged(self, *, waiting: bool) -> tuple[float, bool]:
        """The lowest watermark of the splits that are not idle, and whether all are, or there is none.

        It is never less than it was, and -inf while it is unknown. Finds those that have become idle.
        waiting: the last `poll` has found nothing.
        """
        if self._clock() >= self._next_idle and (waiting or self._looked is not None):
            self._find_idle()
        if self._lowest is None:
            live = (split for split in self._splits.values() if not split.idle)
            self._lowest = min(live, key=attrgetter("watermark"), default=None)
        if self._lowest is not None:
            self._merged = max(self._merged, self._lowest.watermark)
        return self._merged, self._lowest is None

    def report(self, *, waiting: bool) -> dict[str, float | None]:
        """The watermarks that have changed since the last report, as `merged` found them; None: it is idle.

        Nothing if it is too early for a report. waiting: as above; then it is not too early if a split is
        held, as it may be what is to be reported that all wait for.
        """
        now = self._clock()
        if now < self._report_at and not (waiting and self._held):
            return {}
        changed, self._changed = self._changed, {}
        if changed:
            self._report_at = now + self._report_interval
        return changed

    @property
    def next_moment(self) -> float | None:
        """The moment, by the clock, at which a split may be idle, or a report is due; None: never."""
        moment = min(self._next_idle, self._report_at) if self._changed else self._next_idle
        return None if moment == math.inf else moment

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, split: _SplitTime) -> None:
        split.since = self._clock()
        self._next_idle = min(self._next_idle, split.since + self._idle_after)

    def _wake(self, split_id: str, split: _SplitTime) -> None:
        split.idle = False
        self._lowest = None
        if split.watermark > -math.inf:
            self._changed[split_id] = split.watermark

    def _set_idle(self, split_id: str) -> None:
        # spec: Alignment!GoIdle
        self._splits[split_id].idle = True
        self._changed[split_id] = None
        self._lowest = None

    def _find_idle(self) -> None:
        now, after, self._next_idle = self._clock(), self._idle_after, math.inf
        for split_id, split in self._splits.items():
            if split.idle or split.is_paused:
                continue
            due = split.since + after
            if due <= now:
                left = 0.0 if self._looked is None else after - self._looked(split_id)
                if left <= TOLERANCE_S:
                    self._set_idle(split_id)
                    continue
                # Not much sooner either: it may come nearer by little.
                due = now + max(left, after / 16)
            self._next_idle = min(self._next_idle, due)

    def _obey(self, split_ids: Collection[str]) -> None:
        """Hold those of the splits that are beyond the limit, and let go of the others."""
        pause, resume = list[str](), list[str]()
        for split_id in split_ids:
            split = self._splits[split_id]
            beyond = split.watermark > self._limit
            if beyond == split.held:
                continue
            split.held = beyond
            self._held += 1 if beyond else -1
            if not split.buffered:
                (pause if beyond else resume).append(split_id)
            elif beyond:
                self._ready.pop(split_id, None)
            else:
                self._ready[split_id] = None
        self._order(pause, resume)

    def _take_buffered(self, split_id: str) -> Fetched:
        split = self._splits[split_id]
        fetched = split.buffered.popleft()
        self._nbytes -= approximate_nbytes(fetched.records)
        if not split.buffered:
            self._ready.pop(split_id, None)
            if not (split.held or fetched.finished):
                self._order([], [split_id])
        return fetched

    def _order(self, pause: Collection[str], resume: Collection[str]) -> None:
        if pause or resume:
            self._reader.pause_or_resume_splits(pause, resume)
            for split_id in resume:
                self._begin(self._splits[split_id])
