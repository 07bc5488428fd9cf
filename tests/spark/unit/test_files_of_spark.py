"""Nested columns of Parquet that Spark has written, read in slices, leaf by leaf."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sources.unit.paged import check_slices

COLUMNS = {
    "maps": "if(n % 7 = 3, null, map(concat('k', n), at, 'k', null))",
    "maps of lists": "map(n, array(decimal, null), -n - 1, null)",
    "structs": "if(n % 5 = 2, null, named_struct('at', at, 'inner', named_struct('d', decimal, 't', t)))",
    "lists of structs": "transform(sequence(0, n % 4), i -> named_struct('i', i, 'parts', array(t, null)))",
}


@pytest.mark.contract("Nested columns that Spark wrote to Parquet are read in slices, from their own pages.")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_nested_columns_of_spark_are_read_in_slices(
    spark: SparkSession, tmp_path: Path, column: str, version: str
) -> None:
    rows = 3000
    frame = spark.range(0, rows, 1, 1).selectExpr(
        "id n",
        "timestamp_seconds(id * 100000) at",
        "cast(id as decimal(20, 3)) decimal",
        "if(id < 1000, concat('few', id % 5), concat('many', id)) t",
    )
    options = {"parquet.page.size": "1000", "parquet.writer.version": version}
    # Pages are cut after so many rows at most, and their size is looked at after so many.
    options |= {"parquet.page.row.count.limit": "300", "parquet.page.size.row.check.min": "50"}
    frame.selectExpr(f"{column} a").write.options(**options).parquet(str(tmp_path / "out"))
    (path,) = (tmp_path / "out").glob("*.parquet")
    content = path.read_bytes()
    check_slices(content, 0, [(0, rows), (1, 2), (899, 1101), (1500, 2999), (2990, 3000)], 700)
