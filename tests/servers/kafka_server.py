"""A real Kafka for the tests: one process on loopback, in KRaft mode, with a folder of its own. Any thread.

Its jars are those of Maven Central, fetched once with the Ivy that PySpark ships, which reads the poms and
compares the checksums; what has come is compared with a pinned digest each time. They stay below `build/`.
`python -m tests.servers.kafka_server` fetches them; `make kafka-server` runs that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench.demo.ports import Ports

ROOT = Path(__file__).resolve().parents[2]
VERSION = "4.1.1"
FOLDER = ROOT / "build" / "kafka" / VERSION
DIGEST = "393b6183ea30541e740d0c3b0ac8a681298e703cb63da7602a9fcf4df3ad0aa6"
"""SHA-256 over the names and digests of all jars, in the order of their names."""
USER = "reader"
PASSWORD = "correct-horse-staple"
LONG = 60.0


class KafkaMissingError(Exception):
    """There is no broker here, and this is why."""


def java() -> str:
    """The command of Java, found as the Makefile finds it. Raises KafkaMissingError."""
    script = [sys.executable, str(ROOT / ".ci" / "java_home.py")]
    found = subprocess.run(script, capture_output=True, text=True, timeout=LONG)
    if found.returncode:
        raise KafkaMissingError(found.stderr.strip() or "no Java here")
    return str(Path(found.stdout.strip(), "bin", "java"))


def digest(folder: Path) -> str:
    """What DIGEST is for the jars of a folder."""
    lines = [
        f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n" for jar in sorted(folder.glob("*.jar"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def fetch(folder: Path) -> None:
    """Fetch the broker's jars into `folder`. Raises KafkaMissingError."""
    pyspark = find_spec("pyspark")
    places = Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else folder
    ivy = sorted(places.glob("ivy-*.jar"))
    if not ivy:
        raise KafkaMissingError("Kafka is fetched with PySpark's Ivy, and PySpark is not installed")
    command = [java(), "-jar", str(ivy[-1]), "-cache", str(folder / "cache"), "-confs", "default"]
    command += ["-dependency", "org.apache.kafka", "kafka_2.13", VERSION]
    command += ["-retrieve", str(folder / "jars" / "[artifact]-[revision].[ext]")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise KafkaMissingError(f"fetching Kafka took more than {error.timeout} s") from None
    if done.returncode or not (folder / "jars").is_dir():
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise KafkaMissingError(f"Kafka could not be fetched from Maven Central\n{last}")


def jars() -> Path:
    """The folder of the jars, fetched if it is not there. Raises KafkaMissingError."""
    if not FOLDER.is_dir():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="fetch-") as scratch:
            fetch(Path(scratch))
            found = digest(Path(scratch, "jars"))
            if found != DIGEST:
                raise KafkaMissingError(f"these are not the jars of Kafka {VERSION}: their digest is {found}")
            # Another process may have been quicker.
            with contextlib.suppress(OSError):
                Path(scratch, "jars").replace(FOLDER)
    found = digest(FOLDER)
    if found != DIGEST:
        raise KafkaMissingError(f"{FOLDER} does not hold Kafka {VERSION}: its digest is {found}; remove it")
    return FOLDER


@functools.cache
def command() -> list[str]:
    """What runs a class of Kafka here. Skips the test, with the reason, where there is none."""
    try:
        options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [java(), *options, "-cp", f"{jars()}/*"]
    except KafkaMissingError as error:
        pytest.skip(f"no Kafka here: {error}")


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
        until = time.monotonic() + LONG
        host, port = self.bootstrap.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                return
            except OSError:
                alive = self.process.poll() is None and time.monotonic() < until
                assert alive, (self._folder / "log").read_text()
                time.sleep(0.02)

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
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import NewTopic

        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = self.admin
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(LONG)
        until = time.monotonic() + LONG
        while True:
            with contextlib.suppress(Exception):
                found = admin.describe_topics(TopicCollection([topic]))[topic].result(LONG)
                if len(found.partitions) == partitions and all(each.leader for each in found.partitions):
                    return
            assert time.monotonic() < until, f"topic {topic} does not come"
            time.sleep(0.01)

    def produce(self, topic: str, *values: object, partition: int = 0, at: float | None = None) -> None:
        """Append the texts of `values`, all with the time `at` in seconds, and wait until they are there."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "linger.ms": 0})
        time_of = {} if at is None else {"timestamp": round(at * 1000)}
        for value in values:
            text = None if value is None else str(value).encode()
            producer.produce(topic, text, partition=partition, **time_of)
        assert producer.flush(LONG) == 0


def main() -> None:
    """Fetch the jars, and say where they are."""
    try:
        print(jars())
    except KafkaMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
