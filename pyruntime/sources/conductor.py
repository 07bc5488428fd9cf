"""What a coordinator does on the enumerator's thread: who is there, who has what, who waits for whom.

Confined to the enumerator's thread. `SourceCoordinator` is what others see of it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.sources.alignment import Alignment
from pillarbox.sources.assignment import Assignment, Checkpoint
from pillarbox.sources.enumerating import EnumeratorThread
from pillarbox.sources.enumerator import ReaderInfo
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.link import Event, EventTimeLimit, Failed, Message, ReaderState, digest
from pillarbox.sources.pool import Waiting
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.split import Split
from pillarbox.task.alarm import Alarm

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

TELL_EVERY = 0.1
"""Seconds between two rises of the limit that readers are told, unless all of them stand still."""


class ReaderEnd(Protocol):
    """The way to one reader, for one life of it. Thread-safe; nothing here may block."""

    def deliver(self, message: Message[Any]) -> None:
        """Take a message to it; after it has gone, nothing."""


class Conductor(Generic[S]):
    """The readers of one source, their splits, and their event times. It is the enumerator's context as well.

    unbounded: whether the source has no end. Then splits without an end are dealt out evenly as they are
        found, for a reader that has one would never ask for another.
    """

    def __init__(
        self,
        thread: EnumeratorThread[S, Any],
        parallelism: int,
        alignment: Alignment | None,
        unbounded: bool,
        serializer: Serializer[S],
    ) -> None:
        self._thread = thread
        self.parallelism = parallelism
        self._alignment = alignment
        self._unbounded = unbounded
        self._serializer = serializer
        self._ends: dict[int, ReaderEnd] = {}
        self._limit = math.inf
        self._due = -math.inf
        self._will_look = False
        self._waits = False
        self._alarm = Alarm(self._ring, time.monotonic, "pillarbox-alignment")
        self.assignment: Assignment[S]

    def begin(self, restored: Collection[ReaderState[S]] | None, unread: Collection[Waiting[S]]) -> None:
        """The enumerator is there. `restored`: see `Assignment`. `unread`: all that is to be read of then."""
        if restored is not None:
            # spec: SplitAssignment!Restore
            self._thread.enumerator.handle_restored([each.split for each in unread])
        self.assignment = Assignment(
            self._thread.enumerator,
            self._thread.pool,
            self.parallelism,
            lambda: self._thread.exhausted,
            self._thread.finished,
            self._forget,
            restored,
        )

    # -- what the enumerator may ask and order ------------------------------------------------

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """See `EnumeratorContext`."""
        return self.assignment.readers()

    def assign(self, splits: Collection[S], subtask: int) -> None:
        """See `EnumeratorContext`."""
        self.assignment.assign(splits, subtask)
        self._thread.need()

    def no_more_splits(self, subtask: int) -> None:
        """See `EnumeratorContext`."""
        self.assignment.no_more(subtask)

    def send(self, subtask: int, event: SourceEvent) -> None:
        """See `EnumeratorContext`."""
        end = self._ends.get(subtask)
        if end is not None:
            end.deliver(Event(event))

    def rule(self, split: S) -> int | None:
        """The reader that is to have a split: by the source's own rule, or evenly if it has no end."""
        subtask = self._thread.enumerator.assigned_to(split)
        if subtask is not None or not self._unbounded or split.stop is not None:
            return subtask
        everybody = range(self.parallelism)
        living = [at for at in everybody if not self.assignment.has_died(at)] or everybody
        return min(living, key=lambda at: self.assignment.load(at) + self._thread.pool.ruled(at))

    def serve(self) -> None:
        """Splits, or the end of them, were found."""
        self.assignment.serve()

    # -- what readers say ---------------------------------------------------------------------

    def open(self, end: ReaderEnd, subtask: int, host: str, restored: str | None) -> None:
        """A reader is there. One that was there before it in its place counts as dead, and fails.

        restored: the digest of what it was restored with, if it was.
        """

        def shows(waiting: Collection[Waiting[S]]) -> bool:
            return digest(((each.split, each.skip) for each in waiting), self._serializer) == restored

        refused = self.assignment.refuses(None if restored is None else shows, subtask)
        if refused is not None:
            end.deliver(Failed(ValueError(refused)))
            return
        before = self._ends.pop(subtask, None)
        if before is not None:
            before.deliver(Failed(RuntimeError(f"reader {subtask} was replaced by another one")))
        self._ends[subtask] = end
        # Before its splits.
        # spec: Alignment!Return
        if self._limit < math.inf:
            end.deliver(EventTimeLimit(self._limit))
        self.assignment.open(ReaderInfo(subtask, host), end.deliver)
        self._align()
        self._thread.need()

    def is_there(self, end: ReaderEnd, subtask: int) -> bool:
        """Whether this is the reader of its place, and no former one."""
        return self._ends.get(subtask) is end

    def request(self, subtask: int) -> None:
        """A reader asks for a split."""
        self.assignment.request(subtask)
        self._thread.need()

    def hear(self, subtask: int, event: SourceEvent) -> None:
        """A reader says something to the enumerator."""
        self._thread.enumerator.handle_source_event(subtask, event)

    def report(self, subtask: int, watermarks: Mapping[str, float | None]) -> None:
        """The watermarks of a reader's splits."""
        if self._alignment is not None:
            own = {name: time for name, time in watermarks.items() if self.assignment.owner(name) == subtask}
            self._alignment.report(own)
            drift, limit = self._alignment.max_drift, self._limit
            self._align(any(at is None or at > limit or at + drift < limit for at in own.values()))

    def finish(self, subtask: int, split_ids: Collection[str]) -> None:
        """Splits that a reader has read to their end."""
        self._forget(self.assignment.finished(subtask, split_ids))
        self._align()

    def leave(self, subtask: int, done: bool) -> None:
        """A reader has gone, or died."""
        del self._ends[subtask]
        self.assignment.leave(subtask, done)
        self._align()

    def fail(self, error: BaseException) -> None:
        """Nothing goes on: every reader that is there fails."""
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end.deliver(Failed(error))

    def close(self) -> None:
        """Tell nobody anything any more. Any thread but the enumerator's."""
        self._alarm.close()

    def snapshot(self, states: Mapping[int, ReaderState[S]]) -> Checkpoint[S]:
        """See `Assignment.snapshot`."""
        return self.assignment.snapshot(states)

    def notify(self, positions: Mapping[str, Any]) -> None:
        """Have the enumerator tell the service what is durable; what that raises is logged."""
        try:
            self._thread.enumerator.notify_committed(positions)
        except Exception:
            log.exception("the service could not be told what is committed")

    # -- event time ---------------------------------------------------------------------------

    def _forget(self, split_ids: Collection[str]) -> None:
        if self._alignment is not None:
            self._alignment.forget(split_ids)

    def _align(self, may_stand: bool = True) -> None:
        """See to it that readers are told the limit. `may_stand`: somebody may stand still, or should."""
        if self._alignment is None or self._will_look:
            return
        if may_stand or time.monotonic() >= self._due:
            # After all reports that have come by now: with 10,000 splits a look at all of them takes a while.
            self._will_look = self._thread.execute(self._look, self._alignment)
        else:
            self._wait()

    def _look(self, alignment: Alignment) -> None:
        self._will_look = self._waits = False
        limit = alignment.may_read_to()
        # Where even the slowest is beyond the limit that was told, all stand.
        all_stand = limit - alignment.max_drift > self._limit
        now = time.monotonic()
        if limit < self._limit or all_stand or now >= self._due:
            self._tell(limit, now)
        elif limit > self._limit:
            self._wait()

    def _tell(self, limit: float, now: float) -> None:
        # spec: Alignment!Announce
        if limit != self._limit:
            self._limit, self._due = limit, now + TELL_EVERY
            for end in self._ends.values():
                end.deliver(EventTimeLimit(limit))

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._alarm.reset(self._due)

    def _ring(self) -> bool:
        return self._alignment is not None and self._thread.execute(self._look, self._alignment)
