"""Contract of `pillarbox doctor`: it names what is wrong with a machine, what to do, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def doctor(*words: str, **environment: str) -> tuple[int, dict[str, str]]:
    """Run the command; returns its status, and by check what it printed, advice included."""
    done = subprocess.run(
        [sys.executable, "-m", "pillarbox", "doctor", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    found: dict[str, str] = {}
    check = ""
    for line in done.stdout.splitlines():
        if line.startswith(("ok ", "WRONG ")):
            check = line[8:].partition(":")[0]
        found[check] = f"{found.get(check, '')}{line}\n"
    return done.returncode, found


@pytest.mark.contract
def test_each_thing_that_is_wrong_is_named_with_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho \"No module named 'pillarbox'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    status, found = doctor(
        *("--quick", "--ledger", "/dev/null/ledger"),
        JAVA_HOME=str(tmp_path / "nowhere"),
        PYSPARK_PYTHON=str(bare),
    )
    assert status == 1
    wrong = {check for check, text in found.items() if text.startswith("WRONG")}
    assert wrong == {"Java", "worker's Python", "ledger"}
    assert "install Java 17 or later" in found["Java"]
    assert "No module named 'pillarbox'" in found["worker's Python"]
    assert f"install Pillarbox for {bare}" in found["worker's Python"]
    assert "name another" in found["ledger"]


@pytest.mark.contract
def test_no_password_is_printed_and_a_full_disk_is_named(tmp_path: Path) -> None:
    full = tmp_path / "sitecustomize.py"
    full.write_text(
        "import sys, tempfile\n"
        "def full():\n"
        "    raise FileNotFoundError(2, 'No usable temporary directory found')\n"
        "if 'doctor' in sys.orig_argv:\n"
        "    tempfile.gettempdir = full\n"
    )
    status, found = doctor(
        *("--quick", "--ledger", "s3://AKIAKEY:SuperSecret123@bucket/x y?nothing"),
        JAVA_TOOL_OPTIONS="-Djavax.net.ssl.trustStorePassword=SuperSecret123",
        PYTHONPATH=str(tmp_path),
    )
    assert status == 1
    assert "SuperSecret123" not in str(found)
    assert found["ledger"].startswith("WRONG")
    assert found["Java"].startswith("ok") and 'version "' in found["Java"]
    assert "No usable temporary directory" in found["folder for what is temporary"]


@pytest.mark.contract
def test_a_kernel_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pillarbox.kernel.mailbox':\n"
        "            raise ImportError('built for another Python')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    status, found = doctor("--quick", PYTHONPATH=str(tmp_path))
    assert status == 1
    assert found["kernel"].startswith("WRONG") and "built for another Python" in found["kernel"]


@pytest.mark.spark
def test_a_machine_on_which_jobs_run_is_well_and_nothing_is_left_behind(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    status, found = doctor("--ledger", str(ledger), SPARK_LOCAL_DIRS=str(tmp_path))
    assert status == 0, found
    assert "100 rows" in found["job on a local Spark"]
    assert str(tmp_path) in found["ledger"]
    assert not ledger.exists()
