"""The calls of one stream, in the process that holds them between micro-batches and for all their executions.

A task of a bucket *opens* it with what the committed state waits for, has the calls begun that are not there,
waits a while and reads what has finished. Methods are for any thread but the loop's, unless they say that
they are for that.
"""

# A call that goes on is *adopted* by the next micro-batch: it opens the bucket with the identities of the
# rows that its committed state waits for, and keeps the calls of these. Reading consumes nothing, as the next
# execution of the same micro-batch must read the same results; a row is released only when a *later*
# micro-batch no longer waits for it, by the state that was committed before that one. The alternatives are
# worse:
#
# - Results that leave when they are read, as from a queue: a replay would find nothing, and call again.
# - Results that are released when their task ends well: Spark may still take another execution's state.
# - A number for each call, given at its begin and kept in the state (a ticket): two executions that begin the
#   same row give it two numbers, so who is right would have to be agreed on before a call begins.
# - A lease for a time: too short, and a slow micro-batch calls twice; too long, and rows hold memory for
#   nothing.

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import Failed
from pillarbox.aio.function import ResultConverter
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.options import Options
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import TaskRun
from pillarbox.kernel import PillarboxError
from pillarbox.loop_thread import LoopThread
from pillarbox.spark.records import RECORD_BYTES, Record, batch_of, rows_of
from pillarbox.spark.stream.bucket_state import BATCH, IDENTITY, OWN_COLUMNS, Finished
from pillarbox.spark.writer import RowWriter
from pillarbox.task import InputStatus
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.protocols import RowBatch, TaskOutput

if TYPE_CHECKING:
    from pillarbox.aio.calls import Chunk
    from pillarbox.spark.error_column import DeadLetters

log = logging.getLogger("pillarbox")

MAX_SLICE_ROWS = 256
"""Rows that are decoded together: the last of them that is held keeps the others in memory."""
MAX_SLICE_BYTES = 2**20


class LateExecutionError(PillarboxError):
    """A task of a micro-batch asks for a bucket that a later micro-batch has opened."""


class PendingRow(tuple[Any, ...]):
    """A row with its call: the tuple of its record alone, which the operator calls as a row of one argument.

    batch: the number of the micro-batch that has read it, or -1. size: bytes, about. released: no state waits
    for it.
    """

    identity: bytes
    batch: int
    size: int
    result: Any
    done: bool
    released: bool

    def __new__(cls, record: Record, identity: bytes, batch: int, size: int) -> PendingRow:  # noqa: D102
        made = super().__new__(cls, (record,))
        made.identity = identity
        made.batch = batch
        made.size = size
        made.result = None
        made.done = made.released = False
        return made


@dataclass
class _Bucket:
    """The rows of a bucket, by identity, and the time of the micro-batch that opened it last."""

    time: int = -1
    rows: dict[bytes, PendingRow] = field(default_factory=dict)


class HeldCalls:
    """Makes the calls of one stream until `close`. Is the output of their task, for the loop's thread.

    writer: turns results into output batches. ledger_session, convert: see `AsyncWaitOperator`.
    dead_letters: where rows that fail are put aside. after: those that are closed, whose calls have to end
    before one begins here.
    """

    has_ended = True
    is_available = True
    """Results are taken whenever they come."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        writer: RowWriter,
        *,
        loop_thread: LoopThread,
        ledger_session: LedgerSession | None = None,
        convert: ResultConverter | None = None,
        dead_letters: DeadLetters | None = None,
        after: Sequence[HeldCalls] = (),
    ) -> None:
        self.failure: BaseException | None = None
        self._writer = writer
        self._dead_letters = dead_letters
        self._loop_thread = loop_thread
        self._changed = threading.Condition()
        self._buckets: dict[int, _Bucket] = {}
        self._max_bytes = options.buffer.max_bytes
        self._held_bytes = self._unfinished = 0
        self._at_a_time = options.rows_in_flight
        # Of the two newest micro-batches that open all buckets.
        self._ticks = (-1, -1)
        self._input = _Rows()
        self._run: TaskRun | None = None
        self._is_closed = False
        self._ended = asyncio.Event()
        context = contextvars.copy_context()
        # Not those that they are of, and their rows.
        before = [each._ended for each in after]

        async def run() -> None:
            try:
                for ended in before:
                    # A call that is cancelled counts until it has ended.
                    await ended.wait()
                if self._is_closed:
                    self.finish()
                    return
                self._run = TaskRun(
                    [Stage(fn, options, ledger_session=ledger_session, convert=convert)],
                    self._input,
                    self,
                    loop=loop_thread.loop,
                    context=context,
                    spread=True,
                )
                self._run.watch()
                await self._run.run()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._ended.set()

        loop_thread.submit(run())

    def open(self, bucket: int, time: int, wanted: Sequence[bytes], *, ticked: bool = False) -> list[int]:
        """Open a bucket for the micro-batch of `time`; returns the places in `wanted` of rows to be begun.

        wanted: the identities of the rows that the state committed before it waits for. ticked: all buckets
        are opened in this micro-batch. Raises LateExecutionError.
        """
        # spec: StreamState!Open
        with self._changed:
            place = self._place(bucket, time)
            released: list[PendingRow] = []
            if time > place.time:
                place.time = time
                kept = {identity: place.rows.pop(identity) for identity in wanted if identity in place.rows}
                released = list(place.rows.values())
                place.rows = kept
            if ticked and time > self._ticks[1]:
                released += self._forget(time)
            for row in released:
                row.released = True
                self._held_bytes -= row.size
                self._unfinished -= not row.done
            missing = [at for at, identity in enumerate(wanted) if identity not in place.rows]
        if any(not row.done for row in released):
            self._loop_thread.call(self._let_go)
        return missing

    def _forget(self, time: int) -> list[PendingRow]:
        """The rows of buckets that live in another process: the micro-batch before this one opened them all.

        time: of a micro-batch that opens all buckets. Under the lock.
        """
        # spec: StreamState!Forget
        before, self._ticks = self._ticks[1], (self._ticks[1], time)
        gone = [bucket for bucket, place in self._buckets.items() if place.time < before]
        return [row for bucket in gone for row in self._buckets.pop(bucket).rows.values()]

    def begin(self, bucket: int, time: int, rows: pa.RecordBatch) -> None:
        """Have the calls of `rows` made, in their order, unless they are made already or there is no room.

        rows: as `BucketState.with_rows` gives them; the micro-batch of `time` has opened the bucket. Of what
        does not fit into `max_bytes` the state alone knows, until a later micro-batch begins it. Raises
        LateExecutionError.
        """
        size = rows.nbytes // rows.num_rows + RECORD_BYTES
        identities, batches = rows.column(IDENTITY).to_pylist(), rows.column(BATCH).to_pylist()
        with self._changed:
            there = self._place(bucket, time).rows
            new = [at for at, identity in enumerate(identities) if identity not in there]
            if self._max_bytes is not None:
                # One row always has room.
                new = new[: max(not self._held_bytes, (self._max_bytes - self._held_bytes) // size)]
            # spec: StreamState!Open
            begun = [
                PendingRow(record, identities[at], batches[at], size)
                for at, record in zip(new, _records(rows, new), strict=True)
            ]
            there.update((row.identity, row) for row in begun)
            self._held_bytes += size * len(begun)
            self._unfinished += len(begun)
        if begun:
            self._loop_thread.call(lambda: self._input.add(begun, size))

    def wait(self, bucket: int, wanted: Sequence[bytes], waiting: int, deadline: float) -> None:
        """Wait until the calls of all `wanted` have ended, but not beyond `deadline` on the monotonic clock.

        waiting: so many of `wanted` were there at the micro-batch before. Where more rows are pending than
        can be called at a time these alone are waited for: the calls of the others are made while Spark
        plans, commits and reads, and so much is pending as a micro-batch brings, not more.
        Raises what ended the task of the calls.
        """
        with self._changed:
            there = self._buckets[bucket].rows
            if self._unfinished > self._at_a_time:
                wanted = wanted[:waiting]
            for row in [there[identity] for identity in wanted if identity in there]:
                while not row.done and self.failure is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
            if self.failure is not None:
                raise self.failure

    def read(self, bucket: int, time: int, wanted: Sequence[bytes]) -> Finished:
        """The calls of `wanted` that have ended by now; nothing is consumed.

        A row that had no room is one that has not finished. Raises LateExecutionError.
        """
        # spec: StreamState!Record
        with self._changed:
            there = self._place(bucket, time).rows
            done = [
                (place, row)
                for place, row in enumerate(map(there.get, wanted))
                if row is not None and row.done
            ]
            outputs, counts, dead_letters = None, None, None
            if done:
                outputs = self._writer.write([(Call(row, 0), row.result) for _, row in done])
                if self._writer.counts is not None:
                    counts = np.array(self._writer.counts, np.int64)
            failed = [at for at, (_, row) in enumerate(done) if type(row.result) is Failed]
            misfits = self._writer.misfits if done else {}
            if (failed or misfits) and self._dead_letters is not None:
                failed = sorted({*failed, *misfits})
                rows = batch_of([done[at][1][0] for at in failed])
                results = [misfits.get(at, done[at][1].result) for at in failed]
                dead_letters = self._dead_letters.batch(rows, results)
            places = [place for place, _ in done]
        return Finished(np.array(places, np.int64), outputs, counts, dead_letters)

    def restart(self) -> None:
        """Take any time for a later one: the query is started again, perhaps after its clock was set back."""
        with self._changed:
            self._ticks = (-1, -1)
            for bucket in self._buckets.values():
                bucket.time = -1

    def _place(self, bucket: int, time: int) -> _Bucket:
        """The bucket, for the micro-batch of `time`; under the lock."""
        # spec: StreamState!Refuse
        place = self._buckets.setdefault(bucket, _Bucket())
        if time < place.time:
            raise LateExecutionError(
                f"bucket {bucket}: its micro-batch of {time} ms was opened after that of {place.time} ms, "
                "whose calls go on: this task comes from an execution that Spark has given up"
            )
        return place

    @property
    def pending(self) -> int:
        """Rows that are held."""
        with self._changed:
            return sum(len(bucket.rows) for bucket in self._buckets.values())

    def close(self) -> None:
        """End the calls that run; nothing is asked for any more. Idempotent."""

        def stop() -> None:
            self._is_closed = True
            if self._run is not None:
                self._run.stop()

        self._loop_thread.call(stop)

    # -- the output of the task, for the loop's thread ----------------------------------------------

    def collect(self, batch: RowBatch) -> None:
        """Take results of the task."""
        self.emit(batch.rows)

    def emit(self, results: Chunk) -> None:
        """Note the results of calls."""
        # spec: StreamState!Finish
        with self._changed:
            for call, result in results:
                row = call.row
                self._unfinished -= not row.released
                row.result, row.done = result, True
            self._changed.notify_all()

    def call_when_room(self, wake: object) -> None:
        """Never asked for."""
        raise AssertionError("there is always room")

    def emit_watermark(self, timestamp: float) -> None:
        """Do nothing: event time is Spark's here."""

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Do nothing: the state of a micro-batch is taken by bucket."""

    def finish(self) -> None:
        """The calls were ended."""
        self.fail(RuntimeError("the calls of this stream have been ended"))

    def fail(self, error: BaseException) -> None:
        """The task of the calls has ended with `error`."""
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def _let_go(self) -> None:
        self._input.drop_released()
        if self._run is not None:
            self._run.operators[0].discard(lambda row: row.released)


def _records(rows: pa.RecordBatch, places: Sequence[int]) -> Iterator[Record]:
    """Records of the rows at `places`, which keep no more than a slice of them in memory."""
    own = rows.select([name for name in rows.schema.names if name not in OWN_COLUMNS])
    step = max(1, min(MAX_SLICE_ROWS, MAX_SLICE_BYTES * own.num_rows // max(1, own.nbytes)))
    for start in range(0, len(places), step):
        # A copy: a slice would keep the whole batch.
        yield from rows_of(own.take(pa.array(places[start : start + step], pa.int64()))).rows


class _Rows:
    """The input of the task: batches of rows, and no end. For the loop's thread."""

    def __init__(self) -> None:
        self._added: list[tuple[list[PendingRow], int]] = []
        # The task asks for another batch when this one has been taken.
        self._emitted = RowBatch([])
        self._awaited: Future[None] | None = None

    def add(self, rows: list[PendingRow], size: int) -> None:
        """Rows of about `size` bytes each that are to be called."""
        self._added.append((rows, size))
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next batch, without rows that were released."""
        while self._added:
            rows, size = self._added.pop(0)
            if wanted := [row for row in rows if not row.released]:
                self._emitted = RowBatch(wanted, size)
                output.collect(self._emitted)
                return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE

    def drop_released(self) -> None:
        """Take rows out that were released, from what waits for room in the task."""
        batch = self._emitted
        batch.rows = [row for row in batch.take(len(batch)) if not row.released]
        batch.position = 0

    def available(self) -> Future[None] | None:
        """A future that is done when there is a batch; None if there is one."""
        if self._added:
            return None
        self._awaited = Future()
        return self._awaited

    def close(self) -> None:
        """No batch will be asked for."""
        self._added.clear()
