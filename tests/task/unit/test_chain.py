"""The chain: order, the links between operators, priorities by position, what an operator may not do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pillarbox.kernel import MAX_PRIORITY, WrongThreadError
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, OperatorSnapshot, TaskSnapshot
from pillarbox.task.protocols import MAX_WATERMARK, Idleness, Watermark
from pillarbox.testing.test_io import PushedInput
from tests.task.unit.operators import Counted, Door, ImpatientMailbox, Logging, Map, Rig

UNALIGNED = CheckpointOptions(aligned=False)
END = Watermark(MAX_WATERMARK)


@pytest.mark.contract
def test_records_go_through_the_operators_in_order() -> None:
    rig = Rig(Map(lambda x: x + 1), Map(lambda x: x * 10))
    assert rig.run(1, 2, 3) == [20, 30, 40, END]


@pytest.mark.contract
def test_a_watermark_keeps_its_place_among_the_records() -> None:
    rig = Rig(Counted(2), Map(lambda pair: pair[0]))
    assert rig.run("a", Watermark(5.0), "b") == ["a", "a", Watermark(5.0), "b", "b", END]


def test_idleness_keeps_its_place_among_the_records_and_reaches_the_output() -> None:
    seen: list[bool] = []

    class Hears(Map):
        def process_status(self, idle: bool) -> None:
            seen.append(idle)
            super().process_status(idle)

    rig = Rig(Counted(2), Hears(lambda pair: pair[0]))
    assert rig.run("a", Idleness(True), "b") == ["a", "a", Idleness(True), "b", "b", END]
    assert seen == [True]


def test_an_output_that_does_not_ask_for_idleness_is_not_told() -> None:
    class Plain:
        is_available = True
        records: list[Any] = []  # noqa: RUF012

        def collect(self, record: Any) -> None:
            self.records.append(record)

        def emit_watermark(self, timestamp: float) -> None:
            return None

        def emit_barrier(self, barrier: CheckpointBarrier) -> None:
            return None

        def call_when_room(self, wake: Any) -> None:
            raise AssertionError("there is always room")

    source = PushedInput()
    source.push(1)
    source.push(Idleness(True))
    source.push(2)
    source.push_status(InputStatus.END_OF_INPUT)
    StreamTask(source, [Map(str)], Plain()).run()
    assert Plain.records == ["1", "2"]


def test_what_an_operator_emits_is_handed_on_when_it_has_returned() -> None:
    log: list[str] = []

    class Twice(Operator):
        def process(self, record: Any) -> None:
            self.output.collect(record)
            self.output.collect(record)
            log.append("returns")

    Rig(Twice(), Logging("next", log)).run("x")
    assert log[:4] == ["next open", "returns", "next process x", "next process x"]


def test_elements_nearest_to_the_output_move_first() -> None:
    log: list[str] = []
    rig = Rig(Counted(2), Logging("b", log), Logging("c", log))
    rig.run("x")
    assert [line for line in log if "process" in line] == [
        "b process ('x', 0)",
        "c process ('x', 0)",
        "b process ('x', 1)",
        "c process ('x', 1)",
    ]


def test_the_priority_of_an_operator_is_its_position() -> None:
    ran: list[str] = []
    rig = Rig(Map(str, "a"), Map(str, "b"), Map(str, "c"))
    rig.task.restore()
    a, b, c = (context.executor for context in rig.task.chain.contexts)
    for name, executor in (("a", a), ("b", b), ("c", c)):
        executor.execute(ran.append, name)
    assert [c.try_yield(), c.try_yield(), b.try_yield(), b.try_yield(), a.try_yield()] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert ran == ["c", "b", "a"]
    rig.task.close()


@pytest.mark.contract
def test_a_yield_runs_mail_of_its_own_operator_and_of_those_behind_it_only() -> None:
    log: list[str] = []
    door = Door()
    rig = Rig(Map(lambda x: x, "a"), door, Map(lambda x: x, "c"))
    rig.task.restore()
    a, b, c = (context.executor for context in rig.task.chain.contexts)
    task_wide = rig.task.processor.executor(-1)

    def blocked() -> None:
        if not log:
            task_wide.execute(log.append, "task")
            a.execute(log.append, "before")
            c.execute(log.append, "behind")
            b.execute(log.append, "own")
        elif log[-1] == "own":
            door.let_go()

    door.blocked = blocked
    rig.push(1, 2)
    rig.step()
    assert log == ["behind", "own", "task", "before"]
    assert rig.output.records == [1]
    rig.task.close()


@pytest.mark.contract
def test_nothing_passes_an_operator_that_yields_and_those_behind_it_go_on() -> None:
    door = Door()
    rig = Rig(Counted(3), door, Map(lambda pair: pair[1]))
    seen: list[list[Any]] = []

    def blocked() -> None:
        seen.append(list(rig.output.records))
        door.let_go()

    door.blocked = blocked
    rig.run("x")
    # Each time it is blocked, what it let go before has come out already.
    assert seen == [[], [0]]
    assert rig.output.records == [0, 1, 2]


def test_what_a_mail_emits_is_moved_when_the_mail_ends() -> None:
    rig = Rig(Map(lambda x: x, "a"), Map(lambda x: -x, "b"))
    rig.task.restore()
    first = rig.task.chain.contexts[0]
    first.executor.execute(first.output.collect, 7)
    rig.step()
    assert rig.output.records == [-7]
    rig.task.close()


@pytest.mark.contract(convicts=["opened_from_input"])
def test_operators_are_restored_and_opened_from_the_output_to_the_input() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log))
    snapshot = TaskSnapshot(
        CheckpointBarrier(1, 0.0), None, {"a": OperatorSnapshot("A", ()), "b": OperatorSnapshot("B", ())}
    )
    rig.task.restore(snapshot)
    assert log == ["b restore B", "b open", "a restore A", "a open"]
    rig.task.close()


@pytest.mark.contract
def test_elements_on_their_way_are_worked_off_before_new_input() -> None:
    rig = Rig(Map(lambda x: x, "a"), Map(lambda x: x * 2, "b"))
    snapshot = TaskSnapshot(
        CheckpointBarrier(1, 0.0),
        None,
        {"a": OperatorSnapshot(None, (2, Watermark(1.0))), "b": OperatorSnapshot(None, (1,))},
    )
    rig.task.restore(snapshot)
    rig.step()
    assert rig.output.elements == [2, 4, Watermark(1.0)]
    assert rig.run(3) == [2, 4, Watermark(1.0), 6, END]


@pytest.mark.contract
def test_a_snapshot_with_an_operator_that_the_chain_has_not_is_refused() -> None:
    rig = Rig(Map(str, "a"))
    snapshot = TaskSnapshot(CheckpointBarrier(1, 0.0), None, {"gone": OperatorSnapshot(1, ())})
    with pytest.raises(ValueError, match="'gone'.*only 'a'"):
        rig.task.restore(snapshot)


class Awaits(Operator):
    async def process(self, record: Any) -> None:  # type: ignore[override]
        raise AssertionError(record)


def test_an_async_method_of_one_operator_is_refused_though_its_class_has_a_plain_one() -> None:
    plain, other = Map(str, "a"), Map(str, "b")

    async def process(record: Any) -> None:
        raise AssertionError(record)

    Rig(plain)
    other.process = process  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError, match=r"operators\[0\]\.process=.*must be a plain function"):
        Rig(other)


class ClosesWith(Map):
    def close(self) -> Any:
        return "what cannot be waited for"


def test_an_operator_that_closes_with_what_cannot_be_waited_for_is_named_beside_the_error_before() -> None:
    def fails(record: Any) -> None:
        raise KeyError(record)

    with pytest.raises(KeyError) as raised:
        Rig(ClosesWith(fails, "ends")).run(1)
    assert "close of operator 'ends' gave 'what cannot be" in str(getattr(raised.value, "__notes__", ()))


def test_a_chain_needs_operators_with_different_uids() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Rig()
    with pytest.raises(ValueError, match="'same'"):
        Rig(Map(str, "same"), Map(str, "same"))
    one = Map(str)
    with pytest.raises(ValueError, match="twice"):
        Rig(one, one)
    with pytest.raises(TypeError, match=r"operators\[0\]=.*Operator"):
        Rig(str)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"operators\[0\]\.process=.*plain function"):
        Rig(Awaits())
    with pytest.raises(TypeError, match=r"operators\[1\]=.*method `process`"):
        Rig(one, Operator())


def test_operators_without_a_uid_are_told_apart_by_their_positions() -> None:
    assert Rig(Map(str), Map(str)).task.chain.uids == ("0:Map", "1:Map")


def test_an_operator_may_not_emit_a_barrier() -> None:
    class Sends(Operator):
        def process(self, record: Any) -> None:
            self.output.emit_barrier(CheckpointBarrier(1, 0.0))

    with pytest.raises(RuntimeError, match="the chain sends barriers"):
        Rig(Sends(), Map(str)).run(1)


@pytest.mark.contract(convicts=["stopped_input_goes_on"])
@pytest.mark.parametrize("end", [InputStatus.END_OF_DATA, InputStatus.STOPPED])
def test_an_input_may_not_emit_records_after_the_end_of_its_data(end: InputStatus) -> None:
    rig = Rig(Map(str))
    rig.end(end)
    rig.push("late")
    with pytest.raises(RuntimeError, match="'late' after the end of its data"):
        rig.step()


@pytest.mark.parametrize("position", [0, 1])
def test_an_operator_cannot_emit_from_another_thread(position: int) -> None:
    rig = Rig(Map(str, "a"), Map(str, "b"))
    rig.task.restore()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            rig.task.chain.contexts[position].output.collect("x")
        except WrongThreadError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert rig.output.elements == []
    rig.task.close()


@pytest.mark.contract(convicts=["emitted_after_close"])
@pytest.mark.parametrize("position", [0, 1])
def test_nothing_is_emitted_once_the_task_is_closed(position: int) -> None:
    rig = Rig(Map(str, "a"), Map(str, "b"))
    rig.task.restore()
    rig.task.close()
    output = rig.task.chain.contexts[position].output
    with pytest.raises(RuntimeError, match="'x' was emitted after"):
        output.collect("x")
    with pytest.raises(RuntimeError, match="emitted after"):
        output.emit_watermark(1.0)
    assert rig.output.elements == []


@pytest.mark.contract(convicts=["emits_without_room"])
def test_an_operator_sees_whether_the_task_has_room_for_what_it_emits() -> None:
    rig = Rig(Map(str, "a"), Map(str, "b"))
    rig.task.restore()
    outputs = [context.output for context in rig.task.chain.contexts]
    assert [output.is_available for output in outputs] == [True, True]
    rig.output.block()
    assert [output.is_available for output in outputs] == [False, False]
    woken: list[int] = []
    for position, output in enumerate(outputs):
        output.call_when_room(partial(woken.append, position))
    assert woken == []
    rig.output.unblock()
    rig.step()
    assert sorted(woken) == [0, 1]
    rig.task.close()


class RoomAtALook:
    """An output whose consumer makes room when it is asked for the `look`-th time whether it has some."""

    def __init__(self, look: int) -> None:
        self.records: list[Any] = []
        self.looks = 0
        self._look = look
        self._wakes: list[Callable[[], object]] = []

    @property
    def is_available(self) -> bool:
        self.looks += 1
        if self.looks == self._look:
            for wake in self._wakes:
                wake()
        return self.looks >= self._look

    def call_when_room(self, wake: Callable[[], object]) -> None:
        if self.looks >= self._look:
            wake()
        else:
            self._wakes.append(wake)

    def collect(self, record: Any) -> None:
        assert self.looks >= self._look, "emitted without room"
        self.records.append(record)

    def emit_watermark(self, timestamp: float) -> None:
        return None

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        return None


class Patient(Operator):
    """Holds a record until its output has room."""

    def process(self, record: Any) -> None:
        self.context.executor.execute(self.emit, record)

    def emit(self, record: Any) -> None:
        if self.output.is_available:
            self.output.collect(record)
        else:
            self.output.call_when_room(partial(self.emit, record))


class Narrow(Patient):
    """Takes a record only while its output has room."""

    @property
    def has_room(self) -> bool:
        return self.output.is_available

    def process(self, record: Any) -> None:
        self.output.collect(record)


@pytest.mark.contract(convicts=["room_between_two_looks"])
@pytest.mark.parametrize("look", range(1, 9))
@pytest.mark.parametrize("operator", [Patient, Narrow])
def test_room_that_the_consumer_makes_at_any_moment_of_an_action_is_used(
    operator: type[Operator], look: int
) -> None:
    source, output = PushedInput(), RoomAtALook(look)
    task = StreamTask(source, [operator()], output)
    source.push("x")
    for _ in range(2 * look):
        while task.run_step():
            pass
        if output.looks >= look:
            break
        # The consumer makes room while the task sleeps.
        _ = output.is_available
    assert output.records == ["x"]
    task.close()


def test_mail_of_the_highest_priority_passes_every_yield() -> None:
    door = Door()
    rig = Rig(Map(lambda x: x, "a"), door)
    highest = rig.task.processor.executor(MAX_PRIORITY)
    ran: list[str] = []

    def blocked() -> None:
        if not ran:
            highest.execute(ran.append, "highest")
        else:
            door.let_go()

    door.blocked = blocked
    rig.run(1, 2)
    assert ran == ["highest"]


class Yields(Logging):
    """The first time that it comes to the step `yields` it yields until its mail `another` has run."""

    def __init__(self, name: str, log: list[str], yields: str, before: Callable[[], object]) -> None:
        super().__init__(name, log)
        self.yields = yields
        self.before = before

    def note(self, what: str) -> None:
        super().note(what)
        if what.split()[0] == self.yields:
            self.yields = ""
            self.before()
            self.context.executor.execute(self.log.append, "another")
            while "another" not in self.log:
                self.context.executor.yield_()
            self.log.append("yielded")

    def mail(self) -> None:
        self.note("mail")


def test_no_element_reaches_an_operator_while_its_own_mail_is_in_a_yield() -> None:
    log: list[str] = []

    class Asks(Operator):
        def process(self, record: Any) -> None:
            self.output.collect(record)
            behind.context.executor.execute(behind.mail)
            self.context.executor.yield_()

    behind = Yields("b", log, "mail", lambda: None)
    Rig(Asks(), behind).run(1)
    assert log[1:5] == ["b mail", "another", "yielded", "b process 1"]


@pytest.mark.contract
@pytest.mark.parametrize("step", ["open", "end_input", "finish", "complete", "aborted"])
def test_no_element_reaches_an_operator_that_yields_in_another_of_its_methods(step: str) -> None:
    log: list[str] = []
    behind = Yields("b", log, step, lambda: rig.task.chain.contexts[0].output.collect("x"))
    rig = Rig(Map(str, "a"), behind, mailbox=ImpatientMailbox())
    for checkpoint_id in (1, 2):
        rig.task.trigger_checkpoint_async(checkpoint_id, UNALIGNED)
    rig.task.notify_checkpoint_aborted_async(2)
    rig.task.notify_checkpoint_complete_async(1)
    rig.run()
    assert log.count("b process x") == 1
    assert log.index("another") < log.index("yielded") < log.index("b process x")
