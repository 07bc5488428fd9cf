"""The processes of a Spark: who they are, and which of them are at work. Reads `/proc` through psutil."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil  # type: ignore[import-untyped]

DAEMON = "pyspark.daemon"
EXECUTOR = "CoarseGrainedExecutorBackend"
HOLDER = "pillarbox.spark.stream.call_process"
SPAWNER = "jspawnhelper"
GONE = (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError)


def family(roots: Iterable[int]) -> list[psutil.Process]:
    """The processes of these ids, everything below them, and what holds the calls of streams for these."""
    found: list[psutil.Process] = []
    for pid in roots:
        with contextlib.suppress(*GONE):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    executors = {str(process.pid) for process in javas(found)}
    if executors:
        # They are nobody's children, and know their executor by its number.
        found += _those(holders(psutil.process_iter()), lambda process: process.cmdline()[-1] in executors)
    return found


def is_running(process: psutil.Process) -> bool:
    """True until it has ended; a zombie has."""
    with contextlib.suppress(*GONE):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def workers(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The Python workers: those that a daemon of Spark has forked."""
    return _those(processes, lambda process: _is_daemon(process.parent()))


def executors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The executors' Java processes."""
    return _those(processes, lambda process: EXECUTOR in " ".join(process.cmdline()))


def holders(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes that hold the calls of streams."""
    return _those(processes, lambda process: HOLDER in " ".join(process.cmdline()))


def not_stopped(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that are there, and that no signal has stopped."""
    return _those(processes, lambda process: process.status() != psutil.STATUS_STOPPED)


def javas(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """All Java processes."""
    return _those(processes, lambda process: process.name() == "java")


def left_unstarted() -> list[psutil.Process]:
    """Those that a Java process was about to start when it was killed: they wait for its words for ever."""
    return _those(
        psutil.process_iter(),
        lambda process: (
            process.name() == SPAWNER and ((parent := process.parent()) is None or parent.name() != "java")
        ),
    )


def pythons(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """All Python processes."""
    return _those(processes, lambda process: process.name().startswith("python"))


def calling(processes: Iterable[psutil.Process], port: int) -> list[psutil.Process]:
    """Those that are connected to a port of this machine."""
    return _those(
        processes,
        lambda process: any(
            connection.raddr and connection.raddr.port == port
            for connection in process.net_connections(kind="tcp")
        ),
    )


def ports(processes: Iterable[psutil.Process]) -> list[tuple[int, str]]:
    """The addresses on which processes listen: process id and address."""
    found = []
    for process in processes:
        with contextlib.suppress(*GONE):
            found += [
                (process.pid, connection.laddr.ip)
                for connection in process.net_connections(kind="tcp")
                if connection.status == psutil.CONN_LISTEN
            ]
    return found


def wait_ended(processes: Iterable[psutil.Process], patience: float) -> list[psutil.Process]:
    """Wait until processes have ended, at most `patience` seconds; those that have not."""
    end = time.monotonic() + patience
    left = [process for process in processes if is_running(process)]
    while left and time.monotonic() < end:
        time.sleep(0.005)
        left = [process for process in left if is_running(process)]
    return left


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL, whatever is still there."""
    for process in processes:
        with contextlib.suppress(*GONE):
            process.kill()


def _is_daemon(process: psutil.Process | None) -> bool:
    if process is None or DAEMON not in process.cmdline():
        return False
    # A worker has the words of the daemon that it was forked from, and a daemon for its parent.
    parent = process.parent()
    return parent is None or DAEMON not in parent.cmdline()


def _those(
    processes: Iterable[psutil.Process], fits: Callable[[psutil.Process], bool]
) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(*GONE):
            if fits(process):
                found.append(process)
    return found
