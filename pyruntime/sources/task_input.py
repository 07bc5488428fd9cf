"""`SourceInput`: a source as the input of a `StreamTask`. Confined to the mailbox thread.

Its reader fetches on threads of its own; here its rows are emitted one by one, or an Arrow batch as one, with
watermarks between them. Which splits it reads the coordinator says, over a link. The idea is Flink's
`SourceOperator` (FLIP-27).
"""

# Why a checkpoint has a position and a count of rows. A reader says positions behind batches only, and a
# checkpoint may come after any row. To wait for the end of the batch would hold it up by thousands of calls;
# so it has the position at which the batch at hand begins, and how many of its rows are out. After a restart
# these are fetched again and passed over, in however many batches they come then. That relies on one rule of
# the contract: the same range gives the same rows in the same order, at any later time.
#
# Why sixteen rows at a time. One would pay for the round of the mailbox with each row; a whole batch would
# have completions, timers and checkpoints wait behind ten thousand rows.

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from pillarbox.sources.enumerator import (
    AddSplits,
    Failed,
    Message,
    NoMoreSplits,
    ReaderState,
    SourceEvent,
    state_from_json,
    state_to_json,
)
from pillarbox.sources.event_time import REPORT_INTERVAL_S, SplitWatermarks, WatermarkStrategy
from pillarbox.sources.reader import (
    Doorbell,
    Fetched,
    Progress,
    ReaderContext,
    ReaderContract,
    SourceReader,
    rest_of,
)
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import CoordinatorLink
from pillarbox.task.alarm import Alarm
from pillarbox.task.failures import Failures
from pillarbox.task.protocols import InputStatus, OperatorOutput, TaskOutput

S = TypeVar("S", bound=Split)

MAX_ROWS_PER_CALL = 16
"""Rows that are emitted at a time: mail waits for so many."""


class _Reading(Progress[S]):
    """A split that is read: `position` is where the batch at hand begins, or the next one."""

    def __init__(self, split: S, skip: int) -> None:
        super().__init__(split)
        self.skip = skip
        """Rows behind the batch at hand that were emitted before a restart."""
        self.out = 0
        """Rows of the batch at hand that were emitted."""


class SourceInput(Generic[S]):
    """Input of a task that runs a reader of `source`.

        >>> from pillarbox.sources import SourceCoordinator, SourceInput
        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> from pillarbox.task import Operator, StreamTask
        >>> class Count(Operator):
        ...     def process(self, batch):
        ...         self.output.collect(batch.num_rows)
        >>> class Output(list):
        ...     is_available, collect = True, list.append
        ...     def emit_watermark(self, seconds): ...
        ...     def emit_barrier(self, barrier): ...
        ...     def call_when_room(self, wake): ...
        >>> counts, source = Output(), GeneratorSource(rows=25_000, splits=2)
        >>> with SourceCoordinator(source, parallelism=1) as coordinator:
        ...     StreamTask(SourceInput(coordinator.link(0), source), [Count()], counts).run()
        >>> sum(counts)
        25000

    1. Each row of a sequence is an element, an Arrow batch is one. Rows of a split are emitted in its order.
    2. A checkpoint holds the unfinished splits, each from the position at which the current batch begins, and
       the number of rows of that batch already emitted: so every row is after the checkpoint or before it,
       once.
    3. The reader of a bounded source requests a split when it has fetched all rows; one of a source without
       an end requests until there is none. The input ends when no other split follows and all are finished.
    4. With `watermarks`, the lowest watermark of its splits that are not idle is emitted when it rises, and
       idleness when all are idle or it has none. With `max_drift` the watermarks of the splits are reported
       to the coordinator, which returns the time up to which they may be read; rows beyond it are not
       emitted.

    link: to the coordinator, opened with the first `emit_next` and closed with the input. context: the
    reader's place; its `send` is the link's. clock: seconds, monotonic. rows_per_call: rows that are
    emitted at a time, at most. report_interval: seconds between two reports of watermarks.

    Made and called on the mailbox thread. Raises TypeError or ValueError for a bad argument.
    """

    def __init__(
        self,
        link: CoordinatorLink[S],
        source: Source[S, Any],
        *,
        watermarks: WatermarkStrategy | None = None,
        context: ReaderContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        rows_per_call: int = MAX_ROWS_PER_CALL,
        report_interval: float = REPORT_INTERVAL_S,
    ) -> None:
        if not isinstance(source, Source):
            raise TypeError(f"source={source!r}: must be a Source, not {type(source).__name__}")
        self._link = link
        self._rows_per_call = rows_per_call
        self._serializer = source.split_serializer
        self._unbounded = source.boundedness is not Boundedness.BOUNDED
        place = replace(context or ReaderContext(), send=link.send)
        self._reader: SourceReader[S] = source.create_reader(place)
        self._contract = ReaderContract(self._reader, "poll")
        self._event_time: SplitWatermarks | None = None
        self._is_aligned = watermarks is not None and watermarks.max_drift is not None
        if watermarks is not None:
            columns = _columns(source, place, watermarks)
            self._event_time = SplitWatermarks(self._reader, watermarks, columns, clock, report_interval)
        self._started = self._done = self._closed = False
        self._restored: ReaderState[S] | None = None
        # What has come from the coordinator, on any thread.
        self._inbox: deque[Message[S]] = deque()
        self._bell = Doorbell()
        self._watched: Future[Any] | None = None
        self._splits: dict[str, _Reading[S]] = {}
        self._taken_up = 0
        self._asked = self._no_more = False
        self._at_hand: tuple[_Reading[S], Fetched] | None = None
        self._emitted = -math.inf
        self._idle = False
        self._alarm = Alarm(self._bell.ring, clock, f"pillarbox-source-{place.subtask}")

    # -- as an input; mailbox thread --------------------------------------------------------------

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next rows, if there are any. Raises the errors of the reader and the coordinator."""
        if not self._started:
            self._start()
        if self._inbox:
            self._hear()
        if self._at_hand is None:
            fetched = self._reader.poll()
            if fetched is None:
                self._emit_event_time(output, waiting=True)
                self._done = self._no_more and not self._splits and not self._inbox
                return InputStatus.END_OF_INPUT if self._done else InputStatus.NOTHING_AVAILABLE
            self._take(fetched)
        self._emit(output)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[Any] | None:
        """A future that is done when a row, a message or a moment of idleness may be there; None: now."""
        future = self._bell.future()
        if not self._started or self._at_hand is not None or self._inbox:
            return None
        rows = self._reader.available()
        if rows is None:
            return None
        if rows is not self._watched:
            # A reader gives the same future until it is done; one call for each is enough.
            self._watched = rows
            rows.add_done_callback(lambda _: self._bell.ring())
        if self._event_time is not None:
            self._alarm.reset(self._event_time.next_moment)
        return future

    def close(self) -> None:
        """Close the reader and the link. Idempotent."""
        if self._closed:
            return
        self._closed = True
        failures = Failures()
        failures.run("closing the reader", self._reader.close)
        failures.run("closing the link", self._link.close, self._done)
        failures.run("closing the alarm", self._alarm.close)
        self._bell.ring()
        if failures.first is not None:
            raise failures.first

    # -- checkpoints; mailbox thread ----------------------------------------------------------------

    def snapshot_state(self) -> Any:
        """Return the position of the reader as JSON values, with the versions of its serializers."""
        skip = {split_id: each.skip + each.out for split_id, each in self._splits.items()}
        splits = tuple(rest_of(reading.split, reading.position) for reading in self._splits.values())
        state = ReaderState(self._taken_up, splits, {name: rows for name, rows in skip.items() if rows})
        return state_to_json(state, self._serializer)

    def restore_state(self, state: object) -> None:
        """Report the earlier position to the coordinator, before the first `emit_next`.

        The splits to read still come from the coordinator, which may assign them anew. Raises
        ValueError for a value that is not from `snapshot_state`, RuntimeError after the first `emit_next`.
        """
        if self._started:
            raise RuntimeError("the input runs already; it can be restored only before")
        self._restored = state_from_json(state, self._serializer)

    # -- what comes from the coordinator ------------------------------------------------------------

    def _start(self) -> None:
        self._started = True
        self._reader.start()
        if self._is_aligned:
            self._reader.pause_or_resume_splits((), ())
        self._link.open(self._receive, self._restored)
        self._ask()

    def _receive(self, message: Message[S]) -> None:
        """Any thread."""
        self._inbox.append(message)
        self._bell.ring()

    def _hear(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, AddSplits):
                self._add(message)
            elif isinstance(message, NoMoreSplits):
                self._no_more = True
            elif isinstance(message, SourceEvent):
                self._reader.handle_source_event(message)
            elif isinstance(message, Failed):
                raise message.error
            elif self._event_time is not None and self._is_aligned:
                self._event_time.limit(message.seconds)

    def _add(self, message: AddSplits[S]) -> None:
        if message.number <= self._taken_up:
            return
        self._taken_up = message.number
        self._asked = False
        for split in message.splits:
            self._splits[split.split_id] = _Reading(split, message.skip.get(split.split_id, 0))
        if self._event_time is not None:
            self._event_time.add([split.split_id for split in message.splits])
        self._reader.add_splits(message.splits)
        if self._unbounded or not self._splits:
            self._ask()

    def _ask(self) -> None:
        if not self._asked and not self._no_more:
            self._asked = True
            self._link.request_split()

    # -- rows ---------------------------------------------------------------------------------------

    def _take(self, fetched: Fetched) -> None:
        """A batch is at hand. What of it was emitted before a restart is passed over."""
        reading = self._contract.check(fetched, self._splits)
        self._at_hand = reading, fetched
        reading.out = min(reading.skip, len(fetched.records))
        reading.skip -= reading.out
        if fetched.finished and len(self._splits) == 1:
            # While these rows are emitted the next ones come.
            self._ask()

    def _emit(self, output: TaskOutput) -> None:
        assert self._at_hand is not None
        reading, fetched = self._at_hand
        records, at, rows = fetched.records, reading.out, len(fetched.records)
        if at < rows and self._idle:
            self._set_idle(False, output)
        if isinstance(records, Sequence):
            reading.out = min(at + self._rows_per_call, rows)
            collect = output.collect
            for record in records[at : reading.out]:
                collect(record)
            if reading.out < rows:
                return
        elif at < rows:
            output.collect(records.slice(at) if at else records)
        # All rows of the batch are out: the split stands behind it.
        self._at_hand = None
        reading.position, reading.out = fetched.position, 0
        if self._event_time is not None:
            self._event_time.passed(fetched)
        if fetched.finished:
            del self._splits[fetched.split_id]
            # spec: Alignment!Finish
            self._link.finished([fetched.split_id])
            if not self._splits:
                self._ask()
        self._emit_event_time(output)

    # -- event time ---------------------------------------------------------------------------------

    def _emit_event_time(self, output: TaskOutput, *, waiting: bool = False) -> None:
        if self._event_time is None:
            return
        watermark, idle = self._event_time.merged(waiting=waiting)
        if watermark > self._emitted:
            self._emitted = watermark
            output.emit_watermark(watermark)
        # A bounded source's reader with no split has asked for one, and has the answer soon; behind the last
        # split the chain says the end.
        idle = idle and (bool(self._splits) or (self._unbounded and not self._no_more))
        if idle != self._idle:
            self._set_idle(idle, output)
        if changed := self._event_time.report(waiting=waiting):
            self._link.report(changed)  # spec: Alignment!Report

    def _set_idle(self, idle: bool, output: TaskOutput) -> None:
        self._idle = idle
        cast("OperatorOutput", output).emit_status(idle)


def _columns(
    source: Source[Any, Any], context: ReaderContext, watermarks: WatermarkStrategy
) -> Sequence[str] | None:
    """The names of the columns, where anybody needs and knows them."""
    if not isinstance(watermarks.timestamp, str):
        return None
    schema = context.schema
    if schema is None and type(source).arrow_schema is not Source.arrow_schema:
        schema = source.arrow_schema()
    return None if schema is None else cast("Sequence[str]", schema.names)
