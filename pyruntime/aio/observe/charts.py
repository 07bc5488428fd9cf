"""The charts of the report, as SVG drawn by matplotlib: `draw_charts`. For any thread."""

# Two things that matplotlib cannot do are done around it. Colours: each is drawn as that of the light theme,
# and its text in the SVG is then replaced by the name of a variable, to which the style sheet gives a value
# for both themes. Tips: the plot's place within the drawing is fixed in pixels, so that the template can lay
# areas over it which show their words while the pointer is above them. One drawing that scales would have
# letters too small to read on a telephone: so each chart is drawn twice, and the page shows what fits.

from __future__ import annotations

import io
import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

from pillarbox.aio.observe.formatting import number, seconds
from pillarbox.aio.observe.series import Interval, Point, intervals
from pillarbox.aio.observe.totals import SPENT, Totals
from pillarbox.mailbox.metrics import BOUNDS_S, LatencySnapshot

WIDE_PX, NARROW_PX = 1040, 352
MAX_INTERVALS = {WIDE_PX: 120, NARROW_PX: 40}
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 52, 12, 26, 26
"""Room around the plot."""
LABEL_PX = 60
"""Room for a label of the horizontal axis, at most."""
TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)

COLOURS = {
    "ink": ("#1b2430", "#e4e8ee"),
    "soft": ("#5a6573", "#9aa5b3"),
    "line": ("#e2e6eb", "#2d3540"),
    "limit": ("#b4471f", "#ee9365"),
    "allowed": ("#7d4fb0", "#bf9bea"),
    "calls": ("#2c6cb4", "#6ba7e8"),
    "loop": ("#a3563c", "#c9805f"),
    "input": ("#b4bcc7", "#566170"),
    "order": ("#e39a2d", "#dd9a3e"),
    "output": ("#8b68b5", "#a283cc"),
    "rate": ("#c8524a", "#d96a61"),
    "retry": ("#d8bd3f", "#cfb64a"),
    "ledger": ("#3f9484", "#5fb0a0"),
    "end": ("#6d7886", "#8793a3"),
}
"""Colours of the light and of the dark theme, each of them once; those of `SPENT` have its names."""
LIGHT = {name: light for name, (light, _) in COLOURS.items()}

DASHED = (0, (3, 2))
DOTTED = (0, (1, 3))

SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "pillarbox", "font.size": 12}
"""Text stays text, and equal drawings are equal texts."""

# The settings of matplotlib are the process's.
_drawing = threading.Lock()


class Tip(NamedTuple):
    """The words that show while the pointer is above an area: shares of the drawing's width."""

    left: float
    width: float
    lines: list[str]


class Chart(NamedTuple):
    """A chart at one width in pixels."""

    width: int
    svg: Markup
    tips: list[Tip]


class _Drawing:
    """A figure with one plot, whose unit is the pixel."""

    def __init__(self, width: int, height: int, axis: str) -> None:
        self.width, self.height = width, height
        # 72 dots an inch, as SVG counts: a point is a pixel.
        self.figure = Figure((width / 72, height / 72), dpi=72)
        self.figure.patch.set_visible(False)
        plot = (LEFT_PX, BOTTOM_PX, width - LEFT_PX - RIGHT_PX, height - TOP_PX - BOTTOM_PX)
        sides = (width, height, width, height)
        place: Any = [pixels / side for pixels, side in zip(plot, sides, strict=True)]
        self.axes: Axes = self.figure.add_axes(place, frameon=False)
        self.axes.tick_params(bottom=False, left=False, pad=6, labelcolor=LIGHT["soft"])
        self.axes.set_axisbelow(True)
        self.axes.axhline(0.0, color=LIGHT["soft"], linewidth=1)
        self.figure.text(0.0, 1 - 12 / height, axis, color=LIGHT["soft"])
        self.tips: list[Tip] = []

    def x_px(self, value: float) -> float:
        """The place of a value on the horizontal axis, whose limits must be set."""
        return float(self.axes.transData.transform((value, 0.0))[0])

    def scale_values(self, high: float) -> float:
        """Give the vertical axis round numbers from 0 to `high` or just above it. Returns the highest."""
        ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(
            0.0, high if 0 < high < math.inf else 1.0
        )
        self.axes.set_ylim(0.0, ticks[-1])
        self.axes.set_yticks(ticks)
        self.axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        self.axes.grid(axis="y", color=LIGHT["line"], linewidth=1)
        return float(ticks[-1])

    def scale_times(self, high: float) -> None:
        """Give the horizontal axis round times from 0 to `high`, as many as have room."""
        count = max(self.width // 110, 3)
        if high / count < 1:
            ticks = [each for each in MaxNLocator(count).tick_values(0.0, high) if each <= high * (1 + 1e-9)]
        else:
            days = 86400 * math.ceil(high / count / 86400)
            step = next((each for each in TIME_STEPS_S if each >= high / count), days)
            ticks = [step * place for place in range(int(high / step) + 1)]
        self.axes.set_xlim(0.0, high)
        self._label_ticks(ticks, _clock)

    def scale_durations(self, low: float, high: float) -> None:
        """Give the horizontal axis round durations on a logarithmic scale, as many as have room."""
        self.axes.set_xscale("log")
        self.axes.set_xlim(low, high)
        factors = (1, 2, 5) if high / low < 300 else (1,)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks: list[float] = []
        for tick in (factor * 10.0**power for power in powers for factor in factors):
            has_room = not ticks or self.x_px(tick) - self.x_px(ticks[-1]) > 1.5 * LABEL_PX
            if low <= tick <= high and has_room:
                ticks.append(tick)
        self._label_ticks(ticks, seconds)
        self.axes.xaxis.set_minor_locator(NullLocator())

    def _label_ticks(self, ticks: Sequence[float], words: Callable[[float], str]) -> None:
        self.axes.set_xticks(ticks, [words(each) for each in ticks])
        # The last label keeps within the drawing.
        if ticks and self.width - self.x_px(ticks[-1]) < LABEL_PX / 2:
            self.axes.get_xticklabels()[-1].set_horizontalalignment("right")

    def stairs(self, edges: Sequence[float], values: Sequence[float]) -> None:
        """Draw what was done: a line above an area."""
        self.axes.stairs(values, edges, fill=True, color=LIGHT["calls"], alpha=0.15, linewidth=0)
        self.axes.stairs(values, edges, baseline=None, color=LIGHT["calls"], linewidth=2)

    def limit(self, edges: Sequence[float], values: Sequence[float]) -> None:
        """Draw what was possible."""
        self.axes.stairs(values, edges, baseline=None, color=LIGHT["limit"], linewidth=1.5, linestyle=DASHED)

    def mark(self, x: float, line: int, words: str) -> None:
        """Draw an upright line at `x`, and its words beside its top, which stand in lines of their own."""
        y = 1 - (10 + 17 * line) / (self.height - TOP_PX - BOTTOM_PX)
        upright = self.axes.get_xaxis_transform()
        self.axes.plot([x, x], [0.0, y], color=LIGHT["ink"], linewidth=1, linestyle=DOTTED, transform=upright)
        is_left = self.x_px(x) < self.width * 0.6
        self.axes.annotate(
            words, (x, y), xycoords=upright, xytext=(6 if is_left else -6, 0), textcoords="offset points",
            ha="left" if is_left else "right", va="center", color=LIGHT["ink"], fontweight="bold",
        )  # fmt: skip

    def tip(self, low: float, high: float, lines: Iterable[str]) -> None:
        """Have `lines` shown while the pointer is between two values."""
        left, right = self.x_px(low) / self.width, self.x_px(high) / self.width
        self.tips.append(Tip(left, right - left, [*lines]))

    def chart(self, described: str) -> Chart:
        """The drawing as SVG for a page of HTML, with words for a reader of screens."""
        file = io.StringIO()
        self.figure.savefig(file, format="svg", metadata={"Date": None})
        svg = file.getvalue()
        inner = svg[svg.index(">", svg.index("<svg")) + 1 :]
        # The page has many drawings: what stands for the whole of one may not stand in it.
        inner = re.sub(r"<metadata>.*</metadata>|<style.*?</style>", "", inner, flags=re.DOTALL)
        inner = re.sub(r'<g id="[^"]*"', "<g", inner)
        for name, light in LIGHT.items():
            inner = inner.replace(light, f"var(--{name})")
        head = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(described)}">'
        return Chart(self.width, Markup(head + inner), self.tips)


def draw_charts(totals: Totals, points: Sequence[Point], rate: float | None) -> dict[str, list[Chart]]:
    """All charts for which there is something to draw, by name, each for wide and for narrow windows.

    rate: rows a second that were allowed.
    """
    found: dict[str, list[Chart]] = {}
    with _drawing, matplotlib.rc_context(SETTINGS):
        for width, most in MAX_INTERVALS.items():
            some = intervals(points, totals, most)
            drawn: dict[str, Chart] = {}
            if some:
                drawn["throughput"] = _throughput(width, some, rate)
                drawn["in_flight"] = _in_flight(width, some)
            if any(any(each.spent) for each in some):
                drawn["spent"] = _spent(width, some)
            if some and some[-1].cost > 0:
                drawn["cost"] = _cost(width, some)
            if totals.latency.measurements:
                drawn["latency"] = _latency(width, totals.latency, totals.call_latency)
            for name, chart in drawn.items():
                found.setdefault(name, []).append(chart)
    return found


def _over_time(
    width: int, height: int, axis: str, some: Sequence[Interval], lines: Callable[[Interval], Iterable[str]]
) -> _Drawing:
    """A drawing over the time of the intervals, each of which has these lines as its tip."""
    drawing = _Drawing(width, height, axis)
    drawing.scale_times(some[-1].end)
    for each in some:
        when = f"{seconds(round(each.begin, 1))} to {seconds(round(each.end, 1))}"
        drawing.tip(each.begin, each.end, [when, *lines(each)])
    return drawing


def _throughput(width: int, some: Sequence[Interval], rate: float | None) -> Chart:
    """Rows a second over time, below what the slots and the rate allow."""

    def lines(each: Interval) -> Iterator[str]:
        yield f"{number(each.rows)} rows/s"
        if each.limit is not None:
            share = f" ({each.rows / each.limit:.0%} used)" if each.limit else ""
            yield f"slots allow {number(round(each.limit))}{share}"
        if each.errors:
            yield f"{number(each.errors)} errors"
        if each.retries:
            yield f"{number(each.retries)} retries"

    drawing = _over_time(width, 250, "rows/s", some, lines)
    limits = sorted(each.limit for each in some if each.limit is not None)
    # A few limits may be very high, and would hide the rest.
    usual = min(limits[-1], limits[len(limits) * 9 // 10] * 1.5) if limits else 1.0
    most = max(each.rows for each in some)
    top = drawing.scale_values(max(usual, most, rate or 0.0))
    drawing.stairs(_edges(some), [each.rows for each in some])
    drawing.limit(_edges(some), [math.nan if each.limit is None else min(each.limit, top) for each in some])
    if rate is not None:
        drawing.axes.axhline(rate, color=LIGHT["allowed"], linewidth=1.5, linestyle=DOTTED)
    mean = sum(each.rows * (each.end - each.begin) for each in some) / (some[-1].end - some[0].begin)
    return drawing.chart(f"Rows a second over time: {number(mean)} in the mean, {number(most)} at most")


def _in_flight(width: int, some: Sequence[Interval]) -> Chart:
    """Calls in flight over time, below their capacity."""

    def lines(each: Interval) -> Iterator[str]:
        yield f"{number(each.in_flight)} in flight"
        yield f"capacity {number(each.capacity)}"
        yield f"{number(round(each.finished_waiting))} rows wait for order"

    drawing = _over_time(width, 250, "calls", some, lines)
    most = max(each.in_flight for each in some)
    drawing.scale_values(max(most, *(each.capacity for each in some)))
    drawing.stairs(_edges(some), [each.in_flight for each in some])
    drawing.limit(_edges(some), [each.capacity for each in some])
    return drawing.chart(f"Calls in flight over time: {number(most)} at most")


def _spent(width: int, some: Sequence[Interval]) -> Chart:
    """Shares of the slots' time by its use, over time."""

    def lines(each: Interval) -> Iterator[str]:
        shares = zip(SPENT, each.spent, strict=True)
        return (f"{name} {share:.0%}" for name, share in shares if share >= 0.005)

    drawing = _over_time(width, 200, "of the slots' time", some, lines)
    drawing.axes.set_ylim(0.0, 1.0)
    drawing.axes.set_yticks([0.0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    low = [0.0] * len(some)
    for place, name in enumerate(SPENT):
        high = [before + each.spent[place] for before, each in zip(low, some, strict=True)]
        if high != low:
            drawing.axes.stairs(high, _edges(some), baseline=low, fill=True, color=LIGHT[name], linewidth=0)
        low = high
    return drawing.chart("Shares of the slots' time by what it was spent on, over time")


def _cost(width: int, some: Sequence[Interval]) -> Chart:
    """The cost of all calls until then."""
    drawing = _over_time(width, 180, "cost", some, lambda each: [f"cost {number(each.cost)}"])
    drawing.scale_values(some[-1].cost)
    costs = [0.0, *(each.cost for each in some)]
    drawing.axes.fill_between(_edges(some), costs, color=LIGHT["calls"], alpha=0.15, linewidth=0)
    drawing.axes.plot(_edges(some), costs, color=LIGHT["calls"], linewidth=2)
    return drawing.chart(f"Cost over time: {number(some[-1].cost)} in all")


def _latency(width: int, attempts: LatencySnapshot, rows: LatencySnapshot) -> Chart:
    """Durations of attempts, and of rows over all their attempts where that differs."""
    # Three lines of words stand above the bars.
    drawing = _Drawing(width, 306, "share of calls, by area")
    edges, counts, densities = _histogram(attempts)
    of_rows = _histogram(rows) if rows.measurements and rows.buckets != attempts.buckets else None
    ends = [edges[0], edges[-1], *(of_rows[0] if of_rows else [])]
    drawing.axes.set_ylim(0.0, max([*densities, *(of_rows[2] if of_rows else [])]) * 1.4)
    drawing.axes.set_yticks([])
    drawing.scale_durations(min(ends), max(ends))
    drawing.axes.stairs(densities, edges, fill=True, color=LIGHT["calls"], linewidth=0)
    if of_rows:
        drawing.limit(of_rows[0], of_rows[2])
    for line, name in enumerate(("p50", "p95", "p99")):
        value: float = getattr(attempts, name)
        drawing.mark(min(max(value, min(ends)), max(ends)), line, f"{name} {seconds(value)}")
    seen = 0
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        seen += count
        drawing.tip(
            low,
            high,
            [
                f"{seconds(low)} to {seconds(high)}",
                f"{number(count)} calls, {count / attempts.measurements:.1%}",
                f"{seen / attempts.measurements:.1%} took less than {seconds(high)}",
            ],
        )
    return drawing.chart(
        f"How long calls took: half of them at most {seconds(attempts.p50)}, 95 % at most "
        f"{seconds(attempts.p95)}, 99 % at most {seconds(attempts.p99)}"
    )


def _histogram(snapshot: LatencySnapshot) -> tuple[list[float], list[int], list[float]]:
    """The edges, counts and densities of columns from the first bucket to the last, two buckets in each."""
    by_column: dict[int, int] = {}
    for bound, count in snapshot.buckets:
        column = bisect_left(BOUNDS_S, bound) // 2
        by_column[column] = by_column.get(column, 0) + count
    columns = range(min(by_column), max(by_column) + 1)
    counts = [by_column.get(column, 0) for column in columns]
    # The first bucket begins at 0, which a logarithmic scale has no place for.
    edges = [BOUNDS_S[2 * each - 1] if each else BOUNDS_S[0] / 2 for each in (*columns, columns.stop)]
    # Columns differ in width: the area is the share, not the height.
    densities = [
        count / snapshot.measurements / math.log10(high / low)
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    return edges, counts, densities


def _edges(some: Sequence[Interval]) -> list[float]:
    return [some[0].begin, *(each.end for each in some)]


def _clock(value: float) -> str:
    """A time on an axis, as in 2.5 s, 15 s, 2:30 min, 1:05 h."""
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
