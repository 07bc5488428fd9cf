"""The servers as fixtures, each for one module of tests, which gives it a name: `server = fixtures.kafka`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.kafka_server import KafkaServer
from tests.servers.postgres_server import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.servers.s3_server import S3Server


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="the package psycopg is not installed")
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason="the package redis is not installed")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """`shared_redis`, which the module names too, with nothing in it."""
    shared_redis.command("FLUSHALL")
    return shared_redis


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.close()
