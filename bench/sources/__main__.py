"""The cost of the sources beside code written by hand: `python -m bench.sources [PART ...]`.

Parts: files, folders, redis, kafka, micro-batches, splits, or all. The table goes to stdout; it, and
all rounds, to out/bench/sources.json, where the parts that were not measured stay as they were; plots beside
it. A part whose server cannot be had is left out, and that is said. With `--check` the exit code is 1 when a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.sources.measure import ACKNOWLEDGEMENTS, Effort, Figure
from bench.table import Column, print_table

CORES = {"files": 1, "folders": 2, "redis": 1, "kafka": 1, "micro-batches": 2, "splits": 2}
"""The parts, and how many cores Spark has in each."""
MODULES = {
    "files": "files",
    "folders": "folders",
    "redis": "redis_streams",
    "kafka": "kafka_topics",
    "micro-batches": "micro_batches",
    "splits": "splits",
}


DIGITS = {"s": 2, ACKNOWLEDGEMENTS: 1}
"""Decimal places of a unit that has any."""


def measure(part: str, spark: Any, folder: Path, effort: Effort) -> list[Figure]:
    """The figures of a part."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    module = import_module(f"bench.sources.{MODULES[part]}")
    found: list[Figure] = module.measure(spark, folder, effort, say)
    return found


def jars(part: str) -> list[Path]:
    """The jars that Spark needs for a part besides its own; skips the part where they cannot be had."""
    if part != "kafka":
        return []
    from bench.sources.kafka_topics import spark_jars

    return spark_jars()


def run(parts: Sequence[str], effort: Effort, path: Path) -> dict[str, Any]:
    """Measure the parts; gives what the JSON file holds then."""
    import pytest

    from bench.sources.session import session

    for part in parts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                with session(CORES[part], folder, jars(part)) as spark:
                    figures = measure(part, spark, folder / "part", effort)
            except pytest.skip.Exception as reason:
                print(f"{part} is left out: {reason}", file=sys.stderr)
                continue
        kept = json.loads(path.read_text()) if path.exists() else {"figures": []}
        others = [each for each in kept["figures"] if each["part"] != part]
        added = [{**asdict(each), "size": effort.size, "load": os.getloadavg()[0]} for each in figures]
        order = list(CORES)
        kept["figures"] = sorted(others + added, key=lambda each: order.index(each["part"]))
        kept |= {"python": platform.python_version(), "cores": os.cpu_count()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1) + "\n")
    return dict(json.loads(path.read_text())) if path.exists() else {"figures": []}


def show(figures: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    columns = [Column("part", right=False), Column("what", right=False), Column("median"), Column("rounds")]
    columns += [Column("unit", right=False), Column("a core"), Column("against", right=False)]
    columns += [Column("ratio"), Column("rounds"), Column("a core"), Column("target", right=False)]
    print_table(columns, [_cells(figure) for figure in figures])


def _cells(figure: dict[str, Any]) -> list[str]:
    verdict = {None: "", True: " reached", False: " MISSED"}[figure["met"]]
    ratios, cores = figure["ratios"], figure["core_ratios"]
    digits = DIGITS.get(figure["unit"], 0)
    return [
        figure["part"],
        figure["name"],
        f"{statistics.median(figure['values']):,.{digits}f}",
        _spread(figure["values"], digits),
        figure["unit"],
        f"{statistics.median(figure['per_core']):,.0f}" if figure["per_core"] else "",
        figure["against"],
        f"{statistics.median(ratios):.2f} x" if ratios else "",
        _spread(ratios, 2),
        f"{statistics.median(cores):.2f} x" if cores else "",
        figure["target"] + verdict,
    ]


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}" if len(values) > 1 else ""


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sources", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*CORES, "all"], metavar="PART", default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=float, default=1.0, help="times as many rows; 0.1 for a look")
    parser.add_argument("--json", type=Path, default=Path("out/bench/sources.json"))
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    if not 0 < options.size <= 100:
        parser.error(f"--size {options.size}: must be above 0, at most 100")
    parts = list(CORES) if not options.parts or "all" in options.parts else options.parts
    measured = run(parts, Effort(options.rounds, options.size), options.json)
    figures = [figure for figure in measured["figures"] if figure["part"] in parts]
    show(figures)
    try:
        from bench.sources.plots import draw
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
    else:
        for path in draw(measured, options.json.parent):
            print(path, file=sys.stderr)
    missed = [figure["name"] for figure in figures if figure["met"] is False]
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
