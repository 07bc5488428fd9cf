"""OpenTelemetry gets its metrics through the real SDK: read in memory, and sent as OTLP over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillarbox import Retry, async_map
from pillarbox.aio.observe.exporters import OpenTelemetryExporter
from pillarbox.aio.totals import Totals
from pillarbox.mailbox.metrics import LatencyHistogram


class Source:
    """Totals that a test sets."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    found = InMemoryMetricReader()
    provider = MeterProvider([found], shutdown_on_exit=False)
    found.provider = provider  # type: ignore[attr-defined]
    yield found
    provider.shutdown()


def read(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def values(metric: Any) -> dict[tuple[tuple[str, Any], ...], float]:
    return {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}


@pytest.mark.contract("OpenTelemetry reads what an operator did.")
def test_what_a_real_operator_did_is_read(reader: Any) -> None:
    async def call(n: int) -> int:
        if n % 10 == 0:
            raise ValueError
        return n

    exporter = OpenTelemetryExporter(reader.provider)
    with async_map(range(100), call, errors="null", capacity=8) as results:
        exporter.add(results, query="q")
        assert len(list(results)) == 100
    found = read(reader)
    query = ("query", "q")
    assert values(found["pillarbox.results"]) == {(query,): 100}
    assert values(found["pillarbox.errors"]) == {(query, ("type", "ValueError")): 10}
    assert values(found["pillarbox.capacity"]) == {(query,): 8}
    assert found["pillarbox.results"].data.is_monotonic
    assert (found["pillarbox.spent"].unit, found["pillarbox.held"].unit) == ("s", "By")


@pytest.mark.contract("OpenTelemetry has the server's address and port of each endpoint.")
def test_endpoints_have_the_attributes_of_the_conventions(reader: Any) -> None:
    exporter = OpenTelemetryExporter(reader.provider)
    totals = Totals(
        endpoint_calls={"one:80": 3, "[::1]:81": 1, "http://two/v1": 2},
        endpoint_errors={"one:80": 1},
        endpoint_seconds={"one:80": 1.5},
        endpoint_resting={"one:80": 1, "[::1]:81": 0},
    )
    exporter.add(Source(totals))
    found = read(reader)
    one = ("server.address", "one"), ("server.port", 80)
    six = ("server.address", "::1"), ("server.port", 81)
    assert values(found["pillarbox.endpoint_calls"]) == {
        one: 3,
        six: 1,
        (("server.address", "http://two/v1"),): 2,
    }
    assert values(found["pillarbox.endpoint_errors"]) == {one: 1}
    assert values(found["pillarbox.endpoint_duration"]) == {one: 1.5}
    assert values(found["pillarbox.endpoint_resting"]) == {one: 1, six: 0}


@pytest.mark.contract(
    "OpenTelemetry has the limits that services named, by server.address where there are several."
)
def test_limits_have_the_attributes_of_the_conventions(reader: Any) -> None:
    exporter = OpenTelemetryExporter(reader.provider)
    exporter.add(
        Source(Totals(limits_named={"one:80 tokens": 900, " requests": 30}, limits_left={" requests": 2}))
    )
    found = read(reader)
    one = ("limit", "tokens"), ("server.address", "one"), ("server.port", 80)
    assert {frozenset(key): value for key, value in values(found["pillarbox.limit_named"]).items()} == {
        frozenset(one): 900,
        frozenset({("limit", "requests")}): 30,
    }
    assert values(found["pillarbox.limit_left"]) == {(("limit", "requests"),): 2}


def test_durations_are_quantiles_beside_their_number_and_sum(reader: Any) -> None:
    histogram = LatencyHistogram()
    for i in range(1, 101):
        histogram.record(i * 1e-3)
    exporter = OpenTelemetryExporter(reader.provider, "acme")
    source = Source(Totals(latency=histogram.snapshot()))
    exporter.add(source)
    found = read(reader)
    quantiles = values(found["acme.attempt_duration"])
    assert quantiles[("quantile", "0.5"),] == pytest.approx(0.05, rel=0.125)
    assert quantiles[("quantile", "1"),] == 0.1
    assert values(found["acme.attempt_duration.count"]) == {(): 100}
    assert values(found["acme.attempt_duration.sum"])[()] == pytest.approx(5.05, rel=1 / 16)
    assert "acme.call_duration" not in found
    exporter.remove(source)
    exporter.add(Source(Totals()))
    assert values(read(reader)["acme.attempt_duration.count"]) == {(): 0}


def test_after_closing_it_says_nothing_more(reader: Any) -> None:
    exporter = OpenTelemetryExporter(reader.provider)
    exporter.add(Source(Totals(calls=1)))
    assert read(reader)
    exporter.close()
    exporter.close()
    assert [metric for metric in read(reader).values() if metric.data.data_points] == []


def test_it_arrives_as_otlp_over_http() -> None:
    otlp = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        exporter = otlp.OTLPMetricExporter(f"http://127.0.0.1:{server.server_port}/v1/metrics")
        # Sent when it is flushed, and not before.
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
        provider = MeterProvider([reader], shutdown_on_exit=False)
        observed = OpenTelemetryExporter(provider)
        observed.add(Source(Totals(calls=42)), query="q")
        try:
            assert provider.force_flush(30_000)
        finally:
            provider.shutdown()
            server.shutdown()
            thread.join()
    request = ExportMetricsServiceRequest.FromString(bodies[0])
    metrics = {m.name: m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics}
    (point,) = metrics["pillarbox.calls"].sum.data_points
    assert point.as_int == 42
    assert [(each.key, each.value.string_value) for each in point.attributes] == [("query", "q")]


@pytest.mark.contract("Each attempt is a span of its own, the parent of what is done in it.")
def test_each_attempt_is_a_span_of_its_own_and_the_parent_of_what_is_done_in_it() -> None:
    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    tracer = provider.get_tracer("test")
    failed: set[int] = set()

    @tracer.start_as_current_span("call")
    async def call(n: int) -> int:
        await asyncio.sleep(0.001 * (n % 3))
        with tracer.start_as_current_span("inner", attributes={"row": n}):
            await asyncio.sleep(0.001 * (n % 5))
            if n == 7 and n not in failed:
                failed.add(n)
                raise ConnectionError
        return n

    retry = Retry(attempts=2, initial=0.001, on=(ConnectionError,))
    assert len(list(async_map(range(30), call, capacity=10, retry=retry))) == 30
    spans = found.get_finished_spans()
    calls = {span.context.span_id: span for span in spans if span.name == "call"}
    inner = [span for span in spans if span.name == "inner"]
    assert len(calls) == len(inner) == 31
    # Side by side, and none of them within another.
    assert {span.parent for span in calls.values()} == {None}
    assert {span.parent.span_id for span in inner if span.parent is not None} == set(calls)
    assert sum(not span.status.is_ok for span in calls.values()) == 1
    provider.shutdown()


@pytest.mark.parametrize("prefix", ["", "1a", "a b", "é", "a" * 101, 7])
def test_a_bad_prefix_or_provider_is_refused(prefix: Any) -> None:
    with pytest.raises(ValueError, match="prefix="):
        OpenTelemetryExporter(prefix=prefix)
    with pytest.raises(TypeError, match="provider=7"):
        OpenTelemetryExporter(7)  # type: ignore[arg-type]
