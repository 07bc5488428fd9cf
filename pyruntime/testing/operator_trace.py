"""Records what the async operator does: each of its steps is a line, in a file for each life of an operator.

    with recording(folder):
        ...  # operators that are made meanwhile are recorded

`record_operators(folder)` does so for the rest of the process; the harness of the chaos runs calls it in
every process whose environment names a folder in `PILLARBOX_TRACE`. What ships has no hook for this: the
recorder puts classes of its own in front of those of the operator and its parts, and itself in front of the
queue and the output, and nothing is there while it is off. Each line is one write, so that of a process that
is killed its steps up to then are there.

A line is a list as JSON: milliseconds of the operator's clock since it was made, the step, its words. Steps
are the actions of `spec/Operator.tla`; `spec.operator_runs` has TLC judge them.
Installed and removed by one thread; an operator's steps are written on its mailbox thread.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio import async_wait, hedging
from pillarbox.aio.admission import RowAdmission
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.batches import batch_scheduler
from pillarbox.aio.batches.batch_execution import BatchExecution
from pillarbox.aio.batches.batch_scheduler import BatchScheduler
from pillarbox.aio.calls import Call, CallState, TakesResults
from pillarbox.aio.chained import ChainedRow, chained_row
from pillarbox.aio.deadlines import clock_of
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.errors import CallFailed, CallTimeout, Failed
from pillarbox.aio.hedging import HedgingScheduler
from pillarbox.aio.in_flight import WAITING, Shared
from pillarbox.aio.ledger_records import LedgerRecords
from pillarbox.aio.options import Options
from pillarbox.aio.result_route import ResultRoute
from pillarbox.aio.retry import Retry
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.stages import ONLY_PLACE
from pillarbox.aio.states import AsyncWaitState, FinishedRow
from pillarbox.aio.usage import repeats_of
from pillarbox.kernel import OrderedQueue, UnorderedQueue
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.operator import OperatorContext
from pillarbox.task.protocols import Idleness, OperatorOutput, RowBatch, Watermark
from pillarbox.wire import is_unsent

SLACK_VIRTUAL_MS = 2
SLACK_MS = 60_000
"""Milliseconds by which a time-out may be late: on a loop that others hold up, by much."""

MAX_LABEL = 2**31 - 1
"""The largest number that TLC knows."""

# Their names are given other values.
_module: Any = async_wait
_batches: Any = batch_scheduler
_hedges: Any = hedging
_INIT = AsyncWaitOperator.__init__
_PARTS = ("CallScheduler", "OrderedQueue", "ResultEmitter", "RowAdmission", "UnorderedQueue")
_SHIPPED = {name: getattr(async_wait, name) for name in _PARTS}
_traces: list[OperatorTrace] = []
_numbers = itertools.count(1)


class _Making(threading.local):
    """The operator that this thread makes: its parts take their trace from here."""

    trace: OperatorTrace


_making = _Making()


class SavedRow(NamedTuple):
    """A row of a snapshot. Times are milliseconds; `pause` is -1 where none is waited for."""

    id: int
    label: int
    kind: str
    attempts: int
    spent: int
    pause: int
    repeats: int = 0


class SavedMark(NamedTuple):
    """Watermarks and statuses of a snapshot that share an entry, each as (kind, value)."""

    elements: tuple[tuple[str, str], ...]


class TraceStep(NamedTuple):
    """A line of a trace. `words` are numbers, but for the values of marks and what a snapshot has."""

    at: int
    name: str
    words: tuple[Any, ...]


def read_trace(text: str) -> list[TraceStep]:
    """The steps of a trace; a last line that a killed process has not finished is none.

    Raises ValueError for another line.
    """
    return [_step(*json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def read_life(path: Path) -> list[TraceStep]:
    """The steps of the operator whose file this is."""
    return read_trace(path.read_text())


def _step(at: int, name: str, *words: Any) -> TraceStep:
    if name not in ("snapshot", "restore"):
        return TraceStep(at, name, words)
    finished, entries = words
    return TraceStep(at, name, (finished, tuple(_saved(*entry) for entry in entries)))


def _saved(kind: str, *parts: Any) -> SavedRow | SavedMark:
    return SavedMark(tuple(map(tuple, parts))) if kind == "mark" else SavedRow(*parts)


class OperatorTrace:
    """The file of one operator. Confined to the operator's mailbox thread."""

    def __init__(self, folder: Path, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock_of(loop)
        self._began = self.clock()
        # In the order of their making, whichever process has made them.
        name = f"{time.monotonic_ns():020}-{os.getpid()}-{next(_numbers)}.trace"
        self._file: int | None = os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        self.ids: dict[Call, int] = {}
        self._rows = itertools.count(1)
        # Rows of which the operator has said how they end, before it gives them their result.
        self.decided: set[Call] = set()
        self.snapshot_ids: list[int] = []
        # In a chain: what is handed on has the form of the rows of the operator behind.
        self.is_chained = self.is_behind = False
        is_virtual = self.clock is not time.monotonic
        timeout = 0 if options.timeout.total is None else _ms(options.timeout.total)
        self.write(
            "create",
            int(options.ordered),
            options.window,
            options.capacity if isinstance(options.capacity, int) and options.batch is None else 0,
            _most_attempts(options),
            timeout,
            SLACK_VIRTUAL_MS if is_virtual else SLACK_MS,
            int(options.batch is not None),
        )

    def write(self, name: str, *words: object) -> None:
        """Add a line."""
        if self._file is not None:
            at = _ms(self.clock() - self._began)
            os.write(self._file, (json.dumps([at, name, *words]) + "\n").encode())

    def of(self, name: str, call: Call, *words: object) -> None:
        """Add a line about a row."""
        self.write(name, self.ids[call], *words)

    def decide(self, name: str, call: Call) -> None:
        """Add a line that says how a row ends."""
        self.of(name, call)
        self.decided.add(call)

    def write_state(self, name: str, state: AsyncWaitState) -> None:
        """Add a line that has a state of the operator."""
        self.write(name, state.finished, [*_saved_entries(state.entries, self.snapshot_ids)])

    def take_in(self, call: Call) -> int:
        """The number of a row that comes in."""
        number = self.ids[call] = next(self._rows)
        return number

    def close(self) -> None:
        """Write no more: its process was killed, as far as the run goes."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _most_attempts(options: Options) -> int:
    """Attempts that a row may have; 0 where that depends on more than their number."""
    retry = options.retry
    if retry is None:
        return 0 if options.batch is not None else 1
    if not isinstance(retry, Retry) or retry.max_outage > 0 or options.batch is not None:
        return 0
    return retry.attempts


def label_of(row: Any) -> int:
    """A number by which a row is known in another life; one of a chain by its source and place."""
    if isinstance(row, ChainedRow):
        row = label_of(row.source), row.ordinal
    text = repr(tuple(row)) if getattr(type(row), "__is_view__", False) else repr(row)
    return zlib.crc32(text.encode(errors="replace")) & MAX_LABEL


def _element(element: Watermark | Idleness) -> tuple[str, str]:
    if isinstance(element, Watermark):
        return "watermark", str(float(element.timestamp))
    return "idle", str(int(element.idle))


class _RecordedQueue:
    """The operator's result queue, and what is put in and taken out."""

    def __init__(self, queue: OrderedQueue | UnorderedQueue, trace: OperatorTrace) -> None:
        self._queue = queue
        self._trace = trace
        self._handles: dict[int, Call] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, call: Call) -> int:
        # spec: Operator!Admit
        handle: int = self._queue.put(call)
        self._handles[handle] = call
        row = chained_row(call) if self._trace.is_behind else call.row
        self._trace.write("admit", self._trace.take_in(call), label_of(row))
        if type(call.row) is Failed and self._trace.is_behind:
            # It has failed in front, and is not called here.
            self._trace.of("find", call)
        return handle

    def renew(self, handle: int) -> int:
        renewed: int = self._queue.renew(handle)
        self._handles[renewed] = self._handles.pop(handle)
        return renewed

    def complete(self, handle: int, result: object) -> bool:
        # spec: Operator!Complete
        completed: bool = self._queue.complete(handle, result)
        if completed:
            self._trace.of("complete", self._handles.pop(handle))
        return completed

    def snapshot(self) -> list[Any]:
        entries: list[Any] = self._queue.snapshot()
        self._trace.snapshot_ids = [self._trace.ids.get(entry[0], 0) for entry in entries]
        return entries

    def restore(self, entries: list[Any]) -> None:
        taken = self._trace.take_in
        self._trace.snapshot_ids = [taken(entry[0]) if isinstance(entry[0], Call) else 0 for entry in entries]
        self._queue.restore(entries)

    def admit_restored(self) -> tuple[int, Call] | None:
        # spec: Operator!Readmit
        before = self._queue.restoring
        admitted: tuple[int, Call] | None = self._queue.admit_restored()
        if admitted is not None:
            self._handles[admitted[0]] = admitted[1]
        for _ in range(before - self._queue.restoring):
            self._trace.write("readmit")
        return admitted


class _RecordedOutput:
    """The output of the operator, and what it emits."""

    # Not the operator's own methods: a row that these lose would be written down as emitted.

    def __init__(self, output: OperatorOutput, trace: OperatorTrace) -> None:
        self._output = output
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def collect(self, batch: RowBatch) -> None:
        # spec: Operator!EmitRow
        if not self._trace.is_chained:
            for call, _ in batch.rows:
                self._trace.of("emit", call)
        self._output.collect(batch)

    def emit_watermark(self, timestamp: float) -> None:
        # spec: Operator!EmitMark
        self._trace.write("emit_mark", *_element(Watermark(timestamp)))
        self._output.emit_watermark(timestamp)

    def emit_status(self, idle: bool) -> None:
        self._trace.write("emit_mark", *_element(Idleness(idle)))
        self._output.emit_status(idle)


class _RecordedRoute(ResultRoute):
    """The way of results, and the rows that get those of others."""

    __slots__ = ("_trace",)

    def __init__(self, route: ResultRoute, trace: OperatorTrace) -> None:
        for name in ResultRoute.__slots__:
            setattr(self, name, getattr(route, name))
        self._trace = trace

    def hand_on(self, call: Call, result: object, called: Call | None = None) -> None:
        # spec: Operator!Find, Operator!LateShare
        if called is not None:
            self._trace.of("find", call)
        super().hand_on(call, result, called)

    def take_found(self, call: Call, result: object) -> None:
        self._trace.decided.discard(call)
        super().take_found(call, result)

    def share_found(self, call: Call, result: object) -> None:
        self._trace.of("find", call)
        super().share_found(call, result)


class _RecordedScheduler(CallScheduler):
    """The attempts of an operator, and what becomes of each."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self._trace = _making.trace
        super().__init__(*words, **more)
        self.route = _RecordedRoute(self.route, self._trace)
        self._finish_call = self._recorded(self.route.of_calls())
        complete_all = self._operator.complete_all
        if complete_all is not None:
            self._operator = self._operator._replace(complete_all=self._recorded_all(complete_all))

    def record_in(self, records: LedgerRecords) -> None:
        super().record_in(records)
        self._finish_call = self._recorded(self._finish_call)

    def _recorded(self, finish: Callable[[Call, Any], None]) -> Callable[[Call, Any], None]:
        def finished(call: Call, result: object) -> None:
            self._answered(call)
            finish(call, result)

        return finished

    def _recorded_all(self, finish: TakesResults) -> TakesResults:
        def finished(calls: Sequence[Call], results: Sequence[Any]) -> None:
            for call in calls:
                self._answered(call)
            finish(calls, results)

        return finished

    def _answered(self, call: Call) -> None:
        # spec: Operator!Answer, Operator!LateAnswer
        if call in self._trace.decided:
            self._trace.decided.discard(call)
        else:
            self._trace.of("answer", call)

    def take(self, execution: object) -> Call | None:
        # spec: Operator!Start
        call = super().take(execution)
        if call is not None and call.hedges is None:
            self._trace.of("start", call, call.attempt)
        return call

    def measure_failed(self, call: Call) -> None:
        # spec: Operator!Fail, Operator!LateFailure
        self._trace.of("fail", call)
        super().measure_failed(call)

    def again(self, calls: Sequence[Call], error: BaseException) -> float | None:
        # spec: Operator!Again, Operator!AskAgain
        before: int = calls[0].repeats
        pause = super().again(calls, error)
        if pause is not None:
            asked = calls[0].repeats > before
            # What nothing was read of is sent once more.
            most = repeats_of(error) or int(is_unsent(error))
            name, word = ("ask_again", most) if asked else ("again", _ms(pause))
            for call in calls:
                self._trace.of(name, call, word)
        return pause

    def take_back(self, calls: list[Call], lack: object, error: BaseException) -> float | None:
        # spec: Operator!Return
        pause = super().take_back(calls, lack, error)
        if pause is not None:
            for call in calls:
                self._trace.of("return", call, _ms(pause), int(not call.attempt and type(call) is Call))
        return pause

    def fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        # spec: Operator!GiveUp, Operator!LateEnd
        self._trace.decide("give_up", call)
        super().fail_call(call, error)

    def withdraw(self, call: Call) -> None:
        # spec: Operator!Withdraw
        self._trace.decide("withdraw", call)
        super().withdraw(call)

    def mark(self, calls: list[Call], limit: str) -> None:
        for call in calls:
            self._trace.decide("withdraw", call)
        super().mark(calls, limit)

    def _timed_out(self, call: Call) -> None:
        # spec: Operator!TimeOut
        self._trace.of("time_out", call)
        super()._timed_out(call)


class _RecordedHedgingScheduler(_RecordedScheduler, HedgingScheduler):
    """The same, of calls that are hedged: a row with its hedges is one call."""

    def fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        if call.hedges is None:
            super().fail_call(call, error)
        else:
            HedgingScheduler.fail_call(self, call, error)


class _RecordedBatchScheduler(_RecordedScheduler, BatchScheduler):
    """The same, of calls that are made in batches."""

    def begin_batch(self, batch: BatchExecution) -> bool:
        # spec: Operator!Start
        has_begun = super().begin_batch(batch)
        if has_begun:
            for call in batch.calls:
                self._trace.of("start", call, call.attempt)
        return has_begun


class _RecordedEmitter(ResultEmitter):
    """Emissions of an operator."""

    def __init__(self, *words: Any) -> None:
        self._trace = _making.trace
        super().__init__(*words)

    def bind(self, context: OperatorContext, readmit: Callable[[], None]) -> None:
        super().bind(context, readmit)
        self._output: Any = _RecordedOutput(self._output, self._trace)

    def _emit_rows(self, results: list[tuple[Call, Any]]) -> None:
        if self._trace.is_chained:
            for call, _ in results:
                self._trace.of("emit", call)
        super()._emit_rows(results)


class _RecordedAdmission(RowAdmission):
    """Rows that join others."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self._trace = _making.trace
        super().__init__(*words, **more)

    def _count_in(self, admitted: int, done: Sequence[tuple[Call, Any]]) -> None:
        # spec: Operator!Join
        for call, outcome in done:
            if outcome is WAITING or isinstance(outcome, Shared):
                self._trace.of("join" if outcome is WAITING else "find", call)
        super()._count_in(admitted, done)


def _recorded_queue(kind: str) -> Callable[..., Any]:
    # As the module has it: a test may watch it as well.
    make = getattr(_module, kind)
    return lambda *words, **more: _RecordedQueue(make(*words, **more), _making.trace)


class _RecordedOperator(AsyncWaitOperator):
    """An operator that says what it does; put in front of the class of each one that is made."""

    _trace: OperatorTrace

    def process_watermark(self, timestamp: float) -> None:
        # spec: Operator!PutMark
        self._trace.write("mark", *_element(Watermark(timestamp)))
        super().process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self._trace.write("mark", *_element(Idleness(idle)))
        super().process_status(idle)

    def snapshot_state(self, barrier: CheckpointBarrier) -> AsyncWaitState:
        # spec: Operator!Snapshot
        state = super().snapshot_state(barrier)
        self._trace.write_state("snapshot", state)
        return state

    def restore_state(self, state: Any) -> None:
        # spec: Operator!Restore
        super().restore_state(state)
        self._trace.write_state("restore", state)

    def end_input(self) -> Future[None] | None:
        # spec: Operator!EndInput
        self._trace.write("end_input")
        return super().end_input()

    def finish(self) -> None:
        # spec: Operator!Finish
        self._trace.write("finish")
        super().finish()

    def stop(self) -> None:
        # spec: Operator!Close
        if not self._scheduler.is_closed:
            self._trace.write("close")
        super().stop()


def _saved_entries(entries: Any, ids: list[int]) -> Iterator[list[Any]]:
    for number, each in zip(ids, entries, strict=True):
        if isinstance(each, list):
            yield ["mark", *map(_element, each)]
        elif isinstance(each, FinishedRow):
            kind = "done" if each.is_durable else "kept"
            yield ["row", *SavedRow(number, label_of(each.row), kind, 0, 0, -1)]
        else:
            assert isinstance(each, CallState)
            pause = -1 if each.pause is None else _ms(each.pause)
            # Its time runs from the restore on if any of it is over, however little.
            spent = _ms(each.spent) or int(each.spent > 0)
            row = SavedRow(number, label_of(each.row), "open", each.attempts, spent, pause, each.repeats)
            yield ["row", *row]


def record_operators(folder: str | Path) -> None:
    """Record every operator that is made from now on, in files of `folder`, which is made.

    Raises RuntimeError if operators are recorded already.
    """
    if _module.CallScheduler is _RecordedScheduler:
        raise RuntimeError("operators are recorded already")
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    _module.CallScheduler = _RecordedScheduler
    _hedges.HedgingScheduler = _RecordedHedgingScheduler
    _batches.BatchScheduler = _RecordedBatchScheduler
    _module.ResultEmitter = _RecordedEmitter
    _module.RowAdmission = _RecordedAdmission
    _module.OrderedQueue = _recorded_queue("OrderedQueue")
    _module.UnorderedQueue = _recorded_queue("UnorderedQueue")

    @wraps(_INIT)
    def made(operator: Any, fn: Any, options: Options, **more: Any) -> None:
        kind = type(operator)
        # Before the operator hands its methods out. By the same name, which stands in its `uid`.
        operator.__class__ = type(kind.__name__, (_RecordedOperator, kind), {})
        operator._trace = _making.trace = trace = OperatorTrace(into, options, more["loop"])
        _traces.append(trace)
        place = more.get("place", ONLY_PLACE)
        trace.is_chained, trace.is_behind = place.uid is not None, not place.is_first
        _INIT(operator, fn, options, **more)

    AsyncWaitOperator.__init__ = made  # type: ignore[method-assign,assignment]


def stop_recording() -> None:
    """Record no more, neither those that are made from now on nor those that were."""
    for trace in _traces:
        trace.close()
    _traces.clear()
    for name, part in _SHIPPED.items():
        setattr(_module, name, part)
    _batches.BatchScheduler = BatchScheduler
    _hedges.HedgingScheduler = HedgingScheduler
    AsyncWaitOperator.__init__ = _INIT  # type: ignore[method-assign]


@contextmanager
def recording(folder: str | Path) -> Iterator[Path]:
    """Record the operators that are made meanwhile; what they do afterwards is not written down."""
    record_operators(folder)
    try:
        yield Path(folder)
    finally:
        stop_recording()
