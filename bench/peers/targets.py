"""The targets of the comparison, and whether what was measured meets them. Pure: any thread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.peers.costs import Costs, growth, peak
from bench.peers.measure import Result

SPARK_MAP = "pillarbox.spark.async_map"
BY_HAND = "Spark: sliding window by hand"
FLINK = ("PyFlink, defaults", "PyFlink, large bundles")
AHEAD_OF = ("Spark: gather", "Spark: thread pool", "Daft", "Pathway", "Ray Data")

SHARE = {False: 0.94, True: 0.92}
WINDOW_TIMES = 1.3
OWN_US = 8.0
BATCHED_US = 4.0
FLINK_TIMES = 2.0
FLINK_CPU = 0.1
HTTP_US = 10.0
TAIL_TIMES = 5.0
MEMORY_MB = 200.0
FLAT_MB = 20.0
"""Growth in the second half of a run that is still called flat."""


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured. met: None where it could not be measured."""

    work: str
    measure: str
    target: str
    measured: str
    met: bool | None


def order_of(ordered: bool) -> str:
    """The word for an order."""
    return "in order" if ordered else "as finished"


def find(
    results: list[Result], name: str, workload: str, ordered: bool, capacity: int = 256
) -> Result | None:
    """The result of a contender, if it was measured."""
    for result in results:
        asked = (result.name, result.workload, result.ordered, result.capacity)
        if asked == (name, workload, ordered, capacity) and result.failed is None and result.seconds:
            return result
    return None


def throughput_verdicts(results: list[Result]) -> Iterator[Verdict]:
    """Those of the service and of the one that answers at once."""
    for ordered, least in SHARE.items():
        ours = find(results, SPARK_MAP, "service", ordered)
        share = None if ours is None else ours.share
        yield Verdict(
            f"capacity 256, one partition, {order_of(ordered)}",
            "share of capacity / mean latency",
            f"{least:.0%}",
            "not measured" if share is None else f"{share:.1%}",
            None if share is None else share >= least,
        )
    yield _times(
        "capacity 1,000, as finished",
        "rows/s against the sliding window by hand",
        find(results, SPARK_MAP, "service", False, 1_000),
        find(results, BY_HAND, "service", False, 1_000),
        WINDOW_TIMES,
    )
    yield from _flink(results)
    yield from _ahead(results)


def _times(work: str, measure: str, ours: Result | None, theirs: Result | None, least: float) -> Verdict:
    if ours is None or theirs is None:
        return Verdict(work, measure, f"{least:g} x", "not measured", None)
    times = ours.rate / theirs.rate
    told = f"{times:.2f} x: {ours.rate:,.0f} against {theirs.rate:,.0f}"
    return Verdict(work, measure, f"{least:g} x", told, times >= least)


def _flink(results: list[Result]) -> Iterator[Verdict]:
    for ordered in (False, True):
        work = f"service that returns at once, {order_of(ordered)}, against PyFlink"
        ours = find(results, SPARK_MAP, "instant", ordered)
        found = [find(results, name, "instant", ordered) for name in FLINK]
        theirs = [each for each in found if each is not None]
        fastest = max(theirs, key=lambda each: each.rate, default=None)
        yield _times(work, "rows/s", ours, fastest, FLINK_TIMES)
        least = min(theirs, key=lambda each: each.cpu_of(), default=None)
        if ours is None or least is None:
            yield Verdict(work, "CPU a row, all processes", f"{FLINK_CPU:g} x", "not measured", None)
            continue
        part = ours.cpu_of() / least.cpu_of()
        told = f"{part:.3f} x: {ours.cpu_of():.1f} us against {least.cpu_of():.1f} us"
        yield Verdict(work, "CPU a row, all processes", f"{FLINK_CPU:g} x", told, part <= FLINK_CPU)


def _ahead(results: list[Result]) -> Iterator[Verdict]:
    for capacity in (256, 1_000):
        behind, told = [], []
        for theirs in results:
            if not (theirs.name.startswith(AHEAD_OF) and theirs.workload == "service"):
                continue
            if theirs.capacity != capacity or theirs.failed or not theirs.seconds:
                continue
            ours = find(results, SPARK_MAP, "service", theirs.ordered, capacity)
            if ours is None:
                continue
            if theirs.found.get("most", 0) > capacity:
                told.append(f"{theirs.name} breaks the limit")
                continue
            times = ours.rate / theirs.rate
            told.append(f"{theirs.name} {times:.2f}")
            if times <= 1:
                behind.append(theirs.name)
        yield Verdict(
            f"against gather, thread pool, Daft, Pathway, Ray Data at {capacity:,}",
            "rows/s, times each",
            "ahead of each",
            "; ".join(told) or "not measured",
            not behind if told else None,
        )


def tail_verdict(tail: list[Result]) -> Verdict:
    """Default window against one as large as the capacity, where one call in a hundred is slow."""
    windows = {result.reorder: result for result in tail if result.ours and result.seconds}
    return _times(
        "1 % of calls take 100 x the mean, in order",
        "rows/s against reorder = capacity",
        windows.get(None),
        windows.get(256),
        TAIL_TIMES,
    )


def cost_verdicts(own: Costs, http: Costs) -> Iterator[Verdict]:
    """CPU of the operator itself."""
    rows = (
        ("async_map, as finished", OWN_US),
        ("async_map, in order", OWN_US),
        ("async_map, Batch(64)", BATCHED_US),
        ("async_map, Batch(64), in order", BATCHED_US),
    )
    for name, most in rows:
        yield _at_most(
            "service that returns at once: " + name, "us a row, Python worker", own.get(name), most
        )
    for name in http:
        if name != "aiohttp, fixed workers":
            yield _at_most("HTTP on loopback: " + name, "us a row above the bare client", http[name], HTTP_US)


def _at_most(work: str, measure: str, costs: list[float] | None, most: float) -> Verdict:
    if not costs:
        return Verdict(work, measure, f"{most:g} us", "not measured", None)
    median = statistics.median(costs)
    told = f"{median:.1f} us ({min(costs):.1f} to {max(costs):.1f})"
    return Verdict(work, measure, f"{most:g} us", told, median <= most)


def memory_verdicts(samples: dict[str, list[tuple[float, float]]], rows: int) -> Iterator[Verdict]:
    """Memory of the worker above that of the identity job."""
    base = samples.get("identity")
    for name, sizes in samples.items():
        if base is None or name == "identity":
            continue
        above, more = peak(sizes) - peak(base), growth(sizes)
        yield Verdict(
            f"memory, {rows:,} rows: {name}",
            "peak above the identity job's",
            f"{MEMORY_MB:g} MB, flat",
            f"{above:.0f} MB, {more:+.0f} MB in the second half",
            above <= MEMORY_MB and more <= FLAT_MB,
        )
