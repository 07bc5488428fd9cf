"""What every Python process under the harness runs first: a clock that can be stepped, and stacks on demand.

The clock: `time.time` and `time.time_ns` are moved by what stands in the file PILLARBOX_CHAOS_CLOCK, eight
bytes, nanoseconds; `time.monotonic` is not touched, nor is the clock of the Java processes. The stacks:
SIGUSR1 has all threads' written to the file PILLARBOX_CHAOS_STACKS.
"""

import faulthandler
import mmap
import os
import signal
import struct
import time


def _move_clock(path: str) -> None:
    real, unpack = time.time_ns, struct.Struct("<q").unpack_from
    with open(path, "rb") as file:
        # Mapped, so that a step reaches processes that run already.
        moved = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def time_ns() -> int:
        return real() + int(unpack(moved)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if _clock := os.environ.get("PILLARBOX_CHAOS_CLOCK"):
    _move_clock(_clock)
if _stacks := os.environ.get("PILLARBOX_CHAOS_STACKS"):
    # Open for as long as the process lives, and in the processes that it forks.
    faulthandler.register(signal.SIGUSR1, open(_stacks, "a"))  # noqa: SIM115
