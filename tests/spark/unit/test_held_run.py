"""One job at a time works on a run in an object store: others are told on the driver, or by their tasks."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark.sql")

from pyarrow import fs
from pyspark.errors import PythonException

from pillarbox.ledger import Ledger
from pillarbox.ledger.errors import LedgerHeldError
from pillarbox.ledger.objects.holder import Holder, HolderTimes
from pillarbox.ledger.objects.holding import run_hold
from pillarbox.spark import async_map
from tests.spark.streams import note, noted, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[3]
LONG = 300.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """One that knows its folder as it would a bucket."""
    filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Ledger("calls", filesystem=filesystem, uid="uid", run="run", key=["id"])


async def call(folder: str, row: Any) -> dict[str, int]:
    """Each call is noted; those of rows below 0 wait until `go` is there."""
    import asyncio
    import os

    note(f"{folder}/log", row.id)
    while row.id < 0 and not os.path.exists(f"{folder}/go"):
        await asyncio.sleep(0.01)
    return {"found": 2 * row.id}


def mapped(df: DataFrame, folder: Path, ledger: Ledger) -> DataFrame:
    return async_map(df, partial(call, str(folder)), schema="found int", keep=["id"], ledger=ledger)


def found_in(df: DataFrame) -> set[int]:
    return {row.found for row in df.collect()}


@pytest.mark.contract
def test_a_second_application_is_refused_on_the_driver_and_told_who_works_on_the_run(
    spark: SparkSession, ledger: Ledger, tmp_path: Path
) -> None:
    assert found_in(mapped(spark.range(10), tmp_path, ledger)) == {2 * number for number in range(10)}
    (scope,) = ledger.scopes()
    other = dataclasses.replace(Holder.own("plan"), application="another", host="elsewhere")
    # The action has ended, and its application renews the record no more.
    hold = run_hold(ledger, scope, other, HolderTimes(expiry=0.1, watch=0.01))
    hold.acquire()
    with pytest.raises(
        LedgerHeldError, match=r"^run='run', uid='uid' in calls is held by .* on elsewhere .*since 20"
    ):
        mapped(spark.range(20), tmp_path, ledger)
    hold.free()
    assert found_in(mapped(spark.range(20), tmp_path, ledger)) == {2 * number for number in range(20)}
    assert noted(tmp_path / "log").count("3") == 1
    assert len(noted(tmp_path / "log")) == 20


@pytest.mark.contract
def test_actions_of_one_application_have_a_run_one_after_the_other(
    spark: SparkSession, ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = mapped(spark.range(10), tmp_path, ledger)
    for _ in range(2):
        assert len(found_in(first)) == 10
    # Two plans of one action are one job.
    both = mapped(spark.range(10, 15), tmp_path, ledger).union(mapped(spark.range(15, 20), tmp_path, ledger))
    assert len(found_in(both)) == 10
    assert len(found_in(mapped(spark.range(20), tmp_path, ledger))) == 20
    assert len(found_in(first)) == 10
    assert sorted(map(int, noted(tmp_path / "log"))) == list(range(20))
    assert "waiting until it is known" not in caplog.text


def test_a_plan_is_refused_while_another_action_of_the_application_calls(
    spark: SparkSession, ledger: Ledger, tmp_path: Path
) -> None:
    first = mapped(spark.range(-4, 4), tmp_path, ledger)
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append(found_in(first)))
    thread.start()
    until(lambda: noted(tmp_path / "log"))
    with pytest.raises(LedgerHeldError, match=r"is held by another job: .* \(local-\d+\) .*since 20"):
        mapped(spark.range(4), tmp_path, ledger)
    (tmp_path / "go").touch()
    thread.join()
    assert found == [{2 * number for number in range(-4, 4)}]
    assert len(noted(tmp_path / "log")) == 8


# One run in four ends as Spark restarts its daemon, and so the worker of the first action, when it begins a
# worker for the second.
@pytest.mark.slow
@pytest.mark.contract
def test_of_two_actions_of_an_application_at_a_time_one_calls_and_the_others_tasks_fail(
    spark: SparkSession, ledger: Ledger, tmp_path: Path
) -> None:
    # Planned before either begins, so that the driver cannot know.
    first, second = (mapped(spark.range(-4, 4), tmp_path, ledger) for _ in range(2))
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append(found_in(first)))
    thread.start()
    until(lambda: noted(tmp_path / "log"))
    with pytest.raises(PythonException, match="LedgerHeldError: run='run', uid='uid' in calls is held by"):
        second.collect()
    (tmp_path / "go").touch()
    thread.join()
    assert found == [{2 * number for number in range(-4, 4)}]
    assert len(noted(tmp_path / "log")) == 8


KILLED = """
import sys
from pathlib import Path
from pyarrow import fs
from pyspark.sql import SparkSession
from pillarbox.ledger import Ledger
from tests.spark.unit.test_held_run import mapped

folder = Path(sys.argv[1])
filesystem = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
ledger = Ledger("calls", filesystem=filesystem, uid="uid", run="run", key=["id"])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.session.timeZone", sys.argv[2]).getOrCreate()
mapped(spark.range(8), folder, ledger).collect()
mapped(spark.range(-2, 8).repartition(1), folder, ledger).collect()
"""


@pytest.mark.slow
@pytest.mark.contract
def test_the_run_of_a_driver_that_was_killed_is_taken_over_and_nothing_is_lost(
    spark: SparkSession, ledger: Ledger, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(zone)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        until(lambda: {"-1", "-2"} <= {*noted(tmp_path / "log")})
        process.kill()
        process.wait(LONG)
        called = noted(tmp_path / "log")
        (tmp_path / "go").touch()
        taken = found_in(mapped(spark.range(-2, 20), tmp_path, ledger))
    assert taken == {2 * number for number in range(-2, 20)}
    calls = Counter(noted(tmp_path / "log")[len(called) :])
    # What had an answer is not called again. Of what was in flight a worker that has outlived the driver may
    # have kept the answers.
    assert set(map(int, calls)) - {-2, -1} == {*range(8, 20)}
    assert set(calls.values()) == {1}
