"""docs/tables.md runs: a table by JDBC, and its changes by Debezium and Kafka, with real servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.pages import blocks
from tests.servers import fixtures
from tests.servers.debezium_server import DebeziumServer
from tests.servers.kafka_server import KafkaServer
from tests.servers.maven import DEBEZIUM
from tests.servers.postgres_server import PASSWORD, PostgresServer
from tests.spark.conftest import ScriptRunner
from tests.versions import needs_source_streams

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

postgres, kafka = fixtures.postgres, fixtures.kafka
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()
TABLE, CHANGES = PAGE.split("\n## ")[1:]


def sql(section: str) -> list[list[str]]:
    """The statements of each block of SQL."""
    found = re.findall(r"^```sql\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [[each for each in block.split(";") if each.strip()] for block in found]


def python(section: str) -> str:
    """The blocks of Python, as one script."""
    return "".join(code for _, code in blocks(section))


@pytest.fixture
def shop(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """The database that the page's environment variables name."""
    monkeypatch.setenv("SHOP_URL", postgres.url)
    monkeypatch.setenv("SHOP_JDBC", f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres")
    monkeypatch.setenv("SHOP_DRIVER", "org.postgresql.Driver")
    monkeypatch.setenv("SHOP_USER", "tester")
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    return postgres


def test_a_table_is_read_by_jdbc_in_front_of_async_map_and_in_one_snapshot(
    shop: PostgresServer, run_script: ScriptRunner
) -> None:
    (created,) = sql(TABLE)
    shop.run(*created)
    (driver,) = DEBEZIUM.folder_or_skip().glob("postgresql-*.jar")
    assert f"org.postgresql:{driver.stem.replace('-', ':')}`" in TABLE
    unframed = """
try:
    frozen.load().count()
except Exception as error:
    print("invalid snapshot identifier" in str(error))
"""
    settings = {"spark.jars": str(driver)}
    script = python(TABLE) + unframed
    assert run_script(script, settings=settings, timeout=500, alone=True) == ["True"]


@needs_source_streams
def test_changes_of_a_table_come_by_debezium_and_kafka_in_front_of_async_stream(
    shop: PostgresServer,
    kafka: KafkaServer,
    run_script: ScriptRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created, worked = sql(CHANGES)
    shop.run(*created)
    (properties,) = re.findall(r"^```properties\n(.*?)^```$", CHANGES, re.MULTILINE | re.DOTALL)
    connector = dict(line.split("=", 1) for line in properties.splitlines())
    connector |= {"database.hostname": "127.0.0.1", "database.port": str(shop.port)}
    connector |= {"database.user": "tester", "database.dbname": "postgres"}
    debezium = DebeziumServer(tmp_path, kafka, connector)
    try:
        shop.run(*worked)
        records = kafka.consume("shop.public.stock", 6)
    finally:
        debezium.close()
    keys = [key for key, _ in records]
    assert keys == [b'{"id":1}', b'{"id":2}', b'{"id":3}', b'{"id":1}', b'{"id":2}', b'{"id":2}']
    assert [value is None for _, value in records] == [False] * 5 + [True]
    monkeypatch.setenv("SHOP_KAFKA", kafka.bootstrap)
    assert run_script(python(CHANGES), timeout=500, alone=True) == []
    assert PASSWORD not in properties
