"""Checkpoints: what a snapshot holds, where the barrier goes, what a blocked operator does to them."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task import Operator
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    OperatorSnapshot,
)
from pillarbox.task.protocols import MAX_WATERMARK, TaskCancelled, Watermark
from tests.task.unit.operators import Counted, Door, ImpatientMailbox, Logging, Map, Numbers, Rig

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
    assert log[4:6] == ["a snapshot 7", "b snapshot 7"]
    rig.task.close()


@pytest.mark.contract(
    "A checkpoint's barrier is in the output before anybody hears that the checkpoint is taken.",
    convicts=["acknowledged_before_barrier"],
)
@pytest.mark.parametrize("options", [CheckpointOptions(), UNALIGNED])
def test_nobody_hears_of_a_checkpoint_before_its_barrier_is_in_the_output(options: CheckpointOptions) -> None:
    heard: list[list[int]] = []
    rig = Rig(Map(str))
    rig.push(1)
    rig.step()
    future = rig.task.trigger_checkpoint_async(7, options)
    future.add_done_callback(lambda done: heard.append(barriers(rig)))
    rig.step()
    assert heard == [[7]]
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
def test_an_operator_that_cannot_be_saved_declines_the_checkpoint_and_the_task_goes_on() -> None:
    log: list[str] = []
    rig = Rig(Logging("before", log), Logging("a", log, "snapshot"))
    future = rig.task.trigger_checkpoint_async(1)
    assert rig.run("record") == ["record", END]
    with pytest.raises(CheckpointDeclined, match="operator 'a' raised ValueError: a snapshot 1") as declined:
        future.result(timeout=0)
    assert isinstance(declined.value.__cause__, ValueError)
    assert barriers(rig) == []


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
