"""A source in real tasks, threads and processes: all is read once, whoever dies, and after any restart."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.sources import SourceCoordinator, SourceInput, WatermarkStrategy
from pillarbox.sources.fetching import Threading
from pillarbox.task import StreamTask
from pillarbox.testing.test_io import CollectedOutput
from tests.search import examples
from tests.sources.unit.linked import Pass
from tests.sources.unit.number_source import LONG, Numbers, Range, by_split, expected, ranges

ALL = [Threading.ONE_SPLIT_AT_A_TIME, Threading.MANY_SPLITS, Threading.SPLIT_PER_THREAD]


class Stepped:
    """A task that a test takes on step by step, in its own thread."""

    def __init__(
        self,
        coordinator: SourceCoordinator[Range],
        subtask: int,
        source: Numbers,
        watermarks: WatermarkStrategy | None = None,
        **more: Any,
    ) -> None:
        self.input: SourceInput[Range] = SourceInput(
            coordinator.link(subtask), source, watermarks=watermarks, **more
        )
        self.output = CollectedOutput()
        self.task = StreamTask(self.input, [Pass()], self.output)
        self.ended = False

    @property
    def records(self) -> list[Any]:
        return self.output.records

    def step(self) -> bool:
        """One step; False if there was nothing to do."""
        if self.ended:
            return False
        busy = self.task.run_step()
        self.ended = self.task.state.name == "FINISHED"
        return busy

    def wait_for_mail(self, seconds: float) -> None:
        """Until there may be something to do, or so long."""
        woken = threading.Event()
        if not self.ended and self.task.processor.mailbox.arm_wakeup(woken.set):
            woken.wait(seconds)


def run_to_the_end(tasks: list[Stepped]) -> None:
    while not all(task.ended for task in tasks):
        worked = [task.step() for task in tasks]
        if not any(worked):
            for task in tasks:
                task.wait_for_mail(0.005)


@pytest.mark.parametrize("threading_model", ALL)
def test_tasks_in_threads_read_everything_once(threading_model: Threading) -> None:
    splits = ranges(30, 57)
    source = Numbers(splits, threading=threading_model)
    outputs: list[list[Any]] = []

    def run(subtask: int) -> None:
        output = CollectedOutput()
        StreamTask(SourceInput(coordinator.link(subtask), source), [Pass()], output).run()
        outputs.append(output.records)

    with SourceCoordinator(source, 3) as coordinator:
        threads = [threading.Thread(target=run, args=(subtask,)) for subtask in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert coordinator.failure is None
    assert len(outputs) == 3
    assert by_split(sorted(row for rows in outputs for row in rows)) == expected(splits)


@settings(max_examples=examples(12), deadline=None)
@given(
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    steps=st.lists(st.integers(0, 3), max_size=60),
    parts_after=st.integers(0, 20),
    model=st.sampled_from(ALL),
)
def test_a_restart_from_a_checkpoint_with_another_parallelism_reads_the_rest_once(
    before: int, after: int, steps: list[int], parts_after: int, model: Threading
) -> None:
    splits = ranges(7, 45)
    source = Numbers(splits, threading=model)
    with SourceCoordinator(source, before) as coordinator:
        tasks = [Stepped(coordinator, subtask, source) for subtask in range(before)]
        for at in steps:
            if not tasks[at % before].step():
                tasks[at % before].wait_for_mail(0.002)
        # Each gives its part at a moment of its own, and they read on before the rest is put together.
        states, committed = {}, []
        for subtask, task in enumerate(tasks):
            states[subtask] = json.loads(json.dumps(task.input.snapshot_state()))
            committed += task.records
            for other in tasks:
                for _ in range(parts_after):
                    other.step()
        checkpoint = json.loads(json.dumps(coordinator.snapshot(states)))
        for task in tasks:
            task.input.close()
    with SourceCoordinator(source, after, checkpoint=checkpoint) as coordinator:
        tasks = [Stepped(coordinator, subtask, source) for subtask in range(after)]
        for subtask, task in enumerate(tasks):
            if subtask in states:
                task.input.restore_state(states[subtask])
        run_to_the_end(tasks)
        rest = [record for task in tasks for record in task.records]
    assert by_split(sorted(committed + rest)) == expected(splits)


def test_splits_that_come_while_it_runs_are_read() -> None:
    source = Numbers(ranges(2, 20), interval=0.01)
    with SourceCoordinator(source, 2) as coordinator:
        tasks = [Stepped(coordinator, subtask, source) for subtask in range(2)]
        for count in (2, 5, 9):
            source.splits = ranges(count, 20)
            while sum(len(task.records) for task in tasks) < count * 20:
                for task in tasks:
                    if not task.step():
                        task.wait_for_mail(0.002)
        records = [record for task in tasks for record in task.records]
        assert by_split(sorted(records)) == expected(ranges(9, 20))
        for task in tasks:
            task.input.close()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("drift", [0.0, 35.0])
def test_nobody_waits_for_what_is_only_not_yet_said(drift: float, parts: int) -> None:
    splits = ranges(parts, 500)
    source = Numbers(splits, threading=Threading.SPLIT_PER_THREAD)
    strategy = WatermarkStrategy(timestamp=lambda record: float(record[1]), max_drift=drift)
    with SourceCoordinator(source, 2, watermarks=strategy) as coordinator:
        # Reports that are not pressing come never.
        tasks = [Stepped(coordinator, subtask, source, strategy, report_interval=1e9) for subtask in range(2)]
        run_to_the_end(tasks)
    assert by_split(sorted(record for task in tasks for record in task.records)) == expected(splits)


@pytest.mark.parametrize("model", ALL)
def test_a_task_that_is_ahead_waits_for_the_slowest_and_then_goes_on(model: Threading) -> None:
    drift = 50.0
    splits = [Range("a", 0, 2000), Range("b", 0, 2000)]
    source = Numbers(splits, threading=model)
    strategy = WatermarkStrategy(timestamp=lambda record: float(record[1]), max_drift=drift)
    with SourceCoordinator(source, 2, watermarks=strategy) as coordinator:
        tasks = [Stepped(coordinator, subtask, source, strategy) for subtask in range(2)]
        slow, fast = tasks

        def slowest() -> float | None:
            watermarks = coordinator._coordinator._watermarks
            return coordinator._thread.submit(lambda: min(watermarks.values(), default=None)).result(LONG)

        while (behind := slowest()) is None:
            slow.step() or slow.wait_for_mail(0.005)
        # The slow one has said where it is; now only the other one runs, until it is beyond the limit.
        while not fast.records or fast.records[-1][1] <= behind + drift:
            fast.step() or fast.wait_for_mail(0.005)
        for _ in range(200):
            fast.step()
        batch = 10
        assert slowest() == behind
        assert behind + drift < fast.records[-1][1] <= behind + drift + batch
        run_to_the_end(tasks)
    assert by_split(sorted(record for task in tasks for record in task.records)) == expected(splits)
