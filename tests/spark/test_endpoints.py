"""A DataFrame whose function has endpoints: they travel to the workers, and their counts come back."""

from __future__ import annotations

import io
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Endpoints, async_map, current_call
from pillarbox.spark import Progress

URLS = ("http://one:80", "http://two:80", "http://three:80")


@pytest.mark.contract("The endpoints of a DataFrame's function are counted over all its tasks.")
@pytest.mark.spark
def test_endpoints_travel_and_are_counted(spark: SparkSession) -> None:
    async def call(row: Any) -> dict[str, Any]:
        url = current_call().endpoint.url
        if url.endswith("one:80"):
            raise ConnectionRefusedError(111, "refused")
        return {"id": row.id, "url": url}

    with Progress(file=io.StringIO()) as progress:
        frame = async_map(
            spark.range(200).repartition(2),
            call,
            schema="id long, url string",
            endpoints=Endpoints([*URLS]),
            progress=progress,
        )
        found = frame.collect()
    assert sorted(row.id for row in found) == [*range(200)]
    assert {row.url for row in found} == {*URLS[1:]}
    totals = progress.totals
    assert {*totals.endpoint_calls} == {"one:80", "two:80", "three:80"}
    assert totals.endpoint_calls["two:80"] + totals.endpoint_calls["three:80"] == 200
    assert totals.endpoint_errors == {"one:80": totals.endpoint_calls["one:80"]}
