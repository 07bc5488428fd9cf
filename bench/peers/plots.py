"""The plots of the comparison, as SVG files. Uses matplotlib without a display; one thread."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from bench.peers.contenders import PROJECT
from bench.peers.measure import Result
from bench.plots import BY_HAND, JVM, OURS, TARGET, save

PEER = "#8d7aa8"
"""Other systems; what is written by hand and Pillarbox have the colours of the other report."""


def colour(result: Result, peer: str) -> str:
    """The colour of a contender, in every plot."""
    return OURS if result.ours else BY_HAND if peer in PROJECT else PEER


def bars(results: list[Result], peers: dict[str, str], path: Path, target: float | None, title: str) -> None:
    """A bar a contender: share of the ceiling where there is one, otherwise rows a second."""
    shares = all(result.share is not None for result in results)
    results = sorted(results, key=lambda each: each.rate, reverse=True)
    _, axes = plt.subplots(figsize=(9, 0.36 * len(results) + 1.3))
    names = [_label(result) for result in results]
    values = [(result.share or 0.0) if shares else result.rate for result in results]
    axes.barh(names, values, color=[colour(result, peers[result.name]) for result in results])
    for row, (result, value) in enumerate(zip(results, values, strict=True)):
        low, high = result.spread
        scale = result.ceiling if shares and result.ceiling else 1.0
        axes.hlines(row, low / scale, high / scale, color="#333333", linewidth=1)
        text = f"{value:.1%}" if shares else f"{value:,.0f}"
        axes.text(max(value, high / scale), row, f" {text}", va="center", fontsize=8)
    if target is not None:
        axes.axvline(target, color=TARGET, linewidth=1.5)
    if shares:
        axes.set_xlim(0, 1.08)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("rows a second, share of capacity / mean latency")
    else:
        axes.set_xscale("log")
        axes.set_xlabel("rows a second")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [
        Patch(color=OURS, label="Pillarbox"),
        Patch(color=BY_HAND, label="by hand"),
        Patch(color=PEER, label="other systems"),
        Line2D([], [], color="#333333", linewidth=1, label="lowest to highest run"),
    ]
    if target is not None:
        handles.append(Line2D([], [], color=TARGET, linewidth=1.5, label="target"))
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, title=title)
    save(axes, path)


def cpu_bars(results: list[Result], peers: dict[str, str], path: Path) -> None:
    """CPU time a row of all processes, by kind."""
    results = sorted(results, key=lambda each: each.cpu_of())
    _, axes = plt.subplots(figsize=(9, 0.36 * len(results) + 1.3))
    names = [_label(result) for result in results]
    python = [result.cpu_of("python") for result in results]
    rest = [result.cpu_of("java", "other") for result in results]
    axes.barh(names, python, color=[colour(result, peers[result.name]) for result in results])
    labelled = axes.barh(names, rest, left=python, color=JVM)
    axes.bar_label(
        labelled, [f"{a + b:,.0f}" for a, b in zip(python, rest, strict=True)], padding=4, fontsize=8
    )
    axes.set_xlabel("CPU time a row, microseconds, all processes")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [Patch(color=OURS, label="Pillarbox"), Patch(color=BY_HAND, label="by hand")]
    handles += [Patch(color=PEER, label="other systems"), Patch(color=JVM, label="JVM and native processes")]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    save(axes, path)


def tail_plot(tail: list[Result], default: int, path: Path) -> None:
    """Rows a second in order against the reorder window, with one slow call in a hundred."""
    windows = sorted((result.reorder or default * result.capacity, result) for result in tail if result.ours)
    _, axes = plt.subplots(figsize=(7, 4))
    factors = [rows // result.capacity for rows, result in windows]
    axes.plot(factors, [result.rate for _, result in windows], marker="o", color=OURS, label="Pillarbox")
    for factor, (_, result) in zip(factors, windows, strict=True):
        axes.annotate(
            f"{result.rate:,.0f}", (factor, result.rate), (0, 8), textcoords="offset points", ha="center"
        )
    others = [result for result in tail if not result.ours]
    for result, style in zip(others, ("--", "-.", (0, (1, 2)), (0, (5, 5))), strict=False):
        axes.axhline(result.rate, color=PEER, linewidth=1, linestyle=style, label=result.name)
    ceiling = windows[0][1].ceiling
    if ceiling is not None:
        axes.axhline(ceiling, color="#333333", linewidth=1, linestyle=":", label="ceiling")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(factors, [f"{factor} x" for factor in factors])
    axes.set_xlabel("reorder window, in capacities")
    axes.set_ylabel("rows a second, in order")
    axes.legend(loc="center right", frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save(axes, path)


def memory_plot(samples: dict[str, list[tuple[float, float]]], path: Path) -> None:
    """Resident memory of the worker over the time of the job."""
    _, axes = plt.subplots(figsize=(8, 4))
    styles = ["-", "--", ":", "-."]
    ours = 0
    for name, sizes in samples.items():
        seconds, sizes_mb = zip(*sizes, strict=True)
        is_base = name == "identity"
        style = "-" if is_base else styles[ours % len(styles)]
        ours += not is_base
        axes.plot(seconds, sizes_mb, label=name, color=BY_HAND if is_base else OURS, linestyle=style)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the job began")
    axes.set_ylabel("resident memory of the Python worker, MB")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(axes, path)


def _label(result: Result) -> str:
    order = "in order" if result.ordered else "as finished"
    return f"{result.name}, {order}"
