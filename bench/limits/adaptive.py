"""Jobs at services that refuse now and then, and at services with a knee: `python -m bench.limits.adaptive`.

The operator that ships runs in virtual time against model services, so that an hour of calls takes seconds;
`--only real` asks the same models behind a socket on loopback, in real time; `--only starts` asks a smaller
model, which has the controller without an operator, with many seeds. Prints the figures, and writes
them to `out/bench/adaptive.json`; exits with 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from bench.limits.crowded import Refused, Service
from pillarbox import Adaptive, Buffer, Options, Rate, Retry, async_map
from pillarbox.aio.limits.rate import LocalLimiter, RateLimiter, SharedLimits
from pillarbox.testing import run_virtual
from tests.limits.service_model import Caller
from tests.limits.service_model import Service as Model

TARGET = 0.95
"""Share of the rate without refusals, or of the service's own limit, that a job is to reach."""
MOST_KNEES = 1.5
"""Times the knee above which the calls in flight may be for `MOST_TRIPS` round trips."""
MOST_TRIPS = 10.0
CAPACITY = 50
CALL_S = 0.05
REAL_CALL_S = 0.25
"""Seconds of a call in real time: those of the sockets beside it are few."""
SHARES = (0.001, 0.005, 0.01, 0.03)
COUNTED = 0.9
"""Share of the rows of the quickest task after which its rate is taken."""
TASKS = 4
"""Tasks that share a limiter."""
KNEES = (4, 16, 50, 120)
LATENCIES = (0.1, 2.0, 20.0)
SEEDS = 24
"""Seeds of the jobs of `measure_starts`."""
START_TRIPS = 50
"""Round trips that are the start of such a job; four times as many follow."""
TRIPS = 900
"""Round trips of a job at a knee; the second half is its steady state."""
OUT = pathlib.Path("out/bench/adaptive.json")


class OneLimiter(SharedLimits):
    """Limits that tasks of one loop share, as those of a coordinator: a cool-down of one is that of all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.limiter = LocalLimiter(Rate(1e6), None, None, clock)

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> RateLimiter:
        """See `SharedLimits`."""
        return self.limiter

    def named(self, name: str | None = None) -> OneLimiter:
        """See `SharedLimits`."""
        return self


class Progress:
    """Counts the rows of all tasks until the first task has most of its rows.

    The last rows are left out: one that waits for the second that the service has asked for has no other
    behind it, which makes a short job longer and says nothing about a rate.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.rate = 0.0

    async def run(self, rows: int, service: Any, options: Options) -> int:
        """Run a task; returns its cool-downs."""
        mapped = async_map(range(rows), service, options=options)
        count = 0
        async for result in mapped:
            count += result is not None
            self.rows += 1
            if count >= COUNTED * rows and not self.rate:
                self.rate = self.rows / asyncio.get_running_loop().time()
        if count != rows:
            raise AssertionError(f"{rows - count} rows without a result")
        counts = mapped.statistics()
        return 0 if counts is None else counts.cool_downs


class Job(NamedTuple):
    """Counts of a job: rows a second, cool-downs, and the share of its calls that was refused."""

    rate: float
    cool_downs: int
    refused: float


def refused_options(is_found: bool) -> Options:
    """The options of a job that is refused by chance. is_found: with `"auto"` in place of the capacity."""
    return Options(
        capacity="auto" if is_found else CAPACITY,
        retry=Retry(4),
        errors="null",
        ordered=False,
        buffer=Buffer(10_000),
    )


def sporadic(share: float, retry_after: float | None, is_found: bool, tasks: int, rows: int) -> Job:
    """Run a job at a service with as many places as the fixed capacity, which refuses by chance."""
    random.seed(5)

    async def script() -> Job:
        loop = asyncio.get_running_loop()
        service = Service(CAPACITY * tasks, CALL_S, 0.3, share=share, retry_after=retry_after)
        options = dataclasses.replace(
            refused_options(is_found), limits=None if tasks == 1 else OneLimiter(loop.time)
        )
        progress = Progress()
        cool_downs = await asyncio.gather(*[progress.run(rows, service, options) for _ in range(tasks)])
        return Job(progress.rate, sum(cool_downs), service.refused / service.calls)

    return run_virtual(script(), longest=1e6)


class Knee(NamedTuple):
    """Counts of a job at a service with a knee.

    share: of the service's own limit, in steady state. trips: the longest time with more than 1.5 times the
    knee in flight, in round trips of that time. refused: share of the calls. limits: the least and the most
    of the second half.
    """

    share: float
    trips: float
    refused: float
    limits: tuple[int, int]


def at_knee(service: Service, seconds: float, settled: float, most: int = 1024) -> Knee:
    """Run a job for so many seconds; steady state begins `settled` seconds after the start and each move."""
    random.seed(5)

    async def script() -> Knee:
        loop = asyncio.get_running_loop()
        service.start()
        options = Options(
            capacity=Adaptive(most=most), retry=Retry(4), errors="null", ordered=False, buffer=Buffer(20_000)
        )
        ended = loop.time() + seconds
        limits: list[tuple[float, int, int]] = []
        loads: list[tuple[float, int, int]] = []
        possible = 0.0

        async def rows() -> AsyncIterator[int]:
            for row in itertools.count():
                if loop.time() >= ended:
                    return
                yield row

        async def watch() -> None:
            nonlocal possible
            step = service.seconds / 4
            while loop.time() < ended:
                await asyncio.sleep(step)
                counts = mapped.statistics()
                limits.append((loop.time(), 0 if counts is None else counts.capacity, service.knee))
                loads.append((loop.time(), 0 if counts is None else counts.in_flight, service.knee))
                if is_steady(loop.time()):
                    possible += service.knee * step / service.seconds

        def is_steady(at: float) -> bool:
            begins = max([0.0, *[move for move, _ in moves if move <= at]])
            return begins + settled <= at < ended

        moves = service.moves
        mapped = async_map(rows(), service, options=options)
        watching = asyncio.ensure_future(watch())
        async for _ in mapped:
            pass
        await watching
        served = [at for at, _ in service.served if is_steady(at)]
        late = [limit for at, limit, _ in limits if is_steady(at)]
        return Knee(
            len(served) / possible,
            longest_above(loads, service),
            service.refused / service.calls,
            (min(late), max(late)),
        )

    return run_virtual(script(), longest=1e9)


def longest_above(loads: list[tuple[float, int, int]], service: Service) -> float:
    """The longest time with more than 1.5 times the knee in flight, and one call more, in its round trips."""
    longest, since = 0.0, None
    for at, calls, knee in [*loads, (loads[-1][0], 0, 1)]:
        if calls > max(MOST_KNEES * knee, knee + 1):
            since = at if since is None else since
        elif since is not None:
            trips = [seconds for end, seconds in service.served if since <= end <= at]
            mean = sum(trips) / len(trips) if trips else service.seconds
            longest, since = max(longest, (at - since) / mean), None
    return longest


def measure_sporadic(rows: int) -> list[dict[str, Any]]:
    """All jobs at a service that refuses by chance, beside those without refusals."""
    lines = []
    for is_found, tasks in itertools.product((False, True), (1, TASKS)):
        free = sporadic(0.0, None, is_found, tasks, rows)
        for share, retry_after in itertools.product(SHARES, (None, 1.0)):
            job = sporadic(share, retry_after, is_found, tasks, rows)
            lines.append(
                {
                    "capacity": "auto" if is_found else CAPACITY,
                    "tasks": tasks,
                    "share": share,
                    "retry_after": retry_after,
                    "rate": job.rate / free.rate,
                    "cool_downs": job.cool_downs,
                    "held": job.rate / free.rate >= TARGET,
                }
            )
            print(_line(lines[-1]), flush=True)
    return lines


def measure_knees(knees: tuple[int, ...], latencies: tuple[float, ...], trips: int) -> list[dict[str, Any]]:
    """All jobs at services with a knee."""
    lines = []
    for refuses, seconds, knee, sigma, moves in itertools.product(
        (False, True), latencies, knees, (0.0, 0.5), (False, True)
    ):
        if moves and knee < 8:
            continue
        long = trips * seconds
        at = [] if not moves else [(long / 3, knee * 2), (2 * long / 3, knee // 2)]
        service = Service(knee, seconds, sigma, refuses=refuses, status=503, moves=at)
        found = at_knee(service, long, long / 2 if not moves else long / 6)
        lines.append(
            {
                "full": "503" if refuses else "queue",
                "seconds": seconds,
                "knee": f"{knee} {knee * 2} {knee // 2}" if moves else knee,
                "sigma": sigma,
                "share": found.share,
                "trips_above": found.trips,
                "refused": found.refused,
                "limits": found.limits,
                "held": found.share >= TARGET and found.trips <= MOST_TRIPS,
            }
        )
        print(_line(lines[-1]), flush=True)
    return lines


def measure_starts(knees: tuple[int, ...], seeds: int) -> list[dict[str, Any]]:
    """Jobs at services with a queue, with many seeds: what depends on chance most is the start.

    late: the share of them with too many calls in flight for longer than `MOST_TRIPS`; it has no target.
    """
    lines = []
    for knee, sigma in itertools.product(knees, (0.3, 0.5)):
        starts, shares, trips = [], [], []
        for seed in range(seeds):
            caller = Caller(Adaptive(), Model(knee, mean=1.0, sigma=sigma, random=random.Random(seed)))
            caller.run(START_TRIPS)
            starts.append(caller.served / (knee * START_TRIPS))
            caller.run(4 * START_TRIPS)
            shares.append((caller.served / knee - starts[-1] * START_TRIPS) / (4 * START_TRIPS))
            trips.append(caller.longest_above(max(MOST_KNEES * knee, knee + 1)))
        lines.append(
            {
                "knee": knee,
                "sigma": sigma,
                "start": statistics.mean(starts),
                "least_start": min(starts),
                "share": statistics.mean(shares),
                "least_share": min(shares),
                "trips_above": statistics.median(trips),
                "late": sum(each > MOST_TRIPS for each in trips) / seeds,
                "held": statistics.mean(shares) >= TARGET,
            }
        )
        print(_line(lines[-1]), flush=True)
    return lines


class Loopback:
    """A model service behind a socket: the status of each call, and seconds of Retry-After, in a line."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one call."""
        row = int(await reader.readline())
        try:
            await self.service(row)
            writer.write(b"200\n")
        except Refused as refused:
            writer.write(f"{refused.status} {refused.headers.get('Retry-After', '')}\n".encode())
        await writer.drain()
        writer.close()

    async def start(self) -> asyncio.Server:
        """Listen on loopback."""
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]
        return self.server

    async def __call__(self, row: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{row}\n".encode())
        status, *asked = (await reader.readline()).decode().split()
        writer.close()
        if status != "200":
            raise Refused(int(status), float(asked[0]) if asked else None)
        return row


def measure_real(rows: int) -> list[dict[str, Any]]:
    """The jobs of `measure_sporadic` with the most refusals, at a service behind a socket, in real time."""

    async def run(share: float, retry_after: float | None, is_found: bool) -> Job:
        service = Service(CAPACITY, REAL_CALL_S, 0.3, share=share, retry_after=retry_after)
        there = Loopback(service)
        server = await there.start()
        options = refused_options(is_found)
        progress = Progress()
        cool_downs = await progress.run(rows, there, options)
        server.close()
        return Job(progress.rate, cool_downs, service.refused / service.calls)

    lines = []
    for is_found in (False, True):
        free = asyncio.run(run(0.0, None, is_found))
        job = asyncio.run(run(SHARES[-1], 1.0, is_found))
        lines.append(
            {
                "capacity": "auto" if is_found else CAPACITY,
                "share": SHARES[-1],
                "retry_after": 1.0,
                "rate": job.rate / free.rate,
                "cool_downs": job.cool_downs,
                "held": job.rate / free.rate >= TARGET,
            }
        )
        print(_line(lines[-1]), flush=True)
    return lines


def _line(line: dict[str, Any]) -> str:
    return "  ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in line.items()
    )


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("sporadic", "knees", "starts", "real"))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--knees", type=int, nargs="+", default=KNEES)
    parser.add_argument("--latencies", type=float, nargs="+", default=LATENCIES)
    parser.add_argument("--trips", type=int, default=TRIPS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each job of --only starts")
    args = parser.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {}
    if args.only in (None, "sporadic"):
        found["sporadic"] = measure_sporadic(args.rows)
    if args.only in (None, "knees"):
        found["knees"] = measure_knees(tuple(args.knees), tuple(args.latencies), args.trips)
    if args.only in (None, "starts"):
        found["starts"] = measure_starts(tuple(args.knees), args.seeds)
    if args.only == "real":
        found["real"] = measure_real(args.rows // 8)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1))
    missed = [line for lines in found.values() for line in lines if not line["held"]]
    print(f"{len(missed)} targets missed; {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
