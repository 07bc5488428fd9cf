"""Dead letters: failed rows with their whole input, written once however often a task runs."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import ErrorInfo, Errors
from pillarbox.aio.errors import Failed
from pillarbox.spark import async_map, async_udf, failed_rows
from pillarbox.spark.dead_letters import DeadLetter, DeadLetterWriter
from tests.versions import needs_pyspark

RunScript = Callable[..., list[str]]


async def picky(row: Any) -> int:
    if row.id % 4 == 2:
        raise ValueError(f"no {row.id}")
    value: int = row.id
    return value


def letters(folder: Path) -> list[str]:
    """Files that Spark would read, and those that it would not, were there any."""
    return sorted(os.listdir(folder)) if folder.exists() else []


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


def test_letters_in_parquet_have_the_types_of_the_input(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(2, 3).selectExpr(
        "id",
        "make_dt_interval(1, 2) as pause",
        "array(named_struct('x', make_dt_interval(3))) as pauses",
        "timestamp_ntz'2024-01-01 10:00:00' as here",
        "1.5BD as decimal",
    )
    async_map(df, picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l")).collect()
    back = spark.read.parquet(str(tmp_path / "l"))
    assert back.drop("_error", "_failed_at").dtypes == df.dtypes
    assert back.drop("_error", "_failed_at").collect() == df.collect()


@needs_pyspark(4, 0, "columns of the type interval")
def test_a_type_that_parquet_cannot_hold_is_refused_unless_its_column_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd = spark.sql("select array(make_interval(1)) as span")
    with pytest.raises(ValueError, match="column 'span' has the type array<interval>, which Parquet"):
        async_map(odd, picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l"))
    async_map(odd, picky, schema="n long", errors=Errors(dead_letter=DeadLetter(tmp_path / "l", keep=[])))


@needs_pyspark(4, 1, "columns of nothing in Parquet")
def test_letters_in_parquet_have_a_column_of_nothing(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(2, 3).selectExpr("id", "null as nothing")
    async_map(df, picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l")).collect()
    back = spark.read.parquet(str(tmp_path / "l")).drop("_error", "_failed_at")
    assert back.dtypes == df.dtypes
    assert back.collect() == df.collect()


@pytest.mark.parametrize("errors", ["null", "column"])
def test_dead_letters_go_together_with_other_errors(spark: SparkSession, tmp_path: Path, errors: str) -> None:
    df = async_map(
        spark.range(0, 8, 1, 1), picky, schema="n long", errors=Errors(errors, dead_letter=tmp_path / "l")
    )
    assert [row.n for row in df.collect()] == [0, 1, None, 3, 4, 5, None, 7]
    assert spark.read.parquet(str(tmp_path / "l")).count() == 2


@pytest.mark.slow
@pytest.mark.contract
def test_a_task_that_fails_leaves_nothing_and_the_next_attempt_leaves_each_row_once(
    run_script: RunScript, tmp_path: Path
) -> None:
    lines = run_script(
        """
from pillarbox import Errors
import os, pathlib, sys
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

def first_time(name):
    try:
        (tmp / name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

broken = []

async def call(row):
    if row.id == 25999 and first_time("failed"):
        (tmp / "seen").write_text(" ".join(os.listdir(tmp / "l")))
        if row.kill:
            os._exit(1)
        broken.append(row.id)
    if row.id % 4 == 2 or broken:
        raise ValueError(row.id)
    return row.id

for kill in (False, True):
    (tmp / "failed").unlink(missing_ok=True)
    df = spark.range(0, 60000, 1, 2).selectExpr("id", f"{str(kill).lower()} as kill")
    errors = Errors(stop_after=9000, dead_letter=tmp / "l")
    out = async_map(df, call, schema="n long", errors=errors, capacity=8)
    print(out.count(), (tmp / "failed").exists())
    # What the first attempt had written when it failed, or was killed, was hidden.
    seen = [name for name in (tmp / "seen").read_text().split() if "-00000-" in name]
    print([name.startswith("_part-") for name in seen])
    rows = spark.read.parquet(str(tmp / "l")).collect()
    print(sorted(row.id for row in rows) == list(range(2, 60000, 4)))
    # Of a process that was killed a hidden file stays, which nothing reads.
    print(sorted(name.startswith("part-") for name in os.listdir(tmp / "l")))
    for name in os.listdir(tmp / "l"):
        (tmp / "l" / name).unlink()
""",
        str(tmp_path),
        master="local[4,9]",
    )
    told = ["45000 True", "[True]", "True"]
    assert lines == [*told, "[True, True]", *told, "[False, True, True]"]


def test_a_folder_that_cannot_be_written_fails_the_task_with_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = async_map(spark.range(0, 8, 1, 1), picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l"))
    (tmp_path / "l").write_text("a file")
    with pytest.raises(PySparkException) as caught:
        df.collect()
    text = str(caught.value)
    assert f"DeadLetterError: dead_letter='{tmp_path / 'l'}': failed rows were not written:" in text


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


def test_a_column_has_no_rows_to_put_aside(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dead_letter: a column has no rows to put aside; use async_map, or"):
        async_udf("long", errors=Errors(dead_letter=tmp_path))


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


@pytest.mark.parametrize("scheme", ["file://", "file:", "FILE:"])
def test_a_file_uri_is_a_local_folder(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    df = async_map(
        spark.range(0, 8, 1, 1), picky, schema="n long", errors=Errors(dead_letter=f"{scheme}{tmp_path}/l")
    )
    assert df.count() == 6
    assert spark.read.parquet(str(tmp_path / "l")).count() == 2


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


def ids(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(folder)).collect())


def test_each_action_leaves_letters_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    df = async_map(
        spark.range(0, 20, 1, 2), picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l")
    )
    assert df.count() == 15
    assert ids(spark, tmp_path / "l") == [2, 6, 10, 14, 18]
    # What the second one calls may well succeed, while the first one's results lack these rows.
    assert len(df.collect()) == 15
    assert ids(spark, tmp_path / "l") == sorted(2 * [2, 6, 10, 14, 18])


def test_partitions_that_one_task_runs_keep_their_letters_apart(spark: SparkSession, tmp_path: Path) -> None:
    df = async_map(
        spark.range(0, 100, 1, 8), picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l")
    ).coalesce(1)
    assert len(df.collect()) == 75
    assert ids(spark, tmp_path / "l") == list(range(2, 100, 4))


@pytest.mark.contract("A task that is done again leaves its dead letters again: none is lost.")
def test_a_task_that_is_done_again_leaves_its_letters_again(run_script: RunScript, tmp_path: Path) -> None:
    lines = run_script(
        """
import pathlib, sys
from pillarbox import Errors
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

async def picky(row):
    if row.id % 4 == 2:
        raise ValueError(row.id)
    return row.id

def behind(batches):
    for batch in batches:
        yield batch
    # The rows of the operator before are through, and so are its letters.
    try:
        (tmp / "failed").touch(exist_ok=False)
    except FileExistsError:
        return
    raise RuntimeError("behind")

out = async_map(spark.range(0, 20, 1, 1), picky, schema="n long", errors=Errors(dead_letter=tmp / "l"))
print(out.mapInArrow(behind, "n long").count(), (tmp / "failed").exists())
print(sorted(row.id for row in spark.read.parquet(str(tmp / "l")).collect()))
""",
        str(tmp_path),
        master="local[4,9]",
    )
    assert lines == ["15 True", str(sorted(2 * [2, 6, 10, 14, 18]))]
