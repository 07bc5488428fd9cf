"""The garbage collection where tasks run: in a Python worker of Spark, or in the process of a user."""

# Every row leaves a few objects that live as long as it is in the window, so that the collector finds next to
# nothing, each time that it looks; and it looks at all that was ever imported, again and again.
#
# PySpark collects after each task, in full: where nothing is frozen that walks through 40,000 objects of
# imports, for some 15 to 40 ms each time, be the task as small as it may. A micro-batch of a stream has four
# such ends in two workers.

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD_OBJECTS = 50_000
"""Objects made since the last garbage collection, at which the next one begins where tasks run."""

_tasks = 0
_lock = threading.Lock()
# The jobs that run in the user's process now, and the thresholds from before the first of them.
_jobs = 0
_before: tuple[int, int, int] = gc.get_threshold()


def note_task() -> None:
    """Note that a task begins in this worker; with the second one, collect, and freeze what is left.

    What the first task has imported stays as long as the worker. Its garbage goes here, and not before the
    first row of a new worker. For the task's thread.
    """
    global _tasks
    _tasks += 1
    if _tasks == 2:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def collect_rarely() -> None:
    """Have a worker of Spark, which is a process of its own, look for garbage less often.

    What Spark, pyarrow and others have made so far stays as long as the worker.
    """
    gc.freeze()
    _raise_threshold()


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Have this process look for garbage less often while the block runs. Any thread.

    The last of several blocks puts back the thresholds that the first one found, unless somebody has set
    others since. A collector that is off stays off.
    """
    global _jobs, _before
    with _lock:
        _jobs += 1
        if _jobs == 1:
            _before = gc.get_threshold()
            _raise_threshold()
    try:
        yield
    finally:
        with _lock:
            _jobs -= 1
            if not _jobs and gc.get_threshold()[0] == max(_before[0], THRESHOLD_OBJECTS):
                gc.set_threshold(*_before)


def _raise_threshold() -> None:
    first, *others = gc.get_threshold()
    if 0 < first < THRESHOLD_OBJECTS:
        gc.set_threshold(THRESHOLD_OBJECTS, *others)
