"""A real Debezium for the tests: Kafka Connect with its connector, one process. Any thread."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.demo.ports import Ports
from tests.servers.kafka_server import KafkaServer
from tests.servers.maven import DEBEZIUM, java

STOP_TIMEOUT_S = 120.0


class DebeziumServer:
    """Runs a connector, until `close`: sends the rows that its tables have, then their changes, to topics.

    connector: its properties, with its name; `${env:SHOP_PASSWORD}` in them is read from the environment.
    """

    def __init__(self, folder: Path, kafka: KafkaServer, connector: Mapping[str, str]) -> None:
        self._ports = Ports(1)
        rest = f"http://127.0.0.1:{self._ports.numbers[0]}"
        self._log = folder / "log"
        worker = {
            "bootstrap.servers": kafka.bootstrap,
            "listeners": rest,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(folder / "offsets"),
            "plugin.discovery": "service_load",
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        }
        files = [folder / "worker.properties", folder / "connector.properties"]
        for file, settings in zip(files, (worker, connector), strict=True):
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            file.chmod(0o600)
        options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        program = [java(), *options, "-cp", f"{DEBEZIUM.folder_or_skip()}/*"]
        program += ["org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(program, stdout=log, stderr=log, cwd=folder)
        try:
            self._wait(f"{rest}/connectors/{connector['name']}/status")
        except BaseException:
            self.close()
            raise

    def _wait(self, status: str) -> None:
        """Wait until the connector runs."""
        found = ""
        while '"tasks":[{"id":0,"state":"RUNNING"' not in found:
            assert self._process.poll() is None and "FAILED" not in found, found + self._log.read_text()
            try:
                with urlopen(status, timeout=5) as answer:
                    found = json.dumps(json.load(answer), separators=(",", ":"))
            except (URLError, OSError) as error:
                found = str(error)
            time.sleep(0.1)

    def close(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
