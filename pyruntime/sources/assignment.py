"""Who has which split, since which checkpoint: `Assignment`. Pure state of the enumerator's thread.

A reader is given splits in numbered messages, and says in its part of a checkpoint up to which it counts them
in. So a checkpoint needs no moment at which nothing is under way: what a part does not count in, waits. To
give back what was assigned since the last checkpoint is Flink's idea (FLIP-27).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pillarbox.sources.enumerator import ReaderInfo, SplitEnumerator
from pillarbox.sources.link import AddSplits, Message, NoMoreSplits, ReaderState
from pillarbox.sources.pool import SplitPool, Waiting
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """All of an assignment at one moment: what nobody has, and what each reader has. A plain value."""

    number: int
    """Counts the checkpoints of this assignment, from 1."""
    checkpoint: Any
    """What the enumerator knows."""
    waiting: tuple[Waiting[S], ...]
    readers: dict[int, ReaderState[S]]

    def unread(self) -> tuple[Waiting[S], ...]:
        """All that is to be read after it, whoever had it."""
        return (*self.waiting, *(each for state in self.readers.values() for each in _of(state)))


class _Reader(Generic[S]):
    """What is known of the reader of one place."""

    def __init__(self) -> None:
        self.info: ReaderInfo | None = None
        self.deliver: Callable[[Message[S]], None] | None = None
        """None while it is not there."""
        self.done = False
        self.asked = False
        self.told = False
        self.number = 0
        """Of the last message that gave it splits, over all its lives."""
        self.before = 0
        """What `number` was when this life began."""
        self.given: list[tuple[int, Waiting[S]]] = []
        """What it was given since the last complete checkpoint, which does not count that in."""
        self.base: dict[str, Waiting[S]] = {}
        """What it had in the last complete checkpoint."""
        self.unfinished: set[str] = set()


class Assignment(Generic[S]):
    """Deals the splits of `pool` out to the readers that are there. Confined to the enumerator's thread.

    is_exhausted: whether no other split will be found.
    finished: told the splits that were read to their end and that nobody gets again.
    lost: told the ids of splits that a reader has no longer, without having read them to the end.
    restored: what readers had in the checkpoint that it goes on from; None if it begins anew.

    A reader that asks is told that no more come only when nothing waits, nothing will be found and nobody has
    an unfinished split: until then somebody might die, and leave it something to do.
    """

    def __init__(
        self,
        enumerator: SplitEnumerator[S, Any],
        pool: SplitPool[S],
        parallelism: int,
        is_exhausted: Callable[[], bool],
        finished: Callable[[Sequence[S]], None],
        lost: Callable[[Collection[str]], None] = lambda _: None,
        restored: Collection[ReaderState[S]] | None = None,
    ) -> None:
        self._enumerator = enumerator
        self._pool = pool
        self._is_exhausted = is_exhausted
        self._finished = finished
        self._lost = lost
        self._restored = restored
        self._readers: tuple[_Reader[S], ...] = tuple(_Reader() for _ in range(parallelism))
        self._asking: dict[int, None] = {}
        self._owners: dict[str, int] = {}
        self._checkpoints = 0
        self._completed = 0
        self._staged: dict[int, dict[int, ReaderState[S]]] = {}

    # -- readers ------------------------------------------------------------------------------

    def readers(self) -> dict[int, ReaderInfo]:
        """The readers that are there."""
        return {at: each.info for at, each in enumerate(self._readers) if each.deliver and each.info}

    def owner(self, split_id: str) -> int | None:
        """The reader that reads a split now; None if nobody does."""
        return self._owners.get(split_id)

    def load(self, subtask: int) -> int:
        """How many splits a reader has that it has not finished."""
        return len(self._readers[subtask].unfinished)

    def has_died(self, subtask: int) -> bool:
        """Whether a reader was there, and is not."""
        reader = self._readers[subtask]
        return reader.deliver is None and reader.info is not None

    def refuses(self, shows: Callable[[Collection[Waiting[S]]], bool] | None, subtask: int) -> str | None:
        """Why a reader is not taken that was restored from a checkpoint; None if it is.

        shows: whether these are what it was restored with; None if it was not restored.
        """
        reader = self._readers[subtask]
        if shows is None:
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
        if any(map(shows, had)):
            return None
        return (
            f"reader {subtask} was restored from another checkpoint than the last one that its coordinator "
            "knows to be complete: `complete` was not called for it, or it is an older one"
        )

    def open(self, info: ReaderInfo, deliver: Callable[[Message[S]], None]) -> None:
        """A reader is there, which takes its messages by `deliver`.

        One that was there before it in its place counts as dead.
        """
        subtask = info.subtask
        reader = self._readers[subtask]
        if reader.deliver is not None or reader.done:
            self.dies(subtask)
        # spec: SplitAssignment!Return
        reader.info, reader.deliver = info, deliver
        reader.before = reader.number
        self._enumerator.add_reader(info)
        if reader.base:
            self._give(subtask, [*reader.base.values()])
        self._serve(subtask)

    def leave(self, subtask: int, done: bool) -> None:
        """A reader goes. `done`: it has read all that it had, and nothing goes back unless it comes again."""
        reader = self._readers[subtask]
        if not done or reader.unfinished:
            self.dies(subtask)
            return
        # spec: SplitAssignment!Leave
        reader.deliver = None
        reader.done = True
        self._forget_request(subtask)

    def dies(self, subtask: int) -> None:
        """A reader has died: what the last complete checkpoint does not count in waits again.

        The rest is for the reader when it comes back. A checkpoint that is not complete is given up.
        """
        # spec: SplitAssignment!AddBack
        reader = self._readers[subtask]
        reader.deliver = None
        reader.done = reader.told = False
        self._forget_request(subtask)
        self._staged.clear()
        back = [waiting for _, waiting in reader.given if waiting.split.split_id not in reader.base]
        reader.given.clear()
        for split_id in reader.unfinished:
            self._owners.pop(split_id, None)
        self._lost(reader.unfinished)
        # Nobody is told that no more come while these have not been read.
        reader.unfinished = set(reader.base)
        self._pool.add(back)
        self._enumerator.add_splits_back([waiting.split for waiting in back], subtask)
        self.serve()

    # -- splits -------------------------------------------------------------------------------

    def request(self, subtask: int) -> None:
        """A reader asks for a split. To ask again before the answer is no more than to ask once."""
        reader = self._readers[subtask]
        if reader.deliver is None or reader.told:
            return
        reader.asked = True
        self._asking[subtask] = None
        self._enumerator.handle_split_request(subtask)
        self._serve(subtask)

    def finished(self, subtask: int, split_ids: Iterable[str]) -> list[str]:
        """A reader has read splits to their end; gives those of them that were its own."""
        reader = self._readers[subtask]
        own = [split_id for split_id in split_ids if split_id in reader.unfinished]
        for split_id in own:
            reader.unfinished.discard(split_id)
            # One that was forgotten and found anew may be another reader's by now.
            if self._owners.get(split_id) == subtask:
                del self._owners[split_id]
        if not reader.unfinished:
            self.serve()
        return own

    def assign(self, splits: Collection[S], subtask: int) -> None:
        """Give splits to a reader, by the enumerator's own will; now, or when it comes.

        Raises ValueError for one that does not exist or was told that it gets no more.
        """
        self._check(subtask)
        reader = self._readers[subtask]
        if reader.told:
            raise ValueError(f"reader {subtask} was told that it gets no more splits")
        waiting = [self._pool.remove(split.split_id) or Waiting(split) for split in splits]
        if reader.deliver is None:
            self._pool.add(waiting, subtask)
        else:
            self._give(subtask, waiting)

    def no_more(self, subtask: int) -> None:
        """Tell a reader that it gets no other splits.

        Raises RuntimeError if it is the last that could, and splits wait or may still be found.
        """
        reader = self._readers[subtask]
        if reader.deliver is None or reader.told:
            return
        if all(each.told or each.done for each in self._readers if each is not reader):
            if len(self._pool):
                raise RuntimeError(f"reader {subtask} is the last one, and {len(self._pool)} splits wait")
            if not self._is_exhausted():
                raise RuntimeError(f"reader {subtask} is the last one, and others may be found")
        # spec: SplitAssignment!NoMore
        reader.told = True
        self._forget_request(subtask)
        reader.deliver(NoMoreSplits())

    def serve(self) -> None:
        """Something waits that did not, or nothing comes any more: give and tell.

        Raises RuntimeError for a split that waits for a reader that was told that no more come.
        """
        for subtask, reader in enumerate(self._readers):
            ruled = self._pool.ruled(subtask)
            if reader.deliver is not None and ruled:
                if reader.told:
                    raise RuntimeError(
                        f"reader {subtask} was told that it gets no more splits, and {ruled} wait for it"
                    )
                self._serve(subtask)
        for subtask in [*self._asking]:
            self._serve(subtask)

    def _serve(self, subtask: int) -> None:
        reader = self._readers[subtask]
        if reader.deliver is None or reader.told or reader.info is None:
            return
        ruled = self._pool.take_ruled(subtask)
        if ruled:
            self._give(subtask, ruled)
        if not reader.asked:
            return
        waiting = self._pool.take(reader.info)
        if waiting is not None:
            self._give(subtask, [waiting])
        elif self._is_over():
            for each in [*self._asking]:
                self.no_more(each)

    def _check(self, subtask: int) -> None:
        if not 0 <= subtask < len(self._readers):
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {len(self._readers) - 1}")

    def _is_over(self) -> bool:
        nobody_reads = not any(reader.unfinished for reader in self._readers)
        return nobody_reads and self._is_exhausted() and not len(self._pool)

    def _give(self, subtask: int, waiting: list[Waiting[S]]) -> None:
        # spec: SplitAssignment!Assign
        reader = self._readers[subtask]
        assert reader.deliver is not None
        reader.number += 1
        self._forget_request(subtask)
        for each in waiting:
            reader.given.append((reader.number, each))
            reader.unfinished.add(each.split.split_id)
            self._owners[each.split.split_id] = subtask
        skip = {each.split.split_id: each.skip for each in waiting if each.skip}
        reader.deliver(AddSplits(tuple(each.split for each in waiting), reader.number, skip))

    def _forget_request(self, subtask: int) -> None:
        self._readers[subtask].asked = False
        self._asking.pop(subtask, None)

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self, states: Mapping[int, ReaderState[S]]) -> Checkpoint[S]:
        """A checkpoint of all, from what readers have said of themselves, each at a moment of its own.

        Needed is the state of each reader that is there and was given something. One that has left meanwhile
        counts with the state that it gave before, if it did. Raises ValueError for a state that is missing,
        is not of this life of its reader, or is of one that has died.
        """
        # spec: SplitAssignment!Checkpoint
        for subtask in states:
            self._check(subtask)
        parts: dict[int, ReaderState[S]] = {}
        waiting = self._pool.waiting()
        for subtask, reader in enumerate(self._readers):
            part = self._part(subtask, reader, states.get(subtask))
            parts[subtask] = part
            waiting += [each for number, each in reader.given if number > part.taken_up]
        known = self._enumerator.snapshot()
        self._checkpoints += 1
        self._staged[self._checkpoints] = parts
        readers = {subtask: part for subtask, part in parts.items() if part.splits}
        return Checkpoint(self._checkpoints, known, tuple(waiting), readers)

    def _part(self, subtask: int, reader: _Reader[S], state: ReaderState[S] | None) -> ReaderState[S]:
        # spec: SplitAssignment!Part
        if reader.done and state is None:
            return ReaderState(reader.number)
        if reader.deliver is None and not reader.done:
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
            self._finished(ended)


def _of(state: ReaderState[S]) -> list[Waiting[S]]:
    """The splits of a reader, and what of each is behind it."""
    return [Waiting(split, state.skip.get(split.split_id, 0)) for split in state.splits]
