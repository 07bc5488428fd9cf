"""A folder of segments: its names are durable, its lock orders commits, its log says who has committed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.errors import LedgerBusyError, LedgerClosedError
from pillarbox.ledger.format import owner_of
from pillarbox.ledger.local_folder import LOG_ENTRY_BYTES, LOG_ID_BYTES, LocalFolder, LocalSegment
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.upkeep import compact
from pillarbox.ledger.writer import Commit
from tests.ledger.unit.segments import key, segment

SCOPE = Scope("run", "uid")
LONG = 600.0
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def keep(ledger: Ledger, number: int, value: Any) -> None:
    with ledger.writer(SCOPE) as writer:
        writer.append(key(number), value)


def local(ledger: Ledger) -> LocalFolder:
    folder = ledger.folder(SCOPE)
    assert isinstance(folder, LocalFolder)
    return folder


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="what is synced is named by /proc")
def test_the_folders_above_a_segment_are_made_durable_whoever_has_made_them(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = local(ledger).path
    # By a process that was killed before it could.
    os.makedirs(path)
    synced: set[str] = set()
    sync = os.fsync

    def watched(file: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    monkeypatch.setattr(os, "fsync", watched)
    keep(ledger, 1, 1)
    above = [path]
    while above[-1] != ledger.location:
        above.append(os.path.dirname(above[-1]))
    assert set(above) <= synced


def test_a_folder_is_made_although_an_expiry_takes_the_empty_ones_above_away(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = local(ledger).path
    mkdir, left = os.mkdir, [3]

    def disturbed(folder: str, *arguments: Any, **named: Any) -> None:
        if folder == path and left[0]:
            left[0] -= 1
            for _ in range(3):
                folder = os.path.dirname(folder)
                os.rmdir(folder)
            folder = path
        mkdir(folder, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", disturbed)
    keep(ledger, 1, 1)
    assert left == [0] and key(1) in ledger.reader(SCOPE)


def test_who_waited_for_the_lock_of_what_expires_is_told_and_holds_no_lock_of_nothing(ledger: Ledger) -> None:
    local(ledger).make()
    with local(ledger).lock(LONG):
        waiting = os.open(os.path.join(local(ledger).path, ".lock"), os.O_RDWR)
        os.close(waiting)
        os.unlink(os.path.join(local(ledger).path, ".lock"))
        # Another file has the name by now: who gets it excludes whoever comes later.
        with local(ledger).lock(LONG), pytest.raises(LedgerBusyError), local(ledger).lock(0.0):
            raise AssertionError("two hold the lock")


def test_a_lock_that_was_taken_on_a_deleted_file_is_taken_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = local(ledger)
    folder.make()
    opened = LocalFolder._open_lock
    deleted = []

    def then_deleted(self: LocalFolder, name: str) -> int:
        file = opened(self, name)
        if not deleted:
            deleted.append(name)
            os.unlink(os.path.join(folder.path, name))
        return file

    monkeypatch.setattr(LocalFolder, "_open_lock", then_deleted)
    with folder.lock(LONG), pytest.raises(LedgerBusyError), local(ledger).lock(0.0):
        raise AssertionError("two hold the lock")
    assert deleted == [".lock"]


@pytest.mark.contract
def test_a_zombie_of_an_expired_scope_that_has_begun_anew_acknowledges_nothing(
    ledger: Ledger,
) -> None:
    zombie = ledger.writer(SCOPE)
    zombie.append(key(1), "old")
    zombie.flush(LONG)
    expire(ledger, SCOPE)
    keep(ledger, 2, "new")
    zombie.append(key(3), "old")
    with pytest.raises(LedgerError, match="has expired, or was deleted"):
        zombie.flush(LONG)
    assert zombie.durable_through == 1
    reader = ledger.reader(SCOPE)
    assert [number for number in (1, 2, 3) if key(number) in reader] == [2]
    # It has crashed nobody.
    keep(ledger, 4, "new")


@pytest.mark.contract
def test_what_could_not_be_made_durable_is_cut_off_and_nobody_takes_it_for_durable(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ledger.writer(SCOPE)
    writer.append(key(1), "durable")
    writer.flush(LONG)
    reader = ledger.reader(SCOPE)
    fsync = os.fsync
    other: list[Any] = []

    def broken(file: int) -> None:
        # The page cache has the record, and another attempt sees it there.
        reader.refresh()
        other.extend(reader.kinds_of([(key(2), b"")], bytes(8))[0].values())
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    writer.append(key(2), "lost")
    with pytest.raises(OSError, match="Input/output error"):
        writer.flush(LONG)
    writer._thread.join(LONG)
    # The next fsync succeeds, as Linux has it, without the data.
    monkeypatch.setattr(os, "fsync", fsync)
    assert other == ["value"]
    assert reader.get(key(2)) is None and key(1) in reader
    assert ledger.reader(SCOPE).get(key(2)) is None
    assert ledger.reader(SCOPE).damage == []
    keep(ledger, 2, "again")
    reader.refresh()
    found = reader.get(key(2))
    assert found is not None and found.value == "again"


def test_a_record_that_goes_while_it_is_adopted_is_written_by_whoever_wanted_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(ledger, 1, "theirs")
    commits: list[Commit] = []
    writer = ledger.writer(SCOPE, on_commit=commits.append)
    (name, size, _), *_ = local(ledger).segments()
    sync = LocalFolder.sync

    def cut_off(folder: LocalFolder, segment: str) -> None:
        if segment == name:
            os.truncate(os.path.join(folder.path, name), size - 10)
        sync(folder, segment)

    monkeypatch.setattr(LocalFolder, "sync", cut_off)
    writer.append(key(1), "mine")
    writer.flush(LONG)
    monkeypatch.undo()
    assert commits == [Commit(1, {})]
    found = ledger.reader(SCOPE).get(key(1))
    assert found is not None and found.value == "mine"
    writer.close()


def test_a_commit_looks_at_no_segment_that_nobody_has_appended_to(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = local(ledger)
    folder.make()
    for number in range(20):
        name = f"{number:016x}"
        Path(folder.path, f"{name}.arrow").write_bytes(segment([{number: "x"}], name, owner_of(SCOPE.about)))
    mine, other = ledger.writer(SCOPE), ledger.writer(SCOPE)
    for number, writer in ((100, mine), (101, other)):
        writer.append(key(number), "x")
        writer.flush(LONG)
    looked: list[str] = []
    size_of, list_all = LocalFolder.size, LocalFolder.segments
    monkeypatch.setattr(LocalFolder, "size", lambda self, name: (looked.append(name), size_of(self, name))[1])
    monkeypatch.setattr(LocalFolder, "segments", lambda self: (looked.append("all"), list_all(self))[1])
    commits: list[Commit] = []
    mine._on_commit = commits.append
    mine.append(key(101), "mine")
    mine.flush(LONG)
    # That of the other one, to see what is new and to make it durable, and its own; not the 20 others.
    assert set(looked) == {f"{writer._committer.segment_id}.arrow" for writer in (mine, other)}
    assert [record.value for record in commits[0].adopted.values()] == ["x"]
    mine.close()
    other.close()


@pytest.mark.contract
def test_a_process_that_is_killed_between_announcement_and_record_harms_nobody(
    ledger: Ledger,
) -> None:
    keep(ledger, 1, "x")
    writer = ledger.writer(SCOPE)
    writer.append(key(2), "x")
    writer.flush(LONG)
    folder = local(ledger)
    with folder.lock(LONG) as lock:
        folder.announce(lock, "00" * 8 + ".arrow")
        # And one whose announcement is torn.
        os.pwrite(lock, b"abc", os.fstat(lock).st_size)
    # The writer commits by itself after a while as well.
    commits: list[Commit] = []
    writer._on_commit = commits.append
    for number in (3, 4):
        keep(ledger, number, "y")
        writer.append(key(number), "mine")
    writer.flush(LONG)
    adopted = [record.value for commit in commits for record in commit.adopted.values()]
    assert adopted == ["y", "y"]
    assert len(ledger.reader(SCOPE)) == 4
    writer.close()


@pytest.mark.parametrize("lost", ["deleted", "empty", "another"])
def test_a_log_of_commits_that_is_lost_hides_nothing(ledger: Ledger, lost: str) -> None:
    writer = ledger.writer(SCOPE)
    writer.append(key(1), "x")
    writer.flush(LONG)
    writer.append(key(5), "x")
    writer.flush(LONG)
    path = Path(local(ledger).path, ".lock")
    # The next log will be as long as what the writer has read of this one.
    assert path.stat().st_size == LOG_ID_BYTES + 2 * LOG_ENTRY_BYTES
    if lost == "deleted":
        path.unlink()
    elif lost == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(bytes(LOG_ID_BYTES + 5 * LOG_ENTRY_BYTES))
    keep(ledger, 2, "theirs")
    commits: list[Commit] = []
    writer._on_commit = commits.append
    writer.append(key(2), "mine")
    writer.flush(LONG)
    assert [record.value for record in commits[-1].adopted.values()] == ["theirs"]
    writer.close()


def test_a_record_that_was_merged_before_a_commit_has_looked_is_adopted(ledger: Ledger) -> None:
    writer = ledger.writer(SCOPE)
    writer.append(key(1), "x")
    writer.flush(LONG)
    keep(ledger, 2, "theirs")
    keep(ledger, 3, "theirs")
    assert compact(ledger, SCOPE).segments == 2
    commits: list[Commit] = []
    writer._on_commit = commits.append
    writer.append(key(2), "mine")
    writer.append(key(1), "mine")
    writer.flush(LONG)
    adopted = {number: record.value for commit in commits for number, record in commit.adopted.items()}
    assert adopted == {2: "theirs", 3: "x"}
    assert len(ledger.reader(SCOPE)) == 3
    writer.close()


def test_a_merge_publishes_and_deletes_while_nobody_commits(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(ledger, 1, "x")
    keep(ledger, 2, "x")
    publish, remove, seen = LocalFolder.publish, LocalFolder.remove, []

    def is_locked() -> bool:
        try:
            with local(ledger).lock(0.0):
                return False
        except LedgerBusyError:
            return True

    def watched(folder: LocalFolder, *names: str) -> None:
        seen.append(is_locked())
        (publish if len(names) == 2 else remove)(folder, *names)  # type: ignore[arg-type,call-arg]

    monkeypatch.setattr(LocalFolder, "publish", watched)
    monkeypatch.setattr(LocalFolder, "remove", watched)
    assert compact(ledger, SCOPE).segments == 2
    assert seen == [True, True, True]


@pytest.mark.contract
def test_a_writer_refuses_to_work_in_a_forked_process(tmp_path: Path) -> None:
    script = """
import os, sys
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.errors import LedgerClosedError
writer = Ledger(sys.argv[1]).writer(Scope("run", "uid"))
writer.append(bytes(16), 1)
writer.flush()
with writer._changed:
    # As another thread may hold it.
    child = os.fork()
    if not child:
        writer.hurry()
if not child:
    for use in (lambda: writer.append(bytes(16), 2), writer.flush, writer.close):
        try:
            use()
        except LedgerClosedError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
writer.append(bytes(16), 3)
writer.close()
sys.exit(status)
"""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True, timeout=LONG, cwd=ROOT
    )


def test_a_segment_that_cannot_be_begun_is_not_left_behind(tmp_path: Path) -> None:
    def full(file: int, parts: list[bytes]) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(LedgerError, match="No space left"):
            LocalSegment(str(tmp_path / "segment"), b"header")
    assert os.listdir(tmp_path) == []
    assert issubclass(LedgerBusyError, LedgerError) and issubclass(LedgerClosedError, LedgerError)


def test_what_another_thread_with_the_same_reader_commits_before_the_lock_is_adopted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ledger.reader(SCOPE)
    commits: list[Commit] = []
    first = ledger.writer(SCOPE, reader)
    second = ledger.writer(SCOPE, reader, on_commit=commits.append)
    first.append(key(0), "x")
    first.flush(LONG)
    lock, disturbed = LocalFolder.lock, []

    def late(folder: LocalFolder, *arguments: Any) -> Any:
        if not disturbed:
            # Between what the second one has looked at and its lock.
            disturbed.append(True)
            first.append(key(1), "first")
            first.flush(LONG)
        return lock(folder, *arguments)

    monkeypatch.setattr(LocalFolder, "lock", late)
    second.append(key(1), "second")
    # A flush may be over before its commit was told.
    second.close()
    first.close()
    assert [record.value for record in commits[0].adopted.values()] == ["first"]
    assert len(ledger.reader(SCOPE)) == 2


def test_a_scan_that_a_merge_overtakes_finds_everything(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        keep(ledger, number, "x")
    list_all, merged = LocalFolder.segments, []

    def overtaken(folder: LocalFolder) -> list[tuple[str, int]]:
        segments = list_all(folder)
        if not merged:
            merged.append(True)
            compact(ledger, SCOPE)
        return segments

    monkeypatch.setattr(LocalFolder, "segments", overtaken)
    reader = ledger.reader(SCOPE)
    assert all(key(number) in reader for number in range(4))
    assert len(reader) == 4
