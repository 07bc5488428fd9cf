"""What exporters export: the table of metrics, and the sources with their labels, bounded in number.

`Sources` is for any thread.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pillarbox.aio.observe.totals import ROWS, TABLES, Totals, merge
from pillarbox.aio.observe.watch import read_totals
from pillarbox.validate import check_positive_int

OTHER = "(other)"
"""The label of all that came when there were labels enough."""

MOST_KEYS = 50
"""Classes of errors that have a label of their own."""


class Metric(NamedTuple):
    """One counter or gauge, or a family of them that differ in one label."""

    name: str
    """Without prefix, unit suffix and `_total`."""
    field: str
    """The field of `Totals`; a mapping where there is a `label`."""
    help: str
    """What it counts."""
    unit: str = ""
    """The unit in the words of Prometheus, as in "seconds"; empty for plain counts."""
    label: str | None = None
    """The label that the keys of the mapping go to."""


COUNTERS = (
    Metric("rows_in", "rows_in", "Rows admitted"),
    Metric("results", "results", "Rows whose results were emitted"),
    Metric("calls", "calls", "Attempts at calls: what the service saw"),
    Metric("retries", "retries_by_reason", "Attempts followed by another", label="reason"),
    Metric("errors", "errors_by_type", "Rows that failed for good", label="type"),
    Metric("timeouts", "timeouts", "Attempts and rows that met a limit of time"),
    Metric("late", "late", "Outcomes that came after their call's time-out"),
    Metric("abandoned", "abandoned", "Calls that did not end when they were cancelled"),
    Metric("shared", "shared", "Rows that shared the call of an equal one"),
    Metric("batches", "batches", "Calls made with a list of rows"),
    Metric("not_called", "not_called", "Rows not called, since a budget was used up"),
    Metric("found", "found", "Rows whose results were found in the ledger"),
    Metric("tokens", "tokens", "Tokens, as the usage function gives them"),
    Metric("cost", "cost", "Cost, as the usage function gives it"),
    Metric("rate_granted", "rate_granted", "Calls that the rate has let through"),
    Metric("cool_downs", "cool_downs", "Times that all calls were held back for an overloaded service"),
    Metric("spent", "spent", "Time of operators by what it went on", "seconds", "on"),
)
GAUGES = (
    Metric("in_flight", "in_flight", "Calls in flight"),
    Metric("capacity", "capacity", "Calls that may be in flight"),
    Metric("waiting", "waiting", "Rows that wait for a slot, the rate or their retry"),
    Metric("finished_waiting", "finished_waiting", "Finished rows that wait for their order"),
    Metric("held", "held_bytes", "Bytes of rows held, by estimate", "bytes"),
    Metric("held_splits", "held_splits", "Splits of a source that event-time alignment holds back"),
    Metric(
        "splits_held", "held_seconds", "For how long it has held splits back for the same ones", "seconds"
    ),
)
DURATIONS = (
    Metric("attempt_duration", "latency", "How long attempts took", "seconds"),
    Metric("call_duration", "call_latency", "How long rows took over all their attempts", "seconds"),
)


class _Source:
    """One observed source and what has been read of it."""

    def __init__(self, source: Any, labels: dict[str, str]) -> None:
        self.source = source
        self.labels = labels
        # Rows of a task that runs again are counted from 0 again; a counter may not go back.
        self.most: dict[str, dict[str, int]] = {}
        self.keys: dict[str, set[str]] = {name: set() for name in TABLES}


class Sources:
    """The sources of one exporter, each with its labels.

    per_task: one set of metrics a partition, where a source knows them, with the label `task`.
    most: sets of labels, at most. What comes when there are so many is added up under "(other)".
    """

    def __init__(self, per_task: bool, most: int) -> None:
        check_positive_int("most", most)
        self.label_names = ("query", "operator", "task") if per_task else ("query", "operator")
        self._most = most
        self._lock = threading.Lock()
        self._sources: dict[int, _Source] = {}
        self._tasks: set[tuple[int, str]] = set()

    def add(self, source: Any, query: str, operator: str) -> None:
        """Observe one more source. Raises TypeError for what is none, ValueError for one or labels in use."""
        read_totals(source)
        for name, value in (("query", query), ("operator", operator)):
            if not isinstance(value, str):
                raise TypeError(f"{name}={value!r}: must be a text")
        labels = {"query": query, "operator": operator}
        with self._lock:
            if id(source) in self._sources:
                known = self._sources[id(source)].labels
                raise ValueError(f"source: is observed already, with the labels {known}")
            if any(each.labels == labels for each in self._sources.values()):
                raise ValueError(f"query={query!r}, operator={operator!r}: is observed already")
            if len(self._sources) >= self._most:
                raise ValueError(
                    f"{self._most} sources are observed already: remove one, or allow more by `most`"
                )
            self._sources[id(source)] = _Source(source, labels)

    def remove(self, source: Any) -> None:
        """Observe a source no more; its metrics vanish. Without effect for one that is not observed."""
        with self._lock:
            self._sources.pop(id(source), None)
            self._tasks = {task for task in self._tasks if task[0] != id(source)}

    def read(self) -> list[tuple[dict[str, str], Totals]]:
        """The labels and totals of all sources, as they are now."""
        found = []
        with self._lock:
            for number, source in self._sources.items():
                for task, totals in self._parts(number, source.source):
                    labels = source.labels if task is None else {**source.labels, "task": task}
                    found.append((labels, self._steady(source, task or "", totals)))
        return found

    def _parts(self, number: int, source: Any) -> Iterable[tuple[str | None, Totals]]:
        if "task" not in self.label_names:
            return [(None, read_totals(source))]
        partitions: Mapping[int, Totals] | None = getattr(source, "partitions", None)
        if partitions is None:
            return [("", read_totals(source))]
        parts: dict[str, list[Totals]] = {}
        for partition, totals in sorted(partitions.items()):
            name = str(partition) if partition >= 0 else OTHER
            if (number, name) not in self._tasks:
                if len(self._tasks) < self._most:
                    self._tasks.add((number, name))
                else:
                    name = OTHER
            parts.setdefault(name, []).append(totals)
        return [(name, merge(some)) for name, some in parts.items()]

    def _steady(self, source: _Source, part: str, totals: Totals) -> Totals:
        most = source.most.setdefault(part, {})
        changed: dict[str, Any] = {}
        for name in ROWS:
            most[name] = changed[name] = max(most.get(name, 0), getattr(totals, name))
        for name in TABLES:
            changed[name] = _bounded(getattr(totals, name), source.keys[name])
        return dataclasses.replace(totals, **changed)


def _bounded(table: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known and len(known) < MOST_KEYS:
            known.add(key)
        name = key if key in known else OTHER
        found[name] = found.get(name, 0) + value
    return found
