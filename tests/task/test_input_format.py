"""Input formats: who gets which split, what is called in what order, and formats and iterables as sources."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from pillarbox.task import InputStatus
from pillarbox.task.format_source import (
    InputFormatSource,
    IterableSource,
    SplitPosition,
    read_input_format,
    read_split,
)
from pillarbox.task.input_format import FormatContext, InputFormat, ReplicatingInputFormat, RichInputFormat
from pillarbox.task.legacy_input import LegacySourceInput
from pillarbox.task.splits import ReplicatedSplits, SharedSplits, SplitList
from tests.task.sources import LONG, Output, read_all

Split = tuple[int, int]


class Numbers(RichInputFormat[Split, int]):
    """The numbers below `count`; a split is a range. `fails` names the calls that raise."""

    def __init__(self, count: int = 10, *fails: str) -> None:
        self.count = count
        self.fails = fails
        self.calls: list[str] = []
        self.next = self.end = 0

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call.split()[0] in self.fails:
            raise LookupError(call)

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self.note(f"configure {dict(parameters)}")

    def create_input_splits(self, min_splits: int) -> Sequence[Split]:
        step = -(-self.count // min_splits)
        return [(start, min(start + step, self.count)) for start in range(0, self.count, step)]

    def open_input_format(self) -> None:
        self.note(f"open_input_format {self.runtime_context.subtask}")

    def open(self, split: Split) -> None:
        self.next, self.end = split
        self.note(f"open {split}")

    def reached_end(self) -> bool:
        return self.next == self.end

    def next_record(self) -> int | None:
        self.next += 1
        if "next_record" in self.fails:
            raise LookupError("next_record")
        return None if self.next - 1 == 7 else self.next - 1

    def close(self) -> None:
        self.note("close")

    def close_input_format(self) -> None:
        self.note("close_input_format")


RECORDS = [number for number in range(10) if number != 7]


class TaskOutput(Output):
    def emit_barrier(self, barrier: Any) -> None:
        raise AssertionError(barrier)


def emitted_by(source: Any, state: Any = None) -> list[Any]:
    """What a source emits, restored if there is a state, through an input, in its own thread."""
    one = LegacySourceInput(source, grace=LONG)
    if state is not None:
        one.restore_state(state)
    try:
        return read_all(one, TaskOutput())
    finally:
        one.close()


def notes_of(error: BaseException) -> str:
    if sys.version_info >= (3, 11):
        return " ".join(getattr(error, "__notes__", []))
    return repr(error.__context__)


# ---- splits


@pytest.mark.contract
def test_a_shared_split_goes_to_one_reader_also_if_many_ask_at_once() -> None:
    assigner = Numbers(1000).split_assigner(range(1000))  # type: ignore[arg-type]
    assert isinstance(assigner, SharedSplits)
    got: list[Any] = []

    def read(subtask: int) -> None:
        mine = []
        while (split := assigner.next_split(subtask)) is not None:
            mine.append(split)
        got.extend(mine)

    threads = [threading.Thread(target=read, args=(subtask,)) for subtask in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(1000))


def test_a_replicated_split_goes_to_every_reader_once_and_in_order() -> None:
    format = ReplicatingInputFormat(Numbers())
    splits = format.create_input_splits(3)
    assigner = format.split_assigner(splits)
    assert isinstance(assigner, ReplicatedSplits)
    assert assigner.next_split(0) == splits[0]
    assert list(iter(partial(assigner.next_split, 1), None)) == splits
    assert list(iter(partial(assigner.next_split, 0), None)) == splits[1:]
    assert assigner.next_split(1) is None
    again = format.split_assigner(splits)
    readers = [
        read_input_format(ReplicatingInputFormat(Numbers()), partial(again.next_split, subtask))
        for subtask in range(2)
    ]
    assert [list(reader) for reader in readers] == [RECORDS, RECORDS]


def test_none_is_no_split() -> None:
    for kind in (SharedSplits, ReplicatedSplits, SplitList):
        with pytest.raises(ValueError, match="None is no split"):
            kind([1, None])


# ---- reading


def test_a_format_is_read_as_a_plain_iterator_with_its_calls_in_order() -> None:
    format = Numbers()
    records = read_input_format(
        format, SplitList([(0, 2), (6, 9)]), parameters={"a": 1}, context=FormatContext("job", 2, 3)
    )
    assert format.calls == []
    assert list(records) == [0, 1, 6, 8]
    assert format.calls == [
        "configure {'a': 1}",
        "open_input_format 2",
        "open (0, 2)",
        "close",
        "open (6, 9)",
        "close",
        "close_input_format",
    ]


def test_a_format_that_is_not_rich_needs_no_more_than_its_splits() -> None:
    class Plain(InputFormat[str, str]):
        def create_input_splits(self, min_splits: int) -> Sequence[str]:
            return ["ab", "", "c"]

        def open(self, split: str) -> None:
            self.left = list(split)

        def reached_end(self) -> bool:
            return not self.left

        def next_record(self) -> str:
            return self.left.pop(0)

        def close(self) -> None:
            del self.left

    format = Plain()
    assert list(read_input_format(format, SplitList(format.create_input_splits(1)))) == ["a", "b", "c"]
    assert list(read_input_format(ReplicatingInputFormat(format), SplitList(["xy"]))) == ["x", "y"]


@pytest.mark.parametrize("fails", ["open_input_format", "open", "next_record", "close"])
def test_whatever_raises_everything_is_closed_and_the_first_error_is_raised(fails: str) -> None:
    format = Numbers(10, fails, "close_input_format")
    with pytest.raises(LookupError) as caught:
        list(read_input_format(format, SplitList([(0, 2)])))
    assert str(caught.value).startswith(fails)
    assert "close_input_format" in notes_of(caught.value)
    assert format.calls[-1] == "close_input_format"
    assert ("close" in format.calls) == (fails != "open_input_format")


def test_an_iterator_that_is_dropped_half_way_closes_its_format() -> None:
    format = Numbers()
    records: Any = read_input_format(format, SplitList([(0, 5)]))
    assert next(records) == 0
    records.close()
    assert format.calls[-2:] == ["close", "close_input_format"]


def test_a_format_without_a_reader_has_no_context() -> None:
    with pytest.raises(RuntimeError, match="Numbers has no runtime context yet"):
        Numbers().open_input_format()


def test_a_replicating_format_is_as_rich_as_the_one_within() -> None:
    inner = Numbers()
    context = FormatContext("job", 1, 2)
    assert list(read_input_format(ReplicatingInputFormat(inner), SplitList([(0, 1)]), context=context)) == [0]
    assert inner.runtime_context is context
    assert inner.calls[0] == "configure {}"
    assert inner.calls[-1] == "close_input_format"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: FormatContext("job", 2, 2), ValueError, "subtask=2: must be below parallelism"),
        (lambda: FormatContext("job", -1, 2), ValueError, "subtask=-1"),
        (lambda: FormatContext("job", 0, 0), ValueError, "parallelism=0"),
        (lambda: FormatContext("job", "0"), TypeError, "subtask='0'"),
        (lambda: ReplicatingInputFormat(print), TypeError, "format=.*must be an InputFormat"),
        (lambda: read_input_format(print, print), TypeError, "format=.*must be an InputFormat"),
        (lambda: InputFormatSource(Numbers(), [1]), TypeError, r"next_split=\[1\]: must be callable"),
        (lambda: IterableSource(5), TypeError, "iterable=5: must be iterable"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(
    make: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


# ---- as sources


def test_a_format_runs_as_a_legacy_source() -> None:
    format = Numbers()
    splits = format.create_input_splits(3)
    assigner = format.split_assigner(splits)
    assert emitted_by(InputFormatSource(format, partial(assigner.next_split, 0))) == RECORDS
    assert format.calls[-1] == "close_input_format"


def test_an_error_of_a_format_reaches_the_task_and_the_format_is_closed() -> None:
    format = Numbers(10, "next_record")
    with pytest.raises(LookupError, match="next_record"):
        emitted_by(InputFormatSource(format, SplitList([(0, 1)])))
    assert format.calls[-2:] == ["close", "close_input_format"]


def interrupted(make: Callable[[], Any], reads: int) -> tuple[list[Any], Any]:
    """What is read of a source in so many calls, and its state then."""
    one = LegacySourceInput(make(), capacity=2, grace=LONG)
    output = TaskOutput()
    while len(output.elements) < reads:
        if one.emit_next(output) is InputStatus.NOTHING_AVAILABLE:
            more = one.available()
            assert more is None or more.result(LONG) is None
    state = one.snapshot_state()
    one.close()
    return output.elements, state


@pytest.mark.contract
@pytest.mark.parametrize("reads", range(10))
def test_a_restored_format_gives_each_record_once(reads: int) -> None:
    def make() -> InputFormatSource[Split, int]:
        return InputFormatSource(Numbers(), SplitList(Numbers().create_input_splits(4)))

    read, state = interrupted(make, min(reads, len(RECORDS)))
    assert read + emitted_by(make(), state) == RECORDS


@pytest.mark.contract
@pytest.mark.parametrize("reads", [0, 1, 5])
def test_a_restored_iterable_gives_each_element_once(reads: int) -> None:
    def make() -> IterableSource:
        return IterableSource("abcde")

    read, state = interrupted(make, reads)
    assert "".join(read + emitted_by(make(), state)) == "abcde"


def test_a_provider_that_takes_no_state_is_told_so() -> None:
    source = InputFormatSource(Numbers(), lambda: None)
    with pytest.raises(ValueError, match=r"state.provider=\(\): the provider .* cannot restore it"):
        source.restore_state(SplitPosition(None, 0, ()))
    assert source.snapshot_state() == SplitPosition(None, 0, None)


@pytest.mark.parametrize("kind", ["format", "iterable"])
def test_a_cancelled_source_ends_and_closes_what_it_reads(kind: str) -> None:
    endless = Numbers(10**9)
    source: Any = IterableSource(iter(int, 1))
    if kind == "format":
        source = InputFormatSource(endless, SplitList([(0, 10**9)]))
    one = LegacySourceInput(source, grace=LONG)
    output = TaskOutput()
    while not output.elements:
        one.emit_next(output)
    one.close()
    assert one._thread.done.done()
    assert not one._thread._thread.is_alive()
    if kind == "format":
        assert endless.calls[-2:] == ["close", "close_input_format"]


def test_one_split_is_read_by_itself() -> None:
    format = Numbers()
    assert list(read_split(format, (3, 5))) == [3, 4]
    assert format.calls == ["open (3, 5)", "close"]
