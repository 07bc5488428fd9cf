"""Totals for Prometheus, through its own client: `PrometheusExporter`.

For any thread. Everything is read when Prometheus asks; between two scrapes nothing runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pillarbox.aio.observe.metrics import COUNTERS, DURATIONS, GAUGES, Metric, Sources
from pillarbox.aio.observe.totals import Totals
from pillarbox.mailbox.histogram import LatencySnapshot, seconds_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

    from pillarbox.aio.observe.metrics_server import MetricsServer

MOST = 100

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")

# Two bounds in each power of two, from 0.13 ms to 27 minutes; all of them bounds of the histogram's own
# buckets, so that counts are exact.
BOUNDS = tuple((steps << power) * 1e-9 for power in range(16, 40) for steps in (2, 3))


class PrometheusExporter:
    """Counters, gauges and histograms of what is observed, as a collector of `prometheus_client`.

        exporter = PrometheusExporter()
        exporter.add(progress, query="enrich")
        with exporter.serve(9464):
            ...

    registry: where the collector is registered; None for a registry of its own.
    prefix: of all names; letters, digits and underscores.
    per_task: one set of metrics a partition, with the label `task`.
    most: sets of labels, at most; what comes later is added up under "(other)".

    Counts of rows never go back: a task that runs again counts again only from where it was. The sums of the
    histograms are estimates from the buckets, off by a sixteenth at most; the counts are exact.

    Needs the package prometheus_client (extra `prometheus`): raises ImportError without. Raises TypeError
    or ValueError for a bad argument, and where the registry has metrics of these names: one exporter is
    enough for all sources, and two need a prefix each.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        prefix: str = "pillarbox",
        *,
        per_task: bool = False,
        most: int = MOST,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise ImportError(
                "PrometheusExporter needs the package prometheus_client (pip install 'pillarbox[prometheus]')"
            ) from None
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise TypeError(f"registry={registry!r}: must be a prometheus_client.CollectorRegistry or None")
        if not isinstance(prefix, str) or not NAME.match(prefix):
            raise ValueError(f"prefix={prefix!r}: must be letters, digits and underscores, no digit first")
        self._prefix = prefix
        self._sources = Sources(per_task, most)
        self._registry = CollectorRegistry() if registry is None else registry
        self._registry.register(self)

    def add(self, source: Any, *, query: str = "", operator: str = "") -> None:
        """Observe `source`: a `Progress`, a `Watch`, the iterator of `async_map`, a `SourceCoordinator`.

        query, operator: its labels; no two sources may have the same. Raises TypeError or ValueError for a
        bad argument, and where there are `most` sources already.
        """
        self._sources.add(source, query, operator)

    def remove(self, source: Any) -> None:
        """Observe `source` no more: its metrics vanish from the next scrape."""
        self._sources.remove(source)

    def close(self) -> None:
        """Take the collector out of its registry. Idempotent."""
        registry, self._registry = self._registry, None  # type: ignore[assignment]
        if registry is not None:
            registry.unregister(self)

    def serve(self, port: int, host: str = "127.0.0.1", *, token: str | None = None) -> MetricsServer:
        """Answer `GET /metrics` over HTTP, until the server that is given back is closed.

        port: 0 for any that is free; the server's `port` says which. host: an address of this machine's; one
        beyond loopback needs a `token`, which Prometheus then sends as `Authorization: Bearer`. The traffic
        is not encrypted: beyond loopback, put a proxy with TLS before it, or stay in a network you trust.

        Raises ValueError for a host beyond loopback without a token, OSError where the port is taken.
        """
        from prometheus_client import make_wsgi_app

        # An HTTP server is imported only where there is to be one.
        from pillarbox.aio.observe.metrics_server import MetricsServer

        return MetricsServer(make_wsgi_app(self._registry), port, host, token)

    def describe(self) -> Iterator[Family]:
        """All metrics without values: a registry refuses names that it has. Called by the registry."""
        return self._families([])

    def collect(self) -> Iterator[Family]:
        """All metrics as they are now. Called by the registry, in any thread."""
        return self._families(self._sources.read())

    def _families(self, found: list[tuple[dict[str, str], Totals]]) -> Iterator[Family]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        names = list(self._sources.label_names)
        for metric in COUNTERS:
            labels = names if metric.label is None else [*names, metric.label]
            counter = CounterMetricFamily(self._name(metric), metric.help, labels=labels)
            for values, value in _samples(metric, found, names):
                counter.add_metric(values, value)
            yield counter
        for metric in GAUGES:
            gauge = GaugeMetricFamily(self._name(metric), metric.help, labels=names)
            for values, value in _samples(metric, found, names):
                gauge.add_metric(values, value)
            yield gauge
        for metric in DURATIONS:
            histogram = HistogramMetricFamily(self._name(metric), metric.help, labels=names)
            for given, totals in found:
                snapshot = getattr(totals, metric.field)
                histogram.add_metric(
                    [given.get(name, "") for name in names], _buckets(snapshot), seconds_of(snapshot)
                )
            yield histogram

    def _name(self, metric: Metric) -> str:
        return "_".join(part for part in (self._prefix, metric.name, metric.unit) if part)


def _samples(
    metric: Metric, found: list[tuple[dict[str, str], Totals]], names: list[str]
) -> Iterator[tuple[list[str], float]]:
    for given, totals in found:
        labels = [given.get(name, "") for name in names]
        value = getattr(totals, metric.field)
        if metric.label is None:
            yield labels, value
        else:
            for key, one in value.items():
                yield [*labels, key], one


def _buckets(snapshot: LatencySnapshot) -> list[tuple[str, float]]:
    """The buckets as Prometheus has them: each counts what is at most its bound."""
    buckets: list[tuple[str, float]] = []
    seen, held = 0, iter(snapshot.buckets)
    following = next(held, None)
    for bound in BOUNDS:
        while following is not None and following[0] <= bound:
            seen += following[1]
            following = next(held, None)
        buckets.append((repr(bound), seen))
    return [*buckets, ("+Inf", snapshot.measurements)]
