"""The plot of what `bench.kernel` has measured: a panel for each scenario, a bar for each contender."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plots import BY_HAND, OURS, plt

ACROSS = 3


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Medians, with a line from the tenth to the ninetieth percentile. Nothing where nothing was measured."""
    panels = [(result, [told for told in result["contenders"] if "median" in told]) for result in results]
    panels = [(result, contenders) for result, contenders in panels if contenders]
    if not panels:
        return
    down = -(-len(panels) // ACROSS)
    figure, grid = plt.subplots(down, ACROSS, figsize=(6 * ACROSS, 2.4 * down), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (result, contenders) in zip(grid.flat, panels, strict=False):
        names = [told["name"] for told in contenders]
        colours = [OURS if name.startswith("Pillarbox") else BY_HAND for name in names]
        bars = axes.barh(names, [told["median"] for told in contenders], color=colours)
        axes.bar_label(bars, [f"{told['median']:,.3g}" for told in contenders], padding=4, fontsize=7)
        for place, told in enumerate(contenders):
            axes.hlines(place, told["lower"], told["upper"], color="#333333", linewidth=1)
        axes.set_title(f"{result['name']}, {result['unit']}", fontsize=8, loc="left")
        axes.margins(x=0.2)
        axes.invert_yaxis()
        axes.tick_params(labelsize=7, length=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
