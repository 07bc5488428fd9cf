"""The end of a Spark task: what its operator hears of it, and what becomes of a task that does not hear it.

`process_watermark` and `end_input` of the operator are what a Spark task ends by. The slow tests empty each
method of its life in the workers, and a test here or in another file must fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pillarbox import Batch, Retry
from pillarbox.spark import async_map

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_a_task_ends_when_batches_that_are_not_full_and_retries_have_come_out(
    spark: SparkSession, ordered: bool
) -> None:
    async def call(rows: list[Any]) -> list[Any]:
        import asyncio

        seen = call.__dict__.setdefault("seen", set())
        numbers = frozenset(row.id for row in rows)
        if 20 in numbers and numbers not in seen:
            seen.add(numbers)
            raise ConnectionError("once")
        await asyncio.sleep(0.01)
        return [{"number": len(rows) and row.id} for row in rows]

    df = spark.range(21, numPartitions=1)
    # The last five rows are not a batch, and an hour is longer than any test.
    found = async_map(
        df,
        call,
        schema="number long",
        ordered=ordered,
        batch=Batch(8, linger=3600.0),
        retry=Retry(3, initial=0.05, maximum=0.05, jitter=False),
    ).collect()
    numbers = [row.number for row in found]
    assert (numbers if ordered else sorted(numbers)) == list(range(21))


EMPTIED = '''
"""Empties a method of the shipped operator where a worker of Spark imports it."""
import importlib.util
import os
import pathlib
import sys

NAME = "pillarbox.aio.async_wait"


class Emptying:
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def empty(module):
            execute(module)
            method = os.environ["EMPTIED_METHOD"]
            assert method in vars(module.AsyncWaitOperator)
            setattr(module.AsyncWaitOperator, method, lambda self, *args: None)
            pathlib.Path(os.environ["EMPTIED_IN"], f"emptied-{os.getpid()}").touch()

        spec.loader.exec_module = empty
        return spec


if any(word.startswith("pyspark.") for word in sys.orig_argv):
    sys.meta_path.insert(0, Emptying())
'''

ENDS = "test_task_ends.py::test_a_task_ends_when_batches_that_are_not_full_and_retries_have_come_out"

KILLED = (
    "unit/test_records.py::test_an_attempt_goes_on_from_the_snapshot_of_a_worker_that_was_killed[ordered]"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "test", "says"),
    [
        ("process_watermark", ENDS, "MAX_WATERMARK has not come"),
        ("end_input", ENDS, "MAX_WATERMARK has not come"),
        ("snapshot_state", KILLED, "kept.exists() is not is_first"),
        ("restore_state", KILLED, "AssertionError"),
    ],
)
def test_a_test_on_spark_fails_where_a_method_of_the_operator_is_empty(
    method: str, test: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(EMPTIED)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = [str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "EMPTIED_METHOD": method,
        "EMPTIED_IN": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/spark/{test}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert list(tmp_path.glob("emptied-*")), f"nothing was emptied:\n{done.stdout[-3000:]}"
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout[-3000:]
    assert says in done.stdout, done.stdout[-3000:]
