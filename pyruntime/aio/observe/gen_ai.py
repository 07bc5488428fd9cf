"""The metrics of generative AI in OpenTelemetry's names, as histograms. Needs the package opentelemetry-sdk.

For any thread. Nothing runs between two exports.
"""

# The API has no histogram that is observed, and one of the SDK costs its price for every call. So this stands
# in front of the exporter that the reader of a MeterProvider has, and adds what was counted to what that
# exports. Names, units and bounds are those of the semantic conventions for generative AI clients.

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pillarbox.aio.gen_ai import ERROR_TYPE, TOKEN_S, TOKEN_TYPE, attributes_of, read_series
from pillarbox.aio.observe.exporters import SourceExporter
from pillarbox.mailbox.metrics import LatencySnapshot, lower_bound

TOKEN_BOUNDS = tuple(4.0**power for power in range(14))
DURATION_BOUNDS_S = tuple(0.01 * 2**power for power in range(14))
SCOPE = InstrumentationScope("pillarbox.gen_ai")
"""A scope of its own: exporters take each for the whole of its metrics."""


class GenAiMetrics(SourceExporter, MetricExporter):
    """Exporter that adds `gen_ai.client.token.usage` and `gen_ai.client.operation.duration` to another one.

        >>> import io
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
        >>> from pillarbox import Result, Usage, async_map
        >>> from pillarbox.aio.observe.exporters import OpenTelemetryExporter
        >>> from pillarbox.aio.observe.gen_ai import GenAiMetrics
        >>> async def call(row):
        ...     return Result(row, Usage(input_tokens=7, operation="chat", model="small"))
        >>> out = io.StringIO()
        >>> metrics = GenAiMetrics(ConsoleMetricExporter(out=out))
        >>> provider = MeterProvider([PeriodicExportingMetricReader(metrics)])
        >>> exporter = OpenTelemetryExporter(provider)
        >>> with async_map([1, 2, 3], call) as results:
        ...     for each in (metrics, exporter):
        ...         each.add(results, query="ask")
        ...     answers = list(results)
        >>> provider.force_flush(), "gen_ai.client.token.usage" in out.getvalue()
        (True, True)
        >>> provider.shutdown()

    exporter: a MetricExporter.

    It counts calls whose `Usage` names an operation. A reader exports only if its provider has an instrument;
    those of `OpenTelemetryExporter` are enough: `add` the same sources to both. The counts of buckets are
    exact if the bounds are those of our histograms, and otherwise off by less than an eighth of a bound; the
    sums of tokens are exact.

    Any thread. Raises TypeError for another kind of exporter.
    """

    def __init__(self, exporter: MetricExporter) -> None:
        if not isinstance(exporter, MetricExporter):
            raise TypeError(f"exporter={exporter!r}: must be an opentelemetry MetricExporter")
        SourceExporter.__init__(self)
        MetricExporter.__init__(self, exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._began = time.time_ns()

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **more: object
    ) -> MetricExportResult:
        """Export `metrics_data` and the histograms. Called by a reader."""
        metrics = list(self._metrics())
        if metrics and metrics_data.resource_metrics:
            first, *others = metrics_data.resource_metrics
            scope = ScopeMetrics(SCOPE, metrics, "")
            first = ResourceMetrics(first.resource, [*first.scope_metrics, scope], first.schema_url)
            metrics_data = replace(metrics_data, resource_metrics=[first, *others])
        return self._exporter.export(metrics_data, timeout_millis, **more)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Flush the exporter behind."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **more: object) -> None:
        """Shut the exporter behind down."""
        self._exporter.shutdown(timeout_millis, **more)

    def _metrics(self) -> Iterable[Metric]:
        now = time.time_ns()
        tokens, durations = [], []
        for labels, totals in self._read():
            given = {name: label for name, label in labels.items() if label}
            for key, snapshot in totals.token_usage.items():
                about = {**given, **attributes_of(read_series(key), TOKEN_TYPE)}
                used = totals.tokens_used.get(key, 0.0)
                tokens.append(self._point(about, snapshot, TOKEN_BOUNDS, TOKEN_S, used, now))
            for key, snapshot in totals.operation_duration.items():
                about = {**given, **attributes_of(read_series(key), ERROR_TYPE)}
                durations.append(self._point(about, snapshot, DURATION_BOUNDS_S, 1.0, snapshot.total, now))
        for name, unit, help, points in (
            ("gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", tokens),
            ("gen_ai.client.operation.duration", "s", "GenAI operation duration.", durations),
        ):
            if points:
                yield Metric(name, help, unit, Histogram(points, AggregationTemporality.CUMULATIVE))

    def _point(
        self,
        attributes: dict[str, str],
        snapshot: LatencySnapshot,
        bounds: tuple[float, ...],
        unit: float,
        total: float,
        now: int,
    ) -> HistogramDataPoint:
        counts = [0] * (len(bounds) + 1)
        lowest = 0.0
        for bound, count in snapshot.buckets:
            # A bucket belongs where its middle does.
            low = lower_bound(bound)
            middle = (low + min(bound, snapshot.max)) / 2 / unit
            lowest = lowest or low / unit
            counts[sum(each < middle for each in bounds)] += count
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._began,
            time_unix_nano=now,
            count=snapshot.measurements,
            sum=total,
            bucket_counts=counts,
            explicit_bounds=bounds,
            min=lowest,
            max=snapshot.max / unit,
        )
