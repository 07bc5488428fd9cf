"""Stop with a savepoint, with and without drain: what is emitted, how it ends, how it is taken back."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task import InputStatus, Operator
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, CheckpointOptions, StopAborted
from pillarbox.task.protocols import MAX_WATERMARK, Idleness, TaskState, Watermark
from pillarbox.testing import FakeClock
from tests.task.unit.operators import Counted, Declining, Door, Logging, Map, Rig

END = Watermark(MAX_WATERMARK)


def savepoint(id: int, drain: bool) -> CheckpointBarrier:
    return CheckpointBarrier(id, 0.0, CheckpointOptions(savepoint=True, drain=drain))


@pytest.mark.contract(convicts=["savepoint_does_not_hold"])
def test_a_stop_without_drain_ends_after_the_savepoint_without_finishing_the_operators() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.push(1)
    rig.step()
    stop = rig.task.stop_with_savepoint_async(1, timestamp=0.0)
    rig.push(2)
    rig.step()
    assert stop.result(timeout=0).barrier == savepoint(1, False)
    assert (rig.task.state, rig.output.elements) == (TaskState.RUNNING, [1, savepoint(1, False)])
    rig.task.notify_checkpoint_complete_async(1)
    rig.task.run()
    assert rig.task.state is TaskState.FINISHED
    assert log[-3:] == ["a snapshot 1", "a complete 1", "a close"]
    assert rig.output.elements == [1, savepoint(1, False)]


@pytest.mark.contract
def test_a_stop_with_drain_finishes_the_operators_before_the_savepoint() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.push(1)
    rig.step()
    stop = rig.task.stop_with_savepoint_async(1, drain=True, timestamp=0.0)
    rig.push(2)
    rig.step()
    assert stop.result(timeout=0).barrier == savepoint(1, True)
    rig.task.notify_checkpoint_complete_async(1)
    rig.task.run()
    assert rig.output.elements == [1, END, savepoint(1, True)]
    assert log[-6:] == ["a end_input", "a finish", "a prepare 1", "a snapshot 1", "a complete 1", "a close"]
    assert rig.task.state is TaskState.FINISHED


@pytest.mark.contract(convicts=["watermark_leaves_pause"])
def test_after_a_savepoint_nothing_leaves_the_task_though_timers_and_mail_still_run() -> None:
    clock = FakeClock()

    class Ticks(Operator):
        uid = "ticks"

        def open(self) -> None:
            self.context.timers.schedule_at_fixed_rate(self.output.collect, 1.0, 1.0)

        def process(self, record: Any) -> None:
            self.output.collect(record)

    rig = Rig(Ticks(), Counted(), clock=clock)
    clock.advance(1.0)
    rig.step()
    rig.task.stop_with_savepoint_async(1)
    rig.step()
    before = list(rig.output.elements)
    clock.advance(5.0)
    last = rig.task.chain.contexts[1]
    last.executor.execute(last.output.collect, "late")
    last.executor.execute(last.output.emit_watermark, 5.0)
    rig.step()
    rig.task.notify_checkpoint_complete_async(1)
    rig.task.run()
    assert rig.output.elements == before


@pytest.mark.contract(convicts=["no_checkpoint_after_abort"])
def test_an_aborted_stop_without_drain_goes_on_and_has_lost_nothing() -> None:
    log: list[str] = []
    rig = Rig(Counted(), Logging("b", log))
    rig.push("x")
    rig.step()
    rig.task.stop_with_savepoint_async(1, timestamp=0.0)
    rig.push("y")
    rig.step()
    last = rig.task.chain.contexts[1]
    last.executor.execute(last.output.collect, "from a mail")
    last.executor.execute(last.output.emit_watermark, 5.0)
    last.executor.execute(last.output.emit_status, True)
    rig.step()
    assert len(rig.output.elements) == 2
    rig.task.notify_checkpoint_aborted_async(1)
    rig.step()
    assert rig.output.elements == [
        ("x", 0),
        savepoint(1, False),
        "from a mail",
        Watermark(5.0),
        Idleness(True),
        ("y", 1),
    ]
    assert "b aborted 1" in log
    again = rig.task.trigger_checkpoint_async(2)
    rig.step()
    assert again.result(timeout=0).operators["counted"].state == 2
    rig.task.close()


@pytest.mark.contract(convicts=["kept_back_overtaken"])
def test_after_an_aborted_stop_what_was_kept_at_the_output_leaves_before_what_waited_further_up() -> None:
    rig = Rig(Map(str), Map(str.upper))
    rig.step()
    rig.task.stop_with_savepoint_async(1, timestamp=0.0)
    rig.step()
    first, last = rig.task.chain.contexts
    last.executor.execute(last.output.collect, "kept")
    first.executor.execute(first.output.collect, "waited")
    rig.step()
    assert rig.output.elements == [savepoint(1, False)]
    rig.task.notify_checkpoint_aborted_async(1)
    rig.step()
    assert rig.output.elements == [savepoint(1, False), "kept", "WAITED"]
    rig.task.close()


@pytest.mark.contract(convicts=["kept_back_without_bound"])
def test_after_an_aborted_stop_the_output_gets_no_more_at_a_time_than_it_has_room_for() -> None:
    rig = Rig(Map(str))
    rig.step()
    rig.task.stop_with_savepoint_async(1, timestamp=0.0)
    rig.step()
    (context,) = rig.task.chain.contexts
    assert context.output.is_available
    context.executor.execute(context.output.collect, "kept")
    rig.step()
    assert not context.output.is_available
    woken: list[bool] = []
    context.executor.execute(context.output.call_when_room, lambda: woken.append(context.output.is_available))
    rig.step()
    assert woken == []
    rig.task.notify_checkpoint_aborted_async(1)
    rig.step()
    assert rig.output.elements == [savepoint(1, False), "kept"]
    assert woken == [True]
    rig.task.close()


@pytest.mark.parametrize("when", ["after the savepoint", "while it drains"])
def test_an_aborted_stop_with_drain_cannot_go_on(when: str) -> None:
    class Waits(Operator):
        uid = "waits"

        def process(self, record: Any) -> None:
            self.output.collect(record)

        def end_input(self) -> Future[Any]:
            return under_way

    under_way: Future[Any] = Future()
    rig = Rig(Waits())
    stop = rig.task.stop_with_savepoint_async(1, drain=True)
    rig.step()
    if when == "after the savepoint":
        under_way.set_result(None)
        rig.step()
    rig.task.notify_checkpoint_aborted_async(1)
    under_way.done() or under_way.set_result(None)
    with pytest.raises(StopAborted, match="savepoint 1 was aborted when the task was already drained"):
        rig.task.run()
    assert rig.task.state is TaskState.FAILED
    assert (stop.exception(timeout=0) is None) == (when == "after the savepoint")


def test_other_checkpoints_are_declined_once_the_task_stops() -> None:
    rig = Rig(Map(str))
    rig.task.stop_with_savepoint_async(1)
    others = [
        rig.task.trigger_checkpoint_async(2),
        rig.task.stop_with_savepoint_async(3),
        rig.task.stop_with_savepoint_async(4, drain=True),
    ]
    rig.step()
    for other in others:
        with pytest.raises(CheckpointDeclined, match="the task stops with savepoint 1"):
            other.result(timeout=0)
    rig.task.close()


def test_a_savepoint_that_an_operator_declines_does_not_stop_the_task() -> None:
    rig = Rig(Declining(1))
    stop = rig.task.stop_with_savepoint_async(1)
    rig.push("x")
    rig.step()
    assert isinstance(stop.exception(timeout=0), CheckpointDeclined)
    assert rig.output.elements == ["x"]
    rig.task.close()


def test_a_savepoint_that_is_declined_after_the_drain_ends_the_task() -> None:
    rig = Rig(Declining(1))
    stop = rig.task.stop_with_savepoint_async(1, drain=True)
    with pytest.raises(StopAborted) as caught:
        rig.task.run()
    assert isinstance(caught.value.__cause__, CheckpointDeclined)
    assert isinstance(stop.exception(timeout=0), CheckpointDeclined)
    assert [error.id for error in rig.responses.declined] == [1]


@pytest.mark.parametrize("drain", [True, False])
def test_an_old_savepoint_is_declined_before_anything_is_drained(drain: bool) -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.task.trigger_checkpoint_async(5)
    stop = rig.task.stop_with_savepoint_async(4, drain=drain)
    rig.push("x")
    rig.step()
    assert isinstance(stop.exception(timeout=0), CheckpointDeclined)
    assert "a end_input" not in log
    assert rig.output.records == ["x"]
    rig.task.close()


@pytest.mark.parametrize("drain", [True, False])
def test_a_task_can_be_stopped_between_the_end_of_its_data_and_of_its_input(drain: bool) -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.end(InputStatus.END_OF_DATA)
    rig.step()
    stop = rig.task.stop_with_savepoint_async(1, drain=drain, timestamp=0.0)
    rig.step()
    rig.task.notify_checkpoint_complete_async(1)
    rig.task.run()
    assert stop.result(timeout=0).barrier == savepoint(1, drain)
    assert rig.output.elements == [END, savepoint(1, drain)]
    assert log.count("a finish") == 1


@pytest.mark.parametrize("drain", [True, False])
def test_a_stop_is_declined_while_the_operators_are_being_finished(drain: bool) -> None:
    class Waits(Operator):
        def process(self, record: Any) -> None:
            self.output.collect(record)

        def end_input(self) -> Future[Any]:
            return under_way

    under_way: Future[Any] = Future()
    rig = Rig(Waits())
    rig.end()
    rig.step()
    stop = rig.task.stop_with_savepoint_async(1, drain=drain)
    plain = rig.task.trigger_checkpoint_async(2)
    rig.step()
    under_way.set_result(None)
    rig.task.run()
    with pytest.raises(CheckpointDeclined, match="being finished already"):
        stop.result(timeout=0)
    assert [error.id for error in rig.responses.declined] == [1]
    assert plain.result(timeout=0).barrier.id == 2


def test_a_stop_waits_until_an_operator_no_longer_yields() -> None:
    door = Door()
    rig = Rig(Counted(), door)
    stops: list[Future[Any]] = []

    def blocked() -> None:
        if not stops:
            stops.append(rig.task.stop_with_savepoint_async(1))
        assert not stops[0].done()
        door.let_go()

    door.blocked = blocked
    rig.push("x", "y", "z")
    rig.step()
    snapshot = stops[0].result(timeout=0)
    assert (snapshot.operators["counted"].state, snapshot.operators["door"].state) == (2, [("y", 1)])
    assert rig.output.records == [("x", 0)]
    rig.task.close()
