"""Expiry of committed runs: by any number of tasks at a time, that and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.errors import LedgerBusyError
from pillarbox.ledger.local_folder import LocalFolder
from pillarbox.ledger.maintenance import expire, expire_batches
from pillarbox.ledger.upkeep import compact
from tests.ledger.kept import SCOPE, found, keep

ROOT = Path(__file__).resolve().parents[3]
LONG = 600.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def by_batch(scope: Scope) -> tuple[Any, ...]:
    return scope.run, -1 if scope.batch is None else scope.batch, scope.uid, scope.config


@pytest.mark.contract
def test_committed_micro_batches_expire_and_the_others_stay(ledger: Ledger) -> None:
    scopes = [Scope("query", uid, batch=batch) for batch in (3, 10, 11) for uid in ("a", "b")]
    others = [Scope("query-2", "a", batch=3), Scope("named", "a")]
    for scope in [*scopes, *others]:
        keep(ledger, {1: scope.uid}, scope)
    assert expire_batches(ledger, "query", 10) == scopes[:4]
    assert list(ledger.scopes()) == sorted([*scopes[4:], *others], key=by_batch)
    assert found(ledger, scopes[4]) == {1: "a"}
    assert found(ledger, scopes[0]) == {}
    assert expire_batches(ledger, "query", 10) == []
    with pytest.raises(ValueError, match="run='named': has no micro-batches"):
        expire_batches(ledger, "named", 10)


def test_other_operators_configurations_and_runs_stay_when_one_is_named(ledger: Ledger) -> None:
    mine = [Scope("query", "a", "c1", batch) for batch in (1, 2)]
    others = [
        Scope("query", "a", "c2", 1),
        Scope("query", "b", "c1", 1),
        Scope("query", "a", "c1", 3),
        Scope("query", "a", "c1"),
        Scope("query2", "a", "c1", 1),
        Scope("query%", "a", "c1", 1),
    ]
    for scope in [*mine, *others]:
        keep(ledger, {1: 1}, scope)
    assert expire_batches(ledger, "query", 2, uid="a", config="c1") == mine
    assert list(ledger.scopes()) == sorted(others, key=by_batch)
    assert expire_batches(ledger, "query", 2, uid="a") == [others[0]]
    assert expire_batches(ledger, "quer", 9) == []
    assert list(ledger.scopes()) == sorted(others[1:], key=by_batch)


def test_with_nothing_to_do_only_the_folders_of_the_run_are_looked_at(ledger: Ledger) -> None:
    for run in ("query", "other"):
        for batch in range(3):
            keep(ledger, {1: 1}, Scope(run, "a", batch=batch))
    opened: set[str] = set()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.scandir", "open", "os.listdir") and watching:
            opened.add(str(arguments[0]))

    watching = True
    sys.addaudithook(watch)
    assert expire_batches(ledger, "query", -1, uid="a") == []
    watching = False
    assert opened and not any("run=other" in path for path in opened)


EXPIRES = """
import sys
from pillarbox.ledger import Ledger
from pillarbox.ledger.maintenance import expire_batches
ledger = Ledger(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    expire_batches(ledger, "query", int(line), uid="a")
    print("done", flush=True)
"""


@pytest.mark.contract
def test_several_tasks_expire_at_a_time_while_others_write_what_is_not_committed(ledger: Ledger) -> None:
    command = [sys.executable, "-c", EXPIRES, ledger.location]
    tasks = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert all(task.stdout is not None and task.stdout.readline() == "ready\n" for task in tasks)
    for batch in range(25):
        for task in tasks:
            assert task.stdin is not None
            task.stdin.write(f"{batch - 1}\n")
            task.stdin.flush()
        # Folders come and go beside each other.
        keep(ledger, {1: batch}, Scope("query", "a", batch=batch + 1))
        for task in tasks:
            assert task.stdout is not None and task.stdout.readline() == "done\n"
        assert list(ledger.scopes("query")) == [
            Scope("query", "a", batch=kept) for kept in (batch, batch + 1) if kept
        ]
    for task in tasks:
        assert task.stdin is not None and task.stdout is not None
        task.stdin.close()
        assert task.wait(LONG) == 0
        task.stdout.close()
    assert found(ledger, Scope("query", "a", batch=25)) == {1: 24}


def test_what_a_stopped_process_has_locked_is_left_to_a_later_call(ledger: Ledger) -> None:
    scopes = [Scope("query", "a", batch=batch) for batch in (1, 2)]
    for scope in scopes:
        keep(ledger, {1: 1}, scope)
    with LocalFolder(ledger.folder(scopes[0]).path).lock(LONG):
        assert expire_batches(ledger, "query", 2) == scopes[1:]
        with pytest.raises(LedgerBusyError, match="is it stopped"):
            expire(ledger, scopes[0], 0.01)
    assert expire_batches(ledger, "query", 2) == scopes[:1]


def test_expiry_leaves_no_folder_behind_and_can_be_begun_anew(ledger: Ledger) -> None:
    keep(ledger, {1: 1})
    lease = ledger.lease(SCOPE, "task")
    assert lease is not None and lease.acquire()
    assert expire(ledger, SCOPE) > 0
    assert os.listdir(os.path.join(ledger.location, "v2")) == []
    assert expire(ledger, SCOPE) == 0
    keep(ledger, {2: 2})
    assert found(ledger) == {2: 2}


def test_an_expiry_waits_for_the_commit_that_is_at_work(ledger: Ledger) -> None:
    keep(ledger, {1: 1})
    done = threading.Event()
    thread = threading.Thread(target=lambda: (expire(ledger, SCOPE), done.set()))
    with LocalFolder(ledger.folder(SCOPE).path).lock(LONG):
        thread.start()
        assert not done.wait(0.1)
        assert found(ledger) == {1: 1}
    assert done.wait(LONG)
    thread.join()
    assert found(ledger) == {}


def test_what_expires_while_it_is_merged_stays_expired(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(ledger, {1: 1})
    keep(ledger, {2: 2})
    publish = LocalFolder.publish

    def too_late(folder: LocalFolder, part: str, name: str) -> None:
        monkeypatch.undo()
        # As if it had come between the merge and its lock.
        for other in os.listdir(folder.path):
            os.unlink(os.path.join(folder.path, other))
        publish(folder, part, name)

    monkeypatch.setattr(LocalFolder, "publish", too_late)
    with pytest.raises(LedgerError, match="has expired while it was merged"):
        compact(ledger, SCOPE)
    assert found(ledger) == {}
