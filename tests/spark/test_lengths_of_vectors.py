"""Vectors of one column have one length, whichever tasks, in whichever processes, have asked for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from pyspark.sql import SparkSession

from pillarbox import Coordinator, Errors, Ledger
from pillarbox.spark import async_map, async_udf, embed_text
from tests.clients.unit.raw_embeddings import Reply, answer, serving

ROWS = 40
COLUMN = Errors("column", floor=None)


def two_models(request: dict[str, Any]) -> Reply:
    """The answer of a service that has another model for every other task."""
    return answer(request, 4 if int(request["input"][0].split()[1]) // 10 % 2 else 6)


def lengths(rows: list[Any]) -> set[int]:
    return {len(row.vector) for row in rows if row.vector is not None}


@pytest.fixture
def texts(spark: SparkSession) -> Any:
    rows = [(number, f"text {number}") for number in range(ROWS)]
    return spark.createDataFrame(rows, "id long, text string").repartitionByRange(4, "id")


@pytest.mark.contract
@pytest.mark.parametrize("with_coordinator", [False, True])
def test_the_tasks_of_a_job_agree_on_the_length_of_the_first_vectors(
    texts: Any, with_coordinator: bool
) -> None:
    coordinator = Coordinator().start() if with_coordinator else None
    try:
        with serving(two_models) as raw:
            found = embed_text(
                texts,
                "text",
                into="vector",
                client=raw.client(max_texts=5),
                errors=COLUMN,
                limits=coordinator,
            ).collect()
    finally:
        if coordinator is not None:
            coordinator.close()
    failed = [row for row in found if row.vector is None]
    assert len(lengths(found)) == 1
    assert len(failed) == ROWS // 2
    assert all("column have one length" in row._error.message for row in failed)


@pytest.mark.contract
def test_a_job_is_not_bound_by_the_length_of_another_job_of_the_same_client(texts: Any) -> None:
    length = [4]
    with serving(lambda request: answer(request, length[0])) as raw:
        client = raw.client(max_texts=5)
        for length[0] in (4, 6):
            made = texts.withColumn("vector", async_udf(client)("text")).collect()
            assert lengths(made) == {length[0]}
            mapped = async_map(texts, client_of_rows(client), schema="vector array<float>").collect()
            assert lengths(mapped) == {length[0]}


def client_of_rows(client: Any) -> Any:
    """A function of a user's own around a client."""

    async def embed(row: Any) -> Any:
        async with client:
            return ((await client(row.text)).tolist(),)

    return embed


@pytest.mark.contract
def test_the_vectors_that_a_ledger_has_kept_say_the_length_to_all_tasks(texts: Any, tmp_path: Path) -> None:
    length = [4]
    with serving(lambda request: answer(request, length[0])) as raw:

        def job(df: Any) -> list[Any]:
            ledger = Ledger(str(tmp_path), uid="embed", run="r")
            options: Any = {"errors": COLUMN, "ledger": ledger}
            found: list[Any] = embed_text(
                df, "text", into="vector", client=raw.client(max_texts=5), **options
            ).collect()
            return found

        assert lengths(job(texts.where("id < 10"))) == {4}
        length[0] = 6
        found = job(texts)
    assert lengths(found) == {4}
    assert sum(row.vector is not None for row in found) == 10
