"""The job without Spark: `pillarbox.run` reads the source, asks, and writes Parquet. Exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pillarbox
from pillarbox import Retry, Step
from pillarbox.job import ParquetSink
from pillarbox.sources import Source

COLUMNS = [("order", "int64"), ("parcels", "int32"), ("place", "string"), ("pence", "int32")]


async def order_of(record: Any) -> dict[str, Any]:
    """The order in a record of the topic, which Spark takes out of it by `from_json`."""
    return dict(json.loads(record.value))


def run(source: Source[Any, Any], quote: Any, retry: Retry, out: Path) -> None:
    """Read `source` to its end, from the newest checkpoint on."""
    functions = [order_of, Step(quote, uid="quote", capacity=64, timeout=10.0, retry=retry)]
    job = pillarbox.run(
        source,
        functions,
        ParquetSink(out / "orders", COLUMNS),
        checkpoints=out / "checkpoint",
        interval=0.5,
        columns=["value"],
        ordered=False,
    )
    job.wait()
