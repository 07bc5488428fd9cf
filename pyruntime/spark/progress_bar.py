"""The live bar of `Progress`, drawn by rich. Imported only where a bar is shown; used by one thread."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pillarbox.spark.progress import ProgressTotals


class Bar:
    """One line: label, bar, rows, rate, calls in flight, retries, errors, time."""

    def __init__(self, label: str, total: int | None, file: TextIO) -> None:
        self._of = "" if total is None else f"/{total:,}"
        # Columns that may not be cut stand as one text; the bar takes what is left of 80 columns.
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=Console(file=file, force_terminal=True),
            expand=True,
        )
        self._task = self._progress.add_task(label, total=total, counts="starting")
        self._rate = 0.0
        self._last = (0.0, 0)
        self._progress.start()

    def show(self, totals: ProgressTotals) -> None:
        """Draw the counts."""
        seconds, results = self._last
        passed = totals.seconds - seconds
        if passed >= 1.0:
            self._rate = (totals.results - results) / passed
            self._last = (totals.seconds, totals.results)
        counts = (
            f"{totals.results:,}{self._of} [green]{self._rate:,.0f}/s[/] "
            f"[cyan]{totals.in_flight} in flight[/] "
            f"[yellow]{totals.retries:,} retries[/] [red]{totals.errors:,} errors[/]"
        )
        self._progress.update(self._task, completed=totals.results, counts=counts)

    def close(self, totals: ProgressTotals) -> None:
        """Draw the last counts, with the mean rate, and leave the line as it is."""
        self._rate = totals.results / totals.seconds if totals.seconds else 0.0
        self._last = (totals.seconds, totals.results)
        self.show(totals)
        self._progress.stop()
