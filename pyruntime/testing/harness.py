"""Drives one operator as a test would: elements in, time on, snapshots out, output to look at.

Made and used on one thread, which is the mailbox thread of the operator's task.
"""

# Why a whole task around one operator, and not calls of its methods. An operator that is called directly
# gets elements without room, timers without a mailbox, and snapshots that no restore has read: it passes
# tests that its task fails.
#
# Why snapshots go through `pickle`. A state that shares a list with the operator changes after the
# snapshot; a test that restored the very object would see the later state and pass.

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointOptions, TaskSnapshot
from pillarbox.task.failures import Failures
from pillarbox.task.protocols import TaskState
from pillarbox.testing.clocks import FakeClock
from pillarbox.testing.test_io import CollectedOutput, PushedInput


class OperatorHarness:
    """Task of one operator for a test, which runs as far as possible after each call. Confined.

        >>> from pillarbox.task import Operator
        >>> from pillarbox.testing import OperatorHarness
        >>> class Sum(Operator):
        ...     total = 0
        ...     def process(self, number):
        ...         self.total += number
        ...         self.output.collect(self.total)
        ...     def snapshot_state(self, barrier):
        ...         return self.total
        ...     def restore_state(self, total):
        ...         self.total = total
        >>> first = OperatorHarness(Sum())
        >>> first.push(1, 2)
        >>> later = OperatorHarness(Sum(), snapshot=first.snapshot())
        >>> later.push(10)
        >>> first.records, later.records
        ([1, 3], [13])
        >>> first.close(); later.close()

    The operator is opened at once; with a `snapshot` its state is restored before. Time does not pass except
    by `advance` and `set_time`. A snapshot goes through `pickle`, as a real one would, so that the operator
    cannot change it later. Every method raises the error of the operator; the task has then ended.

    operator: a new one. snapshot: of `snapshot()`. now: the reading of the clock, in seconds.
    """

    def __init__(self, operator: Operator, snapshot: TaskSnapshot | None = None, *, now: float = 0.0) -> None:
        self.operator = operator
        self.clock = FakeClock(now)
        self.input = PushedInput()
        self.output = CollectedOutput()
        self.task = StreamTask(self.input, [operator], self.output, name="harness", clock=self.clock)
        self._next_checkpoint = 1 if snapshot is None else snapshot.barrier.id + 1
        self.task.restore(snapshot)
        self.run()

    # -- what comes out -----------------------------------------------------------------------

    @property
    def elements(self) -> list[Any]:
        """All that was emitted, in order: records, `Watermark`s, `Idleness` and `CheckpointBarrier`s."""
        return self.output.elements

    @property
    def records(self) -> list[Any]:
        """The records that were emitted."""
        return self.output.records

    @property
    def watermarks(self) -> list[float]:
        """The watermarks that were emitted, in seconds."""
        return self.output.watermarks

    # -- what goes in -------------------------------------------------------------------------

    def push(self, *records: object) -> None:
        """Process records."""
        self.input.push(*records)
        self.run()

    def push_watermark(self, timestamp: float) -> None:
        """Process a watermark, in seconds."""
        self.input.push_watermark(timestamp)
        self.run()

    def advance(self, seconds: float) -> None:
        """Advance the time and run the timers that are due."""
        self.clock.advance(seconds)
        self.run()

    def set_time(self, seconds: float) -> None:
        """Advance the time until the clock reads `seconds`."""
        self.clock.set(seconds)
        self.run()

    def end_input(self) -> None:
        """End the data and the input; the task then finishes, unless work is in progress.

        `run_until` waits for that work: `harness.run_until(lambda: harness.ended)`.
        """
        self.input.push_status(InputStatus.END_OF_INPUT)
        self.run()

    @property
    def ended(self) -> bool:
        """True if the task has ended, in whatever way."""
        return self.task.state not in (TaskState.CREATED, TaskState.RUNNING)

    def run(self) -> None:
        """Run mail and elements until nothing is left to do at once. The other methods do that themselves."""
        while not self.ended and self.task.run_step():
            pass

    def run_until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Run until `condition()`, sleeping while other threads are to put mail.

        Raises TimeoutError after `timeout` real seconds, also while there is work, RuntimeError if the
        task ends before.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            if self.ended:
                raise RuntimeError(f"the task is {self.task.state.value}, and the condition does not hold")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the condition does not hold after {timeout} seconds")
            if self.task.run_step():
                continue
            woken = threading.Event()
            if condition() or self.ended or not self.task.processor.mailbox.arm_wakeup(woken.set):
                continue
            woken.wait(deadline - time.monotonic())

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self, *, aligned: bool = True) -> TaskSnapshot:
        """Take a checkpoint. Raises `CheckpointDeclined` if the operator declines it.

        Its id is one more than the last one's. The snapshot is a copy, made with `pickle`.
        """
        future = self.task.trigger_checkpoint_async(
            self._next_checkpoint, CheckpointOptions(aligned=aligned), timestamp=self.clock()
        )
        self._next_checkpoint += 1
        self.run()
        copy: TaskSnapshot = pickle.loads(pickle.dumps(future.result(timeout=0)))
        return copy

    def complete(self, snapshot: TaskSnapshot) -> None:
        """Notify the operator that a checkpoint is complete."""
        self.task.notify_checkpoint_complete_async(snapshot.barrier.id)
        self.run()

    def abort(self, snapshot: TaskSnapshot) -> None:
        """Notify the operator that a checkpoint will not complete."""
        self.task.notify_checkpoint_aborted_async(snapshot.barrier.id)
        self.run()

    def close(self) -> None:
        """Close the operator, as a cancelled task would. Idempotent."""
        self.task.close()

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failures = Failures(error)
        failures.run("closing the operator", self.close)
        if failures.first is not None and failures.first is not error:
            raise failures.first
