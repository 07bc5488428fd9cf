"""An input and operators that the tests of the task share, and a way to run them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pillarbox.kernel import TaskMailbox
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, TaskSnapshot
from pillarbox.task.protocols import TaskInput, TaskOutput
from pillarbox.testing.test_io import CollectedOutput, PushedInput


class Numbers:
    """An input of the numbers below `end`; its state is the next one."""

    def __init__(self, end: int) -> None:
        self.next = 0
        self.end = end

    def emit_next(self, output: TaskOutput) -> InputStatus:
        if self.next == self.end:
            return InputStatus.END_OF_INPUT
        output.collect(self.next)
        self.next += 1
        return InputStatus.MORE_AVAILABLE

    def available(self) -> None:
        return None

    def snapshot_state(self) -> int:
        return self.next

    def restore_state(self, state: int) -> None:
        self.next = state

    def close(self) -> None:
        return None


class Logging(Operator):
    """Hands records on, and writes down what is asked of it. `fails` names the calls that raise."""

    def __init__(self, name: str, log: list[str], *fails: str) -> None:
        self.uid = name
        self.log = log
        self.fails = fails

    def note(self, what: str) -> None:
        self.log.append(f"{self.uid} {what}")
        if what.split()[0] in self.fails:
            raise ValueError(f"{self.uid} {what}")

    def restore_state(self, state: Any) -> None:
        self.note(f"restore {state}")

    def open(self) -> None:
        self.note("open")

    def process(self, record: Any) -> None:
        self.note(f"process {record}")
        self.output.collect(record)

    def process_watermark(self, timestamp: float) -> None:
        self.note(f"watermark {timestamp}")
        super().process_watermark(timestamp)

    def snapshot_state(self, barrier: CheckpointBarrier) -> Any:
        self.note(f"snapshot {barrier.id}")
        return self.uid

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.note(f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.note(f"aborted {checkpoint_id}")

    def end_input(self) -> Future[Any] | None:
        self.note("end_input")
        return None

    def finish(self) -> None:
        self.note("finish")

    def close(self) -> None:
        self.note("close")


class Map(Operator):
    """Emits `fn(record)`."""

    def __init__(self, fn: Callable[[Any], Any], uid: str | None = None) -> None:
        self.fn = fn
        self.uid = uid

    def process(self, record: Any) -> None:
        self.output.collect(self.fn(record))


class Counted(Operator):
    """Emits each record `times` times, with a number that is its state."""

    def __init__(self, times: int = 1, uid: str = "counted") -> None:
        self.uid = uid
        self.times = times
        self.count = 0

    def restore_state(self, state: Any) -> None:
        self.count = state

    def process(self, record: Any) -> None:
        for _ in range(self.times):
            self.output.collect((record, self.count))
            self.count += 1

    def snapshot_state(self, barrier: CheckpointBarrier) -> int:
        return self.count


class Door(Operator):
    """Takes in `room` records; for another one it yields until mail, `let_go`, has emitted one of them."""

    def __init__(self, room: int = 1, uid: str = "door") -> None:
        self.uid = uid
        self.room = room
        self.held: list[Any] = []
        self.blocked: Callable[[], object] = lambda: None

    def restore_state(self, state: Any) -> None:
        self.held = list(state)

    def process(self, record: Any) -> None:
        while len(self.held) >= self.room:
            self.blocked()
            self.context.executor.yield_()
        self.held.append(record)

    def let_go(self) -> None:
        """Emit the oldest record, as the completion of a call would. Any thread."""
        self.context.executor.execute(self._let_go)

    def _let_go(self) -> None:
        if self.held:
            self.output.collect(self.held.pop(0))

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[Any]:
        return list(self.held)

    def end_input(self) -> Future[Any] | None:
        while self.held:
            self._let_go()
        return None


class Declining(Operator):
    """Hands records on, and declines the checkpoints in `declined`."""

    def __init__(self, *declined: int, uid: str = "declining") -> None:
        self.uid = uid
        self.declined = declined

    def process(self, record: Any) -> None:
        self.output.collect(record)

    def snapshot_state(self, barrier: CheckpointBarrier) -> None:
        if barrier.id in self.declined:
            raise CheckpointDeclined(barrier.id, "not now")


class ImpatientMailbox(TaskMailbox):
    """A mailbox in which a wait in vain is an error and no hang: nobody else puts mail."""

    def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
        mail = self.try_take(p, skip_deferrable=skip_deferrable)
        assert mail is not None, f"a take of priority {p} waits for ever"
        return mail


class Rig:
    """A task with an input to push into and an output to look at."""

    def __init__(self, *operators: Operator, input: TaskInput | None = None, **options: Any) -> None:
        self.input = PushedInput()
        self.output = CollectedOutput()
        self.task = StreamTask(self.input if input is None else input, operators, self.output, **options)

    def push(self, *records: Any) -> None:
        self.input.push(*records)

    def end(self, *statuses: InputStatus) -> None:
        """Push what an input says at its end; END_OF_DATA and END_OF_INPUT unless told otherwise."""
        for status in statuses or (InputStatus.END_OF_DATA, InputStatus.END_OF_INPUT):
            self.input.push_status(status)

    def step(self) -> None:
        """Run as far as it goes without waiting."""
        while self.task.run_step():
            pass

    def run(self, *records: Any) -> list[Any]:
        """Run these records and the end of the input; what came out."""
        self.push(*records)
        self.end()
        self.task.run()
        return self.output.elements

    def run_restored(self, snapshot: TaskSnapshot) -> list[Any]:
        """Restore `snapshot` and run the end of the input; what came out."""
        self.task.restore(snapshot)
        return self.run()
