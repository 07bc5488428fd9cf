"""A real Kafka for the tests: one process on loopback, in KRaft mode, with a folder of its own. Any thread.

Its jars are those of Maven Central; `make kafka-server` fetches them.
"""

from __future__ import annotations

import functools
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from bench.demo.ports import Ports
from tests.servers.maven import KAFKA, java
from tests.waiting import wait_until

USER = "reader"
PASSWORD = "correct-horse-staple"
LONG = 500.0


@functools.cache
def command() -> list[str]:
    """The command that runs a class of Kafka. Skips the test, with the reason, where there is none."""
    options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return [java(), *options, "-cp", f"{KAFKA.folder_or_skip()}/*"]


class KafkaServer:
    """A running broker, until `close`. Can be killed and started again: what it had on disk is there again.

    `bootstrap` is where anybody may come, `guarded` where USER must give PASSWORD.
    """

    def __init__(self, folder: Path, **settings: object) -> None:
        self._ports = Ports(3)
        plain, guarded, controller = self._ports.numbers
        self.bootstrap = f"127.0.0.1:{plain}"
        self.guarded = f"127.0.0.1:{guarded}"
        self.client = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        """The properties of a client."""
        self.security = {
            "bootstrap.servers": self.guarded,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        names = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAIN://{self.bootstrap},SASL://{self.guarded},CONTROL://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAIN://{self.bootstrap},SASL://{self.guarded}",
            "listener.security.protocol.map": "CONTROL:PLAINTEXT,PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "controller.listener.names": "CONTROL",
            "inter.broker.listener.name": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
            "log.dirs": folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.backoff.ms": 100,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.initial.task.delay.ms": 100,
            # Tests write records of any time.
            "log.retention.ms": -1,
            "log.retention.check.interval.ms": 100,
            **settings,
        }
        self._folder = folder
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in names.items()))
        self._settings.chmod(0o600)
        identity = ["format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", str(self._settings)]
        formatted = subprocess.run(
            [*command(), "kafka.tools.StorageTool", *identity], capture_output=True, text=True, timeout=LONG
        )
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        self.start()

    def start(self) -> None:
        """Run it, and wait until it answers."""
        with open(self._folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [*command(), "kafka.Kafka", str(self._settings)], stdout=log, stderr=log, cwd=self._folder
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        host, port = self.bootstrap.split(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            assert self.process.poll() is None, (self._folder / "log").read_text()
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal, such as one that holds it up or has it go on."""
        self.process.send_signal(number)

    def close(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait(LONG)

    @functools.cached_property
    def admin(self) -> Any:
        """A client for administrators. What it was asked for comes only while it is there."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.client)

    def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic, and wait until its partitions have a leader. Settings: with `_` for a dot."""
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import NewTopic

        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = self.admin
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(LONG)

        def is_led() -> bool:
            try:
                found = admin.describe_topics(TopicCollection([topic]))[topic].result(LONG)
            except KafkaException:
                return False
            return len(found.partitions) == partitions and all(each.leader for each in found.partitions)

        wait_until(is_led)

    def produce(self, topic: str, *values: object, partition: int = 0, at: float | None = None) -> None:
        """Append the texts of `values`, all with the time `at` in seconds, and wait until they are there."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "linger.ms": 0})
        time_of = {} if at is None else {"timestamp": round(at * 1000)}
        for value in values:
            text = None if value is None else str(value).encode()
            producer.produce(topic, text, partition=partition, **time_of)
        assert producer.flush(LONG) == 0

    def consume(self, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
        """The keys and values of the first `count` records of partition 0, as soon as they are there."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({**self.client, "group.id": "tests", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        try:
            records: list[Any] = []
            while len(records) < count:
                records += [each for each in consumer.consume(count - len(records), 1.0) if not each.error()]
            return [(each.key(), each.value()) for each in records]
        finally:
            consumer.close()
