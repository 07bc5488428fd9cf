"""A real OpenTelemetry collector for the tests, on loopback; `make otel-collector` builds it. Any thread."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from bench.demo.ports import Ports

ROOT = Path(__file__).resolve().parents[2]
LONG = 500.0
CONFIG = """\
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  debug:
    verbosity: detailed
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [debug]
    metrics:
      receivers: [otlp]
      exporters: [debug]
"""


def program() -> str | None:
    """The path of the program, if there is one."""
    return shutil.which("otelcol", path=f"{ROOT / 'build' / 'otelcol'}{os.pathsep}{os.environ['PATH']}")


class CollectorServer:
    """Runs until `close`, and writes what it accepts into its log. Skips the test without a program."""

    def __init__(self, folder: Path) -> None:
        found = program()
        if found is None:
            pytest.skip("no OpenTelemetry collector here: make otel-collector")
        self._ports = Ports(1)
        (port,) = self._ports.numbers
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "collector.log"
        config = folder / "collector.yaml"
        config.write_text(CONFIG.format(port=port))
        with open(self._log, "w") as log:
            self._process = subprocess.Popen([found, "--config", str(config)], stdout=log, stderr=log)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, self._log.read_text()

    def close(self) -> str:
        """End it, and return what it has written."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(LONG)
            self._ports.give_up()
        return self._log.read_text()
