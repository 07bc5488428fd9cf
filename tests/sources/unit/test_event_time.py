"""Event time: the latest of a batch in every form it can have; watermarks of splits, idleness, the lowest."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.sources import Fetched, WatermarkStrategy
from pillarbox.sources.event_time import REPORT_INTERVAL_S, EventTimes, SplitWatermarks, seconds_of
from pillarbox.testing import FakeClock
from tests.sources.unit.linked import Batches

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def latest(records: Any, timestamp: Any = "at", columns: list[str] | None = None) -> float | None:
    return EventTimes(WatermarkStrategy(timestamp), columns).latest(Fetched("s", records, 0))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_arrow_timestamps_of_every_unit_are_seconds(unit: str, zone: str | None) -> None:
    values = [NOON, None, NOON + timedelta(seconds=90), NOON - timedelta(days=1)]
    column = pa.array(values, pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit, zone))
    batch = pa.RecordBatch.from_pydict({"other": [1, 2, 3, 4], "at": column})
    assert latest(batch) == NOON.timestamp() + 90


def test_other_arrow_columns_are_seconds_or_days() -> None:
    assert latest(pa.RecordBatch.from_pydict({"at": [1.5, None, 0.5]})) == 1.5
    assert latest(pa.RecordBatch.from_pydict({"at": [3, 7]})) == 7.0
    assert latest(pa.RecordBatch.from_pydict({"at": pa.array([date(1970, 1, 3)], pa.date32())})) == 2 * 86_400
    assert latest(pa.RecordBatch.from_pydict({"at": pa.array([None], pa.timestamp("us"))})) is None
    assert latest(pa.RecordBatch.from_pydict({"at": pa.array([], pa.timestamp("us"))})) is None
    with pytest.raises(TypeError, match="event time 'x'"):
        latest(pa.RecordBatch.from_pydict({"at": ["x"]}))
    with pytest.raises(ValueError, match=r"timestamp='at': must be one of the columns \['b'\]"):
        latest(pa.RecordBatch.from_pydict({"b": [1]}))


def test_rows_are_looked_at_by_column_by_key_or_by_function() -> None:
    rows = [(1, 5.0), (2, None), (3, 4.0)]
    assert latest(rows, columns=["id", "at"]) == 5.0
    assert latest([{"at": 3}, {"at": 8}]) == 8.0
    assert latest([4, 9, 2], timestamp=lambda row: row + 0.5) == 9.5
    assert latest([], columns=["at"]) is None
    batch = pa.RecordBatch.from_pydict({"n": [4, 9]})
    assert latest(batch, timestamp=lambda batch: batch.num_rows) == 2.0
    with pytest.raises(ValueError, match=r"timestamp='when': must be one of the columns \['id'\]"):
        EventTimes(WatermarkStrategy("when"), ["id"])
    with pytest.raises(ValueError, match="timestamp='at': the rows are not Arrow batches"):
        latest(rows)


def test_what_the_reader_says_counts_before_the_strategy() -> None:
    fetched = Fetched("s", [(1,)], 0, timestamp=99.0)
    assert EventTimes(WatermarkStrategy("at"), ["at"]).latest(fetched) == 99.0
    assert EventTimes(WatermarkStrategy()).latest(fetched) == 99.0
    assert EventTimes(WatermarkStrategy()).latest(Fetched("s", [(1,)], 0)) is None


def test_times_are_seconds_since_1970_and_utc_without_a_zone() -> None:
    assert seconds_of(NOON) == seconds_of(NOON.replace(tzinfo=None)) == NOON.timestamp()
    assert seconds_of(NOON.astimezone(timezone(timedelta(hours=5)))) == NOON.timestamp()
    assert seconds_of(date(1970, 1, 2)) == 86_400
    assert seconds_of(None) is seconds_of(math.nan) is None
    pandas = pytest.importorskip("pandas")
    assert seconds_of(pandas.NaT) is None
    with pytest.raises(TypeError, match="event time 'noon': must be a number of seconds"):
        seconds_of("noon")


def test_a_time_without_a_zone_is_utc_wherever_the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert datetime(2026, 1, 1).timestamp() != datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
        assert seconds_of(NOON.replace(tzinfo=None)) == NOON.timestamp()
    time.tzset()


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"timestamp": 3}, TypeError, "timestamp=3: must be callable"),
        ({"out_of_order": -1}, ValueError, "out_of_order=-1"),
        ({"idle_after": 0}, ValueError, "idle_after=0: must be a finite number of seconds above 0"),
        ({"max_drift": math.inf}, ValueError, "max_drift=inf"),
    ],
)
def test_a_bad_strategy_is_named(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        WatermarkStrategy(**fields)


class Looking(Batches):
    """A reader that has always looked."""

    def looked(self, split_id: str) -> float:
        return math.inf


def watermarks(clock: FakeClock, *splits: str, **fields: Any) -> SplitWatermarks:
    strategy = WatermarkStrategy(lambda row: row, **{"max_drift": 60.0, **fields})
    found = SplitWatermarks(Looking(), strategy, clock=clock)
    found.add(splits)
    return found


def see(marks: SplitWatermarks, split_id: str, latest: float, finished: bool = False) -> None:
    """A row of this time has come."""
    marks.passed(Fetched(split_id, [latest], 1, finished))


@pytest.mark.contract(
    "The lowest watermark of the splits counts, and a split without a record holds it back."
)
def test_the_lowest_counts_and_a_split_without_a_record_holds_it_back() -> None:
    marks = watermarks(FakeClock(), "a", "b", out_of_order=2.0)
    assert marks.merged(waiting=True) == (-math.inf, False)
    see(marks, "a", 10.0)
    assert marks.merged(waiting=True) == (-math.inf, False)
    see(marks, "b", 7.0)
    assert marks.merged(waiting=True) == (5.0, False)
    see(marks, "b", 6.0)
    assert marks.merged(waiting=True) == (5.0, False)
    see(marks, "b", 30.0)
    assert marks.merged(waiting=True) == (8.0, False)
    assert marks.report(waiting=False) == {"a": 8.0, "b": 28.0}
    assert marks.report(waiting=False) == {}


def lines_run(function: Callable[[], object]) -> int:
    """The lines of Python that a call of `function` runs, those of what it calls among them."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("max_drift", [None, 60.0])
def test_a_poll_that_finds_nothing_costs_the_same_with_many_splits(max_drift: float | None) -> None:
    def lines(splits: int) -> int:
        names = [f"s{number}" for number in range(splits)]
        # The clock stands, so that the next report, which has something to say, is not due.
        marks = watermarks(FakeClock(), *names, max_drift=max_drift)
        for moment in (1.0, 2.0):
            for name in names:
                see(marks, name, moment)
            marks.merged(waiting=True)
            marks.report(waiting=False)
        return lines_run(lambda: marks.report(waiting=True))

    assert lines(1000) == lines(10) > 0


def test_it_never_goes_back_when_a_split_comes() -> None:
    marks = watermarks(FakeClock(), "a")
    see(marks, "a", 10.0)
    assert marks.merged(waiting=True)[0] == 10.0
    marks.add(["b"])
    see(marks, "b", 3.0)
    assert marks.merged(waiting=True)[0] == 10.0
    see(marks, "b", 12.0)
    see(marks, "a", 11.0)
    assert marks.merged(waiting=True)[0] == 11.0


def test_nobody_waits_for_an_idle_split_until_it_has_a_record_again() -> None:
    clock = FakeClock()
    marks = watermarks(clock, "a", "b", idle_after=5.0)
    assert marks.next_moment == 5.0
    clock.advance(4.0)
    see(marks, "a", 20.0)
    clock.advance(1.0)
    assert marks.merged(waiting=True) == (20.0, False)
    assert marks.report(waiting=False) == {"a": 20.0, "b": None}
    assert marks.next_moment == 9.0
    clock.advance(4.0)
    assert marks.merged(waiting=True) == (20.0, True)
    see(marks, "b", 25.0)
    assert marks.merged(waiting=True) == (25.0, False)
    assert marks.report(waiting=False) == {"a": None, "b": 25.0}


def test_a_paused_split_does_not_become_idle() -> None:
    clock = FakeClock()
    marks = watermarks(clock, "ahead", "behind", idle_after=5.0)
    see(marks, "ahead", 100.0)
    see(marks, "behind", 10.0)
    marks.limit(50.0)
    clock.advance(6.0)
    assert marks.merged(waiting=True) == (100.0, False)
    assert marks.report(waiting=False) == {"ahead": 100.0, "behind": None}
    marks.limit(100.0)
    assert marks.next_moment == 11.0
    clock.advance(5.0)
    assert marks.merged(waiting=True) == (100.0, True)


def test_the_only_split_may_be_idle_and_have_a_record_again() -> None:
    clock = FakeClock()
    marks = watermarks(clock, "a", idle_after=5.0)
    see(marks, "a", 10.0)
    assert marks.merged(waiting=True) == (10.0, False)
    clock.advance(5.0)
    assert marks.merged(waiting=True) == (10.0, True)
    see(marks, "a", 12.0)
    assert marks.merged(waiting=True) == (12.0, False)


def test_finished_splits_are_not_waited_for() -> None:
    marks = watermarks(FakeClock(), "a", "b")
    see(marks, "b", 7.0)
    marks.passed(Fetched("a", [], 0, True))
    assert marks.merged(waiting=True) == (7.0, False)
    marks.passed(Fetched("b", [], 0, True))
    # Others may come.
    assert marks.merged(waiting=True) == (7.0, True)


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "seen", "seen", "seen", "limit", "wait"]),
        st.sampled_from("abcd"),
        st.integers(0, 50),
    ),
    max_size=80,
)


@given(operations)
def test_it_agrees_with_the_plain_rule(operations: list[tuple[str, str, int]]) -> None:
    """The model keeps all of it and looks through all of it each time."""
    clock = FakeClock()
    marks = watermarks(clock, idle_after=10.0, out_of_order=3.0)
    known: dict[str, float] = {}
    last: dict[str, float] = {}
    limit = math.inf
    idle: set[str] = set()
    paused: set[str] = set()
    low = -math.inf
    reported: dict[str, float | None] = {}
    for operation, split_id, number in operations:
        if operation == "add" and split_id not in known:
            marks.add([split_id])
            known[split_id], last[split_id] = -math.inf, clock()
        elif operation == "remove" and split_id in known.keys() - paused:
            # One that is paused gives nothing, its end neither.
            marks.passed(Fetched(split_id, [], 0, True))
            del known[split_id]
            reported.pop(split_id, None)
            idle.discard(split_id)
        elif operation == "seen" and split_id in known:
            see(marks, split_id, float(number))
            known[split_id] = max(known[split_id], number - 3.0)
            last[split_id] = clock()
            idle.discard(split_id)
        elif operation == "limit":
            limit = float(number)
            marks.limit(limit)
        elif operation == "wait":
            clock.advance(float(number) / 5)
        beyond = {each for each, at in known.items() if at > limit and each not in idle}
        last.update(dict.fromkeys(paused ^ beyond, clock()))
        paused = beyond
        assert marks._reader.paused == paused  # type: ignore[attr-defined]
        idle |= {each for each in known.keys() - paused if last[each] + 10.0 <= clock()}
        live = [known[each] for each in known if each not in idle]
        low = max([low, min(live)] if live else [low])
        assert marks.merged(waiting=True) == (low, not live)
        clock.advance(REPORT_INTERVAL_S)
        reported.update(marks.report(waiting=False))
        for each, watermark in known.items():
            shown = None if watermark == -math.inf else watermark
            assert reported.get(each) == (None if each in idle else shown)
