"""Hedges over Spark: columns of a service of which some requests get no answer."""

from __future__ import annotations

import io

import pytest
from pyspark.sql import SparkSession

from pillarbox import Batch, Hedge
from pillarbox.clients import Embeddings, Http, HttpLookup
from pillarbox.spark import Progress, async_udf, embed_text, lookup
from pillarbox.testing import serve

DIRECT = Http(proxy="direct")
ROWS = 60
HEDGE = Hedge(after=0.2, budget=1.0, calls=5)


def test_requests_of_a_lookup_that_get_no_answer_are_overtaken(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(f"N{number}",) for number in range(100, 100 + ROWS)], "tailnum string")
    with serve(hang=0.1, seed=2) as service, Progress(file=io.StringIO()) as progress:
        planes = HttpLookup(f"{service.url}/planes/{{tailnum}}", http=DIRECT)
        found = lookup(rows, client=planes, schema="seats int", hedge=HEDGE, progress=progress).collect()
    assert len(found) == ROWS and all(row.seats for row in found)
    totals = progress.totals
    assert totals.hedged >= totals.hedges_won >= 1


@pytest.mark.contract("Texts of a DataFrame are hedged in their batches, and one by one.")
def test_texts_are_hedged_in_batches_and_one_by_one(spark: SparkSession) -> None:
    texts = spark.createDataFrame([(f"text {number}",) for number in range(ROWS)], "text string")
    with serve(hang=0.1, seed=2, dimensions=4) as service, Progress(file=io.StringIO()) as progress:
        client = Embeddings(service.url, "any-model", http=DIRECT, max_texts=2)
        embed = async_udf(client, batch=None, hedge=HEDGE)
        found = texts.select(embed("text").alias("vector")).collect()
        given = {"client": client, "into": "vector", "batch": Batch(2), "progress": progress}
        together = embed_text(texts, "text", hedge=HEDGE, **given).collect()
    assert [len(row.vector) for row in [*found, *together]] == [4] * (2 * ROWS)
    assert progress.totals.hedges_won >= 1 and progress.totals.results == ROWS


def test_a_function_that_does_not_say_that_it_is_idempotent_is_refused_on_the_driver(
    spark: SparkSession,
) -> None:
    async def order(row: object) -> int:
        return 1

    with pytest.raises(ValueError, match=r"order.*idempotent=True"):
        lookup(spark.range(3), client=order, schema="n int", hedge=Hedge())
    with pytest.raises(ValueError, match=r"order.*idempotent=True"):
        async_udf(order, "int", hedge=Hedge())
    post = HttpLookup("http://127.0.0.1:1/planes", method="POST", body=["id"])
    with pytest.raises(ValueError, match=r"HttpLookup.*idempotent=True"):
        lookup(spark.range(3), client=post, schema="n int", hedge=Hedge())
