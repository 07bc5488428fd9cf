"""Contracts of a ledger on a cluster: no call is paid twice, on a shared folder and in a real object
store."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox import Ledger
from tests.cluster.conftest import Workers, ended
from tests.servers import fixtures
from tests.servers.s3_server import KEY, SECRET, S3Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

s3 = fixtures.s3

ROWS = 400
CAPACITY = 16
JOB = """
from pillarbox import Ledger
from pillarbox.spark import async_map

place, calls, gate, rows, capacity = sys.argv[1:6]

async def answer(row):
    while os.path.exists(gate) and row.id % 100 >= 50:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.005)
    appended(calls, row.id)
    return {"n": 2 * row.id}

ledger = Ledger(place, uid="answer", run="first", key=["id"])
frame = async_map(
    spark.range(0, int(rows), 1, 4), answer,
    schema="n long", keep=["id"], ledger=ledger, capacity=int(capacity),
)
found = sorted((row.id, row.n) for row in frame.collect())
assert found == [(n, 2 * n) for n in range(int(rows))]
print("done")
"""


def paid(calls: Path) -> Counter[str]:
    return Counter(calls.read_text().split()) if calls.exists() else Counter()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file while whose existence half of the rows wait."""
    path = tmp_path / "gate"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def kill_executors(workers: Workers, driver: subprocess.Popen[str], place: str | Path) -> None:
    """Kill both executors, when the ledger has half of the rows of the first two tasks: the others wait."""
    ledger = Ledger(place, uid="answer", run="first")
    wait_until(lambda: ledger.spent("first", "answer")[0] == 100 or driver.poll() is not None)
    for pid in workers.executors():
        os.kill(pid, signal.SIGKILL)


def assert_called_once(calls: Path, kept: Counter[str]) -> None:
    """Every row was called, those that the ledger had at the kill once, others in flight twice at most."""
    found = paid(calls)
    assert set(found) == {str(n) for n in range(ROWS)}
    assert len(kept) == 100
    assert {found[row] for row in kept} == {1}
    # Workers of a killed executor go on for a moment: in each of two tasks those in flight.
    assert found.total() - ROWS <= 2 * CAPACITY


@pytest.mark.contract
def test_killed_executors_cost_no_call_twice_that_the_shared_folder_has(
    workers: Workers, tmp_path: Path, gate: Path
) -> None:
    place, calls = tmp_path / "ledger", tmp_path / "calls"
    driver = workers.start(JOB, place, calls, gate, ROWS, CAPACITY, settings=workers.packed)
    kill_executors(workers, driver, place)
    kept = paid(calls)
    gate.unlink()
    assert ended(driver)[-1] == "done"
    assert_called_once(calls, kept)
    once = paid(calls)
    assert workers.run(JOB, place, calls, gate, ROWS, CAPACITY, settings=workers.packed)[-1] == "done"
    assert paid(calls) == once


@pytest.mark.contract
def test_killed_executors_and_a_restart_cost_no_call_twice_that_the_bucket_has(
    workers: Workers, tmp_path: Path, gate: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, calls = s3.url(f"{s3.bucket()}/calls"), tmp_path / "calls"
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    settings = {
        f"spark.executorEnv.{name}": value for name, value in keys.items()
    } | workers.packed_for_objects
    script = f"os.environ.update({keys!r})\n{JOB}"
    driver = workers.start(script, place, calls, gate, ROWS, CAPACITY, settings=settings)
    kill_executors(workers, driver, place)
    kept = paid(calls)
    gate.unlink()
    assert ended(driver)[-1] == "done"
    assert_called_once(calls, kept)
    once = paid(calls)
    assert workers.run(script, place, calls, gate, ROWS, CAPACITY, settings=settings)[-1] == "done"
    assert paid(calls) == once
