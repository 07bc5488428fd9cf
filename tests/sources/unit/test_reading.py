"""`read_splits`: all splits of a list, or one after the other by need; the reader is closed in any case."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

from pillarbox.sources import FetchingReader
from pillarbox.sources.fetching import ReadFailed, Threading
from pillarbox.sources.reader import ReaderContext
from pillarbox.sources.reading import read_splits
from tests.sources.unit.number_source import LONG, Range, Script, by_split, expected, ranges


def reader_of(script: Script, model: Threading = Threading.ONE_SPLIT_AT_A_TIME) -> FetchingReader[Range]:
    return FetchingReader(ReaderContext(5), script.make, threading=model)


def read(script: Script, splits: Iterable[Range] | Callable[[], Range | None]) -> list[tuple[str, int]]:
    return [row for fetched in read_splits(reader_of(script), splits) for row in fetched.records]


def no_threads() -> bool:
    return not any("pillarbox-fetch-5" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("model", list(Threading))
def test_all_splits_of_a_list_are_read(model: Threading) -> None:
    splits = ranges(4, 33)
    script = Script()
    fetched = list(read_splits(reader_of(script, model), iter(splits)))
    assert by_split([row for each in fetched for row in each.records]) == expected(splits)
    assert sorted(each.split_id for each in fetched if each.finished) == ["s0", "s1", "s2", "s3"]
    assert no_threads()


def test_the_next_split_is_asked_for_when_the_one_before_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    # As with splits that take long.
    monkeypatch.setattr("pillarbox.sources.reading.SHORT_SPLIT_S", 0.0)
    script = Script()
    waiting = ranges(3, 20)
    said: list[str] = []

    def ask() -> Range | None:
        said.append("ask")
        return waiting.pop(0) if waiting else None

    said.extend(fetched.split_id for fetched in read_splits(reader_of(script), ask))
    assert said == ["ask", "s0", "s0", "ask", "s1", "s1", "ask", "s2", "s2", "ask"]


@pytest.mark.parametrize("model", list(Threading))
def test_of_short_splits_the_next_is_asked_for_while_the_last_is_read(
    model: Threading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.sources.reading.SHORT_SPLIT_S", LONG)
    script = Script()
    # The one that is being read cannot end.
    waiting = [Range("s0", 0, 10), Range("s1"), Range("s2"), Range("s3")]
    rows = read_splits(reader_of(script, model), lambda: waiting.pop(0))
    assert next(rows).finished
    # The first was not a reason yet: nobody knew how long it would take.
    assert len(waiting) == 3
    read = {next(rows).split_id}
    assert len(waiting) == 1
    # One at a time the other waits for its turn.
    wanted = {"s1"} if model is Threading.ONE_SPLIT_AT_A_TIME else {"s1", "s2"}
    while read != wanted:
        read.add(next(rows).split_id)
    # Not more than one ahead.
    assert {next(rows).split_id for _ in range(10)} <= wanted
    assert len(waiting) == 1
    rows.close()  # type: ignore[attr-defined]
    assert no_threads()


@pytest.mark.parametrize("model", list(Threading))
def test_splits_that_are_asked_for_ahead_are_all_read(model: Threading) -> None:
    waiting = ranges(200, 7)
    read_now = [
        row
        for each in read_splits(reader_of(Script(), model), lambda: waiting.pop(0) if waiting else None)
        for row in each.records
    ]
    assert by_split(read_now) == expected(ranges(200, 7))
    assert no_threads()


@pytest.mark.parametrize("splits", [[], lambda: None])
def test_no_splits_are_no_rows_and_no_thread(splits: Iterable[Range] | Callable[[], Range | None]) -> None:
    script = Script()
    assert read(script, splits) == []
    assert script.readers == []


def test_closing_the_iterator_closes_the_reader() -> None:
    script = Script()
    rows = read_splits(reader_of(script), [Range("endless")])
    next(rows)
    assert not no_threads()
    rows.close()  # type: ignore[attr-defined]
    assert no_threads()
    assert script.told("closed") == [None]


def test_an_error_of_the_reader_or_of_who_gives_splits_closes_the_reader() -> None:
    script = Script()
    script.fail_at["s"] = 5
    with pytest.raises(ReadFailed):
        read(script, [Range("s", 0, 10)])
    assert script.told("closed") == [None]
    waiting = [Range("t", 0, 10)]
    with pytest.raises(IndexError):
        read(script, lambda: waiting.pop())
    assert script.told("closed") == [None, None]
    assert no_threads()
