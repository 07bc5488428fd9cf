"""Event-time alignment: how far splits may be read, so that none is far ahead of the slowest. Pure state.

The idea is Flink's (FLIP-182, FLIP-217). A split that nobody has begun counts for nothing, for it may wait
behind one that would be held because of it; nor does one that is idle. So whoever is held waits for a split
that is read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping


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
        """What readers say of their splits: a watermark in seconds, or None for a split that is idle.

        Of an idle split the last watermark is kept: it may be held, and holds nobody. Raises ValueError for
        what is no time.
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

    def may_read_to(self) -> float:
        """Up to which event time splits may be read now. Infinite if nobody has to be waited for."""
        slowest = self.slowest()
        return math.inf if slowest is None else slowest + self.max_drift

    def watermarks(self) -> dict[str, float]:
        """The last watermark of each split, for a checkpoint; `report` takes it back."""
        return dict(self._watermarks)
