"""Redis Streams as a source, against a real Redis."""

from __future__ import annotations

import datetime
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason="the package redis is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa
import redis

from pillarbox.sources import Fetched
from pillarbox.sources.connectors.redis_streams import RedisStreamReader, RedisStreamSource, RedisStreamSplit
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.reader import SplitsAdded
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import DataLossError
from pillarbox.testing import SourceHarness
from tests.servers import fixtures
from tests.servers.redis_server import PASSWORD, RedisServer

NUMBERS = pa.schema([("_stream", pa.string()), ("n", pa.int64())])

pytestmark = pytest.mark.server

shared_redis, server = fixtures.shared_redis, fixtures.redis


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def fill(client: Any, stream: str, numbers: range, *, each_at: bool = False) -> None:
    """each_at: each has a millisecond of its own, in 1970."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.xadd(stream, {"n": number}, id=f"{number + 1}-0" if each_at else "*")
    pipeline.execute()


def numbers_of(server: RedisServer, *streams: str, **how: Any) -> RedisStreamSource:
    return RedisStreamSource(server.url, streams or None, schema=NUMBERS, **how)


# -- what is read --------------------------------------------------------------------------------------


@pytest.mark.contract(needs="Redis, which says where a stream ends")
def test_a_bounded_read_gives_every_entry_once_and_ends(server: RedisServer, client: Any) -> None:
    fill(client, "s:a", range(3000), each_at=True)
    fill(client, "s:b", range(700), each_at=True)
    client.set("s:no stream", "x")
    source = numbers_of(server, pattern="s:*", bounded=True)
    with SourceHarness(source, readers=2) as harness:
        found = harness.discover()
        fill(client, "s:a", range(3000, 3100))
        rows = harness.read_all()
    assert len(found) == 2
    assert sorted(rows) == [("s:a", n) for n in range(3000)] + [("s:b", n) for n in range(700)]


KEYS = r"ax bx !x ^x -x ]x [x a*b axb a?b \x x [eu]1 e1 ab abc é éx ["
PATTERNS = r"""
    [!a]x [^a]x [\]]x \[eu\]* [eu]* a\*b a\?b a?b * [a-c]x [c-a]x [a\-c]x []x [^]x [ax ? ?? \\x [*]x
    [a*b [-a]x [a-]x ?x é [é]x [^é]?x [ \ a\
"""


@pytest.mark.contract(needs="Redis, which says what its patterns find")
def test_a_pattern_finds_the_streams_that_scan_finds(server: RedisServer, client: Any) -> None:
    names = KEYS.split()
    for name in names:
        client.set(name, "x")
    for pattern in PATTERNS.split():
        source = numbers_of(server, pattern=pattern)
        found = set(client.keys(pattern))
        assert {name for name in names if source.matches(name)} == found, pattern


def test_discovery_gives_no_more_splits_than_it_is_asked_for(server: RedisServer, client: Any) -> None:
    for name in "abcde":
        fill(client, name, range(50))
    source = numbers_of(server, pattern="*", bounded=True)
    with SourceHarness(source) as harness:
        while found := harness.discover(most=3):
            assert len(found) <= 3
        ids = [split.split_id for split in harness.pending]
        assert len(ids) == len(set(ids)) == 5
        assert len(harness.read_all()) == 250


def test_the_entries_of_a_stream_come_in_their_order_and_new_ones_follow(
    server: RedisServer, client: Any
) -> None:
    with SourceHarness(numbers_of(server, "a")) as harness:
        fill(client, "a", range(2500))
        harness.read(2500)
        fill(client, "a", range(2500, 2600))
        harness.read(100)
        assert harness.rows == [("a", n) for n in range(2600)]


def test_streams_that_come_later_are_found_by_the_pattern(server: RedisServer, client: Any) -> None:
    fill(client, "s:a", range(3))
    source = numbers_of(server, pattern="s:*", start="latest", discovery_interval=0.05)
    with SourceHarness(source) as harness:
        harness.discover()
        fill(client, "other", range(3))
        fill(client, "s:b", range(3))
        fill(client, "s:a", range(10, 13))
        harness.read(6)
        assert sorted(harness.rows) == [("s:a", 10), ("s:a", 11), ("s:a", 12)] + [
            ("s:b", n) for n in range(3)
        ]


def test_one_reader_has_many_streams_and_a_busy_one_does_not_starve_the_others(
    server: RedisServer, client: Any
) -> None:
    names = [f"s{n}" for n in range(100)]
    stop = threading.Event()

    def keep_busy() -> None:
        with redis.Redis.from_url(server.url) as own:
            while not stop.is_set():
                fill(own, "s0", range(500))

    with SourceHarness(numbers_of(server, *names)) as harness:
        fill(client, "s0", range(5000))
        harness.read(1)
        busy = threading.Thread(target=keep_busy)
        busy.start()
        try:
            for name in names[1:]:
                fill(client, name, range(2))
            harness.read_until(lambda: len({stream for stream, _ in harness.rows}) == 100)
        finally:
            stop.set()
            busy.join()


def test_a_start_in_the_middle_is_an_id(server: RedisServer, client: Any) -> None:
    for ms in range(1, 6):
        client.xadd("a", {"n": ms}, id=f"{ms}-0")
    with SourceHarness(numbers_of(server, "a", start="3", bounded=True)) as harness:
        assert harness.read_all() == [("a", 3), ("a", 4), ("a", 5)]


def test_a_start_that_is_still_to_come_is_waited_for(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(5), each_at=True)
    with SourceHarness(numbers_of(server, "a", start="50")) as harness:
        assert harness.micro_batch() == []
        client.xadd("a", {"n": 40}, id="40-0")
        assert harness.micro_batch() == []
        client.xadd("a", {"n": 60}, id="60-0")
        assert harness.micro_batch() == [("a", 60)]


# -- rows ----------------------------------------------------------------------------------------------


def test_fields_become_columns_of_their_types(server: RedisServer, client: Any) -> None:
    client.xadd(
        "a", {"i": "7", "x": "1.5", "when": "2024-03-01T10:00:00.25", "raw": b"\xff", "is": "true"}, id="5-1"
    )
    client.xadd("a", {"when": "2024-03-01 12:00:00+02:00", "text": "é"}, id="6-0")
    client.xadd("a", {"when": "2024-03-01"}, id="7-0")
    schema = pa.schema(
        [
            ("text", pa.string()),
            ("i", pa.int32()),
            ("x", pa.float64()),
            ("when", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
            ("is", pa.bool_()),
            ("_id", pa.string()),
            ("_time", pa.timestamp("us", "UTC")),
        ]
    )
    utc = datetime.timezone.utc
    with SourceHarness(RedisStreamSource(server.url, "a", schema=schema, bounded=True)) as harness:
        assert harness.read_all() == [
            (
                None, 7, 1.5, datetime.datetime(2024, 3, 1, 10, 0, 0, 250000, utc), b"\xff", True,
                "5-1", datetime.datetime.fromtimestamp(0.005, utc),
            ),
            ("é", None, None, datetime.datetime(2024, 3, 1, 10, tzinfo=utc), None, None, "6-0",
             datetime.datetime.fromtimestamp(0.006, utc)),
            (None, None, None, datetime.datetime(2024, 3, 1, tzinfo=utc), None, None, "7-0",
             datetime.datetime.fromtimestamp(0.007, utc)),
        ]  # fmt: skip


def test_without_a_schema_all_fields_are_in_a_map(server: RedisServer, client: Any) -> None:
    client.xadd("a", {"x": "1", "y": ""}, id="5-1")
    client.xadd("a", {"z": "2"}, id="5-2")
    with SourceHarness(RedisStreamSource(server.url, "a", bounded=True)) as harness:
        rows = harness.read_all()
        assert harness.source.arrow_schema() == harness.fetched[0].records.schema
    assert [(stream, entry, fields) for stream, entry, _, fields in rows] == [
        ("a", "5-1", [("x", "1"), ("y", "")]),
        ("a", "5-2", [("z", "2")]),
    ]


@pytest.mark.parametrize(
    ("fields", "schema", "says"),
    [
        ({"n": "x7"}, NUMBERS, r"stream 'a', entry 5-2: b'x7' cannot be read as column 'n', int64: .*x7"),
        (
            {"n": b"\xff"},
            None,
            r"stream 'a', entry 5-2: \[b'n', b'\\xff'\] cannot be read as column '_fields', map",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    server: RedisServer, client: Any, fields: dict[str, Any], schema: Any, says: str
) -> None:
    client.xadd("a", {"n": "1"}, id="5-1")
    client.xadd("a", fields, id="5-2")
    with (
        SourceHarness(RedisStreamSource(server.url, "a", schema=schema, bounded=True)) as harness,
        pytest.raises(ReadFailed, match=says),
    ):
        harness.read_all()


# -- going on, and micro-batches -------------------------------------------------------------------------


def test_a_restart_goes_on_where_the_rows_ended(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(5000))
    fill(client, "b", range(5000))
    source = numbers_of(server, pattern="*")
    with SourceHarness(source, readers=2) as harness:
        first = harness.read(3000)
        harness.restart_reader(0)
        first += harness.read(100)
        snapshot = harness.snapshot()
    fill(client, "c", range(10))
    with SourceHarness(source, readers=3, snapshot=snapshot) as harness:
        rows = first + harness.read(10_010 - len(first))
    assert sorted(rows) == sorted([(s, n) for s in "ab" for n in range(5000)] + [("c", n) for n in range(10)])


def test_micro_batches_keep_their_limits_and_give_the_same_again(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(2500))
    with SourceHarness(numbers_of(server, "a")) as harness:
        rows: list[Any] = []
        for limit in (ReadLimit(rows=1), ReadLimit(rows=1200), ReadLimit(rows=17)):
            (piece,) = harness.plan(limit)
            got = harness.read_split(piece)
            assert len(got) == piece.rows
            assert got == harness.read_split(piece)
            assert len(got) <= (limit.rows or 1_000_000)
            rows += got
        with pytest.raises(ValueError, match="max_bytes: .* use max_rows"):
            harness.plan(ReadLimit(nbytes=900))
        fill(client, "a", range(2500, 2510))
        rows += harness.micro_batch()
        assert harness.plan() == []
        assert rows == [("a", n) for n in range(2510)]


def test_a_piece_of_a_split_with_an_end_finishes_it(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(100))
    with SourceHarness(numbers_of(server, "a", bounded=True)) as harness:
        assert len(harness.micro_batch(ReadLimit(rows=60))) == 60
        assert len(harness.micro_batch(ReadLimit(rows=60))) == 40
        assert harness.plan() == [] and harness.snapshot()["waiting"] == []


# -- entries that are gone -------------------------------------------------------------------------------


@pytest.mark.contract(needs="Redis, which trims the stream")
def test_entries_that_were_trimmed_before_they_were_read_are_an_error(
    server: RedisServer, client: Any
) -> None:
    fill(client, "a", range(100))
    with SourceHarness(numbers_of(server, "a")) as harness:
        (piece,) = harness.plan(ReadLimit(rows=50))
        client.xtrim("a", maxlen=60, approximate=False)
        with pytest.raises(ReadFailed, match="stream 'a', from 0-0 on: 40 entries were trimmed") as raised:
            harness.read_split(piece)
        assert isinstance(raised.value.__cause__, DataLossError)
        client.xtrim("a", maxlen=45, approximate=False)
        with pytest.raises(DataLossError, match=r": 5 entries were trimmed or deleted before they were read"):
            harness.plan(ReadLimit(rows=50))


def test_trimming_what_was_read_is_no_loss(server: RedisServer, client: Any) -> None:
    with SourceHarness(numbers_of(server, "a")) as harness:
        for begin in range(0, 300, 100):
            fill(client, "a", range(begin, begin + 100))
            harness.read(100)
            client.xtrim("a", maxlen=0, approximate=False)
        assert harness.rows == [("a", n) for n in range(300)]


def test_entries_that_are_gone_can_be_passed_over(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(100))
    with SourceHarness(numbers_of(server, "a", on_data_loss="ignore")) as harness:
        (piece,) = harness.plan(ReadLimit(rows=50))
        client.xtrim("a", maxlen=60, approximate=False)
        assert harness.read_split(piece) == [("a", n) for n in range(40, 50)]
        client.xtrim("a", maxlen=10, approximate=False)
        assert harness.micro_batch() == [("a", n) for n in range(90, 100)]
        client.delete("a")
        assert harness.read_split(piece) == []


def test_a_stream_that_was_deleted_is_an_error_where_entries_of_it_are_due(
    server: RedisServer, client: Any
) -> None:
    fill(client, "a", range(100))
    with SourceHarness(numbers_of(server, "a")) as harness:
        (piece,) = harness.plan()
        client.delete("a")
        with pytest.raises(ReadFailed, match="stream 'a' is gone, with the entries from 0-0 up to"):
            harness.read_split(piece)
        assert harness.plan() == []
        fill(client, "a", range(5))
        with pytest.raises(DataLossError, match="was deleted and made anew"):
            harness.plan()


# -- commits -----------------------------------------------------------------------------------------------


def test_what_is_committed_is_trimmed_if_asked_for(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(100))
    with SourceHarness(numbers_of(server, "a", trim=True)) as harness:
        (piece,) = harness.plan(ReadLimit(rows=60))
        harness.read_split(piece)
        assert client.xlen("a") == 100
        for _ in range(2):
            harness.enumerator.notify_committed({"a": piece.stop})
        assert client.xlen("a") == 40
        assert len(harness.micro_batch()) == 40


@pytest.mark.contract(needs="Redis, which counts its keys")
def test_nothing_is_written_into_redis_unless_asked_for(server: RedisServer, client: Any) -> None:
    fill(client, "a", range(100))
    with SourceHarness(numbers_of(server, "a")) as harness:
        (piece,) = harness.plan()
        harness.enumerator.notify_committed({"a": piece.stop})
        harness.read(100)
    assert client.keys() == ["a"] and client.xlen("a") == 100 and client.xinfo_groups("a") == []


# -- waiting and pausing -------------------------------------------------------------------------------------


@pytest.fixture
def reader(server: RedisServer) -> Iterator[RedisStreamReader]:
    source = numbers_of(server, "a", "b")
    reader = RedisStreamReader(source, source.arrow_schema())
    yield reader
    reader.close()


def fetched_until(reader: RedisStreamReader, condition: Callable[[list[Fetched]], bool]) -> list[Fetched]:
    got: list[Fetched] = []
    while not condition(got):
        got += reader.fetch()
    return got


def test_a_fetch_that_finds_nothing_waits_at_the_server_and_ends_soon(
    reader: RedisStreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.handle_splits_changes(SplitsAdded((RedisStreamSplit("a", stream="a"),)))
    assert list(reader.fetch()) == []
    asked: list[tuple[Any, ...]] = []
    ask = reader._client.execute_command
    monkeypatch.setattr(reader._client, "execute_command", lambda *words: asked.append(words) or ask(*words))
    assert list(reader.fetch()) == []
    ((*_, block, milliseconds, _, _, _),) = asked
    assert block == "BLOCK" and 40 < milliseconds < 200


def test_nothing_is_fetched_of_a_paused_stream_until_it_goes_on(
    reader: RedisStreamReader, client: Any
) -> None:
    reader.handle_splits_changes(SplitsAdded(tuple(RedisStreamSplit(name, stream=name) for name in "ab")))
    reader.pause_or_resume_splits(["a"], [])
    fill(client, "a", range(10))
    fill(client, "b", range(10))
    got = fetched_until(reader, bool)
    fill(client, "b", range(10))
    got += fetched_until(reader, bool)
    assert {each.split_id for each in got} == {"b"}
    reader.pause_or_resume_splits([], ["a"])
    assert [each.split_id for each in fetched_until(reader, bool)] == ["a"]


def test_bounded_is_said_by_the_source(server: RedisServer) -> None:
    assert numbers_of(server, "a", bounded=True).boundedness is Boundedness.BOUNDED
    assert numbers_of(server, "a").boundedness is Boundedness.CONTINUOUS_UNBOUNDED


# -- failures ----------------------------------------------------------------------------------------------


def test_a_redis_that_dies_is_an_error_and_a_restart_goes_on(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, durable=True)
    try:
        with redis.Redis.from_url(server.url) as client:
            fill(client, "a", range(20_000))
        source = numbers_of(server, "a")
        harness = SourceHarness(source)
        with harness:
            rows = harness.read(1000)
            server.kill()
            with pytest.raises(
                ReadFailed, match=f"reading split 'a' failed: .*127.0.0.1:{server.port}"
            ) as raised:
                harness.read(100_000)
            assert isinstance(raised.value.__cause__, ConnectionError)
            assert PASSWORD not in str(raised.value) + repr(raised.value.__cause__)
            rows, snapshot = list(harness.rows), harness.snapshot()
            with pytest.raises(ConnectionError, match="looking for entries of stream 'a'"):
                harness.enumerator.advance(RedisStreamSplit("a", stream="a"), ReadLimit())
        server.start()
        with SourceHarness(source, snapshot=snapshot) as harness:
            rows += harness.read(20_000 - len(rows))
        assert rows == [("a", n) for n in range(20_000)]
    finally:
        server.kill()


def test_a_wrong_password_is_an_error_that_does_not_show_it(server: RedisServer) -> None:
    source = RedisStreamSource(server.url.replace(PASSWORD, "sesame-open"), "a")
    with SourceHarness(source) as harness, pytest.raises(Exception, match="looking for streams") as raised:
        harness.discover()
    assert "sesame" not in str(raised.value) + repr(source) + repr(source.service)


@pytest.mark.contract(
    "A password that the environment holds does not travel with a source.", needs="Redis, which asks for it"
)
def test_the_password_may_stand_in_the_environment(
    server: RedisServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", range(3))
    monkeypatch.setenv("REDIS_SECRET", PASSWORD)
    source = RedisStreamSource.from_options(
        {
            "url": f"redis://127.0.0.1:{server.port}",
            "streams": "a, b",
            "bounded": "true",
            "password_env": "REDIS_SECRET",
        },
        NUMBERS,
    )
    written = pickle.dumps(source)
    assert PASSWORD.encode() not in written
    again = pickle.loads(written)
    assert PASSWORD not in repr(again) and again.names == ("a", "b")
    monkeypatch.delenv("REDIS_SECRET")
    with pytest.raises(ValueError, match=r"password_env='REDIS_SECRET': .* set spark\.executorEnv\."):
        SourceHarness(again)
    monkeypatch.setenv("REDIS_SECRET", PASSWORD)
    with SourceHarness(again) as harness:
        assert harness.read_all() == [("a", n) for n in range(3)]


def test_a_missing_client_is_named(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ImportError, match=r'pip install "pillarbox\[redis\]"'):
        SourceHarness(numbers_of(server, "a"))


def test_a_key_that_is_no_stream_is_an_error(server: RedisServer, client: Any) -> None:
    client.set("a", "x")
    with SourceHarness(numbers_of(server, "a")) as harness, pytest.raises(RuntimeError, match="WRONGTYPE"):
        harness.discover()


def test_a_key_whose_name_is_not_utf_8_is_passed_over_with_a_warning(
    server: RedisServer, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.xadd(b"p:\xff", {"n": "0"})
    fill(client, "p:ok", range(3))
    source = RedisStreamSource(server.url, pattern="p:*", discovery_interval=1)
    with caplog.at_level("WARNING", "pillarbox"), SourceHarness(source) as harness:
        assert [split.stream for split in harness.discover()] == ["p:ok"]
        assert harness.discover() == []
    assert len([each for each in caplog.messages if r"p:\xff" in each]) == 1
