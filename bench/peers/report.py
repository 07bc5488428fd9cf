"""The report of the comparison, as Markdown with plots. For one thread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import service
from bench.peers.contenders import CANNOT, CONTENDERS
from bench.peers.costs import Costs, growth, peak
from bench.peers.measure import Result
from bench.peers.plots import bars, cpu_bars, memory_plot, tail_plot
from bench.peers.targets import (
    SHARE,
    Verdict,
    cost_verdicts,
    memory_verdicts,
    order_of,
    tail_verdict,
    throughput_verdicts,
)
from pillarbox.aio.options import REORDER_FACTOR

PEER_OF = {contender.name: contender.peer for contender in CONTENDERS}


def verdicts(measured: dict[str, Any]) -> list[Verdict]:
    """All targets, in the order of the report."""
    return [
        *throughput_verdicts(results_of(measured, "throughput")),
        *cost_verdicts(measured.get("own", {}), measured.get("http", {})),
        tail_verdict(results_of(measured, "tail")),
        *memory_verdicts(measured.get("memory", {}), measured["sizes"]["memory"]),
    ]


def results_of(measured: dict[str, Any], part: str) -> list[Result]:
    """The results of one part of what was measured."""
    return [Result(**each) for each in measured.get(part, [])]


def report(measured: dict[str, Any], out: Path) -> str:
    """The report; writes the plots beside it."""
    throughput, tail = results_of(measured, "throughput"), results_of(measured, "tail")
    lines = [
        *_heading(measured),
        *_targets(verdicts(measured)),
        *_peers(throughput, out),
        *_tail(tail, out),
        *_costs("Calls that return at once", measured.get("own", {}), "CPU of the Python worker, us a row"),
        *_costs("HTTP on loopback", measured.get("http", {}), "CPU of the calling process, us a row"),
        *_memory(measured.get("memory", {}), out),
        *_cannot(),
        *_failed(throughput + tail, measured.get("failed", {})),
    ]
    return "\n".join(lines) + "\n"


def _heading(measured: dict[str, Any]) -> Iterator[str]:
    machine, sizes = measured["machine"], measured["sizes"]
    yield "# Pillarbox beside its peers"
    yield ""
    if measured["quick"]:
        yield "**Measured with `--quick`: few rows, one round. Rough.**"
        yield ""
    versions = ", ".join(sorted(set(measured["versions"].values())))
    yield f"Python {machine['python']}, {versions}; {machine['system']}, {machine['processors']} processors,"
    yield f"load {machine['load']:.1f} before the first job. {sizes['rounds']} rounds, interleaved; medians."
    yield ""
    yield (
        "The service of `bench/service.py`: log-normal latency, mean 20 ms, sigma 0.5, seeded per row; one "
        f"subtask. {sizes['256']:,} rows at 256 in flight, {sizes['1000']:,} at 1,000. Seconds are those "
        "from the first call to the last answer of the function, for all alike: start-up, planning and "
        "warm-up are not in them. CPU is that of all processes of the contender, less that of the same job "
        "with one row. Every answer is checked."
    )
    yield ""


def _targets(all_verdicts: list[Verdict]) -> Iterator[str]:
    yield "## Targets"
    yield ""
    yield "| work | measure | target | measured | |"
    yield "|---|---|---|---|---|"
    words = {True: "met", False: "**missed**", None: "not measured"}
    for verdict in all_verdicts:
        cells = (verdict.work, verdict.measure, verdict.target, verdict.measured, words[verdict.met])
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _peers(results: list[Result], out: Path) -> Iterator[str]:
    parts = [
        ("service", 256, "256 calls in flight"),
        ("service", 1_000, "1,000 calls in flight"),
        ("instant", 256, "Calls that return at once"),
    ]
    for workload, capacity, title in parts:
        part = [r for r in results if (r.workload, r.capacity) == (workload, capacity)]
        good = [result for result in part if result.failed is None and result.seconds]
        if not good:
            continue
        name = f"peers_{workload}_{capacity}"
        target = SHARE[False] if (workload, capacity) == ("service", 256) else None
        fair = [result for result in good if not result.remarks]
        bars(fair, PEER_OF, out / f"{name}.svg", target, title)
        cpu_bars(fair, PEER_OF, out / f"{name}_cpu.svg")
        yield f"## {title}"
        yield ""
        yield f"![rows a second]({name}.svg)"
        yield ""
        yield f"![CPU time a row]({name}_cpu.svg)"
        yield ""
        yield "| contender | order | rows/s | lowest to highest | share | CPU us/row | Python | job s | |"
        yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
        for result in sorted(good, key=lambda each: (each.ordered, -each.rate)):
            yield _line(result)
        yield ""
        if fair != good:
            yield "Contenders that did not do what was asked, as the last column says, are not in the plots."
            yield ""


def _line(result: Result) -> str:
    low, high = result.spread
    share = "" if result.share is None else f"{result.share:.1%}"
    cells = (
        result.name,
        order_of(result.ordered),
        f"{result.rate:,.0f}",
        f"{low:,.0f} to {high:,.0f}",
        share,
        f"{result.cpu_of():.1f}",
        f"{result.cpu_of('python'):.1f}",
        f"{statistics.median(result.job_seconds):.1f}",
        "; ".join(result.remarks),
    )
    return "| " + " | ".join(cells) + " |"


def _tail(tail: list[Result], out: Path) -> Iterator[str]:
    good = [result for result in tail if result.failed is None and result.seconds]
    if not any(result.ours for result in good):
        return
    tail_plot(good, REORDER_FACTOR, out / "peers_tail.svg")
    yield "## One call in a hundred takes 100 times the mean"
    yield ""
    yield f"In order, 256 calls in flight, {good[0].rows:,} rows."
    yield ""
    yield "![rows a second by reorder window](peers_tail.svg)"
    yield ""
    yield (
        "Ideal: a scheduler that takes no time, with the same window (`service.ideal`); for asyncio and "
        "PyFlink a window as large as the capacity."
    )
    yield ""
    yield "| contender | window | rows/s | lowest to highest | ideal | share of the ceiling |"
    yield "|---|--:|--:|--:|--:|--:|"
    for result in good:
        factor = REORDER_FACTOR if result.ours else 1
        if result.reorder is not None:
            factor = result.reorder // result.capacity
        window = f"{factor} x" + (" (default)" if result.ours and result.reorder is None else "")
        capacity = result.capacity
        ideal = service.ideal(result.rows, capacity, factor * capacity, service.tail_latency)
        low, high = result.spread
        share = f"{result.share:.1%}" if result.share is not None else ""
        # Ray puts back in order whatever has finished, without a bound.
        bounded = not result.name.startswith("Ray")
        best = f"{ideal:,.0f}" if bounded else ""
        told = f"| {result.rate:,.0f} | {low:,.0f} to {high:,.0f} | {best} | {share} |"
        yield f"| {result.name} | {window if bounded else 'none'} {told}"
    yield ""


def _costs(title: str, costs: Costs, measure: str) -> Iterator[str]:
    if not costs:
        return
    yield f"## {title}: what it costs"
    yield ""
    yield f"{measure}. The first line stands for itself, the others for what is above it in the same round."
    yield ""
    yield "| | median | lowest | highest |"
    yield "|---|--:|--:|--:|"
    for name, values in costs.items():
        if values:
            yield f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |"
    yield ""


def _memory(samples: dict[str, list[tuple[float, float]]], out: Path) -> Iterator[str]:
    if not samples:
        return
    memory_plot(samples, out / "peers_memory.svg")
    yield "## Memory"
    yield ""
    yield "![resident memory over time](peers_memory.svg)"
    yield ""
    yield "| job | peak MB | growth in the second half, MB | seconds |"
    yield "|---|--:|--:|--:|"
    for name, sizes in samples.items():
        yield f"| {name} | {peak(sizes):.0f} | {growth(sizes):+.0f} | {sizes[-1][0]:.0f} |"
    yield ""


def _cannot() -> Iterator[str]:
    yield "## What the peers cannot do"
    yield ""
    for peer, cannot in CANNOT.items():
        yield f"- *{peer}*: " + "; ".join(cannot) + "."
    yield ""


def _failed(results: list[Result], failed: dict[str, str]) -> Iterator[str]:
    reasons = {f"{r.name}, {r.workload}, {r.capacity:,}": r.failed for r in results if r.failed} | failed
    if not reasons:
        return
    yield "## What failed"
    yield ""
    for name, reason in reasons.items():
        yield f"- {name}: {reason}"
    yield ""
