"""Batch reads of a source: every split once, whichever task dies."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pillarbox.spark import register_source
from tests.spark.unit import source_logs
from tests.spark.unit.source_logs import HoleSource, LogSource, RangeSource, append

cloudpickle.register_pickle_by_value(source_logs)

RunScript = Callable[..., list[str]]


@pytest.mark.contract
def test_every_row_of_every_split_is_read_once(spark: SparkSession) -> None:
    name = register_source(spark, RangeSource(25, 40), "ranges")
    df = spark.read.format(name).load()
    assert df.schema.simpleString() == "struct<file:string,n:bigint>"
    assert sorted(row.n for row in df.collect()) == list(range(1000))


def test_a_later_action_on_the_same_plan_reads_the_same_partitions(spark: SparkSession) -> None:
    name = register_source(spark, RangeSource(30, 5), "ranges_again")
    rdd = spark.read.format(name).load().rdd.glom()
    first, second = rdd.collect(), rdd.collect()
    assert first == second
    assert sorted(row.n for part in first for row in part) == list(range(150))


def test_a_log_that_has_an_end_is_read_in_arrow_batches(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(5))
    append(tmp_path / "log", "b", range(100, 103))
    name = register_source(spark, LogSource(str(tmp_path / "log"), bounded=True), "bounded_logs")
    df = spark.read.format(name).load()
    assert sorted((row.file, row.n) for row in df.collect()) == [
        *[("a", n) for n in range(5)],
        *[("b", n) for n in range(100, 103)],
    ]
    asked = spark.read.format(name).schema("n int, file string").load()
    assert sorted(tuple(row) for row in asked.collect())[:2] == [(0, "a"), (1, "a")]
    assert spark.read.format(name).load().limit(3).count() == 3


def test_options_make_a_source_of_a_class(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(5))
    name = register_source(spark, LogSource)
    assert name == "log"
    reader = spark.read.format(name).option("bounded", "true")
    assert reader.option("folder", str(tmp_path / "log")).load().count() == 5
    with pytest.raises(Exception, match="option 'colour' is unknown"):
        reader.option("folder", str(tmp_path)).option("colour", "red").load().count()


def test_a_source_without_an_end_is_refused_when_the_read_is_planned(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "log", "a", range(5))
    name = register_source(spark, LogSource(str(tmp_path / "log")), "endless")
    with pytest.raises(Exception, match="has no end"):
        spark.read.format(name).load().count()


def test_a_name_that_is_given_anew_changes_no_read_that_was_planned_before(spark: SparkSession) -> None:
    register_source(spark, RangeSource(3, 10), "again")
    planned = spark.read.format("again").load()
    register_source(spark, RangeSource(2, 3), "again")
    assert planned.count() == 30
    assert spark.read.format("again").load().count() == 6


def test_a_name_that_spark_has_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="name='kafka': Spark has a format of this name; give another"):
        register_source(spark, RangeSource(1, 1), "kafka")


KILLED = """
import signal, time
from pyspark import cloudpickle
from pillarbox.spark import register_source
sys.path.insert(0, sys.argv[2])
from tests.spark.unit import source_logs
from tests.spark.unit.source_logs import RangeSource
cloudpickle.register_pickle_by_value(source_logs)
marks = sys.argv[1]

def read(rows):
    found = 0
    for row in rows:
        found += 1
        if row.n % 100 == 50 and found > 20:
            try:
                os.close(os.open(f"{marks}/{row.n}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                if len(os.listdir(marks)) <= 3:
                    os.kill(os.getpid(), signal.SIGKILL)
        yield (row.n, os.getpid())

register_source(spark, RangeSource(40, 25), "ranges")
rows = spark.read.format("ranges").load().rdd.mapPartitions(read).collect()
print(sorted(n for n, _ in rows) == list(range(1000)), len(os.listdir(marks)) >= 3)
"""


@pytest.mark.slow
@pytest.mark.contract
def test_killed_workers_neither_lose_nor_repeat_a_split(run_script: RunScript, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert run_script(KILLED, str(tmp_path), str(root), master="local[4,9]") == ["True True"]


def test_events_are_refused(spark: SparkSession) -> None:
    name = register_source(spark, RangeSource(4, 3, talks=True), "mute")
    with pytest.raises(Exception, match="no way to its enumerator"):
        spark.read.format(name).load().collect()


def test_what_discovery_raises_reaches_the_user(spark: SparkSession, tmp_path: Path) -> None:
    name = register_source(spark, RangeSource(4, 3, broken=True), "broken_ranges")
    with pytest.raises(Exception, match="the list of ranges is not there"):
        spark.read.format(name).load().collect()


def test_ten_thousand_splits(spark: SparkSession) -> None:
    name = register_source(spark, RangeSource(10_000, 3), "many_ranges")
    row = spark.read.format(name).load().selectExpr("count(*) AS rows", "sum(n) AS total").collect()[0]
    assert (row.rows, row.total) == (30_000, sum(range(30_000)))


def test_bad_arguments_are_refused(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="source=1: must be a Source"):
        register_source(spark, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name='a b': must be letters"):
        register_source(spark, RangeSource(1, 1), "a b")


@pytest.mark.contract(
    "A null of a source where its schema says NOT NULL, or text not in UTF-8, fails its read in words.",
    convicts=["nulls_of_sources_pass", "nulls_of_records_pass"],
)
@pytest.mark.parametrize(
    ("form", "lists", "text", "message"),
    [
        ("records", ((1,), (2, None)), b"a", "an element of v is null, but the schema says NOT NULL"),
        (
            "batch",
            ((1,), (2, None)),
            b"a",
            "row 1 of .* an element of v is null, but the schema says NOT NULL",
        ),
        ("batch", ((1,), (2,)), b"\xff", "t has text that is not UTF-8"),
        ("records", ((1,), (2,)), b"a", None),
        ("batch", ((1,), (2,)), b"a", None),
    ],
)
def test_what_a_source_may_not_give_fails_its_read_in_words(
    spark: SparkSession, form: str, lists: Any, text: bytes, message: str | None
) -> None:
    name = register_source(spark, HoleSource(lists, text, form), f"holes_{uuid.uuid4().hex}")
    df = spark.read.format(name).load()
    if message is None:
        assert [tuple(row) for row in df.collect()] == [([1], "a"), ([2], "a")]
    else:
        with pytest.raises(Exception, match=message):
            df.collect()
