"""The operator machine: it passes operators that are right, and finds those that break one rule each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from pillarbox.kernel import Mail
from pillarbox.task import Operator
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.operator import OperatorContext
from pillarbox.task.protocols import Idleness, RowBatch, Watermark
from pillarbox.testing.operator_machine import OperatorMachine, agrees
from pillarbox.testing.suites import Disagreement
from tests.search import examples
from tests.testing.unit.unshrunk import UNSHRUNK

QUICK = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
FINDING = settings(UNSHRUNK, max_examples=500)


class Pairs(Operator):
    """A synchronous operator with state: emits rows two by two, and what is left before a watermark."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def process(self, record: int) -> None:
        self.held.append(record)
        if len(self.held) == 2:
            self.flush()

    def flush(self) -> None:
        rows, self.held = self.held, []
        if rows:
            self.output.collect(RowBatch(rows))

    def process_watermark(self, timestamp: float) -> None:
        self.flush()
        super().process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.flush()
        super().process_status(idle)

    def finish(self) -> None:
        self.flush()

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[int]:
        return list(self.held)

    def restore_state(self, state: list[int]) -> None:
        self.held = list(state)


class ForgetsItsState(Pairs):
    def restore_state(self, state: list[int]) -> None:
        pass


class FlushesInASnapshot(Pairs):
    """An operator that flushes in a snapshot: its output is before the barrier, and in the state as well."""

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[int]:
        held = list(self.held)
        self.flush()
        return held


class HoldsPastAWatermark(Pairs):
    def process_watermark(self, timestamp: float) -> None:
        self.output.emit_watermark(timestamp)


class Reverses(Pairs):
    def flush(self) -> None:
        self.held.reverse()
        super().flush()


class DropsIdleness(Pairs):
    def process_status(self, idle: bool) -> None:
        self.flush()


class Window(Operator):
    """An asynchronous operator: calls a service for at most `size` rows, emits in the order of its input."""

    uid = "window"

    def __init__(self, service: Callable[[int], Any], loop: asyncio.AbstractEventLoop, size: int) -> None:
        self.service = service
        self.loop = loop
        self.size = size
        self.held: deque[list[Any]] = deque()
        self.is_asked = False
        self.drained: Future[None] | None = None

    def setup(self, context: OperatorContext) -> None:
        super().setup(context)
        self.mail = Mail(self.emit, priority=context.position)

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.size

    def process(self, record: int) -> None:
        self.hold([record, None])

    def process_watermark(self, timestamp: float) -> None:
        self.hold([Watermark(timestamp), True])

    def process_status(self, idle: bool) -> None:
        self.hold([Idleness(idle), True])

    def hold(self, entry: list[Any]) -> None:
        self.held.append(entry)
        if entry[1] is None:
            self.loop.create_task(self.call(entry))
        else:
            self.ask()

    async def call(self, entry: list[Any]) -> None:
        while entry[1] is None:
            with suppress(ConnectionError):
                entry[1] = await self.service(entry[0])
        self.ask()

    def ask(self) -> None:
        if not self.is_asked:
            self.is_asked = self.context.executor.try_put(self.mail)

    def emit(self) -> None:
        self.is_asked = False
        if not self.output.is_available:
            self.is_asked = True
            self.output.call_when_room(self.again)
            return
        rows: list[Any] = []
        while self.held and self.held[0][1] is not None:
            element, result = self.held.popleft()
            if isinstance(element, (Watermark, Idleness)):
                self.flush(rows)
                rows = []
                if isinstance(element, Watermark):
                    self.output.emit_watermark(element.timestamp)
                else:
                    self.output.emit_status(element.idle)
            else:
                rows.append(result)
        self.flush(rows)
        if self.drained is not None and not self.held:
            self.drained.set_result(None)
            self.drained = None

    def again(self) -> None:
        self.is_asked = False
        self.ask()

    def flush(self, rows: list[Any]) -> None:
        if rows:
            self.output.collect(RowBatch(rows))

    def end_input(self) -> Future[None] | None:
        if self.held:
            self.drained = Future()
        return self.drained

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[list[Any]]:
        return [list(entry) for entry in self.held]

    def restore_state(self, state: list[list[Any]]) -> None:
        for entry in state:
            self.held.append(list(entry))

    def open(self) -> None:
        for entry in self.held:
            if entry[1] is None:
                self.loop.create_task(self.call(entry))
        self.ask()


class CallsAgain(Window):
    def restore_state(self, state: list[list[Any]]) -> None:
        super().restore_state([[e, r if isinstance(e, (Watermark, Idleness)) else None] for e, r in state])


class EmitsWithoutRoom(Window):
    def emit(self) -> None:
        self.is_asked = False
        while self.held and self.held[0][1] is not None:
            element, result = self.held.popleft()
            if isinstance(element, Watermark):
                self.output.emit_watermark(element.timestamp)
            elif isinstance(element, Idleness):
                self.output.emit_status(element.idle)
            else:
                self.output.collect(result)
        if self.drained is not None and not self.held:
            self.drained.set_result(None)
            self.drained = None


class NeverEnds(Window):
    def end_input(self) -> Future[None]:
        return Future()


class ASnapshotIsFinal(Window):
    """Takes nothing in after a snapshot that has failed."""

    failed = False

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[Any]:
        self.failed = True
        return super().snapshot_state(barrier)

    @property
    def has_room(self) -> bool:
        return not self.failed and super().has_room


class KnowsRowsByValue(Window):
    """Looks the row of an answer up by its value."""

    async def call(self, entry: list[Any]) -> None:
        result = None
        while result is None:
            with suppress(ConnectionError):
                result = await self.service(entry[0])
        for other in self.held:
            if other[0] == entry[0] and other[1] is None:
                other[1] = result
                break
        self.ask()


class PairLives(OperatorMachine):
    kind: type[Pairs] = Pairs

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        return [self.kind()]


class WindowLives(OperatorMachine):
    kind: type[Window] = Window

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        return [self.kind(self.service("window"), self.loop, draw(st.integers(1, 4)))]

    def seen(self, record: Any) -> Any:
        return self.number_of(record)


class TwoWindows(WindowLives):
    """Windows of other sizes in each life, one behind the other, with a synchronous operator between them."""

    def operators(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Operator]:
        first = Window(self.service("first"), self.loop, draw(st.integers(1, 3)))
        second = Window(self.service("second"), self.loop, draw(st.integers(1, 3)))
        first.uid, second.uid = "first", "second"
        return [first, Pairs(), second]

    def seen(self, record: Any) -> Any:
        return self.number_of(record)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("machine", [PairLives, WindowLives])
def test_operators_that_are_right_pass_the_operator_machine(
    machine: type[OperatorMachine], alike: bool
) -> None:
    run_state_machine_as_test(type("Right", (machine,), {"alike": alike}), settings=QUICK)


def test_two_windows_in_a_chain_pass_the_operator_machine() -> None:
    run_state_machine_as_test(TwoWindows, settings=QUICK)


WRONG = {
    ForgetsItsState: "output",
    FlushesInASnapshot: "output",
    HoldsPastAWatermark: "output",
    Reverses: "output",
    DropsIdleness: "output",
    CallsAgain: "call",
    EmitsWithoutRoom: "collect",
    NeverEnds: "end",
    ASnapshotIsFinal: "end",
    KnowsRowsByValue: "output",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_an_operator_that_breaks_one_rule_is_found_by_the_operator_machine(kind: type[Operator]) -> None:
    base = PairLives if issubclass(kind, Pairs) else WindowLives
    machine = type("Wrong", (base,), {"kind": kind, "alike": True})
    with pytest.raises(Disagreement) as found:
        run_state_machine_as_test(machine, settings=FINDING)
    assert found.value.operation == WRONG[kind]


@pytest.mark.parametrize(
    ("got", "ordered", "is_whole", "expected"),
    [
        ([], True, False, True),
        ([], True, True, False),
        ([0, 1], True, False, True),
        ([1, 0], True, False, False),
        ([1, 0], False, False, True),
        ([1, 1], False, False, False),
        ([0, 1, Watermark(3.0)], True, False, True),
        ([0, Watermark(2.0)], False, False, False),
        ([0, Watermark(2.0), 1], False, False, False),
        ([0, 1, Watermark(2.0), 4], True, False, False),
        ([0, 1, Watermark(3.0), 4], True, True, True),
        ([0, 1, Watermark(2.0), Watermark(3.0), 4], True, True, True),
        ([0, 1, Watermark(3.0), Watermark(3.0), 4], True, True, False),
        ([0, 1, Watermark(3.0), 4, 4], True, True, False),
        ([0, 1, Idleness(True), 4], True, False, False),
    ],
)
def test_the_model_of_exactly_once(got: list[Any], ordered: bool, is_whole: bool, expected: bool) -> None:
    due = [0, 1, Watermark(2.0), Watermark(3.0), 4]
    assert agrees(got, due, ordered=ordered, is_whole=is_whole) is expected
