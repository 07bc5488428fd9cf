"""Measures `pillarbox.run` from Kafka to Kafka: rows a second beside the bound of its calls. A script.

    python -m bench.job [--rows 200000] [--rounds 3] [--no-kafka]

The bound is the number of calls in flight over the seconds of a call. A round is measured from its first call
to the commit of its last row. Behind it the same number of workers of asyncio make the same calls without
anything else, which shows how far the machine lets any loop come. `--no-kafka` reads a range and writes JSON
lines instead. It prints the load of the machine, which should be low beside its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pillarbox
from pillarbox.job import JsonLinesSink, KafkaSink, Sink

IN_FLIGHT = 256
SERVICE_S = 0.02
INTERVAL_S = 2.0
PARTITIONS = 4
ROW_BYTES = 100


class Round(NamedTuple):
    """One round: rows a second, microseconds of CPU a row, checkpoints."""

    rate: float
    cpu: float
    checkpoints: int


class Service:
    """Answers after `SERVICE_S`, and knows when its first call began."""

    began: float | None = None

    async def __call__(self, row: Any) -> dict[str, Any]:
        """The value of the row."""
        if self.began is None:
            self.began = time.monotonic()
        await asyncio.sleep(SERVICE_S)
        return {"value": row if isinstance(row, int) else row.value}


def measure(source: Any, sink: Sink, folder: Path, rows: int) -> Round:
    """Run the job once."""
    service = Service()
    cpu = time.process_time()
    with pillarbox.run(
        source,
        service,
        sink,
        checkpoints=folder / "checkpoints",
        interval=INTERVAL_S,
        columns=None if isinstance(source, range) else ["value"],
        capacity=IN_FLIGHT,
        ordered=False,
    ) as job:
        job.wait()
    assert service.began is not None
    seconds = time.monotonic() - service.began
    now = job.statistics()
    assert now.rows_committed == rows, f"{now.rows_committed} rows were committed, not {rows}"
    return Round(rows / seconds, (time.process_time() - cpu) / rows * 1e6, now.checkpoints)


async def _workers(rows: int) -> float:
    left = iter(range(rows))

    async def work() -> None:
        for _ in left:
            await asyncio.sleep(SERVICE_S)

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return rows / (time.monotonic() - began)


def over_kafka(rows: int, folder: Path) -> tuple[Callable[[int], tuple[Any, Sink]], Callable[[], None]]:
    """Start a Kafka with so many rows; returns the maker of a round's source and sink, and its end."""
    from confluent_kafka import Producer

    from pillarbox.sources.connectors.kafka import KafkaSource
    from tests.servers.kafka_server import KafkaServer

    server = KafkaServer(folder)
    server.create("numbers", PARTITIONS)
    producer = Producer({**server.client, "queue.buffering.max.messages": rows + 1})
    for number in range(rows):
        text = json.dumps({"number": number}).ljust(ROW_BYTES)
        producer.produce("numbers", text, partition=number % PARTITIONS)
    assert producer.flush(120.0) == 0

    def parts(number: int) -> tuple[Any, Sink]:
        topic = f"out-{number}"
        server.create(topic, PARTITIONS)
        source = KafkaSource(server.client, "numbers", bounded=True)
        return source, KafkaSink(server.client, topic, transactional_id=topic)

    return parts, server.close


def main() -> None:
    """Measure, and print a line for each round and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true")
    given = parser.parse_args()
    bound = IN_FLIGHT / SERVICE_S
    with tempfile.TemporaryDirectory(prefix="pillarbox-bench-") as scratch:
        folder = Path(scratch)
        (folder / "kafka").mkdir()
        if given.no_kafka:

            def parts(number: int) -> tuple[Any, Sink]:
                return range(given.rows), JsonLinesSink(folder / f"out-{number}")

            def close() -> None: ...

        else:
            parts, close = over_kafka(given.rows, folder / "kafka")
        try:
            rounds = []
            for number in range(given.rounds):
                source, sink = parts(number)
                found = measure(source, sink, folder / f"round-{number}", given.rows)
                rounds.append(found)
                alone = asyncio.run(_workers(given.rows))
                print(
                    f"{found.rate:,.0f} rows/s, {found.rate / bound:.3f} of the bound, {found.cpu:.0f} us of "
                    f"CPU a row, {found.checkpoints} checkpoints, load {os.getloadavg()[0]:.1f} on "
                    f"{os.cpu_count()} cores; workers alone {alone / bound:.3f}",
                    flush=True,
                )
        finally:
            close()
    rate = median(each.rate for each in rounds)
    print(f"median {rate:,.0f} rows/s, {rate / bound:.3f} of the bound of {bound:,.0f}")


if __name__ == "__main__":
    main()
