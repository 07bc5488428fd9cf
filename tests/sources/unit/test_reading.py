"""`read_splits`: all splits are read, and the reader is closed in any case."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from pillarbox.sources.fetching import FetchingReader, ReadFailed, Threading
from pillarbox.sources.reader import ReaderContext, read_splits
from tests.sources.unit.number_source import Range, Script, by_split, expected, ranges


def reader_of(script: Script, model: Threading = Threading.ONE_SPLIT_AT_A_TIME) -> FetchingReader[Range]:
    return FetchingReader(ReaderContext(5), script.make, threading=model)


def read(script: Script, splits: Sequence[Range]) -> list[tuple[str, int]]:
    return [row for fetched in read_splits(reader_of(script), splits) for row in fetched.records]


def no_threads() -> bool:
    return not any("pillarbox-fetch-5" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("model", list(Threading))
def test_all_splits_of_a_list_are_read(model: Threading) -> None:
    splits = ranges(4, 33)
    script = Script()
    fetched = list(read_splits(reader_of(script, model), splits))
    assert by_split([row for each in fetched for row in each.records]) == expected(splits)
    assert sorted(each.split_id for each in fetched if each.finished) == ["s0", "s1", "s2", "s3"]
    assert no_threads()


def test_no_splits_are_no_rows_and_no_thread() -> None:
    script = Script()
    assert read(script, []) == []
    assert script.readers == []


def test_closing_the_iterator_closes_the_reader() -> None:
    script = Script()
    rows = read_splits(reader_of(script), [Range("endless")])
    next(rows)
    assert not no_threads()
    rows.close()
    assert no_threads()
    assert script.told("closed") == [None]


def test_an_error_of_the_reader_closes_it() -> None:
    script = Script()
    script.fail_at["s"] = 5
    with pytest.raises(ReadFailed):
        read(script, [Range("s", 0, 10)])
    assert script.told("closed") == [None]
    assert no_threads()
