"""Merging segments changes what is found in nothing, wherever it is killed; what has expired is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.errors import LedgerWarning
from pillarbox.ledger.local_folder import LocalFolder
from pillarbox.ledger.upkeep import COMPACTION_LOCK, compact
from pillarbox.ledger.writer import FRAME_BYTES
from tests.ledger.kept import SCOPE, found, keep
from tests.ledger.unit.segments import key

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def names(ledger: Ledger, scope: Scope = SCOPE) -> list[str]:
    return [name for name, *_ in ledger.folder(scope).segments()]


@pytest.mark.contract
def test_many_segments_become_one_with_the_same_records(ledger: Ledger) -> None:
    parts = [
        {number: [float(number)] * 9 for number in range(start, start + 40)} for start in range(0, 200, 40)
    ]
    for part in parts:
        keep(ledger, part)
    before = found(ledger)
    done = compact(ledger, SCOPE)
    assert (done.segments, done.records, done.damaged) == (5, 200, 0)
    assert found(ledger) == before and len(before) == 200
    assert len(names(ledger)) == 1
    assert done.bytes_after == ledger.folder(SCOPE).segments()[0].size < done.bytes_before
    assert compact(ledger, SCOPE).segments == 0


def test_frames_of_a_merged_segment_are_large_and_none_is_larger_than_said(ledger: Ledger) -> None:
    for start in range(3):
        keep(ledger, {number: number for number in range(start * 3000, start * 3000 + 3000)})
    small = Ledger(ledger.location, commit_rows=5)
    keep(small, {number: number for number in range(9000, 10_000)})
    compact(ledger, SCOPE)
    sizes = [(rows.count, rows.batch.nbytes) for rows, _ in ledger.reader(SCOPE).frames()]
    assert all(FRAME_BYTES <= nbytes < 3 * FRAME_BYTES for _, nbytes in sizes[:-1])
    assert found(ledger) == {number: number for number in range(10_000)}
    # To find one record is to read its frame, so large results are not put together.
    for number in range(10_000, 10_003):
        keep(ledger, {number: "x" * FRAME_BYTES})
    compact(ledger, SCOPE)
    assert [rows.count for rows, _ in ledger.reader(SCOPE).frames()].count(1) >= 2


def test_a_segment_that_a_process_appends_to_is_left_alone(ledger: Ledger) -> None:
    keep(ledger, {1: 1})
    keep(ledger, {2: 2})
    writer = ledger.writer(SCOPE)
    writer.append(key(3), 3)
    writer.flush()
    assert compact(ledger, SCOPE).segments == 2
    writer.append(key(4), 4)
    writer.close()
    assert found(ledger) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_whoever_has_read_before_finds_everything_after_a_merge(ledger: Ledger) -> None:
    for number in range(20):
        keep(ledger, {number: number})
    reader = ledger.reader(SCOPE)
    assert reader.get(key(0)) is not None
    writer = ledger.writer(SCOPE, reader)
    compact(ledger, SCOPE)
    for number in range(20):
        record = reader.get(key(number))
        assert record is not None and record.value == number
    writer.append(key(7), "again")
    writer.close()
    assert found(ledger) == {number: number for number in range(20)}


def test_damaged_records_are_left_out_and_said(ledger: Ledger) -> None:
    keep(ledger, {1: "one"})
    keep(ledger, {2: "two"})
    path = os.path.join(ledger.folder(SCOPE).path, names(ledger)[0])
    content = bytearray(Path(path).read_bytes())
    content[-5] ^= 1
    Path(path).write_bytes(content)
    with pytest.warns(LedgerWarning, match="the checksum of the records is wrong"):
        done = compact(ledger, SCOPE)
    assert (done.records, done.damaged) == (1, 1)
    assert len(found(ledger)) == 1


def test_a_second_compaction_at_a_time_is_refused(ledger: Ledger) -> None:
    keep(ledger, {1: 1})
    with (
        LocalFolder(ledger.folder(SCOPE).path).lock(1.0, COMPACTION_LOCK),
        pytest.raises(LedgerError, match="another process"),
    ):
        compact(ledger, SCOPE, lock_timeout=0.05)


KILLED = """
import os, signal, sys
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.upkeep import compact
left = 0
def count(event, arguments):
    # Every change that a compaction makes to the folder, before it is made.
    global left
    ours = event in ("os.rename", "os.remove") or (event == "open" and str(arguments[0]).endswith(".part"))
    if ours:
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
ledger = Ledger(sys.argv[1])
write = os.writev
def counted(file, parts):
    count("os.remove", ())
    return write(file, parts)
os.writev = counted
sync = os.fsync
def synced(file):
    count("os.remove", ())
    return sync(file)
os.fsync = synced
sys.addaudithook(count)
import pyarrow.compute
for line in sys.stdin:
    child = os.fork()
    if not child:
        left = int(line)
        compact(ledger, Scope("run", "uid"))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    left = -1
    os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(status))
"""


CHANGES = ("rename", "replace", "remove", "unlink", "writev", "fsync")
"""The calls by which a ledger changes a folder."""


@pytest.mark.contract
def test_killed_at_any_step_a_compaction_loses_nothing_and_the_next_one_completes_it(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that is killed leaves the folder as it is then: a copy is what the next one finds."""
    expected = {number: f"value {number}" for number in range(6)}
    for number, value in expected.items():
        keep(ledger, {number: value})
    copies: list[Path] = []

    def noted(change: Any) -> Any:
        def first_copied(*arguments: Any, **named: Any) -> Any:
            copies.append(tmp_path / f"before {len(copies)}")
            shutil.copytree(ledger.location, copies[-1], symlinks=True)
            return change(*arguments, **named)

        return first_copied

    with monkeypatch.context() as watched:
        for name in CHANGES:
            watched.setattr(os, name, noted(getattr(os, name)))
        compact(ledger, SCOPE)
    assert len(copies) >= 8
    states = {tuple(sorted(os.listdir(Ledger(str(copy)).folder(SCOPE).path))) for copy in copies}
    # Before the merged segment is there, while both are, and while the old ones go one by one.
    assert len(states) >= 6
    for copy in copies:
        left = Ledger(str(copy))
        assert found(left) == expected, copy
        keep(left, {10**6: "last"})
        compact(left, SCOPE)
        assert found(left) == {**expected, 10**6: "last"}, copy
        files = os.listdir(left.folder(SCOPE).path)
        assert sorted(name for name in files if not name.startswith(".")) == names(left), copy
        assert len(names(left)) == 1


@pytest.mark.slow
def test_processes_that_are_killed_at_each_step_of_a_compaction_lose_nothing(ledger: Ledger) -> None:
    expected: dict[int, Any] = {}
    command = [sys.executable, "-c", KILLED, ledger.location]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:
        step = killed_step_by_step(ledger, forks, expected)
    assert step >= 8
    keep(ledger, {10**6: "last"})
    compact(ledger, SCOPE)
    assert found(ledger) == {**expected, 10**6: "last"}
    files = os.listdir(ledger.folder(SCOPE).path)
    assert sorted(name for name in files if not name.startswith(".")) == names(ledger)
    assert len(names(ledger)) == 1


def killed_step_by_step(ledger: Ledger, forks: subprocess.Popen[str], expected: dict[int, Any]) -> int:
    """Have a compaction killed at its first step, the next at its second; the step that one had not."""
    assert forks.stdin is not None and forks.stdout is not None
    for step in range(40):
        for _ in range(3):
            fresh = {len(expected): f"value {len(expected)}"}
            keep(ledger, fresh)
            expected |= fresh
        forks.stdin.write(f"{step}\n")
        forks.stdin.flush()
        status = int(forks.stdout.readline())
        assert found(ledger) == expected, step
        if status == 0:
            forks.stdin.close()
            return step
        assert status == -9
    raise AssertionError("a compaction that takes no end of steps")
