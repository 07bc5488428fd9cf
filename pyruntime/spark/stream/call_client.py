"""The way of a task to the process of its executor that holds calls. For the task's thread."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from pillarbox.spark.arrow_io import from_ipc, to_ipc
from pillarbox.spark.stream.bucket_state import IDENTITY, Finished, joined
from pillarbox.spark.stream.share import folder

if TYPE_CHECKING:
    from pillarbox.spark.stream.plan import StreamPlan


LOST_TIMEOUT_S = 60.0
"""Seconds for which a task looks for a process that lives, where one after the other is killed."""
RECONNECT_INTERVAL_S = 0.05

T = TypeVar("T")


def began_at(pid: int) -> str | None:
    """The start of a process, by which it is told from others of its number; None if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def executor_pid() -> int:
    """The number of the executor's Java process: the parent of Spark's daemon, or of the worker itself."""
    pid = os.getpid()
    for _ in range(3):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError, IndexError):
            break
        if name == "java":
            return pid
    raise RuntimeError("async_stream: the executor's Java process is not among the parents of this worker")


def socket_path(executor: int) -> str:
    """The address of the process that holds the calls of an executor, by that one's number."""
    place = folder()
    if place is None:
        raise RuntimeError("async_stream: there is no folder for sockets that this user alone may enter")
    return os.path.join(place, f"calls-{executor}-{began_at(executor)}")


class CallClient:
    """The connection of one task of the stream of `plan`.

    query, run: the ids of its query and of that one's run, None where Spark does not tell them.
    """

    def __init__(self, plan: StreamPlan, query: str | None, run: str | None) -> None:
        self._plan, self._query, self._run = plan, query, run
        self._connection: Connection[Any, Any] | None = None
        self._retried(self._attach)

    def advance(self, bucket: int, time_ms: int, rows: pa.RecordBatch, waiting: int) -> Finished:
        """Have the calls of `rows` made that are not there, and learn what has finished.

        rows: those that the committed state has first, so many as `waiting` says. Where the process is killed
        meanwhile another one makes the calls.
        """
        return self._retried(lambda: self._advance(bucket, time_ms, rows, waiting))

    def _advance(self, bucket: int, time_ms: int, rows: pa.RecordBatch, waiting: int) -> Finished:
        stream = self._attach()
        data = b"".join(rows.column(IDENTITY).to_pylist())
        new = rows.slice(waiting)
        begin = to_ipc(new) if new.num_rows else None
        reply = self._ask("advance", stream, bucket, time_ms, data, waiting, begin)
        if reply[0] == "missing":
            missing = rows.take(pa.array(reply[1], pa.int64()))
            begin = to_ipc(joined([missing, new]) if new.num_rows else missing)
            reply = self._ask("advance", stream, bucket, time_ms, data, waiting, begin)
        _, places, outputs, counts, attempts, letters = reply
        made, failed = (None if each is None else next(from_ipc(each)) for each in (outputs, letters))
        return Finished(places, made, counts, attempts, failed)

    def _attach(self) -> int:
        """The number of the stream in the process, which is connected to, and started, where it is not."""
        if self._connection is None:
            self._connection = _connected()
            plan, query, run = self._plan, self._query, self._run
            reply = self._ask("attach", plan.name, query, run, None)
            if reply[0] == "unknown":
                data = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call]
                reply = self._ask("attach", plan.name, query, run, data)
            self._stream: int = reply[1]
        return self._stream

    def _retried(self, step: Callable[[], T]) -> T:
        deadline = time.monotonic() + LOST_TIMEOUT_S
        while True:
            try:
                return step()
            except (EOFError, ConnectionError):
                # It was killed. Its socket may still take connections while it ends.
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(RECONNECT_INTERVAL_S)

    def close(self) -> None:
        """The task is through; the calls go on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, *message: Any) -> tuple[Any, ...]:
        assert self._connection is not None
        self._connection.send(message)
        reply: tuple[Any, ...] = self._connection.recv()
        if reply[0] == "failed":
            raise pickle.loads(reply[1])
        return reply


def _connected() -> Connection[Any, Any]:
    executor = executor_pid()
    path = socket_path(executor)
    with contextlib.suppress(OSError):
        return Client(path, "AF_UNIX")
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            return Client(path, "AF_UNIX")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        _start(path, executor)
        return Client(path, "AF_UNIX")


# It is nobody's child, so that no worker has to wait for its end.
_DETACHED = (
    "import os, runpy, sys; os.fork() and os._exit(0); os.setsid(); "
    "runpy.run_module('pillarbox.spark.stream.call_process', run_name='__main__', alter_sys=True)"
)


def _start(path: str, executor: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    with subprocess.Popen(
        [sys.executable, "-c", _DETACHED, path, str(executor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
    ) as starting:
        assert starting.stdout is not None
        if starting.stdout.readline().strip() != b"ready":
            raise RuntimeError(
                "async_stream: the process for calls ended at once; its error is above, in the log"
            )
