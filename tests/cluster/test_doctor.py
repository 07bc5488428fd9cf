"""Contracts of `pillarbox doctor --cluster`: it says of each executor what is missing, and needs nothing
there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import Workers, surroundings

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def doctor(workers: Workers, *words: str, python: Path | None = None) -> tuple[int, dict[str, str]]:
    """Run the command on the cluster; returns its status, and by check what it printed, advice included."""
    settings = [word for name, value in workers.settings().items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "pillarbox", "doctor", "--cluster", "--host", "127.0.0.1", *settings, *words],
        env=surroundings(python or workers.python),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    found: dict[str, str] = {}
    check = ""
    lines = done.stdout.splitlines()
    for line in lines[next(at for at, each in enumerate(lines) if "session:" in each) :]:
        if line.startswith(("ok ", "WRONG ")):
            check = line[8:].partition(":")[0]
        found[check] = f"{found.get(check, '')}{line}\n"
    return done.returncode, found


def wrong(found: dict[str, str]) -> set[str]:
    return {check for check, text in found.items() if text.startswith("WRONG")}


@pytest.mark.contract
def test_executors_without_pillarbox_and_pyarrow_are_named_with_what_to_do(
    workers: Workers, make_bare: Callable[..., Path]
) -> None:
    status, found = doctor(workers, python=make_bare())
    assert status == 1
    assert wrong(found) == {"pillarbox", "pyarrow", "pandas"}
    assert "No module named 'pillarbox'" in found["pillarbox"] and "pillarbox pack" in found["pillarbox"]
    assert "pillarbox pack --include spark" in found["pyarrow"]
    assert "0 on 127.0.0." in found["executors"] and "1 on 127.0.0." in found["executors"]


@pytest.mark.contract
def test_executors_with_a_pack_are_well_and_run_a_job(workers: Workers, tmp_path: Path) -> None:
    archive = tmp_path / "with a space.zip"
    packed = [sys.executable, "-m", "pillarbox", "pack", "--output", str(archive)]
    printed = subprocess.run(packed, check=True, capture_output=True, text=True, timeout=60).stdout
    line = next(line for line in printed.splitlines() if "pillarbox doctor" in line)
    settings = shlex.split(line.partition("--master URL")[2])
    ledger = tmp_path / "ledger"
    status, found = doctor(
        workers,
        *settings,
        *("--ledger", str(ledger)),
    )
    assert status == 0, found
    assert "pillarbox-pack/pillarbox" in found["pillarbox"]
    assert "shared with the driver" in found["ledger"]
    assert (
        "40 rows in 2 tasks" in found["job on the cluster"]
        and "progress of 40" in found["job on the cluster"]
    )
    assert not ledger.exists()
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.contract
def test_a_worker_with_another_python_is_named_and_one_without_any(workers: Workers, tmp_path: Path) -> None:
    other = tmp_path / "python"
    # One of another version, as far as it says.
    change = "import sys, runpy; sys.version_info = (3, 6, 9); exec(sys.argv.pop(2))"
    other.write_text(f"#!/bin/sh\nshift\nexec {workers.python} -c '{change}' -c \"$@\"\n")
    other.chmod(0o755)
    status, found = doctor(workers, python=other)
    assert status == 1 and wrong(found) == {"Python"}
    assert "3.6.9" in found["Python"] and "start the driver with Python 3.6" in found["Python"]
    status, found = doctor(workers, python=tmp_path / "absent")
    assert status == 1 and wrong(found) == {"Python"}
    assert f"no {tmp_path / 'absent'} in its PATH" in found["Python"]


@pytest.mark.contract
def test_a_setting_that_does_nothing_is_named(workers: Workers) -> None:
    status, found = doctor(
        workers,
        *("--conf", "spark.pyspark.python=/opt/python", "--conf", f"spark.archives={workers.archive}#other"),
    )
    assert status == 1
    assert {"spark.pyspark.python", "spark.archives"} <= wrong(found)
    assert "set PYSPARK_PYTHON" in found["spark.pyspark.python"]
