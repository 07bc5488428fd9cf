"""Results of any nested type, with anything missing in them: each arrives as it is, or fails its row."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox import Batch
from pillarbox.spark import async_map, async_udf
from tests.search import examples
from tests.spark.strict_types import as_arrow, is_wrong, strict_kinds

ROWS = 12


def plain(value: Any) -> Any:
    """A value of Spark as the function gave it."""
    if isinstance(value, Row):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.contract(
    "A result of any nested type arrives as it is, or is the ResultError of its row; no job dies of it.",
    convicts=["nulls_inside_pass"],
)
@pytest.mark.parametrize("door", ["rows", "blocks", "column", "column of blocks"])
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strict_kinds(), st.booleans(), st.data())
def test_a_result_of_any_nested_type_arrives_or_fails_its_row(
    spark: SparkSession, door: str, typed: Any, nullable: bool, data: Any
) -> None:
    kind, values = typed
    given = data.draw(st.lists(values | values | st.none(), min_size=ROWS, max_size=ROWS))
    df = spark.range(0, ROWS, 1, 1)
    if door in ("rows", "blocks"):
        schema = T.StructType([T.StructField("v", kind, nullable)])

        async def row(row: Any) -> Any:
            return {"v": given[row.id]}

        async def rows(batch: pa.RecordBatch) -> Any:
            return pa.table({"v": as_arrow([given[n] for n in batch.column("id").to_pylist()], kind)})

        fn, batch = (row, None) if door == "rows" else (rows, Batch(ROWS, arrow=True))
        out = async_map(df, fn, schema=schema, keep=["id"], errors="column", batch=batch)
        out = out.select("id", "v", F.col("_error.type").alias("type"))
    else:
        # A column may always be null.
        nullable = True

        async def one(n: int) -> Any:
            return given[n]

        async def many(numbers: pa.Array) -> Any:
            return as_arrow([given[n] for n in numbers.to_pylist()], kind)

        fn, batch = (one, None) if door == "column" else (many, Batch(ROWS, arrow=True))
        out = df.select("id", async_udf(fn, kind, errors="column", batch=batch)("id").alias("r"))
        out = out.select("id", F.col("r.result").alias("v"), F.col("r._error.type").alias("type"))
    for id, found, error in out.collect():
        if is_wrong(given[id], kind, nullable):
            assert (found, error) == (None, "ResultError")
        else:
            assert (plain(found), error) == (given[id], None)
