"""The clock of `async_stream`: it moves while rows are pending, and rests when it is told that none are."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.versions import needs_async_stream

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from pyspark import cloudpickle

from pillarbox.spark.stream import clock
from pillarbox.spark.stream.clock import Clock, ClockListener, ClockReader, report_path

pytestmark = needs_async_stream

INTERVAL_S, UNTOLD_S = 0.1, 0.4
TINY_S = 1e-6
"""Sums of seconds are inexact by less."""


class Time:
    """The time of the clock's module: who sleeps moves it, and what is due then is done."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for at, act in due:
            if at <= self.now:
                act()
            else:
                self.due.append((at, act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.due.append((self.now + seconds, act))


@pytest.fixture(autouse=True)
def passed(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock, "time", time)
    return time


class Query:
    """One run of a query over a clock, as Spark asks it."""

    def __init__(self, folder: Path, *, ends: bool = False, offset: Any = None) -> None:
        self.folder = str(folder)
        self.reader = ClockReader(
            self.folder, tick_interval=INTERVAL_S, untold_interval=UNTOLD_S, report_delay=INTERVAL_S / 2
        )
        if ends:
            self.reader.prepareForTriggerAvailableNow()
        self.offset = self.reader.initialOffset() if offset is None else offset
        self.listener = ClockListener(self.folder)

    def plan(self) -> bool:
        """Ask for the next offset; returns whether it moved."""
        rows, end = self.reader.read(json.loads(json.dumps(self.offset)))
        moved = end != self.offset
        assert len([*rows]) == moved
        self.offset = end
        return moved

    def report(self, rows: int, *, moved: bool = False, offset: Any = None) -> None:
        sources = [
            {"startOffset": 3, "endOffset": 4 if moved else 3},
            {"startOffset": None, "endOffset": self.offset if offset is None else offset},
        ]
        # Of a chain with other state around it, any of whose streams may have rows.
        states = [
            {"operatorName": "dedupe", "numRowsTotal": 100},
            {"operatorName": clock.OPERATOR, "numRowsTotal": 0},
            {"operatorName": clock.OPERATOR, "numRowsTotal": rows},
            {"operatorName": clock.OPERATOR, "numRowsTotal": 0},
            {"operatorName": "stateStoreSave", "numRowsTotal": 100},
        ]
        said = {"sources": sources, "stateOperators": states, "runId": "run", "batchId": 1}
        self.listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(said))))


@pytest.mark.contract
def test_the_clock_moves_at_the_begin_of_each_run_as_something_may_be_pending(tmp_path: Path) -> None:
    first = Query(tmp_path)
    assert first.plan()
    first.report(0)
    assert not first.plan()
    assert Query(tmp_path, offset=first.offset).plan()


@pytest.mark.contract
def test_the_clock_stays_while_nothing_is_pending_and_has_spark_ask_seldom(
    tmp_path: Path, passed: Time
) -> None:
    query = Query(tmp_path)
    assert query.plan()
    query.report(0)
    query.plan()
    began = passed.now
    assert not any(query.plan() for _ in range(5))
    assert passed.now - began == pytest.approx(5 * INTERVAL_S)


@pytest.mark.contract
def test_the_clock_moves_while_rows_are_pending_and_no_more_often_than_its_interval(
    tmp_path: Path, passed: Time
) -> None:
    query = Query(tmp_path)
    moments = []
    for _ in range(5):
        assert query.plan()
        moments.append(passed.now)
        query.report(3)
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    assert min(pauses) >= INTERVAL_S - TINY_S and max(pauses) < INTERVAL_S + clock.IDLE_POLL_INTERVAL_S
    query.report(0)
    assert not query.plan()


@pytest.mark.contract
def test_the_clock_moves_after_input_came_with_it_or_without_it(tmp_path: Path, passed: Time) -> None:
    query = Query(tmp_path)
    assert query.plan()
    query.report(0, moved=True)
    assert query.plan()
    query.report(0)
    assert not query.plan()
    # A micro-batch of input alone, which has left rows pending: its report comes after the next question.
    passed.now += 1.0
    passed.after(INTERVAL_S / 5, lambda: query.report(2, moved=True))
    assert query.plan()


@pytest.mark.contract(convicts=["ends_before_report"])
def test_with_available_now_the_clock_stays_only_after_the_report_about_its_own_offset(
    tmp_path: Path, passed: Time
) -> None:
    query = Query(tmp_path, ends=True)
    before = query.offset
    assert query.plan()
    query.report(5)
    before = query.offset
    assert query.plan()
    # One that comes late, about the micro-batch before, says nothing of this one.
    query.report(0, offset=before)
    passed.after(INTERVAL_S * 2, lambda: query.report(0))
    assert not query.plan()
    assert not passed.due


def test_with_available_now_the_clock_moves_once_more_after_the_last_input(tmp_path: Path) -> None:
    query = Query(tmp_path, ends=True)
    assert query.plan()
    # The report may be of a micro-batch before one that Spark has planned without the clock.
    query.report(0, moved=True)
    assert query.plan()
    query.report(0)
    assert not query.plan()


@pytest.mark.contract(convicts=["untold_clock_hurries"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_clock_that_is_told_nothing_moves_seldom_and_never_rests(
    tmp_path: Path, ends: bool, passed: Time
) -> None:
    query = Query(tmp_path, ends=ends)
    assert query.plan()
    moved = [passed.now]
    while len(moved) < 3:
        before = passed.now
        if query.plan():
            moved.append(passed.now)
        assert passed.now > before, "Spark would ask again at once"
    for pause in (after - before for before, after in itertools.pairwise(moved)):
        assert UNTOLD_S - TINY_S <= pause <= 2 * UNTOLD_S


@pytest.mark.parametrize("said", ["", "{", "[]", '{"tick": 1}', '{"busy": false}'])
def test_a_damaged_report_is_none(tmp_path: Path, said: str) -> None:
    query = Query(tmp_path)
    assert query.plan()
    Path(report_path(query.folder, query.offset["clock"])).write_text(said)
    while not query.plan():
        pass


@pytest.mark.contract(convicts=["second_clock_untold"])
def test_two_clocks_of_a_query_are_both_told_and_other_sources_are_none(tmp_path: Path) -> None:
    assert clock.offset_of({"clock": "ab", "tick": 3}) == {"clock": "ab", "tick": 3}
    for other in (None, 3, [1], "a text", {"tick": 3}, {"clock": "../x", "tick": 3}):
        assert clock.offset_of(other) is None
    listener = ClockListener(str(tmp_path))
    sources = [{"startOffset": None, "endOffset": {"clock": name, "tick": 1}} for name in ("a", "b")]
    said = {"sources": sources, "stateOperators": [], "runId": "run", "batchId": 1}
    listener.report(json.dumps(said))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clock-a", "clock-b"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    listener.onQueryTerminated(SimpleNamespace(runId="run", exception=None))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("by_java", [False, True])
def test_what_to_do_is_said_where_spark_gave_the_clock_too_little_time_and_for_no_other_error(
    tmp_path: Path, by_java: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def end(error: str | None) -> str:
        """The log after a query has ended; Java's events have methods, and no None."""
        said: dict[str, Any] = {"id": "this-query", "runId": "run", "exception": error}
        if by_java:
            java = {
                "id": SimpleNamespace(toString=lambda: "this-query"),
                "runId": SimpleNamespace(toString=str),
            }
            option = SimpleNamespace(isDefined=lambda: error is not None, get=lambda: error)
            said = {name: partial(lambda it: it, it) for name, it in {**java, "exception": option}.items()}
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pillarbox"):
            ClockListener(str(tmp_path)).onQueryTerminated(SimpleNamespace(**said))
        return caplog.text

    spark = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache"
    assert "query this-query has failed" in (text := end(spark)) and "Start the query again" in text
    for other in (None, "java.lang.IllegalStateException: Python worker failed to connect back to it"):
        assert end(other) == ""


def test_a_reader_that_is_stopped_leaves_no_report(tmp_path: Path) -> None:
    query = Query(tmp_path)
    assert query.plan()
    query.report(0)
    query.reader.stop()
    assert not [*tmp_path.iterdir()]
    query.reader.stop()


def test_a_replay_has_the_row_of_the_movement_and_the_source_can_be_sent() -> None:
    source: Any = cloudpickle.loads(cloudpickle.dumps(Clock({})))
    reader = source.simpleStreamReader(None)
    start, end = {"clock": "a", "tick": 4}, {"clock": "b", "tick": 5}
    assert [*reader.readBetweenOffsets(start, end)] == [(5,)]
    assert [*reader.readBetweenOffsets(end, end)] == []
    assert reader.read(start)[1]["tick"] == 5
