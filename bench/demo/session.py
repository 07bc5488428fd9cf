"""The Spark session of the demo: local, small and quiet.

`spark_session` is for the job's main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

TASKS = 2
"""Tasks that run at a time, and partitions of the input."""


@contextlib.contextmanager
def spark_session(name: str, log: Path) -> Iterator[SparkSession]:
    """A Spark session on this machine alone, stopped at the end. Whatever Spark has to say goes to `log`."""
    builder = (
        SparkSession.builder.appName(name)
        .master(f"local[{TASKS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(TASKS))
    )
    # Otherwise the workers run whatever python3 the PATH has, and that one may lack the packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    log.parent.mkdir(parents=True, exist_ok=True)
    on_interrupt = signal.getsignal(signal.SIGINT)
    with errors_to(log):
        session = builder.getOrCreate()
    # Spark's own handler asks the virtual machine something on the connection whose call it interrupted, and
    # reads the answer to that call. A thread has a connection of its own.
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield session
    finally:
        stopping = threading.Thread(target=session.stop, name="stop-spark")
        stopping.start()
        stopping.join()


@contextlib.contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Lets processes that start in this block write their standard error to `log`.

    The virtual machine inherits it for life and its workers from it, so that nothing they write tears the
    progress bar. This process has its own standard error back at the end of the block.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, 2)
        os.close(ours)
