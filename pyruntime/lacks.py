"""The resources that a process can run out of, descriptors, memory, ports and threads, read from an error.

Any thread. It looks at this process and at files of the kernel, but only once something has failed.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pillarbox.wire import causes_of, exhaustion_in, leaves, numbers_of, status_of

PORTS_SHARE = 0.5
"""The share of the ports for outgoing connections in use, from which on one that cannot be had is used up."""


class Lack(NamedTuple):
    """Something that a process can have too little of.

    name: in the plural, for a sentence. tries: calls that are made alone before the task fails. limit: says
    what bounds it. advice: what to do.
    """

    name: str
    tries: int
    limit: Callable[[], str]
    advice: str


def _number(path: str) -> int | None:
    """The number in a file of the kernel; None for another word, and where there is no such file."""
    with suppress(OSError, ValueError, MemoryError):
        return int(Path(path).read_text().split()[0])
    return None


def _soft_limit(name: str) -> int | None:
    with suppress(ImportError, AttributeError, OSError):
        import resource

        soft = resource.getrlimit(getattr(resource, name))[0]
        return None if soft == resource.RLIM_INFINITY else int(soft)
    return None


def _joined(*parts: tuple[str, int | None, int]) -> str:
    known = [f"{name} {value // unit:,}" for name, value, unit in parts if value is not None]
    return ", ".join(known) if known else "no limit of this process itself"


def _limit_of_descriptors() -> str:
    return _joined(
        ("RLIMIT_NOFILE of this process", _soft_limit("RLIMIT_NOFILE"), 1),
        ("fs.file-max of the machine", _number("/proc/sys/fs/file-max"), 1),
    )


def _limit_of_memory() -> str:
    cgroup = _number("/sys/fs/cgroup/memory.max")
    if cgroup is None:
        cgroup = _number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    mib = 1 << 20
    return _joined(
        ("MiB of addresses for this process (RLIMIT_AS):", _soft_limit("RLIMIT_AS"), mib),
        ("MiB of data (RLIMIT_DATA):", _soft_limit("RLIMIT_DATA"), mib),
        ("MiB of its control group (memory.max):", cgroup, mib),
    )


def _limit_of_threads() -> str:
    pids = _number("/sys/fs/cgroup/pids.max")
    return _joined(
        ("RLIMIT_NPROC of this user", _soft_limit("RLIMIT_NPROC"), 1),
        ("pids.max of its control group", pids, 1),
        ("MiB of addresses for this process (RLIMIT_AS):", _soft_limit("RLIMIT_AS"), 1 << 20),
    )


def _limit_of_ports() -> str:
    return _joined(("net.ipv4.ip_local_port_range has", _ports(), 1))


DESCRIPTORS = Lack(
    "file descriptors",
    7,
    _limit_of_descriptors,
    "Give the process more of them (`ulimit -n`), close what the function opens, such as a client for each "
    "call, or use a smaller capacity",
)
MEMORY = Lack(
    "bytes of memory",
    7,
    _limit_of_memory,
    "Give the process more memory (with Spark `spark.executor.pyspark.memory` and "
    "`spark.executor.memoryOverhead`), or use a smaller capacity, batches of fewer rows, or a smaller "
    "`Buffer.max_bytes`",
)
THREADS = Lack(
    "threads",
    7,
    _limit_of_threads,
    "Give the process more of them (`ulimit -u`, the limit of pids of its container) or more memory, which "
    "their stacks take; or a smaller capacity",
)
PORTS = Lack(
    "ports",
    14,
    _limit_of_ports,
    "Keep connections, by one client for all calls, widen `net.ipv4.ip_local_port_range`, or use a smaller "
    "capacity",
)


def lack_in(error: BaseException) -> tuple[Lack, BaseException] | None:
    """Return what this process lacked where a call ended with `error`, and the error that says so, or None.

    Raises nothing. An error that has an answer of a service is never one.
    """
    for each in leaves(error):
        found = _lack_in(each)
        if found is not None and status_of(each) is None:
            return found
    return None


def _lack_in(error: BaseException) -> tuple[Lack, BaseException] | None:
    found = exhaustion_in(error)
    if found is not None:
        if isinstance(found, MemoryError):
            return MEMORY, found
        if isinstance(found, RuntimeError):
            return THREADS, found
        is_of_descriptors = bool({errno.EMFILE, errno.ENFILE}.intersection(numbers_of(found)))
        return (DESCRIPTORS if is_of_descriptors else MEMORY), found
    for each, _ in causes_of(error):
        if isinstance(each, socket.gaierror) and (shortage := shortage_of_descriptors()) is not None:
            # The C library says that there is no such name where it cannot open a file or a socket.
            return DESCRIPTORS, shortage
        if isinstance(each, OSError) and each.errno == errno.EADDRNOTAVAIL and are_ports_used_up():
            return PORTS, each
    return None


@contextmanager
def in_words(attempt: str) -> Iterator[None]:
    """Have an error of a process that lacks something name that, its limit and what to do: a RuntimeError.

    attempt: what cannot be done then, as the beginning of its text. Others pass through.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if (found := lack_in(error)) is None:
            raise
        lack, said = found
        words = f"{type(said).__name__}: {said}" if str(said) else type(said).__name__
        raise RuntimeError(
            f"{attempt}: this process has no {lack.name} left ({words}). The limit: {lack.limit()}. "
            f"{lack.advice}"
        ) from error


def check_descriptors(count: int) -> None:
    """Raise OSError if the process may not have so many descriptors more."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 closed on error
    finally:
        for each in opened:
            os.close(each)


def shortage_of_descriptors() -> OSError | None:
    """The error with which the system refuses one more descriptor now; None if it gives one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error if error.errno in (errno.EMFILE, errno.ENFILE) else None
    return None


def are_ports_used_up() -> bool:
    """Return True if so many ports for outgoing connections are in use that none may be left for one address.

    By counts of the kernel, those that wait after their end included; False where it does not give them. An
    address that this machine does not have gives the same error number.
    """
    ports = _ports()
    with suppress(OSError, ValueError, MemoryError):
        words = next(
            line.split() for line in Path("/proc/net/sockstat").read_text().splitlines() if line[:4] == "TCP:"
        )
        counts = dict(zip(words[1::2], map(int, words[2::2]), strict=True))
        return ports is not None and counts["inuse"] + counts["tw"] >= PORTS_SHARE * ports
    return False


def _ports() -> int | None:
    """Return the number of ports for outgoing connections; None where the system does not say."""
    with suppress(OSError, ValueError, MemoryError):
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        return last - first + 1
    return None
