"""The files that a row passes, Spark to output, or a split: as many as there are today, or fewer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from bench.chunks import ROOT
from bench.walk import BATCH_ROWS, FEW, MORE, files_of, passed

LIMIT = 23
"""Files that a row may pass. It only falls, where fewer are found. It rose for the guard around what Spark
runs, by which errors are written in UTF-8, for the check of what leaves for Spark, for the connection of a
task, which is apart from its worker now, and for the parts of the operator, which are files of one concern:
admission, shared calls, held bytes and emission. One step of each for each batch."""

BY_CHANCE = {"aio/executions.py"}
"""Files that rows pass or not: workers that find no row end, and others begin with the next ones, as often as
calls are faster than what reads ahead."""

SPLIT_LIMITS = 18, 4
"""Files and threads that a split of a batch read may pass, from discovery to its rows. They only fall."""

FUNCTIONS_OF_A_ROW, FUNCTIONS_OF_A_RECORD = 6, 7
"""Functions that a row runs, without and with a ledger. They only fall."""

CHANGES_OF_A_RECORD = 9
"""Changes of file that a row with a ledger makes, with its part of those of batches: workers that find no row
begin anew, as often as rows wait for the disk. It only falls."""

Found = dict[str, tuple[str, int]]


def walked(*words: str, module: str = "bench.walk") -> Any:
    # In a process of its own, whose threads all begin after the counting.
    done = subprocess.run(
        [sys.executable, "-m", module, "--json", *words],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_row_passes_no_more_files_than_before() -> None:
    found: Found = walked("row")
    assert any(each == "row" for each, _ in found.values())
    assert any(each == "batch" for each, _ in found.values())
    files = passed(found) - BY_CHANCE
    # Where this process gets little time, what runs by time may look as if it ran for batches.
    for _ in range(2):
        if len(files) > LIMIT:
            files &= passed(walked("row"))
    assert len(files) <= LIMIT, f"{len(files)} files:\n" + "\n".join(sorted(files))


def test_a_split_passes_no_more_files_and_threads_than_before() -> None:
    found = [passed(each) for each in walked("split")]
    for _ in range(2):
        if any(len(each) > limit for each, limit in zip(found, SPLIT_LIMITS, strict=True)):
            found = [each & passed(other) for each, other in zip(found, walked("split"), strict=True)]
    for each, limit in zip(found, SPLIT_LIMITS, strict=True):
        assert 0 < len(each) <= limit, f"{len(each)}:\n" + "\n".join(sorted(each))


def test_a_row_runs_no_more_functions_than_before_without_and_with_a_ledger() -> None:
    (plain, _), (kept, changes) = walked(module="bench.record").values()
    for _ in range(2):
        # Where this process gets little time, each row may be the last one that waits.
        if len(kept) > FUNCTIONS_OF_A_RECORD or changes > CHANGES_OF_A_RECORD:
            _, (again, fewer) = walked(module="bench.record").values()
            kept, changes = {*kept} & {*again}, min(changes, fewer)
    assert 3 <= len(plain) <= FUNCTIONS_OF_A_ROW, sorted(plain)
    assert len(plain) < len(kept) <= FUNCTIONS_OF_A_RECORD, sorted(kept)
    assert 0 < changes <= CHANGES_OF_A_RECORD


@pytest.mark.slow
@pytest.mark.spark
def test_a_row_passes_the_same_files_in_a_worker_of_spark() -> None:
    assert passed(walked("row", "--spark")) - BY_CHANCE == passed(walked("row")) - BY_CHANCE


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
