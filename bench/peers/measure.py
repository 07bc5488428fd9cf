"""Runs the contenders' jobs in turn, round by round, and keeps what each took. For the thread that measures.

The time of a job is from the first call to the last answer of its function: the start of the peer, of the
job and of its workers is left out for all alike. CPU time is that of all processes of the peer, less that of
the same job with one row. A contender that fails is kept with its reason and not asked again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bench import service
from bench.peers.contenders import OWN_PROCESS, Contender
from bench.peers.environments import EnvironmentFailed
from bench.peers.jobs import latency_of
from bench.peers.process import PeerFailed, Peers

KINDS = ("python", "java", "other")
WARM_UP_ROWS = 2_000


@dataclass
class Result:
    """The runs of one contender at one workload."""

    name: str
    workload: str
    ordered: bool
    capacity: int
    rows: int
    reorder: int | None = None
    """In rows; None for the contender's default, or if it has none."""
    ours: bool = False
    seconds: list[float] = field(default_factory=list)
    """From the first call to the last answer."""
    job_seconds: list[float] = field(default_factory=list)
    """Of the whole job."""
    cpu: list[dict[str, float]] = field(default_factory=list)
    """Seconds by kind of process."""
    empty: list[dict[str, float]] = field(default_factory=list)
    """The same for a job of one row, before each run."""
    found: dict[str, Any] = field(default_factory=dict)
    """The checks of the answers: the worst run."""
    failed: str | None = None

    @property
    def rate(self) -> float:
        """Rows a second, the median run."""
        return self.rows / statistics.median(self.seconds)

    @property
    def ceiling(self) -> float | None:
        """Rows a second that the service allows at this capacity; None where it takes no time."""
        if self.workload not in ("service", "tail"):
            return None
        return service.ceiling(self.rows, self.capacity, latency_of(self.workload))

    @property
    def share(self) -> float | None:
        """Share of the ceiling."""
        return None if self.ceiling is None else self.rate / self.ceiling

    @property
    def spread(self) -> tuple[float, float]:
        """Rows a second of the slowest and the fastest run."""
        return self.rows / max(self.seconds), self.rows / min(self.seconds)

    def cpu_of(self, *kinds: str) -> float:
        """Microseconds a row of these kinds of processes, by medians, less what a job of one row takes."""

        def median(runs: list[dict[str, float]]) -> float:
            return statistics.median(sum(run[kind] for kind in kinds or KINDS) for run in runs)

        return (median(self.cpu) - median(self.empty)) / self.rows * 1e6

    @property
    def remarks(self) -> list[str]:
        """The deviations from what was asked for."""
        found = self.found
        said = [
            f"{found[key]:,} answers {what}"
            for key, what in (("wrong", "wrong"), ("missing", "missing"), ("twice", "twice"))
            if found.get(key)
        ]
        if found.get("most", 0) > self.capacity:
            said.append(f"{found['most']:,} calls in flight")
        if self.ordered and not found.get("in_order", True):
            said.append("not in order")
        return said


@dataclass(frozen=True)
class Ask:
    """A contender, and a job for it."""

    contender: Contender
    workload: str
    ordered: bool
    capacity: int
    rows: int
    reorder: int | None = None
    keep: bool = True

    def result(self) -> Result:
        """The file in which its runs are kept."""
        return Result(
            self.contender.name,
            self.workload,
            self.ordered,
            self.capacity,
            self.rows,
            self._window(),
            self.contender.ours,
        )

    def job(self, rows: int) -> dict[str, Any]:
        """The job with so many rows."""
        return {
            "contender": self.contender.key,
            "workload": self.workload,
            "rows": rows,
            "capacity": self.capacity,
            "ordered": self.ordered,
            "reorder": self._window(),
            "keep": self.keep,
        }

    def _window(self) -> int | None:
        if self.reorder is None and self.contender.reorder is not None:
            return self.contender.reorder * self.capacity
        return self.reorder


def run_all(
    asks: Iterable[Ask], peers: Peers, rounds: int, limit: float, say: Callable[[str], None]
) -> list[Result]:
    """Run each job once a round, in an order that turns round. limit: seconds that one job may take."""
    work = [(ask, ask.result()) for ask in asks]
    warm: set[tuple[str, str, bool]] = set()
    for number in range(rounds):
        for ask, result in work if number % 2 == 0 else reversed(work):
            if result.failed is not None:
                continue
            try:
                _run(ask, result, peers, limit, warm)
            except (EnvironmentFailed, PeerFailed) as error:
                result.failed = str(error)
                peers.end(ask.contender.peer)
            say(f"round {number + 1}: {_told(result)}")
    return [result for _, result in work]


def _run(ask: Ask, result: Result, peers: Peers, limit: float, warm: set[tuple[str, str, bool]]) -> None:
    contender = ask.contender
    # What is done for the first time takes longer, in the JVM above all.
    kind = (contender.name, ask.workload, ask.ordered)
    if kind not in warm and contender.peer not in OWN_PROCESS:
        peers.get(contender.peer).run(ask.job(min(WARM_UP_ROWS, ask.rows)), limit)
        warm.add(kind)
    empty = _ask(ask, 1, peers, limit)
    done = _ask(ask, ask.rows, peers, limit)
    result.empty.append(empty["cpu"])
    result.cpu.append(done["cpu"])
    result.job_seconds.append(done["job_seconds"])
    if "seconds" not in done:
        raise PeerFailed("not every row was called in the process that called the first")
    result.seconds.append(done["seconds"])
    for key in ("wrong", "missing", "twice", "most"):
        result.found[key] = max(result.found.get(key, 0), done.get(key, 0))
    result.found["in_order"] = result.found.get("in_order", True) and done.get("in_order", True)


def _ask(ask: Ask, rows: int, peers: Peers, limit: float) -> dict[str, Any]:
    peer = ask.contender.peer
    done = peers.get(peer).run(ask.job(rows), limit)
    if peer in OWN_PROCESS:
        peers.end(peer)
    return done


def _told(result: Result) -> str:
    order = "in order" if result.ordered else "as finished"
    window = f", window {result.reorder:,}" if result.reorder else ""
    what = f"{result.name}, {result.workload}, {result.capacity:,}, {order}{window}"
    if result.failed is not None:
        return f"{what}: FAILED: {result.failed[:200]}"
    remarks = f" ({'; '.join(result.remarks)})" if result.remarks else ""
    share = "" if result.ceiling is None else f", {result.rows / result.seconds[-1] / result.ceiling:.1%}"
    rate = result.rows / result.seconds[-1]
    return f"{what}: {rate:,.0f} rows/s{share}, {result.cpu_of():.1f} us{remarks}"
