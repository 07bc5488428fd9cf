"""The claims of Flink's `AsyncWaitOperatorTest`, each with the tests that try it on the shipped operator.

Claims, not code: the names are those of Flink 1.19 to 2.x, and of two tests that older versions had. `CLAIMS`
says which test holds each one; what another file does not hold yet is tried below, in virtual time. Where we
decide otherwise, the claim says so.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pillarbox import Buffer, CallFailed, CallTimeout, Collector, Options, Retry, Timeout
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import (
    MAX_WATERMARK,
    Idleness,
    RowBatch,
    TaskCancelled,
    Watermark,
)
from pillarbox.testing import VirtualTimeLoop
from pillarbox.testing.test_io import CollectedOutput, PushedInput
from tests.aio.virtual import HOUR, play

ROOT = Path(__file__).resolve().parents[3]
HERE = "aio/unit/test_flink_claims.py"
END = Watermark(MAX_WATERMARK)


class Claim(NamedTuple):
    """A claim and the tests, `file::name` below `tests`, that try it. `here`: names in this file."""

    claim: str
    tests: tuple[str, ...] = ()
    here: tuple[str, ...] = ()


CLAIMS = {
    # -- order and event time --------------------------------------------------------------------------
    "testEventTimeOrdered": Claim(
        "In order, rows and watermarks leave in the order in which they came.",
        here=("test_in_order_rows_and_watermarks_leave_as_they_came",),
    ),
    "event time, as rows finish": Claim(
        "As they finish, rows change places between two watermarks and at no watermark.",
        ("aio/unit/test_wait_snapshots.py::"
         "test_whenever_a_task_with_calls_in_flight_is_killed_its_restore_loses_doubles_and_repeats_nothing",),
        ("test_as_they_finish_rows_change_places_between_watermarks_only",),
    ),
    "testWaterMarkUnordered": Claim(
        "A watermark waits for the slowest row in front of it, and holds back faster ones behind it.",
        ("sources/unit/test_async_wait_event_time.py::"
         "test_behind_a_source_no_row_passes_a_watermark_nor_the_word_that_nothing_comes",),
        ("test_as_they_finish_rows_change_places_between_watermarks_only",),
    ),
    "testProcessingTimeOrdered": Claim(
        "In order, a result waits for all before it.",
        ("aio/test_order_and_limits.py::test_in_order_a_result_waits_for_all_before_it",),
    ),
    "testProcessingUnordered": Claim(
        "As they finish, a result leaves as soon as it is there.",
        ("aio/test_order_and_limits.py::test_unordered_a_result_leaves_as_soon_as_it_is_there",),
    ),
    "testOperatorChainWithProcessingTime": Claim(
        "Async operators work in one chain, with others between them; it is opened from its end.",
        ("task/unit/test_room.py::"
         "test_a_chain_of_operators_with_small_windows_loses_and_doubles_nothing_and_never_hangs",),
        ("test_async_operators_work_in_one_chain_with_another_between_them",),
    ),
    "testAsyncOperatorIsNeverChained": Claim(
        "Not claimed any more, by Flink either: the room rule lets async operators stand in a chain.",
        here=("test_async_operators_work_in_one_chain_with_another_between_them",),
    ),
    "testObjectReused": Claim(
        "What is called is the row that came, whatever the input does next. There is no mode in which an "
        "input uses its objects again, so nothing is copied.",
        ("aio/test_hooks.py::test_rows_that_share_a_call_have_its_result_although_the_call_changed_its_row",),
        ("test_each_attempt_gets_the_very_row_that_came_while_others_are_read",),
    ),
    # -- snapshots -------------------------------------------------------------------------------------
    "testStateSnapshotAndRestore": Claim(
        "A restored operator emits what was under way in front of what comes now, with another capacity too, "
        "and a snapshot may be taken meanwhile.",
        ("aio/unit/test_wait_snapshots.py::"
         "test_whenever_a_task_with_calls_in_flight_is_killed_its_restore_loses_doubles_and_repeats_nothing",),
        ("test_a_restored_operator_emits_what_was_under_way_in_front_of_what_comes_now",),
    ),
    "testRestartWithFullQueue": Claim(
        "A snapshot of a full window and of what waits in front of it restores into a smaller one.",
        ("aio/unit/test_wait_snapshots.py::"
         "test_a_restored_window_that_is_full_is_no_reason_to_wait_for_a_full_batch",),
        ("test_a_full_window_and_what_waits_in_front_of_it_are_restored_into_any_window",),
    ),
    # -- time-outs -------------------------------------------------------------------------------------
    "testAsyncTimeoutFailure": Claim(
        "A time-out is an error of its row, which names the limit.",
        ("aio/test_failures.py::test_a_timeout_cancels_the_coroutine_and_fails_with_the_limit",),
        ("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testAsyncTimeoutIgnore": Claim(
        "A row that times out may have a value, or no result, instead.",
        ("aio/test_outcomes.py::test_a_row_that_times_out_gets_the_value_or_what_the_function_says",
         "aio/test_outcomes.py::test_null_gives_none_and_drop_gives_nothing"),
    ),
    "testTimeoutCleanup": Claim(
        "A row that is done leaves no timer.",
        ("aio/test_close_leaves_nothing.py::"
         "test_a_loop_that_outlives_its_jobs_keeps_no_task_and_no_timer_of_them",),
        ("test_a_row_that_is_done_leaves_no_timer",),
    ),
    "testTimeoutAfterComplete": Claim(
        "A row that is done in time never times out. Where completion and time-out come in one turn of the "
        "loop, the mailbox says which was first: Flink lets the completion win, though it was not heard yet.",
        ("aio/test_collectors.py::test_a_completion_that_a_time_out_overtakes_on_its_way_is_late",),
        ("test_a_row_that_is_done_in_time_never_times_out",),
    ),
    "testOrderedWaitTimeoutHandling": Claim(
        "In order, a time-out ends the task, though rows in front of it are under way.",
        here=("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testUnorderedWaitTimeoutHandling": Claim(
        "So it does where rows leave as they finish.",
        here=("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testOrderedWaitTimeoutHandlingWithRetry": Claim(
        "The time-out of a row that would be tried again ends the task too, in order.",
        here=("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testUnorderedWaitTimeoutHandlingWithRetry": Claim(
        "So it does where rows leave as they finish.",
        here=("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "late completion after a time-out": Claim(
        "It has no effect, and is counted.",
        ("aio/test_collectors.py::test_a_completion_after_the_time_out_has_no_effect_and_is_counted",
         "aio/test_failures.py::test_a_blocking_call_that_returns_late_is_counted_and_ignored"),
    ),
    # -- errors of the function ------------------------------------------------------------------------
    "testOrderedWaitUserExceptionHandling": Claim(
        "In order, an error ends the task, though rows in front of it are under way.",
        ("aio/test_failures.py::test_a_failed_job_cancels_the_calls_in_flight",),
        ("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testUnorderedWaitUserExceptionHandling": Claim(
        "So it does where rows leave as they finish.",
        here=("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testOrderedWaitUserExceptionHandlingWithRetry": Claim(
        "The error of the last attempt ends the task, in order.",
        ("aio/test_failures.py::test_after_the_last_attempt_the_error_says_how_many_there_were",),
        ("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    "testUnorderedWaitUserExceptionHandlingWithRetry": Claim(
        "So it does where rows leave as they finish.",
        here=("test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it",),
    ),
    # -- the result future -----------------------------------------------------------------------------
    "a result future that is completed twice": Claim(
        "The first completion decides, in whichever threads.",
        ("aio/test_collectors.py::"
         "test_the_first_completion_decides_and_later_ones_return_false_and_are_counted",
         "aio/test_collectors.py::test_of_threads_that_complete_at_once_one_comes_first"),
    ),
    "a result future that another thread completes": Claim(
        "Any thread may complete it.",
        ("aio/test_collectors.py::test_a_function_brings_its_result_by_a_collector_from_any_thread",),
    ),
    "testProcessingTimeWithMailboxThreadOrdered": Claim(
        "The mailbox thread may complete it too, in the call or later, in order. There is no form that takes "
        "a supplier of results: a coroutine does what that is for.",
        here=("test_the_mailbox_thread_completes_a_collector_in_its_call_and_later",),
    ),
    "testProcessingTimeWithMailboxThreadUnordered": Claim(
        "So it may where rows leave as they finish.",
        here=("test_the_mailbox_thread_completes_a_collector_in_its_call_and_later",),
    ),
    "testProcessingTimeWithMailboxThreadError": Claim(
        "What fails on the mailbox thread fails the row, and with it the task.",
        ("aio/test_collectors.py::test_what_a_function_raises_fails_the_attempt",),
        ("test_what_fails_on_the_mailbox_thread_fails_the_task",),
    ),
    # -- retries ---------------------------------------------------------------------------------------
    "testProcessingTimeOrderedWithRetry": Claim(
        "Errors and results that the strategy rejects are asked for again after its pauses, fixed or not, "
        "and rows leave in order.",
        ("aio/test_retry.py::test_pauses_grow_by_the_multiplier_up_to_the_maximum",
         "aio/test_retry.py::test_both_the_type_and_the_predicate_must_agree"),
        ("test_rows_are_tried_again_as_the_strategy_says",),
    ),
    "testProcessingTimeUnorderedWithRetry": Claim(
        "So they are where rows leave as they finish.",
        ("aio/test_retry_operator.py::test_rows_share_no_state_and_waiting_ones_hold_no_slot",),
        ("test_rows_are_tried_again_as_the_strategy_says",),
    ),
    "testProcessingTimeWithTimeoutFunctionOrderedWithRetry": Claim(
        "The time-out bounds all attempts of a row and their pauses; then it has the value of its time-out.",
        ("aio/test_failures.py::test_the_timeout_bounds_all_attempts_and_their_pauses",),
        ("test_a_row_that_is_tried_again_for_too_long_gets_the_value_of_its_time_out",),
    ),
    "testProcessingTimeWithTimeoutFunctionUnorderedWithRetry": Claim(
        "So it does where rows leave as they finish.",
        here=("test_a_row_that_is_tried_again_for_too_long_gets_the_value_of_its_time_out",),
    ),
    "an attempt that never ends": Claim(
        "It is cut by the time-out of the row, whichever attempt it is, and by its own.",
        ("aio/test_failures.py::test_an_attempt_that_times_out_is_tried_again",),
        ("test_a_row_that_is_tried_again_for_too_long_gets_the_value_of_its_time_out",),
    ),
    "testProcessingTimeRepeatedCompleteOrderedWithRetry": Claim(
        "Of several completions of an attempt the first decides, also if it is asked for again; in order.",
        ("aio/test_collectors.py::test_a_completion_of_an_earlier_attempt_has_no_effect",),
        ("test_the_first_completion_of_each_attempt_decides_whether_there_is_another",),
    ),
    "testProcessingTimeRepeatedCompleteUnorderedWithRetry": Claim(
        "So it does where rows leave as they finish.",
        here=("test_the_first_completion_of_each_attempt_decides_whether_there_is_another",),
    ),
    "a result that no attempt makes good": Claim(
        "After its last attempt the row fails. Flink gives the last result or error as it is.",
        ("aio/test_retry_operator.py::test_a_result_that_stays_bad_fails_the_row_and_says_which",),
    ),
    # -- ends ------------------------------------------------------------------------------------------
    "the end of input with retries pending": Claim(
        "It waits for them, at their own times. Flink makes the pending attempts at once.",
        ("aio/test_retry_operator.py::test_the_end_of_the_input_waits_for_retries_at_their_own_times",),
        ("test_the_end_of_event_time_comes_behind_rows_that_wait_for_another_attempt",),
    ),
    "testClosingWithBlockedEmitter": Claim(
        "A task whose output has no room can be closed; nothing leaves it from then on.",
        ("aio/test_limits_apart.py::test_a_full_output_holds_up_the_input_and_loses_nothing",),
        ("test_a_task_whose_output_has_no_room_can_be_closed",),
    ),
    "watermarks without room": Claim(
        "They wait in front of the operator, those that follow one another as one.",
        ("aio/unit/test_wait_snapshots.py::"
         "test_watermarks_between_which_no_row_came_share_an_entry_of_the_window",),
        ("test_watermarks_and_statuses_wait_at_the_link_while_the_window_is_full_and_adjacent_ones_merge",),
    ),
}  # fmt: skip
"""By the name of Flink's test, or in words where it has no test of its own."""


def test_each_test_that_is_named_is_there_and_each_one_here_is_named() -> None:
    named = {test for claim in CLAIMS.values() for test in claim.tests}
    named |= {f"{HERE}::{test}" for claim in CLAIMS.values() for test in claim.here}
    for file in {test.split("::")[0] for test in named} | {HERE}:
        found = ast.walk(ast.parse((ROOT / "tests" / file).read_text()))
        tests = {f"{file}::{node.name}" for node in found if isinstance(node, ast.FunctionDef)}
        assert {test for test in named if test.startswith(f"{file}::")} <= tests
        if file == HERE:
            own = f"{HERE}::test_each_test_that_is_named_is_there_and_each_one_here_is_named"
            assert {test for test in tests if "::test_" in test} - named == {own}
    assert all(claim.tests or claim.here for claim in CLAIMS.values())


# -- a task in virtual time ----------------------------------------------------------------------------


class Results(CollectedOutput):
    """Keeps results instead of the calls that gave them."""

    def collect(self, record: Any) -> None:
        self.elements += [result for _, result in record.rows] if isinstance(record, RowBatch) else [record]


class Running:
    """A task of an async operator, `wait`, and of others behind it, on the running loop."""

    def __init__(
        self, fn: Any, *behind: Operator, snapshot: TaskSnapshot | None = None, **options: Any
    ) -> None:
        self.input = PushedInput()
        self.output = Results()
        self.operator = wait("wait", fn, **options)
        self.task = StreamTask(self.input, [self.operator, *behind], self.output, latency_interval=None)
        self.task.restore(snapshot)
        self._checkpoint = 0 if snapshot is None else snapshot.barrier.id
        self.running = asyncio.ensure_future(self.task.run_async())

    @property
    def left(self) -> list[Any]:
        """The emitted elements but for barriers."""
        return [each for each in self.output.elements if not isinstance(each, CheckpointBarrier)]

    def push(self, *elements: Any) -> None:
        self.input.push(*elements)

    async def end(self) -> None:
        self.push(InputStatus.END_OF_INPUT)
        await self.running

    async def snapshot(self) -> TaskSnapshot:
        self._checkpoint += 1
        taken = self.task.trigger_checkpoint_async(self._checkpoint, CheckpointOptions(aligned=False))
        return await asyncio.wrap_future(taken)

    async def kill(self) -> None:
        self.task.cancel()
        with contextlib.suppress(TaskCancelled):
            await self.running


def wait(uid: str, fn: Any, **options: Any) -> AsyncWaitOperator:
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    return AsyncWaitOperator(fn, Options(**options), loop=loop, context=context, uid=uid)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


def doubled_after(seconds: dict[int, float]) -> Any:
    """Doubles a row after so many seconds, by row."""

    async def double(row: int) -> int:
        await asyncio.sleep(seconds.get(row, 0.0))
        return 2 * row

    return double


class Failing:
    """Doubles a row in its last attempt; those before, as many as `failures` says, end as `fails` does."""

    def __init__(self, failures: dict[int, int], *, fails: str = "error") -> None:
        self.failures = failures
        self.fails = fails
        self.times: dict[int, list[float]] = {}

    async def __call__(self, row: int) -> int | None:
        times = self.times.setdefault(row, [])
        times.append(now())
        if len(times) > self.failures.get(row, 0):
            return 2 * row
        if self.fails == "error":
            raise ConnectionError(row)
        if self.fails == "hang":
            await asyncio.sleep(HOUR)
        return None


# -- order and event time ------------------------------------------------------------------------------


@pytest.mark.contract
def test_in_order_rows_and_watermarks_leave_as_they_came() -> None:
    async def script() -> list[Any]:
        running = Running(doubled_after({1: 3.0, 2: 1.0, 3: 2.0}), ordered=True)
        running.push(1, Watermark(1.0), 2, 3, Watermark(3.0), 4)
        await running.end()
        return running.left

    assert play(script) == [2, Watermark(1.0), 4, 6, Watermark(3.0), 8, END]


@pytest.mark.contract
def test_as_they_finish_rows_change_places_between_watermarks_only() -> None:
    async def script() -> None:
        running = Running(doubled_after({1: 3.0, 2: 1.0, 3: 2.0, 4: 0.5, 5: 9.0}), ordered=False)
        running.push(1, 2, Watermark(2.0), 3, 4, Idleness(True), Idleness(False), 5, 6)
        await asyncio.sleep(2.5)
        assert running.left == [4], "3, 4 and 6 are done, and wait for 1"
        await asyncio.sleep(1.0)
        assert running.left == [4, 2, Watermark(2.0), 8, 6, Idleness(False), 12]
        await running.end()
        assert running.left[7:] == [10, END] and now() == 9.0

    play(script)


def test_async_operators_work_in_one_chain_with_another_between_them() -> None:
    opened: list[str] = []

    class AddOne(Operator):
        uid = "add"

        def open(self) -> None:
            opened.append("add")

        def process(self, record: Any) -> None:
            assert opened == ["add"]
            _, result = record
            self.output.collect(result + 1)

    async def script() -> None:
        second = wait(
            "second", doubled_after({15: 0.5, 13: 3.0}), ordered=False, capacity=2, buffer=Buffer(2)
        )
        running = Running(
            doubled_after({5: 3.0, 6: 1.0}), AddOne(), second, ordered=True, capacity=3, buffer=Buffer(3)
        )
        running.push(5, 6, 7, Watermark(7.0), 8, 9)
        await running.end()
        rows = [each for each in running.left if isinstance(each, int)]
        assert sorted(rows) == [22, 26, 30, 34, 38] and rows != sorted(rows)
        assert running.left.index(Watermark(7.0)) == 3 and running.left[-1] == END

    play(script)


def test_each_attempt_gets_the_very_row_that_came_while_others_are_read() -> None:
    rows = [[number] for number in range(20)]
    called: list[Any] = []

    async def call(row: list[int]) -> int:
        called.append(row)
        await asyncio.sleep(1.0)
        if sum(each is row for each in called) == 1:
            raise ConnectionError
        return row[0]

    async def script() -> list[Any]:
        retry = Retry(2, initial=5.0, maximum=5.0, jitter=False)
        running = Running(call, capacity=3, buffer=Buffer(6), retry=retry)
        running.push(RowBatch(rows[:12], 1))
        running.push(*rows[12:])
        await running.end()
        return running.left

    assert play(script) == [*range(20), END]
    assert sorted(map(id, called)) == sorted([id(row) for row in rows] * 2)


class Several(Operator):
    """Emits several elements for one, so that there is more than the operator behind it has room for."""

    uid = "several"

    def process(self, record: Any) -> None:
        for element in record:
            if isinstance(element, Watermark):
                self.output.emit_watermark(element.timestamp)
            elif isinstance(element, Idleness):
                self.output.emit_status(element.idle)
            else:
                self.output.collect(element)


async def waiting(window: int, *elements: Any) -> tuple[list[Any], list[Any]]:
    """The rows in front of an operator that calls row 1, and the rows that have left in the end."""
    input, output = PushedInput(), Results()
    operator = wait("wait", doubled_after({1: 5.0}), ordered=False, capacity=window, buffer=Buffer(window))
    task = StreamTask(input, [Several(), operator], output, latency_interval=None)
    running = asyncio.ensure_future(task.run_async())
    input.push(elements)
    await asyncio.sleep(1.0)
    snapshot = await asyncio.wrap_future(task.trigger_checkpoint_async(1, CheckpointOptions(aligned=False)))
    input.push_status(InputStatus.END_OF_INPUT)
    await running
    left = [each for each in output.elements if not isinstance(each, CheckpointBarrier)]
    return list(snapshot.operators["wait"].pending), left


@pytest.mark.contract
def test_watermarks_and_statuses_wait_at_the_link_while_the_window_is_full_and_adjacent_ones_merge() -> None:
    first, second = Watermark(1.0), Watermark(2.0)

    async def script() -> None:
        link, left = await waiting(1, 1, first, second, Idleness(True), 2)
        assert link == [second, Idleness(True), 2], "the window of one row is full"
        assert left == [2, second, Idleness(True), 4, END]
        link, left = await waiting(2, 1, first, second, 2, Idleness(True), 3)
        assert link == [2, Idleness(True), 3], "both watermarks have the second entry, and no row has it"
        assert left == [2, second, 4, Idleness(True), 6, END]
        link, left = await waiting(3, 1, first, Idleness(True), Idleness(False), second, 2, 3)
        assert link == [3], "what no row parts has one entry while there is room, the newest of each kind"
        assert left == [2, Idleness(False), second, 4, 6, END]

    play(script)


# -- snapshots -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_a_restored_operator_emits_what_was_under_way_in_front_of_what_comes_now(ordered: bool) -> None:
    async def script() -> list[Any]:
        first = Running(doubled_after(dict.fromkeys(range(9), HOUR)), ordered=ordered, capacity=3)
        first.push(1, 2, 3, 4, Watermark(4.0))
        await asyncio.sleep(1.0)
        snapshot = await first.snapshot()
        await first.kill()
        assert first.left == []
        second = Running(doubled_after({2: 4.0}), snapshot=snapshot, ordered=ordered, capacity=6)
        second.push(5, 6, 7)
        await asyncio.sleep(1.0)
        await second.snapshot()
        second.push(8)
        await second.end()
        return second.left

    in_order = [2, 4, 6, 8, Watermark(4.0), 10, 12, 14, 16, END]
    assert play(script) == (in_order if ordered else [2, 6, 8, 4, *in_order[4:]])


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("window", [1, 3, 10])
def test_a_full_window_and_what_waits_in_front_of_it_are_restored_into_any_window(
    ordered: bool, window: int
) -> None:
    async def script() -> list[Any]:
        first = Running(
            doubled_after(dict.fromkeys(range(9), HOUR)), ordered=ordered, capacity=3, buffer=Buffer(3)
        )
        first.push(RowBatch([0, 1, 2, 3, 4]))
        await asyncio.sleep(1.0)
        snapshot = await first.snapshot()
        await first.kill()
        state = snapshot.operators["wait"]
        assert (len(state.state.entries), [len(each) for each in state.pending]) == (3, [2])
        second = Running(
            doubled_after({}),
            snapshot=snapshot,
            ordered=ordered,
            capacity=min(window, 2),
            buffer=Buffer(max(window, 2)),
        )
        await second.end()
        return second.left

    assert play(script) == [0, 2, 4, 6, 8, END]


# -- time-outs and errors ------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("ends_by", ["an error", "a time-out"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_row_that_fails_or_times_out_ends_the_task_at_once_whatever_waits_beside_it(
    ordered: bool, ends_by: str, attempts: int
) -> None:
    async def call(row: str) -> str:
        if row == "bad":
            await asyncio.sleep(4.0)
            raise ValueError(row)
        await asyncio.sleep({"good": 1.0, "slow": HOUR}[row])
        return row

    async def script() -> None:
        is_error = ends_by == "an error"
        retry = Retry(attempts, initial=1.0, maximum=1.0, jitter=False)
        running = Running(call, ordered=ordered, retry=retry, timeout=None if is_error else 4.0)
        running.push("good", "slow", "bad" if is_error else "slow", "good")
        with pytest.raises(CallFailed if is_error else CallTimeout) as caught:
            await running.running
        assert now() == (9.0 if is_error and attempts == 2 else 4.0)
        error = caught.value
        assert not is_error or isinstance(getattr(error, "cause", None), ValueError)
        assert running.left == (["good"] if ordered else ["good", "good"])

    play(script)


def test_a_row_that_is_done_leaves_no_timer() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        running = Running(doubled_after({}), timeout=Timeout(HOUR, attempt=HOUR))
        running.push(*range(100))
        await asyncio.sleep(1.0)
        assert len(running.left) == 100
        await running.end()
        assert loop.armed_timers == 0 and now() == 1.0

    play(script)


def test_a_row_that_is_done_in_time_never_times_out() -> None:
    async def script() -> None:
        collectors: list[Collector[int]] = []
        timed_out: list[Any] = []

        def keep(row: int, collector: Collector[int]) -> None:
            collectors.append(collector)

        running = Running(keep, timeout=Timeout(5.0, fallback=timed_out.append))
        running.push(1)
        asyncio.get_running_loop().call_at(4.999, lambda: collectors[0].complete(2))
        await asyncio.sleep(6.0)
        await running.end()
        assert running.left == [2, END] and timed_out == []

    play(script)


# -- collectors on the mailbox thread ------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_the_mailbox_thread_completes_a_collector_in_its_call_and_later(ordered: bool) -> None:
    async def script() -> list[Any]:
        loop = asyncio.get_running_loop()

        def double(row: int, collector: Collector[int]) -> None:
            if row % 2:
                assert collector.complete(2 * row)
            else:
                loop.call_later(10.0 - row, collector.complete, 2 * row)

        running = Running(double, ordered=ordered)
        running.push(*range(6))
        await running.end()
        return running.left

    assert play(script) == ([0, 2, 4, 6, 8, 10, END] if ordered else [2, 6, 10, 8, 4, 0, END])


def test_what_fails_on_the_mailbox_thread_fails_the_task() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()

        def start(row: int, collector: Collector[int]) -> None:
            loop.call_later(1.0, collector.fail, ValueError(row))

        running = Running(start)
        running.push(1)
        with pytest.raises(CallFailed) as caught:
            await running.running
        assert isinstance(caught.value.cause, ValueError) and now() == 1.0

    play(script)


# -- retries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fails", ["error", "result"])
@pytest.mark.parametrize("growing", [False, True], ids=["fixed", "growing"])
def test_rows_are_tried_again_as_the_strategy_says(ordered: bool, fails: str, growing: bool) -> None:
    async def script() -> None:
        service = Failing({1: 3, 2: 1}, fails=fails)
        retry = Retry(
            4,
            initial=2.0,
            multiplier=3.0 if growing else 1.0,
            maximum=100.0,
            jitter=False,
            on=(ConnectionError,) if fails == "error" else (),
            result=None if fails == "error" else lambda result: result is None,
        )
        running = Running(service, ordered=ordered, retry=retry, capacity=1)
        running.push(1, 2, 3)
        await running.end()
        pauses = [2.0, 6.0, 18.0] if growing else [2.0, 2.0, 2.0]
        assert service.times[1] == [sum(pauses[:number]) for number in range(4)]
        assert service.times[2] == [0.0, 2.0] and service.times[3] == [0.0]
        assert running.left == ([2, 4, 6, END] if ordered else [6, 4, 2, END])

    play(script)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fails", ["error", "hang"])
def test_a_row_that_is_tried_again_for_too_long_gets_the_value_of_its_time_out(
    ordered: bool, fails: str
) -> None:
    async def script() -> None:
        service = Failing({1: 99, 2: 1}, fails=fails)
        retry = Retry(99, initial=3.0, maximum=3.0, jitter=False)
        attempt = 1.0 if fails == "hang" else None
        running = Running(
            service, ordered=ordered, retry=retry, timeout=Timeout(10.0, attempt=attempt, fallback=-1)
        )
        running.push(1, 2)
        await running.end()
        assert now() == 10.0 and len(service.times[1]) == (3 if fails == "hang" else 4)
        assert running.left == ([-1, 4, END] if ordered else [4, -1, END])

    play(script)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_first_completion_of_each_attempt_decides_whether_there_is_another(ordered: bool) -> None:
    async def script() -> None:
        attempts: list[int] = []

        def twice(row: int, collector: Collector[int | None]) -> None:
            attempts.append(row)
            rejected = attempts.count(row) == 1
            assert collector.complete(None if rejected else 2 * row)
            assert not collector.complete(2 * row if rejected else None)

        retry = Retry(3, initial=1.0, maximum=1.0, jitter=False, on=(), result=lambda result: result is None)
        running = Running(twice, ordered=ordered, retry=retry)
        running.push(1, 2, 3)
        await running.end()
        assert sorted(running.left[:3]) == [2, 4, 6] and running.left[3:] == [END]
        assert sorted(attempts) == [1, 1, 2, 2, 3, 3]
        statistics = running.operator.statistics()
        assert statistics is not None and statistics.late == 6

    play(script)


# -- ends ----------------------------------------------------------------------------------------------


def test_the_end_of_event_time_comes_behind_rows_that_wait_for_another_attempt() -> None:
    async def script() -> None:
        service = Failing({1: 2})
        running = Running(service, ordered=False, retry=Retry(3, initial=50.0, maximum=50.0, jitter=False))
        running.push(1, 2, InputStatus.END_OF_INPUT)
        await asyncio.sleep(99.0)
        assert running.left == [4] and not running.running.done()
        await running.running
        assert running.left == [4, 2, END] and service.times[1] == [0.0, 50.0, 100.0]

    play(script)


def test_a_task_whose_output_has_no_room_can_be_closed() -> None:
    async def script() -> None:
        running = Running(doubled_after({}), capacity=2, buffer=Buffer(2))
        running.output.block()
        running.push(1, 2, 3, InputStatus.END_OF_INPUT)
        await asyncio.sleep(1.0)
        assert running.left == [] and not running.running.done()
        await running.kill()
        running.output.unblock()
        await asyncio.sleep(1.0)
        assert running.left == []

    play(script)
