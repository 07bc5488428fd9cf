"""One HTML page about what an operator, or all tasks of a job, have done: `report`.

For any thread. The page is whole in itself: no script, nothing from the network.
"""

from __future__ import annotations

import datetime
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pillarbox.aio.meter import SPENT
from pillarbox.aio.observe import charts, page, words
from pillarbox.aio.observe.markup import Child, Markup, tag
from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.steps import Step, steps
from pillarbox.aio.observe.tasks import TaskTotals
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.observe.watch import read_totals
from pillarbox.ledger.private_files import check_mode, replacing
from pillarbox.validate import check_positive_number

MOST_STEPS, MOST_STEPS_NARROW = 120, 40
MOST_TASKS = 50

ADVICE = {
    "calls": "The calls themselves were the limit: a larger capacity or a faster service would give more.",
    "loop": "Code that blocks or computes held the event loop up, so that calls waited for one another: a "
    "plain def, which runs in threads, or asyncio.to_thread would help. A warning in the log shows where.",
    "input": "Rows came too slowly: what feeds the operator was the limit.",
    "order": "Rows waited for a slow one before them: a larger buffer, or ordered=False, would help.",
    "output": "Results were taken too slowly: what follows the operator was the limit.",
    "rate": "The rate, or a service that asked for patience, was the limit.",
    "retry": "Rows that waited for their retry were all that was left to do.",
    "ledger": "The ledger's disk, or another attempt of the same task, was waited for.",
    "end": "The last calls of tasks were waited for: larger partitions, or a limit of time, would help.",
}


def report(
    source: Any,
    path: str | os.PathLike[str] = "report.html",
    *,
    title: str = "Pillarbox",
    rate: float | None = None,
    mode: int | None = None,
) -> Path:
    """Write one HTML page about `source` to `path`, and give the path back. Any thread.

    source: a `Progress`, a `Watch`, the iterator of `async_map`, or totals. The first two know how it went
        over time. It may still run.
    title: what stands above. rate: rows a second that were allowed, drawn beside what the slots allow.
    mode: of the file, such as 0o644 where others read it; None for that of the file that is there, or 0600.

    The page shows rows a second against the limit (capacity by mean latency, in each span of time), what the
    time of the slots was spent on, calls in flight, latencies, retries, errors, tasks and cost. An existing
    file is replaced. Raises TypeError or ValueError for a bad argument, OSError where it cannot be written.
    """
    totals = read_totals(source)
    if not isinstance(title, str):
        raise TypeError(f"title={title!r}: must be a text")
    if rate is not None:
        check_positive_number("rate", rate)
    check_mode(mode)
    target = Path(path)
    points: list[Point] = getattr(source, "series", [])
    tasks: list[TaskTotals] = getattr(source, "tasks", [])
    body = _body(totals, points, tasks, title, rate)
    with replacing(str(target), mode) as file:
        file.write(page.document(title, body).encode())
    return target


def _body(
    totals: Totals, points: Sequence[Point], tasks: Sequence[TaskTotals], title: str, rate: float | None
) -> list[Child]:
    seconds = points[-1].seconds if points else totals.elapsed
    wide, narrow = (steps(points, totals, most) if points else [] for most in (MOST_STEPS, MOST_STEPS_NARROW))

    def over_time(draw: Any, *more: Any) -> list[Markup]:
        return page.chart(lambda width: draw(wide if width == page.WIDE else narrow, *more, width))

    parts: list[Child] = [_header(totals, tasks, title, seconds), _tiles(totals, seconds)]
    if wide:
        names = [("rows", "rows a second"), ("limit", "what the slots allow: capacity / mean latency")]
        if rate is not None:
            names.append(("rate", f"the rate: {words.number(rate)} a second"))
        drawn = over_time(charts.throughput, rate)
        parts.append(page.section("Throughput against the limit", None, page.keys(*names), drawn))
    parts.append(_spent(totals, over_time(charts.spent_over_time) if wide and _any_spent(wide) else None))
    if wide:
        names = [("rows", "calls in flight"), ("limit", "capacity")]
        parts.append(page.section("In flight", None, page.keys(*names), over_time(charts.in_flight)))
    parts.append(_latency(totals))
    parts.append(
        tag(
            "div",
            page.tally("Retries by reason", totals.retries_by_reason),
            page.tally("Errors by type", totals.errors_by_type, bad=True),
            class_="two",
        )
    )
    if totals.cost or totals.tokens:
        parts.append(_cost(totals, over_time(charts.cost_over_time) if wide and wide[-1].cost > 0 else None))
    if tasks:
        parts.append(_tasks(tasks))
    parts.append(_counts(totals))
    return parts


def _header(totals: Totals, tasks: Sequence[TaskTotals], title: str, seconds: float) -> Markup:
    running = sum(task.running for task in tasks)
    said = [f"{words.seconds(seconds)}"]
    if tasks:
        said.append(f"{words.number(len(tasks))} task{'s' * (len(tasks) != 1)}")
    if running or totals.in_flight:
        said.append("still running")
    # The wall clock only tells people when this was; nothing is measured by it.
    now = datetime.datetime.now(datetime.timezone.utc)
    said.append(f"written {now:%Y-%m-%d %H:%M} UTC")
    return tag("header", tag("h1", title), tag("p", " · ".join(said), class_="soft"))


def _tiles(totals: Totals, seconds: float) -> Markup:
    rate = totals.results / seconds if seconds else 0.0
    slots = sum(totals.spent.values())
    tiles = [
        page.tile("rows", words.compact(totals.results)),
        page.tile("rows/s", words.compact(_round(rate))),
    ]
    if slots:
        tiles.append(page.tile("slots busy", f"{totals.spent.get('calls', 0.0) / slots:.0%}"))
    if totals.latency.measurements:
        tiles.append(page.tile("median call", words.seconds(totals.latency.p50)))
        tiles.append(page.tile("p99 of calls", words.seconds(totals.latency.p99)))
    tiles.append(page.tile("retries", words.compact(totals.retries)))
    tiles.append(page.tile("errors", words.compact(totals.errors), bad=totals.errors > 0))
    if totals.cost:
        tiles.append(page.tile("cost", words.compact(_round(totals.cost))))
    return tag("div", tiles, class_="tiles")


def _any_spent(some: Sequence[Step]) -> bool:
    return any(any(step.spent) for step in some)


def _spent(totals: Totals, drawn: list[Markup] | None) -> Markup:
    slots = sum(totals.spent.values())
    name = "What the time was spent on"
    if not slots:
        return page.section(name, "Nothing was measured.")
    shares = {key: totals.spent.get(key, 0.0) / slots for key in SPENT}
    others = {key: share for key, share in shares.items() if key != "calls"}
    # Below a tenth nothing else is worth advice.
    worst = max(others, key=lambda key: others[key])
    advice = ADVICE[worst] if others[worst] >= 0.1 else ADVICE["calls"]
    lines = [(key, key, shares[key], f"{explained}") for key, explained in SPENT.items()]
    return page.section(name, advice, page.stack(lines), drawn)


def _latency(totals: Totals) -> Markup:
    name = "How long calls took"
    attempts, rows = totals.latency, totals.call_latency
    if not attempts.measurements:
        return page.section(name, "No call has ended.")
    drawn = page.chart(lambda width: charts.latency(attempts, rows, width))
    names = [("rows", "attempts")]
    if rows.measurements and rows.buckets != attempts.buckets:
        names.append(("limit", "rows, over all their attempts"))
    lines = [
        [
            each,
            words.number(some.measurements),
            *(words.seconds(value) for value in (some.p50, some.p95, some.p99, some.max)),
        ]
        for each, some in (("attempts", attempts), ("rows", rows))
        if some.measurements
    ]
    numbers = page.table(["", "number", "p50", "p95", "p99", "longest"], lines)
    return page.section(name, None, page.keys(*names), drawn, numbers)


def _cost(totals: Totals, drawn: list[Markup] | None) -> Markup:
    said = []
    if totals.cost:
        said.append(f"{words.number(_round(totals.cost))} in all")
        if totals.results:
            by_thousand = totals.cost / totals.results * 1000
            said.append(f"{words.number(_round(by_thousand))} for a thousand rows")
    if totals.tokens:
        said.append(f"{words.number(_round(totals.tokens))} tokens")
    return page.section("Cost", ", ".join(said) + ".", drawn)


def _tasks(tasks: Sequence[TaskTotals]) -> Markup:
    some = sorted(tasks, key=lambda task: -task.totals.elapsed)
    times = [task.totals.elapsed for task in some]
    middle = statistics.median(times)
    said = f"The longest took {words.seconds(times[0])}, the median {words.seconds(middle)}"
    said += f": {words.number(_round(times[0] / middle))} times as long." if middle else "."
    if len(some) > MOST_TASKS:
        said += f" The {MOST_TASKS} longest of {words.number(len(some))}."
    longest = times[0] or 1.0
    lines = []
    for task in some[:MOST_TASKS]:
        totals = task.totals
        slots = sum(totals.spent.values())
        busy = f"{totals.spent.get('calls', 0.0) / slots:.0%}" if slots else "?"
        rate = totals.results / totals.elapsed if totals.elapsed else 0.0
        bar = tag("div", style=f"width:{totals.elapsed / longest:.1%}")
        lines.append(
            [
                f"{task.stage}.{task.partition}" + (f" · {task.operator}" if task.operator else ""),
                tag("div", bar, class_="share", style="width:100%", aria_hidden="true"),
                words.seconds(totals.elapsed) + (" …" if task.running else ""),
                words.number(totals.results),
                words.number(_round(rate)),
                busy,
                words.seconds(totals.latency.p50),
                words.seconds(totals.latency.p99),
                words.number(totals.retries),
                words.number(totals.errors),
                words.number(task.attempts),
            ]
        )
    names = ["stage.partition", "", "time", "rows", "rows/s", "busy", "p50", "p99", "retries", "errors"]
    return page.section("Tasks", said, page.table([*names, "attempts"], lines, text_columns=2))


def _counts(totals: Totals) -> Markup:
    names = {
        "rows_in": "rows admitted",
        "results": "rows emitted",
        "calls": "attempts at calls",
        "batches": "calls of batches",
        "retries": "retries",
        "errors": "rows failed for good",
        "timeouts": "limits of time met",
        "late": "outcomes that came too late",
        "abandoned": "calls that could not be cancelled",
        "shared": "rows that shared a call",
        "not_called": "rows not called, for the budget",
        "found": "rows found in the ledger",
        "rate_granted": "calls let through by the rate",
        "cool_downs": "times held back for the service",
        "waiting": "rows waiting now",
        "finished_waiting": "finished rows waiting for order now",
    }
    lines = [[label, words.number(getattr(totals, name))] for name, label in names.items()]
    lines.append(["bytes of rows held now", words.size(totals.held_bytes)])
    counts = tag("details", tag("summary", "Show them"), page.table(["", ""], lines))
    return page.section("All counts", None, counts)


def _round(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) and abs(value) < 100 else value
