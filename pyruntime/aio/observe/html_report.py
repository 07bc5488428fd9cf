"""One HTML page about what an operator, or all tasks of a job, have done: `report`.

For any thread. The page is whole in itself: no script, nothing from the network.
"""

# The page and its charts, which are SVG, are one template (jinja2, from the extra `report`); here are its
# numbers. A report of pictures could not follow the reader's dark mode and would blur; a chart library of the
# browser would need a script, and in the page stand names of errors that users chose: its own policy forbids
# scripts altogether. A plotting library such as matplotlib knows neither themes nor what is below a pointer:
# to mend both takes more code than these few shapes.
#
# A drawing that scales would have letters too small to read on a telephone: so each chart is drawn for two
# widths, and the page shows what fits.

from __future__ import annotations

import datetime
import math
import os
import re
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio.observe.series import Interval, Point, intervals, read_totals
from pillarbox.aio.totals import (
    INSTRUMENTS,
    SPENT,
    TaskTotals,
    Totals,
    compact,
    instruments,
    number,
    seconds,
)
from pillarbox.ledger.private_files import check_mode, replacing
from pillarbox.mailbox.metrics import BOUNDS_S, LatencySnapshot
from pillarbox.redaction import visible
from pillarbox.validate import check_positive_number

MAX_ENDPOINTS = 50
"""Endpoints in the table, those with the most requests."""
MAX_TASKS = 50
"""Tasks in the table, the longest."""

WIDE_PX, NARROW_PX = 1040, 352
MAX_INTERVALS = {WIDE_PX: 120, NARROW_PX: 40}
HEIGHT_PX = 250
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 52, 12, 26, 26
"""Room around the plot."""
LABEL_PX = 90
"""Room for a label of the horizontal axis."""
TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def report(
    source: object,
    path: str | os.PathLike[str] = "report.html",
    *,
    title: str = "Pillarbox",
    rate: float | None = None,
    mode: int | None = None,
) -> Path:
    """Write one HTML page about `source` to `path` and return the path. Any thread.

    source: a `Progress`, a `Watch`, the iterator of `async_map`, or totals. The first two have the course
        over time. The job may still run.
    title: the heading. rate: the allowed rows per second, drawn beside the limit of the slots.
    mode: of the file, such as 0o644 for other readers; None for that of the existing file, or 0600.

        >>> from pillarbox import async_map
        >>> from pillarbox.aio.observe import Watch, report
        >>> async def call(row):
        ...     return row + 1
        >>> with async_map([1, 2, 3], call) as results, Watch(results) as watch:
        ...     numbers = list(results)
        >>> report(watch, "report.html", title="Three numbers").name
        'report.html'

    The page shows rows per second against the limit (capacity by mean latency, in each span of time), the use
    of the slots' time, calls in flight, latencies, retries, errors, tasks and cost. An existing file is
    replaced.

    Needs the package jinja2 (extra `report`): raises ImportError without it. Raises TypeError or ValueError
    for a bad argument, OSError if the file cannot be written.
    """
    try:
        import jinja2
    except ImportError:
        raise ImportError("report() needs the package jinja2 (pip install 'pillarbox[report]')") from None
    totals = read_totals(source)
    if not isinstance(title, str):
        raise TypeError(f"title={title!r}: must be a text")
    if rate is not None:
        check_positive_number("rate", rate)
    check_mode(mode)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "seconds": seconds, "compact": compact, "round3": _round}
    template = environment.from_string(Path(__file__).with_name("report.html.jinja").read_text("utf-8"))
    points: list[Point] = getattr(source, "series", [])
    spent = _spent(totals)
    page = template.render(
        title=title,
        rate=rate,
        totals=totals,
        # The wall clock only tells people when this was; nothing is measured by it.
        now=datetime.datetime.now(datetime.timezone.utc),
        seconds=points[-1].seconds if points else totals.elapsed,
        charts=_draw_charts(totals, points, rate),
        spent=spent,
        limit=_limit(spent),
        tallies=[
            ("Retries by reason", totals.retries_by_reason, ""),
            ("Errors by type", totals.errors_by_type, "bad"),
        ],
        endpoints=_endpoints(totals),
        limits=_limits(totals),
        tasks=_tasks(getattr(source, "tasks", [])),
        counts=[
            (INSTRUMENTS[name].help, getattr(totals, name)) for name in instruments("row", "count", "level")
        ],
    )
    target = Path(path)
    with replacing(str(target), mode) as file:
        file.write(_printable(page).encode())
    return target


def _printable(text: str) -> str:
    # Characters that no HTML may hold, and half characters that no UTF-8 may hold: errors have any name.
    replaced = re.sub(r"[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)
    return visible(replaced)


def _round(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) and abs(value) < 100 else value


class Spent(NamedTuple):
    """A use of the slots' time."""

    name: str
    explained: str
    share: float


def _spent(totals: Totals) -> list[Spent]:
    """All uses of the slots' time, or none where nothing was measured."""
    slots = sum(totals.spent.values())
    return [Spent(*each, totals.spent.get(each[0], 0.0) / slots) for each in SPENT.items()] if slots else []


def _limit(spent: Sequence[Spent]) -> str:
    """The use of time that limited the job: below a tenth none but the calls is worth advice."""
    if not spent:
        return ""
    calls, *others = spent
    worst = max(others, key=lambda each: each.share)
    return worst.name if worst.share >= 0.1 else calls.name


def _endpoints(totals: Totals) -> list[tuple[str, int, int, float, int]]:
    """Each endpoint with its requests, faults, mean seconds and for how many operators it rests."""
    found = []
    for name in {**totals.endpoint_resting, **totals.endpoint_calls}:
        calls = totals.endpoint_calls.get(name, 0)
        mean = totals.endpoint_seconds.get(name, 0.0) / max(calls, 1)
        errors, resting = totals.endpoint_errors.get(name, 0), totals.endpoint_resting.get(name, 0)
        found.append((name, calls, errors, mean, resting))
    return sorted(found, key=lambda each: (-each[1], each[0]))[:MAX_ENDPOINTS]


def _limits(totals: Totals) -> list[tuple[str, str, float, float | None]]:
    """Each limit that the service has named: endpoint, what it counts, its amount, and what is left of it.

    None where that is not known.
    """
    found = []
    for key, limit in sorted(totals.limits_named.items()):
        name, _, kind = key.rpartition(" ")
        found.append((name, kind, limit, totals.limits_left.get(key)))
    return found[:MAX_ENDPOINTS]


def _tasks(tasks: Sequence[TaskTotals]) -> dict[str, Any]:
    """The tasks of a job, the longest first."""
    some = sorted(tasks, key=lambda task: -task.totals.elapsed)
    times = [task.totals.elapsed for task in some]
    return {
        "number": len(some),
        "running": sum(task.running for task in some),
        "longest": times[0] if some else 0.0,
        "median": statistics.median(times) if some else 0.0,
        "shown": some[:MAX_TASKS],
    }


# -- charts ----------------------------------------------------------------------------------------


class Tip(NamedTuple):
    """The words that show while the pointer is above an area: shares of the chart's width."""

    left: float
    width: float
    lines: list[str]


class Chart:
    """A chart at one width for the template: shapes, texts and their places in pixels."""

    def __init__(
        self, width: int, axis: str, begin: float, end: float, top: float, *, is_log: bool = False
    ) -> None:
        """Make the axes. begin, end: of the horizontal one. top: of the vertical one, which begins at 0."""
        self.width, self.height, self.bottom, self.axis = width, HEIGHT_PX, HEIGHT_PX - BOTTOM_PX, axis
        self.described = ""
        self.paths: list[tuple[str, str]] = []
        self.marks: list[tuple[float, int, str]] = []
        self.tips: list[Tip] = []
        self._scale = math.log if is_log else float
        self._begin, self._end = self._scale(begin), self._scale(end)
        step = _step(top / 4 if 0 < top < math.inf else 1.0)
        steps = math.ceil(top / step - 1e-9) if 0 < top < math.inf else 1
        self.top = step * steps
        self.y_ticks = [(self.y(step * each), _short(step * each)) for each in range(steps + 1)]
        if is_log:
            self.x_ticks = [*self._durations(begin, end)]
        else:
            least = end / max(width // 110, 3)
            days = 86400 * math.ceil(least / 86400)
            step = next((each for each in TIME_STEPS_S if each >= least), days) if least > 1 else _step(least)
            self.x_ticks = [(self.x(step * each), _clock(step * each)) for each in range(int(end / step) + 1)]

    def _durations(self, begin: float, end: float) -> Iterator[tuple[float, str]]:
        """Round durations of a logarithmic axis, as many as have room."""
        last = -math.inf
        powers = range(math.floor(math.log10(begin)), math.ceil(math.log10(end)) + 1)
        for tick in (factor * 10.0**power for power in powers for factor in (1, 2, 5)):
            if begin <= tick <= end and self.x(tick) - last > LABEL_PX:
                last = self.x(tick)
                yield last, seconds(tick)

    def x(self, value: float) -> float:
        """The place of a value on the horizontal axis."""
        share = (self._scale(value) - self._begin) / ((self._end - self._begin) or 1.0)
        return round(LEFT_PX + share * (self.width - LEFT_PX - RIGHT_PX), 1)

    def y(self, value: float) -> float:
        """The place of a value on the vertical axis; a higher one than its top is drawn there."""
        return round(self.bottom - min(value / self.top, 1.0) * (self.bottom - TOP_PX), 1)

    # Stairs, and not lines from point to point: what was counted in an interval holds for the whole of it,
    # and a slope between two intervals would show values that nobody has measured.

    def line(self, style: str, edges: Sequence[float], values: Sequence[float | None]) -> None:
        """Draw a line of stairs, with gaps where there is no value."""
        parts, before = [], None
        for (begin, end), value in zip(pairwise(edges), values, strict=True):
            if value is not None:
                parts.append(f"{'M' if before is None else 'L'}{self.x(begin)} {self.y(value)}H{self.x(end)}")
            before = value
        self.paths.append((style, "".join(parts)))

    def area(
        self, style: str, edges: Sequence[float], highs: Sequence[float], lows: Sequence[float] | None = None
    ) -> None:
        """Draw what is between two stairs, or below one."""
        places = [self.x(each) for pair in pairwise(edges) for each in pair]
        up, down = (
            [self.y(each) for each in some for _ in "ab"] for some in (highs, lows or [0.0] * len(highs))
        )
        corners = [*zip(places, up, strict=True), *zip(reversed(places), reversed(down), strict=True)]
        self.paths.append((style, f"M{'L'.join(f'{x} {y}' for x, y in corners)}Z"))

    def tip(self, low: float, high: float, lines: list[str]) -> None:
        """Have `lines` shown while the pointer is between two values."""
        left, right = self.x(low) / self.width, self.x(high) / self.width
        self.tips.append(Tip(left, right - left, lines))


def _draw_charts(totals: Totals, points: Sequence[Point], rate: float | None) -> dict[str, list[Chart]]:
    """All charts for which there is something to draw, by name, each for wide and for narrow windows."""
    found: dict[str, list[Chart]] = {}
    for width, most in MAX_INTERVALS.items():
        for name, chart in _charts(width, intervals(points, totals, most), totals, rate):
            found.setdefault(name, []).append(chart)
    return found


def _charts(
    width: int, some: Sequence[Interval], totals: Totals, rate: float | None
) -> Iterator[tuple[str, Chart]]:
    if some:
        # A few limits may be very high, and would hide the rest.
        limits = sorted(each.limit for each in some if each.limit is not None) or [1.0]
        usual = min(limits[-1], limits[len(limits) * 9 // 10] * 1.5)
        done, allowed = [each.rows for each in some], [each.limit for each in some]
        tips = [
            [
                f"{number(each.rows)} rows/s",
                "slots allow " + ("?" if each.limit is None else f"{number(round(each.limit))} rows/s"),
                f"{number(each.errors)} errors, {number(each.retries)} retries",
            ]
            for each in some
        ]
        throughput = _over_time(width, "rows/s", some, done, allowed, max(usual, rate or 0.0), tips)
        if rate is not None:
            throughput.line("line-allowed", [some[0].begin, some[-1].end], [rate])
        yield "throughput", throughput
        done, capacities = [each.in_flight for each in some], [each.capacity for each in some]
        tips = [
            [
                f"{number(each.in_flight)} in flight, capacity {number(each.capacity)}",
                f"{number(round(each.finished_waiting))} rows wait for order",
            ]
            for each in some
        ]
        yield "in_flight", _over_time(width, "calls", some, done, capacities, max(capacities), tips)
    if some and some[-1].cost > 0:
        costs, tips = [each.cost for each in some], [[f"cost {number(each.cost)}"] for each in some]
        yield "cost", _over_time(width, "cost", some, costs, [], some[-1].cost, tips)
    if any(any(each.spent) for each in some):
        yield "spent", _spent_over_time(width, some)
    if totals.latency.measurements:
        yield "latency", _latency(width, totals.latency, totals.call_latency)


def _edges(some: Sequence[Interval]) -> list[float]:
    return [some[0].begin, *(each.end for each in some)]


def _over_time(
    width: int,
    axis: str,
    some: Sequence[Interval],
    done: Sequence[float],
    allowed: Sequence[float | None],
    top: float,
    tips: Sequence[list[str]],
) -> Chart:
    """A chart over the time of the intervals: what was done, below what was possible."""
    chart = Chart(width, axis, 0.0, some[-1].end, max(top, *done))
    chart.described = f"{axis} over time: {number(max(done))} at most"
    for each, lines in zip(some, tips, strict=True):
        chart.tip(
            each.begin,
            each.end,
            [f"{seconds(round(each.begin, 1))} to {seconds(round(each.end, 1))}", *lines],
        )
    if any(done):
        chart.area("done", _edges(some), done)
        chart.line("line-calls", _edges(some), done)
    if allowed:
        chart.line("line-limit", _edges(some), allowed)
    return chart


def _spent_over_time(width: int, some: Sequence[Interval]) -> Chart:
    """Shares of the slots' time by its use, one above the other."""
    # What rounds to nothing is left out, or each tip would have nine lines.
    tips = [
        [f"{name} {share:.0%}" for name, share in zip(SPENT, each.spent, strict=True) if share >= 0.005]
        for each in some
    ]
    low = [0.0] * len(some)
    chart = _over_time(width, "of the slots' time", some, low, [], 1.0, tips)
    chart.described = "Shares of the slots' time by what it was spent on, over time"
    for place, name in enumerate(SPENT):
        high = [before + each.spent[place] for before, each in zip(low, some, strict=True)]
        if high != low:
            chart.area(f"fill-{name}", _edges(some), high, low)
        low = high
    return chart


def _latency(width: int, attempts: LatencySnapshot, rows: LatencySnapshot) -> Chart:
    """Durations of attempts, and of rows over all their attempts where that differs."""
    edges, counts, densities = _histogram(attempts)
    more, _, of_rows = (
        _histogram(rows) if rows.measurements and rows.buckets != attempts.buckets else ([], [], [])
    )
    # Three lines of words stand above the bars.
    top = max([*densities, *of_rows]) * 1.6
    begin, end = min([*edges, *more]), max([*edges, *more])
    chart = Chart(width, "share of calls, by area", begin, end, top, is_log=True)
    chart.y_ticks = []
    chart.described = f"How long calls took: half of them at most {seconds(attempts.p50)}"
    chart.area("fill-calls", edges, densities)
    if more:
        chart.line("line-limit", more, of_rows)
    for line, name in enumerate(("p50", "p95", "p99")):
        value: float = getattr(attempts, name)
        chart.marks.append((chart.x(min(max(value, begin), end)), line, f"{name} {seconds(value)}"))
    seen = 0
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        seen += count
        share = f"{number(count)} calls, {count / attempts.measurements:.1%}"
        below = f"{seen / attempts.measurements:.1%} took less than {seconds(high)}"
        chart.tip(low, high, [f"{seconds(low)} to {seconds(high)}", share, below])
    return chart


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
    widths = [math.log10(high / low) for low, high in pairwise(edges)]
    return edges, counts, [count / width for count, width in zip(counts, widths, strict=True)]


def _step(least: float) -> float:
    """A round number of at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))


def _short(value: float) -> str:
    """A round number on an axis, as in 250 k."""
    unit, name = next((unit for unit in UNITS if value >= unit[0]), (1.0, ""))
    return f"{value / unit:.4g}{name}"


def _clock(value: float) -> str:
    """A time on an axis, as in 2.5 s, 15 s, 2:30 min, 1:05 h."""
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
