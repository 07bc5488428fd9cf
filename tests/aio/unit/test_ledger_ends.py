"""A session with a ledger ends whole, and lets go of what it has, whatever fails on the way."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from pillarbox import Options, Step, async_map
from pillarbox.aio import ledger_rows, ledger_session
from pillarbox.aio.calls import Call
from pillarbox.aio.dedupe.claimed_calls import ClaimedCalls, HeldClaims
from pillarbox.aio.dedupe.claims import claims_of
from pillarbox.aio.ledger_lookup import POLL_INTERVAL_S
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.ledger import KeyMaker, Ledger, LedgerError, Scope
from pillarbox.ledger.keys import execution_id
from pillarbox.ledger.objects.conditional import conditional_store
from pillarbox.ledger.objects.holder import HOLDER, Holder
from pillarbox.ledger.runs import own_job
from pillarbox.testing.clocks import VirtualTimeLoop


async def echo(row: Any) -> Any:
    return row


def phase_of(ledger: Ledger, scope: Scope) -> str:
    """The phase of the job that holds a run, by its record."""
    version = conditional_store(ledger.filesystem, ledger.folder(scope).path).read(HOLDER)
    assert version is not None
    return Holder.parse(version.content).phase


@pytest.fixture
def held(tmp_path: Path) -> Ledger:
    """A ledger whose runs are held, as in an object store."""
    place = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Ledger("calls", filesystem=place, uid="uid", run="run")


@pytest.mark.contract
def test_a_job_whose_ledger_cannot_be_opened_at_its_end_fails_and_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(str(tmp_path), uid="uid", run="run", key=["id"])
    rows = [{"id": number, "text": "one"} for number in range(3)]
    assert list(async_map(rows, echo, ledger=ledger)) == rows

    class Gone(Ledger):
        def folder(self, scope: Scope) -> Any:
            raise LedgerError("calls cannot be opened")

    whole = ledger_rows.LedgerRows.find_conflict

    def find(self: Any, reader: Any, scope: Scope) -> BaseException | None:
        self._ledger = Gone(str(tmp_path), uid="uid", run="run", key=["id"])
        return whole(self, reader, scope)

    monkeypatch.setattr(ledger_rows.LedgerRows, "find_conflict", find)
    with pytest.raises(LedgerError, match="calls cannot be opened"):
        list(async_map(rows, echo, ledger=ledger))


@pytest.mark.contract
def test_a_session_that_no_operator_uses_gives_its_run_back_when_it_is_closed(held: Ledger) -> None:
    session = LedgerSession(
        Options(ledger=held), "run", execution=execution_id(), alone=True, job=own_job(held, "plan")
    )
    (scope,) = held.scopes()
    assert phase_of(held, scope) == "calling"
    # The session closes on a thread, which takes real time.
    asyncio.run(session.close())
    assert phase_of(held, scope) == "free"


@pytest.mark.contract
def test_a_run_is_free_again_when_the_ledger_of_a_later_function_cannot_be_opened(
    held: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Scope] = []
    whole = ledger_session.shared_reader

    def open_one(ledger: Ledger, scope: Scope, **more: Any) -> Any:
        opened.append(scope)
        if len(opened) == 2:
            raise LedgerError("the second cannot be opened")
        return whole(ledger, scope, **more)

    monkeypatch.setattr(ledger_session, "shared_reader", open_one)
    second = Ledger(str(tmp_path / "second"), uid="second", run="run")
    steps = [Step(echo, ledger=held), Step(echo, ledger=second)]
    with pytest.raises(LedgerError, match="the second cannot be opened"):
        list(async_map(range(3), steps))
    assert phase_of(held, opened[0]) == "free"


def test_a_session_that_ends_by_the_result_of_another_task_looks_for_no_more(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), uid="uid", run="run")
    list(async_map(["before"], echo, ledger=ledger))
    (scope,) = ledger.scopes()
    other = claims_of(ledger, scope)
    calls = [Call(row, 0) for row in ("a", "b")]
    for call in calls:
        call.key = KeyMaker()(call.row)
        assert other.claim(call.key)
    loop = VirtualTimeLoop()
    found: list[Any] = []

    def look_again(call: Call) -> bool:
        # The second one, whose result ends the job.
        if call is not calls[1] or not loop.time():
            return False
        found.append(call.row)
        claimed.stop()
        return True

    reader = SimpleNamespace(refresh_by_log=lambda: None, get=lambda *key, **more: None)
    flow = SimpleNamespace(
        loop=loop, waiting=deque(calls), suspend=lambda call: None, resume=pytest.fail, stop=pytest.fail
    )
    results = SimpleNamespace(look_again=look_again)
    claims = HeldClaims(ledger, scope)
    options = Options()
    flow_of: Any = flow
    claimed = ClaimedCalls(flow_of, SimpleNamespace(reader=reader), claims, results, options)  # type: ignore[arg-type]
    assert claimed.claim(calls) == set()
    assert loop.armed_timers == 1
    loop.advance(2 * POLL_INTERVAL_S)
    assert loop.run_ready(10)
    assert found == ["b"]
    assert loop.armed_timers == 0
    claims.close()
    loop.close()
