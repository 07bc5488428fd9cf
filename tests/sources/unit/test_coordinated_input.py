"""Tasks that read one source together, with the real coordinator: every row once, also over a restart."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from pillarbox.sources import SourceCoordinator, SourceInput
from pillarbox.sources.fetching import Threading
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.testing.test_io import CollectedOutput
from tests.sources.unit.linked import Pass, Running
from tests.sources.unit.number_source import LONG, Numbers, Range, Script, by_split, expected, ranges


def run_tasks(coordinator: SourceCoordinator[Range], source: Numbers, count: int) -> list[Any]:
    """Run so many tasks to their end, each in a thread of its own; what all of them have emitted."""
    outputs = [CollectedOutput() for _ in range(count)]
    errors: list[BaseException] = []

    def run(subtask: int) -> None:
        try:
            StreamTask(SourceInput(coordinator.link(subtask), source), [Pass()], outputs[subtask]).run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[subtask]) for subtask in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert errors == [] and not any(thread.is_alive() for thread in threads)
    return [row for output in outputs for row in output.records]


@pytest.mark.contract
@pytest.mark.parametrize("model", list(Threading))
def test_tasks_share_the_splits_of_a_bounded_source(model: Threading) -> None:
    splits = ranges(20, 35)
    source = Numbers(splits, threading=model)
    with SourceCoordinator(source, 3) as coordinator:
        rows = run_tasks(coordinator, source, 3)
    assert by_split(rows) == expected(splits)


@pytest.mark.contract
def test_a_job_goes_on_from_a_checkpoint_with_another_number_of_tasks() -> None:
    splits = ranges(6, 50)
    source = Numbers(splits)
    with SourceCoordinator(source, 1) as coordinator:
        running = Running(SourceInput(coordinator.link(0), source))
        rows = list(running.rows(93))
        # All that is out at this moment, and where the input stands behind it.
        rows = list(running.output.records)
        state = running.input.snapshot_state()
        checkpoint = json.loads(json.dumps(coordinator.snapshot({0: state})))
        running.task.close()
    source = Numbers(splits, script=Script(batch=7))
    with SourceCoordinator(source, 3, checkpoint=checkpoint) as coordinator:
        rows += run_tasks(coordinator, source, 3)
    assert by_split(rows) == expected(splits)


def test_a_checkpoint_of_a_task_holds_the_position_of_its_source() -> None:
    splits = ranges(3, 50)
    source = Numbers(splits)
    with SourceCoordinator(source, 1) as coordinator:
        running = Running(SourceInput(coordinator.link(0), source))
        running.rows(70)
        future = running.task.trigger_checkpoint_async(1)
        running.until(future.done)
        snapshot = future.result(timeout=0)
        # The barrier stands behind the rows that the snapshot has behind it.
        elements = running.output.elements
        at = next(at for at, each in enumerate(elements) if isinstance(each, CheckpointBarrier))
        rows = elements[:at]
        checkpoint = coordinator.snapshot({0: snapshot.input})
        running.task.close()
    with SourceCoordinator(source, 1, checkpoint=checkpoint) as coordinator:
        again = Running(SourceInput(coordinator.link(0), source))
        again.task.restore(snapshot)
        again.task.run()
    assert by_split(rows + again.output.records) == expected(splits)
