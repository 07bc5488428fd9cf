"""The operator with a ledger: what has an answer is not called again, and what leaves is durable."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, Budget, Buffer, CallFailed, Dedupe, Errors, Options, Retry, Timeout, async_map
from pillarbox.ledger import KeyMaker, Ledger, LedgerError, Scope
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.usefixtures("each_loop"),
]

ROOT = Path(__file__).resolve().parents[2]
LONG = 600.0
LIVES = 6
"""Processes of a job that is killed again and again: a defect of its ledger does not show in each."""


class Service:
    """Counts the calls of each row; what it gives depends on how often it was called for that row."""

    def __init__(self) -> None:
        self.calls: Counter[Any] = Counter()
        self._mutex = threading.Lock()

    def answer(self, row: Any) -> list[Any]:
        with self._mutex:
            self.calls[row] += 1
            return [row, self.calls[row]]

    async def coroutine(self, row: Any) -> list[Any]:
        await asyncio.sleep(0)
        return self.answer(row)

    def blocking(self, row: Any) -> list[Any]:
        return self.answer(row)

    async def batch(self, rows: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return [self.answer(row) for row in rows]


MODES: dict[str, dict[str, Any]] = {"coroutine": {}, "blocking": {}, "batch": {"batch": Batch(7)}}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def scope(run: str = "run", key: Any = None) -> Scope:
    return Scope.of(run, "uid", {"key": key})


def kept(ledger: Ledger, run: str = "run") -> list[Any]:
    return [record.value for record in ledger.reader(scope(run)).records()]


@pytest.mark.contract("A second run with the same ledger calls nothing and gives the same.")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_second_run_calls_nothing_and_gives_the_same(ledger: Ledger, mode: str, ordered: bool) -> None:
    service = Service()
    options = Options(
        ledger=dataclasses.replace(ledger, uid="uid", run="run"), ordered=ordered, capacity=20, **MODES[mode]
    )
    first = list(async_map(range(300), getattr(service, mode), options=options))
    again = async_map(range(300), getattr(service, mode), options=options)
    second = list(again)
    assert sorted(first) == sorted(second) == [[row, 1] for row in range(300)]
    if ordered:
        assert first == second
    statistics = again.statistics()
    assert statistics is not None
    assert (statistics.found, statistics.calls, statistics.results) == (300, 0, 300)


@pytest.mark.contract
@pytest.mark.parametrize("other", [{"run": "another"}, {"uid": "another"}, {"key": [0]}])
def test_what_another_run_operator_or_key_kept_is_not_found(ledger: Ledger, other: dict[str, Any]) -> None:
    service = Service()
    given: dict[str, Any] = {"ledger": dataclasses.replace(ledger, uid="uid", run="run")}
    rows = [(row, "text") for row in range(5)]
    list(async_map(rows, service.coroutine, **given))
    list(async_map(rows, service.coroutine, ledger=dataclasses.replace(given["ledger"], **other)))
    assert set(service.calls.values()) == {2}


def test_a_row_is_known_by_its_key_columns_and_without_them_by_all_with_a_count(ledger: Ledger) -> None:
    service = Service()
    by_key = Options(ledger=dataclasses.replace(ledger, uid="uid", run="by key", key=[0]))
    list(async_map([(1, "a"), (2, "b")], service.coroutine, options=by_key))
    assert list(async_map([(2, "b"), (1, "a"), (3, "a")], service.coroutine, options=by_key)) == [
        [(2, "b"), 1],
        [(1, "a"), 1],
        [(3, "a"), 1],
    ]
    whole = Options(ledger=dataclasses.replace(ledger, uid="uid", run="whole"), capacity=1)
    first = list(async_map(["x", "x", "y"], service.coroutine, options=whole))
    assert first == [["x", 1], ["x", 2], ["y", 1]]
    assert list(async_map(["x", "x", "y"], service.coroutine, options=whole)) == first
    assert list(async_map(["x", "x", "x"], service.coroutine, options=whole)) == [
        ["x", 1],
        ["x", 2],
        ["x", 3],
    ]


@pytest.mark.contract
def test_the_order_holds_where_some_rows_are_found_and_others_called(ledger: Ledger) -> None:
    service = Service()
    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"), capacity=16)
    list(async_map(range(0, 400, 3), service.coroutine, options=options))
    results = list(async_map(range(400), service.coroutine, options=options))
    assert results == [[row, 1] for row in range(400)]
    assert set(service.calls.values()) == {1}


# The program runs on the loop that it takes by itself.
@pytest.mark.parametrize("each_loop", ["uvloop"], indirect=True)
@pytest.mark.contract(convicts=["later_rows_acknowledged"])
def test_what_was_taken_from_a_process_that_is_killed_is_never_called_again(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from pillarbox import async_map
from pillarbox.ledger import Ledger

async def call(row):
    os.write(2, f"{row}\\n".encode())
    await asyncio.sleep(row % 5 / 1000)
    return row

for row in async_map(range(4000), call, ledger=Ledger(sys.argv[1], uid="uid", run="run"), capacity=50):
    os.write(1, f"{row}\\n".encode())
"""
    taken: list[int] = []
    for life in range(LIVES):
        before = set(taken)
        # Beyond what may be in the ledger and was not taken; to the end in the last life.
        enough = len(before) + 500 if life < LIVES - 1 else 4000
        command = [sys.executable, "-W", "error", "-c", program, str(tmp_path / "ledger")]
        with (
            open(tmp_path / "calls", "w+") as calls,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=calls, text=True, cwd=ROOT) as process,
        ):
            assert process.stdout is not None
            taken = [int(line) for line in itertools.islice(process.stdout, enough)]
            if enough < 4000:
                process.kill()
            taken += [int(line) for line in process.stdout if line.endswith("\n")]
            process.wait(LONG)
            calls.seek(0)
            # A warning of a loaded machine may stand among them.
            asked = {int(line) for line in calls.read().splitlines() if line.isdecimal()}
        assert taken == [*range(len(taken))]
        # Where the process was killed late, the next one may find everything.
        assert asked or life
        assert not before & asked
        if len(taken) == 4000:
            # Killed too late, by a machine that is busy.
            break
    assert len(taken) == 4000


def spent_on_ledger(job: Any) -> float:
    """Seconds that the job has waited for its ledger."""
    counts = job.statistics()
    return 0.0 if counts is None else float(counts.spent["ledger"])


def test_rows_wait_for_the_disk_and_calls_for_rows_that_wait_too_long(ledger: Ledger) -> None:
    ledger = Ledger(ledger.location, loss_window=0.05)
    began = Counter[int]()
    full = threading.Event()

    async def call(row: int) -> int:
        began[row] += 1
        await asyncio.sleep(0.001)
        return row

    ledger.check()
    folder = ledger.folder(scope())
    folder.make()
    job = async_map(
        itertools.count(),
        call,
        ledger=dataclasses.replace(ledger, uid="uid", run="run"),
        capacity=4,
        options=Options(buffer=Buffer(100_000)),
    )
    taken: list[int] = []

    def take() -> None:
        for row in job:
            taken.append(row)
            if row > 500:
                full.set()
                return

    with folder.lock(LONG):
        # The commits wait for the lock that another process could have.
        thread = threading.Thread(target=take)
        thread.start()
        wait_until(lambda: spent_on_ledger(job) > 0.0)
        calls = began.total()
        assert not taken
        # Hundreds of calls would have been made at this rate.
        wait_until(lambda: spent_on_ledger(job) > 0.15)
        assert began.total() == calls
    assert full.wait(LONG)
    thread.join(LONG)
    job.close()
    assert taken == [*range(taken[-1] + 1)]


@pytest.mark.contract
def test_a_second_attempt_waits_for_the_results_of_the_first(ledger: Ledger) -> None:
    service = Service()
    half, go_on = threading.Event(), threading.Event()

    async def slow(row: int) -> list[Any]:
        if row == 100:
            half.set()
            while not go_on.is_set():
                await asyncio.sleep(0.01)
        return service.answer(row)

    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"), capacity=10)
    first: list[Any] = []
    one = threading.Thread(target=lambda: first.extend(async_map(range(200), slow, options=options)))
    one.start()
    assert half.wait(LONG)
    second = async_map(range(200), service.coroutine, options=options)
    results = [next(second) for _ in range(50)]
    wait_until(lambda: spent_on_ledger(second) > 0.0)
    go_on.set()
    results += second
    one.join(LONG)
    assert results == first == [[row, 1] for row in range(200)]


@pytest.mark.contract
def test_an_attempt_whose_rival_goes_away_makes_the_calls_itself(ledger: Ledger) -> None:
    service = Service()

    async def hangs(row: int) -> list[Any]:
        if row >= 20:
            await asyncio.Event().wait()
        return service.answer(row)

    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"), capacity=10)
    rival = async_map(range(60), hangs, options=options)
    taken = [next(rival) for _ in range(20)]
    second = async_map(range(60), service.coroutine, options=options)
    results = [next(second) for _ in range(20)]
    assert results == taken
    wait_until(lambda: spent_on_ledger(second) > 0.0)
    assert service.calls.total() == 20
    rival.close()
    assert [*results, *second] == [[row, 1] for row in range(60)]


class Held:
    """Counts calls; each waits for the test. Of a row that `fails`, the first call then fails."""

    def __init__(self, fails: Any = None) -> None:
        self.begun: Counter[Any] = Counter()
        self.fails = fails
        self.go_on = threading.Event()
        self._changed = threading.Condition()

    def _begin(self, row: Any) -> bool:
        with self._changed:
            self.begun[row] += 1
            self._changed.notify_all()
            return row == self.fails and self.begun[row] == 1

    def await_calls(self, calls: int) -> None:
        """Wait until so many calls have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun.total() >= calls, LONG)

    async def coroutine(self, row: Any) -> Any:
        fails = self._begin(row)
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        if fails:
            raise ConnectionError("once")
        return [row, "late"]

    def blocking(self, row: Any) -> Any:
        fails = self._begin(row)
        self.go_on.wait(LONG)
        if fails:
            raise ConnectionError("once")
        return [row, "late"]

    async def batch(self, rows: list[Any]) -> list[Any]:
        fails = [self._begin(row) for row in rows]
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        if any(fails):
            raise ConnectionError("once")
        return [[row, "late"] for row in rows]


@pytest.mark.contract
@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_made_again_looks_first_whether_another_has_made_it(ledger: Ledger, mode: str) -> None:
    held, service = Held(fails=0), Service()
    per_row = {"batch": Batch(1)} if mode == "batch" else {}
    named = Options(
        ledger=dataclasses.replace(ledger, uid="uid", run="run"), retry=Retry(5, initial=0.001), timeout=LONG
    )
    options = dataclasses.replace(named, capacity=2, **per_row)
    results: list[Any] = []
    # The other attempt has other rows, so that its lease is another.
    zombie = async_map([1, 0], getattr(held, mode), options=options)
    thread = threading.Thread(target=lambda: results.extend(zombie))
    thread.start()
    held.await_calls(2)
    assert list(async_map([0], getattr(service, mode), options=options)) == [[0, 1]]
    held.go_on.set()
    thread.join(LONG)
    assert results == [[1, "late"], [0, 1]]
    assert held.begun == {0: 1, 1: 1}


@pytest.mark.contract(
    "Equal rows have the result that another attempt of their job has kept, as the row that is called has.",
    convicts=["kept_result_for_one_of_equal_rows"],
)
def test_equal_rows_get_the_result_that_another_attempt_has_kept(ledger: Ledger) -> None:
    held, service = Held(fails=0), Service()
    options = Options(
        ledger=dataclasses.replace(ledger, uid="uid", run="run"),
        retry=Retry(5, initial=0.001),
        timeout=LONG,
        capacity=2,
    )
    results: list[Any] = []
    shares = dataclasses.replace(options, dedupe=True)
    zombie = async_map([1, 0, 0, 0], held.coroutine, options=shares)
    thread = threading.Thread(target=lambda: results.extend(zombie), daemon=True)
    thread.start()
    held.await_calls(2)
    assert list(async_map([0], service.coroutine, options=options)) == [[0, 1]]
    held.go_on.set()
    thread.join(30.0)
    assert results == [[1, "late"], [0, 1], [0, 1], [0, 1]]
    assert held.begun == {0: 1, 1: 1}


# -- what is kept, and what is not ---------------------------------------------------------------


async def odd_fails(row: int) -> int:
    if row % 2:
        raise ValueError(f"odd: {row}")
    return row


@pytest.mark.contract(convicts=["substitute_recorded"])
def test_what_stands_for_a_time_out_or_for_no_call_is_nobodys_answer(ledger: Ledger) -> None:
    async def call(row: int) -> int:
        if row < 3:
            await asyncio.Event().wait()
        return row

    late = dataclasses.replace(ledger, uid="uid", run="late")
    given: dict[str, Any] = {"capacity": 1, "timeout": Timeout(0.01, fallback=-1)}
    assert list(async_map(range(6), call, ledger=late, **given)) == [
        -1, -1, -1, 3, 4, 5,
    ]  # fmt: skip
    assert sorted(kept(ledger, "late")) == [3, 4, 5]
    some = dataclasses.replace(ledger, uid="uid", run="few")
    few = list(
        async_map(range(3, 9), call, ledger=some, budget=Budget(max_calls=2), errors="null", capacity=1)
    )
    assert few == [3, 4, None, None, None, None]
    assert sorted(kept(ledger, "few")) == [3, 4]


@pytest.mark.contract(convicts=["error_stays_recorded", "late_answer_not_kept"])
def test_an_answer_that_comes_after_its_time_out_is_kept(ledger: Ledger) -> None:
    over = threading.Event()
    calls = Counter[int]()

    def call(row: int) -> int:
        calls[row] += 1
        if row == 0:
            over.wait(LONG)
        return row * 10

    def rows() -> Iterator[int]:
        yield from range(3)
        wait_until(lambda: (counts := job.statistics()) and counts.timeouts)
        over.set()
        # The job goes on until the answer has come.
        wait_until(lambda: (counts := job.statistics()) and counts.late)
        yield 3

    options = Options(
        ledger=dataclasses.replace(ledger, uid="uid", run="run"),
        errors="null",
        timeout=0.4,
        capacity=2,
        ordered=False,
    )
    job = async_map(rows(), call, options=options)
    assert sorted(job, key=str) == [10, 20, 30, None]
    assert list(async_map(range(4), call, options=options, ordered=True)) == [0, 10, 20, 30]
    assert set(calls.values()) == {1}


def test_an_answer_that_is_late_and_one_that_is_not_are_one_result(ledger: Ledger) -> None:
    over = threading.Event()
    calls = Counter[int]()
    late = threading.Event()

    def call(row: int) -> str:
        calls[row] += 1
        if calls[row] == 1:
            over.wait(LONG)
            return "the first"
        over.set()
        # By then the first answer has been taken note of.
        late.wait(LONG)
        return "the second"

    options = Options(
        ledger=dataclasses.replace(ledger, uid="uid", run="run"),
        timeout=Timeout(attempt=0.2),
        retry=Retry(2, initial=0.001),
    )
    job = async_map([0], call, options=options)
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.extend(job))
    thread.start()
    wait_until(lambda: (counts := job.statistics()) and counts.late)
    late.set()
    thread.join(LONG)
    assert results == ["the first"] == list(async_map([0], call, options=options))
    assert calls[0] == 2


def test_rows_that_share_a_call_are_each_found_again(ledger: Ledger) -> None:
    service = Service()
    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"), dedupe=Dedupe(memo=10))
    rows = ["x", "y", "x", "x", "y"]
    first = list(async_map(rows, service.coroutine, options=options))
    assert list(async_map(rows, service.coroutine, options=options)) == first
    assert service.calls == {"x": 1, "y": 1}
    assert len(kept(ledger)) == 5


def test_what_a_call_cost_is_kept_with_it(ledger: Ledger) -> None:
    async def call(row: int) -> int:
        return row

    list(
        async_map(
            [7],
            call,
            ledger=dataclasses.replace(ledger, uid="uid", run="run"),
            budget=Budget(usage=lambda row, result: 0.25),
        )
    )
    (record,) = ledger.reader(scope()).records()
    assert (record.value, record.cost, record.attempts) == (7, 0.25, 1)
    assert record.key == KeyMaker()(7)


@pytest.mark.contract("With a ledger max_calls and max_cost belong to the run, over all of its restarts.")
def test_with_a_ledger_a_budget_belongs_to_the_run_over_all_restarts(ledger: Ledger) -> None:
    service = Service()

    async def call(row: int) -> list[Any]:
        answer = service.answer(row)
        if row % 5 == 0:
            raise ValueError(row)
        return answer

    retry = Retry(2, initial=0.001)
    ledger = dataclasses.replace(ledger, uid="uid", run="calls")
    given: dict[str, Any] = {"errors": "null", "retry": retry, "capacity": 1}
    for rows in (range(30), range(200), range(200), range(200)):
        results = list(async_map(rows, call, ledger=ledger, budget=Budget(max_calls=100), **given))
    # Rows that fail are called twice, and again by each run: that was paid as well.
    assert service.calls.total() == 100
    assert results[1] == [1, 1] and results[199] is None
    again = list(async_map(range(200), call, ledger=ledger, budget=Budget(max_calls=110), **given))
    assert service.calls.total() == 110
    assert [row for row in again if row is not None][: len(results)][0] == [1, 1]

    service.calls.clear()
    given["budget"] = Budget(max_cost=20.0, usage=lambda row, result: 0.5)
    cost, another = (dataclasses.replace(ledger, run=run) for run in ("cost", "another"))
    for _ in range(3):
        list(async_map(range(200), service.coroutine, ledger=cost, **given))
    assert service.calls.total() == 40
    # Another run has a budget of its own.
    list(async_map(range(200), service.coroutine, ledger=another, **given))
    assert service.calls.total() == 80


@pytest.mark.contract(
    "A kill takes at most the calls in flight, and those that were not durable yet, from what a budget knows."
)
@pytest.mark.parametrize("attempts", [1, 3])
def test_each_kill_lets_at_most_the_calls_in_flight_go_uncounted(tmp_path: Path, attempts: int) -> None:
    capacity, budget, kills, between = 10, 120, 3, 20
    calls = 0

    async def go_on(row: int) -> int:
        nonlocal calls
        calls += 1
        return row

    def given(number: int) -> dict[str, Any]:
        ledger = Ledger(str(tmp_path / str(number)))
        return {
            "ledger": dataclasses.replace(ledger, uid="uid", run="run"),
            "budget": Budget(max_calls=budget),
            "capacity": capacity,
            "errors": "null",
        }

    for number in range(kills):
        answered = (number + 1) * between
        hanging: Counter[int] = Counter()
        all_hang = asyncio.Event()

        async def call(row: int, answered: int = answered, hanging: Any = hanging, ev: Any = all_hang) -> int:
            nonlocal calls
            calls += 1
            if row >= answered:
                hanging[row] += 1
                if hanging[row] < attempts:
                    raise ValueError(row)
                if hanging.total() == attempts * capacity:
                    ev.set()
                await asyncio.Event().wait()
            return row

        async def until_killed(number: int = number, answered: int = answered, ev: Any = all_hang) -> None:
            retry = None if attempts == 1 else Retry(attempts, initial=0.0)
            # No more rows than those that hang at the end, so that none pauses between its attempts.
            rows = range(answered + capacity)
            async with async_map(rows, call, retry=retry, **given(number)) as job:
                async for row in job:
                    if row == answered - 1:
                        break
                await ev.wait()
                # What a SIGKILL leaves at this moment.
                shutil.copytree(tmp_path / str(number), tmp_path / str(number + 1))

        asyncio.run(until_killed())
    results = list(async_map(range(1000), go_on, **given(kills)))
    assert results.count(None) < 1000
    assert calls == budget + kills * capacity * attempts


def test_what_was_replaced_by_merging_segments_is_still_spent(ledger: Ledger) -> None:
    calls = Counter[int]()

    async def call(row: int) -> int:
        calls[row] += 1
        if calls[row] < 3:
            raise ValueError(row)
        return row

    given: dict[str, Any] = {
        "ledger": dataclasses.replace(ledger, uid="uid", run="run"),
        "errors": Errors("null", floor=None),
        "budget": Budget(max_calls=40),
    }
    for _ in range(3):
        list(async_map(range(10), call, **given))
    assert ledger.spent("run", "uid")[0] == 30
    words = [sys.executable, "-m", "pillarbox", "ledger", "compact", ledger.location]
    subprocess.run(words, check=True, capture_output=True)
    assert ledger.spent("run", "uid")[0] == 30


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.contract
def test_a_result_that_cannot_be_kept_ends_the_job_and_says_what_can(ledger: Ledger) -> None:
    async def call(row: int) -> object:
        return object()

    with pytest.raises(LedgerError, match=r"a result of type builtins.object cannot be kept"):
        list(async_map(range(3), call, ledger=dataclasses.replace(ledger, uid="uid", run="run")))


def test_a_row_without_a_key_ends_the_job_and_says_so(ledger: Ledger) -> None:
    async def call(row: object) -> int:
        return 1

    with pytest.raises(LedgerError, match=r"name the columns that identify a row"):
        list(async_map([object()], call, ledger=dataclasses.replace(ledger, uid="uid", run="run")))
    with pytest.raises(KeyError, match="no column 'id'"):
        list(
            async_map(
                [{"name": 1}], call, ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["id"])
            )
        )


@pytest.mark.contract
def test_a_ledger_that_goes_away_ends_the_job_with_that_reason(ledger: Ledger) -> None:
    async def call(row: int) -> int:
        if row == 50:
            Path(ledger.location).rename(f"{ledger.location}-gone")
            Path(ledger.location).touch()
        return row

    with pytest.raises((OSError, LedgerError)):
        list(
            async_map(
                itertools.count(), call, ledger=dataclasses.replace(ledger, uid="uid", run="run"), capacity=1
            )
        )


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"uid": None}, ValueError, "uid=None: with a ledger the operator needs a name"),
        ({"uid": 7}, TypeError, "uid=7"),
        ({"run": None}, ValueError, "run=None: with a ledger a run needs a name"),
        ({"run": ""}, ValueError, "run=''"),
        ({"key": "id"}, TypeError, "key='id'"),
        ({"key": []}, ValueError, r"key=\[\]: must name a column"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_the_call(
    ledger: Ledger, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        async_map([1], odd_fails, ledger=Ledger(ledger.location, **{"uid": "uid", "run": "run", **given}))
    with pytest.raises(TypeError, match="ledger='/tmp': must be a pillarbox.Ledger"):
        async_map([1], odd_fails, ledger="/tmp")  # type: ignore[call-overload]


@pytest.mark.contract
def test_a_place_that_cannot_be_written_is_refused_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((LedgerError, OSError)):
        async_map([1], odd_fails, ledger=Ledger(str(tmp_path / "file" / "below"), uid="uid", run="run"))


@pytest.mark.contract(
    "A call that ends in the turn in which its run is broken off is not made again, also one of a batch.",
    convicts=["answers_of_batch_lost_at_end"],
)
@pytest.mark.parametrize("batch", [None, Batch(2)], ids=["alone", "batch"])
@pytest.mark.parametrize("errors", ["column", "fail"])
def test_what_ends_in_the_turn_in_which_a_run_is_broken_off_is_kept(
    tmp_path: Path, batch: Batch | None, errors: str
) -> None:
    ended: Counter[int] = Counter()

    async def run(most: int | None) -> list[Any]:
        answer = asyncio.Event()
        waiting: set[int] = set()

        async def many(rows: list[int]) -> list[int]:
            if most is not None and rows[0] > 1:
                waiting.update(rows)
                await answer.wait()
            ended.update(rows)
            return rows

        async def one(row: int) -> int:
            return (await many([row]))[0]

        options = Options(ledger=Ledger(tmp_path, uid="uid", run="run"), batch=batch, errors=errors)
        results = async_map(range(6), one if batch is None else many, options=options)
        if most is None:
            return [result async for result in results]
        taken = [await anext(results) for _ in range(most)]
        while len(waiting) < 4:
            await asyncio.sleep(0)
        # Who waits for the answer goes on in the next turn, and the run is broken off in this one.
        answer.set()
        await results.aclose()
        return taken

    assert len(asyncio.run(run(2))) == 2
    assert ended == Counter(range(6))
    assert len(asyncio.run(run(None))) == 6
    assert ended == Counter(range(6))


def test_the_answers_beside_a_row_that_ends_the_job_are_kept(tmp_path: Path) -> None:
    ended: Counter[int] = Counter()

    async def many(rows: list[int]) -> list[int | ValueError]:
        ended.update(rows)
        return [ValueError("the second") if row == 1 and ended[1] == 1 else row for row in rows]

    def run() -> list[int]:
        given: dict[str, Any] = {"ledger": Ledger(tmp_path, uid="uid", run="run")}
        return list(async_map(range(4), many, batch=Batch(4), **given))

    with pytest.raises(CallFailed, match="the second"):
        run()
    assert run() == [0, 1, 2, 3]
    assert ended == Counter({1: 2, 0: 1, 2: 1, 3: 1})
