"""Fixtures of all tests: one local Spark session for each process that runs tests.

A Java process has one session, and pytest-xdist runs one Python process per worker: so each worker has a
Spark of its own. A test that needs another master, or that harms its Spark, runs a script in another process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import threads
from tests.versions import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from tests.distribution import FileScheduling

# How long one example takes tells how busy the machine is; pytest's own time-out is there for the rest.
settings.register_profile("default", deadline=None)
# For all but `make test-all`, which searches: the same examples each time, a fifth of them.
settings.register_profile("quick", deadline=None, derandomize=True, database=None, max_examples=20)


STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the standard error that nothing captures, for the stacks of a test that must be ended."""
    from tests.distribution import copy_of_stderr

    config.stash[STDERR] = copy_of_stderr()
    if () < pyspark_version() < (4, 2):
        # It leaves its sockets to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling | None:
    """Replaces the scheduler of `--dist loadfile` by one that a dead process does not stop."""
    from tests.distribution import scheduler

    return scheduler(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Ends a process whose test nothing interrupts, so that one hang ends one test."""
    from tests.distribution import ended_if_deaf

    with ended_if_deaf(item, item.config.stash[STDERR]):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Notes the machine's load at a failure, which `.ci/run` prints of a test that passes alone."""
    report = yield
    if report.failed:
        report.user_properties.append(("load", round(os.getloadavg()[0], 1)))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what asks for Spark by a fixture, and puts the files that take long first.

    pytest-xdist gives out whole files in this order: short ones at the end leave no process idle for long.
    """
    costs: dict[Path, int] = {}
    for item in items:
        if {"session", "run_script"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
        marks = {mark.name for mark in item.iter_markers()}
        cost = next((3 - at for at, name in enumerate(("slow", "spark", "server")) if name in marks), 0)
        costs[item.path] = max(costs.get(item.path, 0), cost)
    items.sort(key=lambda item: -costs[item.path])


def pytest_collection_finish() -> None:
    """Spares the garbage collector, which many tests call, thousands of tests that live to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Gives the handler of `caplog` its format back: tests read its text.

    pytest adds the handler to each logger that does not propagate. PySpark's logger of failed queries, made
    with the first, sets the format of all that is added to it to JSON without a traceback.
    """
    capture = item.config.pluginmanager.get_plugin("logging-plugin")
    if capture is not None:
        capture.caplog_handler.setFormatter(capture.formatter)


# A shell that runs us in the background has us ignore Ctrl-C; what the tests start would ignore it as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Much of what Spark costs a test is its Java's better compiler: nothing runs long enough here to gain by it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(autouse=True)
def _threads_of_others() -> None:
    threads.note()


@pytest.fixture
def spark(session: SparkSession) -> Iterator[SparkSession]:
    """The session. Queries that a test leaves, as it fails, do not run beside the next tests."""
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on `local[2]`: quiet, on loopback, in UTC, with all its files in a temporary folder."""
    pyspark_sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
    folder = tmp_path_factory.mktemp("spark")
    # The path of a socket has at most 108 characters.
    sockets = tempfile.mkdtemp(prefix="pillarbox-")
    # Otherwise the workers run whatever `python3` is on the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        # On a port Spark takes the first who connects for its worker, and another test's client may knock
        # where a server of its own has been: a query then waits for ever.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": sockets,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if "COVERAGE_PROCESS_START" in os.environ:
        settings["spark.python.daemon.module"] = "tests.measured_daemon"
    builder = pyspark_sql.SparkSession.builder.master("local[2]").appName("pillarbox tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    with contextlib.suppress(ConnectionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()
    shutil.rmtree(sockets, ignore_errors=True)
