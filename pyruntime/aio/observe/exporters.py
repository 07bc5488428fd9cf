"""Exporters of totals, for Prometheus and OpenTelemetry, and the server that Prometheus asks.

For any thread. Everything is read when it is asked for; between two scrapes nothing runs.
"""

# Both exporters are collectors: they read totals that are kept anyway, instead of counting beside the
# operator in instruments of their libraries. Counting there would take a lock for each row, and count twice
# what tasks of Spark do again. What a collector costs is that OpenTelemetry has no histogram that is
# observed: see below.
#
# prometheus_client answers requests by its own server, which would listen on all interfaces for whoever
# asks, wait for clients that say nothing, and start a thread for each. On loopback that is good enough;
# beyond it, a proxy is better at this than anything here.

from __future__ import annotations

import dataclasses
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pillarbox.aio.observe.series import read_totals
from pillarbox.aio.totals import INSTRUMENTS, TABLES, Instrument, Totals, instruments
from pillarbox.mailbox.metrics import LatencySnapshot
from pillarbox.validate import check_int

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

OTHER = "(other)"
"""The label of all that came when there were labels enough."""

MAX_KEYS = 50
"""Classes of errors that have a label of their own."""

MAX_SOURCES = 100
"""Sources of one exporter: each has labels of its own, and whoever stores metrics pays for those."""

LOOPBACK = "127.0.0.1"

PROMETHEUS_BOUNDS_S = tuple((steps << power) * 1e-9 for power in range(16, 40) for steps in (2, 3))
"""Two bounds in each power of two, from 0.13 ms to 27 minutes; all of them bounds of the histogram's own
buckets, so that counts are exact."""

OPEN_TELEMETRY_UNITS = {"seconds": "s", "bytes": "By", "": "1"}

GAUGES = ("level", "levels", "most", "least")
"""The kinds of instruments that hold amounts of now."""
_JOINS: dict[str, Callable[[Any, Any], Any]] = {"most": max, "least": min}
"""The functions that make one value of the values of several keys; the others are added."""

LABELS = ["query", "operator"]
Labels = dict[str, str]


class _Exported:
    """One observed source, its labels, and what has been read of it."""

    def __init__(self, source: object, labels: Labels) -> None:
        self.source = source
        self.labels = labels
        # Rows of a task that runs again are counted from 0 again; a counter may not go back.
        self._rows = dict.fromkeys(instruments("row"), 0)
        self._keys: dict[str, set[str]] = {name: set() for name in instruments(*TABLES)}

    def read(self) -> Totals:
        """The totals as they are now, with rows that never go back, and a bound on the keys of tables."""
        totals = read_totals(self.source)
        changed: dict[str, Any] = {}
        for name, highest in self._rows.items():
            changed[name] = self._rows[name] = max(highest, getattr(totals, name))
        for name, known in self._keys.items():
            table: dict[str, Any] = {}
            for key, value in getattr(totals, name).items():
                if len(known) < MAX_KEYS:
                    known.add(key)
                label = key if key in known else OTHER
                join = _JOINS.get(INSTRUMENTS[name].kind, operator.add)
                table[label] = join(table[label], value) if label in table else value
            changed[name] = table
        return dataclasses.replace(totals, **changed)


class SourceExporter:
    """The sources of one exporter, each with its labels, bounded in number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[int, _Exported] = {}

    def add(self, source: object, *, query: str = "", operator: str = "") -> None:
        """Observe `source`: a `Progress`, a `Watch`, the iterator of `async_map`.

        query, operator: its labels; no two sources may have the same. Raises TypeError or ValueError for a
        bad argument, and where a hundred sources are observed already.
        """
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
            if len(self._sources) >= MAX_SOURCES:
                raise ValueError(f"{MAX_SOURCES} sources are observed already: remove one")
            self._sources[id(source)] = _Exported(source, labels)

    def remove(self, source: object) -> None:
        """Observe `source` no more: its metrics vanish. Without effect for one that is not observed."""
        with self._lock:
            self._sources.pop(id(source), None)

    def _read(self) -> list[tuple[Labels, Totals]]:
        """The labels and totals of all sources, as they are now."""
        with self._lock:
            return [(each.labels, each.read()) for each in self._sources.values()]


def _check_prefix(prefix: str, allowed: str, rule: str) -> str:
    if not isinstance(prefix, str) or not re.fullmatch(allowed, prefix):
        raise ValueError(f"prefix={prefix!r}: must be {rule}")
    return prefix


class PrometheusExporter(SourceExporter):
    """Collector of `prometheus_client`: counters, gauges and histograms of the sources added to it.

    registry: the registry of the collector; None for a new one.
    prefix: of all names; letters, digits and underscores.

        >>> from pillarbox import async_map
        >>> from pillarbox.aio.observe.exporters import PrometheusExporter
        >>> async def call(row):
        ...     return row + 1
        >>> exporter = PrometheusExporter()
        >>> with async_map([1, 2, 3], call) as results:
        ...     exporter.add(results, query="enrich")
        ...     numbers = list(results)
        >>> [family] = [each for each in exporter.collect() if each.name == "pillarbox_results"]
        >>> family.samples[0].value
        3
        >>> exporter.close()

    `with exporter.serve(9464):` answers `GET /metrics`. Counts of rows never decrease: a task that runs again
    counts again only from its previous count. The sums of the histograms are estimates from the buckets, off
    by a sixteenth at most; the counts are exact.

    Any thread. Needs the package prometheus_client (extra `prometheus`): raises ImportError without it.
    Raises TypeError or ValueError for a bad argument, and if the registry has metrics of these names: one
    exporter is enough for all sources, and two need different prefixes.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        prefix: str = "pillarbox",
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise ImportError(
                "PrometheusExporter needs the package prometheus_client (pip install 'pillarbox[prometheus]')"
            ) from None
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise TypeError(f"registry={registry!r}: must be a prometheus_client.CollectorRegistry or None")
        super().__init__()
        rule = "letters, digits and underscores, no digit first"
        self._prefix = _check_prefix(prefix, "[a-zA-Z_][a-zA-Z0-9_]*", rule)
        self._registry: Any = CollectorRegistry() if registry is None else registry
        self._registry.register(self)

    def close(self) -> None:
        """Take the collector out of its registry. Idempotent."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.unregister(self)

    def serve(self, port: int) -> MetricsServer:
        """Answer `GET /metrics` over HTTP on loopback, until the server that is given back is closed.

        port: 0 for any that is free; the server's `port` says which.

        Raises TypeError or ValueError for a bad port, OSError where it is taken.
        """
        return MetricsServer(check_int("port", port, 0, 65_535), self._registry)

    def describe(self) -> Iterator[Metric]:
        """All metrics without values: a registry refuses names that it has. Called by the registry."""
        return self._metrics([])

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now. Called by the registry, in any thread."""
        return self._metrics(self._read())

    def _metrics(self, read: list[tuple[Labels, Totals]]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labelled = [([*labels.values()], totals) for labels, totals in read]
        for field, each in INSTRUMENTS.items():
            if each.export is None:
                continue
            name = "_".join(part for part in (self._prefix, each.export or field, each.unit) if part)
            if each.kind == "histogram":
                histogram = HistogramMetricFamily(name, each.help, labels=LABELS)
                for labels, totals in labelled:
                    snapshot: LatencySnapshot = getattr(totals, field)
                    histogram.add_metric(labels, _cumulative(snapshot), snapshot.total)
                yield histogram
                continue
            of_kind = GaugeMetricFamily if each.kind in GAUGES else CounterMetricFamily
            plain = of_kind(name, each.help, labels=[*LABELS, *each.label.split()])
            for labels, totals in labelled:
                for key, value in _values(each, getattr(totals, field)):
                    plain.add_metric([*labels, *_parts(each.label, key).values()], value)
            yield plain


def _values(instrument: Instrument, value: Any) -> Iterable[tuple[str, float]]:
    return value.items() if instrument.kind in TABLES else [("", value)]


def _parts(label: str, key: str) -> Labels:
    """The labels of a key: none, one, or two, whose key has two parts."""
    first, _, second = label.partition(" ")
    if not second:
        return {first: key} if first else {}
    begin, _, end = key.rpartition(" ")
    return {first: begin, second: end}


def _cumulative(snapshot: LatencySnapshot) -> list[tuple[str, float]]:
    """The buckets in Prometheus' form: each counts what is at most its bound."""
    found: list[tuple[str, float]] = []
    count, rest = 0, [*reversed(snapshot.buckets)]
    for bound in PROMETHEUS_BOUNDS_S:
        while rest and rest[-1][0] <= bound:
            count += rest.pop()[1]
        found.append((repr(bound), count))
    return [*found, ("+Inf", snapshot.measurements)]


class OpenTelemetryExporter(SourceExporter):
    """Observable counters and gauges of OpenTelemetry for the sources added to it.

    provider: a MeterProvider; None for the global one. prefix: of all names.

        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> from pillarbox import async_map
        >>> from pillarbox.aio.observe.exporters import OpenTelemetryExporter
        >>> async def call(row):
        ...     return row + 1
        >>> reader = InMemoryMetricReader()
        >>> exporter = OpenTelemetryExporter(MeterProvider([reader]))
        >>> with async_map([1, 2, 3], call) as results:
        ...     exporter.add(results, query="enrich")
        ...     numbers = list(results)
        >>> [scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
        >>> [metric] = [each for each in scope.metrics if each.name == "pillarbox.results"]
        >>> metric.data.data_points[0].value
        3
        >>> exporter.close()

    The API has no observable histogram, so durations are gauges: the quantiles 0.5, 0.95, 0.99 and 1, as the
    attribute `quantile`, with counters of their number and their sum. Quantiles of several exporters cannot
    be added; those of `PrometheusExporter` come from buckets, which can.

    Any thread. Needs the package opentelemetry-api (extra `opentelemetry`): raises ImportError without it.
    Raises TypeError or ValueError for a bad argument.
    """

    def __init__(
        self,
        provider: MeterProvider | None = None,
        prefix: str = "pillarbox",
    ) -> None:
        try:
            from opentelemetry.metrics import MeterProvider, get_meter
        except ImportError:
            raise ImportError(
                "OpenTelemetryExporter needs the package opentelemetry-api "
                "(pip install 'pillarbox[opentelemetry]')"
            ) from None
        if provider is not None and not isinstance(provider, MeterProvider):
            raise TypeError(f"provider={provider!r}: must be an opentelemetry MeterProvider or None")
        # As OpenTelemetry allows in the name of an instrument, with room for ours.
        allowed = "[a-zA-Z][a-zA-Z0-9_.-]{0,99}"
        _check_prefix(prefix, allowed, "up to 100 letters, digits and _.-, a letter first")
        super().__init__()
        self._closed = False
        meter = get_meter("pillarbox") if provider is None else provider.get_meter("pillarbox")
        for field, each in INSTRUMENTS.items():
            if each.export is None:
                continue
            name, unit = f"{prefix}.{each.export or field}", OPEN_TELEMETRY_UNITS[each.unit]
            make = meter.create_observable_counter
            if each.kind == "histogram":
                # The API has no histogram that is observed.
                make(f"{name}.count", [self._callback(field, _number)], "1", f"{each.help}: how many")
                make(f"{name}.sum", [self._callback(field, _sum)], unit, f"{each.help}: in all, estimated")
                quantiles = [self._callback(field, _quantiles)]
                meter.create_observable_gauge(name, quantiles, unit, f"{each.help}: quantiles")
            elif each.kind in GAUGES:
                meter.create_observable_gauge(name, [self._callback(field)], unit, each.help)
            else:
                make(name, [self._callback(field)], unit, each.help)

    def close(self) -> None:
        """Give no more values: instruments themselves cannot be taken out of a meter. Idempotent."""
        self._closed = True

    def _callback(
        self, field: str, values: Callable[[Any], Iterable[tuple[str, float]]] | None = None
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        instrument = INSTRUMENTS[field]
        attribute = instrument.label or "quantile"

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            if self._closed:
                return
            for labels, totals in self._read():
                value = getattr(totals, field)
                for key, one in _values(instrument, value) if values is None else values(value):
                    given: dict[str, str | int] = {**labels}
                    for name, part in _parts(attribute, key).items():
                        given |= _attributes(name, part)
                    yield Observation(one, {name: label for name, label in given.items() if label})

        return observe


def _attributes(label: str, key: str) -> dict[str, str | int]:
    """The attributes for a label, under the names of OpenTelemetry's conventions where these have one."""
    if label != "server_address":
        return {label: key}
    host, _, port = key.rpartition(":")
    if not host or not port.isdecimal() or "/" in key:
        return {"server.address": key}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


def _number(snapshot: LatencySnapshot) -> Iterable[tuple[str, float]]:
    return [("", snapshot.measurements)]


def _sum(snapshot: LatencySnapshot) -> Iterable[tuple[str, float]]:
    return [("", snapshot.total)]


def _quantiles(snapshot: LatencySnapshot) -> Iterable[tuple[str, float]]:
    if not snapshot.measurements:
        return []
    return [("0.5", snapshot.p50), ("0.95", snapshot.p95), ("0.99", snapshot.p99), ("1", snapshot.max)]


class MetricsServer:
    """The server of prometheus_client on loopback, from its making on until it is closed. Any one thread."""

    def __init__(self, port: int, registry: CollectorRegistry) -> None:
        from prometheus_client import start_http_server

        self._server, self._thread = start_http_server(port, LOOPBACK, registry)
        self.port = self._server.server_port
        """The port that it listens on."""
        self.url = f"http://{LOOPBACK}:{self.port}/metrics"
        """The address at which Prometheus finds the metrics."""

    def close(self) -> None:
        """Stop listening and wait for the server's thread. Idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
