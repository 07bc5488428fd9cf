"""Room in a chain whose operators hold rows for a time: nothing is lost, doubled, overtaken, or stuck.

Time is virtual. Each operator has a window of its own, and the output takes one batch at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pillarbox.kernel import Mail
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, TaskSnapshot
from pillarbox.task.operator import OperatorContext
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, TaskOutput, Watermark
from pillarbox.testing.clocks import VirtualTimeLoop
from pillarbox.testing.test_io import ReplayedInput, RestingOutput
from tests.search import examples

END = Watermark(MAX_WATERMARK)
UNALIGNED = CheckpointOptions(aligned=False)


class Holding(Operator):
    """Holds each element for `seconds`, at most `window` of them, and emits what is due as one batch."""

    def __init__(self, uid: str, loop: asyncio.AbstractEventLoop, window: int, seconds: float) -> None:
        self.uid = uid
        self.loop = loop
        self.window = window
        self.seconds = seconds
        self.held: deque[int | Watermark] = deque()
        self.due = self.most = 0
        self.is_asked = False
        self.drained: Future[None] | None = None
        self.has_ended = False

    def setup(self, context: OperatorContext) -> None:
        super().setup(context)
        self.mail = Mail(self.emit, priority=context.position)

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.window

    def process(self, record: Any) -> None:
        raise AssertionError("rows come in batches")

    def process_batch(self, batch: RowBatch) -> bool:
        for row in batch.take(self.window - len(self.held)):
            self.hold(row)
        return not len(batch)

    def process_watermark(self, timestamp: float) -> None:
        self.hold(Watermark(timestamp))

    def hold(self, element: int | Watermark) -> None:
        assert not self.has_ended, "nothing comes after the end of the input"
        self.held.append(element)
        self.most = max(self.most, len(self.held))
        assert self.most <= self.window
        self.loop.call_later(self.seconds, self.over)

    def over(self) -> None:
        self.due += 1
        self.ask()

    def ask(self) -> None:
        if not self.is_asked:
            self.is_asked = True
            self.context.executor.try_put(self.mail)

    def emit(self) -> None:
        self.is_asked = False
        if not self.output.is_available:
            self.is_asked = True
            self.output.call_when_room(self.again)
            return
        assert not self.output.queue, "a link holds what one emission gave"  # type: ignore[attr-defined]
        rows: list[int] = []
        for _ in range(self.due):
            element = self.held.popleft()
            if isinstance(element, Watermark):
                self.flush(rows)
                rows = []
                self.output.emit_watermark(element.timestamp)
            else:
                rows.append(element)
        self.due = 0
        self.flush(rows)
        if self.drained is not None and not self.held:
            self.drained.set_result(None)

    def again(self) -> None:
        self.context.executor.try_put(self.mail)

    def flush(self, rows: list[int]) -> None:
        if rows:
            self.output.collect(RowBatch(rows))

    def end_input(self) -> Future[None] | None:
        self.has_ended = True
        if not self.held:
            return None
        self.drained = Future()
        return self.drained

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[int | Watermark]:
        return [*self.held]

    def restore_state(self, state: list[int | Watermark]) -> None:
        for element in state:
            self.held.append(element)
            self.loop.call_later(self.seconds, self.over)


class Rows(ReplayedInput):
    """An input of batches of these sizes, and a watermark behind each."""

    def __init__(self, sizes: list[int], first: Operator) -> None:
        elements: list[int | Watermark] = []
        row = 0
        for size in sizes:
            elements += [*range(row, row + size), Watermark(float(row + size))]
            row += size
        super().__init__(elements, max(sizes, default=1))
        self.operator = first

    def emit_next(self, output: TaskOutput) -> InputStatus:
        assert self.operator.has_room, "nothing is read without room"
        assert not output.queue, "nothing is read while something waits"  # type: ignore[attr-defined]
        return super().emit_next(output)


def check(elements: list[int | Watermark], rows: int) -> None:
    """Each row once and in order, and none on the wrong side of a watermark."""
    assert [each for each in elements if not isinstance(each, Watermark)] == list(range(rows))
    assert elements[-1] == END
    passed = 0
    for each in elements:
        if isinstance(each, Watermark):
            assert passed == min(each.timestamp, rows)
        else:
            passed += 1


WINDOWS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.0, 1.0, 3.0])), min_size=1, max_size=3)


@pytest.mark.contract(
    convicts=[
        "end_not_woken",
        "waiting_rows_forgotten",
        "snapshot_shares_batch",
        "ends_before_its_link",
        "whole_batch_in_snapshot",
    ]
)
@settings(max_examples=examples(200))
@given(
    sizes=st.lists(st.integers(1, 7), max_size=6),
    chain=WINDOWS,
    rest=st.sampled_from([0.0, 0.5, 2.0]),
    snapshot_at=st.none() | st.integers(0, 40).map(lambda tenths: tenths / 2 + 0.25),
)
# At its end the last operator is full, and nobody but the end waits for the link in front of it.
@example(sizes=[4], chain=[(3, 1.0), (1, 0.0), (3, 3.0)], rest=0.5, snapshot_at=None)
def test_a_chain_of_operators_with_small_windows_loses_and_doubles_nothing_and_never_hangs(
    sizes: list[int], chain: list[tuple[int, float]], rest: float, snapshot_at: float | None
) -> None:
    loop = VirtualTimeLoop()
    kept: list[TaskSnapshot] = []
    committed: list[int | Watermark] = []

    def task_of() -> tuple[StreamTask, RestingOutput]:
        output = RestingOutput(loop, rest_s=rest)
        operators = [
            Holding(f"{place}", loop, window, seconds) for place, (window, seconds) in enumerate(chain)
        ]
        return StreamTask(Rows(sizes, operators[0]), operators, output, latency_interval=None), output

    async def main() -> None:
        task, output = task_of()
        running = asyncio.ensure_future(task.run_async())
        if snapshot_at is not None:
            await asyncio.wait([running], timeout=snapshot_at)
        if snapshot_at is not None and not running.done():
            future = task.trigger_checkpoint_async(1, UNALIGNED)
            kept.append(await asyncio.wrap_future(future))
            committed.extend(output.elements[: max(output.committed.values(), default=0)])
            # What the task does after it is not in the snapshot, whatever it takes meanwhile.
            await asyncio.wait([running], timeout=2.0)
            running.cancel()
            await asyncio.wait([running])
            task, output = task_of()
            task.restore(kept[0])
            running = asyncio.ensure_future(task.run_async())
        await asyncio.wait_for(running, 10_000.0)
        committed.extend(output.elements)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    check(committed, sum(sizes))
