"""The Spark job: orders from Kafka, a quote for each over HTTP, Parquet. Exactly once. A script."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import aiohttp
from pyspark.sql import SparkSession

from pillarbox import Ledger, Retry
from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.spark import async_map, register_source


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
        """The place and the price of one order."""
        url = f"{self._service}/quote/{row.order}?parcels={row.parcels}"
        async with self._session.get(url) as response:
            response.raise_for_status()
            return dict(await response.json())


def main() -> None:
    """Read the topic `orders` to its end, or `--forever`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kafka", required=True, help="host:port")
    parser.add_argument("--service", required=True, help="http://host:port")
    parser.add_argument("--out", required=True, help="a folder that all workers see")
    parser.add_argument("--rows", type=int, default=1000, help="of a micro-batch, at most")
    parser.add_argument("--forever", action="store_true")
    given = parser.parse_args()

    # Otherwise the workers run whatever python3 is on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName("orders")
        .master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    kafka = KafkaSource({"bootstrap.servers": given.kafka}, "orders", group_id="quotes")
    orders = (
        spark.readStream.format(register_source(spark, kafka, "orders"))
        .option("max_rows", given.rows)
        .load()
        .selectExpr(
            "partition",
            "offset",
            "from_json(cast(value as string), 'order long, parcels int') as body",
        )
        .select("partition", "offset", "body.*")
    )
    quoted = async_map(
        orders,
        Quote(given.service),
        schema="place string, pence int",
        keep=["order", "parcels"],
        ordered=False,
        capacity=64,
        timeout=10.0,
        retry=Retry(attempts=5, on=(aiohttp.ClientError, TimeoutError)),
        ledger=Ledger(f"{given.out}/ledger"),
        uid="quotes-v1",
        key=["partition", "offset"],
    )
    writer = quoted.writeStream.format("parquet").option("checkpointLocation", f"{given.out}/checkpoint")
    if not given.forever:
        writer = writer.trigger(availableNow=True)
    writer.start(f"{given.out}/orders").awaitTermination()
    found = spark.read.parquet(f"{given.out}/orders")
    print(f"{found.count()} orders, {found.selectExpr('sum(pence)').first()[0]} pence")
    spark.stop()


if __name__ == "__main__":
    main()
