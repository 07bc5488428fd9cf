"""The output side of an operator: takes results of rows, emits them with the marks between them, in order.

Confined to the mailbox thread.
"""

# To emit where a call ends: an emission runs the next operator, its calls may end at once and emit in turn,
# and the stack grows with the chain and with the number of rows. So a completion only puts one mail, however
# many rows have finished by then, and that mail emits all of them as one batch.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import starmap
from typing import Any

from pillarbox.aio.calls import HANDLE, HELD, Call
from pillarbox.aio.held_bytes import NOT_WEIGHED, HeldBytes
from pillarbox.aio.meter import Meter
from pillarbox.aio.stages import Place
from pillarbox.kernel import WATERMARK, Mail, OrderedQueue, TaskMailbox, UnorderedQueue
from pillarbox.kernel.alike import apart
from pillarbox.task.operator import OperatorContext
from pillarbox.task.protocols import Idleness, OperatorOutput, RowBatch, Watermark


class ResultEmitter:
    """Completes entries of the result queue, and emits what may leave it by one mail.

    place: that among the functions of the task. weights: counts results; None where no bytes are limited.
    `is_full`: an emission waits for room in the output. `last_mark` is the newest entry of watermarks and
    statuses as long as no row has come since: others join it.
    """

    __slots__ = (
        *("is_full", "last_mark", "_drained", "_is_asked", "_is_stopped", "_mail", "_mailbox", "_marks"),
        *("_meter", "_output", "_place", "_queue", "_readmit", "_weights"),
    )

    _mail: Mail
    _mailbox: TaskMailbox
    _output: OperatorOutput
    _readmit: Callable[[], None]

    def __init__(
        self,
        queue: OrderedQueue | UnorderedQueue,
        meter: Meter,
        place: Place,
        weights: HeldBytes | None,
    ) -> None:
        self._queue = queue
        self._meter = meter
        self._place = place
        self._weights = weights
        self.is_full = False
        self.last_mark: list[Watermark | Idleness] | None = None
        # Entries of marks in the queue.
        self._marks = 0
        self._is_asked = self._is_stopped = False
        self._drained: Future[None] | None = None

    def bind(self, context: OperatorContext, readmit: Callable[[], None]) -> None:
        """Take the context of the task. readmit: admits rows of a snapshot that have found no room yet."""
        self._output = context.output
        self._mailbox = context.executor.mailbox
        # One mail, put again and again: with one for each emission every finished row would make one.
        self._mail = Mail(self._emit, priority=context.position, description="emit results")
        self._readmit = readmit

    # -- results come -------------------------------------------------------------------------

    def complete(self, call: Call, result: Any) -> None:
        """Give the row of `call` its result, which leaves in its turn."""
        if type(result) not in NOT_WEIGHED and (weights := self._weights) is not None:
            if weights.light:
                weights.light -= 1
            else:
                weights.weigh(call, result)
        # What was closed drops it. spec: Operator!LateOutcome
        self._queue.complete(call.handle, result)
        if not self._is_asked and self._queue.has_completed():
            self._ask()

    def complete_all(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        """Give rows that were called together their results, as `complete` does each."""
        if self._weights is not None:
            self._weights.weigh_all(calls, results)
        self._complete_each(calls, results)

    def complete_kept(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        """Complete calls whose results were counted when they came, now that the ledger has them."""
        self._complete_each(calls, results)
        weights = self._weights
        if weights is not None and weights.is_tight:
            weights.allow_calls()

    def _complete_each(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        # spec: Operator!LateOutcome
        # Without a line of Python for each.
        deque(starmap(self._queue.complete, zip(HANDLE.of(calls), results, strict=True)), maxlen=0)
        self.ask_if_completed()

    def pass_left_out(self, call: Call) -> None:
        """Finish rows that are left out: they are counted neither in nor out."""
        self._meter.results -= 1
        self._queue.complete(call.handle, call.row)
        self.ask_if_completed()

    def ask_if_completed(self) -> None:
        """Have what is completed emitted, if anything may leave."""
        if not self._is_asked and self._queue.has_completed():
            self._ask()

    def put_mark(self, element: Watermark | Idleness) -> bool:
        """Let no row pass `element`; True if it has taken an entry of the window."""
        # spec: Chain!ProcessWatermark, Operator!PutMark
        if len(self._queue) == 0 and self._output.is_available:
            self._emit_mark(element)
            return False
        is_new = self.last_mark is None
        if self.last_mark is None:
            self.last_mark = []
            self._queue.put_watermark(self.last_mark)
            self._marks += 1
        mark = self.last_mark
        mark[:] = [*(each for each in mark if type(each) is not type(element)), element]
        self.ask_if_completed()
        return is_new

    def restore_mark(self, elements: list[Watermark | Idleness]) -> list[Watermark | Idleness]:
        """Return the entry of the queue for marks of a snapshot."""
        self.last_mark = mark = list(elements)
        self._marks += 1
        return mark

    # -- results leave ------------------------------------------------------------------------

    def drained(self) -> Future[None]:
        """A future that is done when the last row of the queue, which is not empty, has left."""
        self._drained = Future()
        return self._drained

    def stop(self) -> None:
        """Emit nothing from now on."""
        self._is_stopped = True

    def _ask(self) -> None:
        if not self._is_stopped:
            self._is_asked = True
            self._mailbox.put(self._mail)

    def _emit(self) -> None:
        """Emit what has finished, as one batch. As mail, which the chain follows with its turn."""
        # spec: Chain!Emit, Operator!EmitRow, Operator!EmitMark
        output, weights = self._output, self._weights
        if self._is_stopped:
            return
        if not output.is_available:
            # The request to emit stands until then. spec: Chain!WaitForRoom
            self._set_full(True)
            output.call_when_room(self._ask)
            if weights is not None and weights.is_tight:
                weights.allow_calls()
            return
        self._is_asked = False
        self._set_full(False)
        # Behind the last row no call is saved by small steps.
        room = output.room if self._drained is None else None
        results = self._queue.emit_many(room)
        if self._marks:
            self._emit_with_marks(results)
        else:
            self._emit_rows(results)
        if room is not None and self._queue.has_completed():
            self._ask()
        if weights is not None and weights.is_tight:
            weights.allow_calls()
        if self._queue.restoring:
            self._readmit()
        if self._drained is not None and len(self._queue) == 0:
            drained, self._drained = self._drained, None
            drained.set_result(None)

    def _set_full(self, is_full: bool) -> None:
        self.is_full = is_full
        if self._weights is not None:
            self._weights.output_is_full = is_full

    def _emit_rows(self, results: list[tuple[Call, Any]]) -> None:
        self._meter.results += len(results)
        held, weights = 0, self._weights
        if weights is not None:
            held = sum(HELD.of(apart(results)[0]))
            weights.held -= held
        if results:
            place = self._place
            # Of a function alone no failure needs a name, and all goes on: no result is looked at.
            batch = RowBatch(results, held_bytes=held) if place.uid is None else place.pass_on(results, held)
            if batch is not None:
                self._output.collect(batch)

    def _emit_with_marks(self, results: list[tuple[Any, Any]]) -> None:
        rows: list[tuple[Call, Any]] = []
        for pair in results:
            if pair[0] is not WATERMARK:
                rows.append(pair)
                continue
            if rows:
                self._emit_rows(rows)
                rows = []
            if self._is_stopped:
                return
            self._marks -= 1
            mark: list[Watermark | Idleness] = pair[1]
            if mark is self.last_mark:
                self.last_mark = None
            for element in mark:
                self._emit_mark(element)
        if rows:
            self._emit_rows(rows)

    def _emit_mark(self, element: Watermark | Idleness) -> None:
        if isinstance(element, Watermark):
            self._output.emit_watermark(element.timestamp)
        else:
            self._output.emit_status(element.idle)
