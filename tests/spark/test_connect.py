"""The same API over Spark Connect, with a server of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., list[str]]


@pytest.mark.contract
def test_maps_and_columns_work_over_connect(run_script: RunScript) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    lines = run_script(
        """
from pillarbox import Budget
import asyncio
from pillarbox import Retry
from pillarbox.spark import async_map, async_udf

async def lookup(row):
    await asyncio.sleep(0.001)
    return {"price": row.id * 0.5, "at": row.t}

@async_udf("array<float>", capacity=8, retry=Retry(attempts=2))
async def embed(text):
    return [float(len(text))]

df = spark.range(0, 200, 1, 2)
df = df.selectExpr("id", "timestamp'2024-01-01 00:00:00Z' as t", "repeat('x', 3) as text")
print(type(df).__module__)
rows = async_map(df, lookup, schema="price double, at timestamp", keep=["id"], ordered=False).collect()
print(sorted((row.id, row.price) for row in rows) == [(i, i * 0.5) for i in range(200)])
print(all(row.vector == [3.0] for row in df.withColumn("vector", embed("text")).collect()))
try:
    spark.udf.register("embed", embed)
    print([tuple(row.vector) for row in spark.sql("select embed('four') as vector").collect()])
except TypeError as error:
    print(error)
try:
    async_map(df, lookup, schema="price dooble")
except ValueError as error:
    print(str(error).partition(" (")[0])
try:
    async_map(df, lookup, schema="price double", errors="null", budget=Budget(max_calls=5))
except ValueError as error:
    print(error)
""",
        remote="local[2]",
    )
    assert lines == [
        "pyspark.sql.connect.dataframe",
        "True",
        "True",
        "[(4.0,)]",
        "schema='price dooble': is not a type in DDL form",
        # Nobody knows here whether the workers reach this machine.
        "max_calls=5: is for the whole job, whose tasks count together through a coordinator; "
        "over Spark Connect give one that the workers reach: limits=Coordinator(...)",
    ]


@pytest.mark.contract
def test_a_source_that_the_connect_server_cannot_load_is_refused_when_it_is_registered(
    run_script: RunScript, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    (tmp_path / "shop_sources.py").write_text(
        "from pillarbox.sources.connectors.generator import GeneratorSource\n"
        "class ShopSource(GeneratorSource):\n    pass\n"
    )
    lines = run_script(
        """
sys.path.append(sys.argv[1])
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.spark import register_source
from shop_sources import ShopSource

class OwnSource(GeneratorSource):
    pass

def attempt(source, name):
    try:
        print(spark.read.format(register_source(spark, source, name)).load().count())
    except ValueError as error:
        print(error)

attempt(GeneratorSource(rows=5), "known")
attempt(OwnSource(rows=6), "own")
for source in (ShopSource(rows=7), ShopSource, ["files", ShopSource]):
    attempt(source, "shop")
spark.addArtifacts(sys.argv[1] + "/shop_sources.py", pyfile=True)
attempt(ShopSource(rows=7), "shop")
""",
        str(tmp_path),
        remote="local[2]",
    )
    refused = (
        "source of the format 'shop': the server of Spark Connect cannot load it (ModuleNotFoundError: No "
        "module named 'shop_sources'); install that there, or send it before register_source: "
        "spark.addArtifacts('<file>.py', pyfile=True), a package as a .zip"
    )
    assert lines == ["5", "6", *[refused] * 3, "7"]
