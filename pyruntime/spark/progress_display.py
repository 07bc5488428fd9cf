"""The displays of `Progress`: a bar in a terminal, a bar in a notebook, lines of text for logs.

Opened on the driver's thread that begins the job, used by the thread that reads the totals. rich and IPython
are imported only where they show something.
"""

# Three displays of the same words. rich draws notebooks too, but by way of a console that is rendered to HTML
# anew for each frame, and with widgets that many hosts of notebooks do not show; one output of plain HTML
# that is replaced works in all of them. Lines are for logs, where a bar would leave a line for each of its
# frames.

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Any, TextIO

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.totals import Totals, number, seconds

LINE_INTERVAL_S = 5.0
"""Seconds between two lines where the output is not a terminal."""

RATE_WINDOW_S = 10.0
"""Seconds over which the rate of late is taken."""

COLOURS = {"errors": "#c0392b", "retries": "#b7791f"}
"""Colours of what went wrong, in terminals and notebooks, light and dark."""


def recent_rate(points: Sequence[Point], window: float = RATE_WINDOW_S) -> float:
    """Rows a second over the last `window` seconds of the points; 0 where there are fewer than two."""
    if len(points) < 2:
        return 0.0
    last = points[-1]
    first = next(each for each in points if each.seconds >= last.seconds - window or each is points[-2])
    passed = last.seconds - first.seconds
    # Rows may go back, when a task runs again.
    return max(last.results - first.results, 0) / passed if passed > 0 else 0.0


class Display:
    """The base of displays: shows totals to a person. One thread at a time."""

    def __init__(self, label: str, total: int | None) -> None:
        self.label = label
        self.total = total

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the totals, the rate of late, and the time that is left."""
        rate = recent_rate(series)
        remaining = None
        if self.total is not None and totals.in_flight and rate > 0 and totals.results <= self.total:
            remaining = max(round((self.total - totals.results) / rate), 1)
        self.draw(totals, self.words(totals, rate, remaining))

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the last totals with the mean rate, which counts at the end, and leave them there."""
        elapsed = series[-1].seconds if series else 0.0
        self.draw(totals, self.words(totals, totals.results / elapsed if elapsed else 0.0, None))

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Show these words beside the rows, the rate first."""
        raise NotImplementedError

    def rows(self, totals: Totals) -> str:
        """The rows that are done, and of how many."""
        return f"{totals.results:,}" if self.total is None else f"{totals.results:,}/{self.total:,}"

    def words(self, totals: Totals, rate: float, remaining: float | None) -> list[str]:
        """The words of a display besides the rows. remaining: seconds until all are done, if known."""
        of = f"/{totals.capacity:,}" if totals.capacity else ""
        bad = [
            self.coloured(f"{value:,} {name}", COLOURS[name]) if value else f"0 {name}"
            for name, value in (("retries", totals.retries), ("errors", totals.errors))
        ]
        cost = [f"cost {number(totals.cost)}"] if totals.cost else []
        left = [] if remaining is None else [f"{seconds(remaining)} left"]
        return [f"{rate:,.0f} rows/s", f"{totals.in_flight:,}{of} in flight", *bad, *cost, *left]

    def coloured(self, text: str, colour: str) -> str:
        """The text in this colour, where there are colours."""
        return text


class Lines(Display):
    """Progress as lines of text, for logs."""

    def __init__(self, label: str, total: int | None, file: TextIO) -> None:
        super().__init__(label, total)
        self._file = file
        self._next = time.monotonic() + LINE_INTERVAL_S

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_INTERVAL_S
            super().show(totals, series)

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Print a line."""
        print(f"{self.label}: {self.rows(totals)} rows, {', '.join(words)}", file=self._file, flush=True)


class Bar(Display):
    """Two lines: label, bar, rows, rate, time; calls in flight, retries, errors, cost, time that is left."""

    def __init__(self, label: str, total: int | None, file: TextIO) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__(label, total)
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

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Draw the bar anew."""
        rate, *others = words
        text = f"{self.rows(totals)} [green]{rate}[/]\n{' '.join(others)}"
        self._progress.update(self._task, completed=totals.results, counts=text, refresh=True)

    def coloured(self, text: str, colour: str) -> str:
        """See `Display`."""
        return f"[{colour}]{text}[/]"

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Draw the last totals, and give the terminal back."""
        super().close(totals, series)
        self._progress.stop()


class NotebookBar(Display):
    """One output of HTML that is replaced, below the cell that opened it. Needs IPython, no widgets."""

    def __init__(self, label: str, total: int | None) -> None:
        import IPython.display

        super().__init__(label, total)
        # IPython is not typed throughout.
        display: Any = IPython.display.display
        self._shown = self._bundle(Totals(), ["starting"])
        self._handle: Any = display(self._shown, raw=True, display_id=True)

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Replace the output."""
        bundle = self._bundle(totals, words)
        # A notebook keeps every message that it is sent: nothing new, no message.
        if bundle != self._shown:
            self._shown = bundle
            self._handle.update(bundle, raw=True)

    def coloured(self, text: str, colour: str) -> str:
        """See `Display`."""
        return f"<span style='color:{colour}'>{text}</span>"

    def _bundle(self, totals: Totals, words: Sequence[str]) -> dict[str, str]:
        bar = ""
        if self.total is not None:
            share = min(totals.results / self.total, 1.0) if self.total else 1.0
            style = "style='width:24em;max-width:100%'"
            bar = f"<progress max='100' value='{share * 100:.1f}' {style}></progress> "
        html = (
            "<div style='font-family:sans-serif;font-variant-numeric:tabular-nums'><b>"
            f"{escape(self.label)}</b> {bar}{self.rows(totals)} rows<br>"
            f"<small>{' · '.join(words)}</small></div>"
        )
        return {"text/html": html, "text/plain": f"{self.label}: {self.rows(totals)} rows"}


def open_display(label: str, total: int | None, bar: bool | None, file: TextIO | None) -> Display:
    """The display for these options of `Progress`. Raises ImportError for a bar without `rich`."""
    # Where IPython runs it has been imported; importing it here would cost every script half a second.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if file is None and bar is not False and getattr(shell, "kernel", None) is not None:
        return NotebookBar(label, total)
    file = sys.stderr if file is None else file
    if bar or (bar is None and file.isatty()):
        try:
            return Bar(label, total, file)
        except ImportError:
            if bar:
                raise ImportError(
                    "bar=True: needs the package rich (pip install 'pillarbox[progress]')"
                ) from None
    return Lines(label, total, file)
