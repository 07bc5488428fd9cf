"""docs/stores.md runs: vectors into pgvector and OpenSearch, with real servers; into Qdrant's local mode.

`make test-stores` fetches the servers and the clients, and runs these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.pages import blocks
from tests.servers.maven import OPENSEARCH_VERSION, POSTGRES_DRIVER
from tests.servers.postgres_server import PASSWORD, PostgresServer
from tests.servers.store_servers import REQUIREMENTS, OpenSearchServer, libraries, pgvector_programs
from tests.spark.conftest import ScriptRunner

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "stores.md").read_text()
SECTIONS = {title: text for title, _, text in (part.partition("\n") for part in PAGE.split("\n## "))}
FIRST = "".join(code for _, code in [*blocks(next(iter(SECTIONS.values()))), *blocks(SECTIONS["Search"])])
# Two actions, each of which stands for a job: the second is what Spark's repeated task does.
TWICE = "for _ in range(2):"


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of stores, for the script and Spark's workers."""
    monkeypatch.setenv("PYTHONPATH", str(libraries()))


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer(pgvector_programs())
    yield server
    server.close()


@pytest.fixture(scope="module")
def opensearch() -> Iterator[OpenSearchServer]:
    libraries()
    server = OpenSearchServer()
    yield server
    server.close()


def code(section: str) -> str:
    """The blocks of a section, behind those that all of them need."""
    own = "".join(text for _, text in blocks(SECTIONS[section]))
    assert TWICE in own
    return FIRST + own


@pytest.mark.contract(
    "Vectors written to pgvector by the page's tasks are there once, however often a task runs.",
    needs="a PostgreSQL with pgvector",
)
def test_vectors_go_to_pgvector_once_and_are_found_there(
    postgres: PostgresServer, run_script: ScriptRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VECTORS_URL", postgres.url)
    monkeypatch.setenv("VECTORS_JDBC", f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres")
    monkeypatch.setenv("VECTORS_USER", "tester")
    monkeypatch.setenv("VECTORS_PASSWORD", PASSWORD)
    (driver,) = POSTGRES_DRIVER.folder_or_skip().glob("postgresql-*.jar")
    assert f"org.postgresql:{driver.stem.replace('-', ':')}\n" in SECTIONS["pgvector"]
    assert run_script(code("pgvector"), settings={"spark.jars": str(driver)}, alone=True) == []
    assert postgres.run("select id from docs order by id") == [(1,), (2,), (3,)]
    ((version,),) = postgres.run("select extversion from pg_extension where extname = 'vector'")
    ((server,),) = postgres.run("show server_version")
    assert f"| {version} in PostgreSQL {server.split()[0]}," in PAGE


@pytest.mark.contract(
    "A task that fails, and one that runs twice, double no row of pgvector, and block no other task.",
    needs="a PostgreSQL with pgvector",
)
def test_tasks_that_fail_half_way_leave_nothing_in_pgvector_and_equal_tasks_do_not_deadlock(
    postgres: PostgresServer, run_script: ScriptRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VECTORS_URL", postgres.url)
    postgres.run("drop table if exists docs")
    written, _, _ = blocks(SECTIONS["pgvector"])[0][1].partition(TWICE)
    more = """
from pyspark import TaskContext
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
many = "transform(sequence(1, 8), each -> cast(each + id as float)) as vector"
# Every row comes from two tasks, the second of which sees them in the other order.
rows = spark.range(0, 2000, numPartitions=2).selectExpr("if(id < 1000, id, 1999 - id) as id")
both = rows.selectExpr("id", "cast(id as string) as text", many)

def failing_at_first(batches):
    def some():
        for number, batch in enumerate(batches):
            if number == 5 and TaskContext.get().attemptNumber() == 0:
                raise OSError("the network is down")
            yield batch
    yield from to_postgres(some())

found = both.mapInArrow(failing_at_first, "written long").collect()
print(sorted(row.written for row in found))
"""
    said = run_script(FIRST + written + more, master="local[2,4]", alone=True)
    assert said == ["[1000, 1000]"]
    assert postgres.run("select count(*), count(distinct id) from docs") == [(1000, 1000)]


@pytest.mark.contract(
    "Vectors written to OpenSearch by the page's tasks are there once, however often a task runs.",
    needs="an OpenSearch with k-NN",
)
def test_vectors_go_to_opensearch_once_and_are_found_there(
    opensearch: OpenSearchServer, run_script: ScriptRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSEARCH_URL", opensearch.url)
    assert run_script(code("OpenSearch"), alone=True) == []
    assert f"| {OPENSEARCH_VERSION} with its k-NN plugin" in PAGE


def test_the_clients_of_qdrant_take_what_the_page_sends_in_their_local_mode(
    run_script: ScriptRunner, tmp_path: Path
) -> None:
    server = '{"url": os.environ["QDRANT_URL"]}'
    text = code("Qdrant")
    assert text.count(server) == 1
    # No server is to be had here: the client keeps the points itself, in a folder that one process may open.
    local = text.replace(server, repr({"path": str(tmp_path / "qdrant")}))
    assert run_script(local, master="local[1]", alone=True) == []


def test_the_page_names_the_versions_that_are_tried() -> None:
    wanted = dict(re.findall(r"^(\S+)==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE))
    tried = SECTIONS["What was tried"]
    assert f"pgvector's Python {wanted['pgvector']}" in tried
    assert f"opensearch-py {wanted['opensearch-py']}" in tried
    assert f"qdrant-client {wanted['qdrant-client']}" in tried
