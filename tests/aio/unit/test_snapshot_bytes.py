"""Snapshots of a running task as bytes: what is read is what was written, whenever it was taken."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import decimal
import math
import os
import pickle
import threading
import uuid
import zlib
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Budget, Buffer, Errors, Options, Retry, RetryBudget
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import Call, CallState
from pillarbox.aio.chained import as_record
from pillarbox.aio.errors import Failed
from pillarbox.aio.row_inputs import BATCH_ROWS, AsyncIterableInput, CollectionInput, IterableInput
from pillarbox.aio.snapshots import VERSION, SnapshotCodec, SnapshotError
from pillarbox.aio.states import FinishedRow, OutputState
from pillarbox.aio.task_run import ChunkOutput
from pillarbox.task import InputStatus, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, OperatorSnapshot, TaskSnapshot
from pillarbox.task.protocols import RowBatch, Watermark
from pillarbox.testing import VirtualTimeLoop
from pillarbox.testing.test_io import CollectedOutput, ReplayedInput
from tests.aio.unit.test_wait_snapshots import UNALIGNED
from tests.aio.virtual import LONG
from tests.search import examples


def comparable(value: Any) -> Any:
    """A value whose parts compare by what they hold."""
    if isinstance(value, RowBatch):
        return "batch", comparable(value.rows[value.position :]), value.row_bytes, value.held_bytes
    if isinstance(value, Call):
        return "call", comparable(value.row), value.held
    if isinstance(value, Failed):
        return "failed", value.info, value.not_called
    if isinstance(value, BaseException):
        return type(value).__name__, str(value)
    if isinstance(value, Mapping):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value).__name__, [comparable(each) for each in value]
    return value


def check_round_trip(snapshot: TaskSnapshot, codec: SnapshotCodec | None = None) -> TaskSnapshot:
    codec = codec or SnapshotCodec()
    data = codec.encode(snapshot)
    read = codec.decode(data)
    assert comparable(read) == comparable(snapshot)
    assert comparable(codec.decode(codec.encode(read))) == comparable(snapshot)
    return read


class Flaky:
    """Takes `seconds` for a call and fails the first `failures` of a row, by the place of the row."""

    def __init__(self, seconds: list[float], failures: list[int]) -> None:
        self.seconds = seconds
        self.failures = failures
        self.failed: dict[int, int] = {}

    async def one(self, row: int) -> tuple[str, int]:
        await asyncio.sleep(self.seconds[row % len(self.seconds)])
        if self.failed.get(row, 0) < self.failures[row % len(self.failures)]:
            self.failed[row] = self.failed.get(row, 0) + 1
            raise ConnectionError(f"row {row}")
        return "answer", row

    async def many(self, rows: list[int]) -> list[tuple[str, int]]:
        return [await self.one(row) for row in rows]


def snapshots_of(
    elements: list[int | Watermark],
    service: Flaky,
    *,
    at: list[float],
    taken_at: list[float] = [],  # noqa: B006
    size: int = 3,
    **options: Any,
) -> list[TaskSnapshot]:
    """Run a task, and take snapshots of it at these times; its consumer takes results at others."""
    loop = VirtualTimeLoop(longest=LONG)
    found: list[TaskSnapshot] = []

    async def main() -> None:
        fn: Any = service.many if options.get("batch") else service.one
        context = contextvars.copy_context()
        operator = AsyncWaitOperator(fn, Options(**options), loop=loop, context=context, uid="wait")
        output = ChunkOutput(loop)
        task = StreamTask(ReplayedInput(elements, size), [operator], output, latency_interval=None)
        for number, second in enumerate(sorted(at)):

            def take(number: int = number) -> None:
                asked = task.trigger_checkpoint_async(number, UNALIGNED)
                # A task that has ended declines it.
                asked.add_done_callback(lambda done: done.exception() or found.append(done.result()))

            loop.call_later(second, take)

        async def consume() -> None:
            for second in sorted(taken_at):
                await asyncio.sleep(max(0.0, second - loop.time()))
                await output.take_async()

        running = asyncio.ensure_future(task.run_async())
        consuming = asyncio.ensure_future(consume())
        await asyncio.sleep(max(at) + 0.01)
        consuming.cancel()
        task.fail(ZeroDivisionError())
        await asyncio.wait([running, consuming])
        assert running.done()
        running.exception()

    loop.run_until_complete(main())
    loop.close()
    return found


TIMES = st.integers(0, 90).map(lambda tenths: tenths / 10 + 0.05)


@pytest.mark.contract("The bytes of a snapshot of a running task, read, are that snapshot, at every step.")
@settings(max_examples=examples(150))
@given(
    elements=st.lists(st.sampled_from([True, True, True, False]), max_size=30),
    seconds=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 30.0]), min_size=1, max_size=5),
    failures=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    at=st.lists(TIMES, min_size=1, max_size=4, unique=True),
    taken_at=st.lists(TIMES, max_size=3),
    size=st.integers(1, 12),
    options=st.fixed_dictionaries(
        {
            "capacity": st.integers(1, 6),
            "buffer": st.builds(Buffer, st.integers(6, 12)),
            "ordered": st.booleans(),
            "timeout": st.sampled_from([None, 3.0]),
            "batch": st.sampled_from([None, Batch(3, linger=0.5)]),
            "budget": st.builds(Budget, st.sampled_from([None, 9])),
        }
    ),
    budget=st.booleans(),
)
def test_the_bytes_of_a_snapshot_read_are_that_snapshot(
    elements: list[bool],
    seconds: list[float],
    failures: list[int],
    at: list[float],
    taken_at: list[float],
    size: int,
    options: dict[str, Any],
    budget: bool,
) -> None:
    given_in = [place if is_row else Watermark(float(place)) for place, is_row in enumerate(elements)]
    retry = Retry(
        3, initial=1.0, maximum=2.0, budget=RetryBudget(share=0.0, least=3, seconds=100.0) if budget else None
    )
    service = Flaky(seconds, failures)
    given_options = {**options, "retry": retry, "errors": Errors("column", stop_after=0.9)}
    for snapshot in snapshots_of(given_in, service, at=at, taken_at=taken_at, size=size, **given_options):
        check_round_trip(snapshot)


def test_a_snapshot_has_everything_that_a_restart_needs() -> None:
    """One that has all of it, so that the search above is known to look at each part."""
    service = Flaky([4.0, 0.1, 0.2, 1.0], [0, 0, 9, 0, 0, 9])
    retry = Retry(3, initial=100.0, maximum=100.0, jitter=False, budget=RetryBudget(share=0.0, least=5))
    elements: list[int | Watermark] = [1, 0, Watermark(2.0), *range(2, 12)]
    (snapshot,) = snapshots_of(
        elements,
        service,
        at=[1.05],
        size=9,
        capacity=5,
        buffer=Buffer(6),
        timeout=300.0,
        retry=retry,
        errors="column",
        budget=Budget(max_calls=50),
    )
    state = snapshot.operators["wait"].state
    kinds = {type(entry).__name__ for entry in state.entries}
    assert kinds == {"CallState", "FinishedRow", "list"}, "in flight, finished behind another, a watermark"
    calls = [each for each in state.entries if isinstance(each, CallState)]
    assert any(each.attempts and each.pause and each.error and each.spent for each in calls)
    assert any(not each.attempts and each.spent for each in calls)
    assert any(isinstance(each, FinishedRow) for each in state.entries)
    assert state.scheduler.retries and state.scheduler.calls
    (pending,) = snapshot.operators["wait"].pending
    assert len(pending) and isinstance(snapshot.output, OutputState) and snapshot.output.rows
    assert snapshot.input and not snapshot.time_ended
    read = check_round_trip(snapshot)
    again = [each for each in read.operators["wait"].state.entries if isinstance(each, CallState)]
    assert isinstance(next(each.error for each in again if each.error), ConnectionError)


# -- the output, the input ----------------------------------------------------------------------------


@pytest.mark.contract("Results are in a snapshot until their consumer asks for the next ones.")
@pytest.mark.parametrize("kind", ["another thread", "the same loop"])
def test_results_are_in_a_snapshot_until_their_consumer_asks_for_the_next_ones(kind: str) -> None:
    loop = VirtualTimeLoop(longest=LONG)

    def made() -> tuple[Any, Callable[[], Any]]:
        if kind == "the same loop":
            of_loop = ChunkOutput(loop, chunk_bytes=16)
            return of_loop, lambda: loop.run_until_complete(of_loop.take_async())
        of_thread = ChunkOutput(loop, chunk_bytes=16)

        def take() -> Any:
            # What the consumer has made room for comes by way of the loop.
            loop.run_until_complete(asyncio.sleep(0))
            return of_thread.take(lambda: None)

        return of_thread, take

    def rows(state: OutputState) -> tuple[int, list[Any]]:
        return state.taken, [call.row for call, _ in state.rows]

    output, take = made()
    output.collect(RowBatch([(Call(row, 8), f"result {row}") for row in range(5)], held_bytes=40))
    assert rows(output.snapshot_state()) == (0, [0, 1, 2, 3, 4])
    first = [call.row for call, _ in take()]
    assert rows(output.snapshot_state()) == (0, [0, 1, 2, 3, 4]), "the consumer is at work on them"
    output.collect(RowBatch([(Call(5, 8), "result 5")], held_bytes=8))
    second = [call.row for call, _ in take()]
    state = output.snapshot_state()
    left = [row for row in range(6) if row not in first]
    assert rows(state) == (len(first), left) and second == left[: len(second)]
    again, take_again = made()
    again.restore_state(state)
    again.emit_watermark(math.inf)
    again.finish()
    found: list[Any] = []
    while (chunk := take_again()) is not None:
        found += [(call.row, result) for call, result in chunk]
    assert found == [(row, f"result {row}") for row in left]
    assert again.snapshot_state() == OutputState(6, (), True)
    loop.close()


def read_restored(kind: str, rows: range, emitted: int) -> list[Any]:
    """The rows that an input emits that was restored behind so many of them."""
    loop = VirtualTimeLoop(longest=LONG)

    async def slowly() -> Any:
        for row in rows:
            yield row

    async def main() -> list[Any]:
        input: Any
        if kind == "collection":
            input = CollectionInput(rows)
        elif kind == "iterable":
            input = IterableInput(iter(rows), 7)
        else:
            input = AsyncIterableInput(slowly(), loop, 7)
        input.restore_state(emitted)
        input.start(contextvars.copy_context())
        output = CollectedOutput()
        while (status := input.emit_next(output)) is not InputStatus.END_OF_INPUT:
            if status is InputStatus.NOTHING_AVAILABLE and (ready := input.available()) is not None:
                if kind == "iterable":
                    ready.result()
                else:
                    await asyncio.wrap_future(ready)
        assert input.snapshot_state() == len(rows)
        input.close()
        if kind == "iterable":
            input.join(60)
        return [row for batch in output.records for row in batch.rows]

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.contract("A restored input of rows passes over those that it had emitted.")
@pytest.mark.parametrize("emitted", [0, 1, BATCH_ROWS, BATCH_ROWS + 5])
@pytest.mark.parametrize("kind", ["collection", "iterable", "async iterable"])
def test_a_restored_input_of_rows_passes_over_those_that_it_had_emitted(kind: str, emitted: int) -> None:
    rows = range(BATCH_ROWS + 5)
    assert read_restored(kind, rows, emitted) == list(rows)[emitted:]


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["collection", "iterable", "async iterable"])
def test_a_restored_input_that_ends_before_its_position_is_an_error(kind: str) -> None:
    with pytest.raises(ValueError, match="ended 2 rows before the position that the snapshot has of it"):
        read_restored(kind, range(3), 5)


@pytest.mark.contract
def test_a_coroutine_that_waits_for_results_gets_those_that_are_restored() -> None:
    loop = VirtualTimeLoop(longest=LONG)
    output = ChunkOutput(loop)

    async def main() -> Any:
        taking = asyncio.ensure_future(output.take_async())
        await asyncio.sleep(0)
        output.restore_state(OutputState(7, ((Call("row", 0), "result"),), False))
        return await taking

    ((call, result),) = loop.run_until_complete(main())
    assert (call.row, result) == ("row", "result")
    loop.close()


# -- what cannot be read, or kept -------------------------------------------------------------------


def snapshot_with(result: Any) -> TaskSnapshot:
    return TaskSnapshot(
        CheckpointBarrier(3, 0.5, UNALIGNED), 7, {}, OutputState(2, ((Call("row", 5), result),), True), True
    )


@pytest.mark.contract("A snapshot of another version is refused in words, and so is a damaged one.")
def test_a_snapshot_of_another_version_is_refused_in_words_and_so_is_a_damaged_one() -> None:
    codec = SnapshotCodec()
    data = codec.encode(snapshot_with([1.5] * 20))
    for version in (VERSION - 1, VERSION + 1):
        other = data[:16] + version.to_bytes(4, "little") + data[20:]
        with pytest.raises(
            SnapshotError, match=f"version {version}, .* knows version {VERSION} only: use that of"
        ):
            codec.decode(other)
    with pytest.raises(SnapshotError, match="not the snapshot of a task"):
        codec.decode(b"something else")
    for place in range(20, len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(SnapshotError, match="damaged"):
            codec.decode(damaged)
    for length in range(len(data)):
        with pytest.raises(SnapshotError):
            codec.decode(data[:length])


@dataclass
class Place:
    """A value of a class of its own, which a function may give."""

    name: str
    height: float


class Planted:
    """A value whose pickle has a function called."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.how = call, args

    def __reduce__(self) -> Any:
        return self.how


def forged(body: bytes) -> bytes:
    """The bytes of a snapshot with a pickle that was not written here."""
    head = SnapshotCodec().encode(snapshot_with(None))[:16]
    return head + VERSION.to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


@pytest.mark.contract("A snapshot that names what was not allowed is refused and runs nothing.")
def test_a_snapshot_that_names_what_was_not_allowed_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for planted in (
        Planted(os.mkdir, str(made)),
        Planted(eval, f"__import__('os').mkdir({str(made)!r})"),
        Planted(getattr, Call, "__init__"),
        Place("a", 2.5),
    ):
        with pytest.raises(SnapshotError, match=r"has no place in a snapshot: .* allowed="):
            SnapshotCodec().decode(forged(pickle.dumps(planted)))
    # A name behind a name is another name.
    words = [bytes([len(word)]) + word.encode() for word in ("pillarbox.aio.snapshots", "pickle.loads")]
    dotted = forged(b"\x80\x04\x8c" + words[0] + b"\x8c" + words[1] + b"\x93.")
    with pytest.raises(SnapshotError, match=r"pickle\.loads has no place"):
        SnapshotCodec().decode(dotted)
    assert not made.exists()


@pytest.mark.contract("A snapshot says which value it cannot keep, before anything is written.")
@pytest.mark.parametrize(
    ("value", "name"), [(Place("a", 2.5), "Place"), (open, "open"), (Planted(os.mkdir, "here"), "mkdir")]
)
def test_a_snapshot_says_which_value_it_cannot_keep(value: Any, name: str) -> None:
    with pytest.raises(SnapshotError, match=rf"{name} has no place in a snapshot: .* allowed="):
        SnapshotCodec().encode(snapshot_with(value))


def test_a_value_that_has_no_pickle_cannot_be_kept() -> None:
    with pytest.raises(SnapshotError, match=r"cannot be written: .*lock"):
        SnapshotCodec().encode(snapshot_with(threading.Lock()))


def test_a_snapshot_keeps_what_it_is_allowed_and_the_usual_values() -> None:
    check_round_trip(snapshot_with(Place("a", 2.5)), SnapshotCodec([Place]))
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    usual = {
        "a": [None, True, 1.5, b"bytes", bytearray(b"more"), {1, 2}, frozenset({3}), 1j],
        "b": (decimal.Decimal("1.20"), uuid.UUID(int=7), datetime.timedelta(1), datetime.time(1, 2)),
        "c": [datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, tzinfo=zone)],
        "d": [datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.timezone.utc), as_record({"a": 1})],
    }
    check_round_trip(snapshot_with(usual))


def test_rows_of_a_link_are_kept_from_the_position_of_their_batch_on() -> None:
    batch = RowBatch([*range(10)], 8, held_bytes=80)
    batch.take(4)
    snapshot = TaskSnapshot(CheckpointBarrier(1, 0.0), None, {"a": OperatorSnapshot(None, (batch.rest(),))})
    (read,) = check_round_trip(snapshot).operators["a"].pending
    assert (read.rows, read.position) == ([*range(4, 10)], 0)
