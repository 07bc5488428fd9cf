"""Numbers as people read them, and the rate of late: what bars, lines and the report say.

Functions without state: safe in any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.totals import Totals

WINDOW = 10.0
"""Seconds over which the rate of late is taken."""


def number(value: float) -> str:
    """A number with three digits that count at least, as in 1,234,567, 12.3, 0.00123."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(digits, 12)}f}"
    return text.rstrip("0").rstrip(".") if digits > 2 else text


def compact(value: float) -> str:
    """A number of at most eight characters, as in 123,456, 12.35 M, 1.2 T."""
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= least * 0.9995 and math.isfinite(value):
            return f"{float(f'{value / least:.4g}'):g} {unit}"
    return number(value)


def seconds(value: float) -> str:
    """A duration with its unit, as in 250 µs, 12.3 ms, 4.56 s, 3 min 20 s, 2 h 5 min."""
    if not math.isfinite(value):
        return str(value)
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        # What rounds up to a thousand of a unit is one of the next.
        if least * 0.9995 <= value < 59.95:
            return f"{float(f'{value / least:.3g}'):g} {unit}"
    if value < 1e-6:
        return "0 s" if value <= 0 else f"{value * 1e9:.0f} ns"
    whole = round(value)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 10:
        return f"{round(value / 3600):,} h"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def size(value: float) -> str:
    """Bytes with their unit, as in 12.3 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{number(value)} {unit}"


def rate_of_late(points: Sequence[Point], window: float = WINDOW) -> float:
    """Rows a second over the last `window` seconds of the points; 0 where there are fewer than two."""
    if len(points) < 2:
        return 0.0
    last = points[-1]
    first = next(each for each in points if each.seconds >= last.seconds - window or each is points[-2])
    passed = last.seconds - first.seconds
    # Rows may go back, when a task runs again.
    return max(last.results - first.results, 0) / passed if passed > 0 else 0.0


def left(totals: Totals, total: int | None, rate: float) -> float | None:
    """Seconds until `total` rows are done at `rate` rows a second; None where nobody knows."""
    if total is None or rate <= 0 or totals.results > total:
        return None
    return (total - totals.results) / rate


def parts(totals: Totals, rate: float, remaining: float | None) -> list[tuple[str, str]]:
    """What a bar says besides the rows: pairs of what it is ("rate", "errors", ...) and a text."""
    of = f"/{totals.capacity:,}" if totals.capacity else ""
    said = [
        ("rate", f"{rate:,.0f} rows/s"),
        ("in_flight", f"{totals.in_flight:,}{of} in flight"),
        ("retries", f"{totals.retries:,} retries"),
        ("errors", f"{totals.errors:,} errors"),
    ]
    if totals.cost:
        said.append(("cost", f"cost {number(totals.cost)}"))
    if remaining is not None and totals.in_flight:
        said.append(("left", f"{seconds(max(round(remaining), 1))} left"))
    return said
