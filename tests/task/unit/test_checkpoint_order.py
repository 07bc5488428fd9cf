"""The order among checkpoints: overtaking, declining, completion and abort, requests that come too late."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    OperatorSnapshot,
    TaskSnapshot,
)
from pillarbox.task.protocols import MAX_WATERMARK, TaskCancelled, TaskState, Watermark
from tests.task.unit.operators import Counted, Declining, Logging, Map, Rig

UNALIGNED = CheckpointOptions(aligned=False)
END = Watermark(MAX_WATERMARK)


def barriers(rig: Rig) -> list[int]:
    return [e.id for e in rig.output.elements if isinstance(e, CheckpointBarrier)]


@pytest.mark.contract
def test_an_older_checkpoint_that_comes_later_is_declined_and_the_task_goes_on() -> None:
    rig = Rig(Counted())
    older = rig.task.trigger_checkpoint_async(1)
    newer = rig.task.trigger_checkpoint_async(2, UNALIGNED)
    rig.run("x")
    assert newer.result(timeout=0).barrier.id == 2
    with pytest.raises(CheckpointDeclined, match="checkpoint 1 is declined: checkpoint 2 has already begun"):
        older.result(timeout=0)
    assert barriers(rig) == [2]
    assert rig.output.records == [("x", 0)]


@pytest.mark.contract
def test_one_that_is_overtaken_while_it_is_taken_is_declined() -> None:
    class Yields(Map):
        def process(self, record: Any) -> None:
            # What a restore has left in front of it is worked off by an aligned checkpoint.
            futures.append(rig.task.trigger_checkpoint_async(2, UNALIGNED))
            self.context.executor.yield_()

    log: list[str] = []
    futures: list[Future[Any]] = []
    rig = Rig(Yields(str, "yields"), Logging("b", log))
    states = {"yields": OperatorSnapshot(None, ("x",)), "b": OperatorSnapshot(None, ())}
    rig.task.restore(TaskSnapshot(CheckpointBarrier(0, 0.0), None, states))
    futures.append(rig.task.trigger_checkpoint_async(1))
    rig.run()
    with pytest.raises(CheckpointDeclined, match="checkpoint 2 has overtaken it"):
        futures[0].result(timeout=0)
    assert futures[1].result(timeout=0).barrier.id == 2
    assert barriers(rig) == [2]
    assert "b snapshot 2" in log
    assert "b snapshot 1" not in log


def test_one_that_comes_while_the_operators_are_opened_is_declined() -> None:
    class YieldsInOpen(Map):
        def open(self) -> None:
            futures.append(rig.task.trigger_checkpoint_async(1, UNALIGNED))
            self.context.executor.yield_()

    futures: list[Future[Any]] = []
    rig = Rig(YieldsInOpen(str))
    rig.task.restore()
    with pytest.raises(CheckpointDeclined, match="the task is being restored"):
        futures[0].result(timeout=0)
    later = rig.task.trigger_checkpoint_async(2)
    rig.step()
    assert later.result(timeout=0).barrier.id == 2
    rig.task.close()


@pytest.mark.contract(convicts=["checkpoint_taken_twice"])
def test_the_same_checkpoint_is_not_taken_twice() -> None:
    rig = Rig(Map(str))
    futures = [rig.task.trigger_checkpoint_async(1) for _ in range(2)]
    rig.step()
    assert futures[0].exception(timeout=0) is None
    assert isinstance(futures[1].exception(timeout=0), CheckpointDeclined)
    assert barriers(rig) == [1]
    rig.task.close()


@pytest.mark.contract(
    "A checkpoint that an operator declines sends no barrier, and the task goes on.",
    convicts=["declined_snapshot_half_told"],
)
def test_one_that_an_operator_declines_sends_no_barrier_and_the_task_goes_on() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Declining(1), Logging("c", log))
    declined = rig.task.trigger_checkpoint_async(1)
    rig.step()
    taken = rig.task.trigger_checkpoint_async(2)
    rig.run("x")
    with pytest.raises(CheckpointDeclined, match="checkpoint 1 is declined: not now"):
        declined.result(timeout=0)
    assert taken.result(timeout=0).barrier.id == 2
    assert barriers(rig) == [2]
    assert rig.output.records == ["x"]
    assert log.count("a aborted 1") == log.count("c aborted 1") == 1


@pytest.mark.contract(convicts=["declined_counts_as_taken", "older_checkpoint_completes_later"])
def test_operators_hear_of_the_completion_of_what_they_have_in_it_and_of_nothing_else() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Declining(2))
    for checkpoint_id in (1, 2, 3, 4):
        rig.task.trigger_checkpoint_async(checkpoint_id)
    notices = [rig.task.notify_checkpoint_complete_async(i) for i in (2, 3, 1, 9, 4, 4)]
    rig.step()
    # 2 was declined, 1 is part of 3, 9 is not known.
    assert [notice.result(timeout=0) for notice in notices] == [False, True, False, False, True, False]
    assert [line for line in log if "complete" in line] == ["a complete 3", "a complete 4"]
    rig.task.close()


def test_an_abort_that_comes_before_its_checkpoint_declines_it() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    abort = rig.task.notify_checkpoint_aborted_async(1)
    trigger = rig.task.trigger_checkpoint_async(1)
    later = rig.task.trigger_checkpoint_async(2)
    rig.step()
    assert abort.result(timeout=0) is False
    with pytest.raises(CheckpointDeclined, match="aborted before it began"):
        trigger.result(timeout=0)
    assert later.result(timeout=0).barrier.id == 2
    assert "a aborted 1" not in log
    rig.task.close()


def test_a_notice_that_fails_ends_the_task_and_its_future_says_so() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log, "complete"))
    rig.task.trigger_checkpoint_async(1)
    notice = rig.task.notify_checkpoint_complete_async(1)
    with pytest.raises(ValueError, match="a complete 1"):
        rig.task.run()
    assert isinstance(notice.exception(timeout=0), ValueError)


def test_a_request_that_is_cancelled_before_it_runs_has_no_effect() -> None:
    rig = Rig(Map(str))
    future = rig.task.trigger_checkpoint_async(1)
    assert future.cancel()
    again = rig.task.trigger_checkpoint_async(1)
    rig.step()
    with pytest.raises(CancelledError):
        future.result(timeout=0)
    assert again.result(timeout=0).barrier.id == 1
    rig.task.close()


@pytest.mark.contract
def test_whoever_asks_a_task_that_ends_or_has_ended_is_not_left_waiting() -> None:
    rig = Rig(Map(str))
    rig.task.restore()
    waiting = [rig.task.trigger_checkpoint_async(1), rig.task.notify_checkpoint_complete_async(1)]
    rig.task.close()
    late = [rig.task.trigger_checkpoint_async(2), rig.task.notify_checkpoint_aborted_async(3)]
    for future in (*waiting, *late):
        with pytest.raises(CheckpointDeclined, match="the task has ended"):
            future.result(timeout=0)  # type: ignore[attr-defined]


def test_checkpoints_are_asked_for_from_another_thread() -> None:
    rig = Rig(Map(str))
    found: list[Any] = []

    def coordinate() -> None:
        for checkpoint_id, options in ((1, CheckpointOptions()), (2, UNALIGNED)):
            found.append(
                rig.task.trigger_checkpoint_async(checkpoint_id, options).result(timeout=60).barrier.id
            )
            found.append(rig.task.notify_checkpoint_complete_async(checkpoint_id).result(timeout=60))
        rig.end()

    thread = threading.Thread(target=coordinate)
    thread.start()
    rig.task.run()
    thread.join()
    assert found == [1, True, 2, True]
    assert isinstance(rig.task.state, TaskState)


def test_errors_of_checkpoints_survive_pickling() -> None:
    declined = pickle.loads(pickle.dumps(CheckpointDeclined(3, "why")))
    assert (declined.id, declined.reason, str(declined)) == (3, "why", "checkpoint 3 is declined: why")
    assert pickle.loads(pickle.dumps(TaskCancelled("x"))).name == "x"


@pytest.mark.parametrize("end", ["input", "output"])
@pytest.mark.contract(
    "What the input or the output raises in a snapshot declines it, and the task goes on.",
    convicts=["declined_by_output_not_told"],
)
def test_what_the_input_or_the_output_raises_in_a_snapshot_declines_it(end: str) -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    failing: Any = rig.input if end == "input" else rig.output

    def snapshot_state() -> Any:
        raise ValueError("not now")

    failing.snapshot_state, failing.restore_state = snapshot_state, lambda state: None
    rig.task.restore()
    future = rig.task.trigger_checkpoint_async(1)
    rig.step()
    declined: Any = future.exception(timeout=0)
    assert declined.reason == f"the {end} raised ValueError: not now"
    assert [line for line in log if "aborted" in line] == ([] if end == "input" else ["a aborted 1"])
    assert not [each for each in rig.output.elements if type(each).__name__ == "CheckpointBarrier"]
    rig.run("x")
    assert rig.output.records == ["x"]
