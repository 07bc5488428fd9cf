"""A source of numbers for tests: splits are ranges, a reader can be made to block, to fail and to be deaf."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pillarbox.sources import Fetched, Source, Split, SplitEnumerator, SplitReader
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded
from pillarbox.sources.source import Boundedness

LONG = 3600.0
"""Seconds beyond the time-out of every test, which alone ends a wait for what never comes."""


@dataclass(frozen=True)
class Range(Split):
    """The numbers from `start` up to `stop`; without a `stop` they come for ever."""

    @property
    def rows(self) -> int | None:
        return None if self.stop is None else self.stop - (self.start or 0)


def ranges(count: int, rows: int) -> list[Range]:
    return [Range(f"s{number}", 0, rows) for number in range(count)]


def expected(splits: Sequence[Range]) -> dict[str, list[int]]:
    return {split.split_id: list(range(split.start or 0, split.stop)) for split in splits}


def by_split(rows: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for split_id, number in rows:
        found.setdefault(split_id, []).append(number)
    return found


def next_batch(reader: FetchingReader[Range]) -> Fetched:
    """Waits for it."""
    while (fetched := reader.poll()) is None:
        future = reader.available()
        if future is not None:
            future.result(timeout=LONG)
    return fetched


class Script:
    """The script of a test's readers, and the actions that they have done. Thread-safe."""

    def __init__(self, batch: int = 10) -> None:
        self.batch = batch
        self.fail_at: dict[str, int] = {}
        self.deaf = False
        self.calls: list[tuple[str, Any]] = []
        self.threads: set[str] = set()
        self.after_close = 0
        self.changed = threading.Condition()
        self.blocked = False
        self.in_fetch = 0
        self.readers: list[NumbersReader] = []

    def make(self) -> NumbersReader:
        reader = NumbersReader(self)
        self.readers.append(reader)
        return reader

    def told(self, kind: str) -> list[Any]:
        return [what for each, what in list(self.calls) if each == kind]

    def block(self) -> None:
        with self.changed:
            self.blocked = True

    def release(self) -> None:
        with self.changed:
            self.blocked = False
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LONG)

    def say(self, kind: str, what: Any = None) -> None:
        with self.changed:
            self.calls.append((kind, what))
            self.threads.add(threading.current_thread().name)
            self.changed.notify_all()


class NumbersReader(SplitReader[Range]):
    """Gives a batch of each split that is not paused, in turn, rows being (split id, number)."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.splits: dict[str, Range] = {}
        self.paused: set[str] = set()
        self.woken = False
        self.closed = False

    def fetch(self) -> Sequence[Fetched]:
        script = self.script
        script.say("fetch", tuple(self.splits))
        with script.changed:
            script.in_fetch += 1
            script.changed.notify_all()
            if script.blocked:
                script.changed.wait_for(lambda: not script.blocked or (self.woken and not script.deaf), LONG)
            script.in_fetch -= 1
            self.woken = False
            if script.blocked:
                return []
        return [
            self._read(split) for split in list(self.splits.values()) if split.split_id not in self.paused
        ]

    def _read(self, split: Range) -> Fetched:
        start = split.start or 0
        stop = start + self.script.batch if split.stop is None else min(start + self.script.batch, split.stop)
        if self.script.fail_at.get(split.split_id, stop) < stop:
            raise OSError(f"{split.split_id} cannot be read")
        finished = stop == split.stop
        if finished:
            del self.splits[split.split_id]
        else:
            self.splits[split.split_id] = split.starting_at(stop)
        rows = [(split.split_id, number) for number in range(start, stop)]
        return Fetched(split.split_id, rows, stop, finished)

    def handle_splits_changes(self, change: SplitsAdded[Range]) -> None:
        self.splits.update((split.split_id, split) for split in change.splits)
        self.script.say("added", tuple(split.split_id for split in change.splits))

    def wake_up(self) -> None:
        with self.script.changed:
            if self.closed:
                self.script.after_close += 1
            self.woken = True
            self.script.changed.notify_all()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        self.paused.update(pause)
        self.paused.difference_update(resume)
        self.script.say("paused", (tuple(pause), tuple(resume)))

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.script.say("closed")


class NumbersEnumerator(SplitEnumerator[Range, int]):
    """Knows how many of the source's splits were found."""

    def __init__(self, context: EnumeratorContext[Range], checkpoint: int, source: Numbers) -> None:
        super().__init__(context, checkpoint)
        self._source = source

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[Range], int]:
        found = self._source.splits[checkpoint : checkpoint + min(most, 3)]
        return found, checkpoint + len(found)

    def advance(self, split: Range, limit: ReadLimit) -> Range | None:
        start = split.start or 0
        most = 1_000 if limit.rows is None else limit.rows
        return split.up_to(start + most if split.stop is None else min(split.stop, start + most))


class Numbers(Source[Range, int]):
    """The source of these splits; bounded if all of them are."""

    split_type = Range

    def __init__(
        self,
        splits: Sequence[Range],
        *,
        threading: Threading = Threading.ONE_SPLIT_AT_A_TIME,
        script: Script | None = None,
        interval: float | None = None,
    ) -> None:
        self.splits = list(splits)
        self.threading = threading
        self.script = Script() if script is None else script
        self.interval = interval

    @property
    def boundedness(self) -> Boundedness:
        endless = any(split.stop is None for split in self.splits) or self.interval is not None
        return Boundedness.CONTINUOUS_UNBOUNDED if endless else Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[Range]) -> NumbersEnumerator:
        return self.restore_enumerator(context, 0)

    def restore_enumerator(self, context: EnumeratorContext[Range], checkpoint: int) -> NumbersEnumerator:
        enumerator = NumbersEnumerator(context, checkpoint, self)
        enumerator.discovery_interval = self.interval
        return enumerator

    def create_reader(self, context: ReaderContext) -> SourceReader[Range]:
        return FetchingReader(context, self.script.make, threading=self.threading)


class Plain(SplitReader[Range]):
    """Cannot pause splits."""

    def fetch(self) -> list[Fetched]:
        return [Fetched("s0", [1], 1)]

    def handle_splits_changes(self, change: SplitsAdded[Range]) -> None:
        pass
