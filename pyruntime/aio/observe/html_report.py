"""One HTML page about what an operator, or all tasks of a job, have done: `report`.

For any thread. The page is whole in itself: no script, nothing from the network.
"""

# The page is a template (jinja2), its charts are SVG (matplotlib), both from the extra `report`. A report of
# pictures could not follow the reader's dark mode and would blur; a chart library of the browser would need a
# script, and in the page stand names of errors that users chose: its own policy forbids scripts altogether.

from __future__ import annotations

import datetime
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio.observe import formatting
from pillarbox.aio.observe.series import Point, read_totals
from pillarbox.aio.observe.totals import INSTRUMENTS, SPENT, TaskTotals, Totals, instruments
from pillarbox.ledger.private_files import check_mode, replacing
from pillarbox.validate import check_positive_number

MAX_TASKS = 50
"""Tasks in the table, the longest."""
MAX_ROWS_OF_TALLY = 12
"""Rows of a table of counts by a key; what is left is one more."""
MAX_KEY_LENGTH = 100
"""Characters of a key that are shown."""


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
    file is replaced.

    Needs the packages jinja2 and matplotlib (extra `report`): raises ImportError without. Raises TypeError or
    ValueError for a bad argument, OSError where it cannot be written.
    """
    try:
        import jinja2

        from pillarbox.aio.observe import charts
    except ImportError:
        raise ImportError(
            "report() needs the packages jinja2 and matplotlib (pip install 'pillarbox[report]')"
        ) from None
    totals = read_totals(source)
    if not isinstance(title, str):
        raise TypeError(f"title={title!r}: must be a text")
    if rate is not None:
        check_positive_number("rate", rate)
    check_mode(mode)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": formatting.number, "seconds": formatting.seconds}
    environment.filters |= {"compact": formatting.compact, "round3": _round}
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
        colours=charts.COLOURS,
        charts=charts.draw_charts(totals, points, rate),
        spent=spent,
        limit=_limit(spent),
        tallies=[
            ("Retries by reason", _tally(totals.retries_by_reason), ""),
            ("Errors by type", _tally(totals.errors_by_type), "bad"),
        ],
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
    return re.sub(r"[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


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


def _tally(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Counts by a key, the most frequent first."""
    some = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = some[MAX_ROWS_OF_TALLY:]
    shown = [
        (key if len(key) <= MAX_KEY_LENGTH else f"{key[: MAX_KEY_LENGTH - 1]}…", count)
        for key, count in some[:MAX_ROWS_OF_TALLY]
    ]
    return [*shown, (f"{len(rest)} others", sum(count for _, count in rest))] if rest else shown


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
