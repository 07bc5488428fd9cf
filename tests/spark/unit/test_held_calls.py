"""The calls of a stream between micro-batches: begun once, read at will, released by a later state."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox import Buffer

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox import Batch, CallFailed, Options
from pillarbox.loop_thread import LoopThread
from pillarbox.spark.dead_letters import DeadLetter, dead_letter_of
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.stream.bucket_state import BATCH, IDENTITY, SEQUENCE, BucketState
from pillarbox.spark.stream.held_calls import HeldCalls, LateExecutionError
from pillarbox.spark.writer import RowWriter
from tests.spark.unit.digests import digests_of_numbers
from tests.waiting import wait_until

SCHEMA = T.StructType().add("called", T.LongType())
LONG_S = 3600.0
"""Seconds beyond the time-out of every test, which alone ends a wait for what never comes."""


class Service:
    """An async function of rows whose calls end when the test says so, or at once."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.calls: Counter[int] = Counter()
        self.cancelled: Counter[int] = Counter()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.gates: dict[int, asyncio.Event] = {}
        self.failing: set[int] = set()

    async def __call__(self, row: Any) -> int:
        self.loop = asyncio.get_running_loop()
        number: int = row.n
        self.calls[number] += 1
        if not self.at_once:
            try:
                await self.gates.setdefault(number, asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.cancelled[number] += 1
                raise
        if number in self.failing:
            raise ValueError("no")
        return number * 100 + self.calls[number]

    def end(self, number: int) -> None:
        wait_until(lambda: number in self.gates)
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.gates[number].set)


@pytest.fixture
def make() -> Iterator[Callable[..., HeldCalls]]:
    thread = LoopThread("test-loop")
    made = []

    def make(
        service: Any,
        dead_letters: DeadLetter | None = None,
        **given: Any,
    ) -> HeldCalls:
        options = Options(ordered=False, **given)
        writer = RowWriter([], SCHEMA, None, errors=options.errors.mode)
        convert = RowEncoder(SCHEMA, None)
        calls = HeldCalls(
            service,
            options,
            writer,
            loop_thread=thread,
            convert=convert,
            dead_letters=dead_letters,
        )
        made.append(calls)
        return calls

    yield make
    for calls in made:
        calls.close()
        wait_until(lambda calls=calls: calls.failure is not None)  # type: ignore[misc]
    assert thread.close(10)


def rows_of(numbers: list[int], time: int = 1, text: str = "") -> pa.RecordBatch:
    values = np.array(numbers, np.int64)
    batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array([text] * len(numbers))], ["n", "text"])
    rows = BucketState().with_rows(batch, time, values, digests_of_numbers(values))
    assert rows is not None
    return rows


def ids(rows: pa.RecordBatch) -> list[bytes]:
    made: list[bytes] = rows.column(IDENTITY).to_pylist()
    return made


def soon() -> float:
    return time.monotonic() + LONG_S


def results(calls: HeldCalls, wanted: list[bytes], time: int = 1, bucket: int = 0) -> dict[int, int]:
    """The known results: place in `wanted` to result."""
    known = calls.read(bucket, time, wanted)
    if known.outputs is None:
        return {}
    return dict(zip(known.places.tolist(), known.outputs.column(0).to_pylist(), strict=True))


def test_executions_of_a_micro_batch_share_their_calls_and_read_the_same_results(make: Any) -> None:
    service = Service()
    calls = make(service)
    rows = rows_of([1, 2, 3])
    for _ in range(3):
        assert calls.open(0, 1, []) == []
        calls.begin(0, 1, rows)
        calls.wait(0, ids(rows), 0, soon())
        assert results(calls, ids(rows)) == {0: 101, 1: 201, 2: 301}
    assert service.calls == {1: 1, 2: 1, 3: 1}
    # A later micro-batch adopts what its committed state waits for.
    assert calls.open(0, 2, ids(rows)[1:]) == []
    assert results(calls, ids(rows)[1:], time=2) == {0: 201, 1: 301}
    assert service.calls == {1: 1, 2: 1, 3: 1}


def test_a_result_is_released_by_a_later_micro_batch_whose_state_does_not_wait_for_it(make: Any) -> None:
    calls = make(Service())
    rows = rows_of([1, 2, 3])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    calls.wait(0, ids(rows), 0, soon())
    # Another execution of the micro-batch releases nothing.
    calls.open(0, 1, [])
    assert calls.pending == 3
    calls.open(0, 2, ids(rows)[2:])
    assert calls.pending == 1
    assert calls.open(0, 2, ids(rows)) == [0, 1]


def test_rows_that_are_not_there_are_begun_anew(make: Any) -> None:
    service = Service()
    service.failing = {2}
    calls = make(service, errors="column")
    rows = rows_of([1, 2])
    assert calls.open(0, 5, ids(rows)) == [0, 1]
    calls.begin(0, 5, rows)
    calls.wait(0, ids(rows), 0, soon())
    known = calls.read(0, 5, ids(rows))
    assert known.outputs is not None
    error = known.outputs.column(1)[known.places.tolist().index(1)].as_py()
    assert error["attempts"] == 1


def test_a_task_of_an_earlier_micro_batch_is_refused_and_changes_nothing(make: Any) -> None:
    calls = make(Service())
    rows = rows_of([1, 2], time=2)
    calls.open(0, 2, [])
    calls.begin(0, 2, rows)
    calls.wait(0, ids(rows), 0, soon())
    with pytest.raises(LateExecutionError, match="micro-batch of 1 ms was opened after that of 2"):
        calls.open(0, 1, ids(rows_of([7])))
    assert results(calls, ids(rows), time=2) == {0: 101, 1: 201}
    # Also where nothing is held any more.
    calls.open(0, 3, [])
    assert calls.pending == 0
    with pytest.raises(LateExecutionError, match="micro-batch of 2 ms was opened after that of 3"):
        calls.open(0, 2, [])
    # Other buckets have times of their own.
    assert calls.open(1, 1, []) == []


@pytest.mark.contract(
    "A row of a stream that nobody waits for is not called again, also when its batch is being taken apart."
)
def test_a_row_that_nobody_waits_for_leaves_the_batch_that_is_taken_apart(make: Any) -> None:
    begun: list[list[int]] = []
    gate = threading.Event()

    async def call(rows: list[Any]) -> list[int]:
        numbers = [row.n for row in rows]
        begun.append(numbers)
        if len(numbers) > 1 and 4 in numbers:
            raise ValueError("4 among others")
        while 1 in numbers and not gate.is_set():
            await asyncio.sleep(0.001)
        return numbers

    calls = make(call, batch=Batch(4), capacity=1, buffer=Buffer(4))
    rows = rows_of([1, 2, 3, 4])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    # The first half runs, the second one waits for its slot.
    wait_until(lambda: begun == [[1, 2, 3, 4], [1, 2]])
    calls.open(0, 2, ids(rows)[:3])
    gate.set()
    calls.wait(0, ids(rows)[:3], 0, soon())
    assert begun == [[1, 2, 3, 4], [1, 2], [3]]


def test_a_task_that_a_later_micro_batch_has_overtaken_begins_no_call_and_reads_nothing(make: Any) -> None:
    service = Service()
    calls = make(service)
    rows = rows_of([1, 2])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    calls.wait(0, ids(rows), 0, soon())
    # Another execution has opened it, and the micro-batch is committed before it goes on.
    calls.open(0, 1, [])
    calls.open(0, 2, [])
    with pytest.raises(LateExecutionError):
        calls.begin(0, 1, rows)
    with pytest.raises(LateExecutionError):
        calls.read(0, 1, ids(rows))
    assert calls.pending == 0
    assert service.calls == {1: 1, 2: 1}


def test_where_more_rows_are_pending_than_can_be_called_only_those_of_before_are_waited_for(
    make: Any,
) -> None:
    service = Service(at_once=False)
    calls = make(service, capacity=2)
    rows = rows_of([1, 2, 3])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    calls.wait(0, ids(rows), 0, soon())
    calls.open(0, 2, ids(rows))
    waiting = threading.Thread(target=calls.wait, args=(0, ids(rows), 1, soon()))
    waiting.start()
    service.end(1)
    waiting.join(LONG_S)
    assert not waiting.is_alive()
    # Two are left, which are called at a time.
    waiting = threading.Thread(target=calls.wait, args=(0, ids(rows), 0, soon()))
    waiting.start()
    service.end(2)
    assert service.calls.total() >= 2
    service.end(3)
    waiting.join(LONG_S)
    assert not waiting.is_alive()
    assert results(calls, ids(rows), time=2) == {0: 101, 1: 201, 2: 301}


@pytest.mark.contract(convicts=["forgotten_by_input"])
def test_a_bucket_that_has_moved_to_another_process_is_forgotten_and_gives_up_its_slots(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service, capacity=2)
    moved, here = rows_of([1, 2]), rows_of([3, 4])
    calls.open(0, 1, [], ticked=True)
    calls.begin(0, 1, moved)
    calls.open(1, 1, [], ticked=True)
    calls.begin(1, 1, here)
    wait_until(lambda: service.calls.total() == 2)
    # One that has input only, and a second execution of one that opens all, tell nothing of where others are.
    calls.open(1, 2, ids(here))
    calls.open(1, 3, ids(here), ticked=True)
    calls.open(1, 3, ids(here), ticked=True)
    calls.open(1, 4, ids(here))
    assert calls.pending == 4
    calls.open(1, 5, ids(here), ticked=True)
    assert calls.pending == 2
    service.end(3)
    service.end(4)
    calls.wait(1, ids(here), 0, soon())
    assert service.cancelled == {1: 1, 2: 1}


def test_calls_that_no_state_waits_for_are_cancelled_and_give_up_their_slots(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service, capacity=2)
    # Some wait for a slot, others for room in the operator.
    first = rows_of([1, 2, *range(100, 200)])
    calls.open(0, 1, [])
    calls.begin(0, 1, first)
    wait_until(lambda: service.calls.total() == 2)
    # The micro-batch that read them has failed for good: a later one knows nothing of them.
    calls.open(0, 2, [])
    second = rows_of([5, 6], time=2)
    calls.begin(0, 2, second)
    service.end(5)
    service.end(6)
    calls.wait(0, ids(second), 0, soon())
    assert service.calls == {1: 1, 2: 1, 5: 1, 6: 1}
    assert service.cancelled == {1: 1, 2: 1}


@pytest.mark.contract(convicts=["released_stay_unfinished"])
def test_rows_are_waited_for_again_where_those_that_were_too_many_are_released(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service, capacity=2)
    calls.open(0, 1, [])
    calls.begin(0, 1, rows_of([1, 2, 3]))
    wait_until(lambda: service.calls.total() == 2)
    calls.open(0, 2, [])
    rows = rows_of([5, 6], time=2)
    calls.begin(0, 2, rows)
    is_over = threading.Event()

    def end() -> None:
        """End the calls when they are waited for, or the wait, which should have been for them, is over."""
        wait_until(lambda: is_over.is_set() or calls._changed._waiters)
        service.end(5)
        service.end(6)

    ending = threading.Thread(target=end)
    ending.start()
    calls.wait(0, ids(rows), 0, soon())
    is_over.set()
    assert results(calls, ids(rows), time=2) == {0: 501, 1: 601}
    ending.join()


@pytest.mark.contract(convicts=["taken_rows_called_again"])
def test_rows_that_are_called_are_not_called_again_where_others_that_came_with_them_are_released(
    make: Any,
) -> None:
    service = Service(at_once=False)
    # The operator has taken two, and two wait for room.
    calls = make(service, capacity=1, buffer=Buffer(2))
    rows = rows_of([1, 2, 3, 4])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    wait_until(lambda: service.calls.total() == 1)
    calls.open(0, 2, ids(rows)[:3])
    for number in (1, 2, 3):
        service.end(number)
    calls.wait(0, ids(rows)[:3], 3, soon())
    assert service.calls == {1: 1, 2: 1, 3: 1}


def test_a_wait_ends_at_its_time_and_what_has_not_ended_goes_on(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service)
    rows = rows_of([1, 2])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    service.end(2)
    calls.wait(0, ids(rows)[1:], 0, soon())
    calls.wait(0, ids(rows), 0, time.monotonic())
    assert results(calls, ids(rows)) == {1: 201}
    service.end(1)
    calls.wait(0, ids(rows), 0, soon())
    assert results(calls, ids(rows)) == {0: 101, 1: 201}


@pytest.mark.contract(convicts=["one_row_beyond_max_bytes"])
def test_what_does_not_fit_into_max_bytes_is_left_to_the_state(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service, buffer=Buffer(max_bytes=5000))
    rows = rows_of([1, 2, 3, 4], text="x" * 2000)
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    assert calls.pending == 2
    service.end(1)
    service.end(2)
    calls.wait(0, ids(rows), 0, soon())
    known = calls.read(0, 1, ids(rows))
    assert known.places.tolist() == [0, 1]
    # The next micro-batch begins them, once those have left.
    assert calls.open(0, 2, ids(rows)[2:]) == [0, 1]
    calls.begin(0, 2, rows.slice(2))
    assert calls.pending == 2
    # Nor has another bucket room.
    calls.open(1, 2, [])
    calls.begin(1, 2, rows_of([7], time=2, text="x" * 2000))
    assert calls.pending == 2
    # A row that is larger than all that may be held is called alone.
    calls.open(0, 3, [])
    large = rows_of([9, 10], time=3, text="x" * 9000)
    calls.begin(0, 3, large)
    assert calls.pending == 1


def test_a_row_that_is_pending_keeps_a_slice_of_its_batch_in_memory_and_not_the_whole(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service, buffer=Buffer(max_bytes=None))
    rows = rows_of(list(range(20_000)), text="x" * 100)
    column = weakref.ref(rows)
    before = pa.total_allocated_bytes()
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    last = ids(rows)[-1:]
    del rows
    calls.open(0, 2, last)
    gc.collect()
    assert column() is None
    assert calls.pending == 1
    wait_until(lambda: pa.total_allocated_bytes() < before)


def test_rows_that_have_failed_are_dead_letters_in_every_reading(make: Any, tmp_path: Any) -> None:
    service = Service()
    service.failing = {2, 3}
    letter = dead_letter_of(str(tmp_path), ["n", "text"])
    assert letter is not None
    calls = make(service, letter, errors="drop")
    rows = rows_of([1, 2, 3, 4])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    calls.wait(0, ids(rows), 0, soon())
    for _ in range(2):
        known = calls.read(0, 1, ids(rows))
        assert known.places.tolist() == [0, 1, 2, 3]
        assert known.counts is not None
        assert known.counts.tolist() == [1, 0, 0, 1]
        assert known.dead_letters is not None
        assert known.dead_letters.column(0).to_pylist() == [2, 3]
        assert known.dead_letters.schema.names[:2] == ["n", "text"]
    assert not list(tmp_path.iterdir())


def test_what_ends_the_task_of_the_calls_is_raised_to_who_waits_for_them(make: Any) -> None:
    service = Service()
    service.failing = {2}
    calls = make(service)
    rows = rows_of([1, 2])
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    with pytest.raises(CallFailed, match="no"):
        calls.wait(0, ids(rows), 0, soon())


def test_identities_and_what_is_kept_beside_a_row_are_not_seen_by_the_function(make: Any) -> None:
    seen: list[list[str]] = []

    class Looking(Service):
        async def __call__(self, row: Any) -> int:
            seen.append(list(row.asDict()))
            return 1

    calls = make(Looking())
    rows = rows_of([1])
    assert {IDENTITY, SEQUENCE, BATCH} <= set(rows.schema.names)
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    calls.wait(0, ids(rows), 0, soon())
    assert seen == [["n", "text"]]


@pytest.mark.contract(convicts=["shared_call_discarded"])
def test_a_call_that_an_equal_row_waits_for_goes_on_when_its_own_row_is_released(make: Any) -> None:
    service = Service(at_once=False)
    calls = make(service, dedupe=lambda row: row.text)
    rows = rows_of([1, 2], text="same")
    calls.open(0, 1, [])
    calls.begin(0, 1, rows)
    wait_until(lambda: service.calls.total() == 1)
    calls.open(0, 2, ids(rows)[1:])
    service.end(1)
    calls.wait(0, ids(rows)[1:], 1, soon())
    assert results(calls, ids(rows)[1:], time=2) == {0: 101}
    assert service.calls == {1: 1}
    # With nobody left that wants it, it is cancelled.
    calls.open(0, 3, [])
    calls.begin(0, 3, rows_of([3, 4], 3, text="other"))
    wait_until(lambda: service.calls.total() == 2)
    calls.open(0, 4, [])
    wait_until(lambda: service.cancelled == {3: 1})
