"""The garbage collection of a Python worker of Spark. For the task's thread."""

# PySpark collects after each task, in full: where nothing is frozen that walks through 40,000 objects of
# imports, for some 15 to 40 ms each time, be the task as small as it may. A micro-batch of a stream has four
# such ends in two workers.

from __future__ import annotations

import gc

_tasks = 0


def note_task() -> None:
    """Note that a task begins in this worker; with the second one, collect, and freeze what is left.

    What the first task has imported stays as long as the worker. Its garbage goes here, and not before the
    first row of a new worker.
    """
    global _tasks
    _tasks += 1
    if _tasks == 2:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
