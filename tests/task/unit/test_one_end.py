"""Ends of a task of which exactly one counts: its first error, its cancellation, what a snapshot has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pillarbox.task import Operator
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    OperatorSnapshot,
    TaskSnapshot,
)
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, TaskCancelled, Watermark
from pillarbox.testing.test_io import CollectedOutput
from tests.task.unit.operators import Logging, Map, Rig

END = Watermark(MAX_WATERMARK)


class Fails(Operator):
    """Ends the task with each of `errors`, and emits the record nevertheless."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = errors

    def process(self, record: Any) -> None:
        for error in self.errors:
            self.context.fail(error)
        self.output.collect(record)


@pytest.mark.contract(convicts=["failed_task_emits"])
def test_an_operator_that_has_failed_the_task_emits_nothing_after_that() -> None:
    rig = Rig(Fails(ConnectionError("first")))
    with pytest.raises(ConnectionError, match="first"):
        rig.run(1)
    assert rig.output.elements == []


@pytest.mark.contract(convicts=["last_error_counts"])
def test_of_several_errors_with_which_an_operator_fails_its_task_the_first_counts() -> None:
    rig = Rig(Fails(ConnectionError("first"), KeyError("second")))
    with pytest.raises(ConnectionError, match="first"):
        rig.run(1)


@pytest.mark.contract(convicts=["snapshot_used_up"])
def test_a_snapshot_can_be_restored_as_often_as_one_likes() -> None:
    barrier = CheckpointBarrier(1, 0.0, CheckpointOptions(aligned=False))
    snapshot = TaskSnapshot(barrier, None, {"a": OperatorSnapshot(None, (RowBatch([1, 2]),))})
    for _ in range(2):
        assert Rig(Map(str, "a")).run_restored(snapshot) == ["1", "2", END]


class Holding(CollectedOutput):
    """An output whose state is what it has taken."""

    def snapshot_state(self) -> list[Any]:
        return list(self.elements)

    def restore_state(self, state: list[Any]) -> None:
        self.elements = list(state)


@pytest.mark.contract(convicts=["rows_of_output_forgotten"])
def test_a_snapshot_has_the_state_of_the_output_as_it_is_before_the_barrier() -> None:
    rig = Rig(Map(str, "a"))
    rig.task.output = rig.output = rig.task.chain.output = Holding()
    rig.push(1, 2)
    rig.step()
    taken = rig.task.trigger_checkpoint_async(1)
    rig.step()
    assert taken.result(timeout=0).output == ["1", "2"]


# -- an operator fails the task at its end ---------------------------------------------------------


class FailsIn(Logging):
    """Ends the task in the steps named, and goes on as if nothing had been."""

    def note(self, what: str) -> None:
        self.log.append(f"{self.uid} {what}")
        if what.split()[0] in self.fails:
            self.context.fail(ConnectionError(what))

    def process_watermark(self, timestamp: float) -> None:
        self.note(f"watermark {timestamp}")

    def stop(self) -> None:
        self.note("stop")


@pytest.mark.contract(convicts=["finished_after_failure", "input_ended_after_failure"])
@pytest.mark.parametrize(
    ("step", "asked"),
    [("watermark inf", []), ("end_input", ["end_input"]), ("finish", ["end_input", "finish"])],
)
def test_a_task_that_fails_while_its_operators_are_finished_finishes_no_more_of_them(
    step: str, asked: list[str]
) -> None:
    log: list[str] = []
    rig = Rig(FailsIn("a", log, step.split()[0]), FailsIn("b", log))
    with pytest.raises(ConnectionError, match=step):
        rig.run()
    of_the_end = [each for each in log if each.split()[1] in ("end_input", "finish", "stop")]
    assert of_the_end == [*[f"a {each}" for each in asked], "a stop", "b stop"]


@pytest.mark.contract(convicts=["snapshot_after_failure"])
def test_a_checkpoint_in_which_an_operator_fails_the_task_is_declined() -> None:
    rig = Rig(FailsIn("a", [], "snapshot"))
    rig.step()
    checkpoint = rig.task.trigger_checkpoint_async(1)
    with pytest.raises(ConnectionError, match="snapshot"):
        rig.task.run()
    with pytest.raises(CheckpointDeclined):
        checkpoint.result(timeout=0)
    assert rig.output.elements == []


class Waits(Logging):
    """Is cancelled at its end, while it waits for mail, and keeps that to itself."""

    cancel: Callable[[], None]

    def end_input(self) -> None:
        self.note("end_input")
        self.cancel()
        with suppress(TaskCancelled):
            self.context.executor.yield_()


@pytest.mark.contract(convicts=["finished_after_cancel"])
def test_a_task_that_is_cancelled_while_its_operators_are_finished_finishes_no_more_of_them() -> None:
    log: list[str] = []
    waits = Waits("a", log)
    rig = Rig(waits, Logging("b", log))
    waits.cancel = rig.task.cancel
    with pytest.raises(TaskCancelled):
        rig.run()
    assert [each for each in log if each.endswith(("end_input", "finish"))] == ["a end_input"]
