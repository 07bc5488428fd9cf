"""The job without Spark: a `StreamTask` that reads the source, asks, and writes Parquet. Exactly once.

A checkpoint has two sides. What the task has read, what is asked for and what was answered stand in one
file; rows that have left stand in the Parquet file of their checkpoint. That one gets its name when the
checkpoint is durable: killed before, it is removed and its rows come again; killed after, it is renamed at
the next start.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import itertools
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from pillarbox import Options, Retry
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.sources import Source, SourceCoordinator, SourceInput
from pillarbox.task import Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, CheckpointOptions
from pillarbox.task.protocols import RowBatch

CHECKPOINT_INTERVAL_S = 0.5
SCHEMA = pa.schema(
    [("order", pa.int64()), ("parcels", pa.int32()), ("place", pa.string()), ("pence", pa.int32())]
)
UNALIGNED = CheckpointOptions(aligned=False)


class Orders(Operator):
    """Makes rows of Kafka's records."""

    uid = "orders"

    def process(self, records: pa.RecordBatch) -> None:
        """Emit the orders in the values of a batch."""
        self.output.collect(RowBatch([json.loads(value) for value in records["value"].to_pylist()]))


class ParquetOutput:
    """Writes the rows in front of each barrier into a file, which counts once it is committed."""

    is_available = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def restore(self, checkpoint: int) -> bool:
        """Commit the files of durable checkpoints, remove others; True if the job was done."""
        for file in self._folder.glob("*.pending"):
            number = int(file.stem)
            if number <= checkpoint:
                self.commit(number)
            else:
                file.unlink()
        # Behind the last checkpoint only the end writes.
        return any(int(file.stem) > checkpoint for file in self._folder.glob("*.parquet"))

    def collect(self, results: RowBatch) -> None:
        """Take rows with their quotes."""
        self._rows += [{**call.row, **quote} for call, quote in results.rows]

    def emit_watermark(self, timestamp: float) -> None:
        """Ignore event time."""

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Write the file of a checkpoint."""
        self.write(barrier.id)

    def write(self, number: int) -> None:
        """Write what was collected; it does not count yet."""
        rows, self._rows = self._rows, []
        with open(self._folder / f"{number}.pending", "wb") as file:
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), file)
            file.flush()
            os.fsync(file.fileno())

    def commit(self, number: int) -> None:
        """Give a file its name."""
        os.replace(self._folder / f"{number}.pending", self._folder / f"{number}.parquet")

    def call_when_room(self, wake: Any) -> None:
        """Never asked for: there is always room."""
        raise AssertionError


class Checkpoints:
    """The newest checkpoint, in one file that is whole or is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, snapshot: Any, source: dict[str, Any]) -> None:
        """Keep a snapshot of the task and the checkpoint of its source, durably."""
        encoded = base64.b64encode(pickle.dumps(snapshot)).decode()
        new = self._path.with_suffix(".new")
        with open(new, "w") as file:
            json.dump({"task": encoded, "source": source}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)

    def newest(self) -> tuple[Any, dict[str, Any] | None]:
        """The newest kept snapshot; nothing at the first start."""
        if not self._path.exists():
            return None, None
        kept = json.loads(self._path.read_text())
        # Whoever may write this file may run code here: keep it where only this job writes.
        return pickle.loads(base64.b64decode(kept["task"])), kept["source"]


async def run(source: Source[Any, Any], quote: Any, retry: Retry, out: Path) -> None:
    """Read `source`, which is bounded, to its end, from the newest checkpoint on."""
    output = ParquetOutput(out / "orders")
    checkpoints = Checkpoints(out / "checkpoint")
    snapshot, known = checkpoints.newest()
    done = -1 if snapshot is None else snapshot.barrier.id
    if output.restore(done):
        return
    options = Options(ordered=False, capacity=64, timeout=10.0, retry=retry)
    async with quote:
        operator = AsyncWaitOperator(
            quote, options, loop=asyncio.get_running_loop(), context=contextvars.copy_context(), uid="quote"
        )
        with SourceCoordinator(source, 1, checkpoint=known) as coordinator:
            job = StreamTask(SourceInput(coordinator.link(0), source), [Orders(), operator], output)
            if snapshot is not None:
                job.restore(snapshot)
            running = asyncio.ensure_future(job.run_async())
            for number in itertools.count(done + 1):
                await asyncio.wait([running], timeout=CHECKPOINT_INTERVAL_S)
                if running.done():
                    break
                try:
                    snapshot = await asyncio.wrap_future(job.trigger_checkpoint_async(number, UNALIGNED))
                except CheckpointDeclined:
                    continue
                part = coordinator.snapshot({0: snapshot.input})
                await asyncio.to_thread(checkpoints.write, snapshot, part)
                coordinator.complete(part)
                output.commit(number)
            await running
            # Behind the last checkpoint: named at once, as nothing comes after it.
            output.write(number)
            output.commit(number)
