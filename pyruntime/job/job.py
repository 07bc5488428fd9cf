"""A job at work: its thread, its event loop, its checkpoints, its end. `Run` is a user's handle of it.

Two threads. The event loop's has the task: its mailbox, the calls, the requests for checkpoints. The job's
thread has what may block: the folder of checkpoints, the sink, the source's coordinator.
"""

# Why one thread both writes rows and commits them. A checkpoint is a row of steps (rows before the barrier,
# prepare, write the checkpoint, commit), and no row behind the barrier may come between. On one thread that
# is the order of a queue; meanwhile the calls go on, and their results wait.
#
# Why a checkpoint that cannot be written ends nothing. A disk may be full for a while, and the rows that were
# prepared are committed with the next checkpoint. A snapshot that has no bytes, because of the class of a
# row, ends the job: no later one would have.

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pillarbox.aio.function import enter_function, with_parse
from pillarbox.aio.intervals import CLOSE_TIMEOUT_S
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.stage_ledgers import open_ledgers
from pillarbox.aio.stages import Stage
from pillarbox.aio.states import AsyncWaitState
from pillarbox.aio.task_run import TaskRun
from pillarbox.job.checkpoints import (
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    read_checkpoint,
    write_checkpoint,
)
from pillarbox.job.job_input import JobInput
from pillarbox.job.job_output import Cut, End, JobOutput
from pillarbox.job.result_rows import ResultRows
from pillarbox.job.sink import Sink
from pillarbox.job.source_rows import RecordSource
from pillarbox.job.statistics import RunState, RunStatistics
from pillarbox.ledger.keys import identity_of_source
from pillarbox.loop_thread import LoopThread, post
from pillarbox.sources import SourceCoordinator, SourceInput, WatermarkStrategy
from pillarbox.sources.reader import ReaderContext
from pillarbox.sources.split import is_json
from pillarbox.task.checkpoint import (
    ALIGNED,
    CheckpointDeclined,
    CheckpointOptions,
    OperatorSnapshot,
    TaskSnapshot,
)
from pillarbox.task.protocols import Watermark
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

T = TypeVar("T")

URGENT = CheckpointOptions(aligned=False)
ROWS_PER_CALL = 64
"""Rows that a reader emits at a time: mail waits for so many."""


@dataclass(frozen=True)
class Plan:
    """All that a job was given, checked. A plain value."""

    source: RecordSource[Any]
    stages: Sequence[Stage]
    sink: Sink
    checkpoints: Path
    interval: float
    restore: Path | None = None
    keep: Sequence[str] = ()
    readers: int = 1
    watermarks: WatermarkStrategy | None = None
    urgent: bool = False
    codec: SnapshotCodec = field(default_factory=SnapshotCodec)


class Job:
    """A job that runs in threads of its own until it has come to its end. Methods are for any thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._context = contextvars.copy_context()
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._counts = RunStatistics()
        self._output = JobOutput()
        self._rows = ResultRows(plan.stages, plan.keep)
        self._sink = _SinkOfJob(plan.sink)
        self._coordinator: SourceCoordinator[Any] | None = None
        self._loop_thread: LoopThread | None = None
        self._task_run: TaskRun | None = None
        # Of the loop's thread.
        self._turn: asyncio.Lock | None = None
        self._ends_as: asyncio.Future[RunState] | None = None
        self._next_id = 1
        # Set when requests may come, or none will be answered.
        self._begun = threading.Event()

    def start(self) -> None:
        """Start the job's thread. Once."""
        start_thread(threading.Thread(target=self._work, name="pillarbox-job", daemon=True))

    # -- any thread ---------------------------------------------------------------------------------

    def statistics(self) -> RunStatistics:
        """Counts so far."""
        task_run = self._task_run
        functions = {} if task_run is None else {each.uid: each.statistics() for each in task_run.operators}
        return replace(
            self._counts,
            watermark=self._output.watermark,
            functions={uid: totals for uid, totals in functions.items() if totals is not None},
        )

    def request_checkpoint(self, savepoint: Path | None, urgent: bool) -> Checkpoint:
        """Take a checkpoint now, and wait until its rows are committed.

        Raises CheckpointError where the task does not take it, or has ended; OSError where it cannot be
        written.
        """
        return self._ask(partial(self._take_checkpoint, savepoint, urgent))

    def stop(self, savepoint: Path | None) -> None:
        """Take a checkpoint, and end behind it. No effect once the job has ended; raises as above."""
        try:
            self._ask(partial(self._stop, savepoint))
        except CheckpointError:
            if self._loop_thread is not None:
                raise

    def cancel(self) -> None:
        """End without a checkpoint. No effect once the job has ended."""
        self._begun.wait()
        loop_thread = self._loop_thread
        if loop_thread is not None:
            post(loop_thread.loop, self._end_as, "cancelled")

    def _ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a request on the loop's thread. Raises CheckpointError where the job ends meanwhile."""
        self._begun.wait()
        loop_thread = self._loop_thread
        if loop_thread is not None:
            try:
                return loop_thread.run(request())
            except CheckpointDeclined as error:
                raise CheckpointError(str(error)) from error
            except CancelledError:
                pass
        raise CheckpointError("a checkpoint was asked for, and the job has ended: start it again")

    # -- the job's thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        state: RunState = "failed"
        folder: CheckpointFolder | None = None
        try:
            folder = CheckpointFolder(self._plan.checkpoints)
            job = folder.job()
            checkpoint = self._restored(folder, job)
            if checkpoint is None or not checkpoint.has_ended:
                state = self._run(folder, job, checkpoint)
            else:
                state = "finished"
        except BaseException as error:
            self.failure = error
        finally:
            try:
                self._sink.close()
            except Exception as error:
                self.failure = self.failure or error
            if folder is not None:
                folder.close()
            self._counts.state = "failed" if self.failure is not None else state
            self.ended.set()
            self._begun.set()

    def _restored(self, folder: CheckpointFolder, job: str) -> Checkpoint | None:
        """Open the sink, and return the checkpoint to go on from, whose rows are committed; None for none."""
        # spec: SinkCommit!Recover, SinkCommit!StartAnew
        self._sink.open(job, self._plan.interval)
        restore, is_new = self._plan.restore, True
        for checkpoint, is_committed in folder.newest_first():
            is_new = False
            if restore is not None:
                raise CheckpointError(
                    f"restore={str(restore)!r}: the folder {str(self._plan.checkpoints)!r} holds checkpoints "
                    "already; give another folder, or leave restore out to go on from its newest one"
                )
            if self._sink.recover([] if is_committed else checkpoint.prepared):
                folder.committed(checkpoint.id)
                return checkpoint
            log.warning(
                "the rows that checkpoint %d has prepared are lost: the job goes on from the one before",
                checkpoint.id,
            )
            folder.forget(checkpoint.id)
        if not is_new or restore is None:
            self._sink.recover([])
            return None
        savepoint = read_checkpoint(restore)
        self._sink.recover([])
        return savepoint

    def _run(self, folder: CheckpointFolder, job: str, checkpoint: Checkpoint | None) -> RunState:
        plan = self._plan
        snapshot, known = None, None
        if checkpoint is not None:
            self._next_id = checkpoint.id + 1
            self._counts.restored = checkpoint.id
            known = checkpoint.source
            snapshot = fitted(plan.codec.decode(checkpoint.task), plan.stages)
        stages = open_ledgers(plan.stages)
        with SourceCoordinator(
            plan.source, plan.readers, watermarks=plan.watermarks, checkpoint=known
        ) as coordinator:
            self._coordinator = coordinator
            self._loop_thread = thread = LoopThread("pillarbox-job-loop")
            try:
                ended = thread.submit(self._run_task(stages, snapshot))
                try:
                    self._serve(folder, job)
                except BaseException:
                    post(thread.loop, self._end_as, "failed")
                    self._until_end()
                    with suppress(BaseException):
                        ended.result()
                    raise
                state = ended.result()
            finally:
                # No request comes to a loop that has ended.
                self._loop_thread = None
                thread.close(CLOSE_TIMEOUT_S)
            if state == "finished":
                self._finish(folder, job)
        return state

    def _serve(self, folder: CheckpointFolder, job: str) -> None:
        """Write the rows that come, and complete checkpoints, until the task has ended."""
        while True:
            item = self._output.take()
            if isinstance(item, Cut):
                self._complete(folder, job, item)
            elif isinstance(item, Watermark):
                self._sink.watermark(item.timestamp)
            elif isinstance(item, End):
                return
            else:
                self._write(self._rows.of(item.results))

    def _until_end(self) -> None:
        """Drop what still comes: the job has failed."""
        while not isinstance(item := self._output.take(), End):
            if isinstance(item, Cut) and not item.done.done():
                item.done.set_exception(CheckpointDeclined(item.id, "the job has failed"))

    def _write(self, rows: list[Any]) -> None:
        # spec: SinkCommit!Write
        if rows:
            self._sink.write(rows)
            self._counts.rows_written += len(rows)

    def _complete(self, folder: CheckpointFolder, job: str, cut: Cut) -> None:
        """Prepare, persist and commit one checkpoint; what cannot be written aborts it."""
        began = time.monotonic()
        try:
            self._sink.prepare(cut.id)
            snapshot = cut.snapshot.result()
            assert self._coordinator is not None
            part = self._coordinator.snapshot(snapshot.input)
            task = self._plan.codec.encode(snapshot._replace(input=None))
            taken = snapshot.barrier.timestamp
            checkpoint = Checkpoint(cut.id, job, taken, part, [*self._sink.prepared], task)
            try:
                folder.write(checkpoint)
            except OSError as error:
                self._abort(cut, error)
                return
            self._commit(folder, checkpoint, began)
            self._coordinator.complete(part)
            self._coordinator.notify_committed(self._positions(part))
            if cut.savepoint is not None:
                self._write_savepoint(cut, checkpoint)
        except BaseException as error:
            if not cut.done.done():
                cut.done.set_exception(error)
            raise
        if not cut.done.done():
            cut.done.set_result(checkpoint)
        if self._task_run is not None:
            self._task_run.task.notify_checkpoint_complete_async(cut.id)

    def _abort(self, cut: Cut, error: OSError) -> None:
        """Give a checkpoint up: what it has prepared is committed with the next one."""
        # spec: SinkCommit!Abort
        log.warning("checkpoint %d could not be written and is aborted: %s", cut.id, error)
        self._counts.aborted += 1
        cut.done.set_exception(error)
        if self._task_run is not None:
            self._task_run.task.notify_checkpoint_aborted_async(cut.id)

    def _commit(self, folder: CheckpointFolder, checkpoint: Checkpoint, began: float) -> None:
        self._sink.commit()
        folder.committed(checkpoint.id)
        counts = self._counts
        counts.rows_committed = counts.rows_written
        counts.checkpoints += 1
        counts.last_checkpoint = checkpoint.id
        counts.checkpoint_seconds = time.monotonic() - began

    def _write_savepoint(self, cut: Cut, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, whose rows are committed, to a further file."""
        assert cut.savepoint is not None
        try:
            write_checkpoint(cut.savepoint, checkpoint._replace(prepared=[]))
        except OSError as error:
            cut.done.set_exception(error)

    def _finish(self, folder: CheckpointFolder, job: str) -> None:
        """Commit the last rows: the source has been read to its end."""
        # spec: SinkCommit!Finish
        began = time.monotonic()
        self._sink.prepare(self._next_id)
        last = Checkpoint(self._next_id, job, time.time(), None, [*self._sink.prepared], b"")
        folder.write(last)
        self._commit(folder, last, began)

    def _positions(self, part: dict[str, Any]) -> dict[str, Any]:
        """The positions of the splits that readers have, up to which rows are committed."""
        serializer = self._plan.source.split_serializer
        splits = [
            serializer.from_json(part["split_version"], split)
            for state in part["readers"].values()
            for split in state["splits"]
        ]
        return {split.split_id: split.start for split in splits if split.start is not None}

    # -- the loop's thread --------------------------------------------------------------------------

    async def _run_task(self, stages: Sequence[Stage], snapshot: TaskSnapshot | None) -> RunState:
        """Run the task to its end, with a checkpoint now and then; returns how it has ended."""
        loop = asyncio.get_running_loop()
        self._turn, self._ends_as = asyncio.Lock(), loop.create_future()
        try:
            async with AsyncExitStack() as stack:
                opened = [
                    stage._replace(
                        fn=await enter_function(stage.fn, stack),
                        convert=with_parse(stage.fn, stage.convert, keeps=stage.ledger_session is not None),
                    )
                    for stage in stages
                ]
                self._task_run = task_run = self._made(opened, snapshot)
                self._counts.state = "running"
                self._begun.set()
                task_run.watch()
                running = loop.create_task(task_run.run())
                try:
                    await self._take_checkpoints(running)
                finally:
                    task_run.stop()
                    await running
            if self._output.failure is not None:
                raise self._output.failure
            return self._ends_as.result() if self._ends_as.done() else "finished"
        finally:
            self._output.put_end()

    def _made(self, stages: Sequence[Stage], snapshot: TaskSnapshot | None) -> TaskRun:
        plan = self._plan
        assert self._coordinator is not None
        inputs = [
            SourceInput(
                self._coordinator.link(subtask),
                plan.source,
                # The event time of a batch is read before it becomes records.
                watermarks=None if plan.watermarks is None else replace(plan.watermarks, timestamp=None),
                context=ReaderContext(subtask),
                rows_per_call=ROWS_PER_CALL,
            )
            for subtask in range(plan.readers)
        ]
        ledgers = [stage.options.ledger for stage in stages if stage.options.ledger is not None]
        return TaskRun(
            stages,
            JobInput(inputs),
            self._output,
            loop=asyncio.get_running_loop(),
            context=self._context,
            identify=identity_of_source(ledgers[0].key if ledgers else None),
            snapshot=snapshot,
        )

    async def _take_checkpoints(self, running: asyncio.Task[None]) -> None:
        assert self._ends_as is not None
        ends: list[asyncio.Future[Any]] = [running, self._ends_as]
        while not running.done() and not self._ends_as.done():
            await asyncio.wait(ends, timeout=self._plan.interval, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not self._ends_as.done():
                # The disk may have room again, and the task may take the next one.
                with suppress(CheckpointDeclined, OSError):
                    await self._take_checkpoint(None, self._plan.urgent)

    async def _take_checkpoint(self, savepoint: Path | None, urgent: bool) -> Checkpoint:
        assert self._turn is not None and self._task_run is not None
        async with self._turn:
            return await self._take_in_turn(self._task_run, savepoint, urgent)

    async def _take_in_turn(self, task_run: TaskRun, savepoint: Path | None, urgent: bool) -> Checkpoint:
        cut = Cut(self._next_id, savepoint)
        self._next_id += 1
        self._output.expect(cut)
        options = URGENT if urgent else ALIGNED
        try:
            snapshot = await asyncio.wrap_future(task_run.task.trigger_checkpoint_async(cut.id, options))
        except BaseException as error:
            self._output.expect(None)
            if isinstance(error, CheckpointDeclined):
                self._counts.declined += 1
            cut.snapshot.set_exception(error)
            raise
        self._counts.last_requested = cut.id
        cut.snapshot.set_result(snapshot)
        return await asyncio.wrap_future(cut.done)

    async def _stop(self, savepoint: Path | None) -> None:
        assert self._turn is not None and self._task_run is not None
        async with self._turn:
            try:
                await self._take_in_turn(self._task_run, savepoint, True)
            except CheckpointDeclined:
                # Most often because the task is at its end; then the job ends soon by itself.
                await asyncio.wait([self._task_run.ended], timeout=CLOSE_TIMEOUT_S)
                if not self._task_run.ended.done():
                    raise
                return
            # No other checkpoint, and no row, comes behind it: what leaves meanwhile is dropped, and made
            # anew.
            self._end_as("stopped")
            self._task_run.stop()

    def _end_as(self, state: RunState) -> None:
        if self._ends_as is not None and not self._ends_as.done():
            self._ends_as.set_result(state)


class _SinkOfJob:
    """The user's sink, with what it has prepared and not committed. Confined to the job's thread."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._is_open = False
        self.prepared: list[Any] = []
        self.write: Callable[[Sequence[Any]], None] = sink.write
        self.recover: Callable[[Sequence[Any]], bool] = sink.recover
        self.watermark: Callable[[float], None] = sink.watermark

    def open(self, job: str, interval: float) -> None:
        self._is_open = True
        self._sink.open(job, interval)

    def prepare(self, checkpoint: int) -> None:
        # spec: SinkCommit!Prepare
        prepared = self._sink.prepare(checkpoint)
        if prepared is None:
            return
        if not is_json(prepared):
            raise TypeError(
                f"{type(self._sink).__name__}.prepare returned {prepared!r:.200}: must be JSON, as it goes "
                "into the checkpoint: None, a bool, a number, a str, or lists and dicts of these"
            )
        self.prepared.append(prepared)

    def commit(self) -> None:
        # spec: SinkCommit!Commit
        if self.prepared:
            self._sink.commit(self.prepared)
            self.prepared = []

    def close(self) -> None:
        if self._is_open:
            self._sink.close()


def fitted(snapshot: TaskSnapshot, stages: Sequence[Stage]) -> TaskSnapshot:
    """The snapshot for functions that keep the order now and did not, or the other way. Any thread.

    Raises CheckpointError where the functions are others than those of the snapshot.
    """
    names = [stage.uid or "0:AsyncWaitOperator" for stage in stages]
    if [*snapshot.operators] != names:
        raise CheckpointError(
            f"the checkpoint has the functions {', '.join(map(repr, snapshot.operators))}, and the job has "
            f"{', '.join(map(repr, names))}: give the same functions in the same order (Step(fn, uid=...) "
            "names one that was renamed), or begin with another folder of checkpoints"
        )
    return snapshot._replace(
        operators={
            uid: _in_order(each, stage.options.ordered)
            for (uid, each), stage in zip(snapshot.operators.items(), stages, strict=True)
        }
    )


def _in_order(operator: OperatorSnapshot, ordered: bool) -> OperatorSnapshot:
    state = operator.state
    # spec: Operator!Restore
    return (
        operator._replace(state=state._replace(ordered=ordered))
        if isinstance(state, AsyncWaitState)
        else operator
    )
