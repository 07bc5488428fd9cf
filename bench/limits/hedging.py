"""Slow calls with hedges and without: `python -m bench.limits.hedging`.

One call of a hundred takes 100 times the median, a hedge no less often than any other. The table has rows a
second as a share of what `capacity` calls of the median give, and the calls made beyond one a row. Time is
virtual, so that the figures are those of the policy on any machine; `--real` sleeps, and adds what this
machine takes. Rows a second count from the first call to the last result but those of the last window, which
no row follows.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox import Buffer, Hedge, Options, async_map
from pillarbox.aio.options import REORDER_FACTOR
from pillarbox.testing import run_virtual

MEDIAN_S = 0.02
SPREAD = 0.2
"""Calls take up to this part more or less than the median."""
SLOW_SHARE = 0.01
SLOWNESS = 100
LONGEST_S = 1e6


class Figures(NamedTuple):
    """The share of the best rate, and calls beyond one a row, as a share of these."""

    share: float
    more_calls: float


class Job(NamedTuple):
    """A job to measure. window: rows admitted and not emitted, in capacities; None for the default."""

    name: str
    ordered: bool
    hedge: Hedge | None = None
    window: int | None = None


def jobs() -> list[Job]:
    """The lines of the table."""
    hedge, two = Hedge("p95", 0.05, idempotent=True), Hedge("p95", 0.05, calls=2, idempotent=True)
    return [
        Job("no hedge", True),
        Job("no hedge", False),
        Job("Hedge('p95', 0.05)", True, hedge),
        Job("Hedge('p95', 0.05)", False, hedge),
        Job("Hedge('p95', 0.05, calls=2)", True, two),
        Job("Hedge('p95', 0.05, calls=2)", True, two, SLOWNESS),
    ]


class Service:
    """An async function whose calls take the times of `dice`."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.calls = 0

    async def __call__(self, row: int) -> int:
        self.calls += 1
        is_slow = self.dice.random() < SLOW_SHARE
        usual = MEDIAN_S * self.dice.uniform(1.0 - SPREAD, 1.0 + SPREAD)
        await asyncio.sleep(MEDIAN_S * SLOWNESS if is_slow else usual)
        return row


async def measure(job: Job, rows: int, capacity: int, seed: int, clock: Callable[[], float]) -> Figures:
    """Do one job over `rows` rows."""
    service = Service(random.Random(seed))
    window = None if job.window is None else Buffer(job.window * capacity)
    options = Options(ordered=job.ordered, capacity=capacity, hedge=job.hedge, buffer=window)
    last = rows - options.window
    began, ended, done = clock(), 0.0, 0
    async for _ in async_map(range(rows), service, options=options):
        done += 1
        if done == last:
            ended = clock()
    return Figures(
        share=last / (ended - began) * MEDIAN_S / capacity,
        more_calls=service.calls / rows - 1.0,
    )


def measure_virtual(job: Job, rows: int, capacity: int, seed: int) -> Figures:
    """Do one job in virtual time."""

    async def main() -> Figures:
        return await measure(job, rows, capacity, seed, asyncio.get_running_loop().time)

    return run_virtual(main(), longest=LONGEST_S)


def measure_real(job: Job, rows: int, capacity: int, seed: int) -> Figures:
    """Do one job that sleeps."""
    return asyncio.run(measure(job, rows, capacity, seed, time.perf_counter))


def main(words: list[str] | None = None, say: Callable[[str], Any] = print) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.limits.hedging", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--capacity", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="sleep, instead of letting virtual time pass")
    given = parser.parse_args(words)
    do = measure_real if given.real else measure_virtual
    say("| capacity | | results | window | share of the best rate | more calls |")
    say("|--:|---|---|--:|--:|--:|")
    for capacity in given.capacity:
        for job in jobs():
            found = do(job, given.rows, capacity, given.seed)
            order = "in order" if job.ordered else "as finished"
            shown = f"{job.name} | {order} | {job.window or REORDER_FACTOR} x"
            say(f"| {capacity} | {shown} | {found.share:.2f} | {found.more_calls:.1%} |")


if __name__ == "__main__":
    main()
