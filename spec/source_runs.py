"""Has tasks read a source as a seed says, records what its coordinator does, and has TLC judge the record.

`Counted` is a source for all three uses. A run here is one of tasks: readers ask, read, give their parts of
checkpoints at moments of their own, die and come back; checkpoints are completed or given up; the driver dies
too, and goes on from the last complete one, with more readers or fewer. Enumerator, discovery and fetchers
have their threads, as always.

    python -m spec.source_runs [--runs 50] [--seed 1] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pillarbox.sources import Fetched, Source, SourceCoordinator, SourceInput, SplitEnumerator, SplitReader
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import OffsetSplit
from pillarbox.task import InputStatus
from pillarbox.testing.test_io import CollectedOutput

from . import source_trace
from .recorded import append
from .source_recorder import recording

RUN_TIMEOUT_S = 60.0
BATCH = 2
"""Records of one fetch."""

SCHEMA = pa.schema([("split", pa.int64()), ("record", pa.int64())])


@dataclass(frozen=True)
class Counted(Source[OffsetSplit, int]):
    """Splits 1 to `splits` of `length` records each; records are counted from 1.

    piece: splits of a discovery at most. folder: of a stream, where each split is a file with a byte for each
    record that is there; None: all are there, and the source has an end. fetch_s: seconds for each fetch.
    failed: a file with a byte for each reader that has failed, at its third fetch; `failures` do.
    """

    splits: int
    length: int
    piece: int = 1000
    folder: str | None = None
    fetch_s: float = 0.0
    failed: str | None = None
    failures: int = 0
    split_type = OffsetSplit

    @property
    def boundedness(self) -> Boundedness:
        """Bounded without a folder."""
        return Boundedness.BOUNDED if self.folder is None else Boundedness.CONTINUOUS_UNBOUNDED

    def arrived(self, split: int) -> int:
        """The records of a split that are there."""
        if self.folder is None:
            return self.length
        path = Path(self.folder, str(split))
        return path.stat().st_size if path.exists() else 0

    def create_enumerator(self, context: EnumeratorContext[OffsetSplit]) -> CountedEnumerator:
        """One that knows none."""
        return CountedEnumerator(context, 0, self)

    def restore_enumerator(
        self, context: EnumeratorContext[OffsetSplit], checkpoint: int
    ) -> CountedEnumerator:
        """One that knows so many."""
        return CountedEnumerator(context, checkpoint, self)

    def create_reader(self, context: ReaderContext) -> SourceReader[OffsetSplit]:
        """One with a fetcher."""
        return FetchingReader(context, lambda: CountedReader(self))

    def arrow_schema(self) -> pa.Schema:
        """The number of the split, and of the record in it."""
        return SCHEMA


class CountedEnumerator(SplitEnumerator[OffsetSplit, int]):
    """Knows how many splits were found."""

    discovery_interval = 0.05

    def __init__(self, context: EnumeratorContext[OffsetSplit], checkpoint: int, source: Counted) -> None:
        super().__init__(context, checkpoint)
        self._counted = source

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[OffsetSplit], int]:
        """The next ones that are there."""
        source, upto = self._counted, checkpoint
        while upto < min(source.splits, checkpoint + min(most, source.piece)) and source.arrived(upto + 1):
            upto += 1
        found = range(checkpoint + 1, upto + 1)
        return [OffsetSplit(str(number), 0, source.length) for number in found], upto

    def advance(self, split: OffsetSplit, limit: ReadLimit) -> OffsetSplit | None:
        """The split as it is now, or None."""
        stop = min(self._counted.arrived(int(split.split_id)), split.stop)
        if limit.rows is not None:
            stop = min(stop, split.start + limit.rows)
        return split.up_to(stop) if stop > split.start else None

    def notify_committed(self, positions: Any) -> None:
        """Take it: that it is told is recorded."""


class CountedReader(SplitReader[OffsetSplit]):
    """Reads one split after the other."""

    def __init__(self, source: Counted) -> None:
        self._counted = source
        self._splits: list[OffsetSplit] = []
        self._fetches = 0

    def handle_splits_changes(self, change: SplitsAdded[OffsetSplit]) -> None:
        """Take them up."""
        assert isinstance(change, SplitsAdded)
        self._splits += change.splits

    def fetch(self) -> Sequence[Fetched]:
        """The next records of the first one."""
        if not self._splits:
            return []
        time.sleep(self._counted.fetch_s)
        self._fetches += 1
        if self._fetches == 3:
            self._fail()
        split = self._splits.pop(0)
        stop = min(split.start + BATCH, split.stop)
        if stop < split.stop:
            self._splits.insert(0, split.starting_at(stop))
        rows = [(int(split.split_id), number + 1) for number in range(split.start, stop)]
        return [Fetched(split.split_id, rows, stop, finished=stop == split.stop)]

    def _fail(self) -> None:
        if self._counted.failed is not None:
            with Path(self._counted.failed).open("ab") as file:
                if file.tell() < self._counted.failures:
                    file.write(b"x")
                    raise OSError("on purpose")

    def wake_up(self) -> None:
        """A fetch ends soon."""


class _Output(CollectedOutput):
    """Says which rows its reader puts out."""

    def __init__(self, path: str, subtask: int, life: str) -> None:
        super().__init__()
        self._path, self._words = path, {"subtask": subtask, "life": life}
        self.rows: list[tuple[int, int]] = []

    def collect(self, record: Any) -> None:
        append(self._path, "row", **self._words, split=record[0], record=record[1])
        self.rows.append(record)


class _Task:
    """A reader of a task, as far as it is there."""

    _lives = itertools.count(1)

    def __init__(self, path: str, coordinator: SourceCoordinator[Any], source: Counted, subtask: int) -> None:
        self.subtask, self.life = subtask, f"life {next(self._lives)}"
        self.output = _Output(path, subtask, self.life)
        link: Any = coordinator.link(subtask)
        link.life, link.opened = self.life, False
        self.link = link
        self.input: SourceInput[Any] = SourceInput(self.link, source)
        self.ended = False

    def go_on(self) -> None:
        """Put out what is there; go when it is through."""
        if not self.ended and self.input.emit_next(self.output) is InputStatus.END_OF_INPUT:
            self.ended = True
            self.input.close()

    def take_rows(self) -> list[tuple[int, int]]:
        """Take the rows that it has put out since the last time."""
        rows, self.output.rows = self.output.rows, []
        return rows


class TaskRun:
    """Tasks that read a source, as the seed says. `run` runs them to their end."""

    def __init__(self, seed: int, path: Path) -> None:
        self.name = f"seed {seed}"
        self.path = str(path)
        self.dice = dice = random.Random(seed)
        self.source = Counted(dice.randint(1, 8), dice.randint(1, 5), piece=dice.randint(1, 3))
        self.most = dice.randint(1, 3)
        self.deaths, self.driver_deaths = dice.randint(0, 4), dice.choice([0, 0, 1, 2])
        self.committed: list[tuple[int, int]] = []
        self.kept: Any = None
        # Rows that a checkpoint has behind it, and that are not committed yet, by reader.
        self.rows: dict[int, list[tuple[int, int]]] = {}
        self.parts: dict[int, Any] = {}
        self.dead: set[int] = set()

    def say(self, what: str, **words: Any) -> None:
        """Record how the run goes on."""
        append(self.path, what, **words)

    def run(self, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Run the tasks until all is committed, and check that each row is, once."""
        source = self.source
        words = {"splits": source.splits, "length": source.length, "readers": self.most}
        self.say("plan", delivery="pushed", **words)
        with recording(self.path):
            self._start(self.most)
            deadline = time.monotonic() + timeout_s
            try:
                while not self._is_done():
                    assert time.monotonic() < deadline, self.name
                    self._step()
            finally:
                self._stop()
        rows = itertools.product(range(1, source.splits + 1), range(1, source.length + 1))
        assert sorted(self.committed) == [*rows], self.name

    def _start(self, readers: int) -> None:
        self.coordinator = SourceCoordinator(self.source, readers, checkpoint=self.kept).start()
        self.tasks = [self._task(subtask) for subtask in range(readers)]
        self.rows, self.parts, self.dead = {}, {}, set()

    def _task(self, subtask: int) -> _Task:
        return _Task(self.path, self.coordinator, self.source, subtask)

    def _stop(self) -> None:
        self.coordinator.close()
        for task in self.tasks:
            task.input.close()

    def _is_done(self) -> bool:
        is_over = not self.dead and all(task.ended for task in self.tasks)
        return is_over and not (self.parts or any(task.output.rows for task in self.tasks))

    def _step(self) -> None:
        dice = self.dice
        roll = dice.random()
        task = dice.choice(self.tasks)
        if roll < 0.02 and self.driver_deaths:
            self.driver_deaths -= 1
            self.say("driver dies")
            self._stop()
            readers = dice.randint(1, self.most)
            self.say("restored", readers=readers, known=0 if self.kept is None else self._known())
            self._start(readers)
        elif roll < 0.06 and self.deaths and task.subtask not in self.dead:
            self.deaths -= 1
            self._dies(task)
        elif roll < 0.2 and self.dead:
            subtask = dice.choice(sorted(self.dead))
            self.dead.discard(subtask)
            self.tasks[subtask] = self._task(subtask)
        elif roll < 0.4:
            self._take_part(task)
        elif task.subtask not in self.dead:
            task.go_on()
        if roll > 0.95:
            time.sleep(0.001)

    def _known(self) -> int:
        known: int = self.kept["enumerator"]["checkpoint"]
        return known

    def _dies(self, task: _Task) -> None:
        """It is away, or another one in its place before anybody has noticed."""
        if task.ended or self.dice.random() < 0.3:
            # One that has gone is started again, as its output is not committed.
            self.tasks[task.subtask] = self._task(task.subtask)
            self.tasks[task.subtask].go_on()
        else:
            self.dead.add(task.subtask)
            task.input.close()
        # Its output since the last checkpoint is gone with it, and so is its part of the next.
        self.rows.pop(task.subtask, None)
        self.parts.pop(task.subtask, None)

    def _take_part(self, task: _Task) -> None:
        """A reader gives its part of a checkpoint, or, if all have, the checkpoint is put together."""
        is_there = task.subtask not in self.dead and task.link.opened and not task.ended
        if is_there and task.subtask not in self.parts:
            state = task.input.snapshot_state()
            splits = [
                [each["split_id"], each["start"] + state["skip"].get(each["split_id"], 0)]
                for each in state["splits"]
            ]
            self.say("part", **_place(task), taken_up=state["taken_up"], splits=splits)
            self.parts[task.subtask] = state
            self.rows[task.subtask] = task.take_rows()
        missing = [each for each in self.tasks if each.subtask not in self.parts]
        if any(each.subtask not in self.dead and not each.ended for each in missing):
            return
        for each in missing:
            if each.ended:
                self.rows[each.subtask] = each.take_rows()
        rows, self.rows = self.rows, {}
        checkpoint = json.loads(json.dumps(self.coordinator.snapshot(self.parts)))
        self.parts = {}
        alive = {task.life for task in self.tasks}
        for _ in range(self.dice.randint(0, 8)):
            # They go on, and die, while it is stored.
            other = self.dice.choice(self.tasks)
            if other.subtask in self.dead:
                continue
            if self.deaths and self.dice.random() < 0.1:
                self.deaths -= 1
                self._dies(other)
            else:
                other.go_on()
        try:
            self.coordinator.complete(checkpoint)
        except ValueError:
            # It was given up, as a reader has died.
            assert self.dead or alive != {task.life for task in self.tasks}, self.name
            for each in self.tasks:
                if each.life in alive and each.subtask not in self.dead:
                    each.output.rows[:0] = rows.get(each.subtask, [])
            return
        self.kept = checkpoint
        self.committed += itertools.chain.from_iterable(rows.values())


def _place(task: _Task) -> dict[str, Any]:
    return {"subtask": task.subtask, "life": task.life}


def make_run(seed: int, folder: Path, timeout_s: float = RUN_TIMEOUT_S) -> Path:
    """Have tasks read as the seed says; where their record is."""
    path = folder / f"{seed}.trace"
    path.unlink(missing_ok=True)
    TaskRun(seed, path).run(timeout_s)
    return path


def main(words: Sequence[str]) -> int:
    """Run `python -m spec.source_runs`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec.source_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="to make")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER", help="for what is recorded")
    options = parser.parse_args(words)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pillarbox-runs-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [make_run(seed, folder) for seed in range(options.seed, options.seed + options.runs)]
        print(f"{options.runs} runs made in {time.monotonic() - began:.0f} s")
        return source_trace.main([str(path) for path in paths])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
