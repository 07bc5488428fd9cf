"""Prometheus gets its metrics over real HTTP, and its own parser reads them."""

from __future__ import annotations

import socket
import threading
from socketserver import BaseServer
from typing import Any
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from pillarbox import async_map
from pillarbox.aio.observe.exporters import (
    MAX_KEYS,
    MAX_SOURCES,
    OTHER,
    PROMETHEUS_BOUNDS_S,
    PrometheusExporter,
)
from pillarbox.aio.totals import Totals
from pillarbox.mailbox.metrics import BOUNDS_S, LatencyHistogram
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _impatient_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets servers see soon that they are to end: they look each half a second otherwise."""
    serve_forever = BaseServer.serve_forever
    monkeypatch.setattr(BaseServer, "serve_forever", lambda server: serve_forever(server, 0.01))


class Source:
    """Totals that a test sets."""

    def __init__(self, totals: Totals | None = None) -> None:
        self.totals = Totals() if totals is None else totals


def fetch(url: str, **headers: str) -> str:
    with urlopen(Request(url, headers=headers), timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def scrape(exporter: PrometheusExporter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of one scrape, by its name and labels."""
    with exporter.serve(0) as server:
        text = fetch(server.url)
    found = {}
    for family in parse(text):
        for sample in family.samples:
            key = sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)
            assert key not in found
            found[key] = sample.value
    return found


def sample(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[f"pillarbox_{name}", frozenset(labels.items())]


@pytest.mark.contract("Prometheus scrapes what an operator did.")
def test_what_a_real_operator_did_is_scraped() -> None:
    async def call(n: int) -> int:
        if n % 10 == 0:
            raise ValueError
        return n

    exporter = PrometheusExporter()
    with async_map(range(100), call, errors="null", capacity=8) as results:
        exporter.add(results, query="q")
        assert sample(scrape(exporter), "results_total", query="q") == 0
        assert len(list(results)) == 100
    found = scrape(exporter)
    assert sample(found, "rows_in_total", query="q") == 100
    assert sample(found, "results_total", query="q") == 100
    assert sample(found, "calls_total", query="q") == 100
    assert sample(found, "errors_total", query="q", type="ValueError") == 10
    assert sample(found, "in_flight", query="q") == 0
    assert sample(found, "capacity", query="q") == 8
    assert sample(found, "attempt_duration_seconds_count", query="q") == 100
    assert sample(found, "attempt_duration_seconds_bucket", query="q", le="+Inf") == 100
    assert sample(found, "spent_seconds_total", query="q", on="input") >= 0


@pytest.mark.contract("Prometheus scrapes the requests, faults, time and state of each endpoint.")
def test_endpoints_are_told_apart() -> None:
    exporter = PrometheusExporter()
    totals = Totals(
        endpoint_calls={"one:80": 3, "[::1]:81": 1, "http://two/v1": 2},
        endpoint_errors={"one:80": 1},
        endpoint_seconds={"one:80": 1.5},
        endpoint_resting={"one:80": 1, "[::1]:81": 0},
    )
    exporter.add(Source(totals))
    found = scrape(exporter)
    assert sample(found, "endpoint_calls_total", server_address="one:80") == 3
    assert sample(found, "endpoint_calls_total", server_address="http://two/v1") == 2
    assert sample(found, "endpoint_errors_total", server_address="one:80") == 1
    assert sample(found, "endpoint_duration_seconds_total", server_address="one:80") == 1.5
    assert sample(found, "endpoint_resting", server_address="one:80") == 1
    assert sample(found, "endpoint_resting", server_address="[::1]:81") == 0


@pytest.mark.contract("Prometheus scrapes the limits that a service, or each endpoint of it, has named.")
def test_limits_are_told_apart_by_endpoint_and_kind() -> None:
    exporter = PrometheusExporter()
    named = {"one:80 requests": 60, "one:80 tokens": 900, " requests": 30}
    exporter.add(Source(Totals(limits_named=named, limits_left={"one:80 requests": 7, " requests": 0})))
    found = scrape(exporter)
    assert sample(found, "limit_named", server_address="one:80", limit="requests") == 60
    assert sample(found, "limit_named", server_address="one:80", limit="tokens") == 900
    assert sample(found, "limit_named", limit="requests") == 30
    assert sample(found, "limit_left", server_address="one:80", limit="requests") == 7


def test_the_limits_of_many_endpoints_share_a_label() -> None:
    exporter = PrometheusExporter()
    many = {f"host-{number}:80 requests": float(number) for number in range(80)}
    exporter.add(Source(Totals(limits_named=many, limits_left=many)))
    found = scrape(exporter)
    assert sample(found, "limit_named", limit="(other)") == 79
    assert sample(found, "limit_left", limit="(other)") == 50


def test_the_text_is_openmetrics_for_those_who_ask_for_it() -> None:
    exporter = PrometheusExporter()
    exporter.add(Source(Totals(cost=2.5, retries_by_reason={"a": 1})), query='a "b"\\\n')
    with exporter.serve(0) as server:
        text = fetch(server.url, Accept="application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(text)}
    (cost,) = families["pillarbox_cost"].samples
    assert (cost.value, cost.labels["query"]) == (2.5, 'a "b"\\\n')
    assert families["pillarbox_cost"].type == "counter"
    assert families["pillarbox_attempt_duration_seconds"].type == "histogram"


def test_the_buckets_of_a_histogram_count_exactly_and_upwards() -> None:
    histogram = LatencyHistogram()
    durations = [2.0**power * share * 1e-9 for power in range(45) for share in (0.99, 1.0, 1.49)]
    for seconds in durations:
        histogram.record(seconds)
    source = Source(Totals(latency=histogram.snapshot()))
    exporter = PrometheusExporter()
    exporter.add(source)
    found = scrape(exporter)
    assert {*BOUNDS_S} >= {*PROMETHEUS_BOUNDS_S}
    for bound in PROMETHEUS_BOUNDS_S:
        count = sample(found, "attempt_duration_seconds_bucket", le=repr(bound))
        assert count == sum(seconds < bound for seconds in durations)
    assert sample(found, "attempt_duration_seconds_bucket", le="+Inf") == len(durations)


@pytest.mark.contract
def test_counts_of_rows_do_not_go_back_when_a_task_runs_again() -> None:
    source = Source(Totals(results=50, calls=50))
    exporter = PrometheusExporter()
    exporter.add(source)
    assert sample(scrape(exporter), "results_total") == 50
    source.totals = Totals(results=20, calls=90)
    found = scrape(exporter)
    assert (sample(found, "results_total"), sample(found, "calls_total")) == (50, 90)
    source.totals = Totals(results=60, calls=130)
    assert sample(scrape(exporter), "results_total") == 60


def test_classes_of_errors_are_bounded_and_what_was_there_stays() -> None:
    source = Source(Totals(errors_by_type={"first": 1}))
    exporter = PrometheusExporter()
    exporter.add(source)
    scrape(exporter)
    source.totals = Totals(errors_by_type={**{f"made {i}": 1 for i in range(1000)}, "first": 2})
    found = scrape(exporter)
    errors = {labels: value for (name, labels), value in found.items() if name == "pillarbox_errors_total"}
    assert len(errors) == MAX_KEYS + 1
    assert sum(errors.values()) == 1002
    assert sample(found, "errors_total", type="first") == 2
    assert sample(found, "errors_total", type=OTHER) == 1001 - MAX_KEYS


def test_sources_come_and_go() -> None:
    exporter = PrometheusExporter()
    first, second = Source(Totals(calls=1)), Source(Totals(calls=2))
    exporter.add(first, query="a")
    with pytest.raises(ValueError, match="query='a', operator='': is observed already"):
        exporter.add(second, query="a")
    exporter.add(second, query="a", operator="b")
    with pytest.raises(ValueError, match="is observed already, with the labels {'query': 'a', 'op"):
        exporter.add(second, query="c")
    found = scrape(exporter)
    assert sample(found, "calls_total", query="a", operator="b") == 2
    exporter.remove(second)
    exporter.remove(second)
    calls = [value for (name, _), value in scrape(exporter).items() if name == "pillarbox_calls_total"]
    assert calls == [1]
    others = [Source() for _ in range(MAX_SOURCES - 1)]
    for number, other in enumerate(others):
        exporter.add(other, query=str(number))
    with pytest.raises(ValueError, match="100 sources are observed already"):
        exporter.add(second, query="c")


def test_a_registry_of_ones_own_has_both_and_gets_its_collector_back() -> None:
    registry = CollectorRegistry()
    Counter("mine", "help", registry=registry).inc(3)
    exporter = PrometheusExporter(registry, "acme")
    exporter.add(Source(Totals(calls=7)))
    assert registry.get_sample_value("acme_calls_total", {"query": "", "operator": ""}) == 7
    assert registry.get_sample_value("mine_total") == 3
    exporter.close()
    exporter.close()
    assert registry.get_sample_value("acme_calls_total", {"query": "", "operator": ""}) is None


def test_two_exporters_never_give_a_registry_the_same_names() -> None:
    registry = CollectorRegistry()
    first = PrometheusExporter(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusExporter(registry)
    PrometheusExporter(registry, "acme").close()
    first.close()
    PrometheusExporter(registry).close()


@pytest.mark.contract("The metrics server listens on loopback alone.")
def test_it_listens_on_loopback_alone() -> None:
    with PrometheusExporter().serve(0) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert "pillarbox_in_flight" in fetch(server.url)
        # Every address of 127.0.0.0/8 is this machine: whoever listens on all of them answers here too.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port)).close()


def test_a_closed_server_leaves_no_thread_and_no_port_although_a_client_says_nothing() -> None:
    before = {*threading.enumerate()}
    server = PrometheusExporter().serve(0)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.send(b"GET /metrics")
        fetch(server.url)
        server.close()
    server.close()
    wait_until(lambda: {*threading.enumerate()} <= before)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port)).close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"registry": 7}, "registry=7: must be a prometheus_client.CollectorRegistry"),
        ({"prefix": "a-b"}, "prefix='a-b'"),
        ({"prefix": "1a"}, "prefix='1a'"),
    ],
)
def test_a_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        PrometheusExporter(**arguments)
    exporter = PrometheusExporter()
    with pytest.raises(TypeError, match="source=7"):
        exporter.add(7)
    with pytest.raises(TypeError, match="query=7: must be a text"):
        exporter.add(Source(), query=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="port=70000"):
        exporter.serve(70000)
