"""The files that a row passes, Spark to output: as many as there are today, or fewer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from bench.chunks import ROOT
from bench.walk import BATCH_ROWS, FEW, MORE, files_of, passed

LIMIT = 16
"""Files that a row may pass. It only falls: where fewer are found, lower it."""


def walked(*words: str) -> dict[str, tuple[str, int]]:
    # In a process of its own, whose threads all begin after the counting.
    done = subprocess.run(
        [sys.executable, "-m", "bench.walk", "row", "--json", *words],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: (each, calls) for name, (each, calls) in json.loads(done.stdout.splitlines()[-1]).items()}


def test_a_row_passes_no_more_files_than_before() -> None:
    found = walked()
    assert any(each == "row" for each, _ in found.values())
    assert any(each == "batch" for each, _ in found.values())
    files = passed(found)
    # Where this process gets little time, what runs by time may look as if it ran for batches.
    for _ in range(2):
        if len(files) > LIMIT:
            files &= passed(walked())
    assert len(files) <= LIMIT, f"{len(files)} files:\n" + "\n".join(sorted(files))


@pytest.mark.slow
@pytest.mark.spark
def test_a_row_passes_the_same_files_in_a_worker_of_spark() -> None:
    assert passed(walked("--spark")) == passed(walked())


def test_a_file_counts_if_calls_of_a_function_grow_with_the_batches_and_not_with_time() -> None:
    batches, rows = MORE - FEW, (MORE - FEW) * BATCH_ROWS
    few = {
        "a:1 once": 5,
        "a:9 each_batch": 4,
        "b:1 each_row": 1_000,
        "clock:1 beat": 1,
        "c:2 now_and_then": 5,
    }
    more = {
        "a:1 once": 5,
        "a:9 each_batch": 4 + batches,
        "b:1 each_row": 1_000 + rows,
        "clock:1 beat": 1 + batches,
        "new:1 f": batches,
        "c:2 now_and_then": 6,
    }
    found = files_of(few, more, waiting=few | {"clock:1 beat": batches})
    assert found == {
        "a": ("batch", 4 + batches),
        "b": ("row", 1_000 + rows),
        "clock": ("time", 1 + batches),
        "new": ("batch", batches),
    }
    assert passed(found) == {"a", "b", "new"}
