"""One read of a source, and its options: `Read`. A plain value that pickles, for planner and tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pyarrow as pa

from pillarbox.spark.source.named import AnySource
from pillarbox.spark.source.options import SourceOptions


@dataclass(frozen=True)
class Read:
    """One read of a source. Its text shows no option of the source."""

    source: AnySource = field(repr=False)
    options: SourceOptions = field(repr=False)
    schema: pa.Schema
    """As Spark wants the rows."""
    parallelism: int | None = None
    """The tasks that Spark runs at a time, where it is known."""

    @property
    def partitions(self) -> int:
        """The most tasks: what the option says, or else what Spark runs at a time, or this machine."""
        return self.options.partitions or self.parallelism or os.cpu_count() or 1
