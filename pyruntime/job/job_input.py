"""The input of a job's task: the readers of its source, one after the other, with one watermark for all.

Confined to the mailbox thread.
"""

# Why one task with several readers, and not several tasks. Calls wait for a service, and one event loop has
# thousands of them in flight; more tasks would share the capacity, the rate and the state among them, and a
# restart with another number of readers would have to deal the state out anew. So the number of readers is
# the source's own affair: its coordinator deals the splits out anew.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pillarbox.sources import SourceInput
from pillarbox.sources.reader import Doorbell
from pillarbox.task.failures import Failures
from pillarbox.task.protocols import InputStatus, OperatorOutput, RowBatch, TaskOutput
from pillarbox.task.protocols import Watermark as _Watermark


class _Reader:
    """One reader, and the output to which it emits: rows are gathered, event time is kept apart."""

    is_available = True

    def __init__(self, input: SourceInput[Any]) -> None:
        self.input = input
        self.rows: list[Any] = []
        # Rows, watermarks and statuses in the order in which they came.
        self.elements: list[Any] = []
        self.watermark = -math.inf
        self.idle = False
        self.watched: Future[Any] | None = None

    def collect(self, record: Any) -> None:
        self.rows.append(record)

    def emit_watermark(self, timestamp: float) -> None:
        self._cut()
        self.elements.append(_Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        self._cut()
        self.elements.append(idle)

    def emit_barrier(self, barrier: object) -> None:
        raise RuntimeError(f"{barrier!r} was emitted by a source; the task emits barriers itself")

    def call_when_room(self, wake: Callable[[], object]) -> None:
        wake()

    def take(self) -> list[Any]:
        self._cut()
        elements, self.elements = self.elements, []
        return elements

    def _cut(self) -> None:
        if self.rows:
            self.elements.append(self.rows)
            self.rows = []


class JobInput:
    """Emits what the readers of a source emit, in batches of rows, and the lowest of their watermarks.

    inputs: the readers, by their numbers. A reader that is idle or has ended holds no watermark back.
    Its state is that of each reader, by its number; what a restored job reads the source's coordinator says,
    so that it may have another number of readers.
    """

    def __init__(self, inputs: Sequence[SourceInput[Any]]) -> None:
        self._readers = {subtask: _Reader(each) for subtask, each in enumerate(inputs)}
        self._live = [*self._readers.values()]
        self._bell = Doorbell()
        self._watermark = -math.inf
        self._idle = False

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next rows of the first reader that has some; the next call begins with another reader."""
        for _ in range(len(self._live)):
            reader = self._live.pop(0)
            status = reader.input.emit_next(reader)
            if status is not InputStatus.END_OF_INPUT:
                self._live.append(reader)
            emitted = self._pass_on(reader, output)
            if status is InputStatus.END_OF_INPUT:
                emitted |= self._merge(output)
            if emitted or status is InputStatus.MORE_AVAILABLE:
                return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE if self._live else InputStatus.END_OF_INPUT

    def available(self) -> Future[Any] | None:
        """A future that is done when a reader may have something; None: now."""
        future = self._bell.future()
        for reader in self._live:
            own = reader.input.available()
            if own is None:
                return None
            if own is not reader.watched:
                reader.watched = own
                own.add_done_callback(lambda _: self._bell.ring())
        return future

    def snapshot_state(self) -> dict[int, Any]:
        """The state of each reader."""
        return {subtask: reader.input.snapshot_state() for subtask, reader in self._readers.items()}

    def restore_state(self, state: Any) -> None:
        """Do nothing: the source's coordinator was restored, and says what is read."""

    def close(self) -> None:
        """Close all readers. Idempotent."""
        failures = Failures()
        for subtask, reader in self._readers.items():
            failures.run(f"closing reader {subtask}", reader.input.close)
        self._bell.ring()
        if failures.first is not None:
            raise failures.first

    def _pass_on(self, reader: _Reader, output: TaskOutput) -> bool:
        emitted = False
        for element in reader.take():
            if isinstance(element, list):
                if self._idle:
                    self._set_idle(False, output)
                output.collect(RowBatch(element))
                emitted = True
            elif isinstance(element, _Watermark):
                reader.watermark = element.timestamp
                emitted |= self._merge(output)
            else:
                reader.idle = element
                emitted |= self._merge(output)
        return emitted

    def _merge(self, output: TaskOutput) -> bool:
        """Emit what the readers together say of event time, where that has changed."""
        awake = [reader.watermark for reader in self._live if not reader.idle]
        changed = False
        if awake and min(awake) > self._watermark:
            self._watermark = min(awake)
            output.emit_watermark(self._watermark)
            changed = True
        if self._live and (not awake) is not self._idle:
            self._set_idle(not awake, output)
            changed = True
        return changed

    def _set_idle(self, idle: bool, output: TaskOutput) -> None:
        self._idle = idle
        operator_output: Any = output
        end: OperatorOutput = operator_output
        end.emit_status(idle)
