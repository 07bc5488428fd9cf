"""The buckets of a stream: rows on their way to them, a micro-batch of one, and its output on its way back.

Rows are sorted into buckets by the hash of their key. A bucket comes in a micro-batch in which it has input,
and in each one in which the clock has moved. It emits what its committed state has to leave, and writes its
next state. For the tasks' threads, but for `through_buckets`.
"""

# Calls outlive the micro-batch that has read their rows. Where they may be pending meanwhile, and why not
# there:
#
# - Rows in a ListState and a timer of processing time for each: 30 times slower than one blob a bucket, and
#   processing time makes 76 empty micro-batches a minute, for ever.
# - `foreachBatch` with a table of pending rows: the operator would be no DataFrame any more, its sink the
#   user's no longer, and the table would need commits of its own, which have to agree with those of the
#   query.
# - An external queue: one more service to run, with a delivery guarantee of its own; nothing in it says which
#   of its messages a micro-batch that is replayed had read.
# - The workers: Spark gives a partition of the next micro-batch to whichever worker is idle.
#
# So what is pending is the state of `transformWithState`, a blob for each bucket, committed by Spark with the
# micro-batch, and the calls are in a process of the executor (`call_process`), which may be lost at any time.
# `transformWithState` hands rows over one by one, as Python objects: rows are packed before it and unpacked
# behind it, by `mapInArrow`, and travel through it by the thousand.

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.spark.compat import StatefulProcessor, StatefulProcessorHandle
from pillarbox.spark.error_column import PutsAside
from pillarbox.spark.ledger_plan import BATCH, QUERY
from pillarbox.spark.operator_plan import map_in_arrow, name_of
from pillarbox.spark.records import concat_rows, from_ipc, to_ipc
from pillarbox.spark.stream.bad_state import put_aside, remedy_of
from pillarbox.spark.stream.bucket_state import (
    MAX_OUTPUT_BYTES,
    BucketState,
    Ints,
    StreamPlan,
    StreamStateError,
    conform,
    decode,
    encode,
    with_columns,
)
from pillarbox.spark.stream.call_client import CallClient
from pillarbox.spark.stream.row_digests import Digests, digests_of, row_digests
from pillarbox.spark.task_connection import begin_task, make_prompt
from pillarbox.spark.worker_errors import errors_in_words

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import TimerValues

KEY, DIGEST = "__pillarbox_key", "__pillarbox_digest"
"""Columns with Spark's hash of the key, which finds the bucket, and with the digest of the whole row."""

BUCKET, PART, NUMBER, ROWS = "bucket", "part", "number", "rows"

BUCKETS = (12, 16, 5, 1, 37, 20, 2, 35, 13, 6, 49, 7, 25, 15, 4, 0)
"""The keys of the buckets, by which Spark deals them out evenly: their hashes are 0 to 15, modulo 16."""

PACKED = (
    T.StructType()
    .add(BUCKET, T.IntegerType())
    .add(PART, T.IntegerType())
    .add(NUMBER, T.LongType())
    .add(ROWS, T.BinaryType())
)
"""A piece of a bucket's input: the partition that it comes from, its place there, and its rows."""

LEAVING = T.StructType().add(ROWS, T.BinaryType())

JOB_GROUP = "spark.jobGroup.id"
"""The local property that has the id of the query's run."""

TIME = "time"
"""The column with the time of the micro-batch; one that began with underscores did not reach a processor."""


def through_buckets(df: DataFrame, plan: StreamPlan, key: Column, clock: DataFrame) -> DataFrame:
    """The output of the stream of `plan` over `df`, in blobs that `unpack` unpacks. On the driver.

    key: the hash of a row's key. clock: has a row in a micro-batch that is to open all buckets.
    """
    # The one clock of Spark that is the same in every execution and replay of a micro-batch; `now()` is not.
    time = F.unix_millis(F.current_timestamp())
    packed = map_in_arrow(df.withColumn(KEY, key), pack, name_of(plan.operator.fn), PACKED)
    ticks = clock.select(F.explode(F.array(*map(F.lit, BUCKETS))).alias(BUCKET))
    ticks = ticks.select(
        BUCKET, *[F.lit(None).cast(each.dataType).alias(each.name) for each in PACKED.fields[1:]]
    )
    timed = packed.union(ticks).withColumn(TIME, time)
    return timed.groupBy(BUCKET).transformWithStateInPandas(BucketProcessor(plan), LEAVING, "Append", "None")


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort rows into buckets by the hash of their key: pieces of these, in the order of their rows."""
    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    number = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = [batch.column(at) for at, name in enumerate(batch.schema.names) if name != KEY]
        pieces = list(_pieces(with_columns(batch, {DIGEST: row_digests(columns, batch.num_rows)})))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([BUCKETS[place] for place, _ in pieces], pa.int32()),
                pa.array([part] * len(pieces), pa.int32()),
                pa.array(range(number, number + len(pieces)), pa.int64()),
                pa.array([to_ipc(rows) for _, rows in pieces], pa.binary()),
            ],
            PACKED.names,
        )
        number += len(pieces)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, in their order, with its place in `BUCKETS`."""
    keys = batch.column(batch.schema.get_field_index(KEY)).to_numpy()
    # The low bits of a hash are as good as any.
    places = (keys & (len(BUCKETS) - 1)).astype(np.int8)
    order = np.argsort(places, kind="stable")
    rows = batch.take(pa.array(order))
    found, starts = np.unique(places[order], return_index=True)
    for place, start, end in zip(found.tolist(), starts, [*starts[1:], batch.num_rows], strict=True):
        yield place, rows.slice(start, end - start)


def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The output batches in the blobs that leave."""
    for batch in batches:
        for blob in batch.column(batch.schema.get_field_index(ROWS)):
            yield from from_ipc(blob.as_py())


class BucketProcessor(StatefulProcessor):
    """The processor that Spark runs. Sent to the workers as it is; made anew for each partition.

    max_output_bytes: see `MAX_OUTPUT_BYTES`.
    """

    def __init__(self, plan: StreamPlan, *, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self._plan = plan
        self._max_output_bytes = max_output_bytes
        self._client: CallClient | None = None
        self._dead_letters: PutsAside | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark's: before all else, and once on the driver."""
        begin_task()
        self._state = handle.getValueState("pending", "blob binary")

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Spark's: one bucket, with its input or without."""
        with errors_in_words():
            yield from self._advance(int(key[0]), rows)

    def _advance(self, bucket: int, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
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
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH)
        number = -1 if batch is None else int(batch)
        state = self._read_state(None if found is None else bytes(found[0]), bucket, number, time_ms)
        for blob in state.leaving:
            yield pd.DataFrame({ROWS: [blob]})
        for blob in state.dead_letters:
            self._put_aside(next(from_ipc(blob)))
        waiting = 0 if state.waiting is None else state.waiting.num_rows
        come, keys, digests = _read(parts)
        if come is not None:
            # As those of the state are: Spark's own types differ in time zones, and in what may be null.
            come = conform(come, plan.columns)
        all_rows = state.with_rows(come, time_ms, keys, digests, batch=number)
        known = None
        # Where nothing waits any more, what the bucket has waited for is released.
        if all_rows is not None or found is not None:
            known = self._calls().advance(bucket, time_ms, all_rows, waiting, ticked=ticked)
            if all_rows is not None:
                known = known.beside(all_rows, plan.kept)
        # spec: StreamState!Record
        following = state.after(
            all_rows, known, ordered=plan.ordered, max_output_bytes=self._max_output_bytes
        )
        blob = encode(following, plan.output)
        if blob is not None:
            self._state.update((blob,))
        elif found is not None:
            self._state.clear()

    def close(self) -> None:
        """Spark's: the partition is through."""
        make_prompt()
        if self._dead_letters is not None:
            self._dead_letters.commit()
        if self._client is not None:
            self._client.close()

    def _read_state(self, blob: bytes | None, bucket: int, number: int, time_ms: int) -> BucketState:
        """The state of a bucket, without what nothing can go on from, which is put aside.

        number, time_ms: of the micro-batch. Raises StreamStateError.
        """
        plan = self._plan
        given = plan.schema.names
        state, bad = decode(blob, plan.columns, plan.output, plan.required, plan.leaves, given)
        if bad:
            # spec: StreamState!MayRead
            redact = plan.operator.options.errors.redaction
            if plan.bad_state is None:
                batch = f"micro-batch {number}" if number >= 0 else f"the micro-batch of {time_ms} ms"
                raise StreamStateError(f"bucket {bucket}, {batch}: {remedy_of(bad, redact)}")
            # spec: StreamState!Letters
            put_aside(plan.bad_state, bad, bucket=bucket, batch=number, time_ms=time_ms, redact=redact)
        return state

    def _put_aside(self, dead_letters: pa.RecordBatch) -> None:
        if self._dead_letters is None:
            if self._plan.operator.dead_letters is None:
                raise StreamStateError(
                    "it has dead letters, and async_stream has no dead_letter= now: let the query run to its "
                    "end with one (trigger availableNow), then take it away"
                )
            self._dead_letters = self._plan.operator.dead_letters.writer()
        self._dead_letters.add_batch(dead_letters)

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


def _read(parts: list[tuple[int, int, bytes]]) -> tuple[pa.RecordBatch | None, Ints, Digests]:
    """The rows of a bucket's pieces, in the order in which they came, hashes of their keys, and digests."""
    batches = [batch for _, _, blob in sorted(parts, key=lambda piece: piece[:2]) for batch in from_ipc(blob)]
    if not batches:
        return None, np.zeros(0, np.int64), np.zeros((0, 2), np.uint64)
    whole = concat_rows(batches)
    names = whole.schema.names
    keys, digests = whole.column(names.index(KEY)).to_numpy(), digests_of(whole.column(names.index(DIGEST)))
    return whole.select([name for name in names if name not in (KEY, DIGEST)]), keys, digests
