"""What the files of all tasks say together: read by the driver, looked at by one thread at a time.

A file is read again only when it was replaced. Tasks that have ended long ago are folded into sums and
their files removed, so that a stream may run for months.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio.observe.totals import ROWS, TaskTotals, Totals, ended, from_json, merge, without_rows

log = logging.getLogger("pillarbox")

STALE = 5.0
"""Seconds after which a task that has written nothing is taken for dead."""

SETTLED = 10.0
"""Seconds after which the files of a task that has ended are folded into the sums."""

GONE = 60.0
"""Seconds after which a task that has written nothing will not write any more: it was killed."""

MOST_TASKS = 1000
"""Ended tasks that are kept apart; partitions and micro-batches likewise."""

PARTS = 8
"""Totals that are kept before they are added up."""

Task = tuple[int, int, int]
"""Operator, stage, partition."""

Batch = tuple[str, int]
"""The query's id, the number of its micro-batch."""


class _Attempt(NamedTuple):
    """What the file of one task attempt said when it was read last."""

    task: Task
    attempt: int
    batch: Batch | None
    running: bool
    totals: Totals
    order: tuple[int, int]
    """Of two attempts, the one that was read later is the later one: number of the look, of the attempt."""
    changed: float
    """When it was read, on the driver's monotonic clock."""


class Seen(NamedTuple):
    """What one look has found."""

    totals: Totals
    """Of all tasks."""
    running: int
    """Tasks that run."""
    ended: int
    """Tasks that have ended."""


class ProgressReader:
    """Reads the folders in `folder`, one an operator. One thread at a time. clock: monotonic seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock
        self._look = 0
        self._files: dict[str, tuple[int, int]] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._folded: set[str] = set()
        self._sum = _Sum()
        self._tasks_ended = 0
        self._tasks: OrderedDict[Task, TaskTotals] = OrderedDict()
        self._partitions: dict[int, _Sum] = {}
        self._batches: OrderedDict[Batch, _Sum] = OrderedDict()
        self._warned = False

    def look(self) -> Seen:
        """Read what has changed, and add all up."""
        self._look += 1
        self._read()
        now = self._clock()
        self._fold(now)
        live = self._live()
        # A task that runs again after it was folded counts its rows again.
        folded = [_rows_back(self._tasks[task].totals) for task in live if task in self._tasks]
        totals = merge([self._sum.total(), *folded, *(_joined(each, now) for each in live.values())])
        running = sum(1 for attempts in live.values() if any(_runs(each, now) for each in attempts))
        return Seen(totals, running, self._tasks_ended - len(folded) + len(live) - running)

    def tasks(self) -> list[TaskTotals]:
        """All tasks that run, and the last `MOST_TASKS` that have ended, as of the last look."""
        now = self._clock()
        found = dict(self._tasks)
        for task, attempts in self._live().items():
            live = _task(task, attempts, now)
            before = found.get(task)
            if before is not None:
                rows_of_both = [without_rows(before.totals), live.totals]
                live = live._replace(attempts=before.attempts + live.attempts, totals=merge(rows_of_both))
            found[task] = live
        return [found[task] for task in sorted(found)]

    def partitions(self) -> dict[int, Totals]:
        """The totals by partition, over all stages; -1 for all from `MOST_TASKS` on. As of the last look."""
        now = self._clock()
        parts = {key: [some.total()] for key, some in self._partitions.items()}
        for task, attempts in self._live().items():
            parts.setdefault(_bounded(task[2]), []).append(_joined(attempts, now))
        return {key: merge(some) for key, some in sorted(parts.items())}

    def batch(self, query: str, number: int) -> Totals:
        """The totals of one micro-batch, as of the last look; nothing for one that is long gone."""
        now, key = self._clock(), (query, number)
        parts = [self._batches[key].total()] if key in self._batches else []
        for attempts in self._live().values():
            some = [each for each in attempts if each.batch == key]
            if some:
                parts.append(_joined(some, now))
        return merge(parts)

    # -- reading ------------------------------------------------------------------------------

    def _read(self) -> None:
        now = self._clock()
        there = set()
        for operator, name, path, stamp in self._entries():
            there.add(path)
            if path in self._folded or self._files.get(path) == stamp:
                continue
            try:
                written = json.loads(Path(path).read_text(encoding="utf-8"))
                attempt = self._attempt(operator, written, now)
            except (OSError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, ValueError) and not self._warned:
                    self._warned = True
                    log.warning("progress: %s cannot be read and is not counted: %s", name, error)
                continue
            self._files[path] = stamp
            self._attempts[path] = attempt
        self._folded &= there

    def _entries(self) -> Iterator[tuple[int, str, str, tuple[int, int]]]:
        for folder in _scan(self._folder):
            number = folder.name.partition("-")[0]
            if not number.isdigit():
                continue
            for entry in _scan(folder.path):
                if entry.name.endswith(".json"):
                    try:
                        found = entry.stat()
                    except OSError:
                        continue
                    # Each write replaces the file: one that was written anew has another number.
                    yield int(number), entry.name, entry.path, (found.st_ino, found.st_mtime_ns)

    def _attempt(self, operator: int, written: dict[str, Any], now: float) -> _Attempt:
        query, batch = written["query"], written["batch"]
        running = bool(written["running"])
        totals = from_json(written["totals"])
        return _Attempt(
            task=(operator, int(written["stage"]), int(written["partition"])),
            attempt=int(written["attempt"]),
            batch=None if query is None or batch is None else (str(query), int(batch)),
            running=running,
            totals=totals if running else ended(totals),
            order=(self._look, int(written["attempt"])),
            changed=now,
        )

    # -- adding up ----------------------------------------------------------------------------

    def _live(self) -> dict[Task, list[_Attempt]]:
        found: dict[Task, list[_Attempt]] = {}
        for attempt in self._attempts.values():
            found.setdefault(attempt.task, []).append(attempt)
        return found

    def _fold(self, now: float) -> None:
        paths: dict[Task, list[str]] = {}
        for path, attempt in self._attempts.items():
            paths.setdefault(attempt.task, []).append(path)
        # The oldest first, since the oldest are forgotten first.
        for task, some in sorted(paths.items(), key=lambda item: (item[0][1], item[0])):
            attempts = [self._attempts[path] for path in some]
            if any(now - each.changed < (GONE if each.running else SETTLED) for each in attempts):
                continue
            self._add(task, attempts, now)
            for path in some:
                del self._attempts[path], self._files[path]
                self._folded.add(path)
                try:
                    os.unlink(path)
                except OSError:
                    continue

    def _add(self, task: Task, attempts: list[_Attempt], now: float) -> None:
        done = _task(task, attempts, now)
        added = done.totals
        before = self._tasks.pop(task, None)
        changes = [added]
        if before is None:
            self._tasks_ended += 1
        else:
            done = done._replace(
                attempts=before.attempts + done.attempts,
                totals=merge([without_rows(before.totals), added]),
            )
            changes.append(_rows_back(before.totals))
        self._sum.add(changes)
        self._tasks[task] = done
        while len(self._tasks) > MOST_TASKS:
            self._tasks.popitem(last=False)
        self._partitions.setdefault(_bounded(task[2]), _Sum()).add(changes)
        key = attempts[0].batch
        if key is not None:
            self._batches.setdefault(key, _Sum()).add(changes)
            while len(self._batches) > MOST_TASKS:
                self._batches.popitem(last=False)


class _Sum:
    """Totals that add up; a few at a time, since adding histograms costs much more than keeping some."""

    def __init__(self) -> None:
        self._parts: list[Totals] = []

    def add(self, parts: Iterable[Totals]) -> None:
        self._parts += parts
        if len(self._parts) > PARTS:
            self._parts = [merge(self._parts)]

    def total(self) -> Totals:
        if len(self._parts) != 1:
            self._parts = [merge(self._parts)]
        return self._parts[0]


def _bounded(partition: int) -> int:
    return partition if partition < MOST_TASKS else -1


def _scan(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _runs(attempt: _Attempt, now: float) -> bool:
    # The file of a task that was killed says for ever that it runs.
    return attempt.running and now - attempt.changed < STALE


def _joined(attempts: Iterable[_Attempt], now: float) -> Totals:
    """The totals of one task: rows of the latest attempt, since each reads them all; calls of all."""
    some = list(attempts)
    latest = max(some, key=lambda each: each.order)
    parts = []
    for each in some:
        totals = ended(each.totals) if each.running and not _runs(each, now) else each.totals
        parts.append(totals if each is latest else without_rows(totals))
    return parts[0] if len(parts) == 1 else merge(parts)


def _task(task: Task, attempts: list[_Attempt], now: float) -> TaskTotals:
    running = any(_runs(each, now) for each in attempts)
    return TaskTotals(*task, len(attempts), running, _joined(attempts, now))


def _rows_back(totals: Totals) -> Totals:
    """What takes the rows of these totals back, when it is added."""
    return Totals(**{name: -getattr(totals, name) for name in ROWS})
