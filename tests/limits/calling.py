"""Calls through a gate as an operator makes them; as a program, in a process of its own. One loop's thread.

`python -m tests.limits.calling HANDLE SECONDS` reads a pickled (shared limits, limits) in hexadecimal, begins
as many calls as it may, and writes the time of each on a line of its own, before it goes on.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pillarbox.aio.limits.gate import Gate
from pillarbox.aio.limits.shared import Limits, SharedLimits

ROOT = Path(__file__).resolve().parents[2]


class Caller:
    """One task's use of a gate. Awaits what the operator would wait for."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.begun: list[float] = []
        self._woken = asyncio.Event()

    async def __aenter__(self) -> Caller:
        self.gate.start(asyncio.get_running_loop(), self._woken.set)
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.gate.close()

    async def call(self, units: float = 1.0, until: float = math.inf) -> bool:
        """Begin a call as soon as the gate lets it; False if it does not until then, or never will."""
        while True:
            self._woken.clear()
            wait = self.gate.admit(units)
            if wait == 0.0:
                self.begun.append(time.monotonic())
                return True
            left = until - time.monotonic()
            if self.gate.exhausted is not None or left <= 0.0:
                return False
            try:
                shortest = min(wait, left)
                await asyncio.wait_for(self._woken.wait(), None if shortest == math.inf else shortest)
            except asyncio.TimeoutError:
                continue

    async def calls(self, number: float = math.inf, seconds: float = math.inf, units: float = 1.0) -> int:
        """Begin so many calls, or what may begin in that time; how many did."""
        until = time.monotonic() + seconds
        count = 0
        while count < number and await self.call(units, until):
            count += 1
            if count % 8 == 0:
                # The loop of an operator does more than to begin calls.
                await asyncio.sleep(0)
        return count


async def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds that nobody tells. Fails after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        await asyncio.sleep(0.005)


def start(shared: SharedLimits, limits: Limits, seconds: float) -> subprocess.Popen[str]:
    """The program, in a process of its own."""
    text = pickle.dumps((shared, limits)).hex()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.limits.calling", text, str(seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def most_in(begun: list[float], seconds: float) -> int:
    """The most calls that began within any so many seconds."""
    most = first = 0
    for last, at in enumerate(begun):
        while at - begun[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


async def main() -> None:
    shared, limits = pickle.loads(bytes.fromhex(sys.argv[1]))
    until = time.monotonic() + float(sys.argv[2])
    async with Caller(shared.open(limits)) as caller:
        while await caller.call(until=until):
            # A call begins in the next turn of the loop, when the gate has said so.
            await asyncio.sleep(0)
            print(caller.begun[-1], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
