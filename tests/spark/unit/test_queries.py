"""The helper of tests that starts queries: again for one error of Spark alone, and one at a time."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox.spark.stream.clock import ADVICE
from pillarbox.spark.stream.settings import PROVIDER, ROCKSDB
from tests.spark import queries
from tests.versions import needs_async_stream

NOT_CONNECTED = "Python worker failed to connect back.\n=== Streaming Query ===\nIdentifier: [id = 1]"


class Written:
    """A writer whose queries are there as the test says."""

    def __init__(self, *queries: Any) -> None:
        self.queries = list(queries)
        self.started = 0

    def start(self) -> Any:
        self.started += 1
        return self.queries[self.started - 1]


def query(error: str | None = None, *, message: str = "Initializing sources", progress: Any = None) -> Any:
    return SimpleNamespace(
        isActive=error is None, lastProgress=progress, status={"message": message}, exception=lambda: error
    )


RUNS = query(message="Waiting for data to arrive")


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.mark.parametrize(
    "text",
    [NOT_CONNECTED, f"[STREAM_FAILED] Query [id = 1] terminated with exception: {NOT_CONNECTED}"],
)
def test_a_query_that_fails_before_its_first_micro_batch_as_no_process_connects_is_started_again(
    text: str, lock: Path
) -> None:
    written = Written(query(text), query(text), RUNS)
    assert queries.start(written, lock=lock) is RUNS
    assert written.started == 3


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: no such column",
        # Somebody's own error that tells of Spark's.
        "ValueError: Python worker failed to connect back.",
        "Python worker failed to connect back to the moon",
    ],
)
def test_a_query_that_fails_with_another_error_is_not_started_again(error: str, lock: Path) -> None:
    failed = query(error)
    written = Written(failed)
    assert queries.start(written, lock=lock) is failed
    assert written.started == 1


def test_a_query_that_has_made_a_micro_batch_is_not_started_again(lock: Path) -> None:
    failed = query(NOT_CONNECTED, progress={"batchId": 0})
    written = Written(failed)
    assert queries.start(written, lock=lock) is failed
    assert written.started == 1


class Watched:
    """A query that has begun when it was asked for the third time; whether the lock was free, each time."""

    isActive = True
    lastProgress = None

    def __init__(self, lock: Path) -> None:
        self.lock, self.free = lock, list[bool]()

    @property
    def status(self) -> dict[str, str]:
        self.free.append(is_free(self.lock))
        return {"message": "Waiting for data to arrive" if len(self.free) == 3 else "Initializing sources"}


def is_free(lock: Path) -> bool:
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_no_other_query_starts_until_one_has_begun(lock: Path) -> None:
    watched = Watched(lock)
    assert queries.start(Written(watched), lock=lock) is watched
    assert watched.free == [False, False, False]
    assert is_free(lock)


SLOW_PYTHON = """#!/bin/sh
case "$*" in
  *streaming*) if [ ! -e "$0.was-asked" ]; then touch "$0.was-asked"; exit; fi ;;
esac
exec {python} "$@"
"""
SCRIPT = """
import logging
from pathlib import Path
from pillarbox.spark import async_stream
from tests.spark import queries
folder, python = Path(sys.argv[1]), sys.argv[2]
spark.conf.set(sys.argv[3], sys.argv[4])
spark.sparkContext.pythonExec = python

class Printing(logging.Handler):
    def emit(self, record):
        print("query ID", record.getMessage().split(" ", 2)[2], flush=True)

logging.getLogger("pillarbox").addHandler(Printing())

async def same(row):
    return row.id

spark.range(10).write.parquet(str(folder / "in"))
stream = async_stream(spark.readStream.schema("id long").parquet(str(folder / "in")), same, schema="id long")
writer = stream.writeStream.format("parquet").option("path", str(folder / "out"))
writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
query = writer.start()
try:
    query.awaitTermination()
except Exception as error:
    print(queries.NOT_CONNECTED.search(str(error)) is not None)
print(queries.NOT_CONNECTED.search(str(query.exception())) is not None)
Path(python + ".was-asked").unlink()
queries.start(writer).awaitTermination()
print(Path(python + ".was-asked").exists())
print(sorted(row.id for row in spark.read.parquet(str(folder / "out")).collect()))
"""


@pytest.mark.slow
@needs_async_stream
def test_spark_says_so_of_a_process_that_does_not_connect_the_log_what_to_do_and_the_query_starts_again(
    run_script: Callable[..., list[str]], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON.format(python=sys.executable))
    python.chmod(0o700)
    lines = run_script(SCRIPT, str(tmp_path), str(python), PROVIDER, ROCKSDB, timeout=380, alone=True)
    told = [line for line in lines if line.startswith("query ID")]
    # Once for each of the two failures.
    assert told == ["query ID " + ADVICE.partition("%s ")[2]] * 2
    assert [line for line in lines if line not in told] == ["True", "True", "True", str([*range(10)])]
