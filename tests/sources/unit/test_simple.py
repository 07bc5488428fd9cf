"""A source of two methods: what it is without being told."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pillarbox.sources import SimpleSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import OffsetSplit, Split
from pillarbox.testing import SourceHarness

pa = pytest.importorskip("pyarrow")


@dataclass(frozen=True)
class Letters(SimpleSource[OffsetSplit]):
    """The letters of words, which a test may make longer."""

    words: tuple[str, ...] = ("hello", "world")
    discovery_interval: float | None = None
    poll_interval: float = 0.01
    wide: bool = False
    schema = (("word", "string"), ("at", "int64"))

    def list_splits(self) -> Iterable[OffsetSplit]:
        bounded = self.discovery_interval is None
        return [OffsetSplit(word, 0, len(word) if bounded else None) for word in LONGER]

    def read(self, split: OffsetSplit) -> Iterator[tuple[Any, Any]]:
        stop = self.end(split) if split.stop is None else split.stop
        for at in range(split.start, stop, 2):
            behind = min(at + 2, stop)
            yield [(split.split_id, place) for place in range(at, behind)], behind

    def end(self, split: OffsetSplit) -> int:
        return LONGER[split.split_id]


@dataclass(frozen=True)
class Page(Split):
    token: str | None = "first"


LONGER = {"hello": 5, "world": 5}
ROWS = sorted((word, at) for word in LONGER for at in range(5))


def test_its_rows_come_once_and_from_a_snapshot_at_any_place() -> None:
    for count in range(11):
        with SourceHarness(Letters(), readers=2) as harness:
            rows = harness.read(count)
            snapshot = harness.snapshot()
        with SourceHarness(Letters(), snapshot=snapshot) as harness:
            assert sorted(rows + harness.read_all()) == ROWS


def test_with_an_interval_it_has_no_end_and_reads_on_what_comes() -> None:
    assert Letters().boundedness is Boundedness.BOUNDED
    source = Letters(discovery_interval=0.01)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    LONGER["new"] = 1
    try:
        with SourceHarness(source) as harness:
            assert sorted(harness.read(11)) == sorted([*ROWS, ("new", 0)])
            LONGER["new"] = 2
            LONGER["late"] = 1
            assert sorted(harness.read(2)) == [("late", 0), ("new", 1)]
    finally:
        del LONGER["new"], LONGER["late"]


@pytest.mark.parametrize("interval", [None, 1000.0])
def test_a_micro_batch_has_at_most_the_rows_of_its_limit(interval: float | None) -> None:
    with SourceHarness(Letters(discovery_interval=interval)) as harness:
        rows = []
        while batch := harness.micro_batch(ReadLimit(rows=3)):
            assert len(batch) <= 3
            rows += batch
    assert sorted(rows) == ROWS


def test_without_an_end_it_says_that_it_cannot_be_cut_into_micro_batches() -> None:
    class Endless(Letters):
        end = SimpleSource.end

    with pytest.raises(NotImplementedError, match=r"Endless has no `end`, so split 'x', which has no stop"):
        Endless().end(OffsetSplit("x"))


class Behind(Letters):
    """Its end is where a replica is that may be behind."""

    ends: Iterator[int]

    def end(self, split: OffsetSplit) -> int:
        return next(type(self).ends)


@pytest.mark.contract
def test_an_end_that_goes_back_gives_no_row_twice() -> None:
    Behind.ends = iter([5, 5, 2, 3, 5, 5])
    with SourceHarness(Behind(discovery_interval=1000.0)) as harness:
        rows = [row for _ in range(3) for row in harness.micro_batch(ReadLimit())]
    assert sorted(rows) == ROWS


@pytest.mark.parametrize(
    ("limit", "word"), [(ReadLimit(rows=5), "max_rows"), (ReadLimit(nbytes=5), "max_bytes")]
)
def test_a_limit_that_its_splits_cannot_be_held_to_is_refused(limit: ReadLimit, word: str) -> None:
    class Pages(Letters):
        split_type = Page

        def list_splits(self) -> Iterable[Any]:
            return [Page("first"), Page("second")]

    with (
        SourceHarness(Pages()) as harness,
        pytest.raises(ValueError, match=rf"{word}: Page\(.*does not say how"),
    ):
        harness.micro_batch(limit)


def test_nanoseconds_are_cut_where_spark_has_microseconds() -> None:
    at = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    batch = pa.record_batch([at], names=["at"])

    class Nanoseconds(Letters):
        schema = pa.schema([("at", pa.timestamp("ns"))])

        def read(self, split: OffsetSplit) -> Iterator[tuple[Any, Any]]:
            yield batch, split.stop

    context = ReaderContext(schema=pa.schema([("at", pa.timestamp("us"))]))
    found = [
        each.records for each in read_splits(Nanoseconds().create_reader(context), [OffsetSplit("a", 0, 1)])
    ]
    assert [each["at"].cast("int64").to_pylist() for each in found if len(each)] == [[1_700_000_000_123_456]]


def test_a_row_has_the_columns_that_are_asked_for() -> None:
    def read(wanted: Any) -> list[Any]:
        reader = Letters().create_reader(ReaderContext(schema=wanted))
        return [
            row for fetched in read_splits(reader, [OffsetSplit("hello", 0, 2)]) for row in fetched.records
        ]

    assert read(pa.schema({"at": "int64"})) == [(0,), (1,)]
    assert read(pa.schema({"at": "int64", "word": "string"})) == [(0, "hello"), (1, "hello")]
    with pytest.raises(Exception, match=r"column 'x' is not one of the source \(columns: word, at\)"):
        read(pa.schema({"x": "int64"}))


@dataclass(frozen=True)
class Optioned(Letters):
    path: str = ""
    size: int | None = None
    ratio: float = 0.5


def test_its_fields_are_its_options() -> None:
    options = {"path": "x", "size": "7", "ratio": "2.5", "wide": "true", "discovery_interval": "3"}
    made = Optioned.from_options(options, None)
    assert made == Optioned(path="x", size=7, ratio=2.5, wide=True, discovery_interval=3.0)
    assert pickle.loads(pickle.dumps(made)) == made
    for name, value in (("size", "many"), ("wide", "perhaps"), ("nosuch", "1")):
        with pytest.raises(ValueError, match=f"option '{name}'"):
            Optioned.from_options({name: value}, None)


def test_a_generator_that_is_read_no_further_is_closed(tmp_path: Path) -> None:
    closed: list[str] = []

    class Table(Letters):
        def read(self, split: OffsetSplit) -> Iterator[tuple[Any, Any]]:
            with closing(sqlite3.connect(tmp_path / "db")):
                try:
                    yield from super().read(split)
                finally:
                    closed.append(split.split_id)

    with SourceHarness(Table(words=())) as harness:
        harness.read(1)
    assert closed
