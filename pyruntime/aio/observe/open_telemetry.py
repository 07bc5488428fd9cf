"""Totals for OpenTelemetry, through its API: `OpenTelemetryExporter`.

For any thread. Where they go (OTLP, a console) and how often they are read is the SDK's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox.aio.observe.metrics import COUNTERS, DURATIONS, GAUGES, Metric, Sources
from pillarbox.aio.observe.totals import Totals
from pillarbox.mailbox.histogram import LatencySnapshot, seconds_of

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

MOST = 100

UNITS = {"seconds": "s", "bytes": "By", "": "1"}

Callback = Callable[["CallbackOptions"], Iterable["Observation"]]
Values = Callable[[Totals], Iterable[tuple[dict[str, str], float]]]


class OpenTelemetryExporter:
    """Observable counters and gauges of what is observed.

        exporter = OpenTelemetryExporter(provider)
        exporter.add(progress, query="enrich")

    provider: a MeterProvider; None for the global one. prefix: of all names. per_task, most: as for
        `PrometheusExporter`.

    The API has no histogram that is observed, so durations are gauges: the quantiles 0.5, 0.95, 0.99 and 1,
    as the attribute `quantile`, beside counters of their number and their sum. Quantiles of several
    exporters do not add up; those of `PrometheusExporter` come from buckets, which do.

    Needs the package opentelemetry-api (extra `opentelemetry`): raises ImportError without. Raises TypeError
    or ValueError for a bad argument.
    """

    def __init__(
        self,
        provider: MeterProvider | None = None,
        prefix: str = "pillarbox",
        *,
        per_task: bool = False,
        most: int = MOST,
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
        # What OpenTelemetry allows in the name of an instrument, and room for ours.
        allowed = isinstance(prefix, str) and prefix[:1].isalpha() and prefix.isascii() and len(prefix) <= 100
        if not allowed or not prefix.replace(".", "").replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"prefix={prefix!r}: must be up to 100 letters, digits and _.-, a letter first")
        self._prefix = prefix
        self._sources = Sources(per_task, most)
        self._closed = False
        self._make(get_meter("pillarbox") if provider is None else provider.get_meter("pillarbox"))

    def add(self, source: Any, *, query: str = "", operator: str = "") -> None:
        """Observe `source`: a `Progress`, a `Watch`, the iterator of `async_map`, a `SourceCoordinator`.

        query, operator: its attributes; no two sources may have the same. Raises TypeError or ValueError for
        a bad argument, and where there are `most` sources already.
        """
        self._sources.add(source, query, operator)

    def remove(self, source: Any) -> None:
        """Observe `source` no more."""
        self._sources.remove(source)

    def close(self) -> None:
        """Give no more values: instruments themselves cannot be taken out of a meter. Idempotent."""
        self._closed = True

    def _make(self, meter: Meter) -> None:
        for metric in COUNTERS:
            name, unit = f"{self._prefix}.{metric.name}", UNITS[metric.unit]
            meter.create_observable_counter(name, [self._callback(_values(metric))], unit, metric.help)
        for metric in GAUGES:
            name, unit = f"{self._prefix}.{metric.name}", UNITS[metric.unit]
            meter.create_observable_gauge(name, [self._callback(_values(metric))], unit, metric.help)
        for metric in DURATIONS:
            name = f"{self._prefix}.{metric.name}"
            quantiles, count, total = (
                self._callback(partial(_measured, metric, take)) for take in (_quantiles, _count, _sum)
            )
            meter.create_observable_gauge(name, [quantiles], "s", f"{metric.help}: quantiles")
            meter.create_observable_counter(f"{name}.count", [count], "1", f"{metric.help}: how many")
            meter.create_observable_counter(f"{name}.sum", [total], "s", f"{metric.help}: in all, estimated")

    def _callback(self, values: Values) -> Callback:
        from opentelemetry.metrics import Observation

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            if self._closed:
                return []
            return [
                Observation(value, {**{name: label for name, label in labels.items() if label}, **more})
                for labels, totals in self._sources.read()
                for more, value in values(totals)
            ]

        return observe


def _values(metric: Metric) -> Values:
    def values(totals: Totals) -> Iterable[tuple[dict[str, str], float]]:
        value = getattr(totals, metric.field)
        if metric.label is None:
            return [({}, value)]
        return [({metric.label: key}, one) for key, one in value.items()]

    return values


def _measured(
    metric: Metric, take: Callable[[LatencySnapshot], list[tuple[dict[str, str], float]]], totals: Totals
) -> list[tuple[dict[str, str], float]]:
    return take(getattr(totals, metric.field))


def _count(snapshot: LatencySnapshot) -> list[tuple[dict[str, str], float]]:
    return [({}, snapshot.measurements)]


def _sum(snapshot: LatencySnapshot) -> list[tuple[dict[str, str], float]]:
    return [({}, seconds_of(snapshot))]


def _quantiles(snapshot: LatencySnapshot) -> list[tuple[dict[str, str], float]]:
    if not snapshot.measurements:
        return []
    values = (("0.5", snapshot.p50), ("0.95", snapshot.p95), ("0.99", snapshot.p99), ("1", snapshot.max))
    return [({"quantile": name}, value) for name, value in values]
