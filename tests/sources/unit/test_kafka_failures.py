"""Reads of a Kafka that loses records, dies, holds still or knows us not."""

from __future__ import annotations

import itertools
import logging
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox.sources.connectors.kafka import (
    KafkaClients,
    KafkaOffsets,
    KafkaSource,
    KafkaSplit,
    KafkaSplitReader,
    Partition,
)
from pillarbox.sources.fetching import FetchingReader, ReadFailed, Threading
from pillarbox.sources.reader import ReaderContext, SplitsAdded, read_splits
from pillarbox.sources.split import DataLossError
from pillarbox.testing import SourceHarness
from pillarbox.testing.source_harness import rows_of
from tests.servers import fixtures
from tests.servers.kafka_server import LONG, PASSWORD, KafkaServer

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pa = pytest.importorskip("pyarrow")

PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])

pytestmark = pytest.mark.server

server = fixtures.kafka


@pytest.fixture
def source(server: KafkaServer) -> Callable[..., KafkaSource]:
    def make(topics: str | None = None, **options: Any) -> KafkaSource:
        return KafkaSource({"bootstrap.servers": server.bootstrap}, topics, **{"schema": PLACES, **options})

    return make


def drop(server: KafkaServer, topic: str, before: int) -> None:
    """As retention does."""
    from confluent_kafka import TopicPartition

    place = TopicPartition(topic, 0, before)
    server.admin.delete_records([place])[place].result(LONG)


@pytest.mark.contract(needs="Kafka, which lets records expire")
def test_records_that_expired_before_they_were_read_are_an_error_that_says_which(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("expired")
    server.produce("expired", *range(10))
    with SourceHarness(source("expired")) as harness:
        (piece,) = harness.plan()
        drop(server, "expired", 6)
        with pytest.raises(ReadFailed, match="from offset 0: it has offsets 6 up to 10") as caught:
            harness.read_split(piece)
    assert isinstance(caught.value.__cause__, DataLossError)


def test_records_that_expired_are_passed_over_with_a_warning_where_that_is_wanted(
    server: KafkaServer, source: Callable[..., KafkaSource], caplog: pytest.LogCaptureFixture
) -> None:
    server.create("passed-over")
    server.produce("passed-over", *range(10))
    drop(server, "passed-over", 6)
    ignoring = source("passed-over", on_data_loss="ignore")
    with SourceHarness(ignoring) as harness, caplog.at_level(logging.WARNING, "pillarbox"):
        for start, stop, there in ((0, 8, [6, 7]), (2, 5, []), (2, 6, []), (8, 10, [8, 9])):
            rows = harness.read_split(KafkaSplit("piece", start, stop, "passed-over", 0))
            assert [offset for _, offset in rows] == there
    assert caplog.text.count("cannot be read on from offset") == 3


@pytest.mark.parametrize("made_again", [False, True])
def test_a_topic_that_was_deleted_is_an_error(
    server: KafkaServer, source: Callable[..., KafkaSource], made_again: bool
) -> None:
    topic = f"deleted-{made_again}"
    server.create(topic)
    server.produce(topic, *range(10))
    with SourceHarness(source(topic, discovery_interval=1000.0)) as harness:
        found = harness.discover()
        assert len(harness.micro_batch()) == 10
        server.admin.delete_topics([topic])[topic].result(LONG)
        if made_again:
            server.create(topic)
            server.produce(topic, *range(20))
        # The end that it has asked for last is good for a moment.
        with pytest.raises(DataLossError, match="and made again" if made_again else "was deleted"):
            any(harness.plan() for _ in itertools.repeat(None))
        # One that is held back is not let go of without a word.
        assert not harness.enumerator.let_go(found)


def test_a_topic_that_was_made_again_is_read_from_its_beginning_where_loss_is_ignored(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("again")
    server.produce("again", *range(10))
    with SourceHarness(source("again", on_data_loss="ignore")) as harness:
        assert len(harness.micro_batch()) == 10
        server.admin.delete_topics(["again"])["again"].result(LONG)
        server.create("again")
        server.produce("again", *range(20))
        rows: list[Any] = []
        while len(rows) < 20:
            rows += harness.micro_batch()
        assert rows == [(0, offset) for offset in range(20)]


@pytest.mark.parametrize("restarted", [False, True])
def test_in_a_task_the_topic_that_was_made_again_is_read_in_place_of_the_one_before(
    server: KafkaServer, source: Callable[..., KafkaSource], restarted: bool
) -> None:
    topic = f"again-in-a-task-{restarted}"
    server.create(topic)
    server.produce(topic, *range(10))
    with SourceHarness(source(topic, on_data_loss="ignore", discovery_interval=0.01)) as harness:
        assert len(harness.read(10)) == 10
        ((before,),) = (reader.splits() for reader in harness.readers.values())
        server.admin.delete_topics([topic])[topic].result(LONG)
        server.create(topic)
        # More than there were: the place where reading stands is one of the new topic too.
        server.produce(topic, *range(20))
        if restarted:
            # The reader is given both at once.
            (split,) = harness.discover()
            harness.readers[0].close()
            harness._make_reader(0).add_splits([before, split])
            harness.take_pending()
        while harness.rows[-20:] != [(0, offset) for offset in range(20)]:
            harness.step()
        ((after,),) = (reader.splits() for reader in harness.readers.values())
        assert after.topic_id != before.topic_id


def test_in_a_task_a_topic_that_was_made_again_is_an_error(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("again-is-an-error")
    server.produce("again-is-an-error", *range(10))
    with SourceHarness(source("again-is-an-error", discovery_interval=0.01)) as harness:
        assert len(harness.read(10)) == 10
        server.admin.delete_topics(["again-is-an-error"])["again-is-an-error"].result(LONG)
        server.create("again-is-an-error")
        server.produce("again-is-an-error", *range(20))
        with pytest.raises(ReadFailed, match="its topic was deleted, and made again") as caught:
            any(harness.step() and False for _ in itertools.repeat(None))
    assert isinstance(caught.value.__cause__, DataLossError)


def test_a_topic_that_is_not_there_is_named_at_the_first_look(source: Callable[..., KafkaSource]) -> None:
    with SourceHarness(source("nobody-made-it")) as harness, pytest.raises(ValueError, match="nobody-made"):
        harness.discover()


def test_a_paused_partition_gives_nothing_and_later_goes_on_where_it_was(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("paused", 2)
    for partition in range(2):
        server.produce("paused", *range(5000), partition=partition)
    splits = [KafkaSplit(f"split-{number}", 0, 5000, "paused", number) for number in range(2)]
    reader = KafkaSplitReader(source("paused"), PLACES)
    rows: dict[str, list[int]] = {split.split_id: [] for split in splits}
    unfinished = set(rows)

    def fetch_until(condition: Callable[[], bool]) -> None:
        while not condition():
            for fetched in reader.fetch():
                rows[fetched.split_id] += [row[1] for row in rows_of(fetched.records)]
                unfinished.difference_update([fetched.split_id] if fetched.finished else [])

    reader.handle_splits_changes(SplitsAdded(tuple(splits)))
    fetch_until(lambda: any(rows.values()))
    reader.pause_or_resume_splits(["split-0"], [])
    paused_at = len(rows["split-0"])
    fetch_until(lambda: "split-1" not in unfinished)
    reader.wake_up()
    assert reader.fetch() == []
    assert len(rows["split-0"]) == paused_at < 5000
    reader.pause_or_resume_splits([], ["split-0"])
    fetch_until(lambda: not unfinished)
    reader.close()
    assert list(rows.values()) == [list(range(5000))] * 2


def test_a_range_that_is_paused_does_not_hold_up_another_one_of_its_partition(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("two-ranges")
    server.produce("two-ranges", *range(20))
    first, second = (KafkaSplit(f"{at}", at, at + 10, "two-ranges", 0) for at in (0, 10))
    reader = KafkaSplitReader(source("two-ranges"), PLACES)
    found: dict[str, list[int]] = {"0": [], "10": []}

    def read_until_finished(split: KafkaSplit) -> None:
        while True:
            for fetched in reader.fetch():
                found[fetched.split_id] += [offset for _, offset in rows_of(fetched.records)]
                if fetched.finished:
                    assert fetched.split_id == split.split_id
                    return

    reader.handle_splits_changes(SplitsAdded((first, second)))
    reader.pause_or_resume_splits([first.split_id], [])
    read_until_finished(second)
    assert found == {"0": [], "10": [*range(10, 20)]}
    reader.pause_or_resume_splits([], [first.split_id])
    read_until_finished(first)
    assert found["0"] == [*range(10)]
    reader.close()


@pytest.mark.slow
@pytest.mark.contract(needs="Kafka, whose process is killed")
def test_a_broker_that_is_killed_and_comes_back_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = KafkaServer(tmp_path_factory.mktemp("killed"))
    try:
        server.create("killed", 2)
        for partition in range(2):
            server.produce("killed", *range(3000), partition=partition)
        properties = {"bootstrap.servers": server.bootstrap, "reconnect.backoff.max.ms": 100}
        source = KafkaSource(properties, "killed", schema=PLACES)
        with SourceHarness(source, timeout=LONG) as harness:
            harness.read(500)
            server.close()
            server.start()
            server.produce("killed", *range(100), partition=0)
            harness.read(6100 - len(harness.rows))
            for partition, count in ((0, 3100), (1, 3000)):
                assert [each for n, each in harness.rows if n == partition] == list(range(count))
    finally:
        server.close()


def test_a_range_that_brings_nothing_for_long_is_given_up(
    server: KafkaServer, source: Callable[..., KafkaSource]
) -> None:
    server.create("still")
    server.produce("still", *range(10))
    # Offsets that nobody has written yet never come.
    piece = KafkaSplit("piece", 0, 11, "still", 0)

    def reader(range_timeout: float) -> FetchingReader[KafkaSplit]:
        described = source("still")
        make = partial(KafkaSplitReader, described, described.arrow_schema(), range_timeout)
        return FetchingReader(ReaderContext(), make, threading=Threading.MANY_SPLITS)

    rows: list[Any] = []
    with pytest.raises(ReadFailed, match="nothing came for 3 s of 'piece'") as caught:
        rows.extend(row for fetched in read_splits(reader(3.0), [piece]) for row in rows_of(fetched.records))
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert len(rows) == 10
    server.stop(signal.SIGSTOP)
    try:
        with pytest.raises(ReadFailed, match="nothing came"):
            list(read_splits(reader(0.3), [piece]))
    finally:
        server.stop(signal.SIGCONT)


def test_one_who_may_reads_through_the_guarded_door(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("guarded")
    server.produce("guarded", *range(5))
    security = dict(server.security)
    monkeypatch.setenv("KAFKA_PASSWORD", security.pop("sasl.password"))
    for properties, options in ((server.security, {}), (security, {"password_env": "KAFKA_PASSWORD"})):
        source = KafkaSource(properties, "guarded", bounded=True, schema=PLACES, **options)
        assert (PASSWORD.encode() in pickle.dumps(source)) is (not options)
        with SourceHarness(source) as harness:
            assert len(harness.read_all()) == 5


def test_a_wrong_password_is_an_error_that_shows_no_password(
    server: KafkaServer, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = KafkaClients({**server.security, "sasl.password": "not-" + PASSWORD})
    with pytest.raises(ConnectionError, match="Authentication") as caught:
        KafkaOffsets(wrong, committed_only=True, answer_s=2.0).topics(["guarded"])
    shown = str(caught.value) + "".join(capfd.readouterr())
    assert PASSWORD not in shown
    assert server.guarded in shown


def from_options(**options: str) -> KafkaSource:
    given = {"kafka.bootstrap.servers": "h:1", "topics": "a"}
    given.update({name.replace("__", "."): value for name, value in options.items()})
    return KafkaSource.from_options({name: value for name, value in given.items() if value != "-"}, None)


def test_options_make_the_source() -> None:
    made = from_options(topics="a, b", start='{"a": {"0": 7}}', bounded="true", stop="12.5", split_rows="9")
    assert made.names == ("a", "b")
    assert made.start == {"a": {0: 7}}
    assert (made.bounded, made.stop, made.split_rows) == (True, 12.5, 9)
    assert from_options(start="committed", group_id="g").start == "committed"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka__bootstrap__servers": "-"}, "kafka.bootstrap.servers"),
        ({"topics": "-"}, "topics"),
        ({"pattern": "a.*"}, "pattern"),
        ({"topics": "-", "pattern": "("}, "pattern"),
        ({"topics": "a,a"}, "topics"),
        ({"start": "yesterday"}, "start"),
        ({"start": '{"b": {"0": 1}}'}, "start=.*'b' is not among a"),
        ({"start": '{"a": {"0": -2}}'}, "start"),
        ({"start": '{"a": 2}'}, "start"),
        ({"stop": "earliest", "bounded": "true"}, "stop"),
        ({"start": "-1"}, "start"),
        ({"start": "nan"}, "start"),
        ({"start": "{"}, "start"),
        ({"start": "committed"}, "group_id"),
        ({"stop": "12"}, "stop"),
        ({"isolation": "none"}, "isolation"),
        ({"on_data_loss": "cry"}, "on_data_loss"),
        ({"event_time": "value"}, "event_time"),
        ({"split_rows": "0"}, "split_rows"),
        ({"patience": "0"}, "patience"),
        ({"discovery_interval": "nan"}, "discovery_interval"),
        ({"password_env": "NO_SUCH_VARIABLE_HERE"}, "password_env"),
        ({"kafka__group__id": "g"}, "group.id"),
        ({"kafka__isolation__level": "x"}, "isolation"),
        ({"subscribe": "a"}, "subscribe"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        from_options(**options)


def test_a_property_that_kafka_does_not_know_is_named_and_no_secret_is_shown() -> None:
    source = from_options(kafka__no__such__thing="x", kafka__sasl__password=PASSWORD)
    with pytest.raises(ValueError, match="no.such.thing") as caught:
        SourceHarness(source)
    assert PASSWORD not in str(caught.value)


def test_columns_that_kafka_does_not_have_are_named() -> None:
    with pytest.raises(ValueError, match="vlaue"):
        KafkaSource({"bootstrap.servers": "h:1"}, "a", schema=pa.schema([("vlaue", pa.binary())]))


class Failing:
    """Requests to commit, of which the first fails."""

    def __init__(self) -> None:
        self.asked: list[dict[Partition, int]] = []

    def commit(self, offsets: dict[Partition, int], group: str) -> None:
        self.asked.append(dict(offsets))
        if len(self.asked) == 1:
            raise ConnectionError("the group is not there")


def test_a_commit_that_fails_is_tried_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = Failing()
    with SourceHarness(KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, "t", group_id="g")) as harness:
        monkeypatch.setattr(harness.enumerator, "_offsets", offsets)
        with pytest.raises(ConnectionError, match="not there"):
            harness.enumerator.notify_committed({"t/0/": 5, "t/1/": 6})
        harness.enumerator.notify_committed({"t/0/": 7})
        harness.enumerator.notify_committed({"t/1/": 8})
    zero, one = Partition("t", 0), Partition("t", 1)
    assert offsets.asked == [{zero: 5, one: 6}, {zero: 7, one: 6}, {one: 8}]


class Answering:
    """Answers each request about a group with these errors, one a partition."""

    def __init__(self, *codes: int | None) -> None:
        from confluent_kafka import KafkaError

        errors = [None if code is None else KafkaError(code) for code in codes]
        self.places = [SimpleNamespace(topic="t", partition=0, offset=5, error=error) for error in errors]

    def poll(self, timeout: float) -> None:
        pass

    def alter_consumer_group_offsets(self, requests: Any, **how: Any) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(topic_partitions=self.places))
        return {requests[0].group_id: answer}

    list_consumer_group_offsets = alter_consumer_group_offsets


def test_a_group_that_refuses_some_partitions_was_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaError

    offsets = KafkaOffsets(KafkaClients({"bootstrap.servers": "127.0.0.1:1"}), committed_only=True)
    place = Partition("t", 0)
    monkeypatch.setattr(offsets, "_admin", Answering(None, KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
    with pytest.raises(ConnectionError, match=r"telling group 'g' where it stands: .*LOAD_IN_PROGRESS"):
        offsets.commit({place: 5}, "g")
    with pytest.raises(ConnectionError, match=r"asking where group 'g' stands: .*LOAD_IN_PROGRESS"):
        offsets.committed([place], "g")
    # Nobody waits for what is told of a topic that was deleted.
    monkeypatch.setattr(offsets, "_admin", Answering(None, KafkaError.UNKNOWN_TOPIC_OR_PART))
    offsets.commit({place: 5}, "g")
    assert offsets.committed([place], "g") == {place: 5}


def test_a_time_in_milliseconds_is_refused() -> None:
    milliseconds = 1_700_000_000_000
    with pytest.raises(ValueError, match=r"start=.*seconds since 1970, not milliseconds"):
        KafkaSource({"bootstrap.servers": "x:1"}, "t", start=milliseconds)
    options = {"kafka.bootstrap.servers": "x:1", "topics": "t", "start": str(milliseconds)}
    with pytest.raises(ValueError, match=r"start=.*seconds since 1970, not milliseconds"):
        KafkaSource.from_options(options, None)
