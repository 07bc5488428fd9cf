"""Dead letters: failed rows with their whole input, written once however often a task runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pillarbox import Errors
from pillarbox.spark import async_map, async_udf
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


def test_a_column_has_no_rows_to_put_aside(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dead_letter: a column has no rows to put aside; use async_map, or"):
        async_udf("long", errors=Errors(dead_letter=tmp_path))


@pytest.mark.parametrize("scheme", ["file://", "file:", "FILE:"])
def test_a_file_uri_is_a_local_folder(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    df = async_map(
        spark.range(0, 8, 1, 1), picky, schema="n long", errors=Errors(dead_letter=f"{scheme}{tmp_path}/l")
    )
    assert df.count() == 6
    assert spark.read.parquet(str(tmp_path / "l")).count() == 2


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
