"""Splits of a stream whose object is deleted: they leave the offsets, and what comes by their names is read.

Planned as Spark does, against a real Redis and a real Kafka; and once by Spark itself.
"""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.sources.connectors.redis_streams import RedisStreamSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.sources.split import DataLossError
from pillarbox.spark import register_source
from pillarbox.testing.source_harness import rows_of
from tests.servers import fixtures
from tests.servers.kafka_server import LONG, KafkaServer
from tests.servers.redis_server import RedisServer
from tests.spark import queries
from tests.spark.unit import plans
from tests.versions import needs_source_streams

pytest.importorskip("redis", reason="the package redis is not installed")
pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.server

all_are_closed = plans.all_are_closed
shared_redis, server, kafka = fixtures.shared_redis, fixtures.redis, fixtures.kafka

NUMBERS = pa.schema([("_stream", pa.string()), ("n", pa.int64())])
SOON = 1e-6
"""Seconds, so short that each plan looks for streams."""


class Stream(plans.Stream):
    """A stream of which each micro-batch is planned and read."""

    def drop(self) -> None:
        """A plan that Spark does not use."""
        self.batches.plan(ReadLimit(rows=3))
        self.take_up(self.offset)

    def rows(self, rows: int | None = None, *, waits: bool = True) -> list[Any]:
        """The rows of the next micro-batch; none if there is none."""
        slices = self.plan(rows=rows, waits=waits)
        if slices is None:
            return []
        reader = self.source.create_reader(ReaderContext())
        return [row for fetched in read_splits(reader, slices) for row in rows_of(fetched.records)]

    def open(self) -> list[str]:
        return sorted(split["split_id"] for split in self.offset["splits"])

    def known(self) -> list[str]:
        checkpoint = self.offset["enumerator"]["checkpoint"]
        return sorted(checkpoint["known"])


def streams_of(server: RedisServer, **how: Any) -> RedisStreamSource:
    given = {"pattern": "s:*", "on_data_loss": "ignore", "discovery_interval": SOON, **how}
    return RedisStreamSource(server.url, schema=NUMBERS, **given)


def add(server: RedisServer, stream: str, *numbers: int) -> list[tuple[str, int]]:
    for number in numbers:
        server.command("XADD", stream, f"{number}-0", "n", str(number))
    return [(stream, number) for number in numbers]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_stream_that_is_deleted_leaves_the_offsets_and_is_read_from_its_beginning_when_it_comes_again(
    server: RedisServer, available_now: bool
) -> None:
    stream = Stream(streams_of(server), available_now=available_now)

    def read() -> list[Any]:
        if available_now:
            stream.start()
        return sorted(stream.rows())

    expected = add(server, "s:a", 100, 101) + add(server, "s:b", 1)
    assert read() == expected
    server.command("DEL", "s:a")
    assert read() == []
    assert read() == []
    # A new stream comes at the same time: with availableNow it is found before the other is let go of.
    expected = add(server, "s:b", 2) + add(server, "s:c", 1)
    assert read() == expected
    add(server, "s:b", 3)
    read()
    assert stream.open() == stream.known() == ["s:b", "s:c"]
    # Below what was read of the one before.
    expected = add(server, "s:a", 5, 6)
    assert read() == expected
    assert stream.open() == stream.known() == ["s:a", "s:b", "s:c"]


def test_a_stream_that_is_alone_is_found_again_though_no_batch_came_between(
    server: RedisServer,
) -> None:
    stream = Stream(streams_of(server))
    expected = add(server, "s:a", 100)
    assert stream.rows() == expected
    server.command("DEL", "s:a")
    assert stream.rows() == []
    expected = add(server, "s:a", 5)
    assert stream.rows() == expected
    assert stream.open() == stream.known() == ["s:a"]


def test_whatever_is_dropped_and_restarted_while_streams_come_and_go_every_entry_is_read_once(
    server: RedisServer,
) -> None:
    for seed in range(12):
        server.command("FLUSHALL")
        chance = random.Random(seed)
        stream = Stream(streams_of(server))
        written: list[Any] = []
        read: list[Any] = []
        number = 0
        for _ in range(50):
            what = chance.random()
            if what < 0.5:
                number += 3
                written += add(server, f"s:{chance.choice('abc')}", number - 2, number - 1)
            elif what < 0.65:
                # One that was read: the rest would be lost.
                while found := stream.rows():
                    read += found
                server.command("DEL", f"s:{chance.choice('abc')}")
            elif what < 0.75:
                stream.drop()
            elif what < 0.85:
                stream.start()
            else:
                read += stream.rows(chance.randrange(1, 4))
        while found := stream.rows():
            read += found
        assert sorted(read) == sorted(written), seed
        number += 1
        server.command("DEL", "s:a")
        add(server, "s:keeps", number)
        stream.rows()
        assert "s:a" not in stream.open() + stream.known()


def test_a_discovery_that_was_under_way_does_not_bring_back_what_is_let_go_of(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(streams_of(server), discovery_wait=0.0)
    expected = add(server, "s:a", 100)
    assert stream.rows() == expected
    stream.start()
    discover, goes_on = stream.batches.thread.enumerator.discover, threading.Event()

    def slow(known: Any, most: int) -> Any:
        found = discover(known, most)
        assert goes_on.wait(LONG)
        return found

    monkeypatch.setattr(stream.batches.thread.enumerator, "discover", slow)
    server.command("DEL", "s:a")
    assert stream.rows(waits=False) == []
    goes_on.set()
    expected = add(server, "s:a", 5)
    assert stream.rows() == expected


def test_with_available_now_what_was_discovered_at_the_beginning_does_not_bring_it_back_either(
    server: RedisServer,
) -> None:
    add(server, "s:a", 100)
    # A step of discovery for each stream.
    stream = Stream(streams_of(server), available_now=True, max_splits=1)
    assert len(stream.rows()) == 1
    server.command("DEL", "s:a")
    expected = add(server, "s:b", 1) + add(server, "s:c", 1) + add(server, "s:d", 1)
    stream.start()
    assert sorted(stream.rows(1) + stream.rows(1) + stream.rows(1)) == expected
    assert stream.open() == stream.known() == ["s:b", "s:c", "s:d"]
    expected = add(server, "s:a", 5)
    stream.start()
    assert stream.rows() == expected


def test_a_stream_that_is_deleted_while_it_is_planned_stays_for_that_micro_batch(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(streams_of(server))
    add(server, "s:a", *range(100, 110))
    add(server, "s:b", 1)
    advance = stream.batches.thread.enumerator.advance

    def advance_and_delete(split: Any, limit: ReadLimit) -> Any:
        piece = advance(split, limit)
        if split.split_id == "s:a" and piece is not None:
            server.command("DEL", "s:a")
        return piece

    monkeypatch.setattr(stream.batches.thread.enumerator, "advance", advance_and_delete)
    assert stream.rows(9) == [("s:b", 1)]
    assert sorted(each["split_id"] for each in stream.offset["slices"]) == ["s:a", "s:b"]
    expected = add(server, "s:b", 2)
    assert stream.rows(9) == expected
    assert stream.open() == stream.known() == ["s:b"]


@pytest.mark.parametrize("how", [{"on_data_loss": "fail"}, {"pattern": None, "streams": ["s:a", "s:b"]}])
def test_streams_stay_open_where_loss_is_an_error_and_where_they_were_named(
    server: RedisServer, how: dict[str, Any]
) -> None:
    stream = Stream(streams_of(server, **how))
    add(server, "s:a", 100, 101)
    add(server, "s:b", 1)
    assert len(stream.rows()) == 3
    server.command("DEL", "s:a")
    assert stream.rows() == []
    expected = add(server, "s:b", 2)
    assert stream.rows() == expected
    assert stream.open() == stream.known() == ["s:a", "s:b"]
    add(server, "s:a", 5)
    if "on_data_loss" in how:
        with pytest.raises(DataLossError, match="was deleted and made anew"):
            stream.rows()


def topics_of(kafka: KafkaServer, **how: Any) -> KafkaSource:
    places = pa.schema([("topic", pa.string()), ("offset", pa.int64())])
    given = {"on_data_loss": "ignore", "discovery_interval": SOON, "schema": places, **how}
    return KafkaSource({"bootstrap.servers": kafka.bootstrap}, **given)


def read_until(stream: Stream, rows: int) -> list[Any]:
    """That many rows; an end that was asked for is good for a moment."""
    read: list[Any] = []
    while len(read) < rows:
        read += stream.rows()
    return sorted(read)


@pytest.mark.parametrize("named", [False, True])
def test_a_topic_that_is_deleted_leaves_the_offsets_when_it_was_missing_for_long(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    gone, stays = f"gone.{named}.a", f"gone.{named}.b"
    kafka.create(gone, 3)
    kafka.create(stays)
    for topic in (gone, stays):
        kafka.produce(topic, *range(4))
    how = {"topics": [gone, stays]} if named else {"pattern": rf"gone\.{named}\..*"}
    stream = Stream(topics_of(kafka, **how))
    assert len(read_until(stream, 8)) == 8
    kafka.admin.delete_topics([gone])[gone].result(LONG)
    kafka.produce(stays, *range(2))
    assert read_until(stream, 2) == [(stays, 4), (stays, 5)]
    topics, asked = stream.batches.thread.enumerator._offsets.topics, []  # type: ignore[attr-defined]

    def counted(names: Any, pattern: Any = None) -> Any:
        asked.extend([names] * (pattern is None and gone in names and not named))
        return topics(names, pattern)

    monkeypatch.setattr(stream.batches.thread.enumerator._offsets, "topics", counted)  # type: ignore[attr-defined]
    for planned in range(1, 4):
        assert stream.rows() == []
        # Not once for each of its partitions.
        assert len(asked) <= planned
    kafka.produce(stays, 0)
    assert read_until(stream, 1) == [(stays, 6)]
    assert len(stream.open()) == 4 and stream.known() == [gone, stays]
    stream.batches.thread.enumerator.gone_after_s = 0.0  # type: ignore[attr-defined]
    # It has looked after the topic was gone.
    assert stream.rows() == []
    kafka.produce(stays, 0)
    assert read_until(stream, 1) == [(stays, 7)]
    assert len(stream.open()) == 1 and stream.known() == [stays]
    kafka.create(gone)
    kafka.produce(gone, *range(2))
    assert read_until(stream, 2) == [(gone, 0), (gone, 1)]
    assert len(stream.open()) == 2 and stream.known() == [gone, stays]


def test_a_topic_that_was_made_again_takes_the_place_of_the_one_before(kafka: KafkaServer) -> None:
    kafka.create("remade", 2)
    kafka.produce("remade", *range(6))
    stream = Stream(topics_of(kafka, topics="remade"))
    assert len(read_until(stream, 6)) == 6
    before = stream.open()
    kafka.admin.delete_topics(["remade"])["remade"].result(LONG)
    kafka.create("remade", 2)
    kafka.produce("remade", *range(20))
    assert len(read_until(stream, 20)) == 20
    kafka.produce("remade", 0)
    assert len(read_until(stream, 1)) == 1
    assert len(stream.open()) == 2 and not set(stream.open()) & set(before)


@pytest.mark.slow
@needs_source_streams
def test_spark_reads_on_while_streams_come_and_go(
    spark: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    register_source(spark, streams_of(server), "coming_and_going")
    query = spark.readStream.format("coming_and_going").load().writeStream.format("parquet")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)

    def read() -> None:
        queries.start(query, str(tmp_path / "out")).awaitTermination()

    expected = add(server, "s:a", 100, 101) + add(server, "s:b", 1)
    read()
    server.command("DEL", "s:a")
    expected += add(server, "s:b", 2)
    read()
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert [split["split_id"] for split in last["splits"]] == ["s:b"]
    expected += add(server, "s:a", 5)
    read()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row._stream, row.n) for row in rows) == sorted(expected)
