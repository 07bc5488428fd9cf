"""The limits that a coordinator has learned, in the statistics and series of its tasks: real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import Coordinator, Rate, async_map, current_call
from pillarbox.aio.observe.exporters import OpenTelemetryExporter, PrometheusExporter
from pillarbox.aio.totals import Totals, merge
from tests.waiting import until

NAMED = {
    "x-ratelimit-limit-requests": "600",
    "x-ratelimit-remaining-requests": "500",
    "x-ratelimit-reset-requests": "10s",
    "x-ratelimit-limit-tokens": "90000",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "60s",
}


class Tasks:
    """Two tasks of one job: the service names its limits to the first alone. They run until `release`."""

    def __init__(self, coordinator: Coordinator, **options: Any) -> None:
        self._done = asyncio.Event()
        shared = coordinator.named("service")
        self.iterators = [async_map([number], self._call, limits=shared, **options) for number in range(2)]
        self._running = [asyncio.ensure_future(self._taken(each)) for each in self.iterators]

    async def _taken(self, results: Any) -> list[int]:
        return [each async for each in results]

    async def _call(self, number: int) -> int:
        if number == 0:
            current_call().report_limits(NAMED)
        await self._done.wait()
        return number

    def statistics(self) -> list[Totals]:
        return [each.statistics() or Totals() for each in self.iterators]

    async def release(self) -> None:
        self._done.set()
        assert await asyncio.gather(*self._running) == [[0], [1]]


def on_two_tasks(look: Callable[[Tasks], None], **options: Any) -> None:
    """Have `look` look at two tasks that know the limits of their job."""

    async def script() -> None:
        with Coordinator() as coordinator:
            tasks = Tasks(coordinator, **options)
            await until(lambda: all(each.limits_named for each in tasks.statistics()))
            look(tasks)
            await tasks.release()

    asyncio.run(script())


LIMITS = {" requests": 600.0, " tokens": 90_000.0}


@pytest.mark.contract(
    "All tasks have the limits that their coordinator has learned, and statistics of the job have them once."
)
@pytest.mark.parametrize("options", [{}, {"rate": Rate(learn=True)}, {"rate": Rate(1000.0, learn=True)}])
def test_all_tasks_have_the_limits_of_their_job(options: dict[str, Any]) -> None:
    def look(tasks: Tasks) -> None:
        every = tasks.statistics()
        job = merge(every)
        for each in (*every, job):
            assert each.limits_named == LIMITS
            assert each.limits_left.keys() == LIMITS.keys()
            # Of one account: less than it has, however many tasks use it.
            assert each.limits_left[" requests"] <= 500.0 and each.limits_left[" tokens"] == 0.0

    on_two_tasks(look, **options)


@pytest.mark.contract("Where nothing was learned, or not by the job, statistics have no limit.")
@pytest.mark.parametrize("rate", [Rate(learn=False), Rate(1000.0)])
def test_what_is_not_learned_is_not_known(rate: Rate) -> None:
    async def script() -> None:
        with Coordinator() as coordinator:
            tasks = Tasks(coordinator, rate=rate)
            await until(lambda: all(each.in_flight == 1 for each in tasks.statistics()))
            await tasks.release()
            assert [each.limits_named for each in tasks.statistics()] == [{}, {}]

    asyncio.run(script())


@pytest.mark.contract("Prometheus scrapes the limits that a coordinator has learned, once for a job.")
def test_prometheus_has_the_limits_of_a_job() -> None:
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    exporter = PrometheusExporter()
    registry.register(exporter)

    def look(tasks: Tasks) -> None:
        class Job:
            totals = merge(tasks.statistics())

        exporter.add(Job(), query="job")
        for kind, limit in (("requests", 600.0), ("tokens", 90_000.0)):
            labels = {"query": "job", "operator": "", "server_address": "", "limit": kind}
            assert registry.get_sample_value("pillarbox_limit_named", labels) == limit
            assert (
                registry.get_sample_value("pillarbox_limit_left", labels)
                == Job.totals.limits_left[f" {kind}"]
            )

    on_two_tasks(look)


@pytest.mark.contract("OpenTelemetry has the limits that a coordinator has learned, once for a job.")
def test_open_telemetry_has_the_limits_of_a_job() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader], shutdown_on_exit=False)
    exporter = OpenTelemetryExporter(provider)

    def look(tasks: Tasks) -> None:
        class Job:
            totals = merge(tasks.statistics())

        exporter.add(Job())
        found = {
            (metric.name, tuple(point.attributes.items())): point.value
            for resource in reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("pillarbox.limit_")
            for point in metric.data.data_points
        }
        left = Job.totals.limits_left
        assert found == {
            ("pillarbox.limit_named", (("limit", "requests"),)): 600.0,
            ("pillarbox.limit_named", (("limit", "tokens"),)): 90_000.0,
            ("pillarbox.limit_left", (("limit", "requests"),)): left[" requests"],
            ("pillarbox.limit_left", (("limit", "tokens"),)): left[" tokens"],
        }

    on_two_tasks(look)
    provider.shutdown()
