"""Which display a `Progress` has: a bar in a notebook, a bar in a terminal, or lines of text.

Opened on the driver's thread that begins the job, used by the thread that reads the totals.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.observe.words import left, number, parts, rate_of_late

LINE_INTERVAL = 5.0
"""Seconds between two lines where the output is no terminal."""


class Display(Protocol):
    """Shows totals to a person. One thread at a time."""

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the totals, and what follows from how they went."""

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the last totals, and leave them there."""


def open_display(label: str, total: int | None, bar: bool | None, file: TextIO | None) -> Display:
    """The display for these options of `Progress`. Raises ImportError for a bar without `rich`."""
    if file is None and bar is not False and in_notebook():
        from pillarbox.spark.progress_notebook import NotebookBar

        return NotebookBar(label, total)
    file = sys.stderr if file is None else file
    wanted = file.isatty() if bar is None else bar
    if wanted:
        try:
            from pillarbox.spark.progress_bar import Bar
        except ImportError:
            if bar:
                raise ImportError(
                    "bar=True: needs the package rich (pip install 'pillarbox[progress]')"
                ) from None
        else:
            return Bar(label, total, file)
    return Lines(label, total, file)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # Where IPython runs it has been imported; importing it here would cost every script half a second.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def rate_and_left(totals: Totals, total: int | None, series: Sequence[Point]) -> tuple[float, float | None]:
    """Rows a second of late, and seconds until all are done."""
    rate = rate_of_late(series)
    return rate, left(totals, total, rate)


def mean_rate(totals: Totals, series: Sequence[Point]) -> float:
    """Rows a second over the whole time: what counts at the end."""
    seconds = series[-1].seconds if series else 0.0
    return totals.results / seconds if seconds else 0.0


class Lines:
    """Progress as lines of text, for logs."""

    def __init__(self, label: str, total: int | None, file: TextIO) -> None:
        self._label = label
        self._total = total
        self._of = "" if total is None else f"/{number(total)}"
        self._file = file
        self._next = time.monotonic() + LINE_INTERVAL

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_INTERVAL
            self._line(totals, *rate_and_left(totals, self._total, series))

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Print the last line, with the mean rate."""
        self._line(totals, mean_rate(totals, series), None)

    def _line(self, totals: Totals, rate: float, remaining: float | None) -> None:
        said = ", ".join(text for _, text in parts(totals, rate, remaining))
        print(f"{self._label}: {totals.results:,}{self._of} rows, {said}", file=self._file, flush=True)
