"""The simulated service: it answers each row after a time of its own, the same in every run.

Latencies are log-normal, drawn once from a seeded generator; row i has the i-th of them. The service
does nothing else, so what a contender loses against the ceiling is its own. Any thread, any process.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import time
from collections.abc import Callable
from functools import cache

MEAN = 0.020
"""Mean latency of one call, in seconds."""

SIGMA = 0.5
"""Standard deviation of the latency's logarithm."""

SEED = 20
TAIL_SHARE = 0.01
TAIL_FACTOR = 100
DRAWN = 1 << 16
"""Latencies drawn; rows beyond begin again with the first."""


@cache
def latencies() -> list[float]:
    """The drawn latencies, in seconds. Drawn at the first call of a process."""
    generator = random.Random(SEED)
    mu = math.log(MEAN) - SIGMA * SIGMA / 2
    return [generator.lognormvariate(mu, SIGMA) for _ in range(DRAWN)]


def latency(row: int) -> float:
    """Seconds that the service takes for `row`."""
    return latencies()[row % DRAWN]


@cache
def _slow() -> list[bool]:
    generator = random.Random(SEED + 1)
    return [generator.random() < TAIL_SHARE for _ in range(DRAWN)]


def tail_latency(row: int) -> float:
    """Seconds for `row` of a service of which one call in a hundred takes 100 times the mean."""
    return TAIL_FACTOR * MEAN if _slow()[row % DRAWN] else latency(row)


def answer(row: int) -> int:
    """The answer of the service for `row`: enough to see that each row got its own answer."""
    return 2 * row + 1


async def call(row: int) -> int:
    """One call of the service from an event loop."""
    await asyncio.sleep(latency(row))
    return answer(row)


def call_blocking(row: int) -> int:
    """One call of the service that blocks its thread."""
    time.sleep(latency(row))
    return answer(row)


def nominal_ceiling(capacity: int) -> float:
    """Rows a second that `capacity` calls in flight can give at the nominal mean latency."""
    return capacity / MEAN


def ideal(rows: int, capacity: int, window: int, latency: Callable[[int], float] = latency) -> float:
    """Rows a second, in order, of a scheduler that takes no time; `window`: rows admitted and not emitted."""
    now, head, admitted = 0.0, 0, 0
    running: list[tuple[float, int]] = []
    finished: set[int] = set()
    while head < rows:
        while admitted < rows and len(running) < capacity and admitted - head < window:
            heapq.heappush(running, (now + latency(admitted), admitted))
            admitted += 1
        now, row = heapq.heappop(running)
        finished.add(row)
        while head in finished:
            finished.remove(head)
            head += 1
    return rows / now


def ceiling(rows: int, capacity: int, latency: Callable[[int], float] = latency) -> float:
    """Rows a second that `capacity` calls in flight can give over the latencies of the first `rows` rows.

    No schedule is faster: all slots are busy from the first moment to the last.
    """
    return capacity * rows / math.fsum(latency(row) for row in range(rows))
