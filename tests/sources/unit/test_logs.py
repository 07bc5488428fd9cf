"""Contracts of sources that read logs, held against a real Kafka and a real Redis."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.sources.connectors.redis_streams import RedisStreamSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.testing import SourceHarness
from tests.servers import fixtures
from tests.servers.redis_server import RedisServer
from tests.versions import needs_source_streams

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pytest.importorskip("redis", reason="the package redis is not installed")
pa = pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server]

kafka, shared_redis, redis = fixtures.kafka, fixtures.shared_redis, fixtures.redis


class Log(NamedTuple):
    """A service with logs: makes one, adds a number to one, and makes a source of some of them."""

    make: Callable[[str], None]
    add: Callable[[str, int], None]
    source: Callable[..., Any]
    number: str
    """The SQL that gives the number of a row."""
    number_of: Callable[[Any], int]
    """The number of a row that a task has read."""


@pytest.fixture(params=["kafka", "redis"])
def log(request: pytest.FixtureRequest) -> Log:
    server = request.getfixturevalue(request.param)
    if request.param == "kafka":

        def of_topics(*names: str, **options: Any) -> KafkaSource:
            return KafkaSource(server.client, names or None, discovery_interval=0.01, **options)

        def produce(name: str, number: int) -> None:
            server.produce(name, number)

        return Log(
            server.create, produce, of_topics, "cast(cast(value as string) as int)", lambda row: int(row[1])
        )

    def add(name: str, number: int) -> None:
        server.command("XADD", name, "*", "n", str(number))

    def make(name: str) -> None:
        add(name, -1)
        server.command("XTRIM", name, "MAXLEN", "0")

    def of_streams(*names: str, **options: Any) -> RedisStreamSource:
        schema = pa.schema([("n", pa.int32())])
        return RedisStreamSource(server.url, names or None, schema=schema, discovery_interval=0.01, **options)

    return Log(make, add, of_streams, "n", lambda row: row[0])


class Query:
    """A query that is started again and again under one checkpoint: reads what is there, and ends."""

    def __init__(self, spark: SparkSession, log: Log, folder: Path) -> None:
        self.spark, self.log, self.folder = spark, log, folder

    def run(self, source: Any) -> list[int]:
        """The numbers of all rows that have come until now. Raises what ends the query."""
        from pillarbox.spark import register_source
        from tests.spark import queries

        name = register_source(self.spark, source, "logs_under_test")
        rows = self.spark.readStream.format(name).load().selectExpr(f"{self.log.number} n")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        assert queries.start(writer, str(self.folder / "out")).awaitTermination(3600)
        return sorted(n for (n,) in self.spark.read.parquet(str(self.folder / "out")).collect())


@pytest.mark.parametrize(("source", "page"), [(KafkaSource, "kafka"), (RedisStreamSource, "redis")])
def test_the_page_of_a_connector_has_all_its_options_with_their_defaults(source: Any, page: str) -> None:
    text = Path("docs", f"connectors-{page}.md").read_text()
    options = text.partition("| option | is | default |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in options.splitlines()[2:]]
    told = {name.strip("`"): default for name, _, default in rows if name != "`kafka.…`"}
    declared = {
        name: parameter.default
        for name, parameter in signature(source).parameters.items()
        if name not in ("properties", "schema")
    }
    assert told.keys() == declared.keys()
    for name, default in declared.items():
        number = f"{default:,.0f}" if isinstance(default, int | float) else f"`{default}`"
        shown = {True: "true", False: "false", None: ""}.get(default, number)
        assert told[name] == ("" if default is Parameter.empty else shown), name


@pytest.mark.slow
@needs_source_streams
def test_a_stream_that_starts_at_the_latest_record_reads_what_came_after_a_first_run_that_read_nothing(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.make("late")
    log.add("late", 0)
    query = Query(spark, log, tmp_path)
    assert query.run(log.source("late", start="latest")) == []
    log.add("late", 1)
    assert query.run(log.source("late", start="latest")) == [1]


@pytest.mark.slow
@needs_source_streams
def test_a_log_that_came_while_a_stream_was_down_that_had_found_none_is_read_from_its_beginning(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    query = Query(spark, log, tmp_path)
    pattern = "came_later.*" if log.number != "n" else "came_later*"
    assert query.run(log.source(pattern=pattern, start="latest")) == []
    log.make("came_later")
    log.add("came_later", 1)
    assert query.run(log.source(pattern=pattern, start="latest")) == [1]


def run_and_change(log: Log, before: Any, after: Any) -> tuple[list[Any], SourceHarness]:
    """Two rows that a task reads of `before`, and one with `after` that goes on from there."""
    with SourceHarness(before) as harness:
        rows = harness.read(2)
        snapshot = harness.snapshot()
    return rows, SourceHarness(after, snapshot=snapshot)


def test_a_checkpoint_of_other_logs_is_refused_with_both_names_and_what_to_do(log: Log) -> None:
    for name in ("was_a", "was_b"):
        log.make(name)
        log.add(name, 1)
    says = (
        r"the checkpoint is of \['was_a', 'was_b'\], and what is to be read now is \['was_b'\]: .*on_change"
    )
    with pytest.raises(ValueError, match=says):
        run_and_change(log, log.source("was_a", "was_b"), log.source("was_b"))
    with pytest.raises(ValueError, match=r"is of 'was_\[ab\]', .* now is 'new_.\*'"):
        run_and_change(log, log.source(pattern="was_[ab]"), log.source(pattern="new_.*"))


def test_the_order_in_which_logs_are_named_is_no_change(log: Log) -> None:
    for name in ("order_a", "order_b"):
        log.make(name)
        log.add(name, 1)
    run_and_change(log, log.source("order_a", "order_b"), log.source("order_b", "order_a"))


def test_a_task_that_follows_reads_what_is_named_now_and_nothing_else(log: Log) -> None:
    for name in ("task_a", "task_b", "task_c"):
        log.make(name)
    log.add("task_a", 1)
    log.add("task_b", 2)
    log.add("task_c", 3)
    now = log.source("task_b", "task_c", on_change="follow")
    _, harness = run_and_change(log, log.source("task_a", "task_b"), now)
    log.add("task_a", 4)
    log.add("task_b", 5)
    with harness:
        harness.read(2)
        harness.read_until(lambda: not harness.step())
        assert sorted(map(log.number_of, harness.rows)) == [3, 5]


@pytest.mark.slow
@needs_source_streams
def test_a_stream_whose_logs_were_changed_is_refused_or_follows_as_it_is_told(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    for name in ("first", "second", "third"):
        log.make(name)
    log.add("first", 1)
    log.add("second", 2)
    query = Query(spark, log, tmp_path)
    assert query.run(log.source("first", "second")) == [1, 2]
    for number, name in enumerate(("first", "second", "third"), 3):
        log.add(name, number)
    with pytest.raises(Exception, match=r"(?s)\['first', 'second'\].*\['second', 'third'\]"):
        query.run(log.source("second", "third"))
    assert query.run(log.source("second", "third", on_change="follow")) == [1, 2, 4, 5]
    log.add("second", 6)
    assert query.run(log.source("second", "third")) == [1, 2, 4, 5, 6]


def test_no_script_runs_in_redis_where_a_micro_batch_is_limited(redis: RedisServer) -> None:
    import redis as package

    with package.Redis.from_url(redis.url) as client:
        pipeline = client.pipeline(transaction=False)
        for _ in range(3000):
            pipeline.xadd("large", {"n": "1", "x": "x" * 5000})
        pipeline.execute()
        client.config_resetstat()
        with SourceHarness(RedisStreamSource(redis.url, "large")) as harness:
            (piece,) = harness.plan(ReadLimit(rows=1000))
            assert len(harness.read_split(piece)) == piece.rows == 1000
        calls = client.info("commandstats")
        assert "cmdstat_eval" not in calls
        # No more than a megabyte is asked for at once.
        assert calls["cmdstat_xrange"]["calls"] > 5
