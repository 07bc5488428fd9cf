"""`SourceInput`: a source as the input of a `StreamTask`. Confined to the mailbox thread.

Its reader fetches on threads of its own; here its rows are emitted one by one, or an Arrow batch as one, with
watermarks between them. Which splits it reads the coordinator says, over a link. The idea is Flink's
`SourceOperator` (FLIP-27).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, TypeVar, cast

from pillarbox.sources.contract import ReaderContract
from pillarbox.sources.event_time import (
    EventTimes,
    IdlenessTracker,
    LimitedReader,
    SplitWatermarks,
    WatermarkStrategy,
)
from pillarbox.sources.fetching import FetchingReader, check_can_pause
from pillarbox.sources.link import (
    AddSplits,
    CoordinatorLink,
    Event,
    EventTimeLimit,
    Failed,
    Message,
    NoMoreSplits,
    ReaderState,
    state_from_json,
    state_to_json,
)
from pillarbox.sources.reader import Fetched, ReaderContext, SourceReader
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.task.alarm import Alarm
from pillarbox.task.failures import Failures
from pillarbox.task.moments import check_duration
from pillarbox.task.output import MAX_WATERMARK, TaskOutput
from pillarbox.task.status import InputStatus

S = TypeVar("S", bound=Split)

AT_ONCE = 16
"""Records that one call emits at most: mail waits for that many."""
REPORT_EVERY = 0.1
"""Seconds between two reports of watermarks to the coordinator."""


class SourceInput(Generic[S]):
    """Runs a reader of `source` as the input of a task.

    1. Each row of a sequence is an element, an Arrow batch is one. Rows of a split come in its order.
    2. A checkpoint holds the splits that are not finished, each from where the batch at hand begins, and how
       many rows of that are out: so every row is behind the checkpoint or before it, once.
    3. A bounded source's reader asks for a split when it has fetched all that it has; one of a source without
       an end asks until there is none. The input ends when no other comes and all are finished.
    4. With `watermarks`, the lowest watermark of its splits that are not idle is emitted when it rises, and
       idleness when all are idle or it has none. With `max_drift` the watermarks of the splits are reported
       to the coordinator, which says up to which time they may be read; of those beyond nothing is emitted.

    link: to the coordinator, opened with the first `emit_next` and closed with the input. context: the
    reader's place; its `send` is the link's. clock: seconds, monotonic. report_every: seconds.

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
        report_every: float = REPORT_EVERY,
    ) -> None:
        if not isinstance(source, Source):
            raise TypeError(f"source={source!r}: must be a Source, not {type(source).__name__}")
        self._link = link
        self._source = source
        self._serializer = source.split_serializer
        self._unbounded = source.boundedness is not Boundedness.BOUNDED
        place = ReaderContext() if context is None else context
        self._reader: SourceReader[S] = source.create_reader(
            ReaderContext(place.subtask, place.host, link.send, place.schema)
        )
        # What fetchers give they have checked.
        known = isinstance(self._reader, FetchingReader)
        self._contract = None if known else ReaderContract(self._reader, "poll")
        self._started = False
        self._done = False
        self._closed = False
        self._restored: ReaderState[S] | None = None
        # What has come from the coordinator, on any thread.
        self._inbox: deque[Message[S]] = deque()
        self._guard = threading.Lock()
        self._wake: Future[None] | None = None
        self._watched: Future[Any] | None = None
        # What it reads: splits as they were given, where the batch at hand begins, and the rows from there on
        # that were emitted before a restart.
        self._splits: dict[str, S] = {}
        self._positions: dict[str, Any] = {}
        self._skip: dict[str, int] = {}
        self._taken_up = 0
        self._unfinished: set[str] = set()
        self._asked = False
        self._no_more = False
        self._at_hand: Fetched | None = None
        self._rows = 0
        self._next = 0
        self._idle = False
        self._watermarks: SplitWatermarks | None = None
        self._limited: LimitedReader[S] | None = None
        self._idleness = IdlenessTracker(clock)
        if watermarks is not None:
            self._event_times = EventTimes(watermarks, _columns(source, place, watermarks))
            # A reader may know better, as `FetchingReader` does.
            looked: Callable[[str], float] = getattr(self._reader, "looked", self._idleness.looked)
            self._watermarks = SplitWatermarks(watermarks, clock, looked)
            if watermarks.max_drift is not None:
                check_can_pause(self._reader)
                self._limited = LimitedReader(self._reader, self._paused_or_resumed, self._watermarks.wake)
        self._poll = self._reader.poll if self._limited is None else self._limited.poll
        self._emitted = -math.inf
        self._clock = clock
        self._report_every = check_duration("report_every", report_every)
        self._reported_at = -math.inf
        self._alarm = Alarm(self._ring, clock, f"pillarbox-source-{place.subtask}")

    # -- as an input; mailbox thread --------------------------------------------------------------

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next rows, if there are any. Raises what the reader and the coordinator raise."""
        if not self._started:
            self._start()
        if self._inbox:
            self._hear()
        fetched = self._at_hand
        if fetched is None:
            fetched = self._poll()
            if fetched is None:
                self._idleness.nothing()
                return self._nothing(output)
            self._idleness.found()
            self._take(fetched)
        return self._emit(fetched, output)

    def available(self) -> Future[Any] | None:
        """A future that is done when a row, a message or a moment of idleness may be there; None: now."""
        if not self._started or self._at_hand is not None:
            return None
        with self._guard:
            if self._inbox:
                return None
            if self._wake is None or self._wake.done():
                self._wake = Future()
            wake = self._wake
        rows = self._reader.available()
        if rows is None:
            self._idleness.something()
            return None
        if rows is not self._watched:
            # A reader gives the same future until it is done; one call for each is enough.
            self._watched = rows
            rows.add_done_callback(self._ring_for)
        self._set_alarm()
        return wake

    def close(self) -> None:
        """Close the reader and the link. Idempotent."""
        if self._closed:
            return
        self._closed = True
        failures = Failures()
        failures.run("closing the reader", self._reader.close)
        failures.run("closing the link", self._link.close, self._done)
        failures.run("closing the alarm", self._alarm.close)
        self._ring()
        if failures.first is not None:
            raise failures.first

    # -- checkpoints; mailbox thread ----------------------------------------------------------------

    def snapshot_state(self) -> Any:
        """Where it stands: what JSON can hold, with the versions of what has written it."""
        skip = {split_id: rows for split_id, rows in self._skip.items() if rows}
        if self._at_hand is not None and self._next:
            skip[self._at_hand.split_id] = self._next
        splits = (
            split.starting_at(self._positions[split_id]) if split_id in self._positions else split
            for split_id, split in self._splits.items()
        )
        state = ReaderState(self._taken_up, tuple(splits), skip)
        return state_to_json(state, self._serializer)

    def restore_state(self, state: Any) -> None:
        """Show the coordinator, at the start, what was read. Before the first `emit_next`.

        The splits to read come from the coordinator all the same, as it may deal them out anew. Raises
        ValueError for what `snapshot_state` has not written, RuntimeError after the first `emit_next`.
        """
        if self._started:
            raise RuntimeError("the input runs already; it can be restored only before")
        self._restored = state_from_json(state, self._serializer)

    # -- what comes from the coordinator ------------------------------------------------------------

    def _start(self) -> None:
        self._started = True
        self._reader.start()
        self._link.open(self._receive, self._restored)
        self._ask()

    def _receive(self, message: Message[S]) -> None:
        """Any thread."""
        self._inbox.append(message)
        self._ring()

    def _ring(self) -> bool:
        """Have the task ask again. Any thread."""
        with self._guard:
            wake, self._wake = self._wake, None
        if wake is not None:
            try:
                wake.set_result(None)
            except InvalidStateError:
                return True
        return True

    def _ring_for(self, future: Future[Any]) -> None:
        """Any thread."""
        self._idleness.something()
        self._ring()

    def _hear(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, AddSplits):
                self._add(message)
            elif isinstance(message, NoMoreSplits):
                self._no_more = True
                if self._watermarks is not None:
                    self._watermarks.end()
            elif isinstance(message, Event):
                self._reader.handle_source_event(message.event)
            elif isinstance(message, EventTimeLimit):
                if self._limited is not None:
                    self._limited.limit(message.seconds)
            elif isinstance(message, Failed):
                raise message.error
            else:
                raise TypeError(f"the coordinator said {message!r}, which is no message to a reader")

    def _add(self, message: AddSplits[S]) -> None:
        if message.number <= self._taken_up:
            return
        self._taken_up = message.number
        self._asked = False
        for split in message.splits:
            self._splits[split.split_id] = split
            self._unfinished.add(split.split_id)
            if skip := message.skip.get(split.split_id, 0):
                self._skip[split.split_id] = skip
        if self._watermarks is not None:
            ids = [split.split_id for split in message.splits]
            self._watermarks.add(ids)
            self._idleness.begin(ids)
        self._reader.add_splits(message.splits)
        if self._unbounded or not self._unfinished:
            self._ask()

    def _paused_or_resumed(self, pause: Collection[str], resume: Collection[str]) -> None:
        assert self._watermarks is not None
        self._watermarks.pause_or_resume(pause, resume)
        self._idleness.begin(resume)

    def _ask(self) -> None:
        if not self._asked and not self._no_more:
            self._asked = True
            self._link.request_split()

    # -- rows ---------------------------------------------------------------------------------------

    def _take(self, fetched: Fetched) -> None:
        """A batch is at hand. What of it was emitted before a restart is passed over."""
        if self._contract is not None:
            self._check(self._contract, fetched)
        split_id, rows = fetched.split_id, len(fetched.records)
        skip = self._skip.pop(split_id, 0)
        self._at_hand = fetched
        self._rows = rows
        self._next = min(skip, rows)
        if skip > rows:
            self._skip[split_id] = skip - rows
        if fetched.finished:
            self._unfinished.discard(split_id)
            if not self._unfinished and not self._unbounded:
                # While these rows are emitted the next ones come.
                self._ask()

    def _check(self, contract: ReaderContract, fetched: Fetched) -> None:
        contract.check_kind(fetched)
        split = self._splits.get(fetched.split_id)
        if split is None:
            contract.refuse_unknown(fetched.split_id)
        else:
            contract.check(fetched, split, self._positions.get(split.split_id, split.start))

    def _emit(self, fetched: Fetched, output: TaskOutput) -> InputStatus:
        at, rows, records = self._next, self._rows, fetched.records
        if at < rows:
            if self._idle:
                self._set_idle(False, output)
            if isinstance(records, Sequence):
                self._next = min(at + AT_ONCE, rows)
                collect = output.collect
                for record in records[at : self._next]:
                    collect(record)
            else:
                output.collect(records.slice(at) if at else records)
                self._next = rows
        if self._next == rows:
            self._put_behind(fetched)
            if self._watermarks is not None:
                self._emit_event_time(self._watermarks, output)
        return InputStatus.MORE_AVAILABLE

    def _put_behind(self, fetched: Fetched) -> None:
        """All rows of the batch are out: the split stands behind it."""
        split_id = fetched.split_id
        if self._watermarks is not None and (self._rows or fetched.timestamp is not None):
            watermark = self._watermarks.seen(split_id, self._event_times.latest(fetched))
            self._idleness.begin([split_id])
            if self._limited is not None:
                self._limited.passed(split_id, watermark)
        if self._watermarks is not None and fetched.idle:
            self._watermarks.set_idle(split_id)
        self._at_hand = None
        self._next = 0
        if not fetched.finished:
            self._positions[split_id] = fetched.position
            return
        del self._splits[split_id]
        self._positions.pop(split_id, None)
        self._skip.pop(split_id, None)
        if self._watermarks is not None:
            self._watermarks.remove([split_id])
            self._idleness.forget(split_id)
        if self._limited is not None:
            self._limited.finished(split_id)
        # spec: Alignment!Finish
        self._link.finished([split_id])

    def _nothing(self, output: TaskOutput) -> InputStatus:
        if self._watermarks is not None:
            if self._limited is not None and self._limited.holds:
                # It may be what is to be reported that all wait for.
                self._reported_at = -math.inf
            self._emit_event_time(self._watermarks, output)
        if self._no_more and not self._splits and not self._inbox:
            self._done = True
            return InputStatus.END_OF_INPUT
        return InputStatus.NOTHING_AVAILABLE

    # -- event time ---------------------------------------------------------------------------------

    def _emit_event_time(self, watermarks: SplitWatermarks, output: TaskOutput) -> None:
        merged = watermarks.merged()
        # The chain has the last watermark of all from the end of the input.
        if merged.watermark is not None and self._emitted < merged.watermark < MAX_WATERMARK:
            self._emitted = merged.watermark
            output.emit_watermark(merged.watermark)
        # A bounded source's reader with no split has asked for one, and has the answer soon.
        idle = merged.idle and (self._unbounded or bool(self._splits))
        if idle != self._idle:
            self._set_idle(idle, output)
        if self._limited is not None and watermarks.has_changes:
            now = self._clock()
            if now - self._reported_at >= self._report_every:
                self._reported_at = now
                # spec: Alignment!Report
                self._link.report(watermarks.take_changes())

    def _set_idle(self, idle: bool, output: TaskOutput) -> None:
        self._idle = idle
        emit_status: Callable[[bool], None] | None = getattr(output, "emit_status", None)
        if emit_status is not None:
            emit_status(idle)

    def _set_alarm(self) -> None:
        """For the next split that becomes idle, or the report that is due."""
        if self._watermarks is None:
            return
        moment = self._watermarks.next_idle()
        if self._limited is not None and self._watermarks.has_changes:
            report = self._reported_at + self._report_every
            moment = report if moment is None else min(moment, report)
        self._alarm.reset(moment)


def _columns(
    source: Source[Any, Any], context: ReaderContext, watermarks: WatermarkStrategy
) -> Sequence[str] | None:
    """The names of the columns, where anybody needs and knows them."""
    if not isinstance(watermarks.timestamp, str):
        return None
    if context.schema is not None:
        return cast("Sequence[str]", context.schema.names)
    if type(source).arrow_schema is Source.arrow_schema:
        return None
    return cast("Sequence[str]", source.arrow_schema().names)
