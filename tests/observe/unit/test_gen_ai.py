"""Calls to generative AI in the names of OpenTelemetry: histograms and spans, taken by a real collector."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk.metrics", reason="the package opentelemetry-sdk is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from pillarbox import AskAgain, Batch, Result, Usage, async_map, current_call
from pillarbox.aio.observe.exporters import OpenTelemetryExporter
from pillarbox.aio.observe.gen_ai import GenAiMetrics
from pillarbox.aio.totals import Totals, merge
from pillarbox.rpc.totals_json import from_json, to_json
from tests.servers.collector_server import CollectorServer

USED = Usage(0.1, input_tokens=70, output_tokens=3, operation="chat", provider="openai", model="small")


class Kept(MetricExporter):
    """Keeps what it exported last."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, Any] = {}

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **more: Any) -> MetricExportResult:
        self.metrics = {
            metric.name: metric
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **more: Any) -> None: ...


def exported(source: Any) -> dict[str, Any]:
    """The metrics of `source`, by name, as an exporter gets them."""
    kept = Kept()
    metrics = GenAiMetrics(kept)
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    observed = OpenTelemetryExporter(provider)
    for each in (metrics, observed):
        each.add(source, query="ask")
    assert provider.force_flush(30_000)
    provider.shutdown()
    return kept.metrics


def points(metric: Any) -> dict[tuple[Any, ...], Any]:
    """The points of a metric by the attributes beside those of every call of these tests."""
    found = {}
    for point in metric.data.data_points:
        attributes = dict(point.attributes)
        assert attributes.pop("query") == "ask"
        assert attributes.pop("gen_ai.operation.name") == "chat"
        assert attributes.pop("gen_ai.provider.name") == "openai"
        assert attributes.pop("gen_ai.request.model") == "small"
        found[tuple(attributes.items())] = point
    return found


async def ask(row: int) -> Result:
    if row % 4 == 3 and current_call().attempt == 1:
        raise AskAgain("not JSON", usage=USED._replace(output_tokens=300))
    return Result(row, USED)


@pytest.mark.contract
def test_tokens_and_durations_are_histograms_in_the_names_of_the_conventions() -> None:
    results = async_map(range(100), ask)
    assert list(results) == [*range(100)]
    metrics = exported(results)
    usage, duration = metrics["gen_ai.client.token.usage"], metrics["gen_ai.client.operation.duration"]
    assert (usage.unit, duration.unit) == ("{token}", "s")
    tokens = points(usage)
    # 125 attempts: each fourth row was asked again, and its first answer paid for.
    sent, given = tokens[(("gen_ai.token.type", "input"),)], tokens[(("gen_ai.token.type", "output"),)]
    assert (sent.count, sent.sum, given.count, given.sum) == (125, 125 * 70, 125, 100 * 3 + 25 * 300)
    assert sent.explicit_bounds[:5] == (1.0, 4.0, 16.0, 64.0, 256.0)
    assert [*sent.bucket_counts][:6] == [0, 0, 0, 0, 125, 0]
    assert [*given.bucket_counts][:7] == [0, 100, 0, 0, 0, 25, 0]
    took = points(duration)
    assert took[()].count == 100 and took[(("error.type", "AskAgain"),)].count == 25
    assert sum(took[()].bucket_counts) == 100
    assert took[()].explicit_bounds[0] == 0.01 and len(took[()].bucket_counts) == 15
    # All else is exported as before.
    assert metrics["pillarbox.calls"].data.data_points[0].value == 125


@pytest.mark.contract
def test_a_failure_that_says_nothing_counts_under_the_names_of_the_calls_before_it() -> None:
    async def call(row: int) -> Result:
        if row == 3:
            raise ConnectionError("gone")
        return Result(row, USED)

    results = async_map(range(5), call, errors="null", capacity=1)
    assert list(results) == [0, 1, 2, None, 4]
    took = points(exported(results)["gen_ai.client.operation.duration"])
    assert {key: point.count for key, point in took.items()} == {
        (): 4,
        (("error.type", "ConnectionError"),): 1,
    }


def test_a_batch_is_one_call() -> None:
    async def call(rows: list[int]) -> Result:
        return Result(list(rows), USED)

    results = async_map(range(10), call, batch=Batch(5))
    assert list(results) == [*range(10)]
    counts = results.statistics()
    assert counts is not None
    took = points(exported(results)["gen_ai.client.operation.duration"])
    assert took[()].count == counts.batches


def test_without_an_operation_there_is_nothing_of_it() -> None:
    async def call(row: int) -> Result:
        return Result(row, Usage(1.0, input_tokens=3))

    results = async_map(range(5), call)
    assert list(results) == [*range(5)]
    assert [name for name in exported(results) if name.startswith("gen_ai")] == []


@pytest.mark.contract
def test_series_add_up_over_tasks_and_travel_as_json() -> None:
    found = []
    for size in (10, 20):
        results = async_map(range(size), ask)
        assert list(results) == [*range(size)]
        counts = results.statistics()
        assert isinstance(counts, Totals)
        found.append(from_json(json.loads(json.dumps(to_json(counts)))))
    tokens = points(exported(merge(found))["gen_ai.client.token.usage"])
    assert tokens[(("gen_ai.token.type", "input"),)].count == 30 + 2 + 5


def test_another_exporter_is_refused() -> None:
    with pytest.raises(TypeError, match="must be an opentelemetry MetricExporter"):
        GenAiMetrics(InMemoryMetricReader())  # type: ignore[arg-type]


SCRIPT = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from pillarbox import AskAgain, Result, Usage, async_map, current_call
from pillarbox.aio.observe.exporters import OpenTelemetryExporter
from pillarbox.aio.observe.gen_ai import GenAiMetrics

url = sys.argv[1]
tracer_provider = TracerProvider(resource=Resource.create({"pillarbox.span_share": 1.0}))
tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url + "/v1/traces")))
trace.set_tracer_provider(tracer_provider)
metrics = GenAiMetrics(OTLPMetricExporter(url + "/v1/metrics"))
provider = MeterProvider([PeriodicExportingMetricReader(metrics)])
exporter = OpenTelemetryExporter(provider)

used = Usage(0.1, input_tokens=70, output_tokens=3, operation="chat", provider="openai", model="small")

async def ask(row):
    with trace.get_tracer("client").start_as_current_span("POST"):
        if row == 3 and current_call().attempt == 1:
            raise AskAgain("not JSON", usage=used)
        return Result(row, used)

results = async_map(range(20), ask, capacity=1)
for each in (metrics, exporter):
    each.add(results, query="ask")
assert list(results) == [*range(20)]
assert provider.force_flush() and tracer_provider.force_flush()
provider.shutdown()
tracer_provider.shutdown()
"""


@pytest.mark.server
@pytest.mark.contract(needs="OpenTelemetry's collector")
def test_a_real_collector_accepts_the_spans_and_the_metrics(tmp_path: Path) -> None:
    server = CollectorServer(tmp_path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.url], capture_output=True, text=True, timeout=120
        )
    finally:
        said = server.close()
    assert done.returncode == 0 and done.stderr == "", done.stderr
    # What the log says beside a span is a line of its own, of the collector's.
    all_spans = [part.split('{"resource"')[0] for part in said.split("\nSpan #")[1:]]
    spans = [span for span in all_spans if "Name           : POST" not in span]
    assert len(spans) == 21 and len(all_spans) == 42
    ids = {line.split()[-1] for span in spans for line in span.splitlines() if line.startswith("    ID ")}
    # That of the first call, of which nobody knew what it is before, is not within its span.
    parents = [span.split("Parent ID      :")[1].split("\n")[0].strip() for span in all_spans]
    assert {*parents} - {""} < ids and parents.count("") == 22
    assert all("Name           : chat small" in span and "Kind           : Client" in span for span in spans)
    failed = [span for span in spans if "error.type: Str(AskAgain)" in span]
    assert len(failed) == 1 and "Status code    : Error" in failed[0]
    assert all("gen_ai.usage.input_tokens: Int(70)" in span for span in spans)
    assert sum("pillarbox.attempt: Int(2)" in span for span in spans) == 1
    metrics = {part.split("\n")[0]: part for part in said.split("     -> Name: ")[1:]}
    usage = metrics["gen_ai.client.token.usage"]
    assert "DataType: Histogram" in usage and "Unit: {token}" in usage
    assert "gen_ai.token.type: Str(input)" in usage and "Sum: 1470.000000" in usage
    assert "DataType: Histogram" in metrics["gen_ai.client.operation.duration"]
    assert "pillarbox.calls" in metrics
    assert "error" not in [line.split("\t")[1] for line in said.splitlines() if line.count("\t") > 1]


SPANS = """
import asyncio, json, logging, sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillarbox import AskAgain, Batch, Result, Retry, Step, Usage, async_map, current_call

share, = json.loads(sys.argv[1])
kept = InMemorySpanExporter()
given = {} if share is None else {"pillarbox.span_share": share}
provider = TracerProvider(resource=Resource.create(given), shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("client")
used = Usage(input_tokens=70, output_tokens=3, operation="chat", provider="openai", model="small")

def about(span):
    parent = None if span.parent is None else span.parent.span_id
    return span.name, span.context.span_id, parent, dict(span.attributes)

def spans():
    found = sorted(kept.get_finished_spans(), key=lambda span: span.start_time)
    kept.clear()
    return [about(span) for span in found]

async def ask(row):
    with tracer.start_as_current_span("POST"):
        await asyncio.sleep(0)
        return Result(row, used)
"""


def seen(share: float | str | None, job: str) -> Any:
    """The output of a job in a process of its own, where such a share of the calls has a span."""
    done = subprocess.run(
        [sys.executable, "-c", SPANS + textwrap.dedent(job), json.dumps([share])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


@pytest.mark.contract
@pytest.mark.parametrize(
    "call",
    [
        "async_map(range(40), ask, capacity=1)",
        "async_map(range(40), ask, capacity=4, ordered=False)",
        "async_map(range(40), lambda row: asyncio.run(ask(row)), capacity=2)",
        "async_map(range(40), [Step(ask, uid='first'), Step(ask, uid='second')], capacity=1)",
    ],
)
def test_a_call_that_is_chosen_runs_within_its_span(call: str) -> None:
    found = seen(1.0, f"assert sorted({call}) == [*range(40)]; print(json.dumps(spans()))")
    chats = {own: parent for name, own, parent, _ in found if name == "chat small"}
    parents = [parent for name, _, parent, _ in found if name == "POST"]
    assert len(chats) == len(parents) >= 40
    # Side by side, and none within another one's.
    assert {*chats.values()} == {None}
    within = [parent for parent in parents if parent is not None]
    # The first calls have begun when nobody knew yet what they are.
    assert len(within) >= len(parents) - 8
    assert len({*within}) == len(within) and {*within} <= {*chats}


@pytest.mark.contract
def test_the_calls_of_a_batch_have_one_span_with_what_all_have_used() -> None:
    job = """
        async def ask_all(rows):
            return [Result(row, used) for row in rows]
        assert [*async_map(range(40), ask_all, batch=Batch(10), capacity=1)] == [*range(40)]
        print(json.dumps(spans()))
    """
    tokens = [attributes["gen_ai.usage.input_tokens"] for _, _, _, attributes in seen(1.0, job)]
    # Of the first batch each row has said so for itself.
    assert tokens[-3:] == [700, 700, 700] and {*tokens[:-3]} == {70}


@pytest.mark.contract
def test_one_of_a_hundred_calls_has_a_span_unless_a_share_is_given() -> None:
    job = """
        async def call(row):
            return Result(row, used)
        assert [*async_map(range(5000), call)] == [*range(5000)]
        print(len(spans()))
    """
    assert 15 <= seen(None, job) <= 110
    assert 2200 <= seen("0.5", job) <= 2800
    assert seen(0, job) == 0


@pytest.mark.contract
def test_a_call_that_fails_or_is_repeated_has_a_span_whatever_the_share() -> None:
    job = """
        async def call(row):
            attempt = current_call().attempt
            if row % 10 == 3 and attempt == 1:
                raise AskAgain("not JSON", usage=used)
            if row % 10 == 5 and attempt == 1:
                raise ConnectionError
            if row % 10 == 7:
                raise ValueError
            return Result(row, used)
        logging.disable()
        given = dict(errors="null", capacity=4, retry=Retry(attempts=2, initial=0.001, on=ConnectionError))
        assert len([*async_map(range(100), call, **given)]) == 100
        print(json.dumps(spans()))
    """
    found = [
        (attributes.get("error.type"), attributes["pillarbox.attempt"])
        for _, _, _, attributes in seen(1e-9, job)
    ]
    assert Counter(found) == {
        ("AskAgain", 1): 10,
        ("ConnectionError", 1): 10,
        # What follows them.
        (None, 2): 20,
        ("ValueError", 1): 10,
    }


@pytest.mark.contract
def test_a_call_that_times_out_has_one_span_which_ends_with_its_function() -> None:
    job = """
        async def call(row):
            if row == 5 and current_call().attempt == 1:
                await asyncio.sleep(60)
            return Result(row, used)
        given = dict(capacity=1, timeout=Timeout(attempt=1.0), retry=2)
        assert [*async_map(range(10), call, **given)] == [*range(10)]
        print(json.dumps(spans()))
    """
    found = seen(1.0, "from pillarbox import Timeout\n" + textwrap.dedent(job))
    said = [(each[3].get("error.type"), each[3]["pillarbox.attempt"]) for each in found]
    assert Counter(said) == {(None, 1): 9, ("CallTimeout", 1): 1, (None, 2): 1}


@pytest.mark.contract
@pytest.mark.parametrize("is_sampled", [True, False])
def test_a_span_in_which_the_job_begins_decides_and_is_the_parent(is_sampled: bool) -> None:
    job = f"""
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
        outside = SpanContext(1, 2, False, TraceFlags({int(is_sampled)}))
        with use_span(NonRecordingSpan(outside)):
            assert [*async_map(range(20), ask, capacity=1)] == [*range(20)]
        print(json.dumps(spans()))
    """
    found = seen(0.0 if is_sampled else 1.0, job)
    assert [parent for name, _, parent, _ in found if name == "chat small"] == [2] * 20 * is_sampled


@pytest.mark.parametrize("share", [1.5, -0.1, "much"])
def test_another_share_is_said_and_the_usual_one_taken(share: float | str) -> None:
    job = """
        said = []
        logging.getLogger("pillarbox").addFilter(lambda record: said.append(record.getMessage()))
        assert [*async_map(range(5), ask)] == [*range(5)]
        print(json.dumps(said))
    """
    expected = f"pillarbox.span_share={share!r} of the tracer provider's resource: must be from 0 to 1"
    assert seen(share, job) == [f"{expected}; 0.01 is taken"]
