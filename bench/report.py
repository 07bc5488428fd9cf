"""Measures everything and writes a report with plots: `make bench`, or `python -m bench.report`.

Runs the throughput comparison and the suite of the operator, each in a process of its
own, then writes `report.md` and its plots into `out/bench`. `--reuse` writes the report anew from what was
measured before.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.contenders import WINDOW_FACTORS
from bench.plots import cpu_plot, label, share_plot, window_plot
from bench.throughput import Measured

SUITES = ("bench/test_operator_bench.py",)
PACKAGES = ("pillarbox", "pyspark", "pyarrow", "pandas")


def measure(out: Path, throughput: list[str]) -> None:
    """Run the comparison and the suites; their figures go to JSON files in `out`."""
    python = sys.executable
    comparison = [
        python,
        "-m",
        "bench.throughput",
        "--windows",
        "--json",
        str(out / "throughput.json"),
    ]
    subprocess.run([*comparison, *throughput], check=True)
    suites = [
        python,
        "-m",
        "pytest",
        *SUITES,
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    subprocess.run(
        [
            *suites,
            "--benchmark-columns=median,iqr",
            f"--benchmark-json={out / 'suites.json'}",
        ],
        check=True,
    )


def report(throughput: dict[str, Any], suites: dict[str, Any], out: Path) -> str:
    """The report as Markdown; writes the plots beside it."""
    results = [Measured(**measured) for measured in throughput["contenders"]]
    windows = dict(
        zip(
            WINDOW_FACTORS,
            [Measured(**each) for each in throughput["windows"]],
            strict=True,
        )
    )
    share_plot(results, out / "share.svg")
    cpu_plot(results, out / "cpu.svg")
    window_plot(windows, out / "window.svg")
    return "\n".join(
        [
            *_heading(throughput),
            *_comparison(results),
            *_windows(windows),
            *_suites(suites),
            "",
        ]
    )


def _heading(throughput: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    yield "# Measured"
    yield ""
    yield f"Python {platform.python_version()}, {versions}; {platform.system()} on {platform.machine()}."
    yield ""
    yield (
        f"One job: {throughput['rows']:,} rows, one subtask, {throughput['capacity']} calls in flight to a "
        f"simulated service with log-normal latency (mean {throughput['mean_latency'] * 1000:g} ms, sigma "
        f"{throughput['sigma']:g}, seeded per row). Ceiling: {throughput['ceiling']:,.0f} rows/s. Medians of "
        f"{throughput['repeat']} interleaved runs, timed from the call to the last answer."
    )
    if throughput["spark_seconds_without_calls"] is not None:
        seconds = throughput["spark_seconds_without_calls"]
        yield f"Spark takes {seconds:.2f} s for a job of one row without a call; that is taken off."
    yield ""


def _comparison(results: list[Measured]) -> Iterator[str]:
    yield "## Throughput"
    yield ""
    yield "![share of the ceiling](share.svg)"
    yield ""
    yield "| contender | order | rows/s | share | lowest to highest | Python us | JVM us | others | target |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    for measured in results:
        target = ""
        if measured.target is not None:
            target = f"{measured.target:.0%} {'reached' if measured.passed else '**missed**'}"
        order = "in order" if measured.ordered else "as finished"
        spread = f"{min(measured.shares):.1%} to {max(measured.shares):.1%}"
        jvm = f"{measured.jvm_cpu:.1f}" if measured.spark else ""
        yield (
            f"| {label(measured)} | {order} | {measured.rate:,.0f} | {measured.share:.1%} | {spread} "
            f"| {measured.python_cpu:.1f} | {jvm} | {measured.others_cores:.1f} | {target} |"
        )
    yield ""
    yield "Others: cores of the machine that were busy with something else. 0 is best."
    yield ""
    yield "## CPU time"
    yield ""
    yield "![CPU time a row](cpu.svg)"
    yield ""
    yield "User and system time a row of the process that makes the calls, and of the JVM."
    yield ""


def _windows(windows: dict[int, Measured]) -> Iterator[str]:
    yield "## Reorder window"
    yield ""
    yield "![share by reorder window](window.svg)"
    yield ""
    yield "| window | rows/s | share |"
    yield "|--:|--:|--:|"
    for factor, measured in windows.items():
        yield f"| {factor} x capacity | {measured.rate:,.0f} | {measured.share:.1%} |"
    yield ""


def _suites(suites: dict[str, Any]) -> Iterator[str]:
    yield "## Primitives"
    yield ""
    yield "Median time of one operation, and the spread (interquartile range) of the rounds."
    groups: dict[str, list[dict[str, Any]]] = {}
    for benchmark in suites["benchmarks"]:
        groups.setdefault(benchmark["group"], []).append(benchmark)
    for group, benchmarks in groups.items():
        yield ""
        yield f"### {group[0].upper()}{group[1:]}"
        yield ""
        yield "| | ns | spread |"
        yield "|---|--:|--:|"
        for benchmark in sorted(benchmarks, key=lambda each: each["stats"]["median"]):
            operations = benchmark["extra_info"]["operations"]
            median, spread = (benchmark["stats"][key] / operations * 1e9 for key in ("median", "iqr"))
            name = benchmark["name"].removeprefix("test_").replace("_", " ")
            yield f"| {name} | {median:,.0f} | {spread:,.0f} |"


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for the report")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="measure nothing, use the figures that are there",
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--capacity", type=int, default=256, help="calls in flight")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contender")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.reuse:
        sizes = {
            "--rows": options.rows,
            "--capacity": options.capacity,
            "--repeat": options.repeat,
        }
        measure(options.out, [f"{name}={value}" for name, value in sizes.items()])
    throughput = json.loads((options.out / "throughput.json").read_text())
    suites = json.loads((options.out / "suites.json").read_text())
    path = options.out / "report.md"
    path.write_text(report(throughput, suites, options.out))
    print(f"the report: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
