"""For tests that need a Spark of their own: another master, Connect, or a process that may be harmed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.fixture
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Runs a script that has a session `spark`, in a process of its own; gives the lines that it printed."""

    def run(
        source: str,
        *arguments: str,
        master: str = "local[2]",
        remote: str | None = None,
        settings: dict[str, str] | None = None,
        timeout: float = 150,
    ) -> list[str]:
        folder: Path = tmp_path_factory.mktemp("script")
        session = CLASSIC.format(master=master) if remote is None else REMOTE.format(remote=remote)
        script = folder / "script.py"
        script.write_text(
            HEAD.format(session=session, settings=settings or {})
            + textwrap.dedent(source)
            + "\nspark.stop()\n"
        )
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout.splitlines()

    return run
