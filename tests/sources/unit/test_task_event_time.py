"""A source as the input of a task: watermarks of splits, idleness, what is reported to the coordinator."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pillarbox.sources import Fetched, SourceInput, WatermarkStrategy
from pillarbox.sources.enumerator import EventTimeLimit, state_from_json
from pillarbox.task.protocols import Idleness, Watermark
from pillarbox.testing import FakeClock
from tests.sources.unit.linked import Batches, Link, Running, With
from tests.sources.unit.number_source import Numbers, Range


def timed(split_id: str, *times: float, finished: bool = False) -> Fetched:
    return Fetched(split_id, [(split_id, at) for at in times], len(times), finished)


def with_times(link: Link, reader: Batches, clock: FakeClock, **fields: Any) -> Running:
    strategy = WatermarkStrategy(lambda row: row[1], **fields)
    running = Running(SourceInput(link, With(reader), watermarks=strategy, clock=clock))
    running.task.run_step()
    return running


def test_the_lowest_watermark_is_emitted_behind_the_rows_that_it_is_of() -> None:
    reader, link = Batches(), Link([Range("a"), Range("b")], answer=False)
    running = with_times(link, reader, FakeClock(), out_of_order=1.0)
    reader.put(timed("a", 5.0, 9.0), timed("b", 3.0), timed("b", 2.0), timed("b", 20.0), timed("a", 30.0))
    running.rows(6)
    running.until(lambda: len(running.marks) >= 3)
    assert running.output.elements == [
        ("a", 5.0),
        ("a", 9.0),
        ("b", 3.0),
        Watermark(2.0),
        ("b", 2.0),
        ("b", 20.0),
        Watermark(8.0),
        ("a", 30.0),
        Watermark(19.0),
    ]
    running.task.close()


def test_idleness_is_said_when_all_are_idle_and_over_with_the_next_row() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock, idle_after=10.0)
    reader.put(timed("a", 5.0))
    running.rows(1)
    running.settle()
    clock.advance(10.0)
    running.until(lambda: Idleness(True) in running.output.elements)
    reader.put(timed("b", 7.0))
    running.until(lambda: Watermark(7.0) in running.output.elements)
    assert running.output.elements == [
        ("a", 5.0),
        Idleness(True),
        Idleness(False),
        ("b", 7.0),
        Watermark(7.0),
    ]
    running.task.close()


def test_one_idle_split_lets_the_watermark_of_the_others_through() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock, idle_after=10.0)
    # It has looked, and waits.
    running.settle()
    clock.advance(9.0)
    reader.put(timed("a", 5.0))
    running.rows(1)
    running.settle()
    assert running.marks == []
    clock.advance(1.0)
    running.until(lambda: bool(running.marks))
    assert running.marks == [Watermark(5.0)]
    running.task.close()


def test_a_reader_of_an_endless_source_without_splits_is_idle() -> None:
    reader, link = Batches(), Link(answer=False)
    running = with_times(link, reader, FakeClock())
    running.until(lambda: running.marks == [Idleness(True)])
    link.give(Range("a"))
    running.until(lambda: running.marks == [Idleness(True), Idleness(False)])
    running.task.close()


def test_the_end_says_the_last_watermark_once() -> None:
    splits = [Range("s", 0, 20)]
    strategy = WatermarkStrategy(lambda row: float(row[1]))
    running = Running(SourceInput(Link(splits), Numbers(splits), watermarks=strategy))
    running.task.run()
    # The last rows need no watermark of their own.
    assert running.marks == [Watermark(9.0), Watermark(math.inf)]


def test_what_has_changed_is_reported_now_and_then_and_the_last_change_in_any_case() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock, max_drift=60.0, idle_after=5.0)
    reader.put(timed("a", 1.0), timed("a", 2.0), timed("b", 3.0))
    running.rows(3)
    running.settle()
    assert link.reports == [{"a": 1.0}]
    # Nothing comes any more: the clock alone has the rest said.
    clock.advance(0.1)
    running.until(lambda: len(link.reports) == 2)
    assert link.reports[1] == {"a": 2.0, "b": 3.0}
    clock.advance(5.0)
    running.until(lambda: len(link.reports) == 3)
    assert link.reports[2] == {"a": None, "b": None}
    running.task.close()


def test_without_a_limit_of_drift_nothing_is_reported() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock)
    reader.put(timed("a", 1.0))
    running.rows(1)
    clock.advance(1.0)
    running.task.close()
    assert link.reports == []


@pytest.mark.contract
def test_nothing_beyond_the_limit_is_emitted_but_the_batch_that_passed_it() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock, max_drift=60.0, idle_after=5.0)
    link.tell(EventTimeLimit(10.0))
    reader.put(
        timed("a", 1.0), timed("a", 20.0), timed("a", 21.0), timed("b", 2.0), timed("a", finished=True)
    )
    running.rows(3)
    running.settle()
    assert running.output.records == [("a", 1.0), ("a", 20.0), ("b", 2.0)]
    # It stands still, so that is said at once.
    assert link.reports == [{"a": 1.0}, {"a": 20.0, "b": 2.0}]
    # What is set aside is not behind a checkpoint, and its split is not idle.
    state = state_from_json(running.input.snapshot_state(), Numbers([]).split_serializer)
    assert [split.split_id for split in state.splits] == ["a", "b"]
    clock.advance(5.0)
    running.until(lambda: link.reports[-1] == {"b": None})
    assert link.ended == []
    # It may rise and is still too low; then it is not.
    link.tell(EventTimeLimit(19.0))
    running.settle()
    assert len(running.output.records) == 3
    link.tell(EventTimeLimit(20.0))
    running.rows(4)
    running.settle()
    assert running.output.records[3:] == [("a", 21.0)]
    assert link.ended == []
    link.tell(EventTimeLimit(math.inf))
    running.until(lambda: link.ended == ["a"])
    assert [order for order in reader.orders if order[0] != "add"] == 2 * [(["a"], []), ([], ["a"])]
    running.task.close()


def test_an_idle_split_that_wakes_beyond_the_limit_gives_one_batch() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock, max_drift=60.0, idle_after=5.0)
    reader.put(timed("a", 20.0), timed("b", 3.0))
    running.rows(2)
    running.settle()
    clock.advance(5.0)
    running.until(lambda: Idleness(True) in running.marks)
    link.tell(EventTimeLimit(10.0))
    reader.put(timed("a", 21.0), timed("a", 22.0), timed("b", 500.0))
    running.rows(4)
    running.settle()
    # 500 would pass the row that is held.
    assert running.output.records[2:] == [("a", 21.0), ("b", 500.0)]
    assert running.marks == [Watermark(3.0), Idleness(True), Idleness(False), Watermark(21.0)]
    assert link.reports[-1] == {"a": 21.0, "b": 500.0}
    running.task.close()
