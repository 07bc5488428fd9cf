"""The driver's view of the tasks' files: attempts, dead tasks, tasks of long ago, broken files."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from pillarbox.aio.observe.totals import Totals, to_json
from pillarbox.spark.progress_reader import GONE, MOST_TASKS, SETTLED, STALE, ProgressReader
from pillarbox.testing import FakeClock


class Folder:
    """The folder of a job's progress, as the tasks would fill it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.reader = ProgressReader(path, self.clock)

    def write(
        self, name: str, totals: Totals, *, operator: int = 0, running: bool = False, **head: Any
    ) -> Path:
        folder = self.path / f"{operator}-x"
        folder.mkdir(exist_ok=True)
        task = {"stage": 0, "partition": 0, "attempt": 0, "query": None, "batch": None, **head}
        part = folder / "part"
        part.write_text(json.dumps({**task, "running": running, "totals": to_json(totals)}))
        target = folder / f"{name}.json"
        os.replace(part, target)
        return target


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_rows_are_those_of_the_latest_attempt_and_calls_those_of_all(folder: Folder) -> None:
    folder.write("first", Totals(rows_in=50, results=40, calls=60, errors=1, cost=2.0), attempt=0)
    folder.write("second", Totals(rows_in=9, results=8, calls=10, cost=0.5), attempt=1, running=True)
    totals = folder.reader.look().totals
    assert (totals.rows_in, totals.results) == (9, 8)
    assert (totals.calls, totals.errors, totals.cost) == (70, 1, 2.5)


def test_a_task_that_was_killed_is_not_in_flight_for_ever(folder: Folder) -> None:
    folder.write("killed", Totals(calls=5, in_flight=64, capacity=64), running=True)
    seen = folder.reader.look()
    assert (seen.totals.in_flight, seen.running, seen.ended) == (64, 1, 0)
    folder.clock.advance(STALE)
    seen = folder.reader.look()
    assert (seen.totals.in_flight, seen.totals.capacity, seen.totals.calls) == (0, 0, 5)
    assert (seen.running, seen.ended) == (0, 1)


def test_a_task_that_goes_on_writing_stays_alive(folder: Folder) -> None:
    for calls in range(4):
        folder.write("alive", Totals(calls=calls, in_flight=7), running=True)
        seen = folder.reader.look()
        assert (seen.totals.calls, seen.totals.in_flight) == (calls, 7)
        folder.clock.advance(STALE * 0.9)


def test_what_has_ended_is_folded_and_its_file_removed_without_a_change_in_the_totals(folder: Folder) -> None:
    path = folder.write("a", Totals(rows_in=3, results=3, calls=4), partition=1, query="q", batch=7)
    before = folder.reader.look()
    folder.clock.advance(SETTLED)
    assert folder.reader.look() == before
    assert not path.exists()
    assert folder.reader.look() == before
    (task,) = folder.reader.tasks()
    assert (task.partition, task.totals.calls, task.attempts) == (1, 4, 1)
    assert folder.reader.partitions()[1].calls == 4
    assert folder.reader.batch("q", 7).results == 3


def test_the_file_of_an_attempt_that_was_killed_is_folded_in_the_end(folder: Folder) -> None:
    killed = folder.write("killed", Totals(rows_in=5, calls=5, in_flight=3), running=True)
    good = folder.write("good", Totals(rows_in=10, results=10, calls=10), attempt=1)
    folder.reader.look()
    folder.clock.advance(GONE)
    seen = folder.reader.look()
    assert (killed.exists(), good.exists()) == (False, False)
    assert (seen.totals.rows_in, seen.totals.calls, seen.totals.in_flight) == (10, 15, 0)
    assert (seen.running, seen.ended) == (0, 1)


def test_a_task_that_runs_again_after_it_was_folded_counts_its_rows_once(folder: Folder) -> None:
    folder.write("a", Totals(results=10, calls=10))
    folder.reader.look()
    folder.clock.advance(SETTLED)
    folder.reader.look()
    folder.write("b", Totals(results=4, calls=4), running=True, attempt=1)
    seen = folder.reader.look()
    assert (seen.totals.results, seen.totals.calls, seen.running, seen.ended) == (4, 14, 1, 0)
    folder.write("b", Totals(results=10, calls=10), attempt=1)
    folder.reader.look()
    folder.clock.advance(SETTLED)
    for _ in range(2):
        seen = folder.reader.look()
        assert (seen.totals.results, seen.totals.calls, seen.ended) == (10, 20, 1)
    (task,) = folder.reader.tasks()
    assert (task.totals.results, task.totals.calls, task.attempts) == (10, 20, 2)
    assert folder.reader.partitions()[0].results == 10


def test_however_many_tasks_there_were_only_so_many_are_kept_apart(folder: Folder) -> None:
    count = MOST_TASKS + 20
    for stage in range(count):
        folder.write(f"{stage}", Totals(results=1), stage=stage, partition=stage, query="q", batch=stage)
    folder.reader.look()
    folder.clock.advance(SETTLED)
    seen = folder.reader.look()
    assert (seen.totals.results, seen.ended) == (count, count)
    assert len(folder.reader.tasks()) == MOST_TASKS
    partitions = folder.reader.partitions()
    assert len(partitions) == MOST_TASKS + 1
    assert partitions[-1].results == 20
    assert folder.reader.batch("q", 0).results == 0
    assert folder.reader.batch("q", count - 1).results == 1
    assert list(folder.path.rglob("*.json")) == []


def test_micro_batches_are_told_apart_by_query_and_number(folder: Folder) -> None:
    for number, (query, batch) in enumerate([("q", 1), ("q", 1), ("q", 2), ("r", 1)]):
        totals = Totals(results=10**number)
        folder.write(f"{number}", totals, partition=number, query=query, batch=batch)
    folder.reader.look()
    assert folder.reader.batch("q", 1).results == 11
    assert folder.reader.batch("q", 2).results == 100
    assert folder.reader.batch("r", 1).results == 1000
    assert folder.reader.batch("r", 2) == Totals()


def test_what_cannot_be_read_is_named_once_and_not_counted(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write("good", Totals(results=1))
    other = folder.write("other", Totals(results=1), partition=1)
    other.write_text(other.read_text().replace('"version": 1', '"version": 99'))
    (folder.path / "0-x" / "half.json").write_text('{"stage": 0')
    with caplog.at_level(logging.WARNING, logger="pillarbox"):
        for _ in range(3):
            assert folder.reader.look().totals.results == 1
    assert len(caplog.records) == 1


def test_a_file_is_read_again_only_when_it_was_replaced(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = Path.read_text

    def spy(path: Path, *args: Any, **kwargs: Any) -> str:
        read.append(path.name)
        return whole(path, *args, **kwargs)

    folder.write("a", Totals(results=1))
    monkeypatch.setattr(Path, "read_text", spy)
    folder.reader.look()
    folder.reader.look()
    assert read == ["a.json"]
    folder.write("a", Totals(results=2))
    assert folder.reader.look().totals.results == 2
    assert read == ["a.json", "a.json"]
