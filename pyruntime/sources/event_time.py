"""Event time in a reader: strategy, the latest time of a batch, watermarks of splits, idleness, the limit.

Confined to whoever reads. All times are seconds since 1970. That each split has a watermark of its own, so
that one which is ahead does not make the records of another late, is Flink's (FLIP-27), as is that the splits
ahead wait for the slowest (FLIP-182, FLIP-217).
"""

# Why idleness is judged by looking and not by the clock. A split is silent in two cases: it has no records,
# or they are there and nobody has taken them, since the task is held up by slow calls behind. In the second
# its records are coming, and to call it idle would let the watermark run past them: they would be late for
# no reason of their own. So the time counts only while somebody has looked (`looked`).
#
# Why the lowest is held, and found anew only when it moves: a reader may have thousands of splits, and each
# batch changes one. The same with `_next_idle`: no look at all splits before one of them can have become
# idle.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox.sources.reader import Fetched, SourceReader
from pillarbox.validate import check_callable, check_duration

if TYPE_CHECKING:
    import pyarrow as pa

TOLERANCE_S = 1e-6
"""Seconds that make no difference: sums of times are not exact."""
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
REPORT_INTERVAL_S = 0.1
"""Seconds between two reports of watermarks to the coordinator."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """Event time of records, their lateness, and the drift allowed between splits.

    timestamp: the name of a column, or a function of a record, that gives its event time: seconds since
        1970, or an Arrow timestamp; None if the reader gives it (`Fetched.timestamp`).
    out_of_order: seconds by which a record may be earlier than one before it in its split. The watermark of a
        split is its latest event time less this.
    idle_after: seconds of fetching without a record after which a split is idle: its watermark is ignored
        until it has a record again. It must be longer than a fetch takes. None: never.
    max_drift: seconds by which the watermark of a split may be ahead of the slowest one's that is not idle,
        of all readers of the source; beyond that the split is paused. None: no limit.

        >>> from pillarbox.sources import WatermarkStrategy
        >>> WatermarkStrategy("event_time", out_of_order=5.0, idle_after=60.0).max_drift is None
        True

    A value; any thread may use it. Raises TypeError or ValueError, which names the field, for a bad one.
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
        # NaT of pandas is one.
        if value != value:
            return None
        return (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).timestamp()
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"event time {value!r}: must be a number of seconds, a datetime or a date, "
            f"not {type(value).__name__}"
        ) from None
    # As a maximum NaN would stay for ever, since it compares false with every time that follows.
    return None if math.isnan(seconds) else seconds


def _place(timestamp: str, columns: Sequence[str]) -> int:
    if timestamp not in columns:
        raise ValueError(f"timestamp={timestamp!r}: must be one of the columns {list(columns)}")
    return list(columns).index(timestamp)


def _latest_in_column(batch: pa.RecordBatch, name: str) -> float | None:
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

    since: float
    """The time of its last record, or at which it was begun or resumed, by the clock."""
    watermark: float = -math.inf
    idle: bool = False
    paused: bool = False
    """True if it is beyond the limit, and its reader was told to give nothing of it."""


class SplitWatermarks:
    """Keeps the watermarks of the splits of `reader`: the lowest, what to report, and who is paused.

    A split that has had no record yet holds the lowest back, until it is idle. It is idle if it has had
    nothing for `idle_after` seconds, not if its records are there and nobody has taken them: nor is one for
    which nobody has looked, as `looked` of the reader says. A reader without that method is taken to have
    what there is when it is polled: its splits become idle when it has nothing at all.

    With a `max_drift`, changes are there to be reported, and the limit that comes back is obeyed: a split
    that is not idle and has passed it with a batch is paused. It does not become idle meanwhile, as its
    records are there.

    Confined. columns: as in `EventTimes`. clock: seconds, monotonic. report_interval: seconds between
    two reports. Raises what `EventTimes` does.
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
        self._report_interval = report_interval
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
        self._highest = -math.inf
        self._paused = 0
        # Watermarks that are not reported; None for a split that is idle. Without `max_drift` none is.
        self._changed: dict[str, float | None] = {}
        self._report_at = math.inf if strategy.max_drift is None else -math.inf

    def add(self, split_ids: Collection[str]) -> None:
        """These splits are there; nothing is known of them."""
        for split_id in split_ids:
            self._splits[split_id] = _SplitTime(self._clock())
            self._next_idle = min(self._next_idle, self._clock() + self._idle_after)
        self._lowest = None

    def passed(self, fetched: Fetched) -> None:
        """Note that these rows are given out."""
        # spec: Alignment!Read, Alignment!Wake
        split_id = fetched.split_id
        split = self._splits[split_id]
        if len(fetched.records) or fetched.timestamp is not None:
            if split.idle:
                split.idle, self._lowest = False, None
                if split.watermark > -math.inf:
                    self._changed[split_id] = split.watermark
            split.since = self._clock()
            self._next_idle = min(self._next_idle, split.since + self._idle_after)
            latest = self._event_times.latest(fetched)
            if latest is not None and latest - self._out_of_order > split.watermark:
                split.watermark = self._changed[split_id] = latest - self._out_of_order
                self._highest = max(self._highest, split.watermark)
                if split is self._lowest:
                    self._lowest = None
        if fetched.idle:
            self._set_idle(split_id, split)
        if fetched.finished:
            # Nobody waits for it.
            self._paused -= split.paused
            del self._splits[split_id]
            self._changed.pop(split_id, None)
            self._lowest = None
        elif split.watermark > self._limit:
            self._obey([split_id])

    def limit(self, to: float) -> None:
        """Splits may be read up to this event time from now on: pause those beyond, resume the others."""
        # spec: Alignment!Obey
        self._limit = to
        if self._paused or to < self._highest:
            self._obey(self._splits)

    def merged(self, *, waiting: bool) -> tuple[float, bool]:
        """The lowest watermark of the splits that are not idle, and whether all are, or there is none.

        It is never less than it was, and -inf while it is unknown. Finds those that have become idle.
        waiting: the last `poll` of the reader has found nothing.
        """
        if self._clock() >= self._next_idle and (waiting or self._looked is not None):
            self._find_idle()
        if self._lowest is None:
            live = (split for split in self._splits.values() if not split.idle)
            self._lowest = min(live, key=attrgetter("watermark"), default=None)
        if self._lowest is not None:
            # A split that is new, or idle no more, may be behind: a watermark that was said cannot be taken
            # back.
            self._merged = max(self._merged, self._lowest.watermark)
        return self._merged, self._lowest is None

    def report(self, *, waiting: bool) -> dict[str, float | None]:
        """The watermarks that have changed since the last report, as `merged` found them; None: it is idle.

        Nothing if it is too early for a report. waiting: as above; then it is not too early if a split is
        paused, as it may be what is to be reported that all wait for.
        """
        now = self._clock()
        if not self._changed or (now < self._report_at and not (waiting and self._paused)):
            return {}
        self._report_at = now + self._report_interval
        changed, self._changed = self._changed, {}
        return changed

    @property
    def next_moment(self) -> float | None:
        """The moment, by the clock, at which a split may be idle, or a report is due; None: never."""
        moment = min(self._next_idle, self._report_at) if self._changed else self._next_idle
        return None if moment == math.inf else moment

    def _set_idle(self, split_id: str, split: _SplitTime) -> None:
        # spec: Alignment!GoIdle
        split.idle, self._lowest = True, None
        self._changed[split_id] = None

    def _obey(self, split_ids: Collection[str]) -> None:
        change: dict[bool, list[str]] = {True: [], False: []}
        for split_id in split_ids:
            split = self._splits[split_id]
            # One that is idle gives nothing anyway, and is looked for, so that it can wake.
            beyond = split.watermark > self._limit and not split.idle
            if beyond != split.paused:
                split.paused, split.since = beyond, self._clock()
                self._next_idle = min(self._next_idle, split.since + self._idle_after)
                change[beyond].append(split_id)
        self._paused += len(change[True]) - len(change[False])
        if change[True] or change[False]:
            self._reader.pause_or_resume_splits(change[True], change[False])

    def _find_idle(self) -> None:
        now, after, self._next_idle = self._clock(), self._idle_after, math.inf
        for split_id, split in self._splits.items():
            if split.idle or split.paused:
                continue
            due = split.since + after
            if due <= now:
                left = 0.0 if self._looked is None else after - self._looked(split_id)
                if left <= TOLERANCE_S:
                    self._set_idle(split_id, split)
                    continue
                # Not much sooner either: it may come nearer by little.
                due = now + max(left, after / 16)
            self._next_idle = min(self._next_idle, due)
