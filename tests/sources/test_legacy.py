"""Old functions and formats as sources: in a task, in micro-batches, after restarts."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pillarbox.sources import Boundedness, ReadFailed, ReadLimit, Source, legacy_format
from pillarbox.sources.connectors.files.listing import list_files
from pillarbox.sources.legacy import FromFolder, FromInputFormat, FromSourceFunction, FunctionSplit
from pillarbox.task import InputFormat, ReplicatingInputFormat, RichInputFormat, SourceContext, SourceFunction
from pillarbox.testing import SourceHarness
from tests.sources.number_source import LONG
from tests.threads import begun


class Counting(SourceFunction):
    """Emits 0, 1, 2 and so on, `section` of them at a time, up to `end`; then waits for its cancel."""

    def __init__(self, end: int, section: int = 1, ends: bool = True) -> None:
        self.next, self.end, self.section, self.ends = 0, end, section, ends
        self.stop = threading.Event()

    @property
    def atomic_sections(self) -> bool:  # type: ignore[override]
        return self.section > 1

    def run(self, context: SourceContext) -> None:
        while self.next < self.end and not self.stop.is_set():
            with context.checkpoint_lock:
                for number in range(self.next, min(self.next + self.section, self.end)):
                    self.emit(context, number)
                self.next = min(self.next + self.section, self.end)
        if not self.ends:
            assert self.stop.wait(LONG)

    def emit(self, context: SourceContext, number: int) -> None:
        context.collect(number)

    def cancel(self) -> None:
        self.stop.set()

    def snapshot_state(self) -> int:
        return self.next

    def restore_state(self, state: int) -> None:
        self.next = state


class Timed(Counting):
    def emit(self, context: SourceContext, number: int) -> None:
        context.collect_with_timestamp(number, 100.0 + number)


class Marked(Counting):
    def emit(self, context: SourceContext, number: int) -> None:
        context.collect(number)
        context.emit_watermark(number - 5.0)


class Broken(Counting):
    def emit(self, context: SourceContext, number: int) -> None:
        if number == 30:
            raise OSError("no more")
        super().emit(context, number)


class Forgetful(SourceFunction):
    def run(self, context: SourceContext) -> None:
        context.collect(1)

    def cancel(self) -> None:
        pass


def no_thread_is_left() -> bool:
    return not begun()


def make(kind: type[Counting] = Counting, *args: Any) -> Callable[[], SourceFunction]:
    return partial(kind, *args)


@pytest.mark.parametrize("section", [1, 7])
def test_a_function_is_read_to_its_end(section: int) -> None:
    source = FromSourceFunction(make(Counting, 500, section), bounded=True, capacity=20)
    assert source.boundedness is Boundedness.BOUNDED
    with SourceHarness(source, readers=2) as harness:
        assert harness.read_all() == list(range(500))
    assert no_thread_is_left()


@pytest.mark.contract
@pytest.mark.parametrize("section", [1, 7])
def test_a_function_goes_on_from_a_checkpoint_without_a_gap(section: int) -> None:
    source = FromSourceFunction(make(Counting, 10**9, section), capacity=10)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    rows: list[int] = []
    snapshot = None
    for _ in range(4):
        with SourceHarness(source, snapshot=snapshot) as harness:
            rows += harness.read(50)
            harness.restart_reader()
            rows += harness.read(50)
            snapshot = harness.snapshot()
    assert rows == list(range(len(rows))) and len(rows) >= 400


@pytest.mark.parametrize("section", [1, 7])
@pytest.mark.parametrize("limit", [1, 10, 33])
def test_a_micro_batch_reads_as_many_rows_as_it_may_and_the_same_each_time(section: int, limit: int) -> None:
    source = FromSourceFunction(make(Counting, 50, section, False), capacity=20)
    rows: list[int] = []
    with SourceHarness(source) as harness:
        while len(rows) < 50:
            (piece,) = harness.plan(ReadLimit(rows=limit))
            batch = harness.read_split(piece)
            assert 1 <= len(batch) <= limit
            assert piece.rows == len(batch)
            assert harness.read_split(piece) == batch
            rows += batch
        assert harness.plan(ReadLimit(rows=limit)) == []
    assert rows == list(range(50))
    assert no_thread_is_left()


def test_micro_batches_go_on_after_a_restart_of_the_driver() -> None:
    source = FromSourceFunction(make(Counting, 10**9, 7), capacity=20)
    rows: list[int] = []
    snapshot = None
    for limit in (3, 50, 10, 1):
        with SourceHarness(source, snapshot=snapshot) as harness:
            rows += harness.micro_batch(ReadLimit(rows=limit))
            rows += harness.micro_batch(ReadLimit(rows=limit))
            snapshot = harness.snapshot()
    assert rows == list(range(len(rows))) and len(rows) > 20


def test_the_end_of_a_function_ends_its_split() -> None:
    source = FromSourceFunction(make(Counting, 40), capacity=10)
    with SourceHarness(source) as harness:
        rows = []
        while pieces := harness.plan(ReadLimit(rows=25)):
            rows += [row for piece in pieces for row in harness.read_split(piece)]
        assert rows == list(range(40))
        assert harness.plan() == []
        assert harness.snapshot()["splits"] == []


def test_micro_batches_share_one_run_ahead_of_the_tasks() -> None:
    made = []

    def counted() -> SourceFunction:
        made.append(1)
        return Counting(10**9)

    with SourceHarness(FromSourceFunction(counted, capacity=10)) as harness:
        before = len(made)
        for _ in range(5):
            assert len(harness.plan(ReadLimit(rows=10))) == 1
    assert len(made) == before + 1


def test_a_silent_function_is_ended_at_once() -> None:
    source = FromSourceFunction(make(Counting, 3, 1, False), grace=LONG)
    with SourceHarness(source) as harness:
        assert harness.read(3) == [0, 1, 2]
        before = time.monotonic()
    assert time.monotonic() - before < LONG / 2
    assert no_thread_is_left()


def test_a_function_that_emits_less_from_a_state_than_before_is_an_error() -> None:
    source = FromSourceFunction(make(Counting, 40), bounded=True)
    too_far = FunctionSplit("function", None, {"count": 50, "base": 50, "state": None})
    with (
        SourceHarness(source) as harness,
        pytest.raises(ReadFailed, match="Counting has emitted 10 rows less"),
    ):
        harness.read_split(too_far)


@pytest.mark.parametrize(("kind", "latest"), [(Timed, 139.0), (Marked, 34.0), (Counting, None)])
def test_the_times_of_a_function_are_its_event_time(kind: type[Counting], latest: float | None) -> None:
    with SourceHarness(FromSourceFunction(make(kind, 40), bounded=True)) as harness:
        assert harness.read_all() == list(range(40))
        assert harness.fetched[-1].timestamp == latest or not harness.fetched[-1].records


def test_an_error_of_a_function_ends_it_where_a_restart_goes_on() -> None:
    source = FromSourceFunction(make(Broken, 100), bounded=True, capacity=4)
    with SourceHarness(source) as harness:
        with pytest.raises(ReadFailed, match="OSError: no more"):
            harness.read_all()
        rows, snapshot = harness.rows, harness.snapshot()
    mended = FromSourceFunction(make(Counting, 100), bounded=True)
    with SourceHarness(mended, snapshot=snapshot) as harness:
        assert rows + harness.read_all() == list(range(100))
    with SourceHarness(source) as harness, pytest.raises(OSError, match="no more"):
        harness.plan()
    assert no_thread_is_left()


def test_a_function_that_cannot_go_on_is_refused_early() -> None:
    with pytest.raises(ValueError, match="makes a Forgetful, which cannot go on after a restart"):
        FromSourceFunction(Forgetful)
    with pytest.raises(TypeError, match="must make a SourceFunction, not int"):
        FromSourceFunction(int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity=0"):
        FromSourceFunction(make(Counting, 1), capacity=0)
    with pytest.raises(TypeError, match="has no schema"):
        FromSourceFunction(make(Counting, 1)).arrow_schema()


def test_with_a_schema_a_record_is_a_row_and_the_source_travels() -> None:
    schema = pa.schema({"n": pa.int64()})
    source = FromSourceFunction(make(Counting, 3), bounded=True, schema=schema)
    copy: Source[Any, Any] = pickle.loads(pickle.dumps(source))
    assert copy.arrow_schema() == schema
    with SourceHarness(copy) as harness:
        assert harness.read_all() == [(0,), (1,), (2,)]


# -- formats ---------------------------------------------------------------------------------------


class Ranges(InputFormat[range, int]):
    """Splits are ranges, as in the documentation."""

    opened: list[Any]

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self.rows = parameters.get("rows", 10)

    def create_input_splits(self, min_splits: int) -> Sequence[range]:
        return [range(n * self.rows, (n + 1) * self.rows) for n in range(min_splits)]

    def open(self, split: range) -> None:
        self.left = list(split)

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> int | None:
        return self.left.pop(0)

    def close(self) -> None:
        self.left = []


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


class Rich(RichInputFormat[str, str]):
    """Lines of files; says what was called."""

    calls: list[str] = []  # noqa: RUF012

    def open_input_format(self) -> None:
        self.calls.append(f"open {self.runtime_context.subtask}")

    def close_input_format(self) -> None:
        self.calls.append("close")

    def create_input_splits(self, min_splits: int) -> Sequence[str]:
        raise AssertionError("a folder has the splits")

    def open(self, split: str) -> None:
        self.file = Path(split).open()  # noqa: SIM115
        self.line = self.file.readline()

    def reached_end(self) -> bool:
        return not self.line

    def next_record(self) -> str | None:
        line, self.line = self.line, self.file.readline()
        return line.strip() or None

    def close(self) -> None:
        self.file.close()


class Locked(Rich):
    def open_input_format(self) -> None:
        raise PermissionError("locked")


@pytest.fixture
def calls() -> list[str]:
    Rich.calls.clear()
    return Rich.calls


def write(folder: Path, name: str, text: str, at: int) -> None:
    (folder / name).write_text(text)
    os.utime(folder / name, (at, at))


def test_new_files_of_a_folder_are_read_those_modified_first_in_front(
    tmp_path: Path, calls: list[str]
) -> None:
    write(tmp_path, "b", "b1\n\nb2\n", at=1_000)
    write(tmp_path, "a", "a1\n", at=2_000)
    write(tmp_path, "_unfinished", "x\n", at=500)
    source = FromFolder(str(tmp_path), Rich, interval=0.01)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    with SourceHarness(source) as harness:
        assert harness.read(3) == ["b1", "b2", "a1"]
        snapshot = harness.snapshot()
        write(tmp_path, "c", "c1\nc2\n", at=3_000)
        assert harness.read(2) == ["c1", "c2"]
    assert calls == ["open 0", "close"]
    # From the checkpoint on the third file is new, and the others are not.
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.read(2) == ["c1", "c2"]
        assert harness.discover() == []


def test_a_folder_can_be_looked_at_once(tmp_path: Path, calls: list[str]) -> None:
    write(tmp_path, "a", "a1\na2\n", at=1_000)
    source = FromFolder(str(tmp_path), Rich, interval=None)
    with SourceHarness(source) as harness:
        assert harness.read_all() == ["a1", "a2"]
    with SourceHarness(source) as harness:
        (piece,) = harness.plan()
        assert (piece.files, piece.nbytes) == (1, 6)
        assert harness.read_split(piece) == ["a1", "a2"]
    with SourceHarness(source) as harness:
        assert len(harness.discover()) == 1
        write(tmp_path, "b", "b1\n", at=2_000)
        assert harness.read_all() == ["a1", "a2"]


def test_a_folder_is_listed_once_for_all_that_a_look_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        write(tmp_path, f"f{number}", "x\n", at=1_000 + number)
    listed: list[str] = []

    def counted(filesystem: Any, path: str, *, recursive: bool) -> Any:
        listed.append(path)
        return list_files(filesystem, path, recursive=recursive)

    monkeypatch.setattr(legacy_format, "list_files", counted)
    with SourceHarness(FromFolder(str(tmp_path), Rich, interval=0.01)) as harness:
        found = [split.path[-2:] for _ in range(4) for split in harness.discover(2)]
        assert found == [f"f{number}" for number in range(7)]
        assert len(listed) == 1
        write(tmp_path, "late", "x\n", at=2_000)
        assert [split.path[-4:] for split in harness.discover(2)] == ["late"]
        assert len(listed) == 2


def test_a_format_that_cannot_be_opened_is_closed_and_its_error_told(
    tmp_path: Path, calls: list[str]
) -> None:
    write(tmp_path, "a", "a1\n", at=1_000)
    source = FromFolder(str(tmp_path), Locked, interval=None)
    with SourceHarness(source) as harness, pytest.raises(ReadFailed, match="PermissionError: locked"):
        harness.read_all()
    assert calls == ["close"]


def test_bad_formats_are_refused_early(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must make an InputFormat, not int"):
        FromInputFormat(int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="makes a ReplicatingInputFormat"):
        FromInputFormat(lambda: ReplicatingInputFormat(Ranges()))
    with pytest.raises(ValueError, match="min_splits=0"):
        FromInputFormat(Ranges, min_splits=0)
    with pytest.raises(TypeError, match="path=3"):
        FromFolder(3, Rich)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="interval=0"):
        FromFolder(str(tmp_path), Rich, interval=0)
    assert "secret" not in repr(FromFolder("s3://user:secret@bucket/x", Rich))
