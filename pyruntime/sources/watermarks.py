"""How event time is read off records: `WatermarkStrategy`. A plain value, any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WatermarkStrategy:
    """Which event time a record has, how late it may come, and how far splits may drift apart.

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
