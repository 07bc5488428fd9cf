"""Tasks that read one source together in this process, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bench.sources.measure import must_be
from pillarbox.sources import Source, SourceCoordinator, SourceInput, WatermarkStrategy
from pillarbox.task import Operator, StreamTask
from pillarbox.task.protocols import TaskCancelled
from pillarbox.testing.test_io import CollectedOutput

LONG = 120.0


class See(Operator):
    """Shows each record to a function, and emits nothing."""

    uid = "see"

    def __init__(self, see: Callable[[Any], None]) -> None:
        self._see = see

    def process(self, record: Any) -> None:
        self._see(record)


def read(
    source: Source[Any, Any],
    count: int,
    see: Callable[[Any], None],
    *,
    watermarks: WatermarkStrategy | None = None,
    seconds: float | None = None,
) -> None:
    """Run `count` tasks to the end of the source, or for so many seconds. `see` is called on any thread.

    Raises AssertionError if a task fails or does not end.
    """
    failures: list[BaseException] = []
    tasks: list[StreamTask] = []

    def run(subtask: int) -> None:
        try:
            input = SourceInput(coordinator.link(subtask), source, watermarks=watermarks)
            task = StreamTask(input, [See(see)], CollectedOutput())
            tasks.append(task)
            task.run()
        except TaskCancelled:
            pass
        except BaseException as error:
            failures.append(error)

    with SourceCoordinator(source, count) as coordinator:
        threads = [
            threading.Thread(target=run, args=[subtask], name=f"bench-task-{subtask}", daemon=True)
            for subtask in range(count)
        ]
        for thread in threads:
            thread.start()
        threads[0].join(LONG if seconds is None else seconds)
        if seconds is not None:
            for task in tasks:
                task.cancel()
        for thread in threads:
            thread.join(LONG)
        must_be([], failures, "tasks that failed")
        must_be(False, any(thread.is_alive() for thread in threads), "tasks that do not end")
