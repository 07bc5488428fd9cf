"""CPU of spans and metrics of generative AI: the same Spark job with them and without.

    python -m bench.telemetry [--rows 10000] [--rounds 3] [--share 1.0]

A job asks a service on loopback over HTTP for each row, and returns what each call used. With telemetry its
workers make spans of a share of the calls, by default the share that users get, and the driver exports the
metrics every ten seconds; both go as OTLP to the collector of the tests (`make otel-collector`). Driver, Java
and Python workers count; the service, the collector and imports do not. Both jobs have a `Progress`. The
rounds alternate, each in a process of its own; the medians are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

CAPACITY = 64
TASKS = 2


# -- the service ---------------------------------------------------------------------------------


def serve(ports: Queue[int]) -> None:
    """Answer each question; in a process of its own."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        text = (await request.json())["messages"][0]["content"]
        choices = [{"message": {"role": "assistant", "content": text.upper()}}]
        usage = {"prompt_tokens": len(text), "completion_tokens": 12}
        return web.json_response({"choices": choices, "usage": usage})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


# -- the job -------------------------------------------------------------------------------------


class Ask:
    """The function of the job; with `collector`, its workers make spans."""

    def __init__(self, url: str, collector: str, share: float | None) -> None:
        self.url = url
        self.collector = collector
        self.share = share

    async def __aenter__(self) -> Ask:
        import aiohttp

        self._session = aiohttp.ClientSession()
        if self.collector:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if not isinstance(trace.get_tracer_provider(), TracerProvider):
                given = {} if self.share is None else {"pillarbox.span_share": self.share}
                provider = TracerProvider(resource=Resource.create(given))
                exporter = OTLPSpanExporter(f"{self.collector}/v1/traces")
                provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=16_384))
                trace.set_tracer_provider(provider)
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._session.close()
        if self.collector:
            from opentelemetry import trace

            # What waits to be sent belongs to the job.
            await asyncio.to_thread(trace.get_tracer_provider().force_flush)  # type: ignore[attr-defined]

    async def __call__(self, row: Any) -> Any:
        from pillarbox import Result, Usage

        body = {"model": "small", "messages": [{"role": "user", "content": f"{row.id}: {'word ' * 40}"}]}
        async with self._session.post(f"{self.url}/v1/chat/completions", json=body) as response:
            answer = await response.json()
        used = answer["usage"]
        return Result(
            answer["choices"][0]["message"]["content"],
            Usage(
                input_tokens=used["prompt_tokens"],
                output_tokens=used["completion_tokens"],
                model="small",
                operation="chat",
                provider="openai",
            ),
        )


def job(url: str, rows: int, collector: str, share: float | None) -> None:
    """Run the job once, and print the CPU seconds of all of its processes."""
    import psutil
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from pyspark.sql import SparkSession

    from pillarbox.aio.observe.exporters import OpenTelemetryExporter
    from pillarbox.aio.observe.gen_ai import GenAiMetrics
    from pillarbox.spark import Progress, async_map

    def cpu() -> float:
        process = psutil.Process()
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(sum(each[:4]) for each in times)

    spark = SparkSession.builder.master(f"local[{TASKS}]").config("spark.ui.enabled", "false").getOrCreate()
    df = spark.range(0, rows, 1, TASKS)
    ask = Ask(url, collector, share)
    # Java and the workers are warm, and have imported what they need.
    async_map(spark.range(0, 200, 1, TASKS), ask, schema="answer string").collect()
    before = cpu()
    with open(os.devnull, "w") as nowhere, Progress(total=rows, file=nowhere) as progress:
        provider = None
        if collector:
            metrics = GenAiMetrics(OTLPMetricExporter(f"{collector}/v1/metrics"))
            provider = MeterProvider([PeriodicExportingMetricReader(metrics, 10_000.0)])
            exporter = OpenTelemetryExporter(provider)
            for each in (metrics, exporter):
                each.add(progress, query="ask")
        found = async_map(df, ask, schema="answer string", capacity=CAPACITY, progress=progress).collect()
        if provider is not None:
            provider.shutdown()
    assert len(found) == rows
    print(json.dumps(cpu() - before))


def main() -> None:
    """Run `python -m bench.telemetry`."""
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, help="share of the calls that have a span")
    parser.add_argument("--job", nargs=2, metavar=("URL", "COLLECTOR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job[0], options.rows, options.job[1], options.share)
        return
    from tests.servers.collector_server import CollectorServer

    ports: Queue[int] = Queue()
    service = Process(target=serve, args=(ports,), daemon=True)
    service.start()
    url = f"http://127.0.0.1:{ports.get()}"
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        collector = CollectorServer(Path(folder))
        try:
            for turn in range(2 * options.rounds):
                kind = ("without", "with")[(turn + turn // 2) % 2]
                words = [url, collector.url if kind == "with" else ""]
                command = [sys.executable, "-m", "bench.telemetry", "--rows", str(options.rows)]
                command += [] if options.share is None else ["--share", str(options.share)]
                command += ["--job", *words]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds[kind].append(float(done.stdout.split()[-1]))
        finally:
            collector.close()
    service.kill()
    before, after = (statistics.median(seconds[kind]) for kind in ("without", "with"))
    per_row = (after - before) / options.rows * 1e6
    share = "the usual share" if options.share is None else f"{options.share:.0%}"
    print(f"{options.rows:,} rows, spans of {share} of the calls: {before:.2f} s of CPU without,")
    print(f"{after:.2f} s with telemetry: {after / before - 1.0:+.1%}, {per_row:.0f} us a row; {seconds}")


if __name__ == "__main__":
    main()
