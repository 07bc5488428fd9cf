"""What `async_stream` runs for each partition of a micro-batch. For the task's thread.

Spark gives a bucket after the other its input, then the timers that are due, in the order of their times,
and at last ends. Input only starts calls. Each bucket has two timers, long past: one to open a bucket that
has no input, one, later than all of the first kind, to take what has finished. So all calls of the partition
are under way before the first is waited for, they are waited for together, and micro-batches without input
come as long as there are calls. Timers that are set while timers are due come in the next micro-batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from pillarbox.aio.attempts import Call
from pillarbox.kernel import PillarboxError
from pillarbox.ledger import KeyMaker, fingerprint
from pillarbox.spark.arrow_io import to_ipc
from pillarbox.spark.keeping import BATCH, QUERY
from pillarbox.spark.letters import LetterWriter
from pillarbox.spark.record import records, sliced
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.stream.bucket_state import StreamStateError, conform
from pillarbox.spark.stream.calls import Engine, Flushed, acquire_engine
from pillarbox.spark.stream.entry import Entry
from pillarbox.spark.stream.pack import KEY, NUMBER, PART, ROWS, bucket_of, pieces_of
from pillarbox.spark.stream.plan import StreamPlan, open_stream_journal
from pillarbox.spark.stream.share import claim_execution, fetch, serve
from pillarbox.spark.stream.state import Held, decode, encode
from pillarbox.spark.writer import RowWriter

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

OPEN = (1, 2)
FLUSH = (3, 4)
"""Times of timers, in ms since 1970. They alternate, as Spark deletes the one that was due afterwards."""

JOB_GROUP = "spark.jobGroup.id"
"""The local property that has the id of the query's run."""

CHUNK_ROWS = 8192
"""Rows that leave in one blob, at most."""
CHUNK_BYTES = 8 * 2**20
"""Bytes of a blob, about: each becomes an object of Spark's Java process."""


class ExecutionError(PillarboxError):
    """A micro-batch of `async_stream` is executed again, and would give other rows than before."""


class _Deadlines:
    """When the tasks of a stage in this process stop waiting: together, however many there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._found: dict[tuple[str, int], float] = {}

    def of(self, name: str, stage: int, seconds: float) -> float:
        with self._lock:
            if self._pid != os.getpid() or len(self._found) > 100:
                self._pid = os.getpid()
                self._found.clear()
            return self._found.setdefault((name, stage), time.monotonic() + seconds)


_deadlines = _Deadlines()


class StreamProcessor(StatefulProcessor):
    """The processor that Spark runs. Sent to the workers as it is; made anew for each partition."""

    def __init__(self, plan: StreamPlan) -> None:
        self._plan = plan
        self._task: _StreamTask | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Spark's: before all else, and once on the driver."""
        self._handle = handle
        self._state = handle.getValueState("pending", "blob binary")

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Spark's: the input of one bucket. Starts its calls."""
        parts: list[tuple[int, int, bytes]] = []
        for each in rows:
            blobs = [bytes(blob) for blob in each[ROWS]]
            parts += zip(each[PART].tolist(), each[NUMBER].tolist(), blobs, strict=True)
        bucket = int(key[0])
        found = self._state.get()
        self._now().open(bucket, None if found is None else bytes(found[0]), parts)
        if found is None:
            self._handle.registerTimer(FLUSH[0])
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        """Spark's: a bucket is opened, or what has finished leaves and the rest becomes its state."""
        import pandas as pd

        task, bucket = self._now(), int(key[0])
        if not task.is_open(bucket):
            found = self._state.get()
            task.open(bucket, None if found is None else bytes(found[0]), [])
        due = expiredTimerInfo.getExpiryTimeInMs()
        if due in OPEN:
            return
        flushed = task.flush(bucket)
        for rows in task.blobs(flushed):
            yield pd.DataFrame({ROWS: [rows]})
        if flushed.state is None:
            self._state.clear()
            return
        if flushed.is_new:
            self._state.update((flushed.state,))
        other = 1 - FLUSH.index(due)
        self._handle.registerTimer(OPEN[other])
        self._handle.registerTimer(FLUSH[other])

    def close(self) -> None:
        """Spark's: the partition is through."""
        if self._task is not None:
            self._task.close()

    def _now(self) -> _StreamTask:
        if self._task is None:
            self._task = _StreamTask(self._plan)
        return self._task


class _Bucket:
    """A bucket that is open: its entries in the order in which they came, and what its state was."""

    def __init__(self, entries: list[Entry], blob: bytes | None, said: list[Any]) -> None:
        self.entries = entries
        self.blob = blob
        self.said = said


class _StreamTask:
    """One partition of a micro-batch: its open buckets, and the time until which it waits."""

    def __init__(self, plan: StreamPlan) -> None:
        context = TaskContext.get()
        assert context is not None
        self._plan = plan
        batch, query = context.getLocalProperty(BATCH), context.getLocalProperty(QUERY)
        if batch is None or query is None:
            raise ExecutionError(
                "async_stream: Spark does not tell the tasks of this action their micro-batch, as in a "
                "thread of foreachBatch: begin it as pyspark.InheritableThread, or call df.persist() and an "
                "action on it before"
            )
        self._batch = int(batch)
        self._deadline = _deadlines.of(plan.name, context.stageId(), plan.max_wait)
        name = f"{query} {plan.name}"
        self._engine = acquire_engine(name, lambda: _new_engine(name, plan, query))
        self._stage = context.stageId()
        self._check_first(f"{context.getLocalProperty(JOB_GROUP)} {batch}", context.partitionId())
        self._buckets: dict[int, _Bucket] = {}
        self._waited = False
        self._stack = ExitStack()
        letters = plan.work.letters
        work = plan.work
        self._writer = RowWriter(
            list(plan.kept),
            plan.schema,
            work.time_zone,
            work.options,
            None if letters is None else self._stack.enter_context(LetterWriter(letters)),
            runs=True,
        )

    def _check_first(self, batch: str, partition: int) -> None:
        """Raise ExecutionError if another process has executed this partition of the micro-batch."""
        engine = self._engine
        first = claim_execution(f"{engine.name} {partition}", batch, self._stage, engine.identity)
        if first != engine.identity:
            engine.release()
            raise ExecutionError(
                f"async_stream: micro-batch {self._batch} is executed a second time, and what had finished "
                "by the first time is known in another worker process only, so that rows would be lost or "
                "doubled. Each action in foreachBatch executes the micro-batch: call df.persist() before the "
                "first one and df.unpersist() after the last"
            )

    def is_open(self, bucket: int) -> bool:
        return bucket in self._buckets or self._remembered(bucket) is not None

    def open(self, bucket: int, blob: bytes | None, parts: list[tuple[int, int, bytes]]) -> None:
        """Take up what the state has, and start the calls of the input. Waits for nothing."""
        if self._remembered(bucket) is not None:
            return
        plan = self._plan
        held = [] if blob is None else decode(blob, plan.columns, plan.output)
        self._check_bucket(bucket, held)
        if plan.work.options.ledger is not None:
            held = identified(bucket, held)
        entries = self._engine.open(bucket, held)
        said = [(each.ticket, each.attempts, each.output is None) for each in held]
        # Equal rows are in one bucket, however the input was cut, so they can be counted there.
        make_key = None if plan.work.options.ledger is None else KeyMaker()
        new = [entry for piece in pieces_of(parts) for entry in self._entries(piece, make_key)]
        self._engine.call(bucket, new)
        self._buckets[bucket] = _Bucket(entries + new, blob, said)

    def _remembered(self, bucket: int) -> Flushed | None:
        """The bucket's share of an earlier execution of this micro-batch; None if there was none."""
        flushed = self._engine.remembered(bucket)
        if flushed is None or flushed.batch != self._batch:
            return None
        # The output of a task that failed is thrown away, so its retry need not agree with it.
        return None if flushed.stage == self._stage else flushed

    def _check_bucket(self, bucket: int, held: Sequence[Held]) -> None:
        if self._plan.ordered and any(bucket_of(each.key, self._plan.buckets) != bucket for each in held):
            raise StreamStateError(
                f"it was written with another number than buckets={self._plan.buckets}, so that rows of a "
                "key would pass each other: give the number of before, or ordered=False"
            )

    def flush(self, bucket: int) -> Flushed:
        """Settle which rows of a bucket leave now, and what its state becomes.

        The first call for any bucket waits for all. Another execution of the micro-batch in this process gets
        what the first one got.
        """
        # spec: Stream!Again
        flushed = self._remembered(bucket)
        if flushed is not None:
            for entry in flushed.converted:
                # Its dead letter belongs to this execution's file as well.
                self._output([entry])
            return flushed
        # spec: Stream!Flush
        if not self._waited:
            self._waited = True
            every = [entry for each in self._buckets.values() for entry in each.entries]
            self._engine.wait(every, self._deadline)
        self._engine.check()
        here = self._buckets.pop(bucket)
        finished = self._engine.finished(here.entries)
        leaving: list[Entry] = []
        staying: list[Entry] = []
        ready: list[Entry] = []
        blocked: set[int] = set()
        for entry, done in zip(here.entries, finished, strict=True):
            if done and entry.key not in blocked:
                leaving.append(entry)
                continue
            staying.append(entry)
            if done:
                ready.append(entry)
            if self._plan.ordered:
                blocked.add(entry.key)
        # What waits for its order only is kept as it will leave.
        converted = [entry for entry in ready if entry.output is None]
        for entry in converted:
            entry.output = self._output([entry])
        self._engine.leave(bucket, leaving + ready)
        state, is_new = self._state_of(here, staying)
        flushed = Flushed(self._batch, self._stage, leaving, converted, state, is_new)
        self._engine.remember(bucket, flushed)
        return flushed

    def _state_of(self, here: _Bucket, staying: list[Entry]) -> tuple[bytes | None, bool]:
        """The state of a bucket, None for none, and whether it is another than before."""
        if not staying:
            return None, here.blob is not None
        held = self._engine.snapshot(staying)
        said = [(each.ticket, each.attempts, each.output is None) for each in held]
        if here.blob is not None and said == here.said:
            return here.blob, False
        return encode(held, self._plan.output), True

    def blobs(self, flushed: Flushed) -> Iterator[bytes]:
        """The rows that leave, as blobs."""
        for start in range(0, len(flushed.leaving), CHUNK_ROWS):
            yield from self._blobs(flushed.leaving[start : start + CHUNK_ROWS])

    def close(self) -> None:
        """The partition is through: what was put aside is kept, and the calls go on."""
        self._engine.release()
        self._stack.close()

    def _entries(self, piece: pa.RecordBatch, make_key: KeyMaker | None) -> Iterator[Entry]:
        keys = piece.column(piece.schema.get_field_index(KEY)).to_pylist()
        rows = conform(piece, self._plan.columns)
        made = (record for batch in records(sliced([rows])) for record in batch.rows)
        for key, record in zip(keys, made, strict=True):
            identity = None
            if make_key is not None:
                identity = fingerprint([self._batch, make_key(tuple(record))], "stream")
            yield Entry(record, key, self._batch, identity)

    def _blobs(self, leaving: Sequence[Entry]) -> Iterator[bytes]:
        """The output of entries, in their order."""
        for ready, run in groupby(leaving, key=lambda entry: entry.output is not None):
            for batch in [each.output for each in run] if ready else [self._output(list(run))]:
                for piece in () if batch is None else _cut(batch):
                    yield to_ipc(piece)

    def _output(self, entries: list[Entry]) -> pa.RecordBatch:
        return self._writer.write([(Call(entry.record, 0), entry.result) for entry in entries])


def identified(bucket: int, held: Sequence[Held]) -> list[Held]:
    """The rows of a bucket's state, each with a key in the ledger: also those that came when there was none.

    The same at each replay of the micro-batch; no other row has it.
    """
    made: list[Held] = []
    for place, each in enumerate(held):
        if each.identity is None:
            each = each._replace(identity=fingerprint([each.batch, bucket, place], "stream without"))
        made.append(each)
    return made


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _new_engine(name: str, plan: StreamPlan, query: str | None) -> Engine:
    work = plan.work
    journal = None
    if work.options.ledger is not None:
        journal = open_stream_journal(work, str(query), identify=lambda entry: entry.identity)
    made = Engine(name, work, journal, fetch, RowEncoder(plan.schema, work.time_zone))
    serve(made.loop_thread)
    return made
