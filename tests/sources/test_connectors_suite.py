"""The check kit for connectors, run on the connectors that read files and logs of real servers."""

from __future__ import annotations

import unittest
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox.testing import SourceSuite
from pillarbox.testing.source_suite import RULES
from tests.servers import fixtures

pa = pytest.importorskip("pyarrow")

pytestmark = [pytest.mark.timeout(600)]

kafka, shared_redis, redis = fixtures.kafka, fixtures.shared_redis, fixtures.redis

ROWS = 60
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def files(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """Lines of JSON in three files, cut into parts."""
    from pillarbox.sources.connectors.files import FileSource

    def write(name: str, file: str, numbers: range, last: str = "") -> list[tuple[Any, ...]]:
        (folder / name).mkdir(exist_ok=True)
        lines = "".join(f'{{"id": {number}, "text": "line {number}"}}\n' for number in numbers)
        (folder / name / f"{file}.json").write_text(lines + last)
        return [(number, f"line {number}") for number in numbers]

    def source(name: str, **options: Any) -> Callable[[], Any]:
        return lambda: FileSource(folder / name, "json", SCHEMA, batch_bytes=200, split_bytes=400, **options)

    rows = [row for part in range(3) for row in write("made", f"{part}", range(20 * part, 20 * part + 20))]
    for name in ("lost", "followed", "bad"):
        write(name, "0", range(20))
    write("bad", "1", range(20, 30), '{"id": "n/a"}\n')

    def add() -> list[tuple[Any, ...]]:
        number = 100 * len([*(folder / "followed").iterdir()])
        return write("followed", f"{number}", range(number, number + 5))

    return SourceSuite(
        source("made"),
        rows=rows,
        follow=source("followed", discovery_interval=0.05),
        add=add,
        lost=source("lost"),
        lose=(folder / "lost" / "0.json").unlink,
        bad=(source("bad"), "n/a"),
    )


def topics(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """A topic of Kafka with two partitions."""
    pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
    from pillarbox.sources.connectors.kafka import KafkaSource

    server = request.getfixturevalue("kafka")
    made, followed = (f"suite-{uuid.uuid4().hex}" for _ in range(2))
    schema = pa.schema([("partition", pa.int32()), ("value", pa.binary())])

    def produce(topic: str, first: int, count: int) -> list[tuple[Any, ...]]:
        for partition in range(2):
            server.produce(topic, *range(first, first + count), partition=partition)
        return [(partition, str(n).encode()) for partition in range(2) for n in range(first, first + count)]

    for topic in (made, followed):
        server.create(topic, 2)
    rows = produce(made, 0, ROWS // 2)
    ends = [0]

    def add() -> list[tuple[Any, ...]]:
        ends[0] += 5
        return produce(followed, ends[0], 5)

    secret = "a-secret-of-the-suite"
    client = {**server.client, "ssl.key.password": secret}
    return SourceSuite(
        lambda: KafkaSource(client, made, schema=schema, bounded=True),
        rows=rows,
        follow=lambda: KafkaSource(client, followed, schema=schema, discovery_interval=0.05),
        add=add,
        secrets=[secret],
    )


def streams(request: pytest.FixtureRequest, folder: Path) -> SourceSuite:
    """Two streams of Redis."""
    pytest.importorskip("redis", reason="the package redis is not installed")
    from pillarbox.sources.connectors.redis_streams import RedisStreamSource

    server = request.getfixturevalue("redis")
    schema = pa.schema([("n", pa.int32()), ("text", pa.string())])

    def append(stream: str, first: int, count: int) -> list[tuple[Any, ...]]:
        for number in range(first, first + count):
            server.command("XADD", stream, "*", "n", str(number), "text", f"text {number}")
        return [(number, f"text {number}") for number in range(first, first + count)]

    rows = append("made-a", 0, ROWS // 2) + append("made-b", 1000, ROWS // 2)
    append("followed", 0, 10)
    ends = [10]

    def add() -> list[tuple[Any, ...]]:
        ends[0] += 5
        return append("followed", ends[0], 5)

    return SourceSuite(
        lambda: RedisStreamSource(server.url, ["made-a", "made-b"], schema=schema, bounded=True),
        rows=rows,
        follow=lambda: RedisStreamSource(server.url, "followed", schema=schema, discovery_interval=0.05),
        add=add,
    )


@pytest.mark.contract("Each connector of Pillarbox passes the check kit for connectors.")
@pytest.mark.parametrize("check", RULES)
@pytest.mark.parametrize(
    "suite",
    [
        files,
        pytest.param(topics, marks=[pytest.mark.server, pytest.mark.slow]),
        pytest.param(streams, marks=[pytest.mark.server, pytest.mark.slow]),
    ],
)
def test_a_connector_passes_the_check_kit(
    suite: Callable[[pytest.FixtureRequest, Path], SourceSuite],
    check: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    try:
        suite(request, tmp_path).check(check)
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))
