"""The job: orders from Kafka, a quote for each over HTTP, Parquet. Exactly once. A script.

One source and one function, run in three ways: as a stream of micro-batches, as a batch, and as a task
without Spark (`task.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet

# A script has its folder on the path; its tasks, in other processes, get the function by value.
import task
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Ledger, Retry
from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.spark import async_map, register_source

ATTEMPTS = Retry(attempts=5, on=(aiohttp.ClientError, TimeoutError))


class Quote:
    """Asks the service for an order's quote. One HTTP session a worker process."""

    def __init__(self, service: str) -> None:
        self._service = service

    async def __aenter__(self) -> Quote:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def __call__(self, row: Any) -> dict[str, Any]:
        """One order with its place and its price."""
        url = f"{self._service}/quote/{row['order']}?parcels={row['parcels']}"
        async with self._session.get(url) as response:
            response.raise_for_status()
            return {"order": row["order"], "parcels": row["parcels"], **await response.json()}


def spark_session() -> SparkSession:
    """A Spark on this machine."""
    # Otherwise the workers run whatever python3 is on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.appName("orders")
        .master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def quoted(records: DataFrame, quote: Quote, out: Path) -> DataFrame:
    """The orders in the records of the topic, with their quotes."""
    orders = records.selectExpr(
        "partition", "offset", "from_json(cast(value as string), 'order long, parcels int') as body"
    ).select("partition", "offset", "body.*")
    return async_map(
        orders,
        quote,
        schema="order long, parcels int, place string, pence int",
        ordered=False,
        capacity=64,
        timeout=10.0,
        retry=ATTEMPTS,
        ledger=Ledger(
            str(out / "ledger"),
            uid="quotes-v1",
            run=None if records.isStreaming else "orders",
            key=["partition", "offset"],
        ),
    )


def as_stream(source: KafkaSource, quote: Quote, out: Path, rows: int) -> None:
    """Read in micro-batches of so many rows, to the end of what is there where the source is bounded."""
    spark = spark_session()
    records = (
        spark.readStream.format(register_source(spark, source, "orders")).option("max_rows", rows).load()
    )
    writer = quoted(records, quote, out).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    if source.bounded:
        writer = writer.trigger(availableNow=True)
    writer.start(str(out / "orders")).awaitTermination()
    spark.stop()


def as_batch(source: KafkaSource, quote: Quote, out: Path) -> None:
    """Read all; a run that was killed wrote nothing, and its answers are in the ledger."""
    spark = spark_session()
    records = spark.read.format(register_source(spark, source, "orders")).load()
    quoted(records, quote, out).write.mode("overwrite").parquet(str(out / "orders"))
    spark.stop()


def written(out: Path) -> list[Path]:
    """The files that count: those that a stream's sink has written down, or else all that are there."""
    folder = out / "orders"
    log = folder / "_spark_metadata"
    if not log.exists():
        return sorted(folder.glob("*.parquet"))
    lines = [
        line
        for batch in log.iterdir()
        if batch.suffix != ".crc" and not batch.name.startswith(".")
        for line in batch.read_text().splitlines()[1:]
    ]
    return sorted({Path(json.loads(line)["path"].removeprefix("file://")) for line in lines})


def main() -> None:
    """Read the topic `orders` to its end, or as a stream `--forever`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kafka", required=True, help="host:port")
    parser.add_argument("--service", required=True, help="http://host:port")
    parser.add_argument("--out", required=True, type=Path, help="a folder that all workers see")
    parser.add_argument("--how", choices=["stream", "batch", "task"], default="stream")
    parser.add_argument("--rows", type=int, default=1000, help="of a micro-batch, at most")
    parser.add_argument("--forever", action="store_true", help="a stream without an end")
    given = parser.parse_args()

    kafka = {"bootstrap.servers": given.kafka}
    source = KafkaSource(kafka, "orders", group_id="quotes", bounded=not given.forever)
    quote, out = Quote(given.service), given.out
    if given.how == "stream":
        as_stream(source, quote, out, given.rows)
    elif given.how == "batch":
        as_batch(source, quote, out)
    else:
        task.run(source, quote, ATTEMPTS, out)
    found = pyarrow.parquet.read_table(written(out), columns=["pence"])["pence"].to_pylist()
    print(f"{len(found)} orders, {sum(found)} pence")


if __name__ == "__main__":
    main()
