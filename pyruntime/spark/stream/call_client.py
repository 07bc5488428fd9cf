"""The way of a task to the process of its executor that holds calls. For the task's thread."""

# The process that holds calls is started by the first task that needs it, under a lock on a file, and
# detached: it is nobody's child. A child of a Python worker would end with the worker, or be waited for by
# it; Spark has no hook that starts something with an executor. It ends when the executor's Java process
# does, which it looks for once a second: a process number alone may be used again, so its start time is
# compared as well.
#
# A process that was killed leaves its socket behind. Connecting is then refused at once, and the next task
# starts another one in its place; its own rows are in Spark's state (see call_process.py).
#
# Whether the process of a socket lives is known by a lock that it holds on the file beside it (HELD). Its
# number says nothing to a container that shares the folder for temporary files and counts processes by
# itself, and a socket that nobody listens at yet refuses as one that nobody listens at any more.

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle

from pillarbox.spark.records import concat_rows, from_ipc, to_ipc
from pillarbox.spark.stream.bucket_state import IDENTITY, Finished

if TYPE_CHECKING:
    from pillarbox.spark.stream.bucket_state import StreamPlan


log = logging.getLogger("pillarbox")

MAX_FOLDER_CHARACTERS = 40
"""Of a temporary folder: the path of a socket may have 104 characters, or 108."""

LOST_TIMEOUT_S = 60.0
"""Seconds for which a task looks for a process that lives, where one after the other is killed."""
RECONNECT_INTERVAL_S = 0.05

STARTING = ".lock"
"""Ending of the file beside a socket that is locked while its process is started."""
HELD = ".held"
"""Ending of the file beside a socket that its process has locked for as long as it lives."""


def began_at(pid: int) -> str | None:
    """The start of a process, by which it is told from others of its number; None if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def locked(path: str, *, wait: bool) -> IO[str] | None:
    """Lock the file at `path`, made where it is missing; None if another holds it, unless that is waited for.

    The lock goes with the file when that is closed, and with its process, in whichever container that ran.
    """
    while True:
        file = open(path, "a")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            # Whoever held it before has removed it, and others lock another one by now.
            pass
        except BaseException:
            file.close()
            raise
        file.close()


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


def private_folder(base: str | None = None) -> str | None:
    """The folder of this user's sockets; None where there can be none, or others may enter it. Any thread."""
    if base is None:
        base = tempfile.gettempdir()
        if len(base) > MAX_FOLDER_CHARACTERS:
            base = "/tmp"
    path = os.path.join(base, f"pillarbox-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        log.warning("async_stream: %s is not a folder of this user alone, and is not used", path)
        return None
    return path


def socket_path(name: str) -> str:
    """The address of the process of this name."""
    folder = private_folder()
    if folder is None:
        raise RuntimeError("async_stream: there is no folder for sockets that this user alone may enter")
    return os.path.join(folder, name)


def holders_path(stream: str) -> str:
    """The file with the process that holds the calls of each bucket of a stream on this host."""
    return socket_path(f"holders-{stream}")


def process_name(executor: int) -> str:
    """The name of the process that holds the calls of an executor, by that one's number, start, namespace."""
    namespace = 0
    with contextlib.suppress(OSError):
        # Two containers may give one number to processes that begin in the same hundredth of a second.
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"calls-{executor}-{began_at(executor)}-{namespace}"


class CallClient:
    """The connections of one task of the stream of `plan`.

    query, run: the ids of its query and of that one's run, None where Spark does not tell them.
    """

    def __init__(self, plan: StreamPlan, query: str | None, run: str | None) -> None:
        self._plan, self._query, self._run = plan, query, run
        self._own = process_name(executor_pid())
        self._connections: dict[str, Connection[Any, Any]] = {}

    def advance(
        self, bucket: int, time_ms: int, rows: pa.RecordBatch | None, waiting: int, *, ticked: bool
    ) -> Finished:
        """Have the calls of `rows` made that are not there, and learn what has finished.

        rows: those that the committed state has first, so many as `waiting` says; None for none at all.
        ticked: the micro-batch opens all buckets.
        """
        deadline = time.monotonic() + LOST_TIMEOUT_S
        while True:
            name = self._own
            try:
                name = self._holder(bucket, time_ms)
                return self._advance(name, bucket, time_ms, rows, waiting, ticked)
            except (EOFError, ConnectionError):
                # It was killed. Its socket may still take connections while it ends.
                self._disconnect(name)
                if time.monotonic() > deadline:
                    raise
                time.sleep(RECONNECT_INTERVAL_S)

    def _holder(self, bucket: int, time_ms: int) -> str:
        """The process that makes the calls of a bucket, for the executions of all executors of this host.

        Spark's preference for an executor gives way after three seconds, is lost when a query is started
        again, and is none for the first execution.
        """
        with open(holders_path(self._plan.name), "a+") as file:
            # Until the process is there, so that no two executions of a micro-batch choose two.
            fcntl.flock(file, fcntl.LOCK_EX)
            # What nobody has written for long is removed, also by a process that is started here.
            os.utime(file.fileno())
            file.seek(0)
            chosen = dict(line.split() for line in file).get(str(bucket))
            if chosen not in (None, self._own) and self._attach(chosen, time_ms, starts=False):
                return chosen
            self._attach(self._own, time_ms, starts=True)
            if chosen != self._own:
                file.write(f"{bucket} {self._own}\n")
        return self._own

    def _advance(
        self, name: str, bucket: int, time_ms: int, rows: pa.RecordBatch | None, waiting: int, ticked: bool
    ) -> Finished:
        connection = self._connections[name]
        data = b"" if rows is None else b"".join(rows.column(IDENTITY).to_pylist())
        new = None if rows is None else rows.slice(waiting)
        begin = to_ipc(new) if new is not None and new.num_rows else None
        reply = _ask(connection, bucket, time_ms, data, waiting, begin, ticked)
        if reply[0] == "missing":
            assert rows is not None
            assert new is not None
            missing = rows.take(pa.array(reply[1], pa.int64()))
            begin = to_ipc(concat_rows([missing, new]) if new.num_rows else missing)
            reply = _ask(connection, bucket, time_ms, data, waiting, begin, ticked)
        _, places, outputs, counts, dead_letters = reply
        made, failed = (None if each is None else next(from_ipc(each)) for each in (outputs, dead_letters))
        return Finished(places, made, counts, failed)

    def _attach(self, name: str, time_ms: int, *, starts: bool) -> bool:
        """Connect to a process and attach to the stream there; False where it is not there.

        starts: it is started then.
        """
        if name not in self._connections:
            path = socket_path(name)
            connection = _connected(path) if starts else connected(path)
            if connection is None:
                return False
            about = self._plan.name, self._query, self._run, time_ms
            if _ask(connection, *about, None) == ("unknown",):
                _ask(connection, *about, cloudpickle.dumps(self._plan))  # type: ignore[no-untyped-call]
            self._connections[name] = connection
        return True

    def _disconnect(self, name: str) -> None:
        found = self._connections.pop(name, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """The task is through; the calls go on."""
        for name in [*self._connections]:
            self._disconnect(name)


def _ask(connection: Connection[Any, Any], *message: object) -> tuple[Any, ...]:
    connection.send(message)
    reply: tuple[Any, ...] = connection.recv()
    if reply[0] == "failed":
        raise pickle.loads(reply[1])
    return reply


def connected(path: str) -> Connection[Any, Any] | None:
    """A connection to the process that listens at `path`; None where there is none."""
    with contextlib.suppress(OSError):
        return Client(path, "AF_UNIX")
    return None


def _connected(path: str) -> Connection[Any, Any]:
    """A connection to the process of this executor at `path`, which is started where it is not there."""
    found = connected(path)
    if found is not None:
        return found
    lock = locked(path + STARTING, wait=True)
    assert lock is not None
    with lock:
        found = connected(path)
        if found is not None:
            return found
        for each in (path, path + HELD):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(each)
        _start(path, executor_pid())
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
