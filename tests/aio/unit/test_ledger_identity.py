"""The owner of an answer among tasks of one execution, which Spark has and a stand-in makes here."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import os
import threading
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from pillarbox import Options, async_map
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.chained import ChainPlace
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.states import FinishedRow
from pillarbox.api import open_ledgers
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.keys import execution_id
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import TaskSnapshot
from pillarbox.testing.test_io import ReplayedInput
from tests.aio.test_ledger_owner import NAMES, Service, another, rows_of, run
from tests.aio.unit.test_chain_snapshots import Sources
from tests.aio.unit.test_wait_snapshots import UNALIGNED

pytestmark = pytest.mark.usefixtures("each_loop")


LONG = 600.0


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


@pytest.fixture
def one_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tasks that follow tasks of one execution."""
    same = execution_id("action")

    def of_one_execution(options: Options, run: str, **given: Any) -> Any:
        return LedgerSession(options, run, **{**given, "execution": same, "alone": False})

    monkeypatch.setitem(open_ledgers.__globals__, "LedgerSession", of_one_execution)


@pytest.mark.contract
@pytest.mark.usefixtures("one_execution")
def test_a_task_that_comes_later_finds_the_key_of_another_with_another_input(location: str) -> None:
    service = Service()
    rows = rows_of(range(10))
    assert len(run(service, rows, Ledger(location))) == 10
    # A retry of the task, and equal rows of another one, find their answers.
    assert run(service, rows[5:], Ledger(location)) == [[row["text"], 1] for row in rows[5:]]
    with pytest.raises(LedgerConflictError, match="differ in text"):
        run(service, [{"id": 3, "text": "another"}], Ledger(location))
    assert "another" not in service.calls


def in_flight_at_once(ledger: Ledger) -> dict[str, Any]:
    """Two tasks with one key, each of which calls before the other has anything in the ledger."""
    both = threading.Barrier(2)
    outcomes: dict[str, Any] = {}

    def call(row: dict[str, Any]) -> str:
        if row["id"] == "both":
            both.wait()
        return str(row["text"])

    def task(text: str) -> None:
        # They begin with other rows, so that neither waits for the other's lease.
        rows = [{"id": text, "text": "own"}, {"id": "both", "text": text}]
        try:
            outcomes[text] = list(
                async_map(rows, call, ledger=dataclasses.replace(ledger, key=["id"], **NAMES))
            )
        except LedgerConflictError as error:
            outcomes[text] = error

    threads = [threading.Thread(target=task, args=(text,)) for text in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(outcomes) == 2
    return {text: outcome for text, outcome in outcomes.items() if isinstance(outcome, LedgerConflictError)}


@pytest.mark.contract
@pytest.mark.usefixtures("one_execution")
def test_two_tasks_in_flight_with_one_key_and_different_inputs_do_not_both_end_well(location: str) -> None:
    refused = in_flight_at_once(Ledger(location))
    assert len(refused) == 1
    assert "differ in text" in str(next(iter(refused.values())))


@pytest.mark.contract
@pytest.mark.usefixtures("one_execution")
def test_without_a_lock_two_tasks_with_one_key_and_different_inputs_do_not_both_end_well(
    location: str,
) -> None:
    # Two tasks of one job: as two jobs the second would be refused.
    ledger = Ledger(location, filesystem=fs.LocalFileSystem(), exclusive=False)
    refused = in_flight_at_once(ledger)
    assert refused
    assert all("differ in text" in str(error) for error in refused.values())
    # A task that is tried again finds its own answer, and no way out.
    for text in refused:
        rows = [{"id": text, "text": "own"}, {"id": "both", "text": text}]
        with pytest.raises(LedgerConflictError):
            run(Service(), rows, ledger)


@pytest.mark.contract
@pytest.mark.parametrize("stored", ["files", "objects"])
@pytest.mark.parametrize("order", [["found", "called"], ["called", "found"], ["found", "other found"]])
def test_tasks_of_one_execution_do_not_both_end_well_where_an_earlier_run_has_answered_one_input(
    location: str, order: list[str], stored: str, request: pytest.FixtureRequest
) -> None:
    service = Service()
    ledger = Ledger(location, filesystem=fs.LocalFileSystem() if stored == "objects" else None)
    run(service, rows_of(range(10)), ledger)
    if "other found" in order:
        run(service, another(3), ledger)
    request.getfixturevalue("one_execution")
    tasks = {"found": rows_of(range(10)), "called": another(3), "other found": another(3)}
    run(service, tasks[order[0]], ledger)
    for _ in range(2):
        with pytest.raises(LedgerConflictError, match="differ in text"):
            run(service, tasks[order[1]], ledger)
    # A retry of the one that came first sees the other as well.
    with pytest.raises(LedgerConflictError, match="differ in text"):
        run(service, tasks[order[0]], ledger)


@pytest.mark.usefixtures("one_execution")
def test_what_tasks_have_found_is_deleted_a_day_later_by_those_of_another_execution(location: str) -> None:
    service = Service()
    rows = rows_of(range(10))
    scope = Scope.of("run", "uid", {"key": ["id"]})
    ledger = Ledger(location)

    def files() -> list[Path]:
        return [*Path(ledger.folder(scope).path).glob(".found-*")]  # type: ignore[union-attr]

    def find(execution: str) -> None:
        options = Options(ledger=dataclasses.replace(ledger, key=["id"], **NAMES))
        session = LedgerSession(options, "run", execution=execution_id(execution))
        assert session is not None
        conflicts = session.rows._conflicts
        assert conflicts is not None
        conflicts.add(bytes(16), b"", is_old=True)
        conflicts.check(session.reader, ledger.folder(scope))

    run(service, rows, ledger)
    assert not files()
    find("second")
    (old,) = files()
    find("third")
    assert len(files()) == 2
    os.utime(old, (0, 0))
    find("fourth")
    assert len(files()) == 2 and old not in files()


@pytest.mark.contract
def test_a_restored_row_that_is_in_the_ledger_goes_on_in_a_chain_under_its_key(location: str) -> None:
    rows = ["stuck", "a row", "a row"]
    calls: list[str] = []
    keys: dict[int, list[bytes]] = {1: [], 2: []}
    kept = Options(ledger=Ledger(location, uid="a", run="run"), ordered=True)

    async def first(row: str) -> str:
        calls.append(row)
        if row == "stuck" and len(calls) <= len(rows):
            await asyncio.Event().wait()
        return row.upper()

    async def life(number: int, snapshot: TaskSnapshot | None) -> tuple[TaskSnapshot | None, list[Any]]:
        loop = asyncio.get_running_loop()
        session = LedgerSession(kept, "run", execution=execution_id())
        identify, of_rows = session.rows._identify, session.rows._of_rows
        assert of_rows is not None

        def spy_one(row: Any) -> tuple[bytes, bytes]:
            key, value = identify(row)
            keys[number].append(key)
            return key, value

        def spy(rows: Sequence[Any]) -> tuple[list[bytes], list[bytes]]:
            found, inputs = of_rows(rows)
            keys[number] += found
            return found, inputs

        session.rows._identify, session.rows._of_rows = spy_one, spy
        limits: dict[str, Any] = {"loop": loop, "context": contextvars.copy_context()}
        place = ChainPlace("a", True, False, False, attrgetter("key"))
        one = AsyncWaitOperator(first, kept, uid="a", place=place, ledger_session=session, **limits)
        place = ChainPlace("b", False, True, False)
        other = AsyncWaitOperator(plain, Options(), uid="b", place=place, **limits)
        output = Sources(loop, 9)  # type: ignore[arg-type]
        task = StreamTask(ReplayedInput(rows, 3), [one, other], output, latency_interval=None)  # type: ignore[arg-type]
        task.restore(snapshot)
        running = asyncio.ensure_future(task.run_async())
        taken = None
        while snapshot is None and (taken is None or len(durable(taken)) < 2):
            # The ledger's thread works meanwhile.
            checkpoint = 0 if taken is None else taken.barrier.id + 1
            taken = await asyncio.wrap_future(task.trigger_checkpoint_async(checkpoint, UNALIGNED))
        if snapshot is None:
            running.cancel()
        await asyncio.wait([running])
        if snapshot is not None:
            running.result()
        return taken, output.elements

    snapshot, _ = asyncio.run(life(1, None))
    _, elements = asyncio.run(life(2, snapshot))
    assert calls == [*rows, "stuck"]
    assert elements[:3] == [("stuck", (0,), "STUCK"), *[("a row", (0,), "A ROW")] * 2]
    assert keys[1] == keys[2] and len(set(keys[1])) == 3


async def plain(row: Any) -> Any:
    return row


def durable(snapshot: TaskSnapshot) -> list[Any]:
    entries = snapshot.operators["a"].state.entries
    return [each for each in entries if isinstance(each, FinishedRow) and each.is_durable]
