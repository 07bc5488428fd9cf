"""A source for tests of what finds and deals out splits: a test says what there is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pillarbox.sources import Source, Split, SplitEnumerator
from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, SourceEvent
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.source import Boundedness

LONG = 3600.0
"""Seconds beyond the time-out of every test, which alone ends a wait for what never comes."""


class World:
    """The splits that can be found, and the calls that the enumerator got. Thread-safe."""

    def __init__(self, count: int = 0) -> None:
        self.changed = threading.Condition()
        self.count = count
        self.calls = 0
        self.failures: dict[int, BaseException] = {}
        self.blocked = False
        self.closed = 0
        self.threads: dict[str, set[str]] = {}
        self.told: list[tuple[str, Any]] = []
        self.make: Callable[[int], Split] = lambda number: Split(f"s{number}", 0, 10)
        self.rule: Callable[[Split], int | None] = lambda split: None

    def say(self, kind: str, what: Any = None) -> None:
        with self.changed:
            self.told.append((kind, what))
            self.threads.setdefault(kind, set()).add(threading.current_thread().name)
            self.changed.notify_all()

    def add(self, count: int) -> None:
        with self.changed:
            self.count += count

    def unblock(self) -> None:
        with self.changed:
            self.blocked = False
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LONG)

    def heard(self, kind: str) -> list[Any]:
        with self.changed:
            return [what for each, what in self.told if each == kind]


class Finder(SplitEnumerator[Split, int]):
    """Knows how many were found."""

    def __init__(self, context: EnumeratorContext[Split], checkpoint: int, world: World) -> None:
        super().__init__(context, checkpoint)
        self.world = world

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[Split], int]:
        world = self.world
        world.say("discover", checkpoint)
        with world.changed:
            world.calls += 1
            failure = world.failures.get(world.calls)
            world.changed.notify_all()
            world.changed.wait_for(lambda: not world.blocked, LONG)
            count = world.count
        if failure is not None:
            raise failure
        found = [world.make(number) for number in range(checkpoint, min(count, checkpoint + most))]
        return found, checkpoint + len(found)

    def assigned_to(self, split: Split) -> int | None:
        return self.world.rule(split)

    def add_reader(self, reader: ReaderInfo) -> None:
        self.world.say("reader", reader.subtask)

    def handle_split_request(self, subtask: int) -> None:
        self.world.say("request", subtask)

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self.world.say("back", (subtask, [split.split_id for split in splits]))

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        self.world.say("event", (subtask, event))
        if event.kind == "echo":
            self.context.send(subtask, event)
        elif event.kind == "learn":
            self.checkpoint = int(event.payload)
        elif event.kind == "give":
            self.context.assign([Split(str(event.payload), 0, 10)], subtask)
        elif event.kind == "enough":
            self.context.no_more_splits(subtask)
        elif event.kind == "bad":
            raise OSError("the enumerator is broken")

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        self.world.say("committed", dict(positions))
        if "bad" in positions:
            raise OSError("the service is broken")

    def close(self) -> None:
        self.world.say("close")


class Findable(Source[Split, int]):
    """The source of what there is in a `World`."""

    split_type = Split

    def __init__(self, world: World, interval: float | None = None, broken: bool = False) -> None:
        self.world = world
        self.interval = interval
        self.broken = broken

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context: EnumeratorContext[Split]) -> Finder:
        if self.broken:
            raise OSError("no such service")
        return self.restore_enumerator(context, 0)

    def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
        enumerator = Finder(context, checkpoint, self.world)
        enumerator.discovery_interval = self.interval
        return enumerator

    def create_reader(self, context: ReaderContext) -> SourceReader[Split]:
        raise NotImplementedError


class NoContext:
    """The context of an enumerator that needs none but the number of readers."""

    def __init__(self, parallelism: int = 4) -> None:
        self.parallelism = parallelism
        self.readers: Mapping[int, ReaderInfo] = {}

    def assign(self, splits: Collection[Split], subtask: int) -> None:
        raise AssertionError

    def no_more_splits(self, subtask: int) -> None:
        raise AssertionError

    def send(self, subtask: int, event: SourceEvent) -> None:
        raise AssertionError


class Plain(Findable):
    """Its enumerator leaves requests to the framework."""

    def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
        return PlainFinder(context, checkpoint, self.world)


class PlainFinder(Finder):
    handle_split_request = SplitEnumerator.handle_split_request
