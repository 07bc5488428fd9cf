"""Dead letters in detail: `DeadLetter` with its options, and its writer."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import ErrorInfo, Errors
from pillarbox.aio.errors import Failed
from pillarbox.spark import async_map, failed_rows
from pillarbox.spark.dead_letters import DeadLetter, DeadLetterWriter
from tests.spark.test_dead_letters import letters, picky
from tests.versions import needs_pyspark


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_failed_rows_are_put_aside_with_their_whole_input(
    spark: SparkSession, tmp_path: Path, ordered: bool
) -> None:
    before = datetime.datetime.now()
    folder = tmp_path / "letters"
    df = spark.range(0, 5000, 1, 2).select(
        "id",
        F.concat(F.lit("tëxt "), "id").alias("text"),
        F.struct(F.col("id").alias("a"), F.array(F.col("id") / 2).alias("b")).alias("nested"),
        F.create_map(F.lit("k"), "id").alias("map"),
        F.lit(None).cast("double").alias("nothing"),
        F.timestamp_seconds("id").alias("at"),
    )
    out = async_map(
        df,
        picky,
        schema="n long",
        keep=["id"],
        errors=Errors(dead_letter=DeadLetter(folder)),
        ordered=ordered,
    )
    assert sorted(map(tuple, out.collect())) == [(i, i) for i in range(5000) if i % 4 != 2]
    assert all(name.startswith("part-") and name.endswith(".parquet") for name in letters(folder))

    back = spark.read.parquet(str(folder))
    assert back.columns == [*df.columns, "_error", "_failed_at"]
    rows = sorted(back.collect())
    expected = {row.id: row for row in df.where("id % 4 = 2").collect()}
    assert [row.id for row in rows] == sorted(expected)
    for row in rows:
        assert tuple(row)[: len(df.columns)] == tuple(expected[row.id])
        assert (row["_error"].type, row["_error"].message) == ("ValueError", f"no {row.id}")
        assert row["_error"].attempts == 1
        assert before <= row["_failed_at"] <= datetime.datetime.now()
    assert failed_rows(back).count() == 1250


@needs_pyspark(4, 0, "columns of the type interval")
def test_a_type_that_parquet_cannot_hold_is_refused_unless_its_column_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd = spark.sql("select array(make_interval(1)) as span")
    with pytest.raises(ValueError, match="column 'span' has the type array<interval>, which Parquet"):
        async_map(odd, picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l"))
    async_map(odd, picky, schema="n long", errors=Errors(dead_letter=DeadLetter(tmp_path / "l", keep=[])))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"errors": Errors(dead_letter=5)},
            TypeError,
            "dead_letter=5: must be a path or a pillarbox.spark.dead_letters.DeadLetter",
        ),
        ({"errors": Errors(dead_letter="")}, ValueError, "dead_letter='': must be the path of a folder"),
        (
            {"errors": Errors(dead_letter="ftp://x/y")},
            ValueError,
            "dead_letter='ftp://x/y': must be a local path or one of",
        ),
        (
            {"errors": Errors(dead_letter="dbfs:/mnt/x")},
            ValueError,
            "dead_letter='dbfs:/mnt/x': must be a local path",
        ),
        (
            {"errors": Errors(dead_letter="s3:/b/x")},
            ValueError,
            "dead_letter='s3:/b/x': must be a local path or one of",
        ),
    ],
)
def test_dead_letters_that_cannot_be_are_refused_on_the_driver(
    spark: SparkSession, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        async_map(spark.range(1), picky, schema="n long", **arguments)


@pytest.mark.contract
@needs_pyspark(4, 0, "columns of the type interval")
def test_of_a_failed_row_only_the_columns_that_are_kept_are_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    people = spark.range(0, 8, 1, 1).selectExpr("id", "'Ada' as name", "make_interval(0, 0, 0, 1) as span")
    aside = DeadLetter(tmp_path / "l", keep=["id", "name"])
    assert async_map(people, picky, schema="n long", errors=Errors(dead_letter=aside)).count() == 6
    found = spark.read.parquet(str(tmp_path / "l"))
    assert set(found.columns) == {*aside.keep, "_error", "_failed_at"}
    assert sorted(row.id for row in found.collect()) == [2, 6]
    with pytest.raises(ValueError, match=r"keep=\['nobody'\]\): 'nobody' is not a column of the DataFrame"):
        async_map(
            people,
            picky,
            schema="n long",
            errors=Errors(dead_letter=DeadLetter(tmp_path / "l", keep=["nobody"])),
        )
    with pytest.raises(TypeError, match="keep='id': must be"):
        DeadLetter(tmp_path / "l", keep="id")


def test_a_local_path_is_tried_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", f"file://{tmp_path}/file"):
        with pytest.raises(ValueError, match=f"{tmp_path / 'file'} is not a folder"):
            DeadLetter(path)
    df = spark.range(1).withColumnRenamed("id", "_failed_at")
    with pytest.raises(ValueError, match="the input has a column '_failed_at', as dead letters get: rename"):
        async_map(df, picky, schema="n long", errors=Errors(dead_letter=tmp_path))


@pytest.mark.contract
@pytest.mark.parametrize("name", ["a b", "ž", "a#b", "a?b", "a%20b"])
def test_letters_are_in_the_folder_that_a_file_uri_names(tmp_path: Path, name: str) -> None:
    failed = Failed(ErrorInfo("ValueError", "no", 1, 0.0, None))
    with DeadLetterWriter(DeadLetter(f"file://{tmp_path}/{name}")) as writer:
        writer.add(pa.RecordBatch.from_pydict({"id": [7]}), [failed])
    assert letters(tmp_path) == [name.replace("%20", " ")]
    (file,) = (tmp_path / name.replace("%20", " ")).iterdir()
    assert parquet.read_table(file).column("id").to_pylist() == [7]
    with pytest.raises(ValueError, match="must be a local path or one of file:///, "):
        DeadLetter(f"file:/{tmp_path}/{name}")


@pytest.mark.contract
def test_secrets_of_an_address_are_never_shown(spark: SparkSession) -> None:
    address = "s3a://key:secret@bucket/letters?region=eu-west-1"
    letter = DeadLetter(address)
    assert repr(letter) == "DeadLetter('s3a://***@bucket/letters')"
    assert letter.uri == "s3://key:secret@bucket/letters?region=eu-west-1"
    for address, expected in (
        ("s3a://key:se/cret@bucket/letters", "s3a://***@bucket/letters"),
        ("s3://key:sec@ret@bucket/letters", "s3://***@bucket/letters"),
        ("s3://key:se?cret@bucket/letters", "s3://***"),
        ("s3://bucket/letters?secret_key=a@b", "s3://***"),
        ("s3://bucket/letters", "s3://bucket/letters"),
    ):
        assert repr(DeadLetter(address)) == f"DeadLetter({expected!r})"
    with pytest.raises(ValueError, match=r"dead_letter='nfs://\*\*\*@x/y': must be"):
        DeadLetter("nfs://user:secret@x/y")
