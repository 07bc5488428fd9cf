"""A reader that breaks its contract is refused wherever it runs, in the words of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pillarbox.sources import Fetched, SourceInput, SplitReader, WatermarkStrategy
from pillarbox.sources.fetching import FetchingReader, ReadFailed
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded, read_splits
from pillarbox.sources.split import is_json
from tests.sources.unit.linked import Batches, Link, Running, With
from tests.sources.unit.number_source import Range

ROWS = [("s", 0)]
STOP = 10


class Faulty(SplitReader[Range]):
    """Gives the answers of a test one after the other, then nothing."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def handle_splits_changes(self, change: SplitsAdded[Range]) -> None:
        assert isinstance(change, SplitsAdded)

    def fetch(self) -> Any:
        return self.answers.pop(0)


def in_read(reader: SourceReader[Range]) -> None:
    """As Spark's batches and micro-batches read."""
    for _ in read_splits(reader, [Range("s", 0, STOP), Range("t", 0, STOP)]):
        continue


def in_task(reader: SourceReader[Range]) -> None:
    """As a task reads."""
    splits = [Range("s", 0, STOP), Range("t", 0, STOP)]
    running = Running(SourceInput(Link(splits), With(reader, *splits)))
    running.until(lambda: False)


def in_task_with_watermarks(reader: SourceReader[Range]) -> None:
    """As a task reads that keeps the watermarks of its splits."""
    splits = [Range("s", 0, STOP), Range("t", 0, STOP)]
    strategy = WatermarkStrategy(lambda row: float(row[1]))
    running = Running(SourceInput(Link(splits), With(reader, *splits), watermarks=strategy))
    running.until(lambda: False)


WHERE = pytest.mark.parametrize("run", [in_read, in_task, in_task_with_watermarks])

OF_FETCH: list[tuple[Any, str]] = [
    (None, "returned None: it must return a list of Fetched"),
    (Fetched("s", ROWS, 1), "returned one Fetched: it must return a list of Fetched"),
    ((row for row in ROWS), r"\(generator\): it must return a list of Fetched"),
    ("rows", r"returned 'rows' \(str\): it must return a list of Fetched"),
]
OF_FETCHED: list[tuple[Any, str]] = [
    ([ROWS], r"returned \[\('s', 0\)\] \(list\) where a Fetched must be"),
    ([Fetched("other", ROWS, 1)], "rows of split 'other', which it does not have"),
    (
        [Fetched("s", ROWS, 1, finished=True), Fetched("s", ROWS, 2)],
        "rows of split 's', which it does not have.*nothing of one that is finished",
    ),
    ([Fetched("s", None, 1)], "records=None of split 's': records must be an Arrow RecordBatch, or a list"),
    ([Fetched("s", "abc", 1)], r"records='abc' \(str\) of split 's'"),
    ([Fetched("s", ROWS, {1, 2})], r"position=\{1, 2\} \(set\) of split 's': JSON must hold a position"),
    ([Fetched("s", ROWS, (1, 2))], r"position=\(1, 2\) \(tuple\) of split 's': JSON must hold a position"),
    ([Fetched("s", ROWS, float("nan"))], r"position=nan \(float\) of split 's'"),
    ([Fetched("s", ROWS, {"at": b"x"})], r"position=\{'at': b'x'\} \(dict\) of split 's'"),
    (
        [Fetched("s", ROWS, STOP + 1)],
        "up to position 11, and its stop is 10: it must hand out no row",
    ),
    ([Fetched("s", ROWS, STOP + 1, finished=True)], "up to position 11, and its stop is 10"),
    ([Fetched("s", ROWS, STOP), Fetched("s", ROWS, STOP)], "up to position 10, and its stop is 10"),
]


def whole(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@pytest.mark.contract
@WHERE
@pytest.mark.parametrize(("answer", "text"), OF_FETCH + OF_FETCHED)
def test_what_a_split_reader_fetches_against_its_contract_fails_the_read_and_names_class_method_and_rule(
    run: Callable[[SourceReader[Range]], None], answer: Any, text: str
) -> None:
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), lambda: Faulty(answer))
    with pytest.raises(ReadFailed, match=f"Faulty.fetch .*{text}"):
        run(reader)


@WHERE
@pytest.mark.parametrize(("answer", "text"), OF_FETCHED)
def test_what_a_reader_of_ones_own_polls_against_its_contract_fails_as_well(
    run: Callable[[SourceReader[Range]], None], answer: Sequence[Any], text: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=f"Batches.poll .*{text}"):
        run(Batches(*answer))


@pytest.mark.parametrize(
    "split",
    [Range("s", 10, 0), Range("s", "b", "a"), Range("s", None, 0), Range("s", 0, None)],
    ids=["a source that counts down", "positions without an order", "from its beginning", "without a stop"],
)
def test_only_positions_that_count_up_to_a_stop_are_compared(split: Range) -> None:
    answers = [
        [Fetched("s", ROWS, -1 if split.start is None else split.start)],
        [Fetched("s", (), None, True)],
    ]
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), lambda: Faulty(*answers))
    assert len(list(read_splits(reader, [split]))) == 2


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "x", [1, ["x"]], {"a": [None, {"b": 2}]}])
def test_what_json_gives_back_as_it_is_may_be_a_position(value: Any) -> None:
    assert is_json(value)


@pytest.mark.parametrize("value", [b"x", (1,), {1: 2}, [{1}], {"a": object()}, float("inf")])
def test_what_json_changes_or_cannot_hold_may_not(value: Any) -> None:
    assert not is_json(value)
