"""Snapshots of a task with calls in flight, in virtual time: a restore loses and doubles nothing.

A process that is killed leaves its last snapshot and what its output had taken by then. Everything after that
is done again by the next life, which may have another capacity, and whose calls take other times.
"""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Budget, Buffer, Errors, Limit, Options, Retry, RetryBudget, TooManyFailures
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import CallState
from pillarbox.aio.errors import Failed
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.states import FinishedRow
from pillarbox.ledger import Ledger
from pillarbox.ledger.keys import execution_id
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, Watermark
from pillarbox.testing import VirtualTimeLoop
from pillarbox.testing.test_io import ReplayedInput, RestingOutput
from tests.aio.virtual import LONG
from tests.search import examples

END = Watermark(MAX_WATERMARK)
UNALIGNED = CheckpointOptions(aligned=False)


KILLED: list[asyncio.Task[Any]] = []
"""Coroutines of lives that were killed; collecting one would run what it has to do at its end."""


class PairsOutput(RestingOutput):
    """Keeps each row with its result."""

    def collect(self, batch: RowBatch) -> None:
        super().collect(RowBatch([(call.row, result) for call, result in batch.rows]))


def key_of(row: int) -> int:
    """The key of a row where rows are called in the order of their key."""
    return row % 3


@dataclass
class Service:
    """Takes `seconds` for a call, by row and attempt; the first `failures` of a row fail."""

    seconds: list[float]
    failures: list[int]
    calls: Counter[int] = field(default_factory=Counter)
    failed: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)
    """Calls of this life in flight, by the key of their row."""
    most: Counter[int] = field(default_factory=Counter)
    begun: list[int] = field(default_factory=list)
    """Rows whose first attempt has begun, in that order."""

    async def call(self, row: int) -> tuple[str, int]:
        if not self.calls[row]:
            self.begun.append(row)
        self.calls[row] += 1
        key = key_of(row)
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        try:
            return await self._call(row)
        finally:
            self.running[key] -= 1

    async def _call(self, row: int) -> tuple[str, int]:
        await asyncio.sleep(self.seconds[(row + self.calls[row]) % len(self.seconds)])
        if self.failed[row] < self.failures[row % len(self.failures)]:
            self.failed[row] += 1
            raise ConnectionError(row)
        return "answer", row


def finished_in(snapshot: TaskSnapshot) -> set[int]:
    """The rows that have their result in a snapshot."""
    (operator,) = snapshot.operators.values()
    return {each.row for each in operator.state.entries if isinstance(each, FinishedRow)}


class Life:
    """One life of the task on a loop of its own."""

    def __init__(
        self,
        elements: list[int | Watermark],
        service: Any,
        snapshot: TaskSnapshot | None,
        *,
        size: int = 3,
        room: int = 2,
        **options: Any,
    ) -> None:
        self.loop = VirtualTimeLoop(longest=LONG)
        self.snapshot = snapshot
        self.committed = 0
        self.output = PairsOutput(self.loop, room)
        self.operator = AsyncWaitOperator(
            service.call,
            Options(**options),
            loop=self.loop,
            context=contextvars.copy_context(),
            uid="wait",
        )
        self.input = ReplayedInput(elements, size)

        def made() -> StreamTask:
            return StreamTask(self.input, [self.operator], self.output, latency_interval=None)

        # The loop's thread is this one.
        self.task = made()
        self.number = 0 if snapshot is None else snapshot.barrier.id

    def run(self, snapshots_at: list[float], killed_at: float | None) -> bool:
        """Run to the end or to the kill; True for the end."""
        task = self.task

        def take() -> None:
            self.number += 1
            number = self.number

            def taken(future: Any) -> None:
                if future.exception() is None:
                    self.snapshot = future.result()
                    self.committed = self.output.committed[number]

            task.trigger_checkpoint_async(number, UNALIGNED).add_done_callback(taken)

        async def main() -> bool:
            if self.snapshot is not None:
                task.restore(pickle.loads(pickle.dumps(self.snapshot)))
            for at in snapshots_at:
                self.loop.call_later(at, take)
            running = asyncio.ensure_future(task.run_async())
            if killed_at is None:
                await running
            else:
                await asyncio.wait([running], timeout=killed_at)
            ended = running.done()
            if ended:
                running.result()
                self.committed = len(self.output.elements)
            return ended

        try:
            return self.loop.run_until_complete(main())
        finally:
            # Nothing is flushed and nothing is closed where a process is killed.
            for each in asyncio.all_tasks(self.loop):
                each._log_destroy_pending = False  # type: ignore[attr-defined]
                KILLED.append(each)
            self.loop.close()


SECONDS = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
TIMES = st.integers(1, 80).map(lambda tenths: tenths / 10 + 0.05)
OPTIONS = st.fixed_dictionaries(
    {
        "capacity": st.integers(1, 6),
        "buffer": st.builds(Buffer, st.integers(1, 8)),
        "ordered": st.booleans(),
        "at_once": st.sampled_from([None, 1, 2]),
    }
)


@pytest.mark.contract(convicts=["drained_before_retries", "ends_before_retries"])
@settings(max_examples=examples(300))
@given(
    elements=st.lists(st.sampled_from([True, True, True, False]), max_size=40),
    seconds=st.lists(SECONDS, min_size=1, max_size=5),
    failures=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    options=OPTIONS,
    lives=st.lists(
        st.tuples(
            st.lists(TIMES, min_size=1, max_size=3),
            TIMES,
            st.integers(1, 6),
            st.integers(1, 8),
            st.integers(1, 3),
        ),
        max_size=4,
    ),
    size=st.integers(1, 5),
)
def test_whenever_a_task_with_calls_in_flight_is_killed_its_restore_loses_doubles_and_repeats_nothing(
    elements: list[bool],
    seconds: list[float],
    failures: list[int],
    options: dict[str, Any],
    lives: list[tuple[list[float], float, int, int, int]],
    size: int,
) -> None:
    service = Service(seconds, failures)
    given_in = [place if is_row else Watermark(float(place)) for place, is_row in enumerate(elements)]
    committed: list[Any] = []
    snapshot: TaskSnapshot | None = None
    last = ([], None, options["capacity"], options["buffer"].rows, 2)
    at_once = options["at_once"]
    for snapshots_at, killed_at, capacity, reorder, room in (*lives, last):
        before, finished = Counter(service.calls), set() if snapshot is None else finished_in(snapshot)
        service.running.clear()
        life = Life(
            given_in,
            service,
            snapshot,
            size=size,
            room=room,
            ordered=options["ordered"],
            capacity=capacity,
            buffer=Buffer(max(reorder, capacity)),
            retry=Retry(4, initial=1.0, maximum=2.0),
            per_key=None if at_once is None else Limit(key_of, at_once),
        )
        ended = life.run(snapshots_at, killed_at)
        assert not (service.calls - before).keys() & finished, "a row with a result in the snapshot is called"
        committed += life.output.elements[: life.committed]
        snapshot = life.snapshot
        if ended:
            break
    rows = [each[0] for each in committed if not isinstance(each, Watermark)]
    expected = [each for each in given_in if not isinstance(each, Watermark)]
    assert sorted(rows) == expected, "each row once"
    assert rows == expected or not options["ordered"]
    assert all(each[1] == ("answer", each[0]) for each in committed if not isinstance(each, Watermark))
    assert committed[-1] == END
    if at_once is not None:
        assert all(most <= at_once for most in service.most.values())
        for key in range(3):
            begun = [row for row in service.begun if key_of(row) == key]
            assert begun == sorted(begun), "rows of a key are called in their order"
    passed: set[int] = set()
    for each in committed:
        if isinstance(each, Watermark):
            assert passed == {row for row in expected if row < each.timestamp}, "no row passes a watermark"
        else:
            passed.add(each[0])


def two_lives(
    service: Any, snapshot_at: float, *, rows: int = 1, killed_at: float | None = None, **options: Any
) -> tuple[Life, Life]:
    """A life that is killed right after its snapshot, or later, and the one that is restored from that."""
    elements: list[int | Watermark] = list(range(rows))
    first = Life(elements, service, None, **options)
    assert not first.run([snapshot_at], snapshot_at + 0.01 if killed_at is None else killed_at)
    assert first.snapshot is not None
    second = Life(elements, service, first.snapshot, **options)
    assert second.run([], None)
    return first, second


def infos(life: Life) -> list[Any]:
    return [each[1].info for each in life.output.elements if type(each[-1]) is Failed]


@pytest.mark.contract(convicts=["pause_not_restored"])
def test_a_restored_row_has_the_attempts_left_that_it_had_and_its_pause_goes_on() -> None:
    service = Service([1.0], [9])
    retry = Retry(3, initial=100.0, maximum=100.0, jitter=False)
    # Two attempts have failed, of which the second ended at 102; the pause after it has 60 seconds left.
    _, second = two_lives(service, 142.0, retry=retry, errors="column")
    assert service.calls[0] == 3 and infos(second)[0].attempts == 3
    assert second.loop.time() == pytest.approx(61.0)


@pytest.mark.contract(convicts=["deadline_not_restored", "running_attempt_counts"])
@pytest.mark.parametrize("failures", [0, 1], ids=["first attempt", "retry"])
def test_a_restored_row_has_the_seconds_of_its_timeout_left_that_it_had(failures: int) -> None:
    service = Service([50.0], [failures])
    options: dict[str, Any] = {"timeout": 80.0, "errors": "column", "capacity": 1}
    retry = Retry(3, initial=10.0, maximum=10.0, jitter=False)
    service.seconds = [200.0] if not failures else [200.0, 20.0, 200.0]
    # 60 seconds are over; what passes between snapshot and restore does not count.
    _, second = two_lives(service, 60.0, killed_at=75.0, retry=retry, **options)
    assert infos(second)[0].type == "CallTimeout"
    assert second.loop.time() == pytest.approx(20.0)


@pytest.mark.contract
def test_the_wait_of_a_restored_row_for_its_first_call_is_none_of_its_timeout() -> None:
    service = Service([50.0], [0])
    snapshot = None
    # Row 1 waits for its slot, in the first life and for 39 seconds in the second one.
    for snapshot_at in (10.0, 39.0):
        life = Life([0, 1], service, snapshot, timeout=80.0, errors="column", capacity=1)
        assert not life.run([snapshot_at], snapshot_at + 0.01)
        snapshot = life.snapshot
    service.seconds = [79.0, 1.0]
    last = Life([0, 1], service, snapshot, timeout=80.0, errors="column", capacity=1)
    assert last.run([], None)
    assert (service.calls[0], service.calls[1]) == (3, 1)
    assert infos(last) == [], "row 1 has had all of its 80 seconds"


@pytest.mark.contract(
    convicts=[
        "failures_not_restored",
        "finished_rows_not_restored",
        "one_failure_too_few",
        "spent_budget_not_restored",
    ]
)
def test_failures_before_a_snapshot_count_for_fail_after_and_calls_for_the_budget() -> None:
    service = Service([1.0], [9, 0, 0])
    options: dict[str, Any] = {"capacity": 1, "buffer": Buffer(1)}
    with pytest.raises(TooManyFailures, match="3 of"):
        two_lives(service, 6.5, rows=9, errors=Errors("column", stop_after=2), **options)
    service = Service([1.0], [9, 0, 0])
    # Of nine rows three fail, whichever life they have left in.
    two_lives(service, 6.5, rows=9, errors=Errors("column", stop_after=0.34), **options)
    service = Service([1.0], [0])
    _, second = two_lives(service, 3.5, rows=9, errors="column", budget=Budget(max_calls=5), **options)
    assert service.calls.total() == 5 and service.calls[3] == 2, "the one in flight is called again"
    assert infos(second)[0].type == "NotCalled"


@pytest.mark.contract
def test_calls_of_all_lives_before_count_for_the_budget() -> None:
    service = Service([1.0], [0])
    snapshot: TaskSnapshot | None = None
    options: dict[str, Any] = {
        "budget": Budget(max_calls=5),
        "errors": "column",
        "capacity": 1,
        "buffer": Buffer(1),
    }
    for calls in (3, 5):
        # The call that is in flight when a life is killed is begun again in the next.
        life = Life(list(range(9)), service, snapshot, **options)
        assert not life.run([2.5], 2.51)
        snapshot = life.snapshot
        assert service.calls.total() == calls
    last = Life(list(range(9)), service, snapshot, **options)
    assert last.run([], None)
    assert service.calls.total() == 5


@pytest.mark.contract
def test_a_restored_row_with_a_ledger_may_time_out_before_its_next_attempt(tmp_path: Path) -> None:
    service = Service([1.0], [9])
    options = {"retry": Retry(3, initial=1000.0, maximum=1000.0, jitter=False), "errors": "column"}
    first = Life([0], service, None, **options)
    assert not first.run([20.0], 20.01)
    kept = Options(ledger=Ledger(str(tmp_path), uid="wait", run="run"), timeout=10.0, **options)  # type: ignore[arg-type]

    async def second() -> list[Any]:
        # A ledger's writer is a thread, so time is real; but that of the row is over when it is restored.
        loop = asyncio.get_running_loop()
        session = LedgerSession(kept, "run", execution=execution_id())
        operator = AsyncWaitOperator(
            service.call,
            kept,
            loop=loop,
            context=contextvars.copy_context(),
            uid="wait",
            ledger_session=session,
        )
        output = PairsOutput(loop, 2)  # type: ignore[arg-type]
        task = StreamTask(ReplayedInput([0], 3), [operator], output, latency_interval=None)
        assert first.snapshot is not None
        task.restore(first.snapshot)
        await task.run_async()
        return output.elements

    (row, failed), _ = asyncio.run(second())
    assert (row, failed.info.type) == (0, "CallTimeout") and service.calls[0] == 1


@pytest.mark.contract(convicts=["retry_budget_reset", "one_retry_beyond_budget"])
def test_the_retry_budget_that_is_used_up_is_used_up_after_a_restore() -> None:
    service = Service([1.0], [9])
    budget = RetryBudget(share=0.0, least=2, seconds=1000.0)
    retry = Retry(9, initial=10.0, maximum=10.0, jitter=False, budget=budget)
    _, second = two_lives(service, 20.0, retry=retry, errors="column")
    assert infos(second)[0].attempts == service.calls[0] == 3


@pytest.mark.contract
def test_a_snapshot_of_another_order_is_refused_in_words() -> None:
    service = Service([5.0], [0])
    first = Life([0, 1], service, None, ordered=True)
    first.run([1.0], 2.0)
    with pytest.raises(
        ValueError, match="ordered=False: the snapshot of operator 'wait' .* with ordered=True"
    ):
        Life([0, 1], service, first.snapshot, ordered=False).run([], None)


@pytest.mark.contract
def test_watermarks_between_which_no_row_came_share_an_entry_of_the_window() -> None:
    service = Service([5.0], [0])
    marks = [Watermark(float(number)) for number in range(1, 9)]
    life = Life([0, *marks, 1], service, None, capacity=2, buffer=Buffer(3))
    life.run([], 1.0)
    assert service.calls.total() == 2, "the row behind the watermarks has found room"
    life = Life([0, *marks, 1], service, None, capacity=2, buffer=Buffer(3))
    assert life.run([], None)
    assert [each for each in life.output.elements if isinstance(each, Watermark)] == [marks[-1], END]


# -- batches ---------------------------------------------------------------------------------------


class BatchService:
    """Answers a batch after `seconds`; the first `failures` calls fail."""

    def __init__(self, seconds: float, failures: int = 0) -> None:
        self.seconds = seconds
        self.failures = failures
        self.begun = 0

    async def call(self, rows: list[int]) -> list[tuple[str, int]]:
        self.begun += 1
        fails = self.begun <= self.failures
        await asyncio.sleep(self.seconds)
        if fails:
            raise ConnectionError(rows)
        return [("answer", row) for row in rows]


def rows_of(life: Life) -> list[int]:
    return [each[0] for each in life.output.elements if not isinstance(each, Watermark)]


@pytest.mark.contract
@pytest.mark.parametrize("at", [80.0, 55.0], ids=["second attempt", "pause"])
@pytest.mark.parametrize(
    "batch",
    [Batch(4, linger=0.5), Batch(4, linger=0.5, max_weight=10.0, weight=lambda row: 1.0)],
    ids=["linger", "weight"],
)
def test_rows_of_a_batch_that_failed_once_are_restored_with_their_attempts(at: float, batch: Batch) -> None:
    service = BatchService(50.0, failures=1)
    retry = Retry(2, initial=10.0, maximum=10.0, jitter=False)
    _, second = two_lives(service, at, rows=2, size=2, batch=batch, capacity=4, buffer=Buffer(8), retry=retry)
    assert rows_of(second) == [0, 1]


def test_a_restored_window_that_is_full_is_no_reason_to_wait_for_a_full_batch() -> None:
    batch = Batch(3, linger=1000.0)
    _, second = two_lives(BatchService(50.0), 1.0, rows=4, size=4, batch=batch, capacity=4, buffer=Buffer(4))
    assert second.loop.time() < 60.0


def test_a_watermark_that_fills_the_window_is_no_reason_to_wait_for_a_full_batch() -> None:
    batch = Batch(3, linger=1000.0)
    given: dict[str, Any] = {"batch": batch, "capacity": 3, "buffer": Buffer(3)}
    life = Life([0, 1, Watermark(1.0), 2, 3], BatchService(1.0), None, size=2, **given)
    assert life.run([], None) and life.loop.time() < 10.0


@pytest.mark.contract
def test_a_batch_that_has_a_slot_and_has_not_begun_keeps_its_attempts_in_a_snapshot() -> None:
    retry = Retry(2, initial=10.0, maximum=10.0, jitter=False)
    life = Life(
        [0, 1],
        BatchService(1.0, failures=1),
        None,
        size=2,
        batch=Batch(2),
        capacity=2,
        buffer=Buffer(2),
        retry=retry,
    )
    kept: list[list[int]] = []

    async def look() -> None:
        scheduler = life.operator._scheduler
        runner: Any = scheduler.runner
        start = runner._start

        def spy(batch: Any, coroutine: Any) -> None:
            start(batch, coroutine)
            kept.append([scheduler.snapshot_call(call, scheduler.clock()).attempts for call in batch.calls])

        runner._start = spy

    life.loop.call_later(5.0, lambda: life.loop.create_task(look()))
    assert life.run([], None)
    assert kept == [[1, 1]]


def test_a_restored_attempt_that_took_no_time_is_timed_as_any_other() -> None:
    service = Service([0.0, 50.0], [1])
    service.calls[0] = 1
    retry = Retry(3, initial=10.0, maximum=10.0, jitter=False)
    _, second = two_lives(service, 5.0, retry=retry, timeout=30.0, errors="column")
    assert infos(second)[0].type == "CallTimeout"


# -- ends ------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_refused_ends_the_task_as_any_error_does() -> None:
    service = Service([50.0], [0])
    life = Life([0, 1], service, None, ordered=True)
    life.run([1.0], 2.0)
    with pytest.raises(ValueError, match="ordered=") as caught:
        Life([0, 1], service, life.snapshot, ordered=False).run([], None)
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.contract
def test_the_first_error_of_a_task_counts_also_before_a_cancellation() -> None:
    life = Life([0], Service([50.0], [0]), None)

    async def main() -> None:
        running = asyncio.ensure_future(life.task.run_async())
        await asyncio.sleep(1.0)
        life.task.fail(ConnectionError("first"))
        running.cancel()
        with pytest.raises(ConnectionError, match="first"):
            await running

    life.loop.run_until_complete(main())
    life.loop.close()


def test_what_ends_the_task_within_an_emission_is_what_it_fails_with() -> None:
    life = Life([0, Watermark(1.0)], Service([1.0], [0]), None)
    life.output.collect = lambda batch: life.task.fail(ConnectionError("consumer"))  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="consumer"):
        life.run([], None)


def test_a_task_that_is_closed_before_it_runs_closes_its_operator_on_the_loop() -> None:
    life = Life([0], Service([1.0], [0]), None)

    async def main() -> None:
        life.task.restore()
        life.task.close()
        await asyncio.sleep(1.0)

    life.loop.run_until_complete(main())
    assert not asyncio.all_tasks(life.loop)
    life.loop.close()


def test_an_error_that_does_not_pickle_is_in_a_snapshot_by_its_class_and_text() -> None:
    error = ValueError("busy")
    error.connection = threading.Lock()  # type: ignore[attr-defined]
    state = CallState("row", 2, 0.5, 1.0, error, 0.25, 1)
    read = pickle.loads(pickle.dumps(state))
    assert (type(read.error), str(read.error)) == (ValueError, "busy")
    assert read._replace(error=error) == state
    assert pickle.loads(pickle.dumps(CallState("row"))) == CallState("row")


class Closing:
    """Closes the operator of a life within the calls of its rows, which fail where that is said."""

    def __init__(self, fails: bool) -> None:
        self.calls = 0
        self.life: Life
        self._fails = fails

    async def call(self, row: int) -> int:
        self.calls += 1
        await asyncio.sleep(1.0)
        self.life.operator.stop()
        if self._fails:
            raise ConnectionError(row)
        return row


@pytest.mark.contract(
    "The outcome of a call that ends behind the close of its operator is dropped.",
    convicts=["late_outcome_emitted"],
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_outcome_of_a_call_that_ends_behind_the_close_of_its_operator_is_dropped(fails: bool) -> None:
    service = Closing(fails)
    life = service.life = Life([0, 1], service, None, errors="null", retry=Retry(3, initial=0.1))
    assert not life.run([], 10.0)
    assert service.calls == 2
    assert life.output.elements == []
