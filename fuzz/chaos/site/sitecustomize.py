"""Set-up of every Python process under the harness: a clock, syncs written down, stacks, recorded operators.

The clock: `time.time` and `time.time_ns` are moved by what stands in the file PILLARBOX_CHAOS_CLOCK, eight
bytes, nanoseconds; `time.monotonic` is not touched, nor is the clock of the Java processes. The syncs: each
`os.fsync` and `os.fdatasync` adds a line of JSON to the file PILLARBOX_CHAOS_SYNCED when it begins, and one
when it has ended, with the bytes of the file, or the names in the folder, that are on the disk from then on.
The stacks: SIGUSR1 has all threads' written to the file PILLARBOX_CHAOS_STACKS. The operators: each writes
what it does to a file of its own in the folder PILLARBOX_TRACE, if that is given.
"""

import faulthandler
import json
import mmap
import os
import signal
import stat
import struct
import time
from collections.abc import Callable
from typing import Any


def _move_clock(path: str) -> None:
    real, unpack = time.time_ns, struct.Struct("<q").unpack_from
    with open(path, "rb") as file:
        # Mapped, so that a step reaches processes that run already.
        moved = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def time_ns() -> int:
        return real() + int(unpack(moved)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def _write_down_syncs(path: str) -> None:
    # Shared with the processes that this one forks; each line is one write to the end.
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def written_down(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def synced(file: Any) -> None:
            number = file if isinstance(file, int) else file.fileno()
            # Before the wait: what is added while it lasts may be on the disk afterwards, or not.
            found = os.fstat(number)
            names = os.listdir(number) if stat.S_ISDIR(found.st_mode) else None
            line: dict[str, object] = {"pid": os.getpid(), "began": time.monotonic()}
            # Of a process that is killed meanwhile this tells that it waited.
            os.write(log, json.dumps(line).encode() + b"\n")
            sync(number)
            line.update(path=os.readlink(f"/proc/self/fd/{number}"), size=found.st_size, names=names)
            line.update(at=time.monotonic())
            os.write(log, json.dumps(line).encode() + b"\n")

        return synced

    for name in ("fsync", "fdatasync"):
        setattr(os, name, written_down(getattr(os, name)))


if _clock := os.environ.get("PILLARBOX_CHAOS_CLOCK"):
    _move_clock(_clock)
if _synced := os.environ.get("PILLARBOX_CHAOS_SYNCED"):
    _write_down_syncs(_synced)
if _stacks := os.environ.get("PILLARBOX_CHAOS_STACKS"):
    # Open for as long as the process lives, and in the processes that it forks.
    faulthandler.register(signal.SIGUSR1, open(_stacks, "a"))  # noqa: SIM115
if _trace := os.environ.get("PILLARBOX_TRACE"):
    from pillarbox.testing.operator_trace import record_operators

    record_operators(_trace)
