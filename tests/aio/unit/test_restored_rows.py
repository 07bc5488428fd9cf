"""Restored rows, marks and late answers, in virtual time: none is called once more, passed or forgotten."""

from __future__ import annotations

import asyncio
import contextvars
import math
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import Batch, Buffer, Dedupe, Errors, Options, Retry, RetryBudget
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.policies.retry import RetryPolicy
from pillarbox.task import InputStatus, StreamTask
from pillarbox.task.checkpoint import TaskSnapshot
from pillarbox.task.protocols import TaskOutput, Watermark
from pillarbox.testing.test_io import ReplayedInput
from tests.aio.overloaded import Overloaded
from tests.aio.unit.test_wait_snapshots import (
    END,
    BatchService,
    Life,
    Service,
    infos,
    rows_of,
    two_lives,
)


def with_spent(snapshot: TaskSnapshot | None, *seconds: float) -> TaskSnapshot:
    """The snapshot, as if so many seconds of the time of its rows were over."""
    assert snapshot is not None
    operator = snapshot.operators["wait"]
    entries = list(operator.state.entries)
    for place, spent in enumerate(seconds):
        entries[place] = entries[place]._replace(spent=spent)
    state = operator.state._replace(entries=tuple(entries))
    return snapshot._replace(operators={"wait": operator._replace(state=state)})


# -- results in a snapshot -------------------------------------------------------------------------


@pytest.mark.contract(convicts=["failed_row_called_after_restore"])
def test_a_row_that_has_failed_for_good_is_not_called_again_after_a_restore() -> None:
    # Row 1 fails after a second, and waits for row 0, which takes 50.
    service = Service([1.0, 50.0], [0, 9])
    _, second = two_lives(service, 10.0, rows=2, errors="column")
    assert service.calls[1] == 1 and [info.type for info in infos(second)] == ["ConnectionError"]


@pytest.mark.contract(
    "The time for which a row was refused before a restore counts for `Retry.max_outage`.",
    convicts=["refused_before_restore_forgotten"],
)
def test_the_time_for_which_a_row_was_refused_before_a_restore_counts() -> None:
    class Refusing(Service):
        async def _call(self, row: int) -> tuple[str, int]:
            await asyncio.sleep(0.1)
            raise Overloaded(1.0, 503)

    service = Refusing([], [])
    _, second = two_lives(
        service, 40.0, rows=1, retry=Retry(3, max_outage=60.0), errors=Errors("column", floor=None)
    )
    (info,) = infos(second)
    assert "overloaded for longer than max_outage=60 s" in info.message
    # The pauses of one row become up to half a minute long.
    assert 20.0 <= second.loop.time() < 59.0


class Results:
    """A session that has `known` results, and holds back those that come unless it `is_durable`."""

    claimed = None
    lease = SimpleNamespace(trusted_until=-math.inf)

    def __init__(self, known: dict[int, str], is_durable: bool) -> None:
        self.known = known
        self.is_durable = is_durable
        self.held: dict[Any, Any] = {}
        self.substitutes: list[bool] = []

    @property
    def rows(self) -> Any:
        return self

    def bind(self, scheduler: Any, mailbox: Any, weights: Any, leave: Any) -> Any:
        self.complete = leave or scheduler.complete
        return self

    def kept_back(self) -> tuple[bool, int]:
        return False, 0

    def identify(self, call: Any) -> None:
        pass

    def look_first(self, rows: int = 1) -> bool:
        return True

    def look_up(self, calls: list[Any], *, are_known: bool = False) -> list[tuple[Any, Any]]:
        return [(call, (self.known[call.row],)) for call in calls if call.row in self.known]

    def unsaved_results(self) -> dict[Any, Any]:
        return {call: (result, 1.0) for call, result in self.held.items()}

    def unfinished(self, in_flight: int) -> int:
        return in_flight

    def record_all(self, calls: list[Any], results: list[Any]) -> bool:
        return False

    def record(self, call: Any, result: Any, called: Any = None) -> None:
        self.substitutes.append(call.error is not None)
        if self.is_durable:
            self.complete((call,), (result,))
        else:
            self.held[call] = result

    def stop(self) -> None:
        pass

    async def close(self, is_whole: bool) -> None:
        pass


def life_with(session: Any, service: Service, snapshot: TaskSnapshot | None, **options: Any) -> Life:
    life = Life([0], service, snapshot)
    life.operator = AsyncWaitOperator(
        service.call,
        Options(**options),
        loop=life.loop,
        context=contextvars.copy_context(),
        uid="wait",
        ledger_session=session,
    )
    life.task = StreamTask(life.input, [life.operator], life.output, latency_interval=None)
    return life


@pytest.mark.contract(convicts=["unrecorded_results_forgotten"])
def test_a_result_that_is_not_durable_yet_is_in_the_snapshot_and_its_row_not_called_again() -> None:
    service = Service([1.0], [0])
    first = life_with(Results({}, False), service, None)
    assert not first.run([5.0], 6.0) and first.output.elements == []
    second = life_with(Results({}, True), service, first.snapshot)
    assert second.run([], None)
    assert second.output.elements == [(0, ("answer", 0)), END] and service.calls[0] == 1


@pytest.mark.contract(convicts=["restored_not_looked_up"])
def test_a_restored_row_whose_result_has_become_durable_meanwhile_is_not_called() -> None:
    service = Service([50.0], [0])
    first = life_with(Results({}, True), service, None)
    assert not first.run([5.0], 6.0)
    second = life_with(Results({0: "kept"}, True), service, first.snapshot)
    assert second.run([], None)
    assert second.output.elements == [(0, "kept"), END] and service.calls[0] == 1


@pytest.mark.contract(
    "A result is kept though the row had failed before a restore that took its retries away.",
    convicts=["restored_error_makes_a_substitute"],
)
def test_a_result_is_kept_though_the_row_had_failed_before_a_restore_without_retries() -> None:
    service = Service([1.0], [1])
    session = Results({}, True)
    retry = Retry(2, initial=100.0, maximum=100.0, jitter=False)
    first = life_with(session, service, None, retry=retry)
    assert not first.run([5.0], 6.0) and service.calls[0] == 1
    second = life_with(session, service, first.snapshot)
    assert second.run([], None) and service.calls[0] == 2
    assert second.output.elements == [(0, ("answer", 0)), END] and session.substitutes == [False]


# -- attempts, time, windows -----------------------------------------------------------------------


@pytest.mark.contract(convicts=["second_snapshot_forgets_the_first"])
def test_a_snapshot_keeps_the_attempts_of_rows_that_are_still_to_be_restored() -> None:
    service = Service([1.0], [9])
    retry = Retry(2, initial=100.0, maximum=100.0, jitter=False)
    options: dict[str, Any] = {"retry": retry, "errors": "column"}
    first = Life([0, 1], service, None, capacity=2, buffer=Buffer(2), **options)
    assert not first.run([10.0], 11.0)
    # Its window has room for row 0.
    second = Life([0, 1], service, first.snapshot, capacity=1, buffer=Buffer(1), **options)
    assert not second.run([5.0], 6.0) and second.snapshot is not first.snapshot
    third = Life([0, 1], service, second.snapshot, capacity=2, buffer=Buffer(2), **options)
    assert third.run([], None)
    assert service.calls == {0: 2, 1: 2}


@pytest.mark.contract(convicts=["restored_beyond_window_wait"])
def test_what_is_restored_into_a_smaller_window_comes_out_as_that_has_room() -> None:
    service = Service([50.0], [0])
    first = Life([0, 1, 2], service, None, capacity=3, buffer=Buffer(3))
    assert not first.run([10.0], 11.0)
    second = Life([0, 1, 2], service, first.snapshot, capacity=1, buffer=Buffer(1))
    assert second.run([], 500.0)
    assert rows_of(second) == [0, 1, 2]


@pytest.mark.contract(convicts=["restored_rows_do_not_join"])
def test_restored_rows_that_are_equal_share_one_call() -> None:
    service = Service([50.0], [0])
    options: dict[str, Any] = {"dedupe": True, "capacity": 4}
    first = Life([7, 7], service, None, **options)
    assert not first.run([10.0], 11.0) and service.calls[7] == 1
    second = Life([7, 7], service, first.snapshot, **options)
    assert second.run([], None)
    assert rows_of(second) == [7, 7] and service.calls[7] == 2


@pytest.mark.contract(convicts=["earlier_deadline_waits_for_later"])
def test_a_restored_row_with_less_time_left_than_the_one_before_it_times_out_first() -> None:
    options: dict[str, Any] = {"timeout": 80.0, "errors": "column", "ordered": False}
    first = Life([0, 1], Service([200.0], [0]), None, **options)
    assert not first.run([20.0], 21.0)
    second = Life([0, 1], Service([200.0], [0]), with_spent(first.snapshot, 10.0, 70.0), **options)
    assert not second.run([], 30.0)
    assert rows_of(second) == [1]


@pytest.mark.contract(convicts=["deadline_armed_again"])
def test_the_deadline_of_a_restored_row_is_over_when_the_row_has_finished() -> None:
    service = Service([30.0], [0])
    _, second = two_lives(service, 10.0, rows=5, capacity=1, timeout=80.0)
    assert rows_of(second) == [0, 1, 2, 3, 4]


@pytest.mark.contract(convicts=["results_of_batch_shifted"])
def test_where_a_row_of_a_batch_times_out_the_others_have_their_own_results() -> None:
    options: dict[str, Any] = {"batch": Batch(3), "timeout": 80.0, "errors": "column", "size": 3}
    first = Life([0, 1, 2], BatchService(50.0), None, **options)
    assert not first.run([20.0], 21.0)
    second = Life([0, 1, 2], BatchService(50.0), with_spent(first.snapshot, 10.0, 70.0, 10.0), **options)
    assert second.run([], None)
    assert [info.type for info in infos(second)] == ["CallTimeout"]
    assert [second.output.elements[place] for place in (0, 2)] == [(0, ("answer", 0)), (2, ("answer", 2))]


# -- watermarks ------------------------------------------------------------------------------------


@pytest.mark.contract(convicts=["marks_merge_across_rows"])
def test_a_watermark_takes_no_place_before_a_row_that_came_before_it() -> None:
    service = Service([1.0], [0])
    life = Life([0, Watermark(1.0), 1, Watermark(2.0)], service, None, room=9)
    assert life.run([], 10.0)
    assert life.output.elements == [(0, ("answer", 0)), Watermark(1.0), (1, ("answer", 1)), END]


class Together(ReplayedInput):
    """Emits rows and the watermark behind them in one call."""

    def emit_next(self, output: TaskOutput) -> InputStatus:
        status = super().emit_next(output)
        return status if status is InputStatus.END_OF_INPUT else super().emit_next(output)


@pytest.mark.contract(convicts=["mark_passes_results"])
def test_a_watermark_does_not_pass_a_row_that_has_its_result_and_has_not_left() -> None:
    elements: list[int | Watermark] = [0, Watermark(1.0), 0, Watermark(2.0)]
    # The second row finds the result of the first one, and is still to leave when its watermark comes.
    life = Life(
        elements, Service([1.0], [0]), None, room=9, dedupe=Dedupe(memo=4), capacity=1, buffer=Buffer(2)
    )
    life.input = Together(elements, 3)
    life.task = StreamTask(life.input, [life.operator], life.output, latency_interval=None)
    assert life.run([], 10.0)
    answer = (0, ("answer", 0))
    assert life.output.elements == [answer, Watermark(1.0), answer, Watermark(2.0), END]


@pytest.mark.contract(convicts=["spent_time_forgotten_at_failure"])
def test_the_time_before_a_snapshot_counts_when_a_restored_row_has_failed_for_the_first_time() -> None:
    service = Service([1.0, 200.0], [9])
    retry = Retry(3, initial=100.0, maximum=100.0, jitter=False)
    first = Life([0], service, None, retry=retry)
    assert not first.run([60.0], 61.0)
    # Its call fails after a second.
    second = Life([0], service, first.snapshot, retry=retry)
    assert not second.run([10.0], 11.0)
    assert second.snapshot is not None
    (row, *_) = second.snapshot.operators["wait"].state.entries
    assert (row.attempts, row.spent) == (1, pytest.approx(70.0))


@pytest.mark.contract(convicts=["restored_retries_expire_early"])
def test_retries_before_a_snapshot_count_as_long_after_a_restore_as_they_would_have() -> None:
    now = 5.0
    retry = Retry(budget=RetryBudget(share=0.0, least=1, seconds=10.0))
    before = RetryPolicy(retry, lambda: now)
    assert before.pause(1, OSError()) is not None
    counts = before.snapshot()
    now = 100.0
    after = RetryPolicy(retry, lambda: now)
    after.restore(counts)
    now = 108.5
    assert after.pause(1, OSError()) is None
    now = 111.5
    assert after.pause(1, OSError()) is not None
