"""For how long an attempt of a task waits for another one that has its lease and gets on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox.aio import ledger_session
from pillarbox.aio.ledger_scope import scope_of
from pillarbox.aio.options import Intervals
from pillarbox.ledger import Ledger, lease
from tests.aio.unit.test_ledger_session import Attempt
from tests.aio.unit.virtual import play

HUNG_AFTER_S = 60.0


@pytest.mark.contract(
    "An attempt whose results come is waited for as long as they do; one that brings none is taken for hung.",
    convicts=["patience_not_renewed"],
)
def test_an_attempt_that_gets_on_is_waited_for_and_one_that_does_not_is_taken_for_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Ledger.lease, "__kwdefaults__", {**Ledger.lease.__kwdefaults__, "stalled_after": 1e9})
    ledger = Ledger(str(tmp_path / "ledger"))

    async def polls() -> None:
        await asyncio.sleep(10 * ledger_session.POLL_INTERVAL_S)

    async def script() -> None:
        nonlocal now
        first = Attempt(ledger, monkeypatch, Intervals(lease_check=0.0))
        second = Attempt(ledger, monkeypatch, Intervals(hung_after=HUNG_AFTER_S, lease_check=0.0))
        rows: list[Any] = [{"id": number} for number in range(5)]
        for row in rows:
            assert first.comes(row)[1] is None
        assert first.session.may_call()
        calls = [second.comes(row)[0] for row in rows]
        assert not second.session.may_call()
        for number, call in enumerate(calls[:4], 1):
            now += 0.7 * HUNG_AFTER_S
            assert call.key is not None and call.input is not None
            with ledger.writer(scope_of(second.options.ledger, "run")) as kept:
                kept.append(call.key, "kept", input=call.input)
            await polls()
            assert len(second.left) == number
            assert second.holds == [True] and not second.session.may_call()
        now += 1.1 * HUNG_AFTER_S
        await polls()
        assert second.session.may_call() and not first.session.may_call()
        for attempt in (first, second):
            attempt.end()

    play(script)
