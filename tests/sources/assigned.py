"""Splits that are dealt out, for tests: one life of a driver, and readers that a test moves by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pillarbox.sources import ReaderInfo, Split
from pillarbox.sources.assignment import Assignment
from pillarbox.sources.link import AddSplits, Message, NoMoreSplits, ReaderState
from pillarbox.sources.pool import SplitPool, Waiting
from tests.sources.found import Finder, NoContext, World

LENGTH = 3


class Reader:
    """A reader as its task would be: messages arrive some time later; what it reads is its own till then."""

    def __init__(self) -> None:
        self.under_way: list[Message[Split]] = []
        self.splits: dict[str, Split] = {}
        self.taken_up = 0
        self.out: list[tuple[str, int]] = []
        self.ended = False
        self.left = False

    def hear(self) -> None:
        message = self.under_way.pop(0)
        if isinstance(message, AddSplits):
            assert message.number > self.taken_up
            self.taken_up = message.number
            for split in message.splits:
                assert split.split_id not in self.splits
                self.splits[split.split_id] = split
        else:
            assert isinstance(message, NoMoreSplits)
            assert not self.splits
            self.ended = True

    def read(self) -> str | None:
        """One record; gives the split if it is finished with it."""
        split = next(iter(self.splits.values()))
        self.out.append((split.split_id, split.start))
        rest = split.starting_at(split.start + 1)
        if rest.start == split.stop:
            del self.splits[split.split_id]
            return split.split_id
        self.splits[split.split_id] = rest
        return None

    def part(self) -> ReaderState[Split]:
        return ReaderState(self.taken_up, tuple(self.splits.values()))


class World3(World):
    def __init__(self) -> None:
        super().__init__()
        self.make = lambda number: Split(f"s{number}", 0, LENGTH)


class Run:
    """One life of the driver: an enumerator, its pool, its assignment, and readers."""

    def __init__(
        self,
        parallelism: int,
        known: int = 0,
        waiting: Collection[Waiting[Split]] = (),
        restored: Collection[ReaderState[Split]] | None = None,
    ) -> None:
        self.world = World3()
        self.finder = Finder(NoContext(parallelism), known, self.world)
        self.pool: SplitPool[Split] = SplitPool(self.finder)
        self.pool.add(waiting)
        self.exhausted = False
        self.lost: list[str] = []
        self.assignment: Assignment[Split] = Assignment(
            self.finder,
            self.pool,
            parallelism,
            lambda: self.exhausted,
            self.finder.handle_finished,
            self.lost.extend,
            restored,
        )
        self.readers: dict[int, Reader] = {}

    def open(self, subtask: int) -> Reader:
        reader = self.readers[subtask] = Reader()
        self.assignment.open(ReaderInfo(subtask, "host"), reader.under_way.append)
        return reader

    def find(self, count: int) -> None:
        self.world.count = self.finder.checkpoint + count
        splits, known = self.finder.discover(self.finder.checkpoint, 100)
        self.pool.take_up(splits, known)
        self.assignment.serve()


def given(reader: Reader) -> list[list[str]]:
    return [
        [split.split_id for split in each.splits] for each in reader.under_way if isinstance(each, AddSplits)
    ]


def shows(*splits: Split) -> Callable[[Collection[Waiting[Split]]], bool]:
    """What a reader shows that was restored with these."""
    return lambda waiting: {each.split for each in waiting} == set(splits)
