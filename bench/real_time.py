"""Latency of rows from Kafka to Kafka, in micro-batches and in Real-time Mode: `python -m bench.real_time`.

A record each 50 ms, and each row's call takes 20 ms. Milliseconds from the time at which a record is produced
to that at which a consumer has its result; those of the first half are left out. Real-time Mode does not list
Python among its operators: the check is switched off here, at one's own risk, as Spark says. It needs the
Kafka of `make kafka-server`, and Spark's own connector, which is fetched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.chunks import ROOT
from bench.small import session
from pillarbox import Options

CALL_S = 0.02
EVERY_S = 0.05
LIMIT_S = 900.0
# What the package of PySpark brings itself.
IN_SPARK = ("hadoop-client", "snappy", "slf4j", "lz4", "scala-", "jsr305")
NONE, IDENTITY, OURS = "no Python", "identity `mapInArrow`", "`async_map`, calls of 20 ms"
MODES = {"micro-batches": (False, False), '`latency="low"`': (False, True)}
MODES |= {"Real-time Mode": (True, False), 'Real-time Mode, `latency="low"`': (True, True)}
"""By name: is the mode Real-time, and is the latency of the workers low."""


async def call(row: Any) -> dict[str, str]:
    """Return the value of the row, after the time of a call."""
    await asyncio.sleep(CALL_S)
    return {"value": row.value}


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the batches back."""
    yield from batches


def settings_of(*, is_low: bool, is_checked: bool) -> dict[str, str]:
    """Return settings of a session with Spark's connector. is_checked: with Spark's check of operators."""
    from pillarbox.spark.operator_plan import LOW_LATENCY
    from tests.servers.maven import SPARK_KAFKA

    jars = [str(jar) for jar in SPARK_KAFKA.folder().glob("*.jar") if not jar.name.startswith(IN_SPARK)]
    settings = {"spark.jars": ",".join(jars), "spark.driver.host": "127.0.0.1"}
    settings["spark.sql.streaming.realTimeMode.allowlistCheck"] = str(is_checked).lower()
    return {**settings, **(LOW_LATENCY if is_low else {})}


def query(spark: Any, server: str, door: str, mode: str, folder: Path) -> Any:
    """Start the query from topic "in" to topic "out"."""
    from pillarbox.spark import async_map

    is_real_time, is_low = MODES[mode]
    kafka = {"kafka.bootstrap.servers": server}
    rows = spark.readStream.format("kafka").options(**kafka, subscribe="in").load()
    rows = rows.selectExpr("cast(value as string) as value")
    if door == OURS:
        options = Options(latency="low") if is_low else Options()
        rows = async_map(rows, call, schema="value string", keep=[], options=options)
    elif door == IDENTITY:
        rows = rows.mapInArrow(identity, "value string")
    trigger = {"realTime": "10 seconds"} if is_real_time else {"processingTime": "0 seconds"}
    writer = rows.writeStream.format("kafka").options(**kafka, topic="out")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).outputMode("update")
    return writer.trigger(**trigger).start()


def measure(door: str, mode: str, seconds: float) -> list[float]:
    """Return latencies in milliseconds, of the second half of the run. In a process of its own."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    from tests.servers.kafka_server import KafkaServer

    settings = settings_of(is_low=MODES[mode][1], is_checked=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = KafkaServer(folder)
        try:
            server.create("in")
            server.create("out")
            spark = session("true", **settings)
            running = query(spark, server.bootstrap, door, mode, folder)
            producer = Producer({**server.client, "linger.ms": 0})
            consumer = Consumer({**server.client, "group.id": "bench"})
            consumer.assign([TopicPartition("out", 0, 0)])
            ended = threading.Event()

            def feed() -> None:
                while not ended.wait(EVERY_S):
                    producer.produce("in", str(time.perf_counter()).encode())
                    producer.poll(0)

            feeder = threading.Thread(target=feed)
            feeder.start()
            found: list[float] = []
            until = time.perf_counter() + seconds
            while time.perf_counter() < until and running.isActive:
                record = consumer.poll(1.0)
                if record is not None and not record.error():
                    found.append((time.perf_counter() - float(record.value())) * 1000)
            ended.set()
            feeder.join()
            consumer.close()
            assert running.isActive, running.exception()
            running.stop()
            spark.stop()
        finally:
            server.close()
    return found[len(found) // 2 :]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.real_time")
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.of is not None:
        print(json.dumps(measure(*words.of, words.seconds)))
        return
    print(f"| ms from Kafka to Kafka | {' | '.join(MODES)} |")
    print("|---|" + "---|" * len(MODES))
    for door in (NONE, IDENTITY, OURS):
        cells = []
        for mode in MODES:
            command = [sys.executable, "-m", "bench.real_time", "--seconds", str(words.seconds)]
            command += ["--of", door, mode]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            percentiles = statistics.quantiles(found, n=100, method="inclusive")
            cells.append(f"p50 {percentiles[49]:,.0f}, p99 {percentiles[98]:,.0f}")
        print(f"| {door} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
