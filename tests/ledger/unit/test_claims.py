"""One of several tasks has a claim, and the dead have none; what was kept before it was free is found."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox.aio.dedupe import claims as module
from pillarbox.aio.dedupe.claims import Claims, check_claims, claims_of
from pillarbox.ledger import KeyMaker, Ledger, LedgerError, Scope
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.upkeep import compact
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")
HOLDER = """
import sys
from pillarbox.aio.dedupe.claims import Claims

claims = Claims(sys.argv[1])
print(claims.claim(bytes.fromhex(sys.argv[2])), flush=True)
sys.stdin.read()
"""


@pytest.mark.contract(convicts=["claim_of_process", "claim_of_whole_file"])
def test_one_task_has_a_claim_until_it_frees_it(tmp_path: Path) -> None:
    one, other = Claims(str(tmp_path)), Claims(str(tmp_path))
    assert one.claim(key(1)) and one.claim(key(1))
    assert not other.claim(key(1)) and other.claim(key(2))
    other.free(key(1))
    assert not other.claim(key(1))
    one.free(key(1))
    assert other.claim(key(1)) and not one.claim(key(1))
    other.close()
    other.close()
    assert one.claim(key(1)) and one.claim(key(2))


@pytest.mark.contract
def test_a_process_that_is_killed_has_no_claims(tmp_path: Path) -> None:
    claims = Claims(str(tmp_path))
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path), key(1).hex()]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not claims.claim(key(1))
        holder.send_signal(signal.SIGSTOP)
        assert not claims.claim(key(1))
        holder.kill()
        holder.wait()
        assert claims.claim(key(1))


def _answer(claims: Claims, pipe: multiprocessing.connection.Connection) -> None:
    pipe.send("forked")
    pipe.recv()


def test_a_fork_holds_no_claim_of_its_parent(tmp_path: Path) -> None:
    one, other = Claims(str(tmp_path)), Claims(str(tmp_path))
    assert one.claim(key(1))
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork").Process(target=_answer, args=(one, there))
    fork.start()
    assert here.recv() == "forked"
    assert not other.claim(key(1))
    one.close()
    assert other.claim(key(1))
    here.send("end")
    fork.join()
    assert fork.exitcode == 0


def test_a_thousand_claims_are_each_others_apart(tmp_path: Path) -> None:
    one, other = Claims(str(tmp_path)), Claims(str(tmp_path))
    keys = [KeyMaker()(number) for number in range(2000)]
    assert all(map(one.claim, keys[::2]))
    assert not any(map(other.claim, keys[::2]))
    assert all(map(other.claim, keys[1::2]))
    assert len(os.listdir(tmp_path)) == module.CLAIM_FILES


def test_claims_are_of_a_folder_that_is_there_and_go_with_it(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    with ledger.writer(SCOPE) as writer:
        writer.append(key(1), "one")
    claims = claims_of(ledger, SCOPE)
    assert claims.claim(key(1))
    expire(ledger, SCOPE)
    assert not (tmp_path / "ledger" / "v2" / "run=run").exists()
    with pytest.raises(LedgerError, match="has expired, or was deleted"):
        claims_of(ledger, SCOPE).claim(key(1))


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(LedgerError, match=r"no part of a file can be locked there .* file system"):
        Claims(str(tmp_path)).claim(key(1))


def test_a_system_without_such_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    with pytest.raises(LedgerError, match="operating system has not"):
        check_claims()


@pytest.mark.contract
@pytest.mark.parametrize("seed", range(5))
def test_what_was_committed_before_a_look_at_the_log_is_found(tmp_path: Path, seed: int) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), loss_window=0.001)
    choose = random.Random(seed)
    ledger.folder(SCOPE).make()
    reader = ledger.reader(SCOPE)
    writers = [ledger.writer(SCOPE) for _ in range(3)]
    for number in range(60):
        action = choose.random()
        place = choose.randrange(len(writers))
        if action < 0.15:
            writers[place].close()
            writers[place] = ledger.writer(SCOPE)
        elif action < 0.25:
            compact(ledger, SCOPE)
        writers[place].append(key(number), number)
        writers[place].flush()
        reader.refresh_by_log()
        found = reader.get(key(number))
        assert found is not None and found.value == number
    for writer in writers:
        writer.close()
    assert len(list(reader.records())) == 60
    assert reader.damage == []
