"""Streams of a source: what each micro-batch reads, its limits, its offsets, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from pillarbox.spark import data_source, register_source
from pillarbox.spark.data_source import Read
from tests.spark import queries
from tests.spark.streams import Collected, until
from tests.spark.unit import source_logs
from tests.spark.unit.source_logs import LogSource, RangeSource, append
from tests.versions import needs_source_streams

cloudpickle.register_pickle_by_value(source_logs)

pytestmark = [needs_source_streams]


class Stream:
    """A query over a log source, its output by micro-batch."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.log = tmp_path / "log"
        self.checkpoint = tmp_path / "checkpoint"
        self.found = Collected()
        self.query: Any = None
        self.numbers = 0

    def load(self, source: Any, **options: Any) -> DataFrame:
        self.numbers += 1
        name = register_source(self.spark, source, f"logs_{self.numbers}")
        reader = self.spark.readStream.format(name)
        return reader.options(**{key: str(value) for key, value in options.items()}).load()

    def start(self, df: DataFrame, **trigger: Any) -> Any:
        writer = df.writeStream.foreachBatch(self.found).option("checkpointLocation", str(self.checkpoint))
        self.query = queries.start(writer.trigger(**trigger) if trigger else writer)
        return self.query

    def drain(self, source: Any, **options: Any) -> None:
        query = self.start(self.load(source, **options), availableNow=True)
        assert query.awaitTermination(3600)
        assert query.exception() is None

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [(row.file, row.n) for row in self.found.rows]

    def offsets(self) -> list[Any]:
        paths = sorted(
            (path for path in (self.checkpoint / "offsets").glob("[0-9]*")), key=lambda path: int(path.name)
        )
        return [json.loads(path.read_text().splitlines()[-1]) for path in paths]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, tmp_path)
    yield made
    if made.query is not None:
        made.query.stop()


def test_a_limit_of_rows_is_shared_by_splits_and_what_is_there_is_read_to_its_end(stream: Stream) -> None:
    append(stream.log, "a", range(5))
    append(stream.log, "b", range(100, 103))
    stream.drain(LogSource(str(stream.log)), max_rows=2)
    batches = [[(row.file, row.n) for row in rows] for _, rows in sorted(stream.found.batches.items())]
    assert [sorted(batch) for batch in batches] == [
        [("a", 0), ("b", 100)],
        [("a", 1), ("b", 101)],
        [("a", 2), ("b", 102)],
        [("a", 3), ("a", 4)],
    ]


def test_new_splits_and_new_rows_are_found_while_the_stream_runs(stream: Stream) -> None:
    append(stream.log, "a", range(3))
    query = stream.start(stream.load(LogSource(str(stream.log))))
    until(lambda: len(stream.rows) == 3, query)
    append(stream.log, "a", range(3, 5))
    until(lambda: len(stream.rows) == 5, query)
    append(stream.log, "b", [100])
    until(lambda: len(stream.rows) == 6, query)
    assert sorted(stream.rows) == [*[("a", n) for n in range(5)], ("b", 100)]


@pytest.mark.contract
def test_available_now_reads_nothing_that_came_later(stream: Stream) -> None:
    append(stream.log, "a", range(6))
    source = LogSource(str(stream.log))

    def more(df: DataFrame, batch: int) -> None:
        stream.found(df, batch)
        append(stream.log, "a", [1000 + batch])
        append(stream.log, f"late{batch}", [2000 + batch])

    df = stream.load(source, max_rows=2)
    writer = df.writeStream.foreachBatch(more).option("checkpointLocation", str(stream.checkpoint))
    query = queries.start(writer.trigger(availableNow=True))
    assert query.awaitTermination(3600)
    assert stream.rows == [("a", n) for n in range(6)]
    stream.drain(source)
    assert sorted(stream.rows[6:]) == [
        *[("a", 1000 + batch) for batch in range(3)],
        *[(f"late{batch}", 2000 + batch) for batch in range(3)],
    ]


@pytest.mark.contract
def test_a_restart_goes_on_where_the_checkpoint_stands_with_other_parallelism(stream: Stream) -> None:
    for file in "abcdef":
        append(stream.log, file, range(10))
    source = LogSource(str(stream.log))
    stream.drain(source, partitions=5)
    for file in "abcdefgh":
        append(stream.log, file, range(10, 20))
    stream.drain(source, partitions=2, min_partitions=2)
    assert sorted(stream.rows) == sorted(
        [(file, n) for file in "abcdef" for n in range(20)]
        + [(file, n) for file in "gh" for n in range(10, 20)]
    )


def test_slices_are_cut_until_there_are_enough_tasks(stream: Stream) -> None:
    append(stream.log, "a", range(100))
    df = stream.load(LogSource(str(stream.log)), min_partitions=4)
    sizes: list[int] = []
    writer = df.writeStream.foreachBatch(
        lambda batch, _: sizes.extend(map(len, batch.rdd.glom().collect()))
    ).trigger(availableNow=True)
    query = queries.start(writer.option("checkpointLocation", str(stream.checkpoint)))
    assert query.awaitTermination(3600)
    assert sizes == [25, 25, 25, 25]


@pytest.mark.contract
def test_the_source_is_told_what_is_durable_also_of_the_last_micro_batch(
    stream: Stream, tmp_path: Path
) -> None:
    append(stream.log, "a", range(4))
    told = tmp_path / "told"
    stream.drain(LogSource(str(stream.log), committed=str(told)), max_rows=2)
    assert told.read_text().splitlines() == ["[('a', 2)]", "[('a', 4)]"]


def test_an_offset_says_by_itself_what_its_micro_batch_reads(stream: Stream) -> None:
    append(stream.log, "a", range(5))
    stream.drain(LogSource(str(stream.log)), max_rows=3)
    first, second = stream.offsets()
    assert first == {
        "version": 1,
        "number": 1,
        "enumerator": {"version": 1, "checkpoint": ["a"]},
        "split_version": 1,
        "splits": [{"split_id": "a", "start": 3}],
        "slices": [{"split_id": "a", "start": 0, "stop": 3}],
    }
    assert second["slices"] == [{"split_id": "a", "start": 3, "stop": 5}]


@pytest.mark.slow
@pytest.mark.parametrize("splits", [10_000, 60_000])
def test_many_splits_in_one_micro_batch(stream: Stream, splits: int) -> None:
    stream.drain(RangeSource(splits, 2))
    assert sorted(n for _, n in stream.rows) == list(range(2 * splits))


@pytest.mark.contract
def test_a_password_in_an_option_is_in_no_plan_no_offset_and_no_error(
    spark: SparkSession, stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    append(stream.log, "a", range(5))
    register_source(spark, LogSource, "by_options")
    options = {"folder": str(stream.log), "password": "geheim"}
    df = spark.readStream.format("by_options").options(**options).load()
    df.explain(True)
    query = stream.start(df, availableNow=True)
    assert query.awaitTermination(3600)
    query.explain(True)
    spark.read.format("by_options").options(bounded="true", **options).load().explain(True)
    said = capsys.readouterr().out + str(query.lastProgress)
    assert "by_options" in said
    files = [path.read_text(errors="replace") for path in stream.checkpoint.rglob("*") if path.is_file()]
    assert "geheim" not in said + "".join(files)
    with pytest.raises(Exception, match="option 'colour' is unknown") as error:
        spark.readStream.format("by_options").options(colour="red", **options).load()
    assert "geheim" not in str(error.value)
    with pytest.raises(Exception, match="option 'dsn' holds a password") as error:
        spark.readStream.format("by_options").options(dsn="db://me:geheim@there", **options).load()
    assert "geheim" not in str(error.value)


def test_between_plans_that_find_nothing_some_time_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where PySpark has them.
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from pillarbox.spark.data_source import StreamReader

    append(tmp_path / "log", "a", range(3))
    read = Read.of(LogSource(str(tmp_path / "log")), {}, source_logs.SCHEMA, 2)
    reader = StreamReader(read)
    try:
        offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert reader.latestOffset(offset, ReadAllAvailable()) == offset
        now, sleeps = 1000.0, list[float]()

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            sleeps.append(seconds)

        monkeypatch.setattr(data_source, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        for _ in range(10):
            assert reader.latestOffset(offset, ReadAllAvailable()) == offset
        # What had passed by the first of them is of the machine's clock.
        assert sleeps[2:] == sorted(sleeps[2:]) and 0.0 < sleeps[2] < data_source.MAX_IDLE_S
        assert sleeps[-3:] == pytest.approx([data_source.MAX_IDLE_S] * 3)
    finally:
        reader.stop()
