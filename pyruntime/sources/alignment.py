"""Event-time alignment: how far splits may be read, so that none is far ahead of the slowest. Pure state."""

# The idea is Flink's (FLIP-182, FLIP-217). A split that nobody has begun counts for nothing, for it may wait
# behind one that would be held because of it; nor does one that is idle. So whoever is held waits for a split
# that is read.
#
# A reader could hold its own splits by what it hears of the others' watermarks. Then two readers that hear
# of each other late could both stand still, each waiting for the other, and nobody could tell why: so the
# coordinator decides, with all watermarks before it, and says a limit. A limit in time, and not a list of
# splits, is what a reader can apply to a split that it begins between two messages.

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

log = logging.getLogger("pillarbox")

HOLD_LOGGED_AFTER_S = 10.0
"""A hold that lasts so long is said in the log: shorter ones are the work of alignment."""
MAX_SPLITS_NAMED = 10


@dataclass(frozen=True)
class Hold:
    """Splits that are held back, and those that they wait for. A plain value.

    Both by split id, with watermarks in seconds.
    """

    held: Mapping[str, float]
    waits_for: Mapping[str, float]
    since: float
    """Seconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        """For a report of progress: at most ten splits of each kind, and how many there are."""
        since = datetime.fromtimestamp(self.since, timezone.utc).isoformat()
        named = {"held": self._some(self.held), "waits_for": self._some(self.waits_for)}
        return {**named, "held_splits": len(self.held), "since": since}

    def __str__(self) -> str:
        return (
            f"event-time alignment holds back {len(self.held)} splits, as {self._some(self.held)}, since "
            f"{datetime.fromtimestamp(self.since, timezone.utc):%Y-%m-%d %H:%M:%S} UTC: they wait for "
            f"{self._some(self.waits_for)}, of which nothing comes"
        )

    @staticmethod
    def _some(splits: Mapping[str, float]) -> dict[str, float]:
        return {name: splits[name] for name in sorted(splits)[:MAX_SPLITS_NAMED]}


class HoldReport:
    """Notes who holds whom and since when, and says it in the log once, when it lasts. Confined.

    idle_after: as in the strategy; None if that is not known here. clock: seconds, monotonic.
    """

    def __init__(self, idle_after: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.hold: Hold | None = None
        """The one that is now. Any thread."""
        self._idle_after = idle_after
        self._clock = clock
        self._log_at: float | None = None

    def update(self, held: Mapping[str, float], waits_for: Mapping[str, float]) -> float | None:
        """These wait for those now. Returns when to be called again to say so, by the clock; None: never."""
        if not held:
            self.hold = self._log_at = None
        elif self.hold is None or self.hold.waits_for != waits_for:
            self.hold = Hold(held, waits_for, time.time())
            self._log_at = self._clock() + HOLD_LOGGED_AFTER_S
        elif self._log_at is not None and self._clock() >= self._log_at:
            self._log_at = None
            what = "give idle_after, so that a split without rows is not waited for"
            if self._idle_after is not None:
                what = f"they go on when these have rows, or are idle for idle_after={self._idle_after:g} s"
            log.warning("%s; %s", self.hold, what)
        return self._log_at


class Alignment:
    """Keeps the watermarks of splits within `max_drift` seconds of the slowest. Confined to one thread.

    Raises ValueError unless max_drift is 0 or more; math.inf holds nobody.
    """

    def __init__(self, max_drift: float) -> None:
        if not max_drift >= 0.0:
            raise ValueError(f"max_drift={max_drift!r}: must be 0 seconds or more")
        self.max_drift = max_drift
        self._watermarks: dict[str, float] = {}
        self._idle: set[str] = set()

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """Take what readers say of their splits: a watermark in seconds, or None for a split that is idle.

        Of an idle split the last watermark is kept: it may be held, and holds nobody. Raises ValueError for
        what is not a time.
        """
        # spec: Alignment!Hear
        for split_id, watermark in watermarks.items():
            if watermark is None:
                self._idle.add(split_id)
                continue
            if math.isnan(watermark):
                raise ValueError(f"watermark={watermark!r} of split {split_id!r}: must be a time in seconds")
            self._watermarks[split_id] = watermark
            self._idle.discard(split_id)

    def forget(self, split_ids: Collection[str]) -> None:
        """These splits have been read to their end, or are no longer where they were reported from."""
        # spec: Alignment!Finish, Alignment!Die
        for split_id in split_ids:
            self._watermarks.pop(split_id, None)
            self._idle.discard(split_id)

    def slowest(self) -> float | None:
        """The least watermark of the splits that are being read; None if none is."""
        read = (time for split_id, time in self._watermarks.items() if split_id not in self._idle)
        return min(read, default=None)

    def waited_for(self) -> dict[str, float]:
        """The splits that have the least watermark, with it."""
        slowest = self.slowest()
        return {name: at for name, at in self._watermarks.items() if at == slowest and name not in self._idle}

    def held(self, limit: float) -> dict[str, float]:
        """The splits that are beyond `limit` and not idle, with their watermarks."""
        return {name: at for name, at in self._watermarks.items() if at > limit and name not in self._idle}

    def may_read_to(self) -> float:
        """Up to which event time splits may be read now. Infinite if nobody has to be waited for."""
        slowest = self.slowest()
        return math.inf if slowest is None else slowest + self.max_drift

    def watermarks(self) -> dict[str, float]:
        """The last watermark of each split, for a checkpoint; `report` takes it back."""
        return dict(self._watermarks)
