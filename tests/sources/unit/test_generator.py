"""The generator: the same rows whenever they are read, at its rate, with its latency and event times."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.sources.connectors import generator
from pillarbox.sources.connectors.generator import GeneratorSource, GeneratorSplit
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.reader import ReaderContext, SplitsAdded, read_splits
from pillarbox.sources.source import Boundedness
from pillarbox.testing import SourceHarness
from pillarbox.testing.source_harness import rows_of
from tests.search import examples


class Clock:
    """The time of the generator's module: who sleeps moves it. `sleeps`: how long each did, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(generator, "time", clock)
    return clock


def seconds(row: Any) -> float:
    stamp: float = row[2].timestamp()
    return stamp


def test_each_id_comes_once_whatever_the_splits() -> None:
    for rows, splits in ((0, 1), (1, 3), (10, 3), (25_001, 2)):
        with SourceHarness(GeneratorSource(rows, splits=splits), readers=2) as harness:
            while harness.discover():
                continue
            found = harness.read_all()
        assert sorted(row[0] for row in found) == list(range(rows))
        assert all(row[1] == row[0] % splits for row in found)
        assert all(0.0 <= row[3] < 1.0 for row in found)


@pytest.mark.contract("Rows of the generator are the same wherever reading begins.")
@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 40), st.integers(1, 60), st.integers(1, 17), st.floats(0, 50))
def test_rows_are_the_same_wherever_reading_begins(
    start: int, count: int, batch_rows: int, disorder: float
) -> None:
    def made(start: int, stop: int, batch_rows: int) -> list[Any]:
        source = GeneratorSource(splits=3, batch_rows=batch_rows, disorder=disorder, seed=5)
        split = GeneratorSplit("1", start, stop, number=1)
        fetched = read_splits(source.create_reader(ReaderContext()), [split])
        return [row for each in fetched for row in rows_of(each.records)]

    assert made(0, start + count, 1000)[start:] == made(start, start + count, batch_rows)


def test_a_snapshot_loses_no_row_and_repeats_none() -> None:
    source = GeneratorSource(1000, splits=4, batch_rows=7)
    with SourceHarness(source, readers=2) as harness:
        rows = harness.read(300)
        snapshot = harness.snapshot()
    with SourceHarness(source, readers=3, snapshot=snapshot) as harness:
        rows += harness.read_all()
    assert sorted(row[0] for row in rows) == list(range(1000))


def test_values_depend_on_the_seed_and_look_random() -> None:
    def values(seed: int) -> list[float]:
        with SourceHarness(GeneratorSource(2000, seed=seed)) as harness:
            return [row[3] for row in harness.read_all()]

    first = values(1)
    assert first == values(1) != values(2)
    assert len(set(first)) == 2000 and 0.48 < sum(first) / 2000 < 0.52


def test_event_times_are_as_far_apart_as_was_asked_for() -> None:
    source = GeneratorSource(40, splits=2, first_event=1000.0, interval=0.5, skew=60.0)
    with SourceHarness(source) as harness:
        for row in harness.read_all():
            assert seconds(row) == 1000.0 + row[0] // 2 * 0.5 + row[1] * 60.0


def test_disorder_makes_rows_earlier_and_not_by_more() -> None:
    with SourceHarness(GeneratorSource(500, disorder=20.0)) as harness:
        early = [row[0] - seconds(row) for row in harness.read_all()]
    assert min(early) >= 0.0 and 15.0 < max(early) <= 20.0


def test_rows_come_at_the_rate_and_not_before(clock: Clock) -> None:
    with SourceHarness(GeneratorSource(splits=3, rate=60.0)) as harness:
        began = min(split.began for split in harness.discover())
        while len(harness.rows) < 15:
            harness.step()
            assert len(harness.rows) <= (clock.now - began) * 60.0


def test_micro_batches_have_what_is_there_at_their_time(clock: Clock) -> None:
    source = GeneratorSource(splits=2, rate=1000.0)
    with SourceHarness(source) as harness:
        split = GeneratorSplit("0", 0, number=0, began=clock.now - 10.0)
        first = harness.enumerator.advance(split, ReadLimit())
        assert first is not None and first.stop == 5000
        limited = harness.enumerator.advance(split, ReadLimit(rows=10))
        assert limited is not None and limited.rows == 10
        late = GeneratorSplit("0", 0, number=0, began=clock.now + 1000.0)
        assert harness.enumerator.advance(late, ReadLimit()) is None


def test_micro_batches_read_each_row_once() -> None:
    with SourceHarness(GeneratorSource(100, splits=3)) as harness:
        batches = []
        while batch := harness.micro_batch(ReadLimit(rows=17)):
            assert len(batch) <= 17
            batches += batch
    assert sorted(row[0] for row in batches) == list(range(100))


def test_each_fetch_takes_the_latency(clock: Clock) -> None:
    with SourceHarness(GeneratorSource(30, batch_rows=10, latency=0.05)) as harness:
        harness.read_all()
    assert sum(clock.sleeps) == pytest.approx(0.15)


def test_a_wait_for_rows_looks_for_a_wake_up_again_and_again(clock: Clock) -> None:
    reader = GeneratorSource(rate=0.001, latency=100.0).create_reader(ReaderContext()).make_split_reader()
    with closing(reader):
        reader.handle_splits_changes(SplitsAdded((GeneratorSplit("0", began=clock.now),)))
        # Its reader is told to end between two fetches.
        for _ in range(100):
            assert list(reader.fetch()) == []
    assert len(clock.sleeps) == 100 and max(clock.sleeps) <= generator.LOOK_INTERVAL_S


def test_only_the_columns_that_are_wanted_are_made() -> None:
    source = GeneratorSource(5)
    wanted = pa.schema([("value", pa.float32()), ("id", pa.int32())])
    splits = [GeneratorSplit("0", 0, 5)]
    fetched, _ = read_splits(source.create_reader(ReaderContext(schema=wanted)), splits)
    assert fetched.records.schema == wanted


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rows": -1}, "rows=-1"),
        ({"splits": 0}, "splits=0"),
        ({"batch_rows": 0}, "batch_rows=0"),
        ({"rate": 0.0}, "rate=0.0: must be a finite number of rows a second above 0"),
        ({"rate": "5"}, "rate='5': must be a number of rows a second"),
        ({"rate": float("inf")}, "rate=inf: must be a finite number of rows a second above 0"),
        ({"first_event": float("nan")}, "first_event=nan: must be a finite number"),
        ({"seed": "x"}, "seed='x': must be an int, not str"),
        ({"latency": -1.0}, "latency=-1.0"),
    ],
)
def test_bad_arguments_are_refused_at_once_and_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        GeneratorSource(**arguments)


def test_options_make_the_same_source() -> None:
    options = {"rows": "10", "splits": "3", "rate": "2.5", "skew": "-4", "seed": "9"}
    assert GeneratorSource.from_options(options, None) == GeneratorSource(
        10, splits=3, rate=2.5, skew=-4.0, seed=9
    )
    assert GeneratorSource.from_options({}, None).boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    for option, value in (("nosuch", "1"), ("rows", "many")):
        with pytest.raises(ValueError, match=option):
            GeneratorSource.from_options({option: value}, None)
