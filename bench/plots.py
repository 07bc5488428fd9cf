"""The plots of the report, as SVG files. Uses matplotlib without a display; one thread."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from bench.throughput import TARGETS, Measured

OURS, BY_HAND, JVM, TARGET = "#1f6f8b", "#c4c8ce", "#e3c58d", "#b5482a"


def share_plot(results: list[Measured], path: Path) -> None:
    """Share of the ceiling, a bar a contender, with the lowest and the highest run, and the targets."""
    axes = _bars(results, [measured.share for measured in results])
    for row, measured in enumerate(results):
        axes.hlines(row, min(measured.shares), max(measured.shares), color="#333333", linewidth=1)
        axes.text(
            0.01, row, f"{measured.share:.1%}", va="center", color="white" if measured.ours else "black"
        )
        if measured.target is not None:
            axes.vlines(measured.target, row - 0.45, row + 0.45, color=TARGET, linewidth=2)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("rows a second, share of capacity / mean latency")
    spread = Line2D([], [], color="#333333", linewidth=1, label="lowest to highest run")
    _legend(axes, [spread, Line2D([], [], color=TARGET, linewidth=2, label="target")])
    save(axes, path)


def cpu_plot(results: list[Measured], path: Path) -> None:
    """CPU time a row, a bar a contender: the Python process that works, and the JVM."""
    python = [measured.python_cpu for measured in results]
    jvm = [measured.jvm_cpu for measured in results]
    totals = [a + b for a, b in zip(python, jvm, strict=True)]
    axes = _bars(results, python)
    bars = axes.barh([label(measured) for measured in results], jvm, left=python, color=JVM)
    parts = [f"{a:.1f} + {b:.1f}" if b else f"{a:.1f}" for a, b in zip(python, jvm, strict=True)]
    axes.bar_label(bars, parts, padding=6)
    axes.set_xlim(0, 1.2 * max(totals))
    axes.set_xlabel("CPU time a row, microseconds")
    _legend(axes, [Patch(color=JVM, label="JVM")])
    save(axes, path)


def window_plot(windows: dict[int, Measured], path: Path) -> None:
    """Share of the ceiling in order, against the reorder window in capacities."""
    _, axes = plt.subplots(figsize=(7, 4))
    factors = list(windows)
    shares = [measured.share for measured in windows.values()]
    axes.plot(factors, shares, marker="o", color=OURS)
    for factor, share in zip(factors, shares, strict=True):
        axes.annotate(f"{share:.1%}", (factor, share), (0, -16), textcoords="offset points", ha="center")
    axes.axhline(TARGETS[True], color=TARGET, linewidth=1, linestyle=":", label="target")
    axes.set_xscale("log", base=2)
    axes.set_xticks(factors, [f"{factor} x" for factor in factors])
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("reorder window, in capacities")
    axes.set_ylabel("share of the ceiling, in order")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(axes, path)


def label(measured: Measured) -> str:
    """The contender's name, with its surroundings where the name does not say them."""
    return f"Spark: {measured.name}" if measured.spark and not measured.ours else measured.name


def _bars(results: list[Measured], values: list[float]) -> Axes:
    _, axes = plt.subplots(figsize=(9, 0.4 * len(results) + 1.3))
    colours = [OURS if measured.ours else BY_HAND for measured in results]
    axes.barh([label(measured) for measured in results], values, color=colours)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return axes


def _legend(axes: Axes, more: list[Line2D] | list[Patch]) -> None:
    handles = [Patch(color=OURS, label="Pillarbox"), Patch(color=BY_HAND, label="by hand"), *more]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        frameon=False,
        borderpad=0,
    )


def save(axes: Axes, path: Path) -> None:
    """Write the figure of these axes, as the kind of file that the path names, and forget it."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, bbox_inches="tight")
    plt.close("all")
