"""The coordinator of a source says who reads which split: `SplitCoordinator`; and a reader's way to it.

The first is pure state of the enumerator's thread. It decides for all uses of a source. A reader has a log of
the splits that it was given, and asks for what comes next, which is appended when there is something.
`SourceCoordinator` runs it for readers in tasks, and is thread-safe.
"""

# The two uses differ in what a reader is:
#
# - *Tasks.* A reader is pushed what is appended, in numbered messages, and says in its part of a
#   checkpoint up to which it counts them in. So a checkpoint needs no moment at which nothing is under
#   way: what a part does not count in, waits. A complete checkpoint cuts the log; what stands in it goes
#   back when the reader dies. That is Flink's idea (FLIP-27).
# - *Reads of Spark.* A plan deals splits, or slices of them, out to tasks: a batch read once, a stream for
#   each micro-batch, whose offset says which. Nothing is given to a reader that runs.
#
# Event-time alignment of tasks is Flink's too (FLIP-182): readers report how far their splits are, and are
# told one limit for all. A reader could hold its own splits by what it hears of the others' watermarks. Then
# two readers that hear of each other late could both stand still, each waiting for the other: so the
# coordinator decides, with all watermarks before it. A limit in time, and not a list of splits, is what a
# reader can apply to a split that it begins between two messages. A split that nobody has begun counts for
# nothing, for it may wait behind one that would be paused because of it; nor does one that is idle. So
# whoever is paused waits for a split that is read.
#
# A lock instead of one thread would let an enumerator be called by whoever asks; then its author has to know
# about threads, and `choose` could see a state that is half way.

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Generic, TypeVar

from pillarbox.sources.enumerating import Checkpoint, EnumeratorThread, Waiting, waiting_of
from pillarbox.sources.enumerator import (
    AddSplits,
    EventTimeLimit,
    Failed,
    Message,
    NoMoreSplits,
    ReaderInfo,
    ReaderState,
    SourceEvent,
    state_from_json,
    state_to_json,
)
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.validate import check_positive_int

log = logging.getLogger("pillarbox")

S = TypeVar("S", bound=Split)

CHECKPOINT_VERSION = 1


class _Reader(Generic[S]):
    """The state of the reader of one place."""

    def __init__(self) -> None:
        self.info: ReaderInfo | None = None
        self.link: CoordinatorLink[S] | None = None
        """None while it is not there."""
        self.done = False
        self.told = False
        """True if it gets no more splits: its log is closed."""
        self.log: list[Waiting[S]] = []
        """The splits given to it, over all its lives; a complete checkpoint cuts off what it counts in."""
        self.cut = 0
        """So many entries stood in front of these."""
        self.before = 0
        """The `number` with which this life of it began."""
        self.base: ReaderState[S] = ReaderState()
        """The splits that it had in the last complete checkpoint."""
        self.unfinished: set[str] = set()
        """The splits that it has, as far as it has said."""

    @property
    def number(self) -> int:
        """That of the last entry."""
        return self.cut + len(self.log)

    def after(self, number: int) -> list[Waiting[S]]:
        """The entries behind this one."""
        return self.log[max(0, number - self.cut) :]


class SplitCoordinator(Generic[S]):
    """Deals the splits of one source out to its readers. It is the one `EnumeratorContext`.

    Confined to the thread of an `EnumeratorThread`, or of several, one after the other, as a read goes on.

    planned: True where a plan deals splits out, to readers that do not run yet. max_drift: seconds by which
    the watermark of a split of a task may be ahead of the slowest one's; None: no limit.

    A reader that asks is told that no more come only when nothing waits, nothing will be found and nobody has
    an unfinished split: until then one might die, and leave it something to do. Splits without an end are
    dealt out evenly as they are found, for a reader that has one would never ask for another.
    """

    def __init__(self, parallelism: int, *, planned: bool = False, max_drift: float | None = None) -> None:
        if parallelism < 1:
            raise ValueError(f"parallelism={parallelism!r}: must be 1 or more")
        self.parallelism = parallelism
        self._planned = planned
        self._restored: Checkpoint[S, Any] | None = None
        self._thread: EnumeratorThread[S, Any]
        self._readers: tuple[_Reader[S], ...] = tuple(_Reader() for _ in range(parallelism))
        # Who asks, in this order.
        self._asking: dict[int, None] = {}
        self._checkpoints = 0
        self._completed = 0
        self._staged: dict[int, dict[int, ReaderState[S]]] = {}
        self._max_drift = max_drift
        # Of the splits that are read and not idle; and the limit that readers were told.
        self._watermarks: dict[str, float] = {}
        self._limit = math.inf

    # -- what its thread has to say -----------------------------------------------------------

    def begin(self, thread: EnumeratorThread[S, Any], restored: Checkpoint[S, Any] | None) -> None:
        """The enumerator is there, and nothing waits yet. restored: what it goes on from, if anything."""
        self._thread, self._restored = thread, restored
        self._asking.clear()
        for reader in self._readers:
            reader.info = None
        if restored is not None and not self._planned:
            # spec: SplitAssignment!Restore
            thread.enumerator.handle_restored([each.split for each in restored.unread()])

    def rule(self, split: S) -> int | None:
        """The reader that is to have a split: by the source's own rule, or evenly if it has no end."""
        if self._planned:
            return None
        subtask = self._thread.enumerator.assigned_to(split)
        if subtask is not None or split.stop is not None:
            return subtask
        if self._thread.source.boundedness is Boundedness.BOUNDED:
            return None
        places = [*enumerate(self._readers)]
        # Those that end get none: it would end the job.
        staying = [each for each in places if not each[1].told] or places
        living = [each for each in staying if each[1].link is not None or each[1].info is None] or staying
        ruled = self._thread.pending.ruled
        return min(living, key=lambda each: len(each[1].unfinished) + ruled(each[0]))[0]

    def serve(self) -> None:
        """Something waits that did not, or nothing comes any more: give and tell.

        Raises RuntimeError for a split that waits for a reader that was told that no more come.
        """
        for subtask, reader in enumerate(self._readers):
            if reader.link is not None:
                self._give_ruled(subtask)
        for subtask in [*self._asking]:
            self._give_due(subtask)

    def fail(self, error: BaseException) -> None:
        """It has ended: every reader that is there fails."""
        for reader in self._readers:
            if reader.link is not None:
                reader.link.deliver(Failed(error))

    # -- what the enumerator may ask and order ------------------------------------------------

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """See `EnumeratorContext`."""
        there = [each.info for each in self._readers if each.link is not None]
        return {info.subtask: info for info in there if info is not None}

    def assign(self, splits: Collection[S], subtask: int) -> None:
        """See `EnumeratorContext`.

        Raises ValueError for a reader that does not exist or was told that it gets no more, TypeError where
        splits are dealt out when they are planned.
        """
        reader = self._reader(subtask)
        if self._planned:
            raise TypeError(
                "splits that are dealt out when a read is planned are assigned to no running reader: say by "
                "assigned_to(split) which one is to have it"
            )
        if reader.told:
            raise ValueError(f"reader {subtask} was told that it gets no more splits")
        pending = self._thread.pending
        waiting = [pending.remove(split.split_id) or Waiting(split) for split in splits]
        if reader.link is not None:
            self._append(subtask, waiting)
        else:
            pending.add(waiting, subtask)

    def no_more_splits(self, subtask: int) -> None:
        """See `EnumeratorContext`."""
        reader = self._reader(subtask)
        if reader.told or reader.link is None:
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
        link = self._reader(subtask).link
        if link is not None:
            link.deliver(event)

    # -- what readers say -----------------------------------------------------------------------------

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
        """A reader asks for a split. To ask again before the answer is no more than to ask once."""
        reader = self._reader(subtask)
        if reader.told or reader.link is None:
            return
        self._asking[subtask] = None
        self._thread.enumerator.handle_split_request(subtask)
        self._give_due(subtask)

    def _reader(self, subtask: int) -> _Reader[S]:
        if type(subtask) is not int or not 0 <= subtask < self.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self.parallelism - 1}")
        return self._readers[subtask]

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
        info, pending = self._readers[subtask].info, self._thread.pending
        assert info is not None
        taken = pending.take(info)
        if taken is not None:
            self._append(subtask, [taken])
        if taken is not None or len(pending) or not self._thread.exhausted:
            return
        if not any(reader.unfinished for reader in self._readers):
            self.no_more_splits(subtask)

    def _append(self, subtask: int, waiting: list[Waiting[S]]) -> None:
        """Write splits into the log of a reader, which has them in its hands with that."""
        if not waiting:
            return
        # spec: SplitAssignment!Assign
        reader = self._readers[subtask]
        reader.log += waiting
        reader.unfinished.update(each.split.split_id for each in waiting)
        skip = {each.split.split_id: each.skip for each in waiting if each.skip}
        self._answer(subtask, AddSplits(tuple(each.split for each in waiting), reader.number, skip))

    def _answer(self, subtask: int, message: Message[S]) -> None:
        """The log of a reader goes on, or is closed: it is told so."""
        self._asking.pop(subtask, None)
        link = self._readers[subtask].link
        if link is not None:
            link.deliver(message)

    # -- tasks --------------------------------------------------------------------------------

    def open(
        self, link: CoordinatorLink[S], subtask: int, host: str, restored: ReaderState[S] | None
    ) -> None:
        """A reader is there. One that was there before it in its place counts as dead, and fails.

        restored: what it was restored with, if it was. One that was restored from another checkpoint than the
        coordinator fails.
        """
        reader = self._reader(subtask)
        refused = self.refuses(restored, subtask)
        if refused is not None:
            link.deliver(Failed(ValueError(refused)))
            return
        if reader.link is not None:
            reader.link.deliver(Failed(RuntimeError(f"reader {subtask} was replaced by another one")))
        if reader.link is not None or reader.done:
            self._dies(subtask)
        # Before its splits.
        # spec: Alignment!Return
        if self._limit < math.inf:
            link.deliver(EventTimeLimit(self._limit))
        # spec: SplitAssignment!Return
        reader.link, reader.before = link, reader.number
        reader.info = ReaderInfo(subtask, host)
        self._thread.enumerator.add_reader(reader.info)
        self._append(subtask, waiting_of(reader.base))
        self._give_ruled(subtask)

    def said(self, link: CoordinatorLink[S], subtask: int, what: Callable[..., None], *args: object) -> None:
        """A reader says something: `what` is the method here that takes it, with `args`."""
        # What a former reader still says is nothing to its place: it counts as dead.
        if self._readers[subtask].link is link:
            what(self, subtask, *args)

    def finished(self, subtask: int, split_ids: Iterable[str]) -> None:
        """A reader has read splits to their end."""
        reader = self._reader(subtask)
        # One of which a checkpoint has said so before may be found anew, and another reader's by now.
        own = reader.unfinished.intersection(split_ids)
        reader.unfinished -= own
        if not reader.unfinished:
            self.serve()
        self._forget(own)

    def leave(self, subtask: int, done: bool) -> None:
        """A reader goes. `done`: it has read all that it had, and nothing goes back unless it comes again."""
        reader = self._reader(subtask)
        if not done or reader.unfinished:
            self._dies(subtask)
        else:
            # spec: SplitAssignment!Leave
            reader.link, reader.done = None, True
            self._asking.pop(subtask, None)

    def _dies(self, subtask: int) -> None:
        """A reader has died: what the last complete checkpoint does not count in waits again.

        The rest is for the reader when it comes back. A checkpoint that is not complete is given up.
        """
        # spec: SplitAssignment!AddBack
        reader = self._readers[subtask]
        reader.link, reader.done, reader.told = None, False, False
        self._asking.pop(subtask, None)
        self._staged.clear()
        kept = {split.split_id for split in reader.base.splits}
        back = [each for each in reader.log if each.split.split_id not in kept]
        reader.cut, reader.log = reader.number, []
        self._forget(reader.unfinished)
        # Nobody is told that no more come while these have not been read.
        reader.unfinished = kept
        self._thread.pending.add(back)
        self._thread.enumerator.add_splits_back([each.split for each in back], subtask)
        self.serve()

    def refuses(self, restored: ReaderState[S] | None, subtask: int) -> str | None:
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
        if any(_by_id(state) == _by_id(restored) for state in had):
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
        if state is None and reader.link is not None and reader.number > reader.before:
            raise ValueError(f"the state of reader {subtask}, which is there, is missing")
        if state is None or not (state.taken_up or state.splits):
            # It has taken nothing up, or is dead.
            lives = reader.link is not None or reader.done
            return ReaderState(reader.before) if lives else replace(reader.base, taken_up=reader.number)
        if reader.link is None and not reader.done:
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
            self._forget(ended)
            self._thread.finished([*ended.values()])

    # -- event time of tasks ------------------------------------------------------------------

    def report(self, subtask: int, watermarks: Mapping[str, float | None]) -> None:
        """A reader says the watermarks of its splits in seconds; None for one that is idle."""
        # spec: Alignment!Hear
        for split_id in self._readers[subtask].unfinished & watermarks.keys():
            watermark = watermarks[split_id]
            if watermark is None:
                self._watermarks.pop(split_id, None)
            else:
                self._watermarks[split_id] = watermark
        self._align()

    def _forget(self, split_ids: Iterable[str]) -> None:
        """These splits have been read to their end, or are no longer where they were reported from."""
        # spec: Alignment!Hear, Alignment!Die
        for split_id in split_ids:
            self._watermarks.pop(split_id, None)
        self._align()

    def _align(self) -> None:
        """Tell all readers up to which event time they may read, if that has changed."""
        if self._max_drift is None:
            return
        limit = min(self._watermarks.values(), default=math.inf) + self._max_drift
        if limit != self._limit:
            # spec: Alignment!Announce
            self._limit = limit
            for reader in self._readers:
                if reader.link is not None:
                    reader.link.deliver(EventTimeLimit(limit))


class CoordinatorLink(Generic[S]):
    """A reader's way to its coordinator. Any thread; nothing blocks. What goes wrong comes as `Failed`."""

    def __init__(
        self, thread: EnumeratorThread[S, Any], coordinator: SplitCoordinator[S], subtask: int
    ) -> None:
        self._thread = thread
        self._coordinator = coordinator
        self._subtask = subtask
        self._receive: Callable[[Message[S]], None] | None = None

    def open(self, receive: Callable[[Message[S]], None], state: ReaderState[S] | None = None) -> None:
        """Say that the reader is there. Called once, before everything else.

        receive: takes the messages, on any thread but one at a time and in order, and must not block: it
            hands them to the task's mailbox.
        state: what the reader was restored with, if it was: then the coordinator must have been restored from
            the same checkpoint, or have been told before that this one is complete; otherwise `Failed` comes.
            The splits to read come as `AddSplits` all the same: the reader reads none but those. They are
            these, unless they were dealt out anew.
        """

        def opened(done: Future[None]) -> None:
            error = done.exception()
            if error is not None:
                # Told here, as it may have ended before it has heard of the reader.
                self.deliver(Failed(error))
                self._thread.execute(_raise, error)

        self._receive = receive
        opening = self._thread.submit(
            self._coordinator.open, self, self._subtask, socket.gethostname(), state
        )
        opening.add_done_callback(opened)

    def deliver(self, message: Message[S]) -> None:
        """Take a message to the reader; after it has gone, nothing. For the coordinator."""
        receive = self._receive
        if receive is not None:
            receive(message)

    def request_split(self) -> None:
        """Ask for a split. The answer is `AddSplits` or `NoMoreSplits`; to ask again before it is no more."""
        self._say(SplitCoordinator.request)

    def send(self, event: SourceEvent) -> None:
        """Say something to the enumerator."""
        self._say(SplitCoordinator.hear, event)

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """The watermarks of splits in seconds, by split id; None for one that is idle. Only what changed."""
        self._say(SplitCoordinator.report, watermarks)

    def finished(self, split_ids: Collection[str]) -> None:
        """These splits have been read to their end."""
        self._say(SplitCoordinator.finished, tuple(split_ids))

    def close(self, done: bool = False) -> None:
        """The reader goes. Idempotent.

        done: it has read everything that it had, so nothing goes back, unless it comes again before a
            checkpoint has counted that in. Otherwise its splits go back, as when it dies.
        """
        if self._receive is not None:
            self._receive = None
            self._say(SplitCoordinator.leave, done)

    def _say(self, what: Callable[..., None], *args: object) -> None:
        self._thread.execute(self._coordinator.said, self, self._subtask, what, *args)

    def __repr__(self) -> str:
        return f"<CoordinatorLink of reader {self._subtask}>"


def _raise(error: BaseException) -> None:
    raise error


def _by_id(state: ReaderState[S]) -> dict[str, Waiting[S]]:
    """The splits of a state, each with the records behind it: the same for states that say the same."""
    return {each.split.split_id: each for each in waiting_of(state)}


# -- for users: the coordinator of tasks ------------------------------------------------------------


class SourceCoordinator(Generic[S]):
    """Coordinator of `parallelism` readers of `source`, numbered from 0. Use it in a `with` block.

    watermarks: with a `max_drift`, readers receive the limit up to which they may read. The readers
        themselves use the strategy for their reports.
    checkpoint: the `snapshot` of an earlier run, to continue from it with any parallelism: all splits that
        were not read to their end are assigned again.
    failed: called once, on the enumerator's thread, with the error that ended the coordinator. All readers
        fail with it.

        >>> from pillarbox.sources import SourceCoordinator
        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> with SourceCoordinator(GeneratorSource(rows=10, splits=2), parallelism=2) as coordinator:
        ...     coordinator.parallelism, coordinator.failure
        (2, None)

    A reader, in a thread of this process, uses its `link`. One that dies must return in its place for the
    source to be read to its end: it gets its splits of the last complete checkpoint. Splits assigned since
    then are assigned to any reader.

    Any thread. Raises TypeError or ValueError for a bad argument.
    """

    def __init__(
        self,
        source: Source[S, Any],
        parallelism: int,
        *,
        watermarks: WatermarkStrategy | None = None,
        checkpoint: Mapping[str, Any] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        if not isinstance(source, Source):
            raise TypeError(f"source={source!r}: must be a Source, not {type(source).__name__}")
        check_positive_int("parallelism", parallelism)
        self._source = source
        restored = None if checkpoint is None else checkpoint_from_json(source, checkpoint)
        self._coordinator: SplitCoordinator[S] = SplitCoordinator(
            parallelism, max_drift=None if watermarks is None else watermarks.max_drift
        )
        self._thread = EnumeratorThread(source, self._coordinator, restored=restored, failed=failed)

    def start(self) -> SourceCoordinator[S]:
        """Make the enumerator and begin to discover. Any thread, once. Raises the errors of the source."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End the coordinator; readers still at work fail. Any thread but the enumerator's. Idempotent."""
        self._thread.close(RuntimeError(f"the coordinator of {self._source!r} has been closed"))

    def __enter__(self) -> SourceCoordinator[S]:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def parallelism(self) -> int:
        """The number of readers."""
        return self._coordinator.parallelism

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended it; None while it runs or after a normal end."""
        return self._thread.failure

    def link(self, subtask: int) -> CoordinatorLink[S]:
        """Return the link of a reader. Any thread. Raises ValueError for an unknown place."""
        if not 0 <= subtask < self.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self.parallelism - 1}")
        return CoordinatorLink(self._thread, self._coordinator, subtask)

    def snapshot(self, states: Mapping[int, Any]) -> dict[str, Any]:
        """Return a checkpoint of the whole run, as JSON values. Waits for the enumerator's thread.

        states: by subtask, the readers' `SourceInput.snapshot_state`, each of its own moment.
            One is needed of each reader that runs and was given splits.

        Raises ValueError for a state that is missing or is from an earlier life of its reader, and the error
        that has ended the coordinator.
        """
        serializer = self._source.split_serializer
        parts = {at: state_from_json(state, serializer) for at, state in states.items()}
        return checkpoint_to_json(self._source, self._thread.call(self._coordinator.snapshot, parts))

    def complete(self, checkpoint: Mapping[str, Any]) -> None:
        """Confirm that `checkpoint`, from `snapshot`, is durable: a reader's death undoes later progress.

        Call it before a reader is started from it: an earlier one is refused.
        Raises ValueError for one that was given up, because a reader has died since; then take another.
        """
        self._thread.call(self._coordinator.complete, checkpoint["number"])

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Make the enumerator notify the service of durable positions. Any thread. Its errors are logged."""
        self._thread.execute(self._coordinator.notify_committed, positions)


def checkpoint_to_json(source: Source[S, Any], checkpoint: Checkpoint[S, Any]) -> dict[str, Any]:
    """A checkpoint as what JSON can hold."""
    splits = source.split_serializer
    known = source.checkpoint_serializer
    return {
        "version": CHECKPOINT_VERSION,
        "number": checkpoint.number,
        "enumerator": {"version": known.version, "checkpoint": known.to_json(checkpoint.checkpoint)},
        "split_version": splits.version,
        "waiting": [[splits.to_json(each.split), each.skip] for each in checkpoint.waiting],
        "readers": {str(at): state_to_json(state, splits) for at, state in checkpoint.readers.items()},
    }


def checkpoint_from_json(source: Source[S, Any], written: Mapping[str, Any]) -> Checkpoint[S, Any]:
    """Read what `checkpoint_to_json` has written. Raises ValueError for what it has not."""
    if not isinstance(written, Mapping) or written.get("version") != CHECKPOINT_VERSION:
        raise ValueError(
            f"checkpoint={written!r}: must be a checkpoint of a source, version {CHECKPOINT_VERSION}"
        )
    splits = source.split_serializer
    known = written["enumerator"]
    version = written["split_version"]
    return Checkpoint(
        source.checkpoint_serializer.from_json(known["version"], known["checkpoint"]),
        [Waiting(splits.from_json(version, split), skip) for split, skip in written["waiting"]],
        {int(at): state_from_json(state, splits) for at, state in written["readers"].items()},
    )
