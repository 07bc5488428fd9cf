"""Plots of what `bench.kernel_rows` and `bench.flink` have measured: `python -m bench.kernel_plots`.

Reads their JSON files, and writes `kernel.svg`: how many times as fast as its peer each row is, with the
target. And `growth.svg`: what an operation costs while others wait. Any process may call; matplotlib without
a display.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from bench.plots import BY_HAND, OURS, TARGET, plt, save

MISSED = BY_HAND
# Of the tables of the JSON files: what the peer is called.
PEERS = {"backends": "the mutex backend", "Flink": "Flink on Java", "PyFlink": "PyFlink"}


class Bar(NamedTuple):
    """A row of the plot."""

    label: str
    ratio: float
    target: float | None

    @property
    def missed(self) -> bool:
        return self.target is not None and self.ratio < self.target


def bars(content: dict[str, Any]) -> list[Bar]:
    """The rows of a JSON file that have a peer."""
    return [
        Bar(f"{row['name']}  |  {peer}", row["ratio"], row["target"])
        for table, peer in PEERS.items()
        for row in content.get(table, [])
    ]


def ratio_plot(rows: list[Bar], path: Path) -> None:
    """Times as fast as the peer, on a logarithmic scale; a row that misses its target is grey."""
    _, axes = plt.subplots(figsize=(9, 0.32 * len(rows) + 1.3))
    colours = [MISSED if row.missed else OURS for row in rows]
    drawn = axes.barh([row.label for row in rows], [row.ratio for row in rows], color=colours)
    axes.bar_label(drawn, [f"{row.ratio:.3g}" for row in rows], padding=4)
    for place, row in enumerate(rows):
        if row.target is not None:
            axes.vlines(row.target, place - 0.45, place + 0.45, color=TARGET, linewidth=2)
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.2, 3 * max(row.ratio for row in rows))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("times as fast as the peer, by medians; red: the target; grey: missed")
    save(axes, path)


def growth_plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Nanoseconds of an operation against how many wait, both logarithmic."""
    _, axes = plt.subplots(figsize=(9, 4.5))
    for row in rows:
        sizes = [int(size) for size in row["ns"]]
        axes.plot(sizes, list(row["ns"].values()), marker="o", markersize=3, label=row["name"])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("mails or records that wait")
    axes.set_ylabel("one operation, ns")
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    save(axes, path)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernel_plots", description=__doc__)
    parser.add_argument("--measured", type=Path, default=Path("out/bench"), help="where the JSON files are")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where the plots go")
    options = parser.parse_args(arguments)
    files = [options.measured / name for name in ("kernel_rows.json", "flink.json")]
    contents = [json.loads(file.read_text()) for file in files if file.exists()]
    if not contents:
        nothing = " nor ".join(map(str, files))
        parser.error(f"neither {nothing} is there: run bench.kernel_rows or bench.flink first")
    options.out.mkdir(parents=True, exist_ok=True)
    ratio_plot([bar for content in contents for bar in bars(content)], options.out / "kernel.svg")
    for content in contents:
        if "growth" in content:
            growth_plot(content["growth"], options.out / "growth.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
