"""Numbers as people read them, for bars, lines and the report.

Functions without state: safe in any thread.
"""

from __future__ import annotations

import math


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
