"""The harness for connectors: it runs what is right to its end, and says what is wrong with what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pillarbox.sources import Fetched, SplitReader
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SourceEvent
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded
from pillarbox.testing import SourceHarness
from tests.sources.unit.number_source import (
    Numbers,
    NumbersEnumerator,
    Range,
    Script,
    by_split,
    expected,
    ranges,
)
from tests.threads import begun

ALL = pytest.mark.parametrize("model", list(Threading))


@ALL
@pytest.mark.parametrize("readers", [1, 3])
def test_a_bounded_source_is_read_to_its_end_by_any_number_of_readers(model: Threading, readers: int) -> None:
    splits = ranges(7, 25)
    with SourceHarness(Numbers(splits, threading=model), readers=readers) as harness:
        rows = harness.read_all()
        assert harness.ended
    assert by_split(rows) == expected(splits)
    assert begun("pillarbox-fetch") == []


@pytest.mark.contract
@ALL
def test_a_snapshot_goes_on_with_another_number_of_readers(model: Threading) -> None:
    splits = ranges(7, 25)
    source = Numbers(splits, threading=model)
    rows: list[Any] = []
    snapshot = None
    for readers, part in ((1, 40), (3, 60), (2, 10_000)):
        with SourceHarness(source, readers=readers, snapshot=snapshot) as harness:
            rows += harness.read(part)
            harness.restart_reader(readers - 1)
            snapshot = harness.snapshot()
            assert json.loads(json.dumps(snapshot)) == snapshot
    with SourceHarness(source, snapshot=snapshot) as harness:
        rows += harness.read_all()
    assert by_split(rows) == expected(splits)


def test_endless_splits_are_all_read_at_the_same_time() -> None:
    splits = [Range("a"), Range("b"), Range("c")]
    with SourceHarness(Numbers(splits, threading=Threading.MANY_SPLITS), readers=2) as harness:
        harness.read_until(lambda: len(by_split(harness.rows)) == 3)
        with pytest.raises(ValueError, match="the source is unbounded"):
            harness.read_all()
        assert not harness.ended


def test_new_splits_are_found_while_it_reads() -> None:
    splits = ranges(2, 10)
    source = Numbers(splits, interval=0.001)
    with SourceHarness(source) as harness:
        assert len(harness.read(20)) == 20
        source.splits.append(Range("late", 0, 10))
        assert by_split(harness.read(10)) == {"late": [*range(10)]}


def test_a_wait_for_rows_that_do_not_come_ends() -> None:
    script = Script()
    script.block()
    with SourceHarness(Numbers([Range("s")], script=script), timeout=0.05) as harness:
        with pytest.raises(TimeoutError, match="0 rows in 0.05 s"):
            harness.read(1)
        script.release()


def test_micro_batches_keep_to_the_limit_and_can_be_read_again() -> None:
    splits = ranges(3, 25)
    with SourceHarness(Numbers(splits)) as harness:
        pieces = harness.plan(ReadLimit(rows=30))
        assert [(piece.split_id, piece.start, piece.stop) for piece in pieces] == [
            ("s0", 0, 25),
            ("s1", 0, 5),
        ]
        assert harness.read_split(pieces[1]) == harness.read_split(pieces[1])
        snapshot = harness.snapshot()
        rest = harness.micro_batch()
        assert harness.micro_batch() == []
    with SourceHarness(Numbers(splits), snapshot=snapshot) as harness:
        assert harness.micro_batch() == rest
    assert by_split(rest) == {"s1": [*range(5, 25)], "s2": [*range(25)]}


def test_a_split_that_the_enumerator_lets_go_of_is_in_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def let_go(enumerator: NumbersEnumerator, splits: Sequence[Range]) -> list[str]:
        asked.append([split.split_id for split in splits])
        return ["gone"] if "gone" in asked[-1] else []

    monkeypatch.setattr(NumbersEnumerator, "let_go", let_go)
    with SourceHarness(Numbers([Range("gone"), Range("here")])) as harness:
        # What is read in a micro-batch is not asked about.
        assert [piece.split_id for piece in harness.plan(ReadLimit(rows=1000))] == ["gone"]
        assert [piece.split_id for piece in harness.plan(ReadLimit(rows=0))] == []
        assert asked == [["here"], ["gone", "here"]]
        assert len(harness.snapshot()["waiting"]) == 1
        assert {piece.split_id for piece in harness.plan()} == {"here"}


class Talking(Numbers):
    """The reader says what it begins with; the enumerator answers."""

    def __init__(self) -> None:
        super().__init__(ranges(1, 10))
        self.heard: list[SourceEvent] = []

    def restore_enumerator(self, context: EnumeratorContext[Range], checkpoint: int) -> NumbersEnumerator:
        class Answering(NumbersEnumerator):
            def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
                self.context.send(subtask, SourceEvent("answer", event.payload))

        return Answering(context, checkpoint, self)

    def create_reader(self, context: ReaderContext) -> SourceReader[Range]:
        source = self

        class Reader(FetchingReader[Range]):
            def start(self) -> None:
                super().start()
                assert self.context.send is not None
                self.context.send(SourceEvent("hello", (self.context.subtask, self.context.host)))

            def handle_source_event(self, event: SourceEvent) -> None:
                source.heard.append(event)

        return Reader(context, self.script.make)


def test_events_go_both_ways_as_json_has_them() -> None:
    source = Talking()
    with SourceHarness(source, host="h") as harness:
        harness.read_all()
        assert harness.events == [(0, SourceEvent("hello", [0, "h"]))]
    assert source.heard == [SourceEvent("answer", [0, "h"])]


def test_a_split_that_its_serializer_loses_is_told() -> None:
    class Bad(Numbers):
        def __init__(self) -> None:
            super().__init__([Range("s", (1, 2))])

    with (
        SourceHarness(Bad()) as harness,
        pytest.raises(AssertionError, match="comes back from its serializer"),
    ):
        harness.discover()


def test_more_splits_than_were_asked_for_are_told() -> None:
    class Greedy(NumbersEnumerator):
        def discover(self, checkpoint: int, most: int) -> tuple[Sequence[Range], int]:
            return ranges(most + 1, 1), 1

    class Source(Numbers):
        def restore_enumerator(self, context: EnumeratorContext[Range], checkpoint: int) -> NumbersEnumerator:
            return Greedy(context, checkpoint, self)

    with (
        SourceHarness(Source([])) as harness,
        pytest.raises(AssertionError, match="at most 2 splits and gave 3"),
    ):
        harness.discover(2)


def test_arrow_rows_are_tuples() -> None:
    class Reader(SplitReader[Range]):
        def fetch(self) -> Sequence[Fetched]:
            return [
                Fetched("s", pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]}), None, finished=True)
            ]

        def handle_splits_changes(self, change: SplitsAdded[Range]) -> None:
            pass

    class Source(Numbers):
        def create_reader(self, context: ReaderContext) -> SourceReader[Range]:
            return FetchingReader(context, Reader)

    with SourceHarness(Source([Range("s", 0, 2)])) as harness:
        assert harness.read_all() == [(1, "x"), (2, None)]


def test_a_bad_number_of_readers_is_named() -> None:
    with pytest.raises(ValueError, match="readers=0: must be an int of at least 1"):
        SourceHarness(Numbers([]), readers=0)
