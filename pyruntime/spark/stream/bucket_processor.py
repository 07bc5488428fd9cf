"""What `async_stream` runs for each bucket of a micro-batch. For the task's thread.

A bucket comes in a micro-batch in which it has input, and in each one in which the clock has moved. It emits
what its committed state has to leave, and writes its next state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pillarbox.spark.arrow_io import from_ipc
from pillarbox.spark.function import name_of, ship
from pillarbox.spark.ledger_plan import BATCH, QUERY
from pillarbox.spark.letters import LetterWriter
from pillarbox.spark.stream.bucket_state import Ints, StreamStateError, conform, decode, encode, joined
from pillarbox.spark.stream.call_client import CallClient
from pillarbox.spark.stream.pack import (
    BUCKET,
    BUCKETS,
    HASH,
    KEY,
    LEAVING,
    NUMBER,
    PACKED,
    PART,
    READ,
    ROWS,
    Pack,
)
from pillarbox.spark.stream.plan import StreamPlan

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import TimerValues

JOB_GROUP = "spark.jobGroup.id"
"""The local property that has the id of the query's run."""

TIME = "time"
"""The column with the time of the micro-batch; one that began with underscores did not reach a processor."""

DELETION_INTERVAL = 4
"""Micro-batches of a bucket from one look for files of the ledger that it needs no more to the next."""


def through_buckets(df: DataFrame, plan: StreamPlan, key: Column, row: Column, clock: DataFrame) -> DataFrame:
    """The output of the stream of `plan` over `df`, in blobs that `Unpack` unpacks. On the driver.

    key, row: hashes of the key and of the whole of a row. clock: has a row in a micro-batch that is to open
    all buckets.
    """
    # The one clock of Spark that is the same in every execution and replay of a micro-batch; `now()` is not.
    time = F.unix_millis(F.current_timestamp())
    hashed = df.withColumn(HASH, row).withColumn(KEY, key)
    if plan.payload is not None:
        hashed = hashed.withColumn(READ, time)
    packed = hashed.mapInArrow(ship(Pack(plan.payload).run, name_of(plan.work.fn)), PACKED)
    ticks = clock.select(F.explode(F.array(*map(F.lit, BUCKETS))).alias(BUCKET))
    ticks = ticks.select(
        BUCKET, *[F.lit(None).cast(each.dataType).alias(each.name) for each in PACKED.fields[1:]]
    )
    timed = packed.union(ticks).withColumn(TIME, time)
    return timed.groupBy(BUCKET).transformWithStateInPandas(BucketProcessor(plan), LEAVING, "Append", "None")


class BucketProcessor(StatefulProcessor):
    """The processor that Spark runs. Sent to the workers as it is; made anew for each partition."""

    def __init__(self, plan: StreamPlan) -> None:
        self._plan = plan
        self._client: CallClient | None = None
        self._letters: LetterWriter | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark's: before all else, and once on the driver."""
        self._state = handle.getValueState("pending", "blob binary")

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Spark's: one bucket, with its input or without."""
        import pandas as pd

        plan = self._plan
        parts: list[tuple[int, int, bytes]] = []
        time_ms, ticked = -1, False
        for each in rows:
            time_ms = int(each[TIME].iloc[0])
            for part, number, blob in zip(each[PART], each[NUMBER], each[ROWS], strict=True):
                if blob is None:
                    # The clock's.
                    ticked = True
                else:
                    parts.append((int(part), int(number), bytes(blob)))
        found = self._state.get()
        state = decode(None if found is None else bytes(found[0]), plan.state_columns, plan.state_output)
        for blob in state.leaving:
            yield pd.DataFrame({ROWS: [blob]})
        for blob in state.letters:
            self._put_aside(next(from_ipc(blob)))
        waiting = 0 if state.waiting is None else state.waiting.num_rows
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH)
        come, keys, hashes = _read(parts)
        if come is not None:
            # As those of the state are: Spark's own types differ in time zones, and in what may be null.
            come = conform(come, plan.state_columns)
        number = -1 if batch is None else int(batch)
        all_rows = state.with_rows(come, time_ms, keys, hashes, batch=number)
        known = None
        # Where nothing waits any more, what the bucket has waited for is released.
        if all_rows is not None or found is not None:
            known = self._calls().advance(int(key[0]), time_ms, all_rows, waiting, ticked=ticked)
            if all_rows is not None:
                known = known.beside(all_rows, plan.state_kept)
        # spec: StreamState!Record, StreamSegments!Record
        blob = encode(state.after(all_rows, known, ordered=plan.ordered), plan.state_output)
        if blob is not None:
            self._state.update((blob,))
        elif found is not None:
            self._state.clear()
        # By the state that was read, as another execution of this micro-batch reads it too.
        # spec: StreamSegments!Delete
        if plan.payload is not None and not state.generation % DELETION_INTERVAL:
            plan.payload.delete(int(key[0]), state, time_ms)

    def close(self) -> None:
        """Spark's: the partition is through."""
        if self._letters is not None:
            self._letters.commit()
        if self._client is not None:
            self._client.close()

    def _put_aside(self, letters: pa.RecordBatch) -> None:
        if self._letters is None:
            if self._plan.work.letters is None:
                raise StreamStateError(
                    "it has dead letters, and async_stream has no dead_letter= now: let the query run to its "
                    "end with one (trigger availableNow), then take it away"
                )
            self._letters = LetterWriter(self._plan.work.letters)
        self._letters.add_letters(letters)

    def _calls(self) -> CallClient:
        if self._client is None:
            context = TaskContext.get()
            assert context is not None
            query, run = context.getLocalProperty(QUERY), context.getLocalProperty(JOB_GROUP)
            self._client = CallClient(self._plan, query, run if _is_run(run) else None)
        return self._client


def _is_run(group: str | None) -> bool:
    """Return True if a job group is a query's run, and not one that a sink has set for its own jobs."""
    try:
        return group is not None and str(uuid.UUID(group)) == group
    except ValueError:
        return False


def _read(parts: list[tuple[int, int, bytes]]) -> tuple[pa.RecordBatch | None, Ints, Ints]:
    """The rows of a bucket's pieces, in the order in which they came, and their hashes."""
    batches = [batch for _, _, blob in sorted(parts, key=lambda piece: piece[:2]) for batch in from_ipc(blob)]
    if not batches:
        none: Ints = np.zeros(0, np.int64)
        return None, none, none
    whole = joined(batches)
    names = whole.schema.names
    keys, hashes = (whole.column(names.index(name)).to_numpy() for name in (KEY, HASH))
    return whole.select([name for name in names if name not in (KEY, HASH)]), keys, hashes
