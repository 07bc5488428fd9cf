"""Old input formats as sources, and how states and splits of old sources stand in checkpoints."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from pillarbox.sources import Source
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.legacy import (
    FromInputFormat,
    FromSourceFunction,
    InputFormat,
    InputStatistics,
    ReplicatingInputFormat,
    RichInputFormat,
)
from pillarbox.sources.split import DataclassSerializer, OffsetSplit
from pillarbox.testing import SourceHarness
from tests.sources.unit.test_legacy import Counting, make, no_thread_is_left, records_in_tasks


class Ranges(InputFormat[list[int], int]):
    """Splits are ranges, as in the documentation."""

    opened: list[Any]

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self.rows = parameters.get("rows", 10)

    def create_input_splits(self, min_splits: int) -> Sequence[list[int]]:
        return [[n * self.rows, (n + 1) * self.rows] for n in range(min_splits)]

    def open(self, split: list[int]) -> None:
        self.left = list(range(*split))

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> int | None:
        return self.left.pop(0)

    def close(self) -> None:
        self.left = []


@pytest.mark.contract
def test_a_shared_split_goes_to_one_reader_also_if_many_ask_at_once() -> None:
    read = records_in_tasks(FromInputFormat(Ranges, parameters={"rows": 1}, min_splits=200), parallelism=4)
    assert sorted(record for records in read for record in records) == list(range(200))


@pytest.mark.contract
def test_a_replicated_split_goes_to_every_reader_once() -> None:
    source = FromInputFormat(lambda: ReplicatingInputFormat(Ranges()), min_splits=3)
    assert records_in_tasks(source, parallelism=2) == [list(range(30))] * 2


@pytest.mark.contract
@pytest.mark.parametrize("reads", range(0, 30, 3))
def test_a_restored_format_gives_each_record_once(reads: int) -> None:
    source = FromInputFormat(Ranges, min_splits=3, batch=4)
    with SourceHarness(source) as harness:
        rows = harness.read(reads)
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert rows + harness.read_all() == list(range(30))


class Sized(Ranges):
    def statistics(self) -> InputStatistics:
        return InputStatistics(nbytes=4000, records=40)


@pytest.mark.contract
def test_the_statistics_of_a_format_are_divided_among_its_splits_for_planning() -> None:
    with SourceHarness(FromInputFormat(Sized, min_splits=4)) as harness:
        assert [(split.rows, split.nbytes) for split in harness.discover()] == [(10, 1000)] * 4
    with SourceHarness(FromInputFormat(Sized, min_splits=4)) as harness:
        # Two splits of ten rows are begun before the limit is reached.
        assert len(harness.plan(ReadLimit(rows=15))) == 2
        assert len(harness.plan(ReadLimit(nbytes=1000))) == 1
    with SourceHarness(FromInputFormat(Ranges, min_splits=2)) as harness:
        assert [(split.rows, split.nbytes) for split in harness.discover()] == [(None, None)] * 2


class LastFirst(Ranges):
    def choose(self, splits: Sequence[list[int]], subtask: int) -> list[int]:
        return splits[-1]


def test_a_format_says_itself_which_reader_gets_which_split() -> None:
    with SourceHarness(FromInputFormat(LastFirst, min_splits=3)) as harness:
        assert harness.read_all() == [*range(20, 30), *range(10, 20), *range(10)]


class Near(list[int]):
    def __init__(self, split: Sequence[int], host: str) -> None:
        super().__init__(split)
        self.hosts = (host,)


class Placed(Ranges):
    def create_input_splits(self, min_splits: int) -> Sequence[list[int]]:
        splits = super().create_input_splits(min_splits)
        return [Near(split, f"host{number}") for number, split in enumerate(splits)]


def test_a_split_with_hosts_goes_to_a_reader_near_to_it() -> None:
    with SourceHarness(FromInputFormat(Placed, min_splits=3), host="host2") as harness:
        assert harness.read_all()[:10] == list(range(20, 30))


def test_the_splits_of_a_format_are_read_once_by_whoever_asks() -> None:
    source = FromInputFormat(Ranges, parameters={"rows": 25}, min_splits=8, batch=10)
    with SourceHarness(source, readers=3) as harness:
        assert sorted(harness.read_all()) == list(range(200))
    assert no_thread_is_left()


def test_splits_that_were_not_given_out_are_in_the_checkpoint() -> None:
    source = FromInputFormat(Ranges, min_splits=6, batch=4)
    with SourceHarness(source) as harness:
        harness.discover(2)
        rows = harness.read(13)
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot, readers=2) as harness:
        rows += harness.read(10)
        for subtask in (0, 1):
            harness.restart_reader(subtask)
        rows += harness.read_all()
    assert sorted(rows) == list(range(60))


def test_a_format_is_read_by_whole_splits_in_micro_batches() -> None:
    with SourceHarness(FromInputFormat(Ranges, min_splits=3)) as harness:
        assert harness.micro_batch() == list(range(30))
        assert harness.micro_batch() == []


class Noted(RichInputFormat[list[int], int]):
    """Notes its calls in `calls`; those named in `fails` raise."""

    def __init__(self, calls: list[str], *fails: str) -> None:
        self.calls = calls
        self.fails = fails

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call.split()[0] in self.fails:
            raise LookupError(call)

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self.calls.append(f"configure {dict(parameters)}")

    def create_input_splits(self, min_splits: int) -> Sequence[list[int]]:
        return [[0, 2], [2, 4]]

    def open_input_format(self) -> None:
        self.note(f"open_input_format {self.runtime_context.subtask}")

    def open(self, split: list[int]) -> None:
        self.next, self.end = split
        self.note(f"open {split}")

    def reached_end(self) -> bool:
        return self.next == self.end

    def next_record(self) -> int | None:
        if "next_record" in self.fails:
            raise LookupError("next_record")
        self.next += 1
        return None if self.next == 1 else self.next

    def close(self) -> None:
        self.note("close")

    def close_input_format(self) -> None:
        self.note("close_input_format")


def test_a_format_is_called_in_order() -> None:
    calls: list[str] = []
    with SourceHarness(FromInputFormat(lambda: Noted(calls), parameters={"a": 1})) as harness:
        assert harness.read_all() == [2, 3, 4]
    assert [call for call in calls if not call.startswith("configure")] == [
        "open_input_format 0",
        "open [0, 2]",
        "close",
        "open [2, 4]",
        "close",
        "close_input_format",
    ]
    assert set(calls) >= {"configure {'a': 1}"}


@pytest.mark.parametrize("fails", ["open_input_format", "open", "next_record", "close"])
def test_whatever_raises_everything_is_closed_and_the_first_error_is_raised(fails: str) -> None:
    calls: list[str] = []
    source = FromInputFormat(lambda: Noted(calls, fails, "close_input_format"))
    with SourceHarness(source) as harness, pytest.raises(ReadFailed, match=f"LookupError: {fails}"):
        harness.read_all()
    assert calls[-1] == "close_input_format"
    assert ("close" in calls) == (fails != "open_input_format")


# -- how states and splits are written ---------------------------------------------------------------


@dataclass(frozen=True)
class Offset:
    number: int


class WithDataclass(Counting):
    def snapshot_state(self) -> Any:
        return Offset(self.next)

    def restore_state(self, state: Any) -> None:
        assert isinstance(state, Offset)
        self.next = state.number


class WithTuple(Counting):
    def snapshot_state(self) -> Any:
        return (self.next, self.next)

    def restore_state(self, state: Any) -> None:
        assert isinstance(state, tuple)
        self.next = state[0]


class Paged(Ranges):
    def create_input_splits(self, min_splits: int) -> Sequence[Any]:
        return [Offset(number) for number in range(min_splits)]

    def open(self, split: Any) -> None:
        self.left = [split.number]


def goes_on(source: Source[Any, Any], other: Source[Any, Any] | None = None) -> list[int]:
    """The rows of a run and, from its checkpoint, of another."""
    with SourceHarness(source) as harness:
        rows = harness.read(50)
        snapshot = harness.snapshot()
    with SourceHarness(source if other is None else other, snapshot=snapshot) as harness:
        return rows + harness.read(50)


def test_states_are_written_by_the_serializer_that_was_given() -> None:
    source = FromSourceFunction(
        make(WithDataclass, 10**9), serializer=DataclassSerializer(Offset), capacity=10
    )
    copy: Source[Any, Any] = pickle.loads(pickle.dumps(source))
    rows = goes_on(source, copy)
    assert rows == list(range(len(rows)))


@dataclass(frozen=True)
class Page:
    number: int
    token: str | None
    more: str | None = "begin"


@pytest.mark.contract
def test_a_dataclass_comes_back_from_its_serializer_as_it_was_also_where_it_has_none() -> None:
    written = DataclassSerializer(Page)
    for page in (Page(5, None), Page(5, None, None), Page(0, "x", "y")):
        assert written.from_json(1, json.loads(json.dumps(written.to_json(page)))) == page
    # What is None unless it is given is left out: an offset has thousands.
    assert DataclassSerializer(OffsetSplit).to_json(OffsetSplit("a")) == {"split_id": "a", "start": 0}


def test_a_state_that_json_would_change_is_refused_and_named() -> None:
    with (
        SourceHarness(FromSourceFunction(make(WithTuple, 100))) as harness,
        pytest.raises(ReadFailed, match=r"TypeError: \(.*, .*\): JSON cannot hold it and give it back"),
    ):
        harness.read(1)


def test_splits_of_a_format_are_written_by_its_serializer() -> None:
    with SourceHarness(
        FromInputFormat(Paged, min_splits=2, serializer=DataclassSerializer(Offset))
    ) as harness:
        assert harness.read_all() == [0, 1]
    with (
        SourceHarness(FromInputFormat(Paged, min_splits=2)) as harness,
        pytest.raises(Exception, match=r"Offset\(number=0\): JSON cannot hold it"),
    ):
        harness.read_all()


def test_what_is_not_a_serializer_is_refused_early() -> None:
    with pytest.raises(TypeError, match="serializer='json': must have to_json, from_json"):
        FromSourceFunction(make(Counting, 1), serializer="json")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="serializer='json': must have to_json, from_json"):
        FromInputFormat(Ranges, serializer="json")  # type: ignore[arg-type]


def test_what_makes_no_format_or_one_for_tasks_with_a_schema_is_refused_early() -> None:
    with pytest.raises(TypeError, match="must make an InputFormat, not int"):
        FromInputFormat(int)
    with pytest.raises(ValueError, match="makes a ReplicatingInputFormat, for tasks, and has a schema"):
        FromInputFormat(lambda: ReplicatingInputFormat(Ranges()), schema=pa.schema([("x", pa.int64())]))
