"""`python -m bench.limits.memory`: the memory of a job with each kind of limit, as a multiple of `max_bytes`.

In a process of its own for each kind, the results of an ordered job wait for its first row, until
`Buffer.max_bytes` lets no further row in. The highest resident memory until then is compared with that before
the job, which an equal job with a sixty-fourth of the bound has warmed. The bound is 1.5.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.table import Column, print_table
from pillarbox import (
    Batch,
    Budget,
    Buffer,
    Coordinator,
    Endpoints,
    Hedge,
    Limit,
    Options,
    Rate,
    Retry,
    Shared,
    Timeout,
    async_map,
    current_call,
)

MAX_BYTES = 64 << 20
ANSWER_BYTES = 4_000
ROWS = 2 * MAX_BYTES // ANSWER_BYTES
"""Rows that the window has entries for: more than the bound on bytes admits."""
QUIET_S = 2.5
"""Seconds without another call, after which no more will begin."""
BOUND = 1.5
HEADERS = {"x-ratelimit-limit-requests": "60000000", "x-ratelimit-remaining-requests": "59999999"}


class Refused(Exception):
    """A refusal of a service, by its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Answers:
    """An async function whose answers have `ANSWER_BYTES`; that to row 0 comes when the job is over.

    slow, refused: of so many calls one takes 50 ms, or is refused with 429. ill: the endpoint that refuses
    all calls with 503. reports: whether calls report limits.
    """

    def __init__(self, slow: int = 0, refused: int = 0, ill: str = "", reports: bool = False) -> None:
        self._slow, self._refused, self._ill, self._reports = slow, refused, ill, reports
        self.calls = 0
        self.last = time.monotonic()

    async def __call__(self, row: int) -> bytes:
        """Answer a row."""
        self.calls, self.last = self.calls + 1, time.monotonic()
        is_slow = self._slow and self.calls % self._slow == 0
        await asyncio.sleep(3600.0 if row == 0 else 0.05 if is_slow else 0)
        if self._refused and self.calls % self._refused == 0:
            raise Refused(429)
        if self._ill and current_call().endpoint.url == self._ill:
            raise Refused(503)
        if self._reports:
            current_call().report_limits(HEADERS)
        return row.to_bytes(ANSWER_BYTES, "big")

    async def batch(self, rows: list[int]) -> list[bytes]:
        """Answer the rows of a batch."""
        return [await self(row) for row in rows]


@contextmanager
def none() -> Iterator[dict[str, Any]]:
    """No limit but the number of calls."""
    yield {}


@contextmanager
def shared() -> Iterator[dict[str, Any]]:
    """Slots of a coordinator."""
    with Coordinator() as coordinator:
        yield {"capacity": Shared(64), "limits": coordinator}


def given(**options: Any) -> Callable[[], Any]:
    """Options that need nothing beside them."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield options

    return opened


THREE = ["http://one", "http://two", "http://three"]
KINDS: dict[str, tuple[Callable[[], Answers], Callable[[], Any]]] = {
    "none": (Answers, none),
    "retries, 2 % refused": (lambda: Answers(refused=50), given(retry=Retry(8, initial=0.01))),
    "three endpoints": (Answers, given(endpoints=Endpoints(THREE))),
    "three endpoints, one refuses": (
        lambda: Answers(ill=THREE[2]),
        given(endpoints=Endpoints(THREE), retry=4),
    ),
    "hedged, 2 % at 50 ms": (
        lambda: Answers(slow=50),
        given(hedge=Hedge(after=0.01, idempotent=True), timeout=Timeout(7200.0)),
    ),
    "learned limits": (lambda: Answers(reports=True), given(rate=Rate(learn=True))),
    "a rate": (Answers, given(rate=Rate(per_second=20_000.0))),
    'capacity="auto"': (Answers, given(capacity="auto")),
    "shared slots": (Answers, shared),
    "rows by key": (Answers, given(per_key=Limit(key=lambda row: row % 997, at_once=1))),
    "a budget of time": (Answers, given(budget=Budget(max_seconds=3600.0))),
    "batches": (Answers, given(batch=Batch(16))),
}


def resident_bytes(field: str = "VmRSS") -> int:
    """Bytes of memory that this process has now, or with "VmHWM" has had at most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def forget_peak() -> None:
    """Give back what is free, and have the peak of memory count from now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


async def _peak(
    kind: str, max_bytes: int, fn: Any, calls: Callable[[], tuple[int, float]]
) -> tuple[int, int]:
    """Bytes above those before, at most, and calls, until no more calls begin."""
    opened = KINDS[kind][1]
    with opened() as limits:
        forget_peak()
        before = resident_bytes()
        values = {"capacity": 64, **limits}
        options = Options(buffer=Buffer(rows=ROWS, max_bytes=max_bytes), errors="null", **values)
        job = async_map(range(10_000_000), fn, options=options)
        takes = asyncio.ensure_future(anext(job))
        while time.monotonic() - calls()[1] < QUIET_S:
            await asyncio.sleep(0.05)
        found = resident_bytes("VmHWM") - before, calls()[0]
        takes.cancel()
        await job.aclose()
    return found


def measure(kind: str, max_bytes: int) -> dict[str, float]:
    """Measure one kind here: in a process of its own."""

    def once(bound: int) -> tuple[int, int]:
        answers = KINDS[kind][0]()
        fn = answers.batch if kind == "batches" else answers
        return asyncio.run(_peak(kind, bound, fn, lambda: (answers.calls, answers.last)))

    once(max_bytes // 64)
    peak, calls = once(max_bytes)
    return {"calls": calls, "mib": peak / 2**20, "times": peak / max_bytes}


def main() -> int:
    """Measure the kinds that are named, and print a table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.limits.memory", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="of these alone")
    parser.add_argument("--here", action="store_true", help="one kind, in this process; prints JSON")
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(measure(chosen.kinds[0], MAX_BYTES)))
        return 0
    rows, worst = [], 0.0
    for kind in chosen.kinds or KINDS:
        command = [sys.executable, "-m", "bench.limits.memory", "--here", kind]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        worst = max(worst, found["times"])
        rows.append([kind, f"{found['calls']:,}", f"{found['mib']:.0f}", f"{found['times']:.2f}"])
    columns = [Column("limit", right=False), Column("calls"), Column("MiB"), Column("of max_bytes")]
    print_table(columns, rows)
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
