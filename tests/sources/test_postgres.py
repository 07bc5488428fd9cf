"""Scans of a real PostgreSQL: every row once, of one state, as Arrow."""

from __future__ import annotations

import datetime
import decimal
import pickle
import sys
import time
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from pillarbox.sources import Boundedness, ReaderContext, Source, read_splits
from pillarbox.sources.connectors.postgres import PostgresSource, reader
from pillarbox.sources.connectors.postgres.held import MOST, close_all
from pillarbox.sources.connectors.postgres.reader import _key_of
from pillarbox.sources.fetcher import ReadFailed
from pillarbox.testing.source_harness import SourceHarness
from tests.servers import fixtures
from tests.servers.postgres_server import PASSWORD, PostgresServer

UTC = datetime.timezone.utc

pytestmark = pytest.mark.server

shared_server = fixtures.postgres


def wait_for_held(server: PostgresServer, number: int) -> None:
    """Until so many connections hold a snapshot. A server notices a little later that one was closed."""
    deadline = time.monotonic() + 20
    while server.run(
        "select count(*) from pg_stat_activity where application_name = 'pillarbox' and state like 'idle in%'"
    ) != [(number,)]:
        assert time.monotonic() < deadline


@pytest.fixture
def server(shared_server: PostgresServer) -> PostgresServer:
    close_all()
    wait_for_held(shared_server, 0)
    shared_server.run("drop schema public cascade", "create schema public")
    return shared_server


def rows_of(source: Source[Any, Any], **how: Any) -> list[Any]:
    with SourceHarness(source, timeout=30.0, **how) as harness:
        return harness.read_all()


# -- ranges ------------------------------------------------------------------------------------------------


@pytest.mark.contract(needs="PostgreSQL, which orders the keys")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", "i * i"),
        ("integer", "-i"),
        ("uuid", "md5(i::text)::uuid"),
        ('text collate "C"', "'key ' || md5(i::text)"),
        ("timestamptz", "'2024-01-01'::timestamptz + i * interval '1.5 second'"),
        ("date", "'2024-01-01'::date + i"),
        ("numeric", "i / 7.0"),
    ],
)
@pytest.mark.parametrize("analysed", [True, False])
def test_ranges_of_any_key_hold_every_row_once(
    server: PostgresServer, kind: str, value: str, analysed: bool
) -> None:
    server.run(
        f"create table t (k {kind} primary key, n int)",
        f"insert into t select {value}, i from generate_series(1, 4000) i",
    )
    if analysed:
        server.run("analyze t")
    with SourceHarness(PostgresSource(server.url, "t", columns=["n"], splits=7), readers=2) as harness:
        found = harness.discover()
        assert len(found) == 7
        sizes = [len(harness.read_split(split)) for split in found]
        assert min(sizes) > 100
        assert sorted(harness.read_all()) == [(n,) for n in range(1, 4001)]


def test_keys_that_come_often_stay_together(server: PostgresServer) -> None:
    server.run(
        "create table t (k int not null, n int)",
        "insert into t select i % 3, i from generate_series(1, 900) i",
    )
    with SourceHarness(PostgresSource(server.url, "t", key="k", splits=8)) as harness:
        assert len(harness.discover()) <= 4
        assert sorted(harness.read_all()) == sorted((i % 3, i) for i in range(1, 901))


def test_without_a_key_ranges_are_of_pages(server: PostgresServer) -> None:
    server.run(
        "create table t (n int, filler text)",
        "insert into t select i, repeat('x', 500) from generate_series(1, 2000) i",
    )
    with SourceHarness(PostgresSource(server.url, "t", columns=["n"], splits=5)) as harness:
        assert len(harness.discover()) == 5
        assert sorted(harness.read_all()) == [(n,) for n in range(1, 2001)]


def test_views_and_partitioned_tables_and_odd_names_are_read(server: PostgresServer) -> None:
    server.run(
        'create schema "odd name"',
        'create table "odd name"."T ""x" (k int primary key, "a b" text) partition by range (k)',
        'create table low partition of "odd name"."T ""x" for values from (minvalue) to (50)',
        'create table high partition of "odd name"."T ""x" for values from (50) to (maxvalue)',
        """insert into "odd name"."T ""x" select i, 'v' || i from generate_series(0, 99) i""",
        'create view v as select k as "K" from "odd name"."T ""x"',
    )
    source = PostgresSource(server.url, '"odd name"."T ""x"', splits=4)
    assert sorted(rows_of(source)) == [(k, f"v{k}") for k in range(100)]
    assert sorted(rows_of(PostgresSource(server.url, "v", key="K", splits=4))) == [(k,) for k in range(100)]
    server.run('drop schema "odd name" cascade')


@pytest.mark.contract(needs="PostgreSQL, which exports the snapshot")
def test_all_ranges_show_the_state_at_the_begin_of_the_read(server: PostgresServer) -> None:
    server.run(
        "create table t (k int primary key, n int)",
        "insert into t select i, 0 from generate_series(1, 1000) i",
    )
    with SourceHarness(PostgresSource(server.url, "t", splits=4)) as harness:
        harness.discover()
        harness.step()
        server.run(
            "update t set n = 1",
            "delete from t where k > 500",
            "insert into t select i, 1 from generate_series(1001, 1100) i",
        )
        assert sorted(harness.read_all()) == [(k, 0) for k in range(1, 1001)]


def test_without_one_snapshot_each_range_has_its_own_and_nobody_is_waited_for(server: PostgresServer) -> None:
    server.run(
        "create table t (k int primary key, n int)",
        "insert into t select i, 0 from generate_series(1, 1000) i",
    )
    with SourceHarness(PostgresSource(server.url, "t", splits=4, consistent=False)) as harness:
        harness.discover()
        wait_for_held(server, 0)
        server.run("update t set n = 1")
        harness.enumerator.close()
        assert sorted(harness.read_all()) == [(k, 1) for k in range(1, 1001)]


def test_ranges_whose_snapshot_is_gone_are_an_error_that_says_what_to_do(server: PostgresServer) -> None:
    server.run("create table t (k int primary key)", "insert into t select generate_series(1, 1000)")
    with SourceHarness(PostgresSource(server.url, "t", splits=4, hold_snapshot=0)) as harness:
        harness.discover()
        harness.enumerator.close()
        with pytest.raises(
            ReadFailed, match="the snapshot in which all splits are read is gone.*register_source"
        ):
            harness.read_all()


def test_a_snapshot_outlives_the_enumerator_for_a_while_and_keeps_nobody_from_the_table(
    server: PostgresServer,
) -> None:
    server.run("create table t (k int primary key)", "insert into t select generate_series(1, 1000)")
    with SourceHarness(PostgresSource(server.url, "t", splits=4)) as harness:
        harness.discover()
        harness.enumerator.close()
        server.run("delete from t")
        assert len(harness.read_all()) == 1000
        server.run("set lock_timeout = '5s'", "drop table t")
    for _ in range(MOST + 3):
        server.run("create table if not exists t (k int primary key)")
        with SourceHarness(PostgresSource(server.url, "t")) as harness:
            harness.discover()
    wait_for_held(server, MOST)
    close_all()
    wait_for_held(server, 0)


def test_an_empty_table_has_no_rows_but_columns(server: PostgresServer) -> None:
    server.run("create table t (k int primary key, at timestamptz not null)")
    source = PostgresSource(server.url, "t", splits=3)
    assert rows_of(source) == []
    assert source.arrow_schema() == pa.schema(
        [pa.field("k", pa.int32(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]
    )


def test_discovery_goes_on_from_its_checkpoint(server: PostgresServer) -> None:
    server.run("create table t (k int primary key)", "insert into t select generate_series(1, 1000)")
    with SourceHarness(PostgresSource(server.url, "t", splits=10)) as harness:
        while found := harness.discover(most=3):
            assert len(found) <= 3
        assert len({split.split_id for split in harness.pending}) == 10
        assert len(harness.read_all()) == 1000


@pytest.mark.parametrize("columns", [["k", "pad"], ["pad"]])
def test_a_reader_that_begins_in_the_middle_of_a_range_goes_on_behind_its_last_row(
    server: PostgresServer, columns: list[str]
) -> None:
    server.run(
        "create table t (k int not null, pad text)",
        "insert into t select i / 3, i || repeat('x', 300) from generate_series(1, 20000) i",
    )
    with SourceHarness(PostgresSource(server.url, "t", key="k", columns=columns, splits=1)) as harness:
        harness.read(1)
        harness.restart_reader()
        harness.read(1)
        harness.restart_reader()
        rows = harness.read_all() and harness.rows
        assert len(harness.fetched) > 3
        assert len(rows) == 20_000 == len(set(rows))


# -- types -------------------------------------------------------------------------------------------------

TYPES: list[tuple[str, str, Any]] = [
    ("smallint", "-32768", -32768),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("real", "'NaN'", "nan"),
    ("double precision", "0.1", 0.1),
    ("double precision", "'-infinity'", float("-inf")),
    ("boolean", "true", True),
    ("numeric(20,4)", "-12345678901.5", decimal.Decimal("-12345678901.5000")),
    ("text", "''", ""),
    ("text", "E'a,\"b\"\\nc \\\\. é'", 'a,"b"\nc \\. é'),
    ("varchar(5)", "'NULL'", "NULL"),
    ("char(3)", "'a'", "a  "),
    ("uuid", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ("jsonb", "'{\"a\": [1, null]}'", '{"a": [1, null]}'),
    ("bytea", "'\\x00ff'", b"\x00\xff"),
    ("bytea", "''", b""),
    ("date", "'0001-02-03'", datetime.date(1, 2, 3)),
    ("time", "'23:59:59.25'", datetime.time(23, 59, 59, 250000)),
    ("timestamp", "'2024-02-29 12:00:00.000001'", datetime.datetime(2024, 2, 29, 12, 0, 0, 1)),
    ("timestamptz", "'2024-02-29 12:00:00+02'", datetime.datetime(2024, 2, 29, 10, tzinfo=UTC)),
    ("mood", "'fine'", "fine"),
    ("price", "1.5", decimal.Decimal("1.50")),
]


@pytest.mark.contract(needs="PostgreSQL, which writes the values")
@pytest.mark.parametrize(("kind", "literal", "value"), TYPES)
def test_values_arrive_as_they_are_and_nulls_as_nulls(
    server: PostgresServer, kind: str, literal: str, value: Any
) -> None:
    server.run(
        "create type mood as enum ('fine')",
        "create domain price as numeric(6,2)",
        f"create table t (v {kind})",
        f"insert into t values ({literal}), (null)",
    )
    rows = rows_of(PostgresSource(server.url, "t"))
    assert [str(v) if value == "nan" else v for (v,) in rows] == [value, "None" if value == "nan" else None]


@pytest.mark.parametrize("kind", ["int[]", "interval", "numeric", "point", "int4range", "numeric(50,2)"])
def test_a_type_that_arrow_has_not_is_refused_with_its_column(server: PostgresServer, kind: str) -> None:
    server.run(f"create table t (k int primary key, odd {kind})", "insert into t values (1, null)")
    with pytest.raises(ValueError, match=r"column 'odd' is .*casts=\{'odd': "):
        PostgresSource(server.url, "t").arrow_schema()
    assert rows_of(PostgresSource(server.url, "t", columns=["k"])) == [(1,)]
    assert rows_of(PostgresSource(server.url, "t", casts={"odd": "text"})) == [(1, None)]


def test_casts_say_how_a_column_is_read(server: PostgresServer) -> None:
    server.run(
        "create table t (k int primary key, a int[], p numeric)", "insert into t values (1, '{1,2}', 1.25)"
    )
    source = PostgresSource(server.url, "t", casts={"a": "text", "p": "numeric(20,1)", "k": "text"})
    assert rows_of(source) == [("1", "{1,2}", decimal.Decimal("1.3"))]


@pytest.mark.parametrize("value", ["infinity", "0044-03-15 BC"])
def test_a_value_that_arrow_has_not_is_named(server: PostgresServer, value: str) -> None:
    server.run("create table t (k int primary key, at timestamptz)", f"insert into t values (1, '{value}')")
    with pytest.raises(ReadFailed, match=f"column 'at': .*{value[:10]}.*casts="):
        rows_of(PostgresSource(server.url, "t"))


# -- failures ----------------------------------------------------------------------------------------------


def test_a_server_that_dies_is_an_error_and_a_later_read_goes_on(server: PostgresServer) -> None:
    server.run(
        "create table t (k int primary key, pad text)",
        "insert into t select i, repeat('x', 1000) from generate_series(1, 60000) i",
    )
    source = PostgresSource(server.url, "t", columns=["k", "pad"], splits=3, consistent=False)
    with SourceHarness(source, timeout=60.0) as harness:
        harness.read(1)
        with server.dead():
            with pytest.raises(
                ReadFailed, match=f"reading split 't#.*127.0.0.1:{server.port}.*reading t"
            ) as raised:
                harness.read_all()
            assert isinstance(raised.value.__cause__, ConnectionError)
            assert PASSWORD not in f"{raised.value} {raised.value.__cause__!r}"
            rows, snapshot = list(harness.rows), harness.snapshot()
            with pytest.raises(ConnectionError, match="connecting") as lost:
                source.arrow_schema()
            assert PASSWORD not in str(lost.value)
    assert 0 < len(rows) < 60_000
    rows += rows_of(source, snapshot=snapshot)
    assert sorted(k for k, _ in rows) == list(range(1, 60_001))


def test_a_wrong_password_is_an_error_that_does_not_show_it(server: PostgresServer) -> None:
    source = PostgresSource(server.url.replace(PASSWORD, "open-sesame"), "t")
    with pytest.raises(ConnectionError, match="password authentication failed") as raised:
        source.arrow_schema()
    assert "sesame" not in f"{raised.value} {source!r} {source.address!r}"


def test_the_password_may_stand_in_the_environment(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.run("create table t (k int primary key, p numeric, n text)", "insert into t values (1, 2.5, 'x')")
    monkeypatch.setenv("POSTGRES_SECRET", PASSWORD)
    source = PostgresSource.from_options(
        {
            "url": server.url.replace(f":{PASSWORD}", ""),
            "table": "public.t",
            "columns": "k, p",
            "casts": "p numeric(5,1)",
            "splits": "2",
            "password_env": "POSTGRES_SECRET",
        },
        None,
    )
    monkeypatch.delenv("POSTGRES_SECRET")
    again = pickle.loads(pickle.dumps(source))
    assert PASSWORD not in repr(again) and again.boundedness is Boundedness.BOUNDED
    assert rows_of(again) == [(1, decimal.Decimal("2.5"))]


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r'pip install "pillarbox\[postgres\]"'):
        PostgresSource("postgresql://host/db", "t")


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"conninfo": 5}, TypeError, "conninfo: must be a str, not int"),
        (
            {"conninfo": f"postgresql://user:{PASSWORD}@[host/db"},
            ValueError,
            "conninfo: must be postgresql://",
        ),
        ({"conninfo": f"{PASSWORD}"}, ValueError, "conninfo: must be postgresql://"),
        ({"table": ""}, TypeError, "table='': must be the name"),
        ({"mode": "all"}, ValueError, "mode='all': must be one of scan, incremental"),
        ({"columns": "k"}, TypeError, "columns='k': must be a list"),
        ({"splits": 0}, ValueError, "splits=0: must be at least 1"),
        ({"splits": 1.5}, TypeError, "splits=1.5: must be an int or None"),
        ({"start": "5"}, ValueError, "start='5': is for mode='incremental'"),
        ({"mode": "incremental"}, ValueError, "key=None: mode='incremental' needs"),
        ({"mode": "incremental", "key": "k", "splits": 2}, ValueError, "splits=2: is for mode='scan'"),
        ({"wait_for": "me"}, ValueError, "wait_for='me': must be one of writers, transactions"),
        ({"hold_snapshot": -1}, ValueError, "hold_snapshot=-1: must be seconds, 0 or more"),
        ({"hold_snapshot": float("inf")}, ValueError, "hold_snapshot=inf: must be seconds, 0 or more"),
        ({"poll_interval": 0}, ValueError, "poll_interval=0: must be seconds above 0"),
        ({"poll_interval": float("inf")}, ValueError, "poll_interval=inf: must be seconds above 0"),
        ({"casts": {"k": "int; drop table t"}}, ValueError, "casts=.*: must be the name of a type"),
        ({"password_env": "NO_SUCH_VARIABLE"}, ValueError, "password_env='NO_SUCH_VARIABLE'"),
    ],
)
def test_a_bad_argument_is_refused(given: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments = {"conninfo": f"postgresql://user:{PASSWORD}@localhost/db", "table": "t", **given}
    with pytest.raises(error, match=says) as raised:
        PostgresSource(**arguments)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"table": "nothing"}, "table='nothing': there is no such table"),
        ({"key": "odd"}, "key='odd' is point: must be one of bigint"),
        ({"key": "n"}, "key='n': must be NOT NULL"),
        ({"key": "gone"}, "key='gone': 't' has no such column, but k, n, odd"),
        ({"columns": ["k", "gone"]}, "column 'gone': there is none; there are k, n, odd"),
        ({"table": "v"}, "table='v' is a view and has no primary key of one column: give key"),
        ({"table": "v", "key": "ctid"}, "key='ctid': the rows of 'v', a view"),
    ],
)
def test_what_the_catalogue_does_not_know_is_refused(
    server: PostgresServer, given: dict[str, Any], says: str
) -> None:
    server.run("create table t (k int primary key, n int, odd point)", "create view v as select k from t")
    with pytest.raises(ValueError, match=says):
        PostgresSource(**{"conninfo": server.url, "table": "t", **given}).arrow_schema()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("casts", "price:numeric(10,2)", "option 'casts'.*'price:numeric"),
        ("casts", "a text; price", "option 'casts'.*'price'"),
        ("columns", ",", r"columns=\[\]: must be a list of names"),
    ],
)
def test_an_option_that_says_nothing_is_refused(option: str, value: str, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        PostgresSource.from_options({"url": "postgresql://host/db", "table": "t", option: value}, None)


@pytest.mark.contract(needs="PostgreSQL, which knows what may be null")
@pytest.mark.parametrize("kind", ["view", "materialized view"])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_key_with_nulls_is_refused_for_their_rows_would_be_missing(
    server: PostgresServer, kind: str, splits: int
) -> None:
    server.run(
        f"create {kind} bad as select nullif(i, 7) as k, i from generate_series(1, 100) i",
        f"create {kind} good as select i as k, i from generate_series(1, 100) i",
    )
    assert len(rows_of(PostgresSource(server.url, "good", key="k", splits=splits))) == 100
    with pytest.raises(ValueError, match="key='k': is NULL in rows of 'bad'"):
        rows_of(PostgresSource(server.url, "bad", key="k", splits=splits))


def test_rows_of_one_key_are_not_looked_through_again_and_again(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.run(
        "create table t (k int not null, v text)",
        "insert into t select i / 6000, lpad(i::text, 100, '0') from generate_series(0, 19999) i",
    )
    looks = []

    def key_of(ranges: Any, batch: pa.RecordBatch, row: int) -> str:
        looks.append(row)
        return str(_key_of(ranges, batch, row))

    monkeypatch.setattr(reader, "_key_of", key_of)
    monkeypatch.setattr(reader, "BATCH", reader.BATCH // 5)
    with SourceHarness(PostgresSource(server.url, "t", key="k", splits=1), timeout=30) as harness:
        (split,) = harness.discover()
        fetched = list(read_splits(harness.source.create_reader(ReaderContext()), [split]))
    # A block has some two thousand rows: by halves, not one by one.
    assert len(looks) < 200
    batches = [each.records for each in fetched if len(each.records)]
    keys = [batch.column("k").unique().to_pylist() for batch in batches]
    # Equal keys stay in one batch, and positions are keys.
    assert sorted(chain.from_iterable(keys)) == [0, 1, 2, 3] and len(batches) > 1
    assert [each.position for each in fetched] == [str(part[-1]) for part in keys]
    values = [value for batch in batches for value in batch.column("v").to_pylist()]
    assert sorted(map(int, values)) == list(range(20_000))
