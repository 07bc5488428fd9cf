"""The places in which Spark runs: the driver's own process, or a cluster of three Java processes.

The cluster is Spark's standalone one, started from the pip package: a master and two workers of one core
each, on two addresses of the loopback interface, because a second attempt of a slow task goes to another
host only. Nothing listens beyond loopback. For one thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

import psutil  # type: ignore[import-untyped]

from fuzz.chaos import processes

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"
MASTER, WORKERS = "127.0.0.1", ("127.0.0.1", "127.0.0.2")
SYNCED = "synced.log"
"""The file of a harness's folder in which its processes write down what they sync."""
START = 90.0
"""Seconds within which the cluster has to be there."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java processes that are killed soon: ready sooner, at the price of a speed that nobody needs here."""
QUIET = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Two actions at a time share the cores, each in a pool of its own.
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Place(Protocol):
    """A master for drivers, and the processes that belong to it.

    package: a folder with another `pillarbox` for all of them. has_second_attempts: whether Spark starts a
    second attempt of a task while the first one works.
    """

    name: str
    master: str
    settings: dict[str, str]
    package: Path | None
    has_second_attempts: bool

    def roots(self) -> list[int]:
        """Processes besides the driver below which Spark works."""


def environment(folder: Path, package: Path | None = None) -> dict[str, str]:
    """The environment of the processes of a harness.

    folder: has the clock, the log of syncs and the stacks. package: a folder with another `pillarbox`.
    """
    clock = folder / "clock"
    if not clock.exists():
        clock.write_bytes(bytes(8))
    before = [] if package is None else [str(package)]
    path = os.pathsep.join([str(SITE), *before, str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PILLARBOX_CHAOS_CLOCK": str(clock),
        "PILLARBOX_CHAOS_SYNCED": str(folder / SYNCED),
        "PILLARBOX_CHAOS_STACKS": str(folder / "stacks.txt"),
    }


class Local:
    """Spark within the driver: two tasks at a time, four attempts each."""

    name = "local"
    master = "local[2,4]"
    has_second_attempts = False

    def __init__(self, folder: Path, package: Path | None = None) -> None:
        self.package = package
        self.settings = {**QUIET, "spark.local.dir": str(folder / "local")}

    def roots(self) -> list[int]:
        """None: all processes are the driver's."""
        return []

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Cluster:
    """A standalone cluster, from `__enter__` to `__exit__`. Raises RuntimeError if it does not start.

    variables: the environment of its processes; None for that of a harness.
    """

    name = "cluster"
    has_second_attempts = True

    def __init__(
        self, folder: Path, package: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.package = package
        self._variables = environment(folder, package) if variables is None else variables
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.master = ""
        self.settings = {
            **QUIET,
            "spark.local.dir": str(folder / "local"),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            # An executor that was killed is replaced at once, and a slow task gets a second attempt soon.
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.quantile": "0.25",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.minTaskRuntime": "1s",
        }

    def roots(self) -> list[int]:
        """The two workers' Java processes: the executors are below them."""
        return [process.pid for process in self._started[1:]]

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        options = ["--host", MASTER, "--port", "0", "--webui-port", "0"]
        self._launch("master", MASTER, "org.apache.spark.deploy.master.Master", options)
        self.master = self._said("master", r"Starting Spark master at (spark://[\d.:]+)")
        for number, host in enumerate(WORKERS):
            work = str(self._folder / f"work-{number}")
            options = ["--host", host, "--cores", "1", "--memory", "1g", "--work-dir", work]
            options += ["--webui-port", "0", self.master]
            self._launch(f"worker-{number}", host, "org.apache.spark.deploy.worker.Worker", options)
        for number in range(len(WORKERS)):
            self._said(f"worker-{number}", r"Successfully registered with master (\S+)")

    def _launch(self, name: str, host: str, program: str, options: list[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        daemon_options = (
            f"{SHORT_LIVED} -Dspark.deploy.maxExecutorRetries=-1 -Dspark.master.rest.enabled=false"
        )
        log: IO[bytes]
        with open(self._folder / f"{name}.log", "wb") as log:
            self._started.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), program, *options],
                    env={
                        **self._variables,
                        "SPARK_HOME": str(home),
                        "SPARK_LOCAL_IP": host,
                        "SPARK_DAEMON_MEMORY": "256m",
                        "SPARK_DAEMON_JAVA_OPTS": daemon_options,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                )
            )

    def _said(self, name: str, pattern: str) -> str:
        path = self._folder / f"{name}.log"
        end = time.monotonic() + START
        while time.monotonic() < end:
            said = path.read_text(errors="replace")
            if match := re.search(pattern, said):
                return match[1]
            if any(process.poll() is not None for process in self._started):
                break
            time.sleep(0.05)
        raise RuntimeError(f"the cluster's {name} did not start:\n{path.read_text(errors='replace')[-3000:]}")

    def _stop(self) -> None:
        below: list[psutil.Process] = processes.family(process.pid for process in self._started)
        processes.kill(below)
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        processes.wait_ended(below, 20)
        self._started.clear()
