"""Following a growing column of a real PostgreSQL: no row of a transaction that commits late is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import psycopg

from pillarbox.sources import Boundedness, ReadLimit
from pillarbox.sources.connectors.postgres import PostgresSource
from pillarbox.testing.source_harness import SourceHarness
from tests.servers import fixtures
from tests.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.server

shared_server = fixtures.postgres


@pytest.fixture
def server(shared_server: PostgresServer) -> PostgresServer:
    # What a test that failed has left holds locks.
    for (name,) in shared_server.run("select gid from pg_prepared_xacts"):
        shared_server.run(f"rollback prepared '{name}'")
    shared_server.run(
        "drop schema public cascade",
        "create schema public",
        "create table t (id bigserial primary key, n int, at timestamptz not null default now())",
        "create table other (id int)",
    )
    return shared_server


@pytest.fixture
def sessions(server: PostgresServer) -> Iterator[list[Any]]:
    """Three connections of others."""
    with ExitStack() as stack:
        yield [stack.enter_context(psycopg.connect(server.url, autocommit=True)) for _ in range(3)]


def following(server: PostgresServer, **how: Any) -> PostgresSource:
    given = {"key": "id", "columns": ["id", "n"], "poll_interval": 0.01, **how}
    return PostgresSource(server.url, "t", mode="incremental", **given)


def add(session: Any, *numbers: int) -> None:
    for number in numbers:
        session.execute("insert into t (n) values (%s)", [number])


# -- what is not lost ----------------------------------------------------------------------------------------


@pytest.mark.contract(needs="PostgreSQL, whose transactions overlap")
def test_a_row_that_commits_after_a_later_one_is_not_lost_in_micro_batches(
    server: PostgresServer, sessions: list[Any]
) -> None:
    late, quick, _ = sessions
    with SourceHarness(following(server)) as harness:
        late.execute("begin")
        add(late, 1)
        add(quick, 2)
        assert harness.plan() == [] and harness.plan() == []
        late.execute("commit")
        assert harness.micro_batch() == [(1, 1), (2, 2)]
        add(quick, 3)
        assert harness.micro_batch() == [(3, 3)]


def test_nor_is_it_lost_in_a_task(server: PostgresServer, sessions: list[Any]) -> None:
    with SourceHarness(following(server)) as harness:
        late, quick, _ = sessions
        add(quick, 0)
        assert harness.read(1) == [(1, 0)]
        late.execute("begin")
        add(late, 1)
        add(quick, 2)
        for _ in range(20):
            assert not harness.step()
        late.execute("commit")
        assert harness.read(2) == [(2, 1), (3, 2)]


def test_a_row_whose_transaction_fails_is_not_waited_for_longer(
    server: PostgresServer, sessions: list[Any]
) -> None:
    late, quick, _ = sessions
    with SourceHarness(following(server)) as harness:
        late.execute("begin")
        add(late, 1)
        add(quick, 2)
        assert harness.plan() == []
        late.execute("rollback")
        assert harness.micro_batch() == [(2, 2)]


@pytest.mark.parametrize("wait_for", ["writers", "transactions"])
def test_a_prepared_transaction_is_waited_for(
    server: PostgresServer, sessions: list[Any], wait_for: str
) -> None:
    late, quick, _ = sessions
    with SourceHarness(following(server, wait_for=wait_for)) as harness:
        late.execute("begin")
        add(late, 1)
        add(quick, 2)
        assert harness.plan() == []
        late.execute("prepare transaction 'later'")
        assert harness.plan() == []
        add(quick, 3)
        assert harness.plan() == []
        quick.execute("commit prepared 'later'")
        rows = harness.micro_batch()
        rows += harness.micro_batch()
        assert [n for _, n in rows] == [1, 2, 3]


def test_writers_of_other_tables_are_not_waited_for(server: PostgresServer, sessions: list[Any]) -> None:
    other, quick, reader = sessions
    other.execute("begin")
    other.execute("insert into other values (1)")
    reader.execute("begin isolation level repeatable read")
    reader.execute("select * from t").fetchall()
    add(quick, 1)
    with SourceHarness(following(server)) as harness:
        assert harness.micro_batch() == [(1, 1)]
    with SourceHarness(following(server, wait_for="transactions")) as harness:
        assert harness.plan() == []


def test_a_time_that_a_transaction_took_before_its_insert_is_not_lost(
    server: PostgresServer, sessions: list[Any]
) -> None:
    late, quick, _ = sessions
    with SourceHarness(following(server, key="at", columns=["n"])) as harness:
        late.execute("begin")
        late.execute("select now()").fetchall()
        add(quick, 2)
        assert harness.plan() == []
        add(late, 1)
        late.execute("commit")
        assert harness.micro_batch() == [(1,), (2,)]


@pytest.mark.contract(needs="PostgreSQL, whose transactions overlap")
def test_rows_of_many_writers_at_once_come_once_each(server: PostgresServer) -> None:
    def write(which: int) -> None:
        with psycopg.connect(server.url) as session:
            for k in range(40):
                for part in range(3):
                    session.execute("insert into t (n) values (%s)", [which * 1000 + k * 3 + part])
                session.commit() if k % 7 else session.rollback()

    writers = [threading.Thread(target=write, args=[which]) for which in range(4)]
    with SourceHarness(following(server), timeout=60.0) as harness:
        rows: list[Any] = []
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            rows += harness.micro_batch(ReadLimit(rows=50))
        for writer in writers:
            writer.join()
        while got := harness.micro_batch():
            rows += got
    assert rows == server.run("select id, n from t order by id") and len(rows) == 4 * 34 * 3


def test_a_partition_that_is_written_directly_is_waited_for(
    server: PostgresServer, sessions: list[Any]
) -> None:
    server.run(
        "create sequence ids",
        "create table p (id bigint not null default nextval('ids'), n int) partition by range (id)",
        "create table p1 partition of p for values from (0) to (1000)",
    )
    late, quick, _ = sessions
    source = PostgresSource(server.url, "p", mode="incremental", key="id")
    with SourceHarness(source) as harness:
        late.execute("begin")
        late.execute("insert into p1 values (nextval('ids'), 1)")
        quick.execute("insert into p (n) values (2)")
        assert harness.plan() == []
        late.execute("commit")
        assert harness.micro_batch() == [(1, 1), (2, 2)]


# -- limits, positions, restarts -----------------------------------------------------------------------------


def test_micro_batches_keep_their_limits_and_give_the_same_again(server: PostgresServer) -> None:
    server.run("insert into t (n) select generate_series(1, 1000)", "analyze t")
    with SourceHarness(following(server)) as harness:
        rows: list[Any] = []
        for limit, most in ((ReadLimit(rows=1), 1), (ReadLimit(rows=300), 300), (ReadLimit(nbytes=1), 1)):
            (piece,) = harness.plan(limit)
            got = harness.read_split(piece)
            server.run("insert into t (n) values (0)")
            assert len(got) == most == piece.rows and got == harness.read_split(piece)
            rows += got
        (piece,) = harness.plan(ReadLimit(nbytes=2000))
        assert 10 < len(harness.read_split(piece)) < 400
        rows += harness.read_split(piece) + harness.micro_batch()
        assert harness.plan() == []
    assert rows == server.run("select id, n from t order by id")


def test_rows_of_one_value_stay_together(server: PostgresServer) -> None:
    server.run("insert into t (n) select generate_series(1, 50)")
    with SourceHarness(following(server, key="at", columns=["n"])) as harness:
        assert len(harness.micro_batch(ReadLimit(rows=5))) == 50


def test_a_restart_goes_on_behind_the_last_row(server: PostgresServer) -> None:
    server.run("insert into t (n) select generate_series(1, 100)")
    source = following(server)
    with SourceHarness(source) as harness:
        rows = harness.read(100)
        harness.restart_reader()
        server.run("insert into t (n) select generate_series(101, 150)")
        rows += harness.read(50)
        snapshot = harness.snapshot()
    server.run("insert into t (n) select generate_series(151, 160)")
    with SourceHarness(source, readers=2, snapshot=snapshot) as harness:
        rows += harness.read(10)
    assert rows == [(n, n) for n in range(1, 161)]


@pytest.mark.parametrize(("start", "numbers"), [("latest", []), ("40", range(41, 51)), (None, range(1, 51))])
def test_the_start_may_be_given(server: PostgresServer, start: str | None, numbers: Any) -> None:
    server.run("insert into t (n) select generate_series(1, 50)")
    with SourceHarness(following(server, start=start)) as harness:
        harness.discover()
        server.run("insert into t (n) values (51)")
        assert [n for _, n in harness.micro_batch()] == [*numbers, 51]
    assert following(server).boundedness is Boundedness.CONTINUOUS_UNBOUNDED


def test_a_start_that_is_no_value_is_an_error(server: PostgresServer) -> None:
    with SourceHarness(following(server, start="noon")) as harness, pytest.raises(RuntimeError, match="noon"):
        harness.discover()


def test_a_table_that_is_empty_at_first_is_followed(server: PostgresServer) -> None:
    with SourceHarness(following(server)) as harness:
        assert harness.plan() == []
        server.run("insert into t (n) values (7)")
        assert harness.micro_batch() == [(1, 7)]


def test_a_server_that_dies_is_an_error_and_the_same_enumerator_goes_on(server: PostgresServer) -> None:
    server.run("insert into t (n) values (1)")
    with SourceHarness(following(server)) as harness:
        assert harness.micro_batch() == [(1, 1)]
        with server.dead(), pytest.raises(ConnectionError, match="looking for rows of t"):
            harness.plan()
        server.run("insert into t (n) values (2)")
        assert [n for _, n in harness.micro_batch()] == [2]


@pytest.mark.parametrize(
    ("table", "key", "says"),
    [
        ("(id uuid primary key)", "id", "key='id' is uuid: must be a number or a time"),
        ("(id int)", "id", "key='id': must be NOT NULL"),
        ("(n int)", "ctid", "key='ctid' of 'x', a table: must be a column"),
        (
            "(id bigint generated always as identity (cache 20) primary key)",
            "id",
            "its sequence has CACHE 20",
        ),
    ],
)
def test_a_column_by_which_rows_could_be_missed_is_refused(
    server: PostgresServer, table: str, key: str, says: str
) -> None:
    server.run(f"create table x {table}")
    source = PostgresSource(server.url, "x", mode="incremental", key=key)
    with SourceHarness(source) as harness, pytest.raises(ValueError, match=says):
        harness.discover()
