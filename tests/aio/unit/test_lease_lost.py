"""Attempts of one task, one of which is taken for hung, by times that no user chooses."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import Buffer, Options, Retry, async_map
from pillarbox.aio.intervals import Intervals
from pillarbox.ledger import Ledger, lease
from tests.aio.held_disk import HeldDisk
from tests.aio.test_ledger_leaving import Run, Told
from tests.aio.test_ledger_replays import LONG, MODES, Held, Service
from tests.aio.unit.intervals import choose
from tests.waiting import until, wait_until

HUNG_AFTER_S = 60.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with a name, whose leases nobody loses for not renewing them."""
    return Ledger(str(tmp_path / "ledger"), uid="uid", run="run")


@pytest.mark.contract(
    "A disk that has caught up lets no call begin while another attempt has the lease.",
    convicts=["hold_of_lease_released"],
)
def test_a_disk_that_has_caught_up_lets_no_call_begin_while_another_attempt_has_the_lease(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk(monkeypatch)
    told, other = Told(), Told()
    behind = dataclasses.replace(ledger, loss_window=0.01)
    choose(monkeypatch, Intervals(lease_check=0.0))
    slow = Run(range(8), told, options=Options(ledger=behind, capacity=3))
    wait_until(lambda: told.begun.total() == 3)

    def spent() -> float:
        """Seconds for which the ledger has held calls back."""
        totals = slow.results.statistics()
        return 0.0 if totals is None else totals.spent["ledger"]

    # It is taken for hung, and learns at its next call that the lease is another's.
    choose(monkeypatch, Intervals(hung_after=0.0, lease_check=0.0))
    at_once = Options(ledger=ledger)
    rival = Run(range(8), other, options=at_once)
    wait_until(lambda: other.begun.total() == 8)
    told.ended.add(0)
    wait_until(lambda: slow.left == ["answer 0"] and spent() > 0.0)
    # The disk falls behind, and catches up.
    disk.hold()
    told.ended.add(1)
    disk.wait()
    before = spent()
    wait_until(lambda: spent() > before + 2 * behind.loss_window)
    told.ended.add(2)
    wait_until(lambda: slow.counted(3))
    told.ended.update(range(8))
    disk.go_on()
    wait_until(lambda: len(slow.left) >= 3)
    # What calls wait for is looked at now and again: the ledger still holds them back.
    slow.wait_for_look()
    before = spent()
    slow.wait_for_look()
    assert told.begun.total() == 3
    assert spent() > before
    # Once the other one ends, it has all answers.
    other.ended.update(range(8))
    rival.end()
    slow.end()
    assert sorted(slow.left) == [f"answer {row}" for row in range(8)]
    assert told.begun.total() == 3


@pytest.mark.contract(
    "An attempt whose results come is waited for as long as they do; one that brings none is taken for hung.",
    convicts=["patience_not_renewed"],
)
def test_an_attempt_that_gets_on_is_waited_for_and_one_that_does_not_is_taken_for_hung(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: clock.now))
    # Nobody renews a lease by this clock.
    monkeypatch.setattr(Ledger.lease, "__kwdefaults__", {**Ledger.lease.__kwdefaults__, "stalled_after": 1e9})
    told, other = Told(), Told()
    choose(monkeypatch, Intervals(lease_check=0.0))
    first = Run(range(5), told, options=Options(ledger=ledger))
    wait_until(lambda: told.begun.total() == 5)
    choose(monkeypatch, Intervals(hung_after=HUNG_AFTER_S, lease_check=0.0))
    second = Run(
        range(5),
        other,
        options=Options(ledger=ledger),
    )
    wait_until(lambda: (totals := second.results.statistics()) and totals.rows_in == 5)
    for row in range(4):
        clock.now += 0.7 * HUNG_AFTER_S
        told.ended.add(row)
        wait_until(lambda row=row: len(second.left) > row or other.begun)  # type: ignore[misc]
        assert not other.begun
    clock.now += 1.1 * HUNG_AFTER_S
    wait_until(lambda: other.begun)
    assert other.begun == {4: 1}
    other.ended.add(4)
    second.end()
    told.ended.add(4)
    first.end()
    assert sorted(first.left) == sorted(second.left) == [f"answer {row}" for row in range(5)]


class LeaseClock:
    """The clock of leases, in seconds, which the test moves; counts its readings: each look takes one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        return self.now


def test_an_attempt_waits_for_a_rival_as_long_as_that_gets_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, clock = Service(), LeaseClock()
    monkeypatch.setattr(lease, "time", clock)
    # Longer than a call takes, and shorter than two.
    choose(monkeypatch, Intervals(hung_after=3.0))
    options = Options(ledger=ledger, capacity=1)
    waiting: list[Any] = []
    taken_over: list[int] = []

    async def impatient(row: int) -> list[Any]:
        taken_over.append(row)
        return service.answer(row)

    def has_found(rows: int) -> bool:
        counts = waiting[0].statistics() if waiting else None
        return bool(taken_over) or (counts is not None and counts.found >= rows)

    async def slow(row: int) -> list[Any]:
        if row:
            # The other attempt has what was called before, and looks again when the time has passed.
            await until(lambda: has_found(row))
            clock.now += 2.0
            before = clock.readings
            await until(lambda: taken_over or clock.readings > before + 2)
        return service.answer(row)

    rival = async_map(range(8), slow, options=options)
    first = [next(rival)]
    waiting.append(async_map(range(8), impatient, options=options))
    second: list[Any] = []
    other = threading.Thread(target=lambda: second.extend(waiting[0]))
    other.start()
    first += rival
    other.join()
    assert taken_over == []
    assert clock.now == 7 * 2.0
    assert first == second == [[row, 1] for row in range(8)]


@pytest.mark.contract(
    "An attempt that has lost its lease makes no more calls, nor any a second time.",
    convicts=["adopted_result_ignored", "lost_lease_calls"],
)
@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_that_has_lost_its_lease_makes_no_more_calls(
    ledger: Ledger, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, service = Held(fails=3), Service()
    given = {
        "ledger": ledger,
        "retry": Retry(5, initial=0.001),
        "timeout": LONG,
        "capacity": 20,
        "buffer": Buffer(200),
        **MODES[mode],
    }
    choose(monkeypatch, Intervals(lease_check=0.0))
    options = Options(**given)
    results: list[Any] = []
    zombie = async_map(range(600), getattr(held, mode), options=options)
    thread = threading.Thread(target=lambda: results.extend(zombie))
    thread.start()
    most = 20 if mode != "batch" else 140
    held.await_calls(most)
    # It is taken for hung at once, and the lease is another's.
    choose(monkeypatch, Intervals(hung_after=0.0))
    at_once = Options(**given)
    rival = list(async_map(range(600), getattr(service, mode), options=at_once))
    assert rival == [[row, 1] for row in range(600)]
    held.go_on.set()
    thread.join(LONG)
    assert results == rival
    assert held.begun.total() == most
