"""Event-time alignment of a stream: how far each split may be read in the next micro-batch.

Confined to the enumerator's thread. What is decided is `pillarbox.sources.alignment`'s; here it meets slices:
they are cut where the enumerator knows the position of a time, and else a split that is ahead waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pillarbox.sources.alignment import Alignment, HoldReport
from pillarbox.sources.enumerator import ReadLimit, SplitEnumerator
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


@dataclass(frozen=True)
class Readable(Generic[S]):
    """The part of a split that may be read. A plain value."""

    rest: S
    one_row: bool = False
    """True if one row may be read at most: enough to learn where the split is in time."""
    else_one_of: S | None = None
    """One row of this may be read where nothing of `rest` is there: over a gap in time."""


class Aligner(Generic[S]):
    """Holds back splits that are more than `max_drift` seconds ahead of the slowest.

    A split of which nothing was read yet is read for one row, where there are others: then it is known where
    it is. The slowest may always be read, were it for one row. One with nothing to read for `idle_after`
    seconds counts for nothing until it has been read again; one that is held back does not become idle.
    """

    def __init__(self, strategy: WatermarkStrategy, clock: Callable[[], float] = time.monotonic) -> None:
        assert strategy.max_drift is not None
        self._out_of_order = strategy.out_of_order
        self._idle_after = strategy.idle_after
        self._max_drift = strategy.max_drift
        self._clock = clock
        self._alignment = Alignment(strategy.max_drift)
        self._open: set[str] = set()
        self._nothing_since: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._slowest: float | None = None
        self._resting: set[str] = set()
        self._alone = False
        self._held: dict[str, S] = {}
        self.holds = HoldReport(strategy.idle_after, clock)
        """Its `hold` is for any thread."""

    def begin(self, splits: Iterable[S], times: Mapping[str, float]) -> None:
        """Go on from an offset: these splits are open, and stand there."""
        self._alignment = Alignment(self._max_drift)
        self._open = {split.split_id for split in splits}
        self._nothing_since.clear()
        self._resting.clear()
        self._alignment.report({name: at for name, at in times.items() if name in self._open})

    def opened(self, splits: Iterable[S]) -> None:
        """These were discovered."""
        self._open.update(split.split_id for split in splits)

    def finished(self, split_id: str) -> None:
        """The split is read to its end, by the micro-batch that was planned."""
        # Before its tasks report it: it must not count when they do.
        self._open.discard(split_id)
        self._nothing_since.pop(split_id, None)
        self._resting.discard(split_id)
        self._alignment.forget([split_id])

    def report(self, latest: Mapping[str, float]) -> None:
        """Tasks have read splits up to these event times, in seconds. Those that are not open are ignored."""
        known = self._alignment.watermarks()
        read = {
            name: max(at - self._out_of_order, known.get(name, -math.inf))
            for name, at in latest.items()
            if name in self._open
        }
        self._resting -= read.keys()
        for name in read:
            self._nothing_since.pop(name, None)
        self._alignment.report(read)

    def plan(self) -> None:
        """A micro-batch is planned."""
        if self._idle_after is not None:
            due = self._clock() - self._idle_after
            for name, since in self._nothing_since.items():
                if since <= due:
                    self.rests(name)
        self._times = self._alignment.watermarks()
        self._slowest = self._alignment.slowest()
        self._alone = len(self._times) - len(self._resting) == 1

    def readable(self, rest: S, enumerator: SplitEnumerator[S, Any]) -> Readable[S] | None:
        """Give what may be read of a split; None while it is held back."""
        at = self._times.get(rest.split_id)
        if self._slowest is None:
            return Readable(rest, at is None and len(self._open) > 1)
        if self._alone and at == self._slowest and rest.split_id not in self._resting:
            # All the others rest.
            return Readable(rest)
        limit = self._alignment.may_read_to()
        position = enumerator.position_at(rest, limit + self._out_of_order)
        if position is None:
            if at is None:
                return Readable(rest, True)
            if at <= limit:
                return Readable(rest)
            self._held[rest.split_id] = rest
            return None
        else_one_of = rest if at is not None and at <= self._slowest else None
        if isinstance(position, int):
            position = max(position, rest.start or 0)
            if isinstance(rest.stop, int):
                position = min(position, rest.stop)
        if position == rest.start and else_one_of is None:
            self._held[rest.split_id] = rest
            return None
        return Readable(rest.up_to(position), else_one_of=else_one_of)

    def planned(self, anything: bool, enumerator: SplitEnumerator[S, Any]) -> None:
        """A micro-batch has been planned, and `anything` is read: note who is held where nothing is."""
        held, self._held = self._held, {}
        # One that has nothing to read is not held: whether they have any, one row says.
        if anything or not any(enumerator.advance(each, ReadLimit(rows=1)) for each in held.values()):
            held = {}
        self.holds.update({name: self._times[name] for name in held}, self._alignment.waited_for())

    def has_something(self, split_id: str) -> None:
        """There was something to read of the split, or it is held back."""
        self._nothing_since.pop(split_id, None)

    def has_nothing(self, split_id: str) -> None:
        """There was nothing to read of the split."""
        self._nothing_since.setdefault(split_id, self._clock())

    def rests(self, split_id: str) -> None:
        """Nobody waits for the split until it has been read again."""
        if split_id in self._alignment.watermarks():
            self._resting.add(split_id)
            self._alignment.report({split_id: None})

    def times(self) -> dict[str, float]:
        """The watermarks that are known, in seconds, by split id."""
        return self._alignment.watermarks()
