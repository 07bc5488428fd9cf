"""A source whose splits are at very different speeds in event time: `SpeedsSource`. A value that pickles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pillarbox.sources import Fetched, ReaderContext, SourceReader
from pillarbox.sources.connectors.generator import (
    GeneratorEnumerator,
    GeneratorReader,
    GeneratorSource,
    GeneratorSplit,
)
from pillarbox.sources.fetching import FetchingReader, Threading


@dataclass(frozen=True)
class SpeedsSource(GeneratorSource):
    """A generator whose split i is `speeds[i]` seconds of event time further with each row.

    exact: whether the enumerator knows at which row a time is.
    """

    speeds: tuple[float, ...] = (1.0,)
    exact: bool = True

    def create_enumerator(self, context: Any) -> GeneratorEnumerator:
        return SpeedsEnumerator(context, 0, self)

    def restore_enumerator(self, context: Any, checkpoint: Any) -> GeneratorEnumerator:
        return SpeedsEnumerator(context, checkpoint, self)

    def create_reader(self, context: ReaderContext) -> SourceReader[GeneratorSplit]:
        return FetchingReader(
            context, lambda: SpeedsReader(self, context.schema), threading=Threading.MANY_SPLITS
        )


class SpeedsEnumerator(GeneratorEnumerator):
    """Knows the speeds of splits, or says that it does not."""

    def __init__(self, context: Any, checkpoint: Any, source: SpeedsSource) -> None:
        super().__init__(context, checkpoint, source)
        self._speeds = source.speeds if source.exact else ()

    def position_at(self, split: GeneratorSplit, timestamp: float) -> Any:
        return int(timestamp / self._speeds[split.number]) + 1 if self._speeds else None


class SpeedsReader(GeneratorReader):
    """Makes the generator's rows, at the times of their speeds."""

    def __init__(self, source: SpeedsSource, wanted: pa.Schema | None) -> None:
        super().__init__(source, wanted)
        self._speeds = source.speeds

    def fetch(self) -> Sequence[Fetched]:
        return [self._at_its_speed(each) for each in super().fetch()]

    def _at_its_speed(self, fetched: Fetched) -> Fetched:
        batch = fetched.records
        assert isinstance(batch, pa.RecordBatch)
        rows = np.asarray(batch.column("id")) // len(self._speeds)
        micros = (rows * (self._speeds[int(fetched.split_id)] * 1e6)).astype(np.int64)
        columns = batch.columns
        at = batch.schema.get_field_index("event_time")
        columns[at] = pa.array(micros).cast(batch.schema.field(at).type)
        return fetched._replace(records=pa.RecordBatch.from_arrays(columns, schema=batch.schema))
