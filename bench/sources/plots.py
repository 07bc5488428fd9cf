"""Draws what the sources were measured at, from its JSON file: `python -m bench.sources.plots`.

`--drift docs/pictures/drift.svg` draws one of the plots to a place of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from bench.plots import BY_HAND, OURS, TARGET, save

JSON = Path("out/bench/sources.json")


def drift_plot(drift: dict[str, Any], path: Path) -> None:
    """The drift over time, with alignment and without, in micro-batches and in tasks."""
    runs = drift["runs"]
    places = ["micro-batches", "tasks"]
    figure, panels = plt.subplots(1, len(places), figsize=(10, 3.6), sharey=True)
    for place, axes in zip(places, panels, strict=True):
        for run in runs:
            if not run["where"].startswith(place):
                continue
            known = "known" in run["where"]
            colour = OURS if run["aligned"] else BY_HAND
            label = "not aligned" if not run["aligned"] else "aligned"
            if run["aligned"] and place == "micro-batches":
                label += ", positions known" if known else ", positions unknown"
            style = "--" if run["aligned"] and known else "-"
            axes.plot(run["seconds"], run["drift"], style, color=colour, label=label)
        held = [run for run in runs if run["aligned"] and run["where"].startswith(place)]
        limit = drift["max_drift"] + max((run["step"] for run in held), default=0.0)
        axes.axhline(limit, color=TARGET, linestyle=":", label="max_drift and the largest batch")
        axes.axhline(drift["max_drift"], color=TARGET, linestyle="-", linewidth=1, label="max_drift")
        axes.set_title(f"Spark, {place}" if place == "micro-batches" else "StreamTasks", fontsize=10)
        axes.set_xlabel("seconds since the first rows")
        axes.set_ylim(0, 5 * drift["max_drift"])
        axes.legend(loc="upper right", frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("fastest split ahead of the slowest,\nseconds of event time")
    figure.tight_layout()
    save(panels[0], path)


def ratio_plot(figures: list[dict[str, Any]], path: Path) -> None:
    """Rows a second, in those of what each is compared with; the median round, the lowest to the highest."""
    rows = [each for each in figures if each["unit"] == "rows/s" and each["ratios"]]
    _, axes = plt.subplots(figsize=(9, 0.34 * len(rows) + 1.2))
    names = [f"{each['name']}  |  {each['against']}" for each in rows]
    medians = [sorted(each["ratios"])[len(each["ratios"]) // 2] for each in rows]
    axes.barh(names, medians, color=OURS)
    for at, (each, median) in enumerate(zip(rows, medians, strict=True)):
        axes.hlines(at, min(each["ratios"]), max(each["ratios"]), color="#333333", linewidth=1)
        axes.text(max(each["ratios"]), at, f"  {median:.2f} x", va="center", fontsize=8)
    axes.axvline(1.0, color="#333333", linewidth=1, linestyle=":")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_xlabel("rows a second, times those of what stands to the right of the line")
    axes.spines[["top", "right", "left"]].set_visible(False)
    save(axes, path)


def draw(measured: dict[str, Any], folder: Path) -> list[Path]:
    """The plots of what was measured; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    if any(each["unit"] == "rows/s" and each["ratios"] for each in measured["figures"]):
        paths.append(folder / "sources_rates.svg")
        ratio_plot(measured["figures"], paths[-1])
    if measured.get("drift"):
        paths.append(folder / "sources_drift.svg")
        drift_plot(measured["drift"], paths[-1])
    return paths


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sources.plots", description=__doc__)
    parser.add_argument("--json", type=Path, default=JSON, help="what was measured")
    parser.add_argument("--out", type=Path, default=JSON.parent, help="the folder of the plots")
    parser.add_argument("--drift", type=Path, help="draw only the drift, to this file")
    options = parser.parse_args(arguments)
    measured = json.loads(options.json.read_text())
    if options.drift is None:
        print("\n".join(str(path) for path in draw(measured, options.out)))
        return 0
    if not measured.get("drift"):
        parser.error(f"{options.json} has no drift: python -m bench.sources drift")
    drift_plot(measured["drift"], options.drift)
    return 0


if __name__ == "__main__":
    sys.exit(main())
