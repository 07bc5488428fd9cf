"""A source in real tasks, threads and processes: all is read once, whoever dies, and after any restart."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.sources import (
    SourceChannel,
    SourceCoordinator,
    SourceInput,
    WatermarkStrategy,
    split_coordinator,
)
from pillarbox.sources.fetching import Threading
from pillarbox.sources.remote_link import RemoteLink
from pillarbox.task import StreamTask
from pillarbox.testing.test_io import CollectedOutput
from tests.search import examples
from tests.sources.unit.linked import Pass
from tests.sources.unit.number_source import LONG, Numbers, Range, by_split, expected, ranges
from tests.sources.unit.proxy import Proxy
from tests.sources.unit.reading_process import Picklable, ReadingProcess

ALL = [Threading.ONE_SPLIT_AT_A_TIME, Threading.MANY_SPLITS, Threading.SPLIT_PER_THREAD]


class Stepped:
    """A task that a test takes on step by step, in its own thread."""

    def __init__(
        self,
        coordinator: SourceCoordinator[Range],
        subtask: int,
        source: Numbers,
        watermarks: WatermarkStrategy | None = None,
        report_every: float = 0.001,
    ) -> None:
        self.input: SourceInput[Range] = SourceInput(
            coordinator.link(subtask), source, watermarks=watermarks, report_every=report_every
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
    deadline = time.monotonic() + LONG
    while not all(task.ended for task in tasks):
        assert time.monotonic() < deadline, [task.task.state for task in tasks]
        worked = [task.step() for task in tasks]
        if not any(worked):
            for task in tasks:
                task.wait_for_mail(0.005)


@pytest.fixture
def channel() -> Iterator[SourceChannel]:
    with SourceChannel(grace=0.2) as channel:
        yield channel


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("threading_model", ALL)
def test_tasks_in_threads_read_everything_once(
    channel: SourceChannel, remote: bool, threading_model: Threading
) -> None:
    splits = ranges(30, 57)
    source = Numbers(splits, threading=threading_model)
    outputs: list[list[Any]] = []

    def run(subtask: int) -> None:
        link = RemoteLink(coordinator.handle, subtask, source) if remote else coordinator.link(subtask)
        output = CollectedOutput()
        StreamTask(SourceInput(link, source), [Pass()], output).run()
        outputs.append(output.records)

    with SourceCoordinator(source, 3, channel=channel) as coordinator:
        threads = [threading.Thread(target=run, args=(subtask,)) for subtask in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert coordinator.failure is None
    assert len(outputs) == 3
    assert by_split(sorted(row for rows in outputs for row in rows)) == expected(splits)


def test_connections_that_break_again_and_again_lose_and_repeat_nothing() -> None:
    splits = ranges(60, 11)
    source = Numbers(splits)
    output = CollectedOutput()
    with (
        SourceChannel(grace=LONG) as channel,
        SourceCoordinator(source, 1, channel=channel) as coordinator,
        Proxy(coordinator.handle, cut_after=2000) as proxy,
    ):
        StreamTask(SourceInput(RemoteLink(proxy.handle, 0, source), source), [Pass()], output).run()
        assert proxy.connections > 2
    assert by_split(output.records) == expected(splits)


@pytest.mark.contract
def test_the_splits_of_a_killed_process_are_read_by_the_other(channel: SourceChannel) -> None:
    splits = ranges(6, 40)
    source = Picklable(splits)
    with SourceCoordinator(source, 2, channel=channel) as coordinator:
        first = ReadingProcess(coordinator.handle, 0, source, hold=55)
        second = ReadingProcess(coordinator.handle, 1, source, hold=1)
        try:
            first.until("held")
            second.until("held")
            # It had finished a split and begun another, and no checkpoint counts that in.
            assert len(first.records) == 55
            first.kill()
            second.tell("go")
            second.until("end")
        finally:
            first.kill()
            second.kill()
    assert by_split(second.records) == expected(splits)


@pytest.mark.contract
def test_a_killed_process_goes_on_from_the_last_complete_checkpoint(channel: SourceChannel) -> None:
    splits = ranges(4, 40)
    source = Picklable(splits)
    with SourceCoordinator(source, 1, channel=channel) as coordinator:
        # Its part of a checkpoint stands for what it has read so far, which is committed with it.
        stepped = Stepped(coordinator, 0, source)
        while len(stepped.records) < 50:
            if not stepped.step():
                stepped.wait_for_mail(0.005)
        committed = list(stepped.records)
        coordinator.complete(coordinator.snapshot({0: stepped.input.snapshot_state()}))
        process = ReadingProcess(coordinator.handle, 0, source, hold=30)
        again = None
        try:
            process.until("held")
            process.kill()
            again = ReadingProcess(coordinator.handle, 0, source)
            again.until("end")
        finally:
            process.kill()
            if again is not None:
                again.kill()
        assert by_split(sorted(committed + again.records)) == expected(splits)
        stepped.input.close()


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


def test_splits_that_come_while_it_runs_are_read(channel: SourceChannel) -> None:
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
def test_nobody_waits_for_what_is_only_not_yet_said(
    drift: float, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reports and limits that are not pressing come never.
    monkeypatch.setattr(split_coordinator, "LIMIT_INTERVAL_S", 1e9)
    splits = ranges(parts, 500)
    source = Numbers(splits, threading=Threading.SPLIT_PER_THREAD)
    strategy = WatermarkStrategy(timestamp=lambda record: float(record[1]), max_drift=drift)
    with SourceCoordinator(source, 2, watermarks=strategy) as coordinator:
        tasks = [Stepped(coordinator, subtask, source, strategy, report_every=1e9) for subtask in range(2)]
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
            alignment = coordinator._coordinator._alignment
            assert alignment is not None
            return coordinator._thread.submit(alignment.slowest).result(LONG)

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
