"""Sources for tests: logs of numbers in a folder, and ranges of numbers.

`LogSource`: each file of a folder is a split; its numbers are what was appended, eight bytes each. Number `n`
of a file has the event time `starts[file] + n * steps[file]`. `RangeSource`: so many splits of so many rows.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pillarbox.sources import Fetched, SimpleSource, Source, Split, SplitEnumerator, SplitReader
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SourceEvent
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import OffsetSplit

GATED = 1_000_000
"""A number whose reading waits for the gate of its source: a folder, in which the file `open` must be."""

SCHEMA = pa.schema([("file", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def append(folder: Path, file: str, numbers: Sequence[int]) -> None:
    """Append numbers to a log, in one write."""
    folder.mkdir(exist_ok=True)
    handle = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, struct.pack(f"<{len(numbers)}q", *numbers))
    finally:
        os.close(handle)


@dataclass(frozen=True)
class LogSplit(Split):
    @property
    def rows(self) -> int | None:
        return None if self.stop is None else self.stop - (self.start or 0)


class LogEnumerator(SplitEnumerator[LogSplit, list[str]]):
    discovery_interval = 0.05

    def __init__(
        self, context: EnumeratorContext[LogSplit], source: LogSource, checkpoint: list[str]
    ) -> None:
        super().__init__(context, checkpoint)
        self.source = source

    def discover(self, checkpoint: list[str], most: int) -> tuple[Sequence[LogSplit], list[str]]:
        new = sorted({path.name for path in Path(self.source.folder).glob("*")} - set(checkpoint))[:most]
        return [self.split(name) for name in new], checkpoint + new

    def split(self, name: str) -> LogSplit:
        return LogSplit(name, 0, self.source.length(name) if self.source.bounded else None)

    def advance(self, split: LogSplit, limit: ReadLimit) -> LogSplit | None:
        end = self.source.length(split.split_id)
        if split.stop is not None:
            end = min(end, split.stop)
        stop = min(end, split.start + limit.rows) if limit.rows is not None else end
        return split.up_to(stop) if stop > split.start else None

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        if self.source.committed is not None:
            handle = os.open(self.source.committed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(handle, f"{sorted(positions.items())}\n".encode())
            os.close(handle)


class LogReader(SplitReader[LogSplit]):
    def __init__(self, source: LogSource) -> None:
        self.source = source
        self.splits: list[LogSplit] = []

    def handle_splits_changes(self, change: SplitsAdded[LogSplit]) -> None:
        assert isinstance(change, SplitsAdded)
        self.splits += change.splits

    def fetch(self) -> Sequence[Fetched]:
        split = self.splits.pop(0)
        with (Path(self.source.folder) / split.split_id).open("rb") as file:
            file.seek(8 * split.start)
            numbers = struct.unpack(
                f"<{split.stop - split.start}q", file.read(8 * (split.stop - split.start))
            )
        if self.source.gate is not None and GATED in numbers:
            gate = Path(self.source.gate)
            (gate / "reached").touch()
            wait_for((gate / "open").exists)
        start = self.source.starts.get(split.split_id, 0.0)
        step = self.source.steps.get(split.split_id, 1.0)
        at = [round((start + n * step) * 1e6) for n in range(split.start, split.stop)]
        columns = [
            pa.array([split.split_id] * len(numbers)),
            pa.array(numbers, pa.int64()),
            pa.array(at, SCHEMA.field("at").type),
        ]
        return [
            Fetched(
                split.split_id, pa.RecordBatch.from_arrays(columns, schema=SCHEMA), split.stop, finished=True
            )
        ]


@dataclass(frozen=True)
class LogSource(Source[LogSplit, list[str]]):
    folder: str
    bounded: bool = False
    starts: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    committed: str | None = None
    gate: str | None = None
    split_type = LogSplit

    def length(self, name: str) -> int:
        return (Path(self.folder) / name).stat().st_size // 8

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context: EnumeratorContext[LogSplit]) -> LogEnumerator:
        return LogEnumerator(context, self, [])

    def restore_enumerator(
        self, context: EnumeratorContext[LogSplit], checkpoint: list[str]
    ) -> LogEnumerator:
        return LogEnumerator(context, self, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[LogSplit]:
        return FetchingReader(context, lambda: LogReader(self))

    def arrow_schema(self) -> pa.Schema:
        return SCHEMA

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> LogSource:
        known = {"folder", "bounded", "password"}
        for name in options:
            if name not in known:
                raise ValueError(f"option {name!r} is unknown: must be one of {sorted(known)}")
        return cls(options["folder"], options.get("bounded") == "true")


class RangeEnumerator(SplitEnumerator[LogSplit, int]):
    def __init__(self, context: EnumeratorContext[LogSplit], source: RangeSource, checkpoint: int) -> None:
        super().__init__(context, checkpoint)
        self.source = source

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[LogSplit], int]:
        if self.source.broken:
            raise OSError("the list of ranges is not there")
        upto = min(self.source.splits, checkpoint + most)
        rows = self.source.rows
        return [LogSplit(f"r{at}", at * rows, (at + 1) * rows) for at in range(checkpoint, upto)], upto

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        self.context.send(subtask, SourceEvent("answer", f"heard {event.kind} from {event.payload}"))


class RangeReader(LogReader):
    def __init__(self, source: RangeSource, context: ReaderContext) -> None:
        self.source: Any = source
        self.context = context
        self.splits: list[LogSplit] = []
        self.answer = ""

    def fetch(self) -> Sequence[Fetched]:
        split = self.splits.pop(0)
        if self.source.talks:
            assert self.context.send is not None
            self.context.send(SourceEvent("hello", self.context.subtask))
            wait_for(lambda: self.answer)
        if split.split_id == self.source.slow:
            # Long enough for the others to be read.
            time.sleep(3)
        rows = [(self.answer or split.split_id, n) for n in range(split.start, split.stop)]
        return [Fetched(split.split_id, rows, split.stop, finished=True)]


class HearingRanges(FetchingReader[LogSplit]):
    def __init__(self, context: ReaderContext, reader: RangeReader) -> None:
        super().__init__(context, lambda: reader)
        self.reader = reader

    def handle_source_event(self, event: SourceEvent) -> None:
        self.reader.answer = event.payload


@dataclass(frozen=True)
class RangeSource(Source[LogSplit, int]):
    splits: int
    rows: int
    slow: str = ""
    talks: bool = False
    broken: bool = False
    split_type = LogSplit
    boundedness = Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[LogSplit]) -> RangeEnumerator:
        return RangeEnumerator(context, self, 0)

    def restore_enumerator(self, context: EnumeratorContext[LogSplit], checkpoint: int) -> RangeEnumerator:
        return RangeEnumerator(context, self, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[LogSplit]:
        reader = RangeReader(self, context)
        return HearingRanges(context, reader) if self.talks else FetchingReader(context, lambda: reader)

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([("file", pa.string()), ("n", pa.int64())])


def wait_for(said: Callable[[], Any]) -> None:
    while not said():
        time.sleep(0.005)


@dataclass(frozen=True)
class HoleSource(SimpleSource[OffsetSplit]):
    """A source that gives one row of each list, as records or as a batch of Arrow."""

    lists: tuple[tuple[int | None, ...], ...]
    text: bytes = b"a"
    form: str = "records"
    schema = (
        pa.field("v", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        pa.field("t", pa.string(), nullable=False),
    )

    def list_splits(self) -> list[OffsetSplit]:
        return [OffsetSplit("a", 0, 1)]

    def read(self, split: OffsetSplit) -> Iterator[Any]:
        text = pa.array([self.text] * len(self.lists), pa.binary()).view(pa.string())
        if self.form == "records":
            yield [([*each], self.text.decode()) for each in self.lists], 1
        else:
            values = pa.array([[*each] for each in self.lists], pa.list_(pa.int64()))
            yield pa.RecordBatch.from_arrays([values, text], ["v", "t"]), 1
