"""The charts of the report: what over time, how long calls took. Functions without state.

Each is drawn for one width in pixels; the page shows the drawing that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pillarbox.aio.meter import SPENT
from pillarbox.aio.observe import words
from pillarbox.aio.observe.markup import Markup
from pillarbox.aio.observe.steps import Step
from pillarbox.aio.observe.svg import (
    CHARACTER,
    LEFT,
    RIGHT,
    TOP,
    Frame,
    drawing,
    hover,
    path,
    rectangle,
    straight,
    text,
    ticks,
    time_axis,
    value_axis,
)
from pillarbox.mailbox.histogram import STEPS, LatencySnapshot

HEIGHT = 250

Places = list[tuple[float, float]]


def throughput(some: Sequence[Step], rate: float | None, width: float) -> Markup:
    """Rows a second over time, below what the slots and the rate allow."""
    limits = [step.limit for step in some if step.limit is not None]
    high = max(_usual_most(limits), *(step.rows for step in some), rate or 0.0)
    frame, parts = _frame(some, width, high, "rows/s")
    parts.append(path(_stairs(frame, some, lambda step: step.rows), "area", close_at=frame.y(0)))
    parts.append(path(_stairs(frame, some, lambda step: step.rows), "rows"))
    for run in _runs(some):
        parts.append(path(_stairs(frame, run, lambda step: min(step.limit or 0.0, frame.top)), "limit"))
    if rate is not None:
        parts.append(straight(LEFT, frame.y(rate), width - RIGHT, frame.y(rate), "rate"))

    def lines(step: Step) -> list[str]:
        said = [f"{words.number(step.rows)} rows/s"]
        if step.limit is not None:
            share = f" ({step.rows / step.limit:.0%} used)" if step.limit else ""
            said.append(f"slots allow {words.number(round(step.limit))}{share}")
        if step.errors:
            said.append(f"{words.number(step.errors)} errors")
        if step.retries:
            said.append(f"{words.number(step.retries)} retries")
        return said

    parts += _hovers(frame, some, lines)
    mean = sum(step.rows * (step.end - step.begin) for step in some) / max(some[-1].end - some[0].begin, 1e-9)
    most = max(step.rows for step in some)
    described = f"{words.number(mean)} rows a second in the mean, {words.number(most)} at most."
    return drawing(frame, f"throughput-{width:g}", "Rows a second over time", described, parts)


def in_flight(some: Sequence[Step], width: float) -> Markup:
    """Calls in flight over time, below their capacity."""
    high = max(max(step.capacity, step.in_flight) for step in some)
    frame, parts = _frame(some, width, high, "calls")
    parts.append(path(_stairs(frame, some, lambda step: step.in_flight), "area", close_at=frame.y(0)))
    parts.append(path(_stairs(frame, some, lambda step: step.in_flight), "rows"))
    parts.append(path(_stairs(frame, some, lambda step: step.capacity), "limit"))
    parts += _hovers(
        frame,
        some,
        lambda step: [
            f"{words.number(step.in_flight)} in flight",
            f"capacity {words.number(step.capacity)}",
            f"{words.number(round(step.finished_waiting))} rows wait for order",
        ],
    )
    described = f"At most {words.number(max(step.in_flight for step in some))} calls in flight."
    return drawing(frame, f"flight-{width:g}", "Calls in flight over time", described, parts)


def spent_over_time(some: Sequence[Step], width: float) -> Markup:
    """What the time of the slots was spent on, as shares over time."""
    frame = Frame(width, 200, 0.0, some[-1].end, 1.0)
    shown = ([0.0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    parts = [*value_axis(frame, *shown, "of the slots' time"), *time_axis(frame)]
    for number, name in enumerate(SPENT):
        for step in some:
            low = sum(step.spent[:number])
            share = step.spent[number]
            if share > 0.0005:
                parts.append(
                    rectangle(
                        frame.x(step.begin),
                        frame.y(low + share),
                        # The next one covers the rest: no seam between two that are rounded apart.
                        min(frame.x(step.end) + 1, frame.x(some[-1].end)),
                        frame.y(low),
                        class_=f"s-{name}",
                    )
                )
    parts += _hovers(
        frame,
        some,
        lambda step: [
            f"{name} {share:.0%}" for name, share in zip(SPENT, step.spent, strict=True) if share >= 0.005
        ],
    )
    return drawing(
        frame,
        f"spent-{width:g}",
        "What the time was spent on, over time",
        "Shares of the slots' time.",
        parts,
    )


def cost_over_time(some: Sequence[Step], width: float) -> Markup:
    """What calls have cost until then."""
    frame, parts = _frame(some, width, some[-1].cost, "cost", height=180)
    line = [(frame.x(some[0].begin), frame.y(0.0))]
    line += [(frame.x(step.end), frame.y(step.cost)) for step in some]
    parts += [path(line, "area", close_at=frame.y(0)), path(line, "rows")]
    parts += _hovers(frame, some, lambda step: [f"cost {words.number(step.cost)}"])
    described = f"{words.number(some[-1].cost)} in all."
    return drawing(frame, f"cost-{width:g}", "Cost over time", described, parts)


def latency(attempts: LatencySnapshot, rows: LatencySnapshot, width: float) -> Markup:
    """How long attempts took, and rows over all their attempts where that differs; on a logarithmic scale."""
    both = rows.buckets != attempts.buckets and bool(rows.measurements)
    columns = _columns(attempts)
    outline = _columns(rows) if both else []
    lows = [low for low, _, _ in columns + outline]
    highs = [high for _, high, _ in columns + outline]
    low, high = math.log10(min(lows)), math.log10(max(highs))
    heights = [_density(column, attempts) for column in columns] + [_density(each, rows) for each in outline]
    # Three lines of text stand above the plot's bars.
    room = 56
    frame = Frame(width, HEIGHT + room, low, high, max(heights) * (HEIGHT + room) / HEIGHT * 1.15)
    parts = [text(0, 12, "share of calls, by area", class_="axis")]
    parts.append(straight(LEFT, frame.y(0), width - RIGHT, frame.y(0), "base"))
    for begin, end, count in columns:
        parts.append(
            rectangle(
                frame.x(math.log10(begin)),
                frame.y(_density((begin, end, count), attempts)),
                frame.x(math.log10(end)),
                frame.y(0),
                class_="bar",
            )
        )
    if outline:
        line: Places = [(frame.x(math.log10(outline[0][0])), frame.y(0))]
        for column in outline:
            y = frame.y(_density(column, rows))
            line += [(frame.x(math.log10(column[0])), y), (frame.x(math.log10(column[1])), y)]
        parts.append(path([*line, (line[-1][0], frame.y(0))], "limit"))
    parts += _duration_axis(frame)
    for number, (name, value) in enumerate(
        (("p50", attempts.p50), ("p95", attempts.p95), ("p99", attempts.p99))
    ):
        x, y = frame.x(math.log10(min(max(value, 10**low), 10**high))), TOP + 16 + 17 * number
        label = f"{name} {words.seconds(value)}"
        fits = x + 6 + len(label) * CHARACTER * 1.1 < width
        parts.append(straight(x, y - 9, x, frame.y(0), "quantile"))
        parts.append(text(x + 6 if fits else x - 6, y, label, "start" if fits else "end", "strong"))
    seen = 0
    for begin, end, count in columns:
        seen += count
        left, right = frame.x(math.log10(begin)), frame.x(math.log10(end))
        said = [
            f"{words.seconds(begin)} to {words.seconds(end)}",
            f"{words.number(count)} calls, {count / attempts.measurements:.1%}",
            f"{seen / attempts.measurements:.1%} took less than {words.seconds(end)}",
        ]
        parts.append(hover(frame, left, right, (left + right) / 2, said))
    described = (
        f"Half of the calls took at most {words.seconds(attempts.p50)}, 95 % at most "
        f"{words.seconds(attempts.p95)}, 99 % at most {words.seconds(attempts.p99)}."
    )
    return drawing(frame, f"latency-{width:g}", "How long calls took", described, parts)


def _frame(
    some: Sequence[Step], width: float, high: float, name: str, height: float = HEIGHT
) -> tuple[Frame, list[Markup]]:
    places = ticks(high, 4)
    frame = Frame(width, height, 0.0, some[-1].end, places[-1])
    return frame, [*value_axis(frame, places, [_short(each) for each in places], name), *time_axis(frame)]


def _short(value: float) -> str:
    """A label of an axis, of six characters at most."""
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= least:
            value /= 1e3 if unit == "k" else least
            return f"{value:g}{unit}"
    return f"{value:g}" if value < 1000 else f"{value:,.0f}"


def _usual_most(limits: Sequence[float]) -> float:
    """The top of an axis for the limits: a few of them may be very high, and would hide the rest."""
    if not limits:
        return 1.0
    some = sorted(limits)
    return min(some[-1], some[len(some) * 9 // 10] * 1.5)


def _stairs(frame: Frame, some: Sequence[Step], value: Callable[[Step], float]) -> Places:
    found: Places = []
    for step in some:
        y = frame.y(value(step))
        found += [(frame.x(step.begin), y), (frame.x(step.end), y)]
    return found


def _runs(some: Sequence[Step]) -> list[list[Step]]:
    """Neighbouring steps that have a limit."""
    found: list[list[Step]] = [[]]
    for step in some:
        if step.limit is None:
            found.append([])
        else:
            found[-1].append(step)
    return [run for run in found if run]


def _hovers(frame: Frame, some: Sequence[Step], lines: Callable[[Step], list[str]]) -> list[Markup]:
    found = []
    for step in some:
        left, right = frame.x(step.begin), frame.x(step.end)
        when = f"{words.seconds(round(step.begin, 1))} to {words.seconds(round(step.end, 1))}"
        found.append(hover(frame, left, right, (left + right) / 2, [when, *lines(step)]))
    return found


def _columns(snapshot: LatencySnapshot) -> list[tuple[float, float, int]]:
    """The histogram from its first bucket to its last, two as one: lower bound, upper bound, count."""
    counts: dict[int, int] = {}
    for bound, count in snapshot.buckets:
        number = _half_octave_eighth(bound)
        counts[number] = counts.get(number, 0) + count
    if not counts:
        return []
    return [
        (_bound(number), _bound(number + 1), counts.get(number, 0))
        for number in range(min(counts), max(counts) + 1)
    ]


PER_OCTAVE = STEPS // 2


def _half_octave_eighth(bound: float) -> int:
    # A bucket is known by its upper bound: what lies a little below belongs to it.
    nanoseconds = bound * 1e9 * (1 - 1e-9)
    octave = math.floor(math.log2(nanoseconds))
    return octave * PER_OCTAVE + int((nanoseconds / 2.0**octave - 1) * PER_OCTAVE)


def _bound(number: int) -> float:
    octave, step = divmod(number, PER_OCTAVE)
    return 2.0**octave * (1 + step / PER_OCTAVE) * 1e-9


def _density(column: tuple[float, float, int], snapshot: LatencySnapshot) -> float:
    # Bars differ in width: the area is the share, not the height.
    low, high, count = column
    return count / snapshot.measurements / math.log10(high / low) if snapshot.measurements else 0.0


def _duration_axis(frame: Frame) -> list[Markup]:
    """Round durations on the logarithmic axis, as many as have room."""
    found: list[Markup] = []
    places = [
        factor * 10.0**power
        for power in range(math.floor(frame.low) - 1, math.ceil(frame.high) + 1)
        for factor in ((1, 2, 5) if frame.high - frame.low < 2.5 else (1,))
    ]
    after = 0.0
    for place in places:
        at = math.log10(place)
        if not frame.low - 1e-9 <= at <= frame.high + 1e-9:
            continue
        label = words.seconds(place)
        half = len(label) * CHARACTER / 2
        x = frame.x(at)
        if x - half < after or x + half > frame.width:
            continue
        found.append(text(x, frame.height - 8, label, "middle"))
        found.append(straight(x, frame.y(0), x, frame.y(0) + 4, "base"))
        after = x + half + 8
    return found
