"""For tests that need a Spark of their own: another master, Connect, or a process that may be harmed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
HEAD = """
import os, sys
from pyspark.sql import SparkSession
builder = (SparkSession.builder.config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", "warehouse").config(map={settings!r}))
{session}
"""

CLASSIC = """
spark = builder.master({master!r}).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
"""

REMOTE = """
spark = builder.remote({remote!r}).getOrCreate()
"""

MAX_HOSTS = 2
"""Most scripts want the same session; it outlives one that wants another."""

ScriptRunner = Callable[..., list[str]]


def _environment() -> dict[str, str]:
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **python}


def _session(master: str, remote: str | None, settings: Mapping[str, str] | None) -> str:
    """The source that makes `spark`."""
    settings = dict(settings or {})
    if "COVERAGE_PROCESS_START" in os.environ:
        settings["spark.python.daemon.module"] = "tests.measured_daemon"
    session = CLASSIC.format(master=master) if remote is None else REMOTE.format(remote=remote)
    return HEAD.format(session=session, settings=settings)


class _Host:
    """A process that runs `script_host.py`."""

    def __init__(self, session: str, folder: Path) -> None:
        self.session = session
        source = folder / "session.py"
        source.write_text(session)
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("script_host.py")), str(source)],
                cwd=folder,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, script: Path, arguments: tuple[str, ...], timeout: float) -> list[str]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([str(script), str(script.parent), arguments]), file=process.stdin, flush=True)
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        if not ready:
            process.kill()
            raise TimeoutError(f"no end after {timeout:g} s\n{self._errors.read_text()[-5000:]}")
        answer = process.stdout.readline()
        assert answer, self._errors.read_text()[-5000:]
        said = json.loads(answer)
        assert said["failure"] is None, said["failure"][-5000:]
        lines: list[str] = said["lines"]
        return lines

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def _hosts() -> Iterator[list[_Host]]:
    """The processes for scripts, the one used last at the end: few, for each has a Java process."""
    hosts: list[_Host] = []
    yield hosts
    for host in hosts:
        host.close()


@pytest.fixture
def run_script(tmp_path_factory: pytest.TempPathFactory, _hosts: list[_Host]) -> ScriptRunner:
    """Runs a script that has a session `spark`, outside of this process; gives the lines that it printed.

    Scripts that want the same session run in one process, one after the other. A script that harms that
    process, or wants a new one, says `alone=True`.
    """

    def run(
        source: str,
        *arguments: str,
        master: str = "local[2]",
        remote: str | None = None,
        settings: Mapping[str, str] | None = None,
        timeout: float = 540,
        alone: bool = False,
    ) -> list[str]:
        session, source = _session(master, remote, settings), textwrap.dedent(source)
        script = tmp_path_factory.mktemp("script") / "script.py"
        # A server of Spark Connect ends with its script.
        if not alone and remote is None:
            script.write_text(source)
            same = next((host for host in _hosts if host.session == session and host.is_alive), None)
            if same is not None:
                _hosts.remove(same)
            elif len(_hosts) == MAX_HOSTS:
                _hosts.pop(0).close()
            _hosts.append(same or _Host(session, tmp_path_factory.mktemp("host")))
            return _hosts[-1].run(script, arguments, timeout)
        script.write_text(session + source + "\nspark.stop()\n")
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=script.parent,
            # Other processes have servers at the usual port: with this, Spark takes any that is free.
            env=_environment() | ({} if remote is None else {"SPARK_TESTING": "1"}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout.splitlines()

    return run
