"""A standalone cluster whose workers' Python has no Pillarbox, and drivers that use it."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.chaos import processes
from fuzz.chaos.places import Cluster
from pillarbox.pack import pack

ROOT = Path(__file__).resolve().parents[2]
DRIVER_TIMEOUT_S = 300
USUAL = ("pyarrow", "numpy", "pandas", "dateutil", "six", "pytz", "tzdata", "typing_extensions")
"""Modules that clusters have beside Spark, and what these need."""
HEAD = """
import asyncio, os, sys, time
from pyspark.sql import SparkSession

def appended(path, word):
    # One write, so that those of several processes do not mix.
    with open(path, "a") as file:
        file.write(f"{word}\\n")
"""
SESSION = """
spark = SparkSession.builder.config(map={settings!r}).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
"""


def bare(folder: Path, modules: tuple[str, ...] = USUAL) -> Path:
    """Make an environment of this Python that has these modules of ours only. Returns its program."""
    made = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(made, check=True, capture_output=True, timeout=120)
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    for name in modules:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue
        origin = Path(found.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (site / source.name).symlink_to(source)
        # Libraries that a wheel brought lie beside its package.
        libraries = source.with_name(f"{name}.libs")
        if libraries.exists():
            (site / libraries.name).symlink_to(libraries)
    return folder / "bin" / "python"


def surroundings(python: Path) -> dict[str, str]:
    """The environment of processes whose workers run `python`, and which see nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    return {**kept, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}


class Workers:
    """A cluster, and the Python of its workers. For one thread."""

    def __init__(self, place: Cluster, python: Path, scratch: Path) -> None:
        self.place = place
        self.python = python
        self._scratch = scratch
        self._drivers = 0

    @functools.cached_property
    def archive(self) -> Path:
        """Pillarbox, packed."""
        return pack(self._scratch).path

    @functools.cached_property
    def packed(self) -> dict[str, str]:
        """The settings that bring it to executors."""
        return pack(self._scratch).settings

    @functools.cached_property
    def packed_for_objects(self) -> dict[str, str]:
        """The same settings for a pack with obstore, which a ledger in a bucket needs."""
        return pack(self._scratch / "objects.zip", include=["obstore"]).settings

    def settings(self, **more: str) -> dict[str, str]:
        """The settings of a driver, on loopback and quiet."""
        quiet = {**self.place.settings, "spark.master": self.place.master}
        # Second attempts of slow tasks make calls twice.
        quiet["spark.speculation"] = "false"
        return quiet | more

    def start(
        self,
        source: str,
        *arguments: object,
        settings: dict[str, str] | None = None,
        python: Path | None = None,
        session: bool = True,
    ) -> subprocess.Popen[str]:
        """Start a driver that runs `source` with a session `spark`."""
        self._drivers += 1
        folder = self._scratch / f"driver-{self._drivers}"
        folder.mkdir()
        made = SESSION.format(settings=self.settings(**(settings or {}))) if session else ""
        head = HEAD + f"settings = {self.settings(**(settings or {}))!r}\n"
        script = folder / "driver.py"
        script.write_text(head + made + textwrap.dedent(source))
        return subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            cwd=folder,
            env=surroundings(python or self.python),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, source: str, *arguments: object, **options: object) -> list[str]:
        """Run a driver; returns the lines that it printed."""
        return ended(self.start(source, *arguments, **options))  # type: ignore[arg-type]

    def executors(self) -> list[int]:
        """The process ids of executors."""
        return [each.pid for each in processes.executors(processes.family(self.place.roots()))]


def ended(driver: subprocess.Popen[str]) -> list[str]:
    """Wait for a driver; returns the lines that it printed."""
    try:
        out, errors = driver.communicate(timeout=DRIVER_TIMEOUT_S)
    except BaseException:
        driver.kill()
        driver.communicate()
        raise
    assert driver.returncode == 0, f"{out[-3000:]}\n{errors[-5000:]}"
    return out.splitlines()


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers of one core, on two addresses of loopback, whose Python has pyarrow and pandas only."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    if sys.platform != "linux":
        pytest.skip("the second worker has an address of its own, which needs Linux")
    folder = tmp_path_factory.mktemp("cluster")
    python = bare(folder / "bare")
    with Cluster(folder, variables=surroundings(python)) as place:
        yield Workers(place, python, tmp_path_factory.mktemp("drivers"))


@pytest.fixture(scope="session")
def make_bare(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes an environment of this Python that has only the modules that are named."""

    def make(*modules: str) -> Path:
        return bare(tmp_path_factory.mktemp("bare") / "python", modules)

    return make
