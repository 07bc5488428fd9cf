"""Processes of other users of this machine. For the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
OTHER = 54321
"""A user whom no list names, as containers have them."""
GROUP = 54320
LONG = 600.0


BECOME = """
import os, sys, tempfile
import pwd
import pyarrow.parquet
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.upkeep import compact
from tests.ledger.kept import found, keep
# What is imported when it is needed is where another user may not look.
with tempfile.TemporaryDirectory() as warm:
    keep(Ledger(warm), {1: 1})
    keep(Ledger(warm), {2: 2})
    compact(Ledger(warm), Scope("run", "uid"))
    found(Ledger(warm))
user, group, umask = map(int, sys.argv[1:4])
del sys.argv[1:4]
os.umask(umask)
os.setgroups([])
os.setgid(group)
os.setuid(user)
os.chdir("/")
"""


def run_as(
    user: int, code: str, *arguments: str, group: int = NOBODY, umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of another user, in one group. For root."""
    return finish(start_as(user, code, *arguments, group=group, umask=umask))


def start_as(
    user: int, code: str, *arguments: str, group: int = NOBODY, umask: int = 0o022
) -> subprocess.Popen[str]:
    """Begin what `run_as` runs. The imports of the code end with an empty line: root makes them."""
    # Begun as root: the interpreter may be in a home that nobody else may enter.
    imports, _, rest = code.partition("\n\n")
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{imports}\n{BECOME}\n{rest}",
            *map(str, (user, group, umask)),
            *arguments,
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a process of `start_as`."""
    out, err = process.communicate(timeout=LONG)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def shared_place() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of `tmp_path`; empty, and the test's own."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    place = Path(tempfile.mkdtemp(prefix="pillarbox-users-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)
