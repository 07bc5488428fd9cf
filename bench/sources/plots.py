"""Draws what the sources were measured at, from its JSON file: `python -m bench.sources.plots`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from bench.plots import OURS, save

JSON = Path("out/bench/sources.json")


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
    return paths


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sources.plots", description=__doc__)
    parser.add_argument("--json", type=Path, default=JSON, help="what was measured")
    parser.add_argument("--out", type=Path, default=JSON.parent, help="the folder of the plots")
    options = parser.parse_args(arguments)
    measured = json.loads(options.json.read_text())
    print("\n".join(str(path) for path in draw(measured, options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
