"""The cost of reading a batch when fetching costs nothing.

A round reads so many batches, the threads of its fetchers started and ended included. The loop by hand,
which calls the split reader in the thread that reads, is the least that the batches cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from bench.conftest import Chunks
from pillarbox.sources import Fetched, Source, SourceInput, Split, SplitReader, WatermarkStrategy
from pillarbox.sources.enumerator import AddSplits, Message, NoMoreSplits
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded, read_splits
from pillarbox.sources.source import Boundedness
from pillarbox.task import Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier

BATCHES = 1_000
ROWS = 100
ROUNDS = 10
ARROW = pa.RecordBatch.from_pydict({"at": pa.array(range(ROWS), pa.int64()), "text": ["some text"] * ROWS})
TUPLES = [(at, "some text") for at in range(ROWS)]
KINDS = pytest.mark.parametrize("records", [ARROW, TUPLES], ids=["arrow", "tuples"])


class Same(SplitReader[Split]):
    """Gives the same batch until the split is at its end."""

    def __init__(self, records: Any) -> None:
        self.records = records
        self.splits: dict[str, Split] = {}

    def handle_splits_changes(self, change: SplitsAdded[Split]) -> None:
        if isinstance(change, SplitsAdded):
            self.splits.update((split.split_id, split) for split in change.splits)

    def fetch(self) -> Sequence[Fetched]:
        return [self.read(split) for split in list(self.splits.values())]

    def read(self, split: Split) -> Fetched:
        position = split.start + 1
        finished = position == split.stop
        if finished:
            del self.splits[split.split_id]
        else:
            self.splits[split.split_id] = split.starting_at(position)
        return Fetched(split.split_id, self.records, position, finished)


def by_hand(records: Any) -> None:
    """Calls the split reader in a loop."""
    reader = Same(records)
    reader.handle_splits_changes(SplitsAdded((Split("s", 0, BATCHES),)))
    batches = 0
    while reader.splits:
        batches += len(reader.fetch())
    assert batches == BATCHES


@pytest.mark.benchmark(group="sources: a batch of 100 rows")
@KINDS
def test_split_reader_by_hand(chunks: Chunks, records: Any) -> None:
    chunks(lambda: by_hand(records), BATCHES, rounds=ROUNDS)


@pytest.mark.benchmark(group="sources: a batch of 100 rows")
@KINDS
@pytest.mark.parametrize("threading", list(Threading), ids=lambda each: each.name.lower())
def test_read_splits(chunks: Chunks, records: Any, threading: Threading) -> None:
    splits = [Split(f"s{number}", 0, BATCHES // 4) for number in range(4)]

    def run() -> None:
        reader = FetchingReader[Split](ReaderContext(), lambda: Same(records), threading=threading)
        assert sum(1 for _ in read_splits(reader, splits)) == BATCHES

    chunks(run, BATCHES, rounds=ROUNDS)


class SameSource(Source[Split, None]):
    """Has no enumerator: its link gives the split."""

    split_type = Split
    boundedness = Boundedness.BOUNDED

    def __init__(self, records: Any) -> None:
        self.records = records

    def create_enumerator(self, context: Any) -> Any:
        raise AssertionError("the link gives the split")

    def restore_enumerator(self, context: Any, checkpoint: None) -> Any:
        raise AssertionError("the link gives the split")

    def create_reader(self, context: ReaderContext) -> SourceReader[Split]:
        return FetchingReader(context, lambda: Same(self.records))

    def arrow_schema(self) -> pa.Schema:
        return ARROW.schema


class Link:
    """Gives one split, then no more."""

    def __init__(self, batches: int) -> None:
        self.messages: list[Message[Split]] = [AddSplits((Split("s", 0, batches),), 1, {}), NoMoreSplits()]

    def open(self, receive: Callable[[Message[Split]], None], state: Any = None) -> None:
        self.receive = receive

    def request_split(self) -> None:
        self.receive(self.messages.pop(0))

    def send(self, event: Any) -> None:
        pass

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        pass

    def finished(self, split_ids: Any) -> None:
        pass

    def close(self, done: bool = False) -> None:
        pass


class Pass(Operator):
    uid = "pass"

    def process(self, record: Any) -> None:
        self.output.collect(record)


class Count:
    """An output that counts."""

    is_available = True

    def __init__(self) -> None:
        self.records = 0

    def collect(self, record: Any) -> None:
        self.records += 1

    def emit_watermark(self, timestamp: float) -> None:
        pass

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        raise AssertionError("nobody asks for a checkpoint")

    def call_when_room(self, wake: Any) -> None:
        raise AssertionError("it is always available")


@pytest.mark.benchmark(group="sources: a batch of 100 rows in a task")
@KINDS
@pytest.mark.parametrize("timestamp", [None, "at"], ids=["plain", "event time"])
def test_source_input(chunks: Chunks, records: Any, timestamp: str | None) -> None:
    # Each tuple is an element of the task, an Arrow batch is one.
    elements = 1 if records is ARROW else ROWS
    batches = BATCHES // 10 if records is TUPLES else BATCHES
    watermarks = None if timestamp is None else WatermarkStrategy(timestamp, idle_after=60.0)

    def run() -> None:
        output = Count()
        source = SameSource(records)
        StreamTask(SourceInput(Link(batches), source, watermarks=watermarks), [Pass()], output).run()
        assert output.records == batches * elements

    chunks(run, batches, rounds=ROUNDS)
