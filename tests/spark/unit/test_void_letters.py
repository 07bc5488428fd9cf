"""Dead letters stay, but for those of work that Spark is known to have done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Errors
from pillarbox.spark import DeadLetter, async_map
from pillarbox.spark.dead_letters import DeadLetterName, DeadLetterTarget

RunScript = Callable[..., list[str]]

PICKY = """
import json, os, pathlib, sys
from pyspark.sql import functions as F
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

async def picky(row):
    if row.id % 4 == 2:
        raise ValueError(row.id)
    return row.id

def letters():
    return sorted(row.id for row in spark.read.parquet(str(tmp / "l")).collect())
"""


async def picky(row: Any) -> int:
    if row.id % 4 == 2:
        raise ValueError(f"no {row.id}")
    value: int = row.id
    return value


def ids(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(folder)).collect())


def batches(spark: SparkSession, folder: Path, count: int) -> DataFrame:
    """A stream of 0, 1, 2, ... in micro-batches of ten."""
    folder.mkdir()
    for part in range(count):
        lines = [json.dumps({"id": part * 10 + i}) + "\n" for i in range(10)]
        (folder / f"{part}.json").write_text("".join(lines))
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder))


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


@pytest.mark.contract
@pytest.mark.parametrize("speculation", ["false", "told", pytest.param("session", marks=pytest.mark.slow)])
def test_a_later_attempt_replaces_the_letters_of_the_same_task_unless_both_may_run(
    run_script: RunScript, tmp_path: Path, speculation: str
) -> None:
    lines = run_script(
        PICKY
        + """from pillarbox import Errors

def behind(batches):
    for batch in batches:
        yield batch
    # The rows of the operator before are through, and so are its letters.
    try:
        (tmp / "failed").touch(exist_ok=False)
    except FileExistsError:
        return
    raise RuntimeError("behind")

# A session that has the setting tells its tasks so.
spark.sparkContext.setLocalProperty("spark.speculation", "true" if sys.argv[2] == "told" else None)
out = async_map(spark.range(0, 20, 1, 1), picky, schema="n long", errors=Errors(dead_letter=tmp / "l"))
print(out.mapInArrow(behind, "n long").count(), (tmp / "failed").exists())
print(letters())
spark.sparkContext.setLocalProperty("spark.speculation", None)
""",
        str(tmp_path),
        speculation,
        master="local[4,9]",
        settings={"spark.speculation": "true"} if speculation == "session" else None,
    )
    times = 1 if speculation == "false" else 2
    assert lines == ["15 True", str(sorted(times * [2, 6, 10, 14, 18]))]


def test_uses_of_one_function_in_a_micro_batch_keep_each_others_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "l")

    def each(batch: DataFrame, number: int) -> None:
        for part in ("< 5", ">= 5"):
            rows = batch.where(f"id % 10 {part}").coalesce(1)
            async_map(rows, picky, schema="n long", errors=Errors(dead_letter=folder)).collect()

    writer = batches(spark, tmp_path / "in", 3).writeStream.foreachBatch(each)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    assert ids(spark, tmp_path / "l") == list(range(2, 30, 4))


def test_both_sides_of_a_join_of_streams_keep_their_letters(spark: SparkSession, tmp_path: Path) -> None:
    sides = []
    for name in ("left", "right"):
        stream = batches(spark, tmp_path / name, 1).selectExpr("id" if name == "left" else "id + 100 as id")
        sides.append(async_map(stream, picky, schema="n long", errors=Errors(dead_letter=tmp_path / "l")))
    joined = sides[0].join(sides[1], "n")
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    assert ids(spark, tmp_path / "l") == [2, 6, 102, 106]


@pytest.mark.contract
def test_a_replayed_micro_batch_replaces_its_letters_also_in_the_same_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    down = tmp_path / "down"
    down.touch()

    # Two partitions, of even and of odd numbers. In the second micro-batch the odd ones are through, with
    # their letters, when what stands behind the even ones fails.
    async def call(row: Any) -> int:
        value: int = row.id
        if value >= 10 and value % 2 and down.exists():
            raise ConnectionError(value)
        return value

    def behind(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if batch.column(0)[0].as_py() >= 10 and down.exists():
                deadline = time.monotonic() + 60
                while not list((tmp_path / "l").glob("part-*")):
                    assert time.monotonic() < deadline, "the odd numbers are not through"
                raise RuntimeError("behind")

    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2)
    stream = rate.load().selectExpr("value as id")
    out = async_map(stream, call, schema="n long", errors=Errors(dead_letter=tmp_path / "l"))
    writer = out.mapInArrow(behind, "n long").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).option("path", str(tmp_path / "out"))
    with pytest.raises(StreamingQueryException, match="behind"):
        writer.start().awaitTermination(100)
    assert ids(spark, tmp_path / "l") == [11, 13, 15, 17, 19]
    down.unlink()
    query = writer.start()
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < 2):
        query.awaitTermination(0.1)
    query.stop()
    assert query.exception() is None
    rows = [row.n for row in spark.read.parquet(str(tmp_path / "out")).where("n < 30").collect()]
    assert sorted(rows) == list(range(30))
    assert not list((tmp_path / "l").iterdir())


@pytest.mark.slow
def test_a_replay_in_the_next_process_replaces_its_letters_although_the_function_pickles_otherwise(
    run_script: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        PICKY
        + """from pillarbox import Errors

async def call(row):
    if row.text in {"alpha", "beta", "gamma", "delta"}:
        raise ValueError(row.id)
    return row.id

df = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(tmp / "in"))
df = df.selectExpr("id", "if(id % 4 = 2, 'alpha', 'other') as text")
out = async_map(df, call, schema="n long", errors=Errors(dead_letter=str(tmp / "l")))
query = (out.writeStream.format("noop")
    .option("checkpointLocation", str(tmp / "checkpoint")).trigger(availableNow=True).start())
query.awaitTermination(100)
print(query.exception(), letters() == list(range(2, 30, 4)))
"""
    )
    (tmp_path / "in").mkdir()
    for part in range(3):
        lines = [json.dumps({"id": part * 10 + i}) + "\n" for i in range(10)]
        (tmp_path / "in" / f"{part}.json").write_text("".join(lines))
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert run_script(script, str(tmp_path), alone=True) == ["None True"]
    # As if the driver had died before it could write down that batch 2 was through.
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert run_script(script, str(tmp_path), alone=True) == ["None True"]


class _Context:
    """The knowledge of a task about itself, as PySpark would tell it."""

    def __init__(self, attempt: int, **local: str) -> None:
        self._attempt, self._local = attempt, local

    def partitionId(self) -> int:
        return 0

    def stageId(self) -> int:
        return 3

    def attemptNumber(self) -> int:
        return self._attempt

    def getLocalProperty(self, key: str) -> str | None:
        return self._local.get(key.replace(".", "_"))


STREAM = {
    "sql_streaming_queryId": "q",
    "streaming_sql_batchId": "5",
    "spark_app_startTime": "1000",
    "spark_sql_execution_id": "8",
    "spark_sql_execution_root_id": "7",
}

NameOf = Callable[..., DeadLetterName]


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NameOf:
    """Gives the name of the letters of a use of the operator, in an attempt with these local properties."""

    def make(use: str, attempt: int, **local: str) -> DeadLetterName:
        monkeypatch.setattr(TaskContext, "_taskContext", _Context(attempt, **local))
        return DeadLetterName(DeadLetterTarget(DeadLetter(tmp_path), ("v",), "op", use))

    return make


def test_a_worker_looks_for_a_replay_in_the_first_micro_batch_of_each_run_of_a_query(name: NameOf) -> None:
    seen = []
    for run, batch in (("first", "4"), ("first", "5"), ("second", "5"), ("second", "6")):
        local = {**STREAM, "spark_jobGroup_id": run, "streaming_sql_batchId": batch}
        seen.append(name("looking", 0, **local).may_replace)
    assert seen == [True, False, True, False]
    assert name("looking", 0, **{**STREAM, "streaming_sql_batchId": "7"}).may_replace


def test_a_task_that_does_not_know_replaces_nothing(name: NameOf) -> None:
    # No action: an RDD's task, which has no settings of the session, nor the one for speculation.
    assert not name("a", 1).replaces(name("a", 0).name)
    action = {"spark_sql_execution_id": "1"}
    assert name("a", 1, **action).replaces("_" + name("a", 0, **action).name)
    assert not name("a", 0, **action).replaces(name("a", 1, **action).name)
    assert not name("a", 1, **action).replaces(name("b", 0, **action).name)
    # A task of an earlier run of the query that lives on finds what the replay has written.
    again = {**STREAM, "spark_sql_execution_id": "12", "spark_sql_execution_root_id": "11"}
    assert name("b", 0, **again).replaces(name("a", 0, **STREAM).name)
    assert not name("b", 0, **again).replaces("_" + name("a", 0, **STREAM).name)
    assert not name("a", 0, **STREAM).replaces(name("b", 0, **again).name)
    restarted = {**STREAM, "spark_app_startTime": "2000", "spark_sql_execution_root_id": "1"}
    assert name("c", 0, **restarted).replaces(name("b", 0, **again).name)
    assert not name("c", 0, **STREAM).replaces(name("a", 0, **STREAM).name)
    assert not name("c", 0, **restarted).replaces("part-q-5-op-00000-of-somebody-else.parquet")
