"""The cost of the operator itself: CPU of the Python worker and above a bare HTTP client, memory.

For the thread that measures; each job is one of `bench.peers.process`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psutil

from bench.peers.http import Server
from bench.peers.process import PeerFailed, PeerProcess, Peers

Costs = dict[str, list[float]]
"""Microseconds a row of each run, by contender."""

HTTP_CAPACITY = 64
WARM_UP_ROWS = 20_000
SAMPLE = 0.1
"""Seconds between two looks at the memory."""


def _job(contender: str, workload: str, rows: int, **more: Any) -> dict[str, Any]:
    asked = {"contender": contender, "workload": workload, "rows": rows, "capacity": 256, "ordered": False}
    return asked | {"keep": False} | more


OWN = {
    "identity": _job("identity", "identity", 0),
    "async_map, as finished": _job("async_map", "instant", 0),
    "async_map, in order": _job("async_map", "instant", 0, ordered=True),
    "async_map, Batch(64)": _job("async_map batched", "instant", 0),
    "async_map, Batch(64), in order": _job("async_map batched", "instant", 0, ordered=True),
    "async_udf": _job("async_udf", "instant", 0, ordered=True),
    "async_map, a turn of the loop": _job("async_map", "turn", 0),
}
"""Jobs of calls that answer at once, but the last; all in Spark, thrown away."""


def own_costs(
    peers: Peers, rows: int, rounds: int, limit: float, say: Callable[[str], None]
) -> tuple[Costs, dict[str, str]]:
    """CPU a row of the Python worker less that of the identity job of the same round; and what failed."""
    process = peers.get("spark_ours")
    costs: Costs = {name: [] for name in OWN}
    failed: dict[str, str] = {}
    jobs = dict(OWN)
    for number in range(-1, rounds):
        size = WARM_UP_ROWS if number < 0 else rows
        base = 0.0
        for name, job in list(jobs.items()):
            try:
                used = worker_cpu(process, job | {"rows": size}, limit)
            except PeerFailed as error:
                failed[name] = str(error)
                del jobs[name], costs[name]
                process = peers.get("spark_ours")
                continue
            if name == "identity":
                base = used
            if number >= 0:
                costs[name].append(used if name == "identity" else used - base)
        if number >= 0:
            say(f"own cost, round {number + 1}: " + ", ".join(f"{n} {v[-1]:.2f}" for n, v in costs.items()))
    return costs, failed


def worker_cpu(process: PeerProcess, job: dict[str, Any], limit: float) -> float:
    """Microseconds a row of the Python processes below the driver."""
    done = process.run(job, limit)
    used: float = (done["cpu"]["python"] - done["driver_cpu"]) / job["rows"] * 1e6
    return used


HTTP = {
    "aiohttp, fixed workers": ("local", "HTTP by hand", False),
    "async_map, as finished": ("local", "HTTP async_map", False),
    "async_map, in order": ("local", "HTTP async_map", True),
    "spark.async_map, as finished": ("spark_ours", "HTTP async_map", False),
    "spark.async_map, in order": ("spark_ours", "HTTP async_map", True),
}
"""The contenders that ask the server. In Spark, the cost of the identity job is taken off."""


def http_costs(
    peers: Peers, rows: int, rounds: int, limit: float, say: Callable[[str], None]
) -> tuple[Costs, dict[str, str]]:
    """CPU a row of the process that makes the calls; for all but the first, above that of the first."""
    costs: Costs = {name: [] for name in HTTP}
    failed: dict[str, str] = {}
    with Server() as server:
        for number in range(-1, rounds):
            bare = 0.0
            for name, (peer, key, ordered) in HTTP.items():
                if name in failed:
                    continue
                job = _job(key, "http", rows if number >= 0 else rows // 5, ordered=ordered)
                job |= {"capacity": HTTP_CAPACITY, "url": server.url}
                try:
                    process = peers.get(peer)
                    if peer == "spark_ours":
                        used = worker_cpu(process, job, limit)
                        used -= worker_cpu(process, OWN["identity"] | {"rows": job["rows"]}, limit)
                    else:
                        used = process.run(job, limit)["cpu"]["python"] / job["rows"] * 1e6
                except PeerFailed as error:
                    failed[name] = str(error)
                    del costs[name]
                    continue
                if name == next(iter(HTTP)):
                    bare = used
                if number >= 0:
                    costs[name].append(used if name == next(iter(HTTP)) else used - bare)
            if number >= 0:
                say(f"HTTP, round {number + 1}: " + ", ".join(f"{n} {v[-1]:.1f}" for n, v in costs.items()))
    return costs, failed


class Sampler:
    """Looks at the resident memory of the largest Python worker below a process, as a context manager."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory")
        self.samples: list[tuple[float, float]] = []
        """Seconds since the start, MB."""

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Take one sample, if there is a worker. Any thread, one at a time."""
        sizes = []
        for process in self._root.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                parent = process.parent()
                # Spark's daemon, from which the workers are forked, has Java for its parent.
                if process.name().startswith("python") and parent and parent.name().startswith("python"):
                    sizes.append(process.memory_info().rss)
        if sizes:
            self.samples.append((time.monotonic() - self._began, max(sizes) / 1e6))

    def _run(self) -> None:
        while not self._over.wait(SAMPLE):
            self.look()


MEMORY = ("identity", "async_map, as finished", "async_map, in order", "async_map, Batch(64)")


def memory(
    peers: Peers,
    rows: int,
    limit: float,
    say: Callable[[str], None],
    names: Sequence[str] = MEMORY,
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, str]]:
    """Resident memory of the Python worker while a job runs, each job in a session of its own."""
    samples: dict[str, list[tuple[float, float]]] = {}
    failed: dict[str, str] = {}
    for name in names:
        peers.end("spark_ours")
        process = peers.get("spark_ours")
        try:
            with Sampler(process.tree) as sampler:
                process.run(OWN[name] | {"rows": rows}, limit)
        except PeerFailed as error:
            failed[name] = str(error)
            continue
        samples[name] = sampler.samples
        say(f"memory, {name}: {peak(sampler.samples):.0f} MB, growth {growth(sampler.samples):.0f} MB")
    return samples, failed


def peak(samples: list[tuple[float, float]]) -> float:
    """The most, in MB."""
    return max(size for _, size in samples)


def growth(samples: list[tuple[float, float]]) -> float:
    """The growth from the second quarter of the run to the last, by medians, in MB."""
    sizes = [size for _, size in samples]
    quarter = max(1, len(sizes) // 4)
    return statistics.median(sizes[-quarter:]) - statistics.median(sizes[quarter : 2 * quarter] or sizes)
