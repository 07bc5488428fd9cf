"""The bar of `Progress` in a notebook: one output of HTML that is replaced. Needs IPython, no widgets.

Opened on the thread that runs the cell, so that the output stands below it; then used by one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.observe.words import parts
from pillarbox.spark.progress_display import mean_rate, rate_and_left

COLOURS = {"errors": "#c0392b", "retries": "#b7791f"}


class NotebookBar:
    """Label, bar, rows, and below it rate, calls in flight, retries, errors, cost, time that is left."""

    def __init__(self, label: str, total: int | None) -> None:
        import IPython.display

        # IPython is not typed throughout.
        display: Any = IPython.display.display
        self._label = label
        self._total = total
        self._shown = ""
        self._handle: Any = display(self._bundle(Totals(), "starting"), raw=True, display_id=True)

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the totals."""
        self._update(totals, *rate_and_left(totals, self._total, series))

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the last totals, with the mean rate."""
        self._update(totals, mean_rate(totals, series), None)

    def _update(self, totals: Totals, rate: float, remaining: float | None) -> None:
        said = " · ".join(
            f"<span style='color:{COLOURS[name]}'>{escape(text)}</span>"
            if name in COLOURS and getattr(totals, name)
            else escape(text)
            for name, text in parts(totals, rate, remaining)
        )
        bundle = self._bundle(totals, said)
        # A notebook keeps every message that it is sent: nothing new, no message.
        if bundle["text/html"] != self._shown:
            self._shown = bundle["text/html"]
            self._handle.update(bundle, raw=True)

    def _bundle(self, totals: Totals, said: str) -> dict[str, str]:
        of = "" if self._total is None else f"/{self._total:,}"
        rows = f"{totals.results:,}{of} rows"
        bar = ""
        if self._total is not None:
            done = min(totals.results / self._total, 1.0) if self._total else 1.0
            style = "style='width:24em;max-width:100%'"
            bar = f"<progress max='100' value='{done * 100:.1f}' {style}></progress> "
        html = (
            "<div style='font-family:sans-serif;font-variant-numeric:tabular-nums'>"
            f"<b>{escape(self._label)}</b> {bar}{rows}<br><small>{said}</small></div>"
        )
        return {"text/html": html, "text/plain": f"{self._label}: {rows}"}
