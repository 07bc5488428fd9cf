"""A chart's frame in SVG: scales, ticks, grid, what shows on hover. Functions and values without state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pillarbox.aio.observe.markup import Markup, tag

LEFT, RIGHT, TOP, BOTTOM = 52, 12, 26, 26
"""Room around the plot, in pixels."""
CHARACTER = 7.8
"""Pixels that a character takes, in the widest of the fonts and if it is bold no more than a tenth above."""


class Frame(NamedTuple):
    """The place of a plot, and its scales."""

    width: float
    """Pixels of the whole drawing."""
    height: float
    """Pixels of the whole drawing."""
    low: float
    """What the left edge of the plot stands for."""
    high: float
    """What its right edge stands for."""
    top: float
    """What its upper edge stands for; the lower one is 0."""

    def x(self, value: float) -> float:
        """The place of a value on the horizontal axis."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return LEFT + share * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The place of a value on the vertical axis."""
        share = value / self.top if self.top else 0.0
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)


def ticks(high: float, count: int) -> list[float]:
    """Round numbers from 0 to `high` or just above it, some `count` of them."""
    if not math.isfinite(high) or high <= 0:
        return [0.0, 1.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)


def time_ticks(high: float, count: int) -> list[float]:
    """Round times from 0 to `high` and not above it, some `count` of them."""
    rough = high / count
    if rough < 1:
        return [each for each in ticks(high, count) if each <= high * (1 + 1e-9)]
    step = next((each for each in TIMES if each >= rough), 86400 * math.ceil(rough / 86400))
    return [float(step * i) for i in range(int(high / step) + 1)]


def clock(value: float, step: float) -> str:
    """A time on an axis, as in 2.5 s, 15 s, 2:30 min, 1:05 h."""
    if step < 1:
        return f"{value:.3g} s"
    whole = round(value)
    if whole < 60 or step < 1:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def text(x: float, y: float, words: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """A line of text."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def rectangle(left: float, top: float, right: float, bottom: float, **attributes: object) -> Markup:
    """A rectangle between two corners."""
    width, height = max(right - left, 0.0), max(bottom - top, 0.0)
    return tag("rect", x=left, y=top, width=width, height=height, **attributes)


def straight(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def time_axis(frame: Frame) -> list[Markup]:
    """The horizontal axis in seconds."""
    places = time_ticks(frame.high, max(int(frame.width / 110), 4))
    step = places[1] - places[0] if len(places) > 1 else frame.high
    found = []
    after = 0.0
    for place in places:
        words, x = clock(place, step), frame.x(place)
        half = len(words) * CHARACTER / 2
        # The last one keeps within the drawing, and one that has no room is left out.
        x = min(x, frame.width - half)
        if x - half >= after:
            found.append(text(x, frame.height - 8, words, "middle"))
            after = x + half + 6
    return found


def value_axis(frame: Frame, places: Sequence[float], labels: Sequence[str], name: str) -> list[Markup]:
    """The vertical axis: grid, labels, and what it counts."""
    found = [text(0, 12, name, class_="axis")]
    for place, label in zip(places, labels, strict=True):
        y = frame.y(place)
        found.append(straight(LEFT, y, frame.width - RIGHT, y, "base" if place == 0 else "grid"))
        found.append(text(LEFT - 6, y + 4, label, "end"))
    return found


def path(points: Sequence[tuple[float, float]], class_: str, *, close_at: float | None = None) -> Markup:
    """A line through points; with `close_at` the area between it and that height."""
    words = [f"{'L' if i else 'M'}{x:.1f},{y:.1f}" for i, (x, y) in enumerate(points)]
    if close_at is not None and points:
        words += [f"L{points[-1][0]:.1f},{close_at:.1f}", f"L{points[0][0]:.1f},{close_at:.1f}Z"]
    return tag("path", d="".join(words), class_=class_)


def hover(frame: Frame, left: float, right: float, at: float, lines: Sequence[str]) -> Markup:
    """What shows while the pointer is between `left` and `right`: a rule at `at`, and lines in a box."""
    width = max(len(line) for line in lines) * CHARACTER + 16
    height = 17 * len(lines) + 9
    x = at + 8 if at + 8 + width <= frame.width else max(at - 8 - width, 0.0)
    # In a narrow drawing neither side may have room.
    x = min(x, frame.width - width - 1)
    y = float(TOP)
    words = [text(x + 8, y + 18 + 17 * i, line) for i, line in enumerate(lines)]
    box = rectangle(x, y, x + width, y + height, rx=4)
    rule = straight(at, TOP, at, frame.height - BOTTOM, "rule")
    tip = tag("g", rule, box, words, class_="tip", aria_hidden="true")
    area = rectangle(left, TOP, right, frame.height - BOTTOM, class_="hit")
    return tag("g", area, tip)


def drawing(frame: Frame, name: str, title: str, described: str, parts: Sequence[Markup]) -> Markup:
    """The whole drawing, with the words that a reader of screens says."""
    return tag(
        "svg",
        tag("desc", described, id=name),
        parts,
        viewBox=f"0 0 {frame.width:g} {frame.height:g}",
        role="img",
        aria_label=title,
        aria_describedby=name,
    )
