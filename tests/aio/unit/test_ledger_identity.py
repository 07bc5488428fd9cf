"""The owner of an answer: a row gets the answer to its own input, by its own function, and no other row's."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
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
from pillarbox.ledger import Cache, Ledger, Scope
from pillarbox.ledger.errors import LedgerConflictError, LedgerValueError, LedgerWarning
from pillarbox.ledger.keys import execution_id
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import TaskSnapshot
from pillarbox.testing.test_io import ReplayedInput
from tests.aio.unit.test_chains import Sources
from tests.aio.unit.test_wait_snapshots import UNALIGNED

pytestmark = pytest.mark.usefixtures("each_loop")

LONG = 600.0
NAMES: dict[str, Any] = {"uid": "uid", "run": "run"}


class Service:
    """Answers with the row's text and the number of its call; counts calls by text."""

    def __init__(self) -> None:
        self.calls: Counter[Any] = Counter()

    async def call(self, row: dict[str, Any]) -> list[Any]:
        await asyncio.sleep(0)
        self.calls[row["text"]] += 1
        return [row["text"], self.calls[row["text"]]]


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def run(service: Service, rows: list[dict[str, Any]], ledger: Ledger, **given: Any) -> list[Any]:
    names = {"key": ["id"], **NAMES}
    names |= {name: given.pop(name) for name in ("key", "uid", "run") if name in given}
    return list(async_map(rows, service.call, ledger=dataclasses.replace(ledger, **names), **given))


def rows_of(numbers: range, text: str = "text", **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"{text} {number}", **more} for number in numbers]


@pytest.mark.contract
@pytest.mark.parametrize("key", [["id"], ["id", "text"]])
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_row_whose_key_is_null_gets_its_own_answer(location: str, key: list[str], capacity: int) -> None:
    service = Service()
    rows = rows_of(range(40))
    for row in rows[::4]:
        row["id"] = None
    first = run(service, rows, Ledger(location), key=key, capacity=capacity)
    assert first == [[row["text"], 1] for row in rows]
    assert run(service, [*reversed(rows)], Ledger(location), key=key) == [*reversed(first)]
    # Equal rows without a key are counted, as rows without key columns are.
    twice = run(service, [rows[0], rows[0]], Ledger(location), key=key)
    assert twice == [[rows[0]["text"], 1], [rows[0]["text"], 2]]


@pytest.mark.contract(convicts=["other_input_joins"])
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_key_that_comes_twice_with_different_inputs_ends_the_job(location: str, capacity: int) -> None:
    service = Service()
    rows = [*rows_of(range(20)), {"id": 7, "text": "another"}]
    with pytest.raises(LedgerConflictError, match="have one key, and differ in text; .*name one row"):
        run(service, rows, Ledger(location), capacity=capacity, errors="null")
    assert "another" not in service.calls


@pytest.mark.contract
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_row_whose_columns_come_in_another_order_is_the_same_row(location: str, capacity: int) -> None:
    service = Service()
    row = rows_of([7], lang="en")[0]
    other = dict(reversed(row.items()))
    assert list(other) != list(row)
    for rows in ([row, other], [other, row]):
        assert run(service, rows, Ledger(location), capacity=capacity) == [[row["text"], 1]] * 2


@pytest.mark.contract
def test_rows_of_one_key_and_one_input_in_flight_share_one_call(location: str) -> None:
    service = Service()
    rows = rows_of(range(5)) * 3
    job = async_map(rows, service.call, ledger=Ledger(location, key=["id"], **NAMES))
    assert list(job) == [[row["text"], 1] for row in rows]
    assert set(service.calls.values()) == {1}
    statistics = job.statistics()
    assert statistics is not None
    assert (statistics.calls, statistics.shared + statistics.found, statistics.results) == (5, 10, 15)
    assert len(list(Ledger(location).reader(Scope.of("run", "uid", {"key": ["id"]})).records())) == 5


def test_rows_that_share_a_call_share_its_failure_and_count(location: str) -> None:
    async def call(row: dict[str, Any]) -> int:
        await asyncio.sleep(0)
        raise ValueError(row["id"])

    rows = rows_of(range(2)) * 3
    job = async_map(rows, call, ledger=Ledger(location, key=["id"], **NAMES), errors="column")
    assert [outcome.error.type for outcome in job] == ["ValueError"] * 6  # type: ignore[attr-defined]
    statistics = job.statistics()
    assert statistics is not None and statistics.errors == 6


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


def another(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": "another"}]


@pytest.mark.contract(
    "A key that comes twice with different inputs is an error where an earlier run has answered one, too."
)
@pytest.mark.parametrize("of_found", [0, 2000])
def test_a_key_that_comes_twice_is_an_error_where_an_earlier_run_has_answered_one_input(
    location: str, of_found: int
) -> None:
    service = Service()
    rows = rows_of(range(10 + of_found))
    first = run(service, rows, Ledger(location))
    with pytest.raises(LedgerConflictError, match="differ in text"):
        run(service, rows + another(3), Ledger(location))
    # Now an earlier run has answered both.
    with pytest.raises(LedgerConflictError, match="differ in text"):
        run(service, another(3) + rows, Ledger(location))
    assert run(service, rows, Ledger(location)) == first
    assert run(service, another(3), Ledger(location)) == [["another", 1]]


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
        conflicts = session._conflicts
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


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The messages of this package, each once."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("pillarbox").addHandler(handler)
    yield messages
    logging.getLogger("pillarbox").removeHandler(handler)


@pytest.mark.contract
def test_a_row_whose_input_has_changed_is_called_again_and_one_message_gives_the_count(
    location: str, said: list[str]
) -> None:
    service = Service()
    old, new = rows_of(range(20), "old", lang="en"), rows_of(range(20), "new", lang="en")
    first = run(service, old, Ledger(location))
    assert not said
    assert run(service, new, Ledger(location)) == [[row["text"], 1] for row in new]
    assert len(said) == 1
    assert "uid='uid': 20 rows were called again" in said[0] and "(it differs by text in 20)" in said[0]
    # Both answers stay, each for its input.
    assert run(service, new, Ledger(location)) == [[row["text"], 1] for row in new]
    assert run(service, old, Ledger(location)) == first
    assert set(service.calls.values()) == {1}
    assert len(said) == 1


@pytest.mark.contract
def test_an_answer_of_another_version_is_called_for_again(location: str, said: list[str]) -> None:
    service = Service()
    rows = rows_of(range(20))
    for version, calls in ((None, 1), (1, 2), ("1", 3), (1, 2), (None, 1)):
        expected = [[row["text"], calls] for row in rows]
        assert run(service, rows, Ledger(location, version=version)) == expected
    assert set(service.calls.values()) == {3}
    assert len(said) == 2
    assert "20 rows were called again" in said[0] and "20 of another version than 1" in said[0]


@pytest.mark.contract
def test_only_the_columns_that_are_named_count_also_of_what_was_kept_before(
    location: str, said: list[str]
) -> None:
    service = Service()

    def rows(read_at: int, lang: str = "en") -> list[dict[str, Any]]:
        return rows_of(range(20), read_at=read_at, lang=lang)

    run(service, rows(1), Ledger(location))
    run(service, rows(2), Ledger(location))
    assert set(service.calls.values()) == {2}
    # A volatile column is told at once, and what to do about it.
    assert "(it differs by read_at in 20)" in said[0] and "name those that count: inputs=[...]" in said[0]
    named = Ledger(location, inputs=["text"])
    assert {row[1] for row in run(service, rows(3), named)} <= {1, 2}
    assert {row[1] for row in run(service, rows(4, "de"), named)} <= {1, 2}
    assert set(service.calls.values()) == {2}
    assert [row[1] for row in run(service, rows(4, "de"), Ledger(location, inputs=["text", "lang"]))] == [
        3
    ] * 20
    assert "(it differs by lang in 20)" in said[-1]


def test_a_row_without_key_columns_is_known_by_the_columns_that_count(location: str) -> None:
    service = Service()
    ledger = Ledger(location, inputs=["text"])
    first = run(service, rows_of(range(5), read_at=1), ledger, key=None)
    assert run(service, rows_of(range(5), read_at=2), ledger, key=None) == first
    # The same values under another name are other rows.
    renamed = [{"text": 0, "title": row["text"]} for row in rows_of(range(5))]
    service.calls.clear()
    run(service, renamed, Ledger(location, inputs=["title"]), key=None)
    assert service.calls.total() == 5


@pytest.mark.contract
def test_a_segment_of_another_operator_is_not_believed(location: str) -> None:
    service = Service()
    rows = rows_of(range(20))
    run(service, rows, Ledger(location), uid="other")
    # Copied under the name of this one.
    (folder,) = Path(location).glob("v2/run=run/batch=none/uid=other")
    shutil.copytree(folder, folder.with_name("uid=uid"))
    with pytest.warns(LedgerWarning, match="belongs to run='run', batch='None', uid='other'.*not believed"):
        assert run(service, rows, Ledger(location)) == [[row["text"], 2] for row in rows]
    assert run(service, rows, Ledger(location), uid="other") == [[row["text"], 1] for row in rows]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"version": 1.5}, TypeError, "version=1.5: must be an int, a str or None"),
        ({"version": True}, TypeError, "version=True: must be"),
        ({"version": ""}, ValueError, "version='': must not be empty"),
        ({"inputs": "text"}, TypeError, "inputs='text': must be a list of names"),
        ({"inputs": []}, ValueError, r"inputs=\[\]: must name a column"),
        ({"inputs": [1.5]}, TypeError, "1.5 is neither a name nor a position"),
    ],
)
def test_what_a_ledger_is_told_of_versions_and_inputs_is_checked(
    location: str, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Ledger(location, **given)


def test_a_column_without_a_fingerprint_is_named_and_what_to_do(location: str) -> None:
    service = Service()
    rows = [{"id": 1, "text": "x", "socket": object()}]
    with pytest.raises(LedgerValueError, match=r"column 'socket': .* Ledger\(\.\.\., inputs=\[\.\.\.\]\)"):
        run(service, rows, Ledger(location))
    assert run(service, rows, Ledger(location, inputs=["text"])) == [["x", 1]]


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
        identify = session.identify

        def spy(call: Any) -> None:
            identify(call)
            keys[number].append(call.key)

        session.identify = spy  # type: ignore[method-assign]
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


@pytest.mark.contract(
    "What a row of Pydantic has beyond the fields of its class counts in a ledger and a cache.",
    convicts=["extra_fields_not_fingerprinted"],
)
@pytest.mark.parametrize(
    "given",
    [{"key": ["name"], "run": "run"}, {"cache": Cache()}],
    ids=["ledger", "cache"],
)
def test_what_a_row_has_beyond_the_fields_of_its_class_counts(location: str, given: dict[str, Any]) -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Open(pydantic.BaseModel, frozen=True, extra="allow"):  # type: ignore[name-defined, misc]
        name: str

    calls = []

    async def call(row: Any) -> Any:
        calls.append(row.more)
        return row.more

    ledger = Ledger(location, uid="uid", **given)
    for more in (1, 2, 1.0):
        rows = [Open(name="a", more=more)]
        assert [*async_map(rows, call, ledger=ledger)] == [more]
    assert [*map(repr, calls)] == ["1", "2", "1.0"]
