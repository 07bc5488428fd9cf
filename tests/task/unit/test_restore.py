"""A restored task: finished operators, elements on their way, and the work that it does again."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task import InputStatus, Operator
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, OperatorSnapshot, TaskSnapshot
from pillarbox.task.protocols import MAX_WATERMARK, Watermark
from tests.task.unit.operators import Counted, Logging, Map, Rig

UNALIGNED = CheckpointOptions(aligned=False)
END = Watermark(MAX_WATERMARK)


class Total(Operator):
    """Emits the sum of all records at the end."""

    uid = "total"

    def __init__(self) -> None:
        self.total = 0

    def restore_state(self, state: Any) -> None:
        self.total = state

    def process(self, record: Any) -> None:
        self.total += record

    def snapshot_state(self, barrier: CheckpointBarrier) -> int:
        return self.total

    def finish(self) -> None:
        self.output.collect(self.total)


class Waiting(Operator):
    """Keeps records, and at the end of its input waits for `under_way` before it emits them."""

    uid = "waiting"

    def __init__(self) -> None:
        self.under_way: Future[None] = Future()
        self.kept: list[Any] = []

    def restore_state(self, state: Any) -> None:
        self.kept = list(state)

    def process(self, record: Any) -> None:
        self.kept.append(record)

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[Any]:
        return list(self.kept)

    def end_input(self) -> Future[None]:
        return self.under_way

    def finish(self) -> None:
        for record in self.kept:
            self.output.collect(record)


def checkpoint(rig: Rig, id: int, options: CheckpointOptions = UNALIGNED) -> TaskSnapshot:
    """Take one, and pickle it."""
    future = rig.task.trigger_checkpoint_async(id, options)
    rig.step()
    snapshot: TaskSnapshot = pickle.loads(pickle.dumps(future.result(timeout=0)))
    return snapshot


def handmade(**operators: OperatorSnapshot) -> TaskSnapshot:
    return TaskSnapshot(CheckpointBarrier(1, 0.0, UNALIGNED), None, operators)


# -- finished operators ----------------------------------------------------------------------------


@pytest.mark.contract(convicts=["finished_again"])
@pytest.mark.parametrize("options", [CheckpointOptions(), UNALIGNED])
def test_an_operator_that_was_finished_before_a_checkpoint_is_not_finished_again(
    options: CheckpointOptions,
) -> None:
    rig = Rig(Total(), Waiting())
    rig.push(1, 2, 3)
    rig.end(InputStatus.END_OF_DATA)
    rig.step()
    snapshot = checkpoint(rig, 1, options)
    rig.task.close()
    assert [operator.finished for operator in snapshot.operators.values()] == [True, False]
    waiting = Waiting()
    waiting.under_way.set_result(None)
    assert Rig(Total(), waiting).run_restored(snapshot) == [6], "the end of time has left before"


def test_after_the_end_of_the_data_a_checkpoint_says_that_all_is_finished_and_nothing_comes_again() -> None:
    log: list[str] = []
    first = Rig(Total(), Map(str, "last"))
    first.push(1, 2)
    first.end(InputStatus.END_OF_DATA)
    first.step()
    assert first.output.elements == [END, "3"]
    snapshot = checkpoint(first, 1)
    first.task.close()
    second = Rig(Total(), Map(str, "last"))
    assert second.run_restored(snapshot) == []
    log_of = Rig(Logging("a", log))
    log_of.run_restored(handmade(a=OperatorSnapshot(1, (), True)))
    assert log == ["a restore 1", "a open", "a close"]


def test_that_an_operator_is_finished_outlasts_a_second_restore() -> None:
    first = Rig(Total(), Waiting())
    first.push(1, 2)
    first.end(InputStatus.END_OF_DATA)
    first.step()
    snapshot = checkpoint(first, 1)
    first.task.close()
    second = Rig(Total(), Waiting())
    second.task.restore(snapshot)
    snapshot = checkpoint(second, 2)
    second.task.close()
    waiting = Waiting()
    waiting.under_way.set_result(None)
    assert Rig(Total(), waiting).run_restored(snapshot) == [3]


def test_what_was_on_its_way_to_a_finished_operator_still_flows() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log))
    out = rig.run_restored(
        handmade(a=OperatorSnapshot(0, ("x",), True), b=OperatorSnapshot(0, ("w",), False))
    )
    assert out == ["w", "x", END]
    assert [line for line in log if line.split()[1] in ("process", "watermark", "end_input", "finish")] == [
        "b process w",
        "a process x",
        "b process x",
        "b watermark inf",
        "b end_input",
        "b finish",
    ]


# -- the end of event time -------------------------------------------------------------------------


@pytest.mark.contract
def test_the_end_of_event_time_comes_once_though_the_input_says_it_too() -> None:
    rig = Rig(Map(str))
    assert rig.run(1, END) == ["1", END]


@pytest.mark.contract(
    "The end of event time comes once in all lives of a task.", convicts=["end_of_time_put_again"]
)
@pytest.mark.parametrize("status", [InputStatus.END_OF_DATA, InputStatus.END_OF_INPUT])
def test_the_end_of_event_time_comes_once_in_all_lives_of_a_task(status: InputStatus) -> None:
    rig = Rig(Waiting())
    rig.push(1)
    rig.end(status)
    rig.step()
    assert rig.output.elements == [END]
    snapshot = checkpoint(rig, 1)
    rig.task.close()
    assert snapshot.time_ended
    # One whose input says it by itself, one whose input does not.
    for again in ([], [END]):
        waiting = Waiting()
        waiting.under_way.set_result(None)
        second = Rig(waiting)
        second.task.restore(snapshot)
        assert second.run(*again) == [1]


def test_the_end_of_event_time_that_was_on_its_way_comes_once() -> None:
    rig = Rig(Map(str, "a"))
    assert rig.run_restored(handmade(a=OperatorSnapshot(None, (1, END)))) == ["1", END]


def test_the_end_of_event_time_comes_once_though_a_finished_operator_has_it_on_its_way() -> None:
    rig = Rig(Map(lambda x: x, "a"), Map(str, "b"))
    snapshot = handmade(a=OperatorSnapshot(None, (1, END), True), b=OperatorSnapshot(None, ()))
    assert rig.run_restored(snapshot) == ["1", END]


# -- elements that were on their way ---------------------------------------------------------------


def test_an_aligned_checkpoint_at_once_after_an_unaligned_one_was_restored_loses_nothing() -> None:
    rig = Rig(Counted())
    rig.task.restore(handmade(counted=OperatorSnapshot(3, ("x", "y"))))
    snapshot = checkpoint(rig, 2, CheckpointOptions())
    assert snapshot.operators["counted"] == OperatorSnapshot(5, ())
    assert rig.output.elements == [("x", 3), ("y", 4), snapshot.barrier]
    rig.task.close()
