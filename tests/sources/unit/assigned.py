"""Splits that are dealt out, for tests: one life of a driver, and readers that a test moves by hand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pillarbox.sources import Split
from pillarbox.sources.enumerating import Checkpoint, PendingSplits, Waiting
from pillarbox.sources.enumerator import AddSplits, Message, NoMoreSplits, ReaderState
from pillarbox.sources.split_coordinator import SplitCoordinator
from tests.sources.unit.found import Findable, Finder, World

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

    def deliver(self, message: Message[Split]) -> None:
        self.under_way.append(message)

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


SOURCE = Findable(World())


class Run:
    """One life of the driver: an enumerator, what waits, the coordinator, and readers. No thread but this."""

    def __init__(
        self,
        parallelism: int,
        known: int = 0,
        waiting: Collection[Waiting[Split]] = (),
        restored: Collection[ReaderState[Split]] | None = None,
        max_drift: float | None = None,
    ) -> None:
        self.world = World3()
        self.exhausted = False
        self.source = SOURCE
        self.coordinator: SplitCoordinator[Split] = SplitCoordinator(parallelism, max_drift=max_drift)
        self.finder = self.enumerator = Finder(self.coordinator, known, self.world)
        self.pending: PendingSplits[Split] = PendingSplits(self.finder)
        self.pending.add(waiting)
        as_thread: Any = self
        had = None if restored is None else Checkpoint(known, (), dict(enumerate(restored)))
        self.coordinator.begin(as_thread, had)
        self.readers: dict[int, Reader] = {}

    def finished(self, splits: Collection[Split]) -> None:
        self.finder.handle_finished([*splits])

    def open(self, subtask: int, *restored: Split) -> Reader:
        reader = self.readers[subtask] = Reader()
        way: Any = reader
        self.coordinator.open(way, subtask, "host", shows(*restored) if restored else None)
        return reader

    def find(self, count: int) -> None:
        self.world.count = self.finder.checkpoint + count
        splits, self.finder.checkpoint = self.finder.discover(self.finder.checkpoint, 100)
        self.pending.add(Waiting(split) for split in splits)
        self.coordinator.serve()


def given(reader: Reader) -> list[list[str]]:
    return [
        [split.split_id for split in each.splits] for each in reader.under_way if isinstance(each, AddSplits)
    ]


def shows(*splits: Split) -> ReaderState[Split]:
    """The state of a reader that was restored with these."""
    return ReaderState(0, splits)
