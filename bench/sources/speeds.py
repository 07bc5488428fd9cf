"""A source whose splits are at very different speeds in event time: `SpeedsSource`. A value that pickles."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyarrow import compute as pc

from pillarbox.sources.connectors.generator import GeneratorSource, GeneratorSplit


@dataclass(frozen=True)
class SpeedsSource(GeneratorSource):
    """A generator whose split i is `speeds[i]` seconds of event time further with each row.

    exact: whether the enumerator knows at which row a time is.
    """

    speeds: tuple[float, ...] = (1.0,)
    exact: bool = True

    def position_at(self, split: GeneratorSplit, timestamp: float) -> int | None:
        return int(timestamp / self.speeds[split.number]) + 1 if self.exact else None

    def event_seconds(self, split: GeneratorSplit, rows: pa.Array) -> pa.Array:
        return pc.multiply(rows, self.speeds[split.number])
