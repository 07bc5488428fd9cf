"""A full disk, or a limit for files, fails the task with that reason; the acknowledged stays readable."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.errors import LedgerFullError
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")
ROOT = Path(__file__).resolve().parents[3]
LONG = 600.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ledger: Ledger, first: int = 0) -> tuple[int, BaseException]:
    """Keep results until one cannot be kept; how many could, and why no more."""
    writer = ledger.writer(SCOPE)
    number = 0
    try:
        while True:
            writer.append(key(first + number), "x" * 2000)
            writer.flush(LONG)
            number += 1
            assert number < 10_000
    except LedgerFullError as error:
        with pytest.raises(LedgerFullError):
            writer.close(LONG)
        return number, error


def fill_up(path: Path) -> None:
    """Write until that fails."""
    with open(path, "wb", 0) as file:
        while True:
            file.write(b"x" * 512)


@pytest.mark.contract
def test_a_full_disk_fails_the_writer_with_that_reason_and_loses_nothing(small_disk: Path) -> None:
    ledger = Ledger(str(small_disk / "ledger"))
    (small_disk / "other").write_bytes(b"x" * 2**16)
    kept, error = fill(ledger)
    assert kept > 20
    assert "No space left on device" in str(error) and "make room" in str(error)
    reader = ledger.reader(SCOPE)
    assert [key(number) in reader for number in range(kept)] == [True] * kept
    assert reader.damage == []
    # Another attempt cannot even begin a segment, and says why; it harms nothing either.
    with pytest.raises(OSError, match="No space left"):
        fill_up(small_disk / "rest")
    again, _ = fill(ledger, 10**5)
    assert again == 0
    # With room, the next attempt goes on.
    (small_disk / "other").unlink()
    with ledger.writer(SCOPE) as writer:
        writer.append(key(10**6), "y")
    reader = ledger.reader(SCOPE)
    assert all(key(number) in reader for number in [*range(kept), 10**6])
    reader.close()


def test_a_limit_for_files_does_the_same(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from tests.ledger.unit.test_full_disk import fill\n"
        "from pillarbox.ledger import Ledger\n"
        "kept, error = fill(Ledger(sys.argv[1]))\n"
        "print(kept, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, _, said = done.stdout.partition(" ")
    assert "File too large" in said
    reader = Ledger(str(tmp_path)).reader(SCOPE)
    assert int(kept) > 20
    assert all(key(number) in reader for number in range(int(kept)))
    assert reader.damage == []
