"""Calls through a gate as an operator makes them; as a program, in a process of its own. One loop's thread.

`python -m tests.limits.unit.calling HANDLE NUMBER LOOP FATAL` reads a pickled (shared limits, limits) in
hexadecimal, begins as many calls as it may on a loop of that package, NUMBER at most, and writes a line for
each, before it goes on. The call with the number FATAL (0 for none) kills the process; if that is
below 0, the first one from there on that leaves calls unused and nothing on its way to the process.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pillarbox.aio.limits.lease import LeasedLimiter
from pillarbox.aio.limits.rate import Limits, RateLimiter, SharedLimits

ROOT = Path(__file__).resolve().parents[3]


class Caller:
    """One task's use of a gate. Awaits what the operator would wait for."""

    def __init__(self, gate: RateLimiter) -> None:
        self.gate = gate
        self.begun: list[float] = []
        self._woken = asyncio.Event()

    async def __aenter__(self) -> Caller:
        self.gate.start(asyncio.get_running_loop(), self._woken.set)
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.gate.close()

    async def call(self, units: float = 1.0, until: float = math.inf) -> bool:
        """Begin a call as soon as the gate lets it; False if it does not until then, or never will.

        until: by the clock of the loop.
        """
        now = asyncio.get_running_loop().time
        while True:
            self._woken.clear()
            wait = self.gate.admit(units)
            if wait == 0.0:
                self.begun.append(now())
                return True
            left = until - now()
            if self.gate.exhausted is not None or left <= 0.0:
                return False
            try:
                shortest = min(wait, left)
                await asyncio.wait_for(self._woken.wait(), None if shortest == math.inf else shortest)
            except asyncio.TimeoutError:
                continue

    async def calls(self, number: float = math.inf, seconds: float = math.inf, units: float = 1.0) -> int:
        """Begin so many calls, or what may begin in that time; how many did."""
        until = asyncio.get_running_loop().time() + seconds
        count = 0
        while count < number and await self.call(units, until):
            count += 1
            if count % 8 == 0:
                # The loop of an operator does more than to begin calls.
                await asyncio.sleep(0)
        return count


def impatient(gate: LeasedLimiter, trouble: str = "") -> LeasedLimiter:
    """The limiter with a clock by which its patience is over at each reading after such a trouble."""
    link, clock, late = gate._link, gate._clock, 0.0

    def read() -> float:
        nonlocal late
        if link._way.trouble is not None and trouble in str(link._way.trouble):
            late += link._patience
        return clock() + late

    gate._clock = link._clock = read
    return gate


def start(
    shared: SharedLimits, limits: Limits, number: float = math.inf, loop: str = "asyncio", fatal: int = 0
) -> subprocess.Popen[str]:
    """The program, in a process of its own."""
    text = pickle.dumps((shared, limits)).hex()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.limits.unit.calling", text, str(number), loop, str(fatal)],
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
    number = float(sys.argv[2])
    fatal = int(sys.argv[4])
    async with Caller(shared.open(limits)) as caller:
        while len(caller.begun) < number and await caller.call():
            # What a call does may end the process: nothing comes between it and the gate.
            print(len(caller.begun), flush=True)
            gate: Any = caller.gate
            quiet = fatal < 0 and gate._account.calls > 0 and gate._demand.asked_units is None
            if len(caller.begun) == fatal or (quiet and len(caller.begun) >= -fatal):
                os.kill(os.getpid(), signal.SIGKILL)
            # Who makes calls as fast as he can always waits for more.
            await asyncio.sleep(0.002 if fatal < 0 else 0)


if __name__ == "__main__":
    new_loop = importlib.import_module(sys.argv[3]).new_event_loop()
    try:
        new_loop.run_until_complete(main())
    finally:
        new_loop.close()
