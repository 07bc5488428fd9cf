"""`KafkaSink`: transactions that commit with the checkpoints of a job, over a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")

import pillarbox
from pillarbox.job import KafkaSink
from tests.job.topics import committed_values
from tests.servers.kafka_server import LONG, KafkaServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
NEVER_S = 10_000.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    kafka = KafkaServer(tmp_path_factory.mktemp("kafka"))
    yield kafka
    kafka.close()


@pytest.fixture
def topic(server: KafkaServer, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    server.create(name)
    return name


class DiesBefore(KafkaSink):
    """Ends the job in front of the commit of a transaction, as a kill does there."""

    dies = False

    def commit(self, prepared: Sequence[Any]) -> None:
        if self.dies:
            raise ConnectionError("died")
        super().commit(prepared)


class DiesAfter(DiesBefore):
    """Ends the job behind it."""

    def commit(self, prepared: Sequence[Any]) -> None:
        dies, self.dies = self.dies, False
        super().commit(prepared)
        if dies:
            raise ConnectionError("died")


@pytest.mark.contract(
    "A job that dies before or behind the commit of a transaction of Kafka writes each row there once.",
    needs="Kafka, which commits the transactions",
    convicts=["transaction_believed", "number_not_in_transaction"],
)
@pytest.mark.parametrize(("kind", "restored"), [(DiesBefore, 1), (DiesAfter, 2)])
def test_a_job_that_dies_beside_the_commit_writes_each_row_once(
    server: KafkaServer,
    topic: str,
    tmp_path: Path,
    kind: Callable[..., DiesBefore],
    restored: int,
) -> None:
    held, called = {3, 7}, set()

    async def ask(number: int) -> dict[str, str]:
        import asyncio

        called.add(number)
        while number in held:
            await asyncio.sleep(0.001)
        return {"key": "k", "value": str(number)}

    def sink() -> DiesBefore:
        return kind(server.client, topic, transactional_id=topic)

    options: dict[str, Any] = {"checkpoints": tmp_path / "checkpoints", "interval": NEVER_S, "capacity": 1}
    first = sink()
    job = pillarbox.run(range(10), ask, first, **options)
    wait_until(lambda: 3 in called)
    job.checkpoint()
    assert committed_values(server, topic) == [0, 1, 2]
    held.discard(3)
    wait_until(lambda: 7 in called)
    first.dies = True
    with pytest.raises(ConnectionError):
        job.checkpoint()
    with pytest.raises(ConnectionError):
        job.wait(LONG)
    held.clear()
    job = pillarbox.run(range(10), ask, sink(), **options)
    assert job.wait(LONG)
    assert job.statistics().restored == restored
    assert committed_values(server, topic) == [*range(10)]


def test_a_row_without_a_value_becomes_json(server: KafkaServer, topic: str, tmp_path: Path) -> None:
    async def ask(number: int) -> dict[str, int]:
        return {"number": number}

    sink = KafkaSink(server.client, topic, transactional_id=topic)
    assert pillarbox.run([1], ask, sink, checkpoints=tmp_path / "checkpoints").wait(LONG)
    assert committed_values(server, topic, json.loads) == [{"number": 1}]


def test_a_field_that_is_no_part_of_a_message_ends_the_job(
    server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    async def ask(number: int) -> dict[str, str]:
        return {"value": "1", "colour": "red"}

    sink = KafkaSink(server.client, topic, transactional_id=topic)
    with pytest.raises(ValueError, match="'colour' is not a part of a message"):
        pillarbox.run([1], ask, sink, checkpoints=tmp_path / "checkpoints").wait(LONG)
