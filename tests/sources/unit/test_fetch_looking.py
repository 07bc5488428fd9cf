"""The time that a client has looked for the rows of a split: what makes it idle, and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from pillarbox.sources import Fetched, SourceInput, WatermarkStrategy
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext
from pillarbox.task.protocols import Idleness, Watermark
from pillarbox.testing import FakeClock
from tests.sources.unit.linked import Batches, Link, Running, With
from tests.sources.unit.number_source import NumbersReader, Range, Script, next_batch

ONE, MANY, EACH = Threading


@pytest.fixture
def clock() -> FakeClock:
    """The clock of fetchers."""
    return FakeClock()


@contextmanager
def reading(script: Script, model: Threading, *splits: Range, **options: Any) -> Iterator[Any]:
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(4), script.make, threading=model, **options)
    reader.start()
    try:
        reader.add_splits(splits)
        yield reader
    finally:
        script.release()
        reader.close()


@pytest.mark.parametrize("model", [MANY, EACH])
def test_the_time_in_which_a_client_waits_for_rows_counts_for_each_of_its_splits(
    clock: FakeClock, model: Threading
) -> None:
    script = Script()
    script.block()
    with reading(script, model, Range("a"), Range("b"), clock=clock) as reader:
        script.wait_for(lambda: script.in_fetch == (1 if model is MANY else 2))
        assert reader.looked("a") == reader.looked("b") == 0.0
        clock.advance(5.0)
        assert reader.looked("a") == reader.looked("b") == 5.0
        assert reader.looked("unknown") == 0.0


def test_rows_that_were_fetched_and_wait_are_found(clock: FakeClock) -> None:
    script = Script()
    script.block()
    with reading(script, MANY, Range("a"), Range("b"), max_batches=1, clock=clock) as reader:
        script.wait_for(lambda: script.in_fetch == 1)
        clock.advance(7.0)
        script.release()
        # Both came with one fetch: that one of them was polled says nothing of the other.
        assert next_batch(reader).split_id == "a"
        assert reader.looked("a") == reader.looked("b") == 0.0
        assert next_batch(reader).split_id == "b"
        assert reader.looked("a") == reader.looked("b") == 0.0


class Uneven(NumbersReader):
    """Of `dry` it never finds anything."""

    def fetch(self) -> Sequence[Fetched]:
        return [each for each in super().fetch() if each.split_id != "dry"]


def test_while_too_much_waits_for_the_task_nobody_looks(clock: FakeClock) -> None:
    script = Script()
    reader: FetchingReader[Range] = FetchingReader(
        ReaderContext(4), lambda: Uneven(script), threading=MANY, max_batches=1, clock=clock
    )
    reader.start()
    try:
        reader.add_splits([Range("full"), Range("dry")])
        script.wait_for(lambda: len(script.told("fetch")) == 2)
        clock.advance(100.0)
        # What was put before, and what waited for room.
        for _ in range(2):
            next_batch(reader)
            assert reader.looked("dry") == 0.0
    finally:
        reader.close()


def test_a_split_that_gives_all_the_time_does_not_hide_that_another_has_nothing(clock: FakeClock) -> None:
    script = Script()

    class Slow(Uneven):
        def fetch(self) -> Sequence[Fetched]:
            clock.advance(1.0)
            return super().fetch()

    reader: FetchingReader[Range] = FetchingReader(
        ReaderContext(4), lambda: Slow(script), threading=MANY, clock=clock
    )
    reader.start()
    try:
        reader.add_splits([Range("full"), Range("dry")])
        for polled in range(1, 20):
            next_batch(reader)
            assert reader.looked("dry") >= polled
            assert reader.looked("full") <= 5.0
    finally:
        reader.close()


def test_one_at_a_time_counts_for_the_split_whose_turn_it_is_only(clock: FakeClock) -> None:
    script = Script()
    script.block()
    with reading(script, ONE, Range("first"), Range("second"), clock=clock) as reader:
        script.wait_for(lambda: script.in_fetch == 1)
        clock.advance(5.0)
        assert reader.looked("first") == 5.0
        assert reader.looked("second") == 0.0


def test_what_is_resumed_is_looked_for_from_then_on(clock: FakeClock) -> None:
    script = Script()
    script.block()
    with reading(script, MANY, Range("a"), Range("b"), clock=clock) as reader:
        script.wait_for(lambda: script.in_fetch == 1)
        reader.pause_or_resume_splits(["a"], [])
        script.wait_for(lambda: script.told("paused") == [(("a",), ())] and script.in_fetch == 1)
        clock.advance(50.0)
        assert (reader.looked("a"), reader.looked("b")) == (0.0, 50.0)
        fetches = len(script.told("fetch"))
        reader.pause_or_resume_splits([], ["a"])
        script.wait_for(lambda: len(script.told("fetch")) > fetches and script.in_fetch == 1)
        clock.advance(1.0)
        assert (reader.looked("a"), reader.looked("b")) == (1.0, 51.0)


# -- in a task -----------------------------------------------------------------------------------------


def timed(split_id: str, *times: float) -> Fetched:
    return Fetched(split_id, [(split_id, at) for at in times], len(times))


def late_rows(elements: list[Any]) -> list[Any]:
    """Rows behind a watermark that is above them."""
    late, watermark = [], 0.0
    for each in elements:
        if isinstance(each, Watermark):
            watermark = each.timestamp
        elif isinstance(each, tuple) and each[1] < watermark:
            late.append(each)
    return late


@pytest.mark.parametrize("model", [MANY, EACH])
def test_a_split_whose_rows_wait_for_a_task_that_is_late_is_not_idle(model: Threading) -> None:
    clock, script = FakeClock(), Script(batch=1)
    source = With(FetchingReader(ReaderContext(4), script.make, threading=model))
    strategy = WatermarkStrategy(lambda row: float(row[1]), idle_after=100.0)
    link = Link([Range("ahead", 50), Range("behind", 2)], answer=False)
    running = Running(SourceInput(link, source, watermarks=strategy, clock=clock))
    for _ in range(20):
        running.rows(len(running.output.records) + 1)
        # Emission has taken so long.
        clock.advance(1_000.0)
    assert late_rows(running.output.elements) == []
    assert Idleness(True) not in running.output.elements
    running.task.close()


def test_a_reader_without_fetchers_is_not_idle_either_while_its_rows_wait() -> None:
    clock, reader = FakeClock(), Batches()
    link = Link([Range("ahead"), Range("behind")], answer=False)
    strategy = WatermarkStrategy(lambda row: row[1], idle_after=10.0)
    running = Running(SourceInput(link, With(reader), watermarks=strategy, clock=clock))
    running.task.run_step()
    running.settle()
    reader.put(timed("ahead", 50.0), timed("behind", 2.0))
    # Mail has taken so long.
    clock.advance(11.0)
    running.rows(2)
    running.settle()
    assert running.output.elements == [("ahead", 50.0), ("behind", 2.0), Watermark(2.0)]
    running.task.close()
