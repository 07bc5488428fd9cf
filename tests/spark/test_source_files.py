"""Files under Spark: as Spark's own readers read them, where they were written by Spark, outside UTC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from pillarbox.spark import register_source

WRITERS = ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")
CONFS = (
    "spark.sql.session.timeZone",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.parquet.int96RebaseModeInWrite",
    "spark.sql.parquet.datetimeRebaseModeInWrite",
)


@pytest.fixture
def abroad(spark: SparkSession) -> Iterator[SparkSession]:
    """A session outside UTC, with what a test sets undone behind it."""
    before = {name: spark.conf.get(name) for name in CONFS}
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    register_source(spark)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value or "")


def ours(spark: SparkSession, form: str, **options: Any) -> DataFrameReader:
    return spark.read.format("pillarbox").option("source", "files").option("format", form).options(**options)


def refused(frame: DataFrame) -> str:
    with pytest.raises(Exception, match="ReadFailed") as caught:
        frame.collect()
    return str(caught.value)


@pytest.mark.contract("Times of Parquet have the type and the instant that Spark gives them.")
@pytest.mark.parametrize("kind", WRITERS)
def test_times_that_spark_wrote_are_read_as_spark_reads_them(
    abroad: SparkSession, tmp_path: Path, kind: str
) -> None:
    abroad.conf.set("spark.sql.parquet.outputTimestampType", kind)
    at, local = "timestamp'2024-07-01 10:00:00'", "timestamp_ntz'2024-07-01 10:00:00'"
    place = str(tmp_path / "out")
    abroad.sql(
        f"select {at} at, {local} local, date'2024-07-01' day, array({at}, null) list, "
        f"named_struct('n', 1, 'at', {at}, 'local', {local}) both, map('k', {at}) map"
    ).write.parquet(place)
    found, theirs = ours(abroad, "parquet").load(place), abroad.read.parquet(place)
    assert found.schema.simpleString() == theirs.schema.simpleString()
    assert found.collect() == theirs.collect()
    assert found.selectExpr("hour(at)", "hour(local)", "hour(both.at)").collect() == [(10, 10, 10)]


@pytest.mark.contract("Dates and times in the calendar of Spark 2 are refused, never read as others.")
def test_old_dates_are_read_as_spark_reads_them_or_refused(abroad: SparkSession, tmp_path: Path) -> None:
    for kind in ("INT96", "TIMESTAMP_MICROS"):
        abroad.conf.set("spark.sql.parquet.outputTimestampType", kind)
        for mode in ("CORRECTED", "LEGACY"):
            for name in ("int96RebaseModeInWrite", "datetimeRebaseModeInWrite"):
                abroad.conf.set(f"spark.sql.parquet.{name}", mode)
            for day in ("1500-01-01", "2024-01-01"):
                place = str(tmp_path / kind / mode / day)
                abroad.sql(f"select timestamp'{day} 10:00:00' at, date'{day}' day").write.parquet(place)
                found = ours(abroad, "parquet").load(place)
                if mode == "LEGACY" and day < "1582":
                    assert "in the calendar of Spark 2 (LEGACY)" in refused(found)
                else:
                    assert found.collect() == abroad.read.parquet(place).collect()


LINES = """\
{"i": 1, "f": 1, "b": true, "t": "x", "at": "2024-07-01T10:00:00+02:00", "day": "2024-02-29"}
{"i": -0, "f": 1e3, "b": null, "t": "", "more": {"a": [1]}}
  {"t": "\\u00e4\\ud83d\\ude00", "s": {"a": [1, 2]}, "f": 0.1}

{"i": 1, "i": 2, "f": NaN}
{"i": 1.5, "t": "kept"}
{"i": 9223372036854775808, "f": 1}
{"i": true}
{"b": 1, "i": 3}
{"i": {"a": 1}, "t": "object"}
{"i": [1], "t": "array"}
{"i": 1
x
"""
DDL = "i long, f double, b boolean, t string, at timestamp, day date"


@pytest.mark.contract("Lines of JSON are read as Spark reads them, good and bad ones.")
def test_json_is_read_as_spark_reads_it(abroad: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(LINES)
    ddl = f"{DDL}, _corrupt_record string"
    found = ours(abroad, "json", on_bad_row="column").schema(ddl).load(str(tmp_path)).collect()
    theirs = abroad.read.schema(ddl).json(str(tmp_path)).collect()
    assert len(found) == len(theirs) == 12
    for mine, other in zip(found, theirs, strict=True):
        assert repr(mine) == repr(other)


def test_json_needs_a_schema_of_flat_columns(spark: SparkSession, tmp_path: Path) -> None:
    register_source(spark)
    (tmp_path / "a.json").write_text("{}\n")
    for reader, words in (
        (ours(spark, "json"), "format='json': needs schema="),
        (ours(spark, "csv").schema("i long"), r"spark.read.csv"),
        (ours(spark, "json").schema("s struct<a: long>"), "column 's' is struct.*from_json"),
        (ours(spark, "json", on_bad_row="column").schema("i long"), "bad_row_column='_corrupt_record'"),
    ):
        with pytest.raises(AnalysisException, match=words):
            reader.load(str(tmp_path)).collect()


@pytest.mark.contract("Columns that a schema leaves out are not read.")
def test_columns_that_are_not_asked_for_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    register_source(spark)
    spark.range(1000).selectExpr("id", "id * 2 as twice", "id as more").coalesce(1).write.parquet(
        str(tmp_path / "in")
    )
    (path,) = (tmp_path / "in").glob("*.parquet")
    content = path.read_bytes()
    # The pages of the last column are broken: whoever reads them fails.
    from pyarrow import parquet as pq

    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    end = begin + chunk.total_compressed_size
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.parquet").write_bytes(content[:begin] + b"\xff" * (end - begin) + content[end:])
    place = str(tmp_path / "broken")
    named = ours(spark, "parquet").schema("twice long, id long").load(place)
    assert sorted(named.collect()) == [(2 * number, number) for number in range(1000)]
    assert ours(spark, "parquet").schema("id long").load(place).count() == 1000
    assert "a.parquet" in refused(ours(spark, "parquet").load(place))
