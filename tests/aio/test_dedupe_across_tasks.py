"""Equal rows of tasks that run at a time share one call, whatever becomes of it and of who makes it."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, Dedupe, Errors, Options, Step, Timeout, async_map
from pillarbox.ledger import Ledger

ACROSS = Dedupe(across_tasks=True)
TIMEOUT_S = 600.0
OTHER_PROCESS = """
import sys
from pillarbox import Dedupe, Ledger, Options, async_map

async def call(row: str) -> str:
    return f"{row} there"

ledger = Ledger(sys.argv[1], uid="uid", run="run")
list(async_map(["b"], call, options=Options(ledger=ledger, dedupe=Dedupe(across_tasks=True))))
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"), uid="uid", run="run")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class TwoTasks:
    """The calls of two tasks: that of a shared row ends when the other task has done what it can without."""

    def __init__(self) -> None:
        self.calls = Counter[Any]()
        self.began = threading.Event()
        self.gone_on = threading.Event()

    async def first(self, row: Any) -> Any:
        """The function of the task that has the shared row first."""
        self.calls[row] += 1
        self.began.set()
        await asyncio.to_thread(self.gone_on.wait, TIMEOUT_S)
        return f"{row} by the first"

    async def second(self, row: Any) -> Any:
        """That of the other task, whose last row is its own."""
        self.calls[row] += 1
        if row == "own":
            self.gone_on.set()
        return f"{row} by the second"

    def run(
        self, pool: ThreadPoolExecutor, rows: Iterable[Any], options: Options, others: Iterable[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The results of both tasks, of which the second one begins when the first one calls."""
        one: Future[list[Any]] = pool.submit(lambda: list(async_map(rows, self.first, options=options)))
        assert self.began.wait(TIMEOUT_S)
        other = pool.submit(lambda: list(async_map(others, self.second, options=options)))
        return one.result(TIMEOUT_S), other.result(TIMEOUT_S)


@pytest.mark.contract(convicts=["claim_not_waited_for"])
def test_a_row_whose_call_another_task_makes_waits_for_its_result_and_holds_no_slot(
    ledger: Ledger, pool: ThreadPoolExecutor
) -> None:
    tasks = TwoTasks()
    options = Options(ledger=ledger, dedupe=ACROSS, capacity=1)
    one, other = tasks.run(pool, ["a"], options, ["a", "a", "own"])
    assert one == ["a by the first"]
    # In order, though the second row was called first.
    assert other == ["a by the first", "a by the first", "own by the second"]
    assert tasks.calls == {"a": 1, "own": 1}


@pytest.mark.contract(convicts=["claim_without_a_look"])
def test_a_row_that_another_process_has_called_while_it_waited_for_its_slot_is_not_called(
    ledger: Ledger,
) -> None:
    calls: list[str] = []

    async def call(row: str) -> str:
        calls.append(row)
        # The other row has no answer when it comes, and then waits for the only slot.
        command = [sys.executable, "-c", OTHER_PROCESS, ledger.location]
        await asyncio.to_thread(subprocess.run, command, check=True)
        return f"{row} here"

    options = Options(ledger=ledger, dedupe=ACROSS, capacity=1)
    assert list(async_map(["a", "b"], call, options=options)) == ["a here", "b there"]
    assert calls == ["a"]


@pytest.mark.contract
def test_two_jobs_that_use_a_cache_at_a_time_share_calls(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    tasks = TwoTasks()
    options = Options(ledger=dataclasses.replace(ledger, run=None, cache=True), dedupe=ACROSS)
    one, other = tasks.run(pool, ["a"], options, ["a", "own"])
    assert (one, other) == (["a by the first"], ["a by the first", "own by the second"])
    assert list(async_map(["own", "a"], tasks.first, options=options)) == [*reversed(other)]
    assert tasks.calls == {"a": 1, "own": 1}


@pytest.mark.contract
def test_tasks_with_the_same_rows_call_each_of_them_once(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    calls = Counter[int]()

    async def call(row: int) -> int:
        calls[row] += 1
        await asyncio.sleep(0.001 * (row % 7))
        return row * 2

    options = Options(ledger=ledger, dedupe=ACROSS, capacity=16, ordered=False)
    rows = [[(place * step) % 211 for place in range(300)] for step in (1, 2, 3, 5, 8)]
    jobs = [pool.submit(lambda some=some: list(async_map(some, call, options=options))) for some in rows]
    for some, job in zip(rows, jobs, strict=True):
        assert sorted(job.result(TIMEOUT_S)) == sorted(row * 2 for row in some)
    assert calls == dict.fromkeys(range(211), 1)


@pytest.mark.contract
def test_the_rows_of_batches_are_shared_one_by_one(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    calls = Counter[int]()

    async def call(rows: list[int]) -> list[int]:
        calls.update(rows)
        await asyncio.sleep(0.002)
        return [row * 2 for row in rows]

    options = Options(ledger=ledger, dedupe=ACROSS, capacity=4, batch=Batch(16))
    rows = [[(place * step) % 211 for place in range(300)] for step in (1, 2, 3, 5)]
    jobs = [pool.submit(lambda some=some: list(async_map(some, call, options=options))) for some in rows]
    for some, job in zip(rows, jobs, strict=True):
        assert job.result(TIMEOUT_S) == [row * 2 for row in some]
    assert calls == dict.fromkeys(range(211), 1)


@pytest.mark.contract
def test_a_function_says_which_rows_of_all_tasks_are_equal(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    tasks = TwoTasks()
    dedupe = Dedupe(lambda row: None if row == "own" else row[0].lower(), across_tasks=True)
    options = Options(ledger=ledger, dedupe=dedupe)
    one, other = tasks.run(pool, ["apple"], options, ["Ape", "ant", "own"])
    assert (one, other) == (["apple by the first"], [*["apple by the first"] * 2, "own by the second"])
    assert tasks.calls == {"apple": 1, "own": 1}


@pytest.mark.contract
def test_rows_without_a_key_are_known_by_their_content(ledger: Ledger, pool: ThreadPoolExecutor) -> None:
    calls = Counter[str]()

    async def call(row: dict[str, Any]) -> str:
        calls[row["text"]] += 1
        return row["text"].upper()

    options = Options(ledger=dataclasses.replace(ledger, key=["id"]), dedupe=ACROSS)
    rows = [{"id": None, "text": text} for text in "aabab"]
    jobs = [pool.submit(lambda: list(async_map(rows, call, options=options))) for _ in range(2)]
    assert [job.result(TIMEOUT_S) for job in jobs] == [list("AABAB")] * 2
    assert calls == {"a": 1, "b": 1}


@pytest.mark.contract
def test_the_second_function_of_a_chain_shares_calls_by_what_it_gets(
    ledger: Ledger, pool: ThreadPoolExecutor
) -> None:
    calls = Counter[str]()

    async def first_letter(word: str) -> str:
        return word[0]

    async def call(letter: str) -> str:
        calls[letter] += 1
        return letter.upper()

    def job(words: list[str]) -> list[str]:
        steps = [Step(first_letter), Step(call, ledger=ledger, options=Options(dedupe=ACROSS))]
        return list(async_map(words, steps))

    jobs = [pool.submit(job, words) for words in (["apple", "ant", "bee"], ["ape", "bat"])]
    assert [each.result(TIMEOUT_S) for each in jobs] == [["A", "A", "B"], ["A", "B"]]
    assert calls == {"a": 1, "b": 1}


@pytest.mark.contract(convicts=["failure_of_claim_not_shared"])
def test_who_waits_for_a_call_shares_its_failure_and_who_comes_later_does_not(
    ledger: Ledger, pool: ThreadPoolExecutor
) -> None:
    tasks = TwoTasks()
    first = tasks.first

    async def fails(row: Any) -> Any:
        await first(row)
        raise ValueError(f"no answer for {row}")

    tasks.first = fails  # type: ignore[method-assign]
    options = Options(ledger=ledger, dedupe=ACROSS, errors="column")
    one, other = tasks.run(pool, ["a"], options, ["a", "own"])
    assert one[0].error == other[0].error
    assert "no answer for a" in one[0].error.message
    assert tasks.calls == {"a": 1, "own": 1}
    later = list(async_map(["a"], tasks.second, options=options))
    assert later[0].result == "a by the second"


@pytest.mark.contract(convicts=["claim_kept"])
def test_a_row_that_has_failed_may_be_called_by_others_while_its_task_goes_on(
    ledger: Ledger, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = TwoTasks()

    async def first(row: str) -> str:
        if row == "a":
            raise ValueError("not now")
        tasks.began.set()
        await asyncio.to_thread(tasks.gone_on.wait, TIMEOUT_S)
        return row

    async def second(row: str) -> str:
        tasks.gone_on.set()
        return row

    tasks.first, tasks.second = first, second  # type: ignore[method-assign]
    options = Options(ledger=ledger, dedupe=ACROSS, errors="null", capacity=1)
    assert tasks.run(pool, ["a", "b"], options, ["a"]) == ([None, "b"], ["a"])
    assert "have waited" not in caplog.text


@pytest.mark.contract
def test_a_row_that_is_no_answer_to_keep_is_called_by_each_task(
    ledger: Ledger, pool: ThreadPoolExecutor
) -> None:
    tasks = TwoTasks()
    options = Options(
        ledger=ledger, dedupe=ACROSS, timeout=Timeout(0.25, fallback="late"), errors=Errors("null")
    )
    tasks.gone_on = threading.Event()
    one, other = tasks.run(pool, ["a"], options, ["a"])
    assert (one, other) == (["late"], ["a by the second"])
    tasks.gone_on.set()


def test_what_across_tasks_needs_is_said_at_once(tmp_path: Path, ledger: Ledger) -> None:
    def given(**options: Any) -> Callable[[], Any]:
        return lambda: async_map([1], str, options=Options(**options))

    for refused, reason in (
        (given(dedupe=ACROSS), "across_tasks=True: tasks share calls by way of a ledger"),
        (
            given(dedupe=ACROSS, ledger=Ledger("s3://bucket/ledger", uid="u", run="r")),
            "needs locks, which s3://bucket/ledger has not",
        ),
        (
            given(dedupe=Dedupe(str, across_tasks=True), ledger=dataclasses.replace(ledger, key=["id"])),
            "both say which rows are equal",
        ),
        (lambda: Dedupe(memo=5, across_tasks=True), "memo=5, across_tasks=True"),
    ):
        with pytest.raises(ValueError, match=reason):
            refused()
    with pytest.raises(TypeError, match="across_tasks=1"):
        Dedupe(across_tasks=1)  # type: ignore[arg-type]
