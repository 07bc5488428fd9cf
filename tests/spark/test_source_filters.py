"""Filters with `spark.sql.python.filterPushdown.enabled`: reads stay right, and what Spark does with a reader
that takes them. docs/decisions/filters.md says what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds

from pillarbox.spark import register_source
from pillarbox.spark.data_source import PillarboxSource
from tests.versions import needs_pyspark

needs_filters = needs_pyspark(4, 1, "readers that take filters")

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with filters pushed into Python data sources."""
    before = spark.conf.get(CONF, "false")
    spark.conf.set(CONF, "true")
    yield spark
    spark.conf.set(CONF, str(before))


def numbers(df: DataFrame) -> list[int]:
    return sorted(row.n for row in df.collect())


@pytest.mark.contract
@pytest.mark.parametrize("by_need", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_queries_of_one_dataframe_each_get_their_own_rows(
    pushing: SparkSession, tmp_path: Path, by_need: bool
) -> None:
    for day in range(1, 5):
        folder = tmp_path / f"day=2026-01-0{day}"
        folder.mkdir()
        pq.write_table(pa.table({"n": [day, day + 10]}), folder / "data")
    if by_need:
        name = register_source(pushing)
    else:
        name = "filtered_by_rule"
        pushing.dataSource.register(type("ByRule", (PillarboxSource,), {"format_name": name}))
    df = pushing.read.format(name).option("source", "files").load(str(tmp_path))
    first, second = df.where("day = '2026-01-01'"), df.where("day >= '2026-01-02' and n < 10")
    assert numbers(first) == [1, 11]
    assert numbers(df) == [1, 2, 3, 4, 11, 12, 13, 14]
    assert numbers(second) == [2, 3, 4]
    assert numbers(first.union(second).union(df)) == sorted([1, 11, 2, 3, 4, *numbers(df)])
    assert first.join(second.select((second.n - 1).alias("n")), "n").count() == 1
    assert (first.count(), df.count(), numbers(first)) == (2, 8, [1, 11])


class Pushed(ds.DataSource):
    """The numbers 1 to 3, a partition each; it reads only the one that a query filters by."""

    @classmethod
    def name(cls) -> str:
        return "pushed_numbers"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: Any) -> ds.DataSourceReader:
        return PushedReader()


class PushedReader(ds.DataSourceReader):
    wanted = (1, 2, 3)

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for each in filters:
            if type(each).__name__ == "EqualTo":
                self.wanted = (each.value,)
        # Spark is to evaluate them all the same.
        return filters

    def partitions(self) -> list[ds.InputPartition]:
        return [ds.InputPartition(number) for number in self.wanted]

    def read(self, partition: ds.InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


@needs_filters
def test_spark_gives_a_query_what_was_planned_with_the_filter_of_another(pushing: SparkSession) -> None:
    """A failure says that Spark has come to keep them apart, and filters could be taken."""
    pushing.dataSource.register(Pushed)
    df = pushing.read.format("pushed_numbers").load()
    assert numbers(df.where("n = 2")) == [2]
    # Each of these is wrong.
    assert numbers(df) == [2]
    assert numbers(df.where("n = 1").union(df.where("n = 3"))) == [3]
    df.where("n = 1").explain()
    assert numbers(df.select("n")) == [1]


@needs_filters
def test_a_reader_that_takes_filters_is_refused_where_spark_pushes_none(spark: SparkSession) -> None:
    spark.dataSource.register(Pushed)
    assert spark.conf.get(CONF) == "false"
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        spark.read.format("pushed_numbers").load().collect()
