"""The device of a model: that of the task, as Spark says, or one that processes of a host share by locks.

For the thread of the model, but for `device_of_task`, which any thread may call.
"""

# Why a seat for each process, and a lock for each batch. Processes that know nothing of each other would all
# take the first GPU; with a seat each, the next one takes the one with the fewest. And two of them that
# compute on one GPU at a time need its memory for the batches of both, and fail where either alone would not.

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pillarbox.ledger.local_folder import close_file
from pillarbox.models.host_folder import host_folder, locked, open_lock, try_lock

GPU = "gpu"
"""The name of a GPU among the resources of Spark."""
MAX_SEATS = 64
"""Processes of a host that share one GPU, at most, of which each is known to the others."""


def _task() -> Any:
    """Spark's task that runs in this process; None outside of one. Imports nothing."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.TaskContext.get()


def device_of_task(asked: str) -> str:
    """The device that is asked for; where that is "auto", the GPU that Spark has given the task."""
    task = _task()
    if asked != "auto" or task is None:
        return asked
    given = (task.resources() or {}).get(GPU)
    return asked if given is None or not given.addresses else f"cuda:{given.addresses[0]}"


def threads_of_task() -> int | None:
    """The cores of the task that runs in this process; None outside of one."""
    task = _task()
    return None if task is None else int(task.cpus())


def stage_of_task() -> str | None:
    """A name of the stage that runs in this process, and of its executor; None outside of a task."""
    task = _task()
    return None if task is None else f"{os.getppid()}-{task.stageId()}"


def gpus_of_host(load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """The GPUs that this process sees, as NVIDIA's driver counts them; 0 where there is none.

    load: gives the driver's library. For the thread of a model that is about to use one.
    """
    try:
        driver = load("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


class Seat:
    """A place of this process on one of the GPUs of its host, which it has until `close`, or its end."""

    def __init__(self, count: int, folder: str | None = None) -> None:
        """count: GPUs of the host. folder: that of the locks. Raises OSError."""
        folder = folder or host_folder("devices")
        self._file: int | None = None
        self.index = os.getpid() % count
        for seat in range(MAX_SEATS):
            for index in range(count):
                file = open_lock(os.path.join(folder, f"gpu-{index}-seat-{seat}"))
                if try_lock(file):
                    self._file, self.index = file, index
                    return
                close_file(file)

    def close(self) -> None:
        """Give the place back."""
        if self._file is not None:
            close_file(self._file)
            self._file = None


@contextlib.contextmanager
def turn_on(device: str, folder: str | None = None) -> Iterator[None]:
    """Have a GPU for this process alone within the block; other devices at once. Blocks. Raises OSError."""
    if not device.startswith("cuda"):
        yield
        return
    name = f"cuda-{_of_host(device.partition(':')[2] or '0')}"
    with locked(os.path.join(folder or host_folder("devices"), f"{name}.lock")):
        yield


def _of_host(index: str) -> str:
    """The number or name, on the host, of a GPU that this process knows by its index."""
    seen = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    found = seen[int(index)] if index.isdigit() and int(index) < len(seen) else index
    return "".join(each if each.isalnum() else "-" for each in found)
