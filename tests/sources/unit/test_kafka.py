"""Reads of a real Kafka: which records, from where, up to where."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.sources.connectors.kafka import TYPES, KafkaSource, KafkaSplit
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.testing import SourceHarness
from pillarbox.testing.source_harness import rows_of
from tests.servers import fixtures
from tests.servers.kafka_server import LONG, KafkaServer
from tests.waiting import wait_until

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pa = pytest.importorskip("pyarrow")

VALUES = pa.schema([("value", pa.string())])
PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])

pytestmark = pytest.mark.server

server = fixtures.kafka


@pytest.fixture
def source(server: KafkaServer) -> Callable[..., KafkaSource]:
    def make(topics: str | None = None, **options: Any) -> KafkaSource:
        return KafkaSource({"bootstrap.servers": server.bootstrap}, topics, **{"schema": VALUES, **options})

    return make


def texts(rows: list[Any]) -> list[str]:
    return [row[0].decode() for row in rows]


@pytest.mark.contract(needs="Kafka, which says where a partition ends")
def test_a_bounded_read_gives_every_record_once_and_each_partition_in_order(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("bounded", 3)
    for partition in range(3):
        server.produce("bounded", *range(25), partition=partition)
    with SourceHarness(source("bounded", schema=PLACES, bounded=True, split_rows=7), readers=2) as harness:
        rows = harness.read_all()
    assert sorted(rows) == [(partition, offset) for partition in range(3) for offset in range(25)]
    with SourceHarness(source("bounded", schema=PLACES, bounded=True, split_rows=None)) as harness:
        rows = harness.read_all()
        assert len(harness.fetched) == 3
    for partition in range(3):
        assert [row for row in rows if row[0] == partition] == [(partition, each) for each in range(25)]


def test_a_bounded_read_ends_with_what_was_there_at_its_first_look(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("frozen")
    server.produce("frozen", *range(10))
    with SourceHarness(source("frozen", bounded=True, split_rows=4)) as harness:
        assert len(harness.discover(1)) == 1
        server.produce("frozen", "late")
        assert texts(harness.read_all()) == [str(each) for each in range(10)]


def test_records_have_the_columns_of_sparks_own_source(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    from confluent_kafka import Producer

    server.create("columns")
    producer = Producer(server.client)
    headers = [("a", b"x"), ("b", None)]
    producer.produce("columns", b"v", b"k", partition=0, timestamp=1_700_000_000_123, headers=headers)
    producer.produce("columns", None, b"k", partition=0, timestamp=1_700_000_000_124)
    assert producer.flush(LONG) == 0
    described = source("columns", schema=pa.schema([*TYPES.items()]), bounded=True)
    with SourceHarness(described) as harness:
        harness.read_all()
        table = pa.Table.from_batches([each.records for each in harness.fetched if len(each.records)])
    assert table.schema == described.arrow_schema()
    first, second = table.to_pylist()
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": "columns",
        "partition": 0,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"x"}, {"key": "b", "value": None}],
    }
    assert second["value"] is None and second["headers"] is None
    assert source("columns", schema=None).arrow_schema().names == described.arrow_schema().names[:-1]


@pytest.mark.slow
@pytest.mark.contract(needs="Kafka, which writes the markers of transactions")
def test_only_committed_records_are_read_and_markers_do_not_hold_a_range_up(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    from confluent_kafka import Producer

    server.create("transactions")
    producer = Producer({**server.client, "transactional.id": "writer"})
    producer.init_transactions(LONG)

    def write(*values: str) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce("transactions", value.encode(), partition=0)
        assert producer.flush(LONG) == 0

    write("a", "b")
    producer.commit_transaction(LONG)
    write("dropped")
    producer.abort_transaction(LONG)
    write("c")
    producer.commit_transaction(LONG)
    # Offsets 0, 1 and a marker; 3 and a marker; 5 and a marker: the range ends in a marker.
    with SourceHarness(source("transactions", schema=None, bounded=True)) as harness:
        assert [(row[1], row[4]) for row in harness.read_all()] == [(b"a", 0), (b"b", 1), (b"c", 5)]
        # Each of these ranges ends in something that is not a record.
        for start, stop, there in ((0, 3, 2), (2, 3, 0), (2, 5, 0), (3, 5, 0), (4, 7, 1), (6, 7, 0)):
            piece = KafkaSplit("piece", start, stop, "transactions", 0)
            assert len(harness.read_split(piece)) == there, (start, stop)
    write("open")
    with SourceHarness(source("transactions")) as harness:
        assert texts(harness.micro_batch()) == ["a", "b", "c"]
        assert harness.plan() == []
        producer.commit_transaction(LONG)
        wait_until(lambda: texts(harness.micro_batch()) == ["open"])
    with SourceHarness(source("transactions", bounded=True, isolation="read_uncommitted")) as harness:
        assert texts(harness.read_all()) == ["a", "b", "dropped", "c", "open"]


def test_offsets_that_were_compacted_away_do_not_hold_a_range_up(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    from confluent_kafka import Producer

    settings = {"cleanup_policy": "compact", "segment_ms": "1", "min_cleanable_dirty_ratio": "0.001"}
    server.create("compacted", **settings, max_compaction_lag_ms="1")
    producer = Producer({**server.client, "linger.ms": 0})

    def offsets() -> list[int]:
        # The segment that is written to is not compacted: it takes another record to end it.
        producer.produce("compacted", b"x", b"other", partition=0)
        assert producer.flush(LONG) == 0
        with SourceHarness(source("compacted", schema=PLACES, bounded=True)) as harness:
            return [row[1] for row in harness.read_all()]

    for each in range(20):
        producer.produce("compacted", str(each).encode(), b"same", partition=0)
        assert producer.flush(LONG) == 0
    wait_until(lambda: len([offset for offset in offsets() if offset < 19]) == 0)
    with SourceHarness(source("compacted", schema=PLACES)) as harness:
        for start, stop in ((0, 10), (5, 19), (18, 19)):
            assert harness.read_split(KafkaSplit("piece", start, stop, "compacted", 0)) == []
        assert harness.read_split(KafkaSplit("piece", 5, 20, "compacted", 0)) == [(0, 19)]


def test_ranges_of_one_partition_are_read_by_one_reader_each_once(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("pieces")
    server.produce("pieces", *range(30))
    ranges = [(20, 25), (0, 5), (5, 5), (5, 9), (12, 15), (25, 30), (3, 4)]
    pieces = [KafkaSplit(f"{start}-{stop}", start, stop, "pieces", 0) for start, stop in ranges]
    reader = source("pieces", schema=PLACES).create_reader(ReaderContext())
    fetched = list(read_splits(reader, pieces))
    for piece in pieces:
        found = [
            row[1] for each in fetched if each.split_id == piece.split_id for row in rows_of(each.records)
        ]
        assert found == list(range(piece.start, piece.stop))
        assert [each.finished for each in fetched if each.split_id == piece.split_id].count(True) == 1


def test_micro_batches_take_what_is_there_within_their_limit(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("batches", 2)
    server.produce("batches", *range(10), partition=0)
    server.produce("batches", *range(10, 14), partition=1)
    with SourceHarness(source("batches")) as harness:
        sizes = [len(harness.micro_batch(ReadLimit(rows=6))) for _ in range(3)]
        assert sizes == [6, 6, 2]
        assert harness.plan() == []
        server.produce("batches", "new", partition=1)
        wait_until(lambda: texts(harness.micro_batch()) == ["new"])
        with pytest.raises(ValueError, match="max_bytes"):
            harness.plan(ReadLimit(nbytes=10))


def test_the_ends_of_many_partitions_are_asked_for_in_one_round(
    server: KafkaServer, source: Callable[..., KafkaSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("wide", 40)
    for partition in (3, 17):
        server.produce("wide", partition, partition=partition)
    with SourceHarness(source("wide")) as harness:
        offsets = harness.enumerator._offsets
        rounds: list[int] = []
        latest = offsets.latest
        monkeypatch.setattr(
            offsets, "latest", lambda places: rounds.append(1) or latest(places), raising=True
        )
        assert sorted(texts(harness.micro_batch())) == ["17", "3"]
        assert len(rounds) == 1


@pytest.mark.contract(
    "A read of Kafka goes on from a snapshot with another number of readers.",
    needs="Kafka, which keeps the offsets",
)
def test_it_goes_on_from_a_snapshot_with_another_number_of_readers(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("resumed", 4)
    for partition in range(4):
        server.produce("resumed", *range(500), partition=partition)
    described = source("resumed", schema=PLACES)
    with SourceHarness(described, readers=2) as harness:
        before = list(harness.read(700))
        snapshot = harness.snapshot()
    server.produce("resumed", "more", partition=2)
    with SourceHarness(described, readers=3, snapshot=snapshot) as harness:
        after = harness.read(2001 - len(before))
    expected = [(partition, offset) for partition in range(4) for offset in range(500)] + [(2, 500)]
    assert sorted(before + after) == sorted(expected)


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    from confluent_kafka.admin import NewPartitions

    server.create("grows-a", 1)
    server.produce("grows-a", "old")
    described = source(pattern="grows-.*", start="latest", discovery_interval=0.05)
    with SourceHarness(described) as harness:
        while harness.discover():
            pass
        server.admin.create_partitions([NewPartitions("grows-a", 2)])["grows-a"].result(LONG)
        server.create("grows-b")
        server.create("other-grows-b")
        server.produce("grows-a", "new partition", partition=1)
        server.produce("grows-b", "new topic")
        server.produce("other-grows-b", "another topic")
        server.produce("grows-a", "new record")
        assert sorted(texts(harness.read(3))) == ["new partition", "new record", "new topic"]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_every_partition_of_the_first_look_starts_where_it_was_asked_for(
    server: KafkaServer, source: Callable[..., KafkaSource], most: int
) -> None:
    server.create(f"looked-at-{most}", 5)
    for partition in range(5):
        server.produce(f"looked-at-{most}", *range(partition), partition=partition)
    with SourceHarness(source(f"looked-at-{most}", start="latest")) as harness:
        found = []
        while more := harness.discover(most):
            found += more
        assert sorted((split.partition, split.start) for split in found) == [(n, n) for n in range(5)]


def test_reading_begins_and_ends_at_times_and_offsets(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("where", 2)
    for second in range(10):
        server.produce("where", second, partition=0, at=1_700_000_000.0 + second)
    server.produce("where", "early", partition=1, at=1_600_000_000.0)

    def read(**options: Any) -> list[str]:
        with SourceHarness(source("where", bounded=True, **options)) as harness:
            return sorted(texts(harness.read_all()))

    assert read(start=1_700_000_007.5) == ["8", "9"]
    assert read(start=1_900_000_000.0) == []
    assert read(start=1_700_000_002.0, stop=1_700_000_004) == ["2", "3"]
    assert read(start={"where": {0: 9}}) == ["9", "early"]
    assert read(start={"where": {0: 2, 1: 1}}, stop={"where": {0: 5}}, split_rows=2) == ["2", "3", "4"]
    assert read(stop={"where": {0: 1, 1: 0}}) == ["0"]
    assert read(start={"where": {0: 8}}, stop={"where": {0: 1_000_000, 1: 0}}) == ["8", "9"]
    assert read(start={"where": {0: 5, 1: 1}}, stop={"where": {0: 2}}) == []
    with SourceHarness(source("where", start={"where": {0: 9, 1: 1}})) as harness:
        assert texts(harness.micro_batch()) == ["9"]
        server.produce("where", 10, partition=0)
        assert texts(harness.micro_batch()) == ["10"]


@pytest.mark.contract(needs="Kafka, which keeps the groups")
def test_a_group_is_told_what_is_durable_and_has_no_member(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("told", 2)
    for partition in range(2):
        server.produce("told", *range(6), partition=partition)
    described = source("told", group_id="group-of-told", start="committed")
    with SourceHarness(described) as harness:
        harness.micro_batch(ReadLimit(rows=8))
        state = server.admin.describe_consumer_groups(["group-of-told"])["group-of-told"]
        harness.enumerator.notify_committed({name: split.start for name, split in harness._open.items()})
        harness.enumerator.close()
        assert list(state.result(LONG).members) == []
    with SourceHarness(described) as harness:
        rest = harness.micro_batch()
    assert texts(rest) == ["2", "3", "4", "5"]


def test_a_source_pickles_and_shows_no_secret(server: KafkaServer) -> None:
    source = pickle.loads(pickle.dumps(KafkaSource({**server.security}, "t")))
    for text in (repr(source), str(source), repr(source.service)):
        assert server.security["sasl.password"] not in text
    assert server.guarded in repr(source)


def test_the_next_reader_of_a_process_has_the_consumer_of_the_one_before(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    from pillarbox.sources.connectors import kafka as client

    server.create("kept", 2)
    for partition in range(2):
        server.produce("kept", *range(500), partition=partition)
    used = []
    for start, partition in ((0, 0), (250, 0), (0, 1)):
        split = KafkaSplit("range", start, start + 250, "kept", partition)
        reader = source("kept", schema=PLACES).create_reader(ReaderContext())
        rows = [row for fetched in read_splits(reader, [split]) for row in rows_of(fetched.records)]
        assert rows == [(partition, offset) for offset in range(start, start + 250)]
        used.append([*client._idle.values()][-1])
    assert used[0] is used[1] is used[2]
