"""A ledger that is a cache, in Spark: the next job calls for what is new, whatever is killed or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pyspark.sql import Row, SparkSession

from pillarbox.clients import Http, HttpLookup
from pillarbox.ledger import Cache, Ledger
from pillarbox.spark import async_map, async_stream, async_udf, lookup
from tests.clients.conftest import serve_handler
from tests.spark.test_client_columns import in_thread
from tests.versions import needs_async_stream

RunScript = Callable[..., list[str]]


class Noted:
    """Squares a number and notes it in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    async def __call__(self, row: Any) -> int:
        number = row if isinstance(row, int) else row.id
        with open(self.path, "a") as file:
            file.write(f"{number}\n")
        return number * number

    def calls(self) -> list[int]:
        path = Path(self.path)
        return sorted(map(int, path.read_text().split())) if path.exists() else []


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "cache"), uid="squares", cache=True)


@pytest.fixture
def noted(tmp_path: Path) -> Noted:
    return Noted(tmp_path / "calls")


@pytest.mark.contract
def test_a_second_job_with_a_few_new_rows_makes_as_many_calls(
    spark: SparkSession, ledger: Ledger, noted: Noted
) -> None:
    for begin in (0, 10):
        numbers = spark.range(begin, begin + 200, 1, 3)
        rows = async_map(numbers, noted, schema="square long", ledger=ledger).collect()
        assert rows == [Row(square=n * n) for n in range(begin, begin + 200)]
    assert noted.calls() == [*range(210)]


@pytest.mark.contract
def test_columns_beside_the_inputs_of_a_cache_are_no_matter(
    spark: SparkSession, ledger: Ledger, noted: Noted, tmp_path: Path
) -> None:
    by_id = Ledger(ledger.location, uid="squares", cache=Cache(max_age=3600.0), inputs=["id"])
    for word in ("one", "other"):
        numbers = spark.range(20).selectExpr("id", f"'{word}' as word")
        async_map(numbers, noted, schema="square long", ledger=by_id).collect()
    assert noted.calls() == [*range(20)]
    square = async_udf(noted, "long", ledger=ledger)
    for _ in range(2):
        spark.range(5).select(square("id")).collect()
    assert noted.calls()[:10] == sorted([*range(5)] * 2)


@pytest.mark.contract
def test_a_stream_and_a_batch_job_share_a_cache(
    spark: SparkSession, ledger: Ledger, noted: Noted, tmp_path: Path
) -> None:
    spark.range(0, 30, 1, 2).write.parquet(str(tmp_path / "in"))
    async_map(spark.range(10, 40), noted, schema="square long", keep=["id"], ledger=ledger).collect()
    assert noted.calls() == [*range(10, 40)]
    numbers = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    limited = Ledger(ledger.location, uid="squares", cache=Cache(max_age=3600.0))
    squares = async_map(numbers, noted, schema="square long", keep=["id"], ledger=limited)
    for number in range(2):
        query = (
            squares.writeStream.format("parquet")
            .option("path", str(tmp_path / f"out{number}"))
            .option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(3600)
        found = spark.read.parquet(str(tmp_path / f"out{number}")).sort("id").collect()
        assert found == [Row(id=n, square=n * n) for n in range(30)]
    assert noted.calls() == [*range(40)]


@pytest.fixture
def planes() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"model": request.path.rpartition("/")[2].upper()})

    with in_thread(serve_handler(answer)) as url:
        yield url, asked


@pytest.mark.contract
def test_a_lookup_is_known_by_its_fields_and_by_what_the_client_asks(
    spark: SparkSession, tmp_path: Path, planes: tuple[str, list[str]]
) -> None:
    url, asked = planes
    flights = spark.createDataFrame([(n, f"n{n % 5}") for n in range(20)], "id long, tailnum string")
    ledger = Ledger(str(tmp_path / "cache"), uid="planes", cache=True)

    def models(**more: Any) -> list[Any]:
        client = HttpLookup(
            f"{url}/planes/{{tailnum}}", http=Http(proxy="direct", **more.pop("http", {})), **more
        )
        found = lookup(flights.coalesce(1), client=client, schema="model string", ledger=ledger).collect()
        return [row.model for row in found]

    wanted = [f"N{n % 5}" for n in range(20)]
    assert models() == models() == models(http={"connections": 3}) == wanted
    assert len(asked) == 5
    assert models(params={"units": "si"}) == wanted
    assert len(asked) == 10


@pytest.mark.contract
@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_costs_no_call_that_the_cache_has(
    run_script: RunScript, tmp_path: Path
) -> None:
    lines = run_script(
        """
import asyncio, os, pathlib, signal, sys
from pillarbox import Ledger
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

def kept():
    return sum(len(ledger.reader(scope)) for scope in ledger.scopes())

async def call(row):
    with open(tmp / "calls", "a") as file:
        file.write(f"{row.id}\\n")
    if row.id >= 150 and not (tmp / "killed").exists():
        # What came before is durable by then, and nothing is behind it.
        while row.id > 150 or kept() < 150:
            await asyncio.sleep(0.02)
        (tmp / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return row.id

ledger = Ledger(str(tmp / "cache"), uid="call", cache=True)
for job in range(2):
    df = spark.range(0, 300, 1, 1)
    out = async_map(df, call, schema="id long", keep=[], ledger=ledger, capacity=10)
    print([row.id for row in out.collect()] == [*range(300)])
calls = list(map(int, (tmp / "calls").read_text().split()))
print(set(calls) == set(range(300)), len(calls) <= 310, (tmp / "killed").exists())
""",
        str(tmp_path),
        master="local[2,4]",
    )
    assert lines == ["True", "True", "True True True"]


@pytest.mark.contract
@pytest.mark.slow
def test_a_cache_is_used_over_connect(run_script: RunScript, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    lines = run_script(
        """
import pathlib, sys
from pillarbox import Ledger
from pillarbox.ledger import Cache
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

async def call(row):
    with open(tmp / "calls", "a") as file:
        file.write(f"{row.id}\\n")
    return row.id

for cache in (True, Cache(max_age=3600.0), Cache(max_bytes=10**9)):
    ledger = Ledger(str(tmp / "cache"), uid="call", cache=cache)
    out = async_map(spark.range(0, 40, 1, 2), call, schema="id long", keep=[], ledger=ledger)
    print([row.id for row in out.collect()] == [*range(40)])
print(sorted(map(int, (tmp / "calls").read_text().split())) == [*range(40)])
""",
        str(tmp_path),
        remote="local[2]",
    )
    assert lines == ["True"] * 4


@needs_async_stream
def test_a_stream_refuses_a_cache(spark: SparkSession, ledger: Ledger, noted: Noted) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as id")
    with pytest.raises(ValueError, match="cache=.*must be left out"):
        async_stream(stream, noted, schema="square long", max_wait=1.0, ledger=ledger)


def test_a_lookup_of_a_column_that_is_not_there_refuses_a_cache(spark: SparkSession, ledger: Ledger) -> None:
    fields = HttpLookup("http://127.0.0.1:9/{there_is_none}")
    with pytest.raises(ValueError, match="'there_is_none' is not a column"):
        async_map(spark.range(3), fields, schema="square long", ledger=ledger)
