"""One of the attempts holds the lease; who dies loses it at once, who hangs by the clock of whoever waits."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger import lease as module
from pillarbox.ledger.lease import Lease
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.writer import WriterLimits


class Clock:
    """Monotonic seconds, told by the test."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def two(folder: Path, name: str = "task") -> tuple[Lease, Lease]:
    return Lease(str(folder), name), Lease(str(folder), name)


def renew(lease: Lease, clock: Clock) -> None:
    """Renew at a later time of the file system, which may not tell two that are close."""
    assert lease.renew()
    os.utime(lease.path, ns=(int(clock.now * 1e9),) * 2)


@pytest.mark.contract
def test_one_attempt_has_the_lease_until_it_lets_go(tmp_path: Path) -> None:
    one, other = two(tmp_path)
    assert one.acquire() and one.acquire()
    assert not other.acquire()
    other.release()
    assert not other.acquire()
    one.release()
    assert other.acquire()
    assert not one.acquire() and not one.renew()


def test_leases_of_other_tasks_are_others(tmp_path: Path) -> None:
    assert Lease(str(tmp_path), "one").acquire()
    assert Lease(str(tmp_path), "../other/\udcff").acquire()
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.contract("A holder that renews its lease keeps it, and one that does not loses it.")
def test_a_holder_that_renews_keeps_it_and_one_that_does_not_loses_it(tmp_path: Path, clock: Clock) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    for _ in range(20):
        assert not other.acquire()
        clock.now += 2.0
        renew(one, clock)
    assert not other.acquire()
    clock.now += module.STALLED_AFTER_S - 0.1
    assert not other.acquire()
    clock.now += 0.2
    assert other.acquire()
    assert not one.renew()
    one.release()
    assert other.renew()
    assert not one.acquire()


def test_a_holder_that_hangs_and_renews_loses_it_after_a_longer_time(tmp_path: Path, clock: Clock) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    waited = 0.0
    while not other.acquire():
        clock.now += 1.0
        waited += 1.0
        renew(one, clock)
    assert waited == module.HUNG_AFTER_S


def test_two_that_wait_do_not_wait_for_each_other_when_the_holder_has_gone(
    tmp_path: Path, clock: Clock
) -> None:
    one, other = two(tmp_path)
    third = Lease(str(tmp_path), "task")
    assert third.acquire()  # and hangs
    assert not one.acquire() and not other.acquire()
    clock.now += module.STALLED_AFTER_S
    assert one.acquire()
    # The other begins to be patient anew, with the new holder.
    assert not other.acquire()
    clock.now += module.STALLED_AFTER_S
    assert other.acquire()


@pytest.mark.contract
def test_a_clock_that_is_set_neither_ends_nor_extends_a_lease(tmp_path: Path, clock: Clock) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    assert not other.acquire()
    for stepped in (0, 2**33):
        os.utime(one.path, (stepped, stepped))
        assert not other.acquire()
    clock.now += module.STALLED_AFTER_S
    assert other.acquire()


def test_a_writer_renews_its_lease_and_lets_go_with_its_end(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    scope = Scope("run", "uid")
    lease = ledger.lease(scope, "task")
    assert lease is not None and lease.acquire()
    writer = ledger.writer(scope, limits=WriterLimits(renewal_interval=0.001))
    writer.hold(lease)
    os.utime(lease.path, (1, 1))
    while os.stat(lease.path).st_mtime == 1:
        pass
    writer.close()
    assert not os.path.exists(lease.path)


HOLDER = """
import sys, time
from pillarbox.ledger.lease import Lease
assert Lease(sys.argv[1], "task").acquire()
print("held", flush=True)
time.sleep(600)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that has the lease and does not renew it."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.contract
def test_a_holder_that_is_killed_frees_the_lease_at_once(tmp_path: Path, clock: Clock) -> None:
    process = holder(tmp_path)
    other = Lease(str(tmp_path), "task")
    assert not other.acquire()
    ended(process)
    # Not a second has passed.
    assert other.acquire() and other.renew()
    assert len(os.listdir(tmp_path)) == 1


def test_a_holder_that_is_stopped_loses_the_lease_by_patience_and_knows_it_later(
    tmp_path: Path, clock: Clock
) -> None:
    process = holder(tmp_path)
    process.send_signal(signal.SIGSTOP)
    one, other = two(tmp_path)
    assert not one.acquire() and not other.acquire()
    clock.now += module.STALLED_AFTER_S
    assert one.acquire() and not other.acquire()
    ended(process)
    # Its death frees nothing that is another's by then.
    assert not other.acquire() and one.renew()


def test_a_file_that_is_left_behind_means_nothing(tmp_path: Path) -> None:
    one, other = two(tmp_path)
    Path(one.path).write_text("somebody")
    assert one.acquire()
    assert not other.acquire()
    one.release()
    assert other.acquire()


def test_of_two_whose_patience_ends_at_the_same_time_one_gets_the_lease(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Lease(str(tmp_path), "task")
    one, other = two(tmp_path)
    assert hung.acquire() and not one.acquire() and not other.acquire()
    clock.now += module.STALLED_AFTER_S
    look, taken = Lease._look, []

    def slow(lease: Lease) -> tuple[str, int] | None:
        seen = look(lease)
        if lease is one and not taken:
            # Between its look and what it does about it.
            taken.append(True)
            assert other.acquire()
        return seen

    monkeypatch.setattr(Lease, "_look", slow)
    assert not one.acquire()
    assert other.renew() and not hung.renew()


def test_a_lease_that_is_let_go_while_another_tries_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    flock, let_go = fcntl.flock, []

    def late(file: int, how: int) -> None:
        if not let_go:
            # Between opening the file and locking it.
            let_go.append(True)
            one.release()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert other.acquire() or other.acquire()
    assert other.renew()


def test_a_forked_process_does_not_go_on_holding_what_its_parent_held(tmp_path: Path) -> None:
    script = """
import os, sys, time
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.lease import Lease
ledger, scope = Ledger(sys.argv[1]), Scope("run", "uid")
lease = ledger.lease(scope, "task")
assert lease.acquire()
with ledger.writer(scope) as writer:
    writer.append(bytes(16), 1)
    writer.flush()
    with ledger.folder(scope).lock(1.0):
        child = os.fork()
        if not child:
            assert not lease.renew()
            print(os.getpid(), flush=True)
        time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        ledger, scope = Ledger(str(tmp_path)), Scope("run", "uid")
        folder = ledger.folder(scope)
        ((name, *_),) = folder.segments()
        assert folder.is_open(name)
        other = ledger.lease(scope, "task")
        assert other is not None and not other.acquire()
        ended(process)
        with folder.lock(1.0):
            assert not folder.is_open(name)
        assert other.acquire()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lease_of_what_has_expired_is_an_error_that_says_so(tmp_path: Path) -> None:
    ledger, scope = Ledger(str(tmp_path)), Scope("run", "uid")
    lease, other = ledger.lease(scope, "task"), ledger.lease(scope, "task")
    assert lease is not None and other is not None and lease.acquire()
    expire(ledger, scope)
    assert not lease.renew()
    lease.release()
    with pytest.raises(LedgerError, match="has expired"):
        other.acquire()
