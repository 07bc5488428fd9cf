"""One of the attempts holds the lease; who dies or hangs loses it, by the clock of whoever waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pillarbox.ledger import Lease, Ledger, Scope
from pillarbox.ledger import lease as module


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
    assert lease.beat()
    os.utime(lease.path, ns=(int(clock.now * 1e9),) * 2)


def test_one_attempt_has_the_lease_until_it_lets_go(tmp_path: Path) -> None:
    one, other = two(tmp_path)
    assert one.acquire() and one.acquire()
    assert not other.acquire()
    other.release()
    assert not other.acquire()
    one.release()
    assert other.acquire()
    assert not one.acquire() and not one.beat()


def test_leases_of_other_tasks_are_others(tmp_path: Path) -> None:
    assert Lease(str(tmp_path), "one").acquire()
    assert Lease(str(tmp_path), "../other/\udcff").acquire()
    assert len(os.listdir(tmp_path)) == 2


def test_a_holder_that_renews_keeps_it_and_one_that_does_not_loses_it(tmp_path: Path, clock: Clock) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    for _ in range(20):
        assert not other.acquire()
        clock.now += 2.0
        renew(one, clock)
    assert not other.acquire()
    clock.now += module.PATIENCE - 0.1
    assert not other.acquire()
    clock.now += 0.2
    assert other.acquire()
    assert not one.beat()
    one.release()
    assert other.beat()


def test_a_holder_that_hangs_and_renews_loses_it_after_a_longer_time(tmp_path: Path, clock: Clock) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    waited = 0.0
    while not other.acquire():
        clock.now += 1.0
        waited += 1.0
        renew(one, clock)
    assert waited == module.LONGEST


def test_two_that_wait_do_not_wait_for_each_other_when_the_holder_has_gone(
    tmp_path: Path, clock: Clock
) -> None:
    one, other = two(tmp_path)
    third = Lease(str(tmp_path), "task")
    assert third.acquire()
    assert not one.acquire() and not other.acquire()
    clock.now += module.PATIENCE
    assert one.acquire()
    # The other begins to be patient anew, with the new holder.
    assert not other.acquire()
    clock.now += module.PATIENCE
    assert other.acquire()


def test_a_clock_that_is_set_neither_ends_nor_extends_a_lease(tmp_path: Path, clock: Clock) -> None:
    one, other = two(tmp_path)
    assert one.acquire()
    assert not other.acquire()
    for stepped in (0, 2**33):
        os.utime(one.path, (stepped, stepped))
        assert not other.acquire()
    clock.now += module.PATIENCE
    assert other.acquire()


def test_a_writer_renews_its_lease_and_lets_go_with_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.ledger.writer.BEAT", 0.001)
    ledger = Ledger(str(tmp_path))
    scope = Scope("run", "uid")
    lease = ledger.lease(scope, "task")
    assert lease is not None and lease.acquire()
    writer = ledger.writer(scope)
    writer.keep(lease)
    os.utime(lease.path, (1, 1))
    while os.stat(lease.path).st_mtime == 1:
        pass
    writer.close()
    assert not os.path.exists(lease.path)
