"""The bar of `Progress` in a terminal, drawn by rich. Imported only where it is shown; for one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.observe.words import parts
from pillarbox.spark.progress_display import mean_rate, rate_and_left

COLOURS = {"rate": "green", "in_flight": "cyan", "retries": "yellow", "errors": "red", "cost": "magenta"}


class Bar:
    """Two lines: label, bar, rows, rate, time; calls in flight, retries, errors, cost, time that is left."""

    def __init__(self, label: str, total: int | None, file: TextIO) -> None:
        self._total = total
        self._of = "" if total is None else f"/{total:,}"
        # What may not be cut stands in two lines, so that 80 columns do; the bar takes what is left.
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=Console(file=file, force_terminal=True),
            expand=True,
        )
        self._task = self._progress.add_task(escape(label), total=total, counts="starting")
        self._progress.start()

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Draw the totals."""
        self._draw(totals, *rate_and_left(totals, self._total, series))

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Draw the last totals, with the mean rate, and leave the line as it is."""
        self._draw(totals, mean_rate(totals, series), None)
        self._progress.stop()

    def _draw(self, totals: Totals, rate: float, remaining: float | None) -> None:
        first, *others = (
            f"[{COLOURS[name]}]{text}[/]" if name in COLOURS else text
            for name, text in parts(totals, rate, remaining)
        )
        counts = f"{totals.results:,}{self._of} {first}\n{' '.join(others)}"
        self._progress.update(self._task, completed=totals.results, counts=counts, refresh=True)
