"""Event-time alignment: which splits wait, so that none is far ahead of the slowest. Pure state.

The idea is Flink's (FLIP-182, FLIP-217). A split that nobody has begun counts for nothing, for it may wait
behind one that would be held because of it; nor does one that is idle. So whoever is held waits for a split
that is read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Orders(NamedTuple):
    """Splits to hold back from now on, and splits to let go. Sorted."""

    hold: tuple[str, ...]
    release: tuple[str, ...]


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
        self._held: set[str] = set()

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """What readers say of their splits: a watermark in seconds, or None for a split that is idle.

        Of an idle split the last watermark is kept: it may be held, and holds nobody. Raises ValueError for
        what is no time.
        """
        for split_id, watermark in watermarks.items():
            if watermark is None:
                # spec: Alignment!GoIdle
                self._idle.add(split_id)
                continue
            if math.isnan(watermark):
                raise ValueError(f"watermark={watermark!r} of split {split_id!r}: must be a time in seconds")
            # spec: Alignment!Report, Alignment!Wake
            self._watermarks[split_id] = watermark
            self._idle.discard(split_id)

    def forget(self, split_ids: Collection[str]) -> None:
        """These splits have been read to their end, or are no longer where they were reported from."""
        # spec: Alignment!Finish, Alignment!Move
        for split_id in split_ids:
            self._watermarks.pop(split_id, None)
            self._idle.discard(split_id)
            self._held.discard(split_id)

    def slowest(self) -> float | None:
        """The least watermark of the splits that are being read; None if none is."""
        read = (time for split_id, time in self._watermarks.items() if split_id not in self._idle)
        return min(read, default=None)

    def may_read_to(self) -> float:
        """Up to which event time splits may be read now. Infinite if nobody has to be waited for."""
        slowest = self.slowest()
        return math.inf if slowest is None else slowest + self.max_drift

    def held(self) -> frozenset[str]:
        """The splits that the last `orders` have left held."""
        return frozenset(self._held)

    def watermarks(self) -> dict[str, float]:
        """The last watermark of each split, for a checkpoint; `report` takes it back."""
        return dict(self._watermarks)

    def orders(self) -> Orders:
        """What has changed since the last call. Whoever asks must see to it that it is done."""
        limit = self.may_read_to()
        held = {split_id for split_id, time in self._watermarks.items() if time > limit}
        # spec: Alignment!Hold, Alignment!Release
        orders = Orders(tuple(sorted(held - self._held)), tuple(sorted(self._held - held)))
        self._held = held
        return orders
