"""The one coordinator of a source, which says who reads which split: `SplitCoordinator`.

Pure state of the enumerator's thread. It decides for all uses of a source. A reader has a log of the splits
that it was given, and asks for what comes next, which is appended when there is something.
"""

# The uses differ in who carries the messages, and in what a reader is:
#
# - *Tasks.* A reader is pushed what is appended, in numbered messages, and says in its part of a
#   checkpoint up to which it counts them in. So a checkpoint needs no moment at which nothing is under
#   way: what a part does not count in, waits. A complete checkpoint cuts the log; what stands in it goes
#   back when the reader dies. That is Flink's idea (FLIP-27).
# - *Batch reads on Spark.* A reader is a partition, and Spark runs it more than once: a failed attempt is
#   run again, a slow one speculated, a later action reads the same plan. So the log is never cut, and
#   every attempt reads it from its beginning. Whichever attempt is committed has read just what is in the
#   log, and a split is in one log only.
# - *Micro-batches.* A plan deals slices out to tasks, and the offset says which. Nothing is given to a
#   reader that runs; it is known only for events.
#
# Three coordinators, one for each use, were there before: each had its own list of what nobody reads, its
# own way to take a split back, and its own mistakes in it. The state is one dictionary of logs and one of
# pending splits; only how a log is handed over differs. A lock instead of one thread would let an
# enumerator be called by whoever asks; then its author has to know about threads, and `choose` could see a
# state that is half way.

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.sources.alignment import Alignment, HoldReport
from pillarbox.sources.enumerating import Checkpoint, EnumeratorThread, Waiting, waiting_of
from pillarbox.sources.enumerator import ReaderInfo, SplitEnumerator
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.sources.link import (
    AddSplits,
    Event,
    EventTimeLimit,
    Failed,
    Message,
    NoMoreSplits,
    ReaderState,
    SourceEvent,
    digest_of,
)
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.task.alarm import Alarm

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

LIMIT_INTERVAL_S = 0.1
"""Seconds between two rises of the limit of event time that readers are told, unless all stand still."""
MAX_SPLITS_PER_ANSWER = 64
SHARE_DIVISOR = 8
"""A partition is given at once at most this part of what would be its own, were all that waits dealt out."""


class Delivery(enum.Enum):
    """The way in which splits come to readers."""

    PUSHED = "pushed to tasks"
    REPLAYED = "asked for by attempts of partitions"
    PLANNED = "dealt out when a micro-batch is planned"


class ReaderEnd(Protocol):
    """The way to one reader, for one life of it. Thread-safe; nothing here may block."""

    def deliver(self, message: Message[Any]) -> None:
        """Take a message to it; after it has gone, nothing."""


class _Reader(Generic[S]):
    """The state of the reader of one place."""

    def __init__(self) -> None:
        self.info: ReaderInfo | None = None
        self.ends: list[ReaderEnd] = []
        """Empty while it is not there; several only where attempts of it run."""
        self.done = False
        self.told = False
        """True if it gets no more splits: its log is closed."""
        self.log: list[Waiting[S]] = []
        """The splits given to it, over all its lives; a complete checkpoint cuts off what it counts in."""
        self.cut = 0
        """So many entries stood in front of these."""
        self.before = 0
        """The `number` with which this life of a task began."""
        self.base: ReaderState[S] = ReaderState()
        """The splits that a task had in the last complete checkpoint."""
        self.unfinished: set[str] = set()
        """Of a task: what it has, as far as it has said."""
        self.answers: list[Future[None]] = []
        """Those of attempts that wait for the next entry."""

    @property
    def number(self) -> int:
        """That of the last entry."""
        return self.cut + len(self.log)

    def after(self, number: int) -> list[Waiting[S]]:
        """The entries behind this one."""
        return self.log[max(0, number - self.cut) :]


class SplitCoordinator(Generic[S]):
    """Deals the splits of one source out to its readers. It is the one `EnumeratorContext`.

    Confined to the enumerator's thread, but for what says otherwise.

    delivery: how splits come to readers. watermarks: with a `max_drift` it aligns the splits of tasks.

    A reader that asks is told that no more come only when nothing waits, nothing will be found and nobody has
    an unfinished split: until then a task might die, and leave it something to do. What a partition has stays
    in its log. Splits without an end are dealt out to tasks evenly as they are found, for a reader that has
    one would never ask for another.
    """

    def __init__(
        self,
        parallelism: int,
        delivery: Delivery = Delivery.PUSHED,
        *,
        watermarks: WatermarkStrategy | None = None,
    ) -> None:
        if parallelism < 1:
            raise ValueError(f"parallelism={parallelism!r}: must be 1 or more")
        self.parallelism = parallelism
        self._delivery = delivery
        drift = None if watermarks is None else watermarks.max_drift
        self._alignment = None if drift is None else Alignment(drift)
        self._restored: Checkpoint[S, Any] | None = None
        self._thread: EnumeratorThread[S, Any]
        self._readers: tuple[_Reader[S], ...] = tuple(_Reader() for _ in range(parallelism))
        # Who asks, in this order.
        self._asking: dict[int, None] = {}
        self._checkpoints = 0
        self._completed = 0
        self._staged: dict[int, dict[int, ReaderState[S]]] = {}
        # Event time: the limit that readers were told, until when it does not rise, and the next look at it.
        self._limit = math.inf
        self._due = -math.inf
        self._look_at = math.inf
        self._alarm = Alarm(self._ring, time.monotonic, "pillarbox-alignment")
        self.holds = HoldReport(None if watermarks is None else watermarks.idle_after)
        """Its `hold` is for any thread."""

    def thread(self, source: Source[S, Any], **options: Any) -> EnumeratorThread[S, Any]:
        """The thread on which it lives, not begun. Any thread; one after the other, as when a read goes on.

        options: see `EnumeratorThread`.
        """
        return EnumeratorThread(source, self, **options)

    # -- what its thread has to say -----------------------------------------------------------

    def begin(self, thread: EnumeratorThread[S, Any], restored: Checkpoint[S, Any] | None) -> None:
        """The enumerator is there, and nothing waits yet. restored: what it goes on from, if anything."""
        self._thread, self._restored = thread, restored
        self._asking.clear()
        for reader in self._readers:
            reader.info, reader.answers = None, []
        if restored is not None and self._delivery is Delivery.PUSHED:
            # spec: SplitAssignment!Restore
            thread.enumerator.handle_restored([each.split for each in restored.unread()])

    def rule(self, split: S) -> int | None:
        """The reader that is to have a split: by the source's own rule, or evenly if it has no end."""
        if self._delivery is Delivery.PLANNED:
            return None
        subtask = self._thread.enumerator.assigned_to(split)
        if subtask is not None or split.stop is not None or self._delivery is Delivery.REPLAYED:
            return subtask
        if self._thread.source.boundedness is Boundedness.BOUNDED:
            return None
        places = [*enumerate(self._readers)]
        # Those that end get none: it would end the job.
        staying = [each for each in places if not each[1].told] or places
        living = [each for each in staying if each[1].ends or each[1].info is None] or staying
        ruled = self._thread.pending.ruled
        return min(living, key=lambda each: len(each[1].unfinished) + ruled(each[0]))[0]

    def serve(self) -> None:
        """Something waits that did not, or nothing comes any more: give and tell.

        Raises RuntimeError for a split that waits for a reader that was told that no more come.
        """
        for subtask, reader in enumerate(self._readers):
            if self._is_given(reader):
                self._give_ruled(subtask)
        for subtask in [*self._asking]:
            self._give_due(subtask)

    def fail(self, error: BaseException) -> None:
        """It has ended: every reader that is there fails."""
        self._alarm.close()
        for reader in self._readers:
            for end in [*reader.ends]:
                end.deliver(Failed(error))

    # -- what the enumerator may ask and order ------------------------------------------------

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """See `EnumeratorContext`."""
        there = [each for each in self._readers if self._is_given(each) or each.ends]
        return {each.info.subtask: each.info for each in there if each.info is not None}

    def assign(self, splits: Collection[S], subtask: int) -> None:
        """See `EnumeratorContext`.

        Raises ValueError for a reader that does not exist or was told that it gets no more, TypeError where
        splits are dealt out when they are planned.
        """
        reader = self._reader(subtask)
        if self._delivery is Delivery.PLANNED:
            raise TypeError(
                "splits that are dealt out when a read is planned are assigned to no running reader: say by "
                "assigned_to(split) which one is to have it"
            )
        if reader.told:
            raise ValueError(f"reader {subtask} was told that it gets no more splits")
        pending = self._thread.pending
        waiting = [pending.remove(split.split_id) or Waiting(split) for split in splits]
        if self._is_given(reader):
            self._append(subtask, waiting)
        else:
            pending.add(waiting, subtask)

    def no_more_splits(self, subtask: int) -> None:
        """See `EnumeratorContext`."""
        reader = self._reader(subtask)
        if reader.told or not self._is_given(reader):
            return
        if all(each.told or each.done for each in self._readers if each is not reader):
            if len(self._thread.pending):
                raise RuntimeError(
                    f"reader {subtask} is the last one, and {len(self._thread.pending)} splits wait"
                )
            if not self._thread.exhausted:
                raise RuntimeError(f"reader {subtask} is the last one, and others may be found")
        # spec: SplitAssignment!NoMore
        reader.told = True
        self._answer(subtask, NoMoreSplits())

    def send(self, subtask: int, event: SourceEvent) -> None:
        """See `EnumeratorContext`."""
        for end in [*self._reader(subtask).ends]:
            end.deliver(Event(event))

    # -- all uses -----------------------------------------------------------------------------

    def hear(self, subtask: int, event: SourceEvent) -> None:
        """A reader says something to the enumerator."""
        self._reader(subtask)
        self._thread.enumerator.handle_source_event(subtask, event)

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Have the enumerator tell the service what is durable; what that raises is logged."""
        try:
            self._thread.enumerator.notify_committed(positions)
        except Exception:
            log.exception("the service could not be told what is committed")

    def request(self, subtask: int) -> None:
        """A reader asks for splits. To ask again before the answer is no more than to ask once.

        A partition is given more than one only while many wait, so that near the end each goes to whoever has
        nothing to do: guided self-scheduling (Polychronopoulos and Kuck, 1987). A source that handles
        requests itself is asked for each.
        """
        reader = self._reader(subtask)
        if reader.told or not self._is_given(reader):
            return
        self._asking[subtask] = None
        self._thread.enumerator.handle_split_request(subtask)
        self._give_due(subtask)

    def _reader(self, subtask: int) -> _Reader[S]:
        if type(subtask) is not int or not 0 <= subtask < self.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self.parallelism - 1}")
        return self._readers[subtask]

    def _is_given(self, reader: _Reader[S]) -> bool:
        """True if splits can be given to it now: a partition has a log whether or not an attempt runs."""
        return bool(reader.ends) if self._delivery is Delivery.PUSHED else self._delivery is Delivery.REPLAYED

    def _give_ruled(self, subtask: int) -> None:
        """Give a reader what waits for it by the source's rule, without a request."""
        ruled = self._thread.pending.take_ruled(subtask)
        if ruled and self._readers[subtask].told:
            raise RuntimeError(
                f"reader {subtask} was told that it gets no more splits, and {len(ruled)} wait for it"
            )
        self._append(subtask, ruled)

    def _give_due(self, subtask: int) -> None:
        """Give a reader that asks what is due to it, or tell it that no more come."""
        if subtask not in self._asking:
            # The source has answered itself.
            return
        info, pending, most = self._readers[subtask].info, self._thread.pending, 1
        assert info is not None
        requests = type(self._thread.enumerator).handle_split_request
        if self._delivery is Delivery.REPLAYED and requests is SplitEnumerator.handle_split_request:
            share = len(pending) // (SHARE_DIVISOR * self.parallelism)
            most = min(max(1, share), MAX_SPLITS_PER_ANSWER)
        taken: list[Waiting[S]] = []
        try:
            while len(taken) < most and (waiting := pending.take(info)) is not None:
                taken.append(waiting)
        finally:
            # Also if the source's choice has raised: nobody else has these any more.
            self._append(subtask, taken)
        if taken or len(pending) or not self._thread.exhausted:
            return
        if not any(reader.unfinished for reader in self._readers):
            self.no_more_splits(subtask)

    def _append(self, subtask: int, waiting: list[Waiting[S]]) -> None:
        """Write splits into the log of a reader; a task has them in its hands with that."""
        if not waiting:
            return
        # spec: SplitAssignment!Assign
        reader = self._readers[subtask]
        reader.log += waiting
        if self._delivery is Delivery.PUSHED:
            reader.unfinished.update(each.split.split_id for each in waiting)
        skip = {each.split.split_id: each.skip for each in waiting if each.skip}
        self._answer(subtask, AddSplits(tuple(each.split for each in waiting), reader.number, skip))

    def _answer(self, subtask: int, message: Message[S]) -> None:
        """The log of a reader goes on, or is closed: a task is told so, attempts look there."""
        self._asking.pop(subtask, None)
        reader = self._readers[subtask]
        if self._delivery is Delivery.PUSHED:
            reader.ends[0].deliver(message)
        answers, reader.answers = reader.answers, []
        for answer in answers:
            answer.set_result(None)

    # -- attempts of partitions and of micro-batches ------------------------------------------

    def attach(self, subtask: int, end: ReaderEnd) -> None:
        """An attempt is there, for events. Any thread. Raises ValueError for a place that does not exist."""
        self._reader(subtask).ends.append(end)

    def add_reader(self, subtask: int, host: str) -> None:
        """Have the enumerator know who is there, and on which machine."""
        reader = self._reader(subtask)
        known, reader.info = reader.info, ReaderInfo(subtask, host)
        if known is None or self._delivery is Delivery.PLANNED:
            self._thread.enumerator.add_reader(reader.info)

    def detach(self, subtask: int, end: ReaderEnd) -> None:
        """An attempt has gone. Any thread."""
        self._readers[subtask].ends.remove(end)

    @property
    def attended(self) -> bool:
        """True if an attempt is there. Any thread."""
        return any(reader.ends for reader in self._readers)

    @property
    def size(self) -> int:
        """The number of splits in all logs. Any thread."""
        return sum(len(reader.log) for reader in self._readers)

    @property
    def over(self) -> bool:
        """True if every log is closed. Any thread."""
        return all(reader.told for reader in self._readers)

    def logged(self, subtask: int, index: int) -> list[S | None]:
        """At most 64 entries of a partition's log as it stands, from `index` on; None is its end.

        Any thread.
        """
        reader = self._reader(subtask)
        # Before the log, to which nothing is appended then.
        told = reader.told
        # spec: SplitAssignment!Hear
        found: list[S | None] = [each.split for each in reader.log[index : index + MAX_SPLITS_PER_ANSWER]]
        if told and index + len(found) == len(reader.log):
            found.append(None)
        return found

    def next(self, subtask: int, index: int, host: str) -> Future[None] | None:
        """See to it that a partition's log has the entry `index`, or is closed.

        A future where that must wait. Raises ValueError for a partition that does not exist or an index that
        nobody can have come to.
        """
        reader = self._reader(subtask)
        if type(index) is not int or not 0 <= index <= len(reader.log):
            raise ValueError(f"index={index!r}: must be from 0 to {len(reader.log)} in partition {subtask}")
        if reader.info is None or reader.info.host != host:
            self.add_reader(subtask, host)
        if index == len(reader.log):
            self.request(subtask)
        if index < len(reader.log) or reader.told:
            return None
        reader.answers.append(Future())
        return reader.answers[-1]

    def suspend(self) -> Checkpoint[S, Any]:
        """Give what another enumerator goes on from, and end this one.

        In one step, as a checkpoint. A discovery that is under way has changed nothing yet: it finds the same
        again.
        """
        # spec: SplitAssignment!Suspend
        self._thread.end()
        return Checkpoint(self._thread.enumerator.snapshot(), self._thread.pending.waiting())

    # -- tasks --------------------------------------------------------------------------------

    def open(self, end: ReaderEnd, subtask: int, host: str, restored: str | None = None) -> None:
        """A reader is there. One that was there before it in its place counts as dead, and fails.

        restored: the digest of what it was restored with, if it was. One that was restored from another
        checkpoint than the coordinator fails.
        """
        reader = self._reader(subtask)
        refused = self.refuses(restored, subtask)
        if refused is not None:
            end.deliver(Failed(ValueError(refused)))
            return
        for before in reader.ends:
            before.deliver(Failed(RuntimeError(f"reader {subtask} was replaced by another one")))
        if reader.ends or reader.done:
            self._dies(subtask)
        # Before its splits.
        # spec: Alignment!Return
        if self._limit < math.inf:
            end.deliver(EventTimeLimit(self._limit))
        # spec: SplitAssignment!Return
        reader.ends, reader.before = [end], reader.number
        reader.info = ReaderInfo(subtask, host)
        self._thread.enumerator.add_reader(reader.info)
        self._append(subtask, waiting_of(reader.base))
        self._give_ruled(subtask)

    def said(self, end: ReaderEnd, subtask: int, what: Callable[..., None], *args: Any) -> None:
        """A reader says something: `what` is the method here that takes it, with `args`."""
        # What a former reader still says is nothing to its place: it counts as dead.
        if end in self._readers[subtask].ends:
            what(self, subtask, *args)

    def finished(self, subtask: int, split_ids: Iterable[str]) -> None:
        """A reader has read splits to their end."""
        reader = self._reader(subtask)
        # One of which a checkpoint has said so before may be found anew, and another reader's by now.
        own = reader.unfinished.intersection(split_ids)
        reader.unfinished -= own
        if not reader.unfinished:
            self.serve()
        self._forget_times(own)

    def leave(self, subtask: int, done: bool) -> None:
        """A reader goes. `done`: it has read all that it had, and nothing goes back unless it comes again."""
        reader = self._reader(subtask)
        if not done or reader.unfinished:
            self._dies(subtask)
        else:
            # spec: SplitAssignment!Leave
            reader.ends, reader.done = [], True
            self._asking.pop(subtask, None)

    def _dies(self, subtask: int) -> None:
        """A reader has died: what the last complete checkpoint does not count in waits again.

        The rest is for the reader when it comes back. A checkpoint that is not complete is given up.
        """
        # spec: SplitAssignment!AddBack
        reader = self._readers[subtask]
        reader.ends, reader.done, reader.told = [], False, False
        self._asking.pop(subtask, None)
        self._staged.clear()
        kept = {split.split_id for split in reader.base.splits}
        back = [each for each in reader.log if each.split.split_id not in kept]
        reader.cut, reader.log = reader.number, []
        self._forget_times(reader.unfinished)
        # Nobody is told that no more come while these have not been read.
        reader.unfinished = kept
        self._thread.pending.add(back)
        self._thread.enumerator.add_splits_back([each.split for each in back], subtask)
        self.serve()

    def refuses(self, restored: str | None, subtask: int) -> str | None:
        """The reason for which a reader is not taken that was restored with this; None if it is."""
        reader = self._readers[subtask]
        if restored is None:
            return None
        had: list[ReaderState[S]] = [reader.base]
        if self._restored is not None and (not self._completed or reader.info is None):
            # All was dealt out anew, perhaps to other readers; one that had nothing is in no checkpoint.
            had = [*self._restored.readers.values(), ReaderState()]
        elif reader.info is None:
            return (
                f"reader {subtask} was restored from a checkpoint, and its coordinator was not: "
                "both must begin anew, or go on from the same checkpoint"
            )
        serializer = self._thread.source.split_serializer
        if any(digest_of(state, serializer) == restored for state in had):
            return None
        return (
            f"reader {subtask} was restored from another checkpoint than the last one that its coordinator "
            "knows to be complete: `complete` was not called for it, or it is an older one"
        )

    # -- checkpoints of tasks -----------------------------------------------------------------

    def snapshot(self, states: Mapping[int, ReaderState[S]]) -> Checkpoint[S, Any]:
        """A checkpoint of all, from what readers have said of themselves, each at a moment of its own.

        Needed is the state of each reader that is there and was given something. One that has left meanwhile
        counts with the state that it gave before, if it did. Raises ValueError for a state that is missing,
        is not of this life of its reader, or is of one that has died.
        """
        # spec: SplitAssignment!Checkpoint
        for subtask in states:
            self._reader(subtask)
        waiting = self._thread.pending.waiting()
        parts: dict[int, ReaderState[S]] = {}
        for subtask, reader in enumerate(self._readers):
            parts[subtask] = self._part(subtask, reader, states.get(subtask))
            waiting += reader.after(parts[subtask].taken_up)
        known = self._thread.enumerator.snapshot()
        self._checkpoints += 1
        self._staged[self._checkpoints] = parts
        readers = {subtask: part for subtask, part in parts.items() if part.splits}
        return Checkpoint(known, waiting, readers, self._checkpoints)

    def _part(self, subtask: int, reader: _Reader[S], state: ReaderState[S] | None) -> ReaderState[S]:
        # spec: SplitAssignment!Part
        if state is None and reader.done:
            return ReaderState(reader.number)
        if state is None and reader.ends and reader.number > reader.before:
            raise ValueError(f"the state of reader {subtask}, which is there, is missing")
        if state is None or not (state.taken_up or state.splits):
            # It has taken nothing up, or is dead.
            lives = reader.ends or reader.done
            return ReaderState(reader.before) if lives else replace(reader.base, taken_up=reader.number)
        if not (reader.ends or reader.done):
            raise ValueError(f"the state of reader {subtask}, which is not there: it has died since")
        if not reader.before < state.taken_up <= reader.number:
            raise ValueError(
                f"the state of reader {subtask} counts in the splits up to number {state.taken_up}, "
                f"and this life of it was given numbers {reader.before + 1} to {reader.number}"
            )
        return state

    def complete(self, number: int) -> None:
        """A checkpoint is durable: from now on it says what goes back when a reader dies.

        Raises ValueError for one that was given up, because a reader has died since, or never was.
        """
        # spec: SplitAssignment!Complete
        parts = self._staged.pop(number, None)
        if parts is None:
            raise ValueError(f"checkpoint {number!r} does not exist, or was given up as a reader has died")
        self._completed = number
        self._staged = {later: each for later, each in self._staged.items() if later > number}
        ended: dict[str, S] = {}
        for reader, part in zip(self._readers, parts.values(), strict=True):
            left = reader.after(part.taken_up)
            counted = reader.log[: len(reader.log) - len(left)]
            had = {split.split_id: split for split in reader.base.splits}
            had.update((each.split.split_id, each.split) for each in counted)
            # What it had, and was given again since it came back, it has not ended: it has not heard of it.
            for split in (*part.splits, *(each.split for each in left)):
                had.pop(split.split_id, None)
            reader.cut, reader.log, reader.base = reader.cut + len(counted), left, part
            reader.unfinished -= had.keys()
            ended.update(had)
        if ended:
            self._forget_times(ended)
            self._thread.finished([*ended.values()])

    # -- event time of tasks ------------------------------------------------------------------

    def report(self, subtask: int, watermarks: Mapping[str, float | None]) -> None:
        """The watermarks of a reader's splits."""
        if self._alignment is not None:
            mine = self._readers[subtask].unfinished
            own = {name: time for name, time in watermarks.items() if name in mine}
            self._alignment.report(own)
            drift, limit = self._alignment.max_drift, self._limit
            # Somebody may stand still, or should.
            presses = any(at is None or at > limit or at + drift < limit for at in own.values())
            self._align(-math.inf if presses else self._due)

    def _forget_times(self, split_ids: Collection[str]) -> None:
        if self._alignment is not None and split_ids:
            self._alignment.forget(split_ids)
            self._align(-math.inf)

    def _align(self, moment: float) -> None:
        """See to it that the limit is looked at by then, or behind all that has been said if that is now."""
        if moment < self._look_at:
            self._look_at = moment
            if moment > -math.inf:
                self._alarm.reset(moment)
            else:
                self._ring()

    def _ring(self) -> bool:
        return self._alignment is not None and self._thread.execute(self._look, self._alignment)

    def _look(self, alignment: Alignment) -> None:
        # All reports have been heard that had come: with 10,000 splits a look at all of them takes a while.
        self._look_at = math.inf
        limit, now = alignment.may_read_to(), time.monotonic()
        # Where even the slowest is beyond the limit that was told, all stand.
        all_stand = limit - alignment.max_drift > self._limit
        if limit < self._limit or (limit > self._limit and (all_stand or now >= self._due)):
            # spec: Alignment!Announce
            self._limit, self._due = limit, now + LIMIT_INTERVAL_S
            for reader in self._readers:
                for end in reader.ends:
                    end.deliver(EventTimeLimit(limit))
        log_at = self.holds.update(alignment.held(self._limit), alignment.waited_for())
        self._align(
            min(math.inf if log_at is None else log_at, self._due if limit > self._limit else math.inf)
        )
