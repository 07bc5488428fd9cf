"""The moment at which a result leaves a job with a ledger: its record is durable, or another attempt's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Buffer, ErrorInfo, Ledger, Options, async_map
from tests.aio.held_disk import HeldDisk
from tests.waiting import until, wait_until


class Told:
    """An async function whose calls end when the test says so; of the rows in `fails` by an error."""

    def __init__(self, *fails: Any) -> None:
        self.fails = fails
        self.begun: Counter[Any] = Counter()
        self.ended: set[Any] = set()

    async def __call__(self, row: Any) -> Any:
        name = row["id"] if isinstance(row, dict) else row
        self.begun[name] += 1
        await until(lambda: name in self.ended)
        if name in self.fails:
            raise ValueError(f"row {name}")
        return f"answer {name}"


class Run:
    """A job in a thread of its own; keeps what has left it, results and errors."""

    def __init__(self, rows: Any, fn: Any, **options: Any) -> None:
        self.left: list[Any] = []
        self.results = async_map(rows, fn, ordered=False, errors="column", **options)
        self.thread = threading.Thread(target=self._take, daemon=True)
        self.thread.start()

    def _take(self) -> None:
        for result, error in self.results:
            self.left.append(result if error is None else error)

    def counted(self, calls: int) -> bool:
        """True if so many calls have ended."""
        totals = self.results.statistics()
        return totals is not None and totals.latency.measurements >= calls

    def wait_for_look(self) -> None:
        """Wait until it was looked at once more what calls wait for: a look accounts for the time since."""
        before = self._accounted()
        wait_until(lambda: self._accounted() > before)

    def _accounted(self) -> float:
        totals = self.results.statistics()
        return 0.0 if totals is None else sum(totals.spent.values())

    def end(self) -> None:
        self.thread.join()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDisk]:
    disk = HeldDisk(monkeypatch)
    yield disk
    disk.go_on()


@pytest.mark.contract(
    "A result leaves when its own record is durable, and not one record before.",
    convicts=["emitted_before_durable", "failure_not_recorded"],
)
def test_a_result_leaves_when_its_own_record_is_durable_and_not_before(
    tmp_path: Path, disk: HeldDisk
) -> None:
    # Rows that have failed are not called again.
    ledger = Ledger(str(tmp_path), uid="uid", run="run", loss_window=3600.0, retry_errors=False)
    told = Told(2)
    run = Run(range(5), told, ledger=ledger)
    told.ended.add(0)
    wait_until(lambda: run.left == ["answer 0"])
    disk.hold()
    # A record is to be made durable; two more come meanwhile, one of them of a row that has failed.
    told.ended.add(1)
    disk.wait()
    for row in (2, 3):
        told.ended.add(row)
        wait_until(lambda row=row: run.counted(row + 1))  # type: ignore[misc]
    assert run.left == ["answer 0"]
    disk.let_one_through()
    wait_until(lambda: len(run.left) > 1)
    disk.wait()
    assert run.left == ["answer 0", "answer 1"]
    disk.let_one_through()
    wait_until(lambda: len(run.left) == 4)
    failed, answer = run.left[2:]
    assert (failed.type, failed.message, answer) == ("ValueError", "row 2", "answer 3")
    disk.go_on()
    told.ended.add(4)
    run.end()
    # All of that was kept.
    again = Run(range(5), told, ledger=ledger)
    again.end()
    results = [each for each in again.left if type(each) is not ErrorInfo]
    assert sorted(results) == [f"answer {row}" for row in (0, 1, 3, 4)]
    assert [each.message for each in again.left if type(each) is ErrorInfo] == ["row 2"]
    assert told.begun.total() == 5


@pytest.mark.contract(
    "Rows that have joined one that waits for another attempt's answer leave with it.",
    convicts=["joined_rows_wait"],
)
def test_rows_that_have_joined_one_that_waits_for_anothers_answer_leave_with_it(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), uid="uid", run="run", key=["id"])
    rows = [{"id": 1}, {"id": 2}]
    told, other = Told(), Told()
    first = Run(rows, told, ledger=ledger)
    wait_until(lambda: told.begun.total() == 2)
    # It has equal rows, and the calls are the first one's.
    second = Run([*rows, rows[0], rows[0]], other, ledger=ledger)
    wait_until(lambda: (totals := second.results.statistics()) and totals.rows_in == 4)
    assert second.left == []
    told.ended.add(1)
    wait_until(lambda: second.left)
    assert "answer 2" not in second.left
    told.ended.add(2)
    wait_until(lambda: "answer 2" in second.left)
    assert second.left == [*["answer 1"] * 3, "answer 2"]
    first.end()
    second.end()
    assert first.left == ["answer 1", "answer 2"]
    assert not other.begun


def test_a_disk_that_is_behind_lets_no_call_begin_until_it_has_caught_up(
    tmp_path: Path, disk: HeldDisk
) -> None:
    ledger = Ledger(str(tmp_path), uid="uid", run="run", loss_window=0.01)
    told = Told()
    rows = 20_000
    run = Run(range(rows), told, capacity=2, options=Options(ledger=ledger, buffer=Buffer(2 * rows)))
    wait_until(lambda: told.begun.total() == 2)
    disk.hold()
    told.ended.add(0)
    disk.wait()
    spent = lambda: (totals := run.results.statistics()) and totals.spent["ledger"]  # noqa: E731
    # Some calls may have begun before the record had waited for the loss window: many more take longer.
    told.ended.update(range(rows))
    wait_until(lambda: spent() and spent() > 0.0)
    begun = told.begun.total()
    assert begun < rows
    before = spent()
    wait_until(lambda: spent() > before)
    assert told.begun.total() == begun
    disk.go_on()
    run.end()
    assert len(run.left) == rows


@pytest.mark.contract(
    "An answer becomes durable within the loss window, also while the next call blocks the event loop.",
)
def test_an_answer_becomes_durable_while_the_next_call_blocks_the_loop(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), uid="uid", run="run", loss_window=0.01)

    def kept() -> set[str]:
        return {record.value for scope in ledger.scopes() for record in ledger.reader(scope).records()}

    async def call(row: int) -> str:
        # Not a turn of the loop between these rows.
        if row == 5:
            wait_until(lambda: len(kept()) == 5)
        return f"answer {row}"

    options = Options(ledger=ledger, capacity=1, buffer=Buffer(1000))
    assert len(list(async_map(range(1000), call, options=options))) == 1000
