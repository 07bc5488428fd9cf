"""Checkpoints: what a snapshot holds, where the barrier goes, what a blocked operator does to them."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task import InputStatus, Operator
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    OperatorSnapshot,
)
from pillarbox.task.protocols import MAX_WATERMARK, TaskCancelled, TaskOutput, Watermark
from tests.task.unit.operators import Buffers, Counted, Door, ImpatientMailbox, Logging, Map, Numbers, Rig

UNALIGNED = CheckpointOptions(aligned=False)
END = Watermark(MAX_WATERMARK)


def barriers(rig: Rig) -> list[int]:
    return [e.id for e in rig.output.elements if isinstance(e, CheckpointBarrier)]


# -- taking one ------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_checkpoint_holds_the_states_and_its_barrier_follows_what_they_include() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log))
    rig.push(1)
    rig.step()
    future = rig.task.trigger_checkpoint_async(7, timestamp=3.0)
    rig.push(2)
    rig.step()
    barrier = CheckpointBarrier(7, 3.0)
    snapshot = future.result(timeout=0)
    assert snapshot.barrier == barrier
    assert snapshot.operators == {"a": OperatorSnapshot("a", ()), "b": OperatorSnapshot("b", ())}
    assert rig.output.elements == [1, barrier, 2]
    assert log[4:8] == ["a prepare 7", "b prepare 7", "a snapshot 7", "b snapshot 7"]
    assert rig.responses.acknowledged == [snapshot]
    rig.task.close()


@pytest.mark.contract(
    "A checkpoint's barrier is in the output before anybody hears that the checkpoint is taken.",
    convicts=["acknowledged_before_barrier"],
)
@pytest.mark.parametrize("way", ["aligned", "unaligned", "input"])
def test_nobody_hears_of_a_checkpoint_before_its_barrier_is_in_the_output(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, list[int]]] = []

    def hear(who: str) -> None:
        heard.append((who, barriers(rig)))

    rig = Rig(Map(str))
    monkeypatch.setattr(rig.responses, "acknowledge", lambda snapshot: hear("responder"))
    rig.push(1)
    rig.step()
    if way == "input":
        rig.push(CheckpointBarrier(7, 3.0))
    else:
        options = UNALIGNED if way == "unaligned" else CheckpointOptions()
        future = rig.task.trigger_checkpoint_async(7, options)
        future.add_done_callback(lambda done: hear("caller"))
    for _ in range(20):
        rig.step()
    assert heard == [("responder", [7])] + [("caller", [7])] * (way != "input")
    rig.task.close()


def test_what_prepare_emits_is_before_the_barrier_and_in_the_states_behind() -> None:
    rig = Rig(Buffers(), Counted())
    rig.push("x", "y")
    rig.step()
    future = rig.task.trigger_checkpoint_async(1)
    rig.step()
    assert future.result(timeout=0).operators["counted"].state == 2
    assert rig.output.elements[:2] == [("x", 0), ("y", 1)]
    assert barriers(rig) == [1]
    rig.task.close()


@pytest.mark.contract(convicts=["waiting_rows_forgotten"])
def test_an_unaligned_checkpoint_does_not_wait_until_what_prepare_emits_is_worked_off() -> None:
    rig = Rig(Buffers(), Counted())
    rig.push("x", "y")
    rig.step()
    future = rig.task.trigger_checkpoint_async(1, UNALIGNED)
    rig.step()
    operators = future.result(timeout=0).operators
    assert operators["counted"] == OperatorSnapshot(0, ("x", "y"))
    assert rig.output.elements == [future.result().barrier, ("x", 0), ("y", 1)]
    rig.task.close()


@pytest.mark.contract
def test_a_checkpoint_is_taken_while_the_task_waits_for_input_or_for_room() -> None:
    rig = Rig(Map(str))
    rig.step()
    first = rig.task.trigger_checkpoint_async(1)
    rig.step()
    rig.output.block()
    rig.push(1)
    rig.step()
    second = rig.task.trigger_checkpoint_async(2)
    rig.step()
    assert first.done()
    assert second.done()
    rig.task.close()


@pytest.mark.contract
@pytest.mark.parametrize("options", [CheckpointOptions(), UNALIGNED])
def test_under_full_input_a_checkpoint_waits_for_no_more_than_the_record_at_work(
    options: CheckpointOptions,
) -> None:
    class Asks(Operator):
        uid = "asks"
        processed = 0

        def process(self, record: Any) -> None:
            self.processed += 1
            self.output.collect(record)
            if record == 50:
                futures.append(rig.task.trigger_checkpoint_async(1, options))

        def snapshot_state(self, barrier: CheckpointBarrier) -> int:
            return self.processed

    futures: list[Future[Any]] = []
    rig = Rig(Asks(), Map(lambda x: x), input=Numbers(100))
    rig.task.run()
    assert futures[0].result(timeout=0).operators["asks"].state == 51
    assert rig.output.elements.index(futures[0].result().barrier) == 51


def test_a_barrier_of_the_input_is_a_checkpoint_in_its_place() -> None:
    rig = Rig(Counted(), Map(lambda pair: pair[1]))
    barrier = CheckpointBarrier(3, 0.0)
    rig.push("a", "b", barrier, "c")
    rig.step()
    assert rig.output.elements == [0, 1, barrier, 2]
    (snapshot,) = rig.responses.acknowledged
    assert snapshot.operators["counted"] == OperatorSnapshot(2, ())
    rig.task.close()


class Overtaking(Numbers):
    """Emits the barrier of an unaligned checkpoint after its first number, in the middle of a call."""

    def emit_next(self, output: TaskOutput) -> InputStatus:
        first = self.next == 0
        if first:
            output.collect("before")
            output.emit_barrier(CheckpointBarrier(1, 0.0, UNALIGNED))
        status = super().emit_next(output)
        if first:
            output.collect("after")
        return status


def test_an_unaligned_barrier_of_the_input_is_taken_when_its_call_has_returned() -> None:
    rig = Rig(Counted(), input=Overtaking(2))
    rig.task.run()
    (snapshot,) = rig.responses.acknowledged
    assert snapshot.input == 1
    assert snapshot.operators["counted"] == OperatorSnapshot(0, ("before", 0, "after"))
    assert rig.output.elements == [
        snapshot.barrier,
        *((record, i) for i, record in enumerate(["before", 0, "after", 1])),
        END,
    ]


def test_an_unaligned_barrier_is_taken_before_the_end_that_the_same_call_says() -> None:
    class AtTheEnd(Numbers):
        def emit_next(self, output: TaskOutput) -> InputStatus:
            output.emit_barrier(CheckpointBarrier(1, 0.0, UNALIGNED))
            return InputStatus.END_OF_INPUT

    rig = Rig(Map(str), input=AtTheEnd(0))
    rig.task.run()
    assert rig.output.elements == [CheckpointBarrier(1, 0.0, UNALIGNED), END]


def test_barriers_still_come_through_after_the_end_of_the_data() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    barrier = CheckpointBarrier(3, 0.0)
    rig.end(InputStatus.END_OF_DATA)
    rig.push(barrier)
    rig.end(InputStatus.END_OF_INPUT)
    rig.task.run()
    assert rig.output.elements == [END, barrier]
    assert log.index("a finish") < log.index("a snapshot 3")


@pytest.mark.contract
def test_a_restored_task_goes_on_where_the_snapshot_was_taken() -> None:
    def task(end: int) -> Rig:
        return Rig(Counted(), Map(lambda x: x), input=Numbers(end))

    first = task(100)
    first.task.run_step()
    first.task.run_step()
    future = first.task.trigger_checkpoint_async(1)
    first.task.run_step()
    snapshot = pickle.loads(pickle.dumps(future.result(timeout=0)))
    before = first.output.elements.index(snapshot.barrier)
    first.task.close()
    second = task(5)
    second.task.restore(snapshot)
    second.task.run()
    assert first.output.elements[:before] + second.output.records == [(i, i) for i in range(5)]


def test_an_input_that_cannot_restore_refuses_a_snapshot_with_its_state() -> None:
    source = Rig(Counted(), input=Numbers(3))
    future = source.task.trigger_checkpoint_async(1)
    source.task.run_step()
    source.task.close()
    with pytest.raises(ValueError, match="no restore_state"):
        Rig(Counted()).task.restore(future.result(timeout=0))


@pytest.mark.contract
@pytest.mark.parametrize("step", ["prepare", "snapshot"])
def test_an_operator_that_cannot_be_saved_declines_the_checkpoint_and_the_task_goes_on(step: str) -> None:
    log: list[str] = []
    rig = Rig(Logging("before", log), Logging("a", log, step))
    future = rig.task.trigger_checkpoint_async(1)
    assert rig.run("record") == ["record", END]
    with pytest.raises(CheckpointDeclined, match=f"operator 'a' raised ValueError: a {step} 1") as declined:
        future.result(timeout=0)
    assert isinstance(declined.value.__cause__, ValueError)
    assert barriers(rig) == []
    assert {"before aborted 1", "a aborted 1"} <= set(log)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda t: t.trigger_checkpoint_async(-1), ValueError, "id=-1"),
        (lambda t: t.trigger_checkpoint_async("1"), TypeError, "id='1'"),
        (lambda t: t.trigger_checkpoint_async(True), TypeError, "id=True"),
    ],
)
def test_a_bad_request_is_refused_when_it_is_made(call: Any, error: type[Exception], text: str) -> None:
    rig = Rig(Map(str))
    with pytest.raises(error, match=text):
        call(rig.task)
    rig.task.close()


# -- a blocked operator ----------------------------------------------------------------------------


def blocked_rig(at_the_door: Any) -> tuple[Rig, Door]:
    """A flat map in front of a door for one record; `at_the_door(n)` is called at its n-th wait.

    A wait in vain is an error and no hang.
    """
    door = Door()
    mailbox = ImpatientMailbox()
    rig = Rig(Counted(3), door, Map(lambda pair: pair[1], "last"), mailbox=mailbox)
    waits = iter(range(1000))
    door.blocked = lambda: at_the_door(next(waits))
    return rig, door


def test_an_unaligned_checkpoint_is_taken_while_an_operator_waits_in_a_yield() -> None:
    futures: list[Future[Any]] = []

    def at_the_door(wait: int) -> None:
        if wait == 0:
            futures.append(rig.task.trigger_checkpoint_async(1, UNALIGNED))
        else:
            assert futures[0].done(), "the yield must have run it"
            door.let_go()

    rig, door = blocked_rig(at_the_door)
    rig.run("x")
    operators = futures[0].result(timeout=0).operators
    # What waits at the door and what is on its way to it belong to the checkpoint, in order.
    assert operators["counted"] == OperatorSnapshot(3, ())
    assert operators["door"] == OperatorSnapshot([("x", 0)], (("x", 1), ("x", 2)))
    assert rig.output.records == [0, 1, 2]


@pytest.mark.contract
def test_what_was_on_its_way_in_an_unaligned_checkpoint_comes_out_once_after_the_restore() -> None:
    futures: list[Future[Any]] = []

    def at_the_door(wait: int) -> None:
        if wait == 0:
            futures.append(rig.task.trigger_checkpoint_async(1, UNALIGNED))
        elif wait == 1:
            rig.task.cancel()

    rig, _ = blocked_rig(at_the_door)
    rig.push("x")
    with pytest.raises(TaskCancelled):
        rig.task.run()
    assert rig.output.records == []
    snapshot = pickle.loads(pickle.dumps(futures[0].result(timeout=0)))
    again, door = blocked_rig(lambda wait: door.let_go())
    again.task.restore(snapshot)
    again.run("y")
    assert again.output.records == [0, 1, 2, 3, 4, 5]


@pytest.mark.contract
def test_an_aligned_checkpoint_waits_until_the_operator_no_longer_yields() -> None:
    futures: list[Future[Any]] = []

    def at_the_door(wait: int) -> None:
        if wait == 0:
            futures.append(rig.task.trigger_checkpoint_async(1))
        assert not futures[0].done()
        door.let_go()

    rig, door = blocked_rig(at_the_door)
    rig.push("x")
    rig.step()
    operators = futures[0].result(timeout=0).operators
    assert [snapshot.pending for snapshot in operators.values()] == [(), (), ()]
    assert operators["door"].state == [("x", 2)]
    assert [e if isinstance(e, int) else e.id for e in rig.output.elements] == [0, 1, 1]
    rig.task.close()


def test_an_operator_that_has_taken_a_record_in_before_it_yields_does_not_get_it_again() -> None:
    class TakesIn(Operator):
        uid = "takes in"

        def __init__(self) -> None:
            self.held: list[Any] = []

        def process(self, record: Any) -> None:
            self.held.append(record)
            self.context.admitted()
            futures.append(rig.task.trigger_checkpoint_async(1, UNALIGNED))
            self.context.executor.yield_()

        def snapshot_state(self, barrier: CheckpointBarrier) -> list[Any]:
            return list(self.held)

    futures: list[Future[Any]] = []
    rig = Rig(TakesIn())
    rig.push("x")
    rig.step()
    assert futures[0].result(timeout=0).operators["takes in"] == OperatorSnapshot(["x"], ())
    rig.task.close()


def test_notices_reach_the_operators_while_one_of_them_waits_in_a_yield() -> None:
    log: list[str] = []
    door = Door()
    rig = Rig(Logging("a", log), door, mailbox=ImpatientMailbox())
    notices: list[Future[bool]] = []

    def blocked() -> None:
        if not notices:
            notices.append(rig.task.notify_checkpoint_complete_async(1))
            notices.append(rig.task.notify_checkpoint_aborted_async(2))
        elif all(notice.done() for notice in notices):
            log.append("let go")
            door.let_go()

    door.blocked = blocked
    for checkpoint_id in (1, 2):
        rig.task.trigger_checkpoint_async(checkpoint_id)
    rig.run("x", "y")
    assert log.index("a complete 1") < log.index("a aborted 2") < log.index("let go")
