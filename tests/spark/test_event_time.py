"""Spark's own event time behind `async_map`: which rows are late, and when which windows come out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pillarbox import Options
from pillarbox.spark import async_map, async_udf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RunScript = Callable[..., list[str]]

DELAY = "5 seconds"

BATCHES = (
    [1, 2, 3, 11, 20],
    [25, 3, 12, 4],
    # Late is what the watermark has passed that held in the micro-batch before, 15: the window of 5, not 18.
    [40, 18, 21, 5],
    # And now 20.
    [60, 19, 7],
)
"""Seconds of event time, by micro-batch."""


class Seen(NamedTuple):
    """The records of a query: windows of each micro-batch; watermark, rows dropped and in state."""

    windows: list[list[tuple[int, int]]]
    progress: list[tuple[str, int, int]]


def write_batches(folder: Path) -> None:
    """A file for each micro-batch, in the order in which Spark's file source takes them."""
    folder.mkdir()
    for number, seconds in enumerate(BATCHES):
        path = folder / f"{number}.json"
        path.write_text("".join(json.dumps({"at": second, "id": second}) + "\n" for second in seconds))
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def watch(
    spark: SparkSession, folder: Path, checkpoint: Path, through: Callable[[DataFrame], DataFrame]
) -> Seen:
    """Run the windows over what `through` makes of the files."""
    from pyspark.sql import functions as F

    df = (
        spark.readStream.schema("at long, id long")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder))
        .select(F.timestamp_seconds("at").alias("ts"), "id")
    )
    windows: list[list[tuple[int, int]]] = []

    def keep(batch: DataFrame, number: int) -> None:
        windows.append(sorted((int(row.start.timestamp()), row["count"]) for row in batch.collect()))

    counted = through(df).groupBy(F.window("ts", "10 seconds")).count().select("window.start", "count")
    query = (
        counted.writeStream.foreachBatch(keep)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(3600)
    progress: dict[int, tuple[str, int, int]] = {}
    for each in query.recentProgress:
        (state,) = each["stateOperators"]
        progress[each["batchId"]] = (
            each["eventTime"]["watermark"],
            state["numRowsDroppedByWatermark"],
            state["numRowsTotal"],
        )
    return Seen(windows, list(progress.values()))


async def double(row: Any) -> dict[str, int]:
    return {"doubled": 2 * row.id}


def kept_behind(df: DataFrame) -> DataFrame:
    return async_map(
        df.withWatermark("ts", DELAY), double, schema="doubled long", keep="*", ordered=False, capacity=3
    )


def with_errors(df: DataFrame) -> DataFrame:
    return async_map(
        df.withWatermark("ts", DELAY),
        double,
        schema="doubled long",
        keep=["ts"],
        errors="column",
        options=Options(where="id > 2"),
    )


def in_front(df: DataFrame) -> DataFrame:
    return async_map(df, double, schema="doubled long", keep=["ts"]).withWatermark("ts", DELAY)


def column(df: DataFrame) -> DataFrame:
    @async_udf("long")
    async def twice(number: int) -> int:
        return 2 * number

    return df.withWatermark("ts", DELAY).withColumn("doubled", twice("id")).filter("doubled > 0")


@pytest.fixture(scope="module")
def expected(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Seen]:
    """The files, and what the query does without `async_map`."""
    folder = tmp_path_factory.mktemp("event-time")
    write_batches(folder / "in")
    seen = watch(session, folder / "in", folder / "checkpoint", lambda df: df.withWatermark("ts", DELAY))
    assert sum(dropped for _, dropped, _ in seen.progress) == 3, seen
    assert [each for batch in seen.windows for each in batch] == [(0, 5), (10, 3), (20, 3), (40, 1)], seen
    return folder / "in", seen


@pytest.mark.contract(
    "Behind `async_map` the same rows are late, and the same windows come out in the same micro-batches, "
    "whether `withWatermark` stands in front of it or behind."
)
@pytest.mark.parametrize("through", [kept_behind, in_front])
def test_late_rows_and_windows_are_the_same_behind_async_map(
    spark: SparkSession,
    expected: tuple[Path, Seen],
    through: Callable[[DataFrame], DataFrame],
    tmp_path: Path,
) -> None:
    folder, seen = expected
    assert watch(spark, folder, tmp_path, through) == seen


@pytest.mark.slow
@pytest.mark.parametrize("through", [with_errors, column])
def test_late_rows_and_windows_are_the_same_with_errors_in_a_column_and_behind_async_udf(
    spark: SparkSession,
    expected: tuple[Path, Seen],
    through: Callable[[DataFrame], DataFrame],
    tmp_path: Path,
) -> None:
    folder, seen = expected
    assert watch(spark, folder, tmp_path, through) == seen


def test_a_time_that_the_function_gives_has_no_watermark_and_spark_says_so(
    spark: SparkSession, expected: tuple[Path, Seen], tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException

    async def same(row: Any) -> dict[str, Any]:
        return {"ts": row.ts}

    with pytest.raises(AnalysisException, match="watermark"):
        watch(
            spark,
            expected[0],
            tmp_path,
            lambda df: async_map(df.withWatermark("ts", DELAY), same, schema="ts timestamp"),
        )


@pytest.mark.slow
def test_a_column_that_is_kept_carries_its_watermark_over_connect(run_script: RunScript) -> None:
    lines = run_script(
        """
        from pyspark.sql import functions as F
        from pillarbox.spark import async_map

        async def double(row):
            return {"doubled": 2 * row.value}

        df = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
        mapped = async_map(df, double, schema="doubled long", keep="*")
        print([mapped.schema[name].metadata for name in mapped.columns] == [
            *[df.schema[name].metadata for name in df.columns], {},
        ] and df.schema["timestamp"].metadata != {})
        # Without a watermark append mode is refused.
        counted = mapped.groupBy(F.window("timestamp", "1 second")).count()
        counted.writeStream.format("noop").option("checkpointLocation", "checkpoint").start().stop()
        print("started")
        """,
        remote="local[2]",
    )
    assert lines == ["True", "started"]
