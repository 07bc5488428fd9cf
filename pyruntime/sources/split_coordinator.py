"""The one coordinator of a source, which says who reads which split: `SplitCoordinator`.

Pure state of the enumerator's thread. It decides for all uses of a source. What differs is who carries its
messages, and what a reader is:

- *Tasks.* A reader is pushed its splits, in numbered messages, and says in its part of a checkpoint up to
  which it counts them in. So a checkpoint needs no moment at which nothing is under way: what a part does not
  count in, waits. What was given since the last complete checkpoint goes back when a reader dies. That is
  Flink's idea (FLIP-27).
- *Batch reads on Spark.* A reader is a partition, and Spark runs it more than once: a failed attempt is run
  again, a slow one speculated, a later action reads the same plan. So what a partition was given stays in its
  log, and every attempt asks for the log's entries one after the other. A new entry is appended when it comes
  to the end. Whichever attempt is committed has read just what is in the log, and a split is in one log only.
- *Micro-batches.* A plan deals slices out to tasks, and the offset says which. Nothing is given to a reader
  that runs; it is known only for events.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.sources.alignment import Alignment, HoldReport
from pillarbox.sources.enumerating import EnumeratorThread, Restored, Waiting
from pillarbox.sources.enumerator import ReaderInfo, SplitEnumerator
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.link import (
    AddSplits,
    Event,
    EventTimeLimit,
    Failed,
    Message,
    NoMoreSplits,
    ReaderState,
    digest,
)
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.task.alarm import Alarm

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

LIMIT_INTERVAL_S = 0.1
"""Between two rises of the limit of event time that readers are told, unless all of them stand still."""
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


@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """All of an assignment at one moment: what nobody has, and what each reader has. A plain value."""

    number: int
    """Counts the checkpoints of this coordinator, from 1."""
    checkpoint: Any
    """The knowledge of the enumerator."""
    waiting: tuple[Waiting[S], ...]
    readers: dict[int, ReaderState[S]]

    def unread(self) -> tuple[Waiting[S], ...]:
        """All that is to be read after it, whoever had it."""
        return (*self.waiting, *(each for state in self.readers.values() for each in _of(state)))


class _Reader(Generic[S]):
    """The state of the reader of one place."""

    def __init__(self) -> None:
        self.info: ReaderInfo | None = None
        self.ends: list[ReaderEnd] = []
        """Empty while it is not there; several only where attempts of it run."""
        self.done = False
        self.asked = False
        self.told = False
        """True if it gets no more splits. Of a partition: its log is closed."""
        self.number = 0
        """Of the last message that gave it splits, over all its lives."""
        self.before = 0
        """The `number` with which this life began."""
        self.given: list[tuple[int, Waiting[S]]] = []
        """The splits that it was given since the last complete checkpoint, which does not count them in. Of a
        partition: its log."""
        self.base: dict[str, Waiting[S]] = {}
        """The splits that it had in the last complete checkpoint."""
        self.unfinished: set[str] = set()


@dataclass(frozen=True)
class _Question(Generic[S]):
    """An attempt that waits for the entries of its partition's log from `index` on."""

    subtask: int
    index: int
    most: int
    answer: Future[list[S | None]]


class SplitCoordinator(Generic[S]):
    """Deals the splits of one source out to its readers. It is the one `EnumeratorContext`.

    Confined to the enumerator's thread, but for what says otherwise.

    delivery: how splits come to readers. unbounded: whether the source has no end; then tasks are dealt
        splits without an end evenly as they are found, for a reader that has one would never ask for another.
    serializer: of the splits, for readers that were restored. alignment: None where splits are not aligned.
    idle_after: as in the strategy, for what is said of splits that hold others up.
    restored: what readers had in the checkpoint that it goes on from; None if it begins anew.

    A task that asks is told that no more come only when nothing waits, nothing will be found and nobody has
    an unfinished split: until then somebody might die, and leave it something to do. A partition is told so
    when nothing waits that it may have and nothing will be found, for what others have stays in their logs.
    """

    def __init__(
        self,
        parallelism: int,
        delivery: Delivery = Delivery.PUSHED,
        *,
        unbounded: bool = False,
        serializer: Serializer[S] | None = None,
        alignment: Alignment | None = None,
        idle_after: float | None = None,
        restored: Collection[ReaderState[S]] | None = None,
    ) -> None:
        if parallelism < 1:
            raise ValueError(f"parallelism={parallelism!r}: must be 1 or more")
        self.parallelism = parallelism
        self._delivery = delivery
        self._unbounded = unbounded
        self._serializer = serializer
        self._alignment = alignment
        self._restored = restored
        self._thread: EnumeratorThread[S, Any]
        self._readers: tuple[_Reader[S], ...] = tuple(_Reader() for _ in range(parallelism))
        self._asking: dict[int, None] = {}
        self._questions: list[_Question[S]] = []
        self._owners: dict[str, int] = {}
        self._checkpoints = 0
        self._completed = 0
        self._staged: dict[int, dict[int, ReaderState[S]]] = {}
        # Event time.
        self._limit = math.inf
        self._due = -math.inf
        self._will_look = False
        self._waits = False
        self._alarm = Alarm(self._ring, time.monotonic, "pillarbox-alignment")
        self.holds = HoldReport(idle_after)
        """Its `hold` is for any thread."""

    def thread(
        self,
        source: Source[S, Any],
        *,
        restored: Restored[S, Any] | Callable[[], Restored[S, Any]] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        **more: Any,
    ) -> EnumeratorThread[S, Any]:
        """The thread on which it lives, not begun. Any thread; one after the other, as when a read goes on.

        failed: called with what has ended it, after all readers. more: see `EnumeratorThread`.
        """

        def tell(error: BaseException) -> None:
            self.fail(error)
            if failed is not None:
                failed(error)

        return EnumeratorThread(
            source,
            self,
            restored=restored,
            rule=self._rule,
            began=partial(self.begin, restored),
            changed=self.serve,
            failed=tell,
            **more,
        )

    def begin(self, restored: Any, thread: EnumeratorThread[S, Any]) -> None:
        """The enumerator is there. restored: what it goes on from, if anything."""
        self._thread = thread
        for reader in self._readers:
            reader.info = None
        if isinstance(restored, Restored) and self._delivery is Delivery.PUSHED:
            # spec: SplitAssignment!Restore
            thread.enumerator.handle_restored([each.split for each in restored.waiting])

    # -- what the enumerator may ask and order ------------------------------------------------

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """See `EnumeratorContext`."""
        replayed = self._delivery is Delivery.REPLAYED
        return {
            at: each.info for at, each in enumerate(self._readers) if each.info and (each.ends or replayed)
        }

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
        if self._delivery is Delivery.REPLAYED:
            reader.given += [(0, each) for each in waiting]
            self._thread.execute(self.serve)
        elif reader.ends:
            self._give(subtask, waiting)
        else:
            pending.add(waiting, subtask)
        self._thread.need()

    def no_more_splits(self, subtask: int) -> None:
        """See `EnumeratorContext`."""
        reader = self._reader(subtask)
        replayed = self._delivery is Delivery.REPLAYED
        if self._delivery is Delivery.PLANNED or reader.told or not (reader.ends or replayed):
            return
        pending = self._thread.pending
        if pending.ruled(subtask):
            raise RuntimeError(f"reader {subtask} cannot end: {pending.ruled(subtask)} splits wait for it")
        if all(each.told or each.done for each in self._readers if each is not reader):
            if len(pending):
                raise RuntimeError(f"reader {subtask} is the last one, and {len(pending)} splits wait")
            if not self._thread.exhausted:
                raise RuntimeError(f"reader {subtask} is the last one, and others may be found")
        # spec: SplitAssignment!NoMore, PartitionLog!Close
        reader.told = True
        self._forget_request(subtask)
        if replayed:
            self._thread.execute(self.serve)
        else:
            reader.ends[0].deliver(NoMoreSplits())

    def send(self, subtask: int, event: SourceEvent) -> None:
        """See `EnumeratorContext`."""
        for end in [*self._reader(subtask).ends]:
            end.deliver(Event(event))

    # -- all uses -----------------------------------------------------------------------------

    def serve(self) -> None:
        """Something waits that did not, or nothing comes any more: give and tell.

        Raises RuntimeError for a split that waits for a reader that was told that no more come.
        """
        replayed = self._delivery is Delivery.REPLAYED
        for subtask, reader in enumerate(self._readers):
            ruled = self._thread.pending.ruled(subtask)
            if ruled and (reader.ends or replayed):
                if reader.told:
                    raise RuntimeError(
                        f"reader {subtask} was told that it gets no more splits, and {ruled} wait for it"
                    )
                if not replayed:
                    self._serve(subtask)
        for subtask in [*self._asking]:
            self._serve(subtask)
        self._answer()

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

    def fail(self, error: BaseException) -> None:
        """Nothing goes on: every reader that is there fails, and every question."""
        if self._delivery is Delivery.PUSHED:
            for reader in self._readers:
                ends, reader.ends = reader.ends, []
                for end in ends:
                    end.deliver(Failed(error))
        questions, self._questions = self._questions, []
        for question in questions:
            question.answer.set_exception(error)

    def close(self) -> None:
        """Tell nobody anything any more. Any thread but the enumerator's."""
        self._alarm.close()

    def _reader(self, subtask: int) -> _Reader[S]:
        if type(subtask) is not int or not 0 <= subtask < self.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self.parallelism - 1}")
        return self._readers[subtask]

    def _rule(self, split: S) -> int | None:
        """The reader that is to have a split: by the source's own rule, or evenly if it has no end."""
        if self._delivery is Delivery.PLANNED:
            return None
        subtask = self._thread.enumerator.assigned_to(split)
        pushed = self._delivery is Delivery.PUSHED
        if subtask is not None or not (pushed and self._unbounded) or split.stop is not None:
            return subtask
        places = [*enumerate(self._readers)]
        living = [each for each in places if each[1].ends or each[1].info is None] or places
        ruled = self._thread.pending.ruled
        return min(living, key=lambda each: len(each[1].unfinished) + ruled(each[0]))[0]

    def _forget_request(self, subtask: int) -> None:
        self._readers[subtask].asked = False
        self._asking.pop(subtask, None)

    # -- attempts of partitions and of micro-batches ------------------------------------------

    def attach(self, subtask: int, end: ReaderEnd) -> None:
        """An attempt is there, for events. Any thread. Raises ValueError for a place that does not exist."""
        self._reader(subtask).ends.append(end)

    def introduce(self, subtask: int, host: str) -> None:
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
        return sum(len(reader.given) for reader in self._readers)

    @property
    def over(self) -> bool:
        """True if every log is closed. Any thread."""
        return all(reader.told for reader in self._readers)

    def logged(self, subtask: int, index: int) -> list[S | None]:
        """At most 64 entries of a partition's log, as it stands, from `index` on. Any thread. See `next`."""
        reader = self._reader(subtask)
        # Before the log, to which nothing is appended then.
        told = reader.told
        # spec: PartitionLog!Replay
        found: list[S | None] = [
            waiting.split for _, waiting in reader.given[index : index + MAX_SPLITS_PER_ANSWER]
        ]
        if told and index + len(found) == len(reader.given):
            found.append(None)
        return found

    def next(self, subtask: int, index: int, host: str, most: int, answer: Future[list[S | None]]) -> None:
        """Answer with entries of a partition's log from `index` on, one to `most` of them; None is the end.

        The log is appended to if need be. The same question has the same answer, but that it may be longer.
        One that comes too early waits. More than one split is appended only while many wait, so that near the
        end each goes to whoever has nothing to do: guided self-scheduling (Polychronopoulos and Kuck, 1987).
        A source that handles requests itself is asked for each.

        Raises ValueError for a partition that does not exist or an index that nobody can have come to.
        """
        reader = self._reader(subtask)
        if type(index) is not int or not 0 <= index <= len(reader.given):
            raise ValueError(f"index={index!r}: must be from 0 to {len(reader.given)} in partition {subtask}")
        if reader.info is None or reader.info.host != host:
            self.introduce(subtask, host)
        if index == len(reader.given) and not reader.told:
            self._thread.enumerator.handle_split_request(subtask)
        question = _Question(subtask, index, most, answer)
        entries = self._entries(question)
        if entries:
            answer.set_result(entries)
        else:
            self._questions.append(question)
        self._thread.need()

    def suspend(self) -> Restored[S, Any]:
        """Give what another enumerator goes on from; fail who asks now.

        In one step, as a checkpoint. A discovery that is under way has changed nothing yet: it finds the same
        again.
        """
        self.fail(RuntimeError("the read has been suspended"))
        return Restored(self._thread.enumerator.snapshot(), tuple(self._thread.pending.waiting()))

    def _answer(self) -> None:
        for question in [*self._questions]:
            entries = self._entries(question)
            if entries:
                self._questions.remove(question)
                question.answer.set_result(entries)
        self._thread.need()

    def _entries(self, question: _Question[S]) -> list[S | None]:
        """Give what stands in the log, and as many new ones as are due; none if there is nothing yet."""
        reader = self._readers[question.subtask]
        own_requests = (
            type(self._thread.enumerator).handle_split_request is SplitEnumerator.handle_split_request
        )
        share = len(self._thread.pending) // (SHARE_DIVISOR * self.parallelism)
        due = max(1, share) if own_requests else 1
        entries: list[S | None] = []
        for at in range(question.index, question.index + max(1, min(question.most, MAX_SPLITS_PER_ANSWER))):
            if at == len(reader.given) and due and not reader.told:
                self._append(reader)
                due -= 1
            if at < len(reader.given):
                entries.append(reader.given[at][1].split)
                continue
            if reader.told:
                entries.append(None)
            break
        return entries

    def _append(self, reader: _Reader[S]) -> None:
        assert reader.info is not None
        waiting = self._thread.pending.take(reader.info)
        if waiting is not None:
            # spec: PartitionLog!Append
            reader.given.append((0, waiting))
        elif self._thread.exhausted:
            # spec: PartitionLog!Close
            reader.told = True

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
        reader.ends = [end]
        reader.before = reader.number
        reader.info = ReaderInfo(subtask, host)
        self._thread.enumerator.add_reader(reader.info)
        if reader.base:
            self._give(subtask, [*reader.base.values()])
        self._serve(subtask)
        self._align()
        self._thread.need()

    def is_there(self, end: ReaderEnd, subtask: int) -> bool:
        """Return True if this is the reader of its place, and no former one."""
        return end in self._readers[subtask].ends

    def request(self, subtask: int) -> None:
        """A reader asks for a split. To ask again before the answer is no more than to ask once."""
        reader = self._reader(subtask)
        if not reader.ends or reader.told:
            return
        reader.asked = True
        self._asking[subtask] = None
        self._thread.enumerator.handle_split_request(subtask)
        self._serve(subtask)
        self._thread.need()

    def finished(self, subtask: int, split_ids: Iterable[str]) -> None:
        """A reader has read splits to their end."""
        reader = self._reader(subtask)
        own = [split_id for split_id in split_ids if split_id in reader.unfinished]
        for split_id in own:
            reader.unfinished.discard(split_id)
            # One that was forgotten and found anew may be another reader's by now.
            if self._owners.get(split_id) == subtask:
                del self._owners[split_id]
        if not reader.unfinished:
            self.serve()
        self._forget_times(own)
        self._align()

    def leave(self, subtask: int, done: bool) -> None:
        """A reader goes. `done`: it has read all that it had, and nothing goes back unless it comes again."""
        reader = self._reader(subtask)
        reader.ends = []
        if not done or reader.unfinished:
            self._dies(subtask)
        else:
            # spec: SplitAssignment!Leave
            reader.done = True
            self._forget_request(subtask)
        self._align()

    def _dies(self, subtask: int) -> None:
        """A reader has died: what the last complete checkpoint does not count in waits again.

        The rest is for the reader when it comes back. A checkpoint that is not complete is given up.
        """
        # spec: SplitAssignment!AddBack
        reader = self._readers[subtask]
        reader.ends = []
        reader.done = reader.told = False
        self._forget_request(subtask)
        self._staged.clear()
        back = [waiting for _, waiting in reader.given if waiting.split.split_id not in reader.base]
        reader.given.clear()
        for split_id in reader.unfinished:
            self._owners.pop(split_id, None)
        self._forget_times(reader.unfinished)
        # Nobody is told that no more come while these have not been read.
        reader.unfinished = set(reader.base)
        self._thread.pending.add(back)
        self._thread.enumerator.add_splits_back([waiting.split for waiting in back], subtask)
        self.serve()

    def refuses(self, restored: str | None, subtask: int) -> str | None:
        """The reason for which a reader is not taken that was restored with this; None if it is."""
        reader = self._readers[subtask]
        if restored is None:
            return None
        if self._restored is None and reader.info is None:
            return (
                f"reader {subtask} was restored from a checkpoint, and its coordinator was not: "
                "both must begin anew, or go on from the same checkpoint"
            )
        if self._restored is not None and (not self._completed or reader.info is None):
            # All was dealt out anew, perhaps to other readers; one that had nothing is in no checkpoint.
            had = [*map(_of, self._restored), []]
        else:
            had = [[*reader.base.values()]]
        assert self._serializer is not None
        for waiting in had:
            if digest(((each.split, each.skip) for each in waiting), self._serializer) == restored:
                return None
        return (
            f"reader {subtask} was restored from another checkpoint than the last one that its coordinator "
            "knows to be complete: `complete` was not called for it, or it is an older one"
        )

    def _serve(self, subtask: int) -> None:
        reader = self._readers[subtask]
        if not reader.ends or reader.told or reader.info is None:
            return
        ruled = self._thread.pending.take_ruled(subtask)
        if ruled:
            self._give(subtask, ruled)
        if not reader.asked:
            return
        waiting = self._thread.pending.take(reader.info)
        if waiting is not None:
            self._give(subtask, [waiting])
        elif self._nothing_is_left():
            for each in [*self._asking]:
                self.no_more_splits(each)

    def _nothing_is_left(self) -> bool:
        nobody_reads = not any(reader.unfinished for reader in self._readers)
        return nobody_reads and self._thread.exhausted and not len(self._thread.pending)

    def _give(self, subtask: int, waiting: list[Waiting[S]]) -> None:
        # spec: SplitAssignment!Assign
        reader = self._readers[subtask]
        reader.number += 1
        self._forget_request(subtask)
        for each in waiting:
            reader.given.append((reader.number, each))
            reader.unfinished.add(each.split.split_id)
            self._owners[each.split.split_id] = subtask
        skip = {each.split.split_id: each.skip for each in waiting if each.skip}
        reader.ends[0].deliver(AddSplits(tuple(each.split for each in waiting), reader.number, skip))

    # -- checkpoints of tasks -----------------------------------------------------------------

    def snapshot(self, states: Mapping[int, ReaderState[S]]) -> Checkpoint[S]:
        """A checkpoint of all, from what readers have said of themselves, each at a moment of its own.

        Needed is the state of each reader that is there and was given something. One that has left meanwhile
        counts with the state that it gave before, if it did. Raises ValueError for a state that is missing,
        is not of this life of its reader, or is of one that has died.
        """
        # spec: SplitAssignment!Checkpoint
        for subtask in states:
            self._reader(subtask)
        parts: dict[int, ReaderState[S]] = {}
        waiting = self._thread.pending.waiting()
        for subtask, reader in enumerate(self._readers):
            part = self._part(subtask, reader, states.get(subtask))
            parts[subtask] = part
            waiting += [each for number, each in reader.given if number > part.taken_up]
        known = self._thread.enumerator.snapshot()
        self._checkpoints += 1
        self._staged[self._checkpoints] = parts
        readers = {subtask: part for subtask, part in parts.items() if part.splits}
        return Checkpoint(self._checkpoints, known, tuple(waiting), readers)

    def _part(self, subtask: int, reader: _Reader[S], state: ReaderState[S] | None) -> ReaderState[S]:
        # spec: SplitAssignment!Part
        if reader.done and state is None:
            return ReaderState(reader.number)
        if not reader.ends and not reader.done:
            if state is not None and (state.taken_up or state.splits):
                raise ValueError(f"the state of reader {subtask}, which is not there: it has died since")
            base = reader.base
            skip = {split_id: each.skip for split_id, each in base.items() if each.skip}
            return ReaderState(reader.number, tuple(each.split for each in base.values()), skip)
        if state is None:
            if reader.number > reader.before:
                raise ValueError(f"the state of reader {subtask}, which is there, is missing")
            return ReaderState(reader.before)
        if not state.taken_up and not state.splits:
            return ReaderState(reader.before)
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
        for earlier in [each for each in self._staged if each < number]:
            del self._staged[earlier]
        ended: list[S] = []
        for subtask, part in parts.items():
            reader = self._readers[subtask]
            had = dict(reader.base)
            had.update((each.split.split_id, each) for at, each in reader.given if at <= part.taken_up)
            reader.given = [each for each in reader.given if each[0] > part.taken_up]
            reader.base = {waiting.split.split_id: waiting for waiting in _of(part)}
            # What it had, and was given again since it came back, it has not ended: it has not heard of it.
            under_way = {each.split.split_id for _, each in reader.given}
            ended += [had[name].split for name in had.keys() - reader.base.keys() - under_way]
        if ended:
            self._thread.finished(ended)

    # -- event time of tasks ------------------------------------------------------------------

    def report(self, subtask: int, watermarks: Mapping[str, float | None]) -> None:
        """The watermarks of a reader's splits."""
        if self._alignment is not None:
            own = {name: time for name, time in watermarks.items() if self._owners.get(name) == subtask}
            self._alignment.report(own)
            drift, limit = self._alignment.max_drift, self._limit
            self._align(any(at is None or at > limit or at + drift < limit for at in own.values()))

    def _forget_times(self, split_ids: Collection[str]) -> None:
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
        log_at = self.holds.update(alignment.held(self._limit), alignment.waited_for())
        if log_at is not None and not self._waits:
            self._alarm.reset(log_at)

    def _tell(self, limit: float, now: float) -> None:
        # spec: Alignment!Announce
        if limit != self._limit:
            self._limit, self._due = limit, now + LIMIT_INTERVAL_S
            for reader in self._readers:
                for end in reader.ends:
                    end.deliver(EventTimeLimit(limit))

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._alarm.reset(self._due)

    def _ring(self) -> bool:
        return self._alignment is not None and self._thread.execute(self._look, self._alignment)


def _of(state: ReaderState[S]) -> list[Waiting[S]]:
    """The splits of a reader, and what of each is behind it."""
    return [Waiting(split, state.skip.get(split.split_id, 0)) for split in state.splits]
