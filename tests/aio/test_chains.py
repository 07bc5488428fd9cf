"""Several functions in one task: each row goes on to the next as it finishes, under limits of its own."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import (
    Batch,
    Buffer,
    CallFailed,
    Collector,
    Errors,
    Ledger,
    Options,
    Retry,
    Step,
    TooManyFailures,
    async_map,
)
from tests.aio.virtual import play
from tests.search import examples


def no_time(row: Any) -> float:
    return 0.0


class Function:
    """An async function that takes some seconds for a row; says when it was called with what."""

    def __init__(
        self, answer: Callable[[Any], Any], seconds: Callable[[Any], float] = lambda row: 1.0
    ) -> None:
        self.answer = answer
        self.seconds = seconds
        self.calls: list[tuple[float, Any]] = []
        self.running = self.most = 0
        self.__name__ = "function"

    async def __call__(self, row: Any) -> Any:
        self.calls.append((asyncio.get_running_loop().time(), row))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds(row))
            return self.answer(row)
        finally:
            self.running -= 1

    @property
    def rows(self) -> list[Any]:
        return [row for _, row in self.calls]


def results_of(functions: list[Any], rows: Any, **options: Any) -> list[Any]:
    """The results of a chain, in virtual time."""

    async def script() -> list[Any]:
        async with async_map(rows, functions, **options) as results:
            return [result async for result in results]

    return play(script)


@pytest.mark.contract
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("ordered", [(True, True), (True, False), (False, True), (False, False)])
def test_behind_a_slower_function_each_row_leaves_once_at_any_window(
    window: int, ordered: tuple[bool, bool]
) -> None:
    first = Function(lambda row: row + 1, lambda row: 0.1 * (row % 3))
    second = Function(lambda row: row * 10, lambda row: 1.0 + row % 2)
    options: dict[str, Any] = {"capacity": window, "options": Options(buffer=Buffer(window))}
    found = results_of(
        [Step(first, uid="a", ordered=ordered[0]), Step(second, uid="b", ordered=ordered[1])],
        range(60),
        **options,
    )
    expected = [10 * (row + 1) for row in range(60)]
    assert (found if all(ordered) else sorted(found)) == expected
    assert first.most <= window and second.most == window


@pytest.mark.contract
def test_a_row_goes_on_to_the_next_function_as_it_finishes() -> None:
    first, second = Function(lambda row: row), Function(lambda row: row)
    options: dict[str, Any] = {"capacity": 1, "options": Options(buffer=Buffer(4)), "ordered": False}
    assert results_of([Step(first, uid="a"), Step(second, uid="b")], range(10), **options) == list(range(10))
    # One second each and one at a time: the tenth leaves the second function after eleven, not after twenty.
    assert second.calls[0][0] == 1.0 and second.calls[-1][0] == pytest.approx(10.0)


@pytest.mark.contract
def test_a_task_reads_no_more_than_the_windows_of_a_chain_hold() -> None:
    first = Function(lambda row: row, lambda row: 0.0)
    second = Function(lambda row: row, lambda row: 1000.0)

    async def script() -> tuple[int, int]:
        async with async_map(
            range(1000),
            [Step(first, uid="a"), Step(second, uid="b")],
            capacity=2,
            options=Options(buffer=Buffer(3)),
        ) as some:
            await anext(some)
            return len(first.calls), len(second.calls)

    # Three in either window, three on their way between them, and the two that have left.
    called_first, called_second = play(script)
    assert called_second <= 5 and called_first <= 11


WIDTHS = st.lists(st.integers(0, 3), min_size=1, max_size=5)
SECONDS = st.lists(st.sampled_from([0.0, 0.1, 1.0, 5.0]), min_size=1, max_size=4)
LIMITS = st.fixed_dictionaries(
    {"capacity": st.integers(1, 4), "buffer": st.builds(Buffer, st.integers(4, 9)), "ordered": st.booleans()}
)


@pytest.mark.contract
@settings(max_examples=examples(150))
@given(
    rows=st.integers(0, 30),
    widths=st.lists(WIDTHS, min_size=2, max_size=2),
    seconds=st.lists(SECONDS, min_size=3, max_size=3),
    failing=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    limits=st.lists(LIMITS, min_size=3, max_size=3),
)
def test_a_chain_gives_what_its_functions_one_after_the_other_give(
    rows: int,
    widths: list[list[int]],
    seconds: list[list[float]],
    failing: list[int],
    limits: list[dict[str, Any]],
) -> None:
    """Rows are paths: what was given, then places in results. A failed one is not called any more."""

    def answer(position: int, path: tuple[int, ...]) -> Any:
        if failing[position] and sum(path) % 7 == failing[position]:
            raise ValueError(position)
        if position == 2:
            return path
        return [(*path, place) for place in range(widths[position][sum(path) % len(widths[position])])]

    def time_of(position: int, path: tuple[int, ...]) -> float:
        return seconds[position][sum(path) % len(seconds[position])]

    def expected(position: int, path: tuple[int, ...]) -> list[Any]:
        try:
            given = answer(position, path)
        except ValueError:
            return [("failed in", str(position))]
        if position == 2:
            return [path]
        return [each for one in given for each in expected(position + 1, one)]

    functions = [
        Function(lambda path, at=position: answer(at, path), lambda path, at=position: time_of(at, path))
        for position in range(3)
    ]
    steps = [
        Step(fn, uid=str(at), options=Options(**limits[at], errors="column"))
        for at, fn in enumerate(functions)
    ]
    outcomes = results_of(steps, [(row,) for row in range(rows)], errors="column")
    found = [each.result if each.error is None else ("failed in", each.error.uid) for each in outcomes]
    wanted = [each for row in range(rows) for each in expected(0, (row,))]
    if all(limit["ordered"] for limit in limits):
        assert found == wanted
    else:
        assert Counter(found) == Counter(wanted)
    for fn, limit in zip(functions, limits, strict=True):
        assert fn.most <= limit["capacity"] and len(set(fn.rows)) == len(fn.rows)


# -- what the next function gets --------------------------------------------------------------------


@dataclass
class Found:
    id: int
    items: str


Pair = collections.namedtuple("Pair", ["id", "items"])


@pytest.mark.contract
@pytest.mark.parametrize(
    "given",
    [
        lambda: {"id": 1, "items": "x"},
        lambda: Found(1, "x"),
        lambda: Pair(1, "x"),
        lambda: pytest.importorskip("pyspark.sql").Row(id=1, items="x"),
    ],
    ids=["dict", "dataclass", "named tuple", "Row"],
)
def test_a_row_with_names_reaches_the_next_function_as_a_record(given: Callable[[], Any]) -> None:
    row_with_names = given()
    seen: list[Any] = []

    async def first(row: int) -> Any:
        return row_with_names

    async def second(record: Any) -> Any:
        seen.append((record.id, record["items"], record[0], record.items, "id" in record, len(record)))
        assert record.asDict() == {"id": 1, "items": "x"} and tuple(record) == (1, "x")
        return record.id

    assert results_of([first, second], [0]) == [1]
    assert seen == [(1, "x", 1, "x", True, 2)]


@pytest.mark.contract
def test_of_several_rows_each_is_called_by_the_next_function_and_none_is_for_an_empty_list() -> None:
    first = Function(lambda row: [{"n": row, "place": place} for place in range(row)])
    second = Function(lambda record: (record.n, record.place))
    found = results_of([Step(first, uid="a"), Step(second, uid="b")], [2, 0, 3])
    assert found == [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]


# -- errors ------------------------------------------------------------------------------------------


def odd_fails(row: int) -> int:
    if row % 2:
        raise ValueError(f"odd {row}")
    return row


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_a_row_that_failed_for_good_is_not_called_again_keeps_its_place_and_says_where(ordered: bool) -> None:
    first, second = Function(odd_fails), Function(lambda row: 1 // (row - 4))
    steps = [Step(first, uid="first", retry=Retry(2, initial=0.1)), Step(second, uid="second")]
    outcomes = results_of(steps, range(6), errors="column", ordered=ordered)
    assert sorted(second.rows) == [0, 2, 4]
    told = [
        None if each.error is None else (each.error.uid, each.error.type, each.error.attempts)
        for each in outcomes
    ]
    failed = ("first", "ValueError", 2)
    expected = [None, failed, None, failed, ("second", "ZeroDivisionError", 1), failed]
    assert told == expected if ordered else Counter(told) == Counter(expected)


@pytest.mark.contract
def test_a_dropped_row_goes_no_further_and_a_null_one_keeps_its_place() -> None:
    second = Function(lambda row: row * 10)
    assert results_of([Step(odd_fails_async, uid="a"), Step(second, uid="b")], range(5), errors="drop") == [
        0,
        20,
        40,
    ]
    assert second.rows == [0, 2, 4]
    found = results_of([odd_fails_async, second], range(4), errors="null")
    assert found == [0, None, 20, None]
    # Each as it says: the first one's failures are dropped, the second one's are told.
    steps = [
        Step(odd_fails_async, uid="a", errors="drop"),
        Step(Function(lambda row: 1 // (row - 2)), uid="b"),
    ]
    outcomes = results_of(steps, range(4), errors="column")
    assert [each.error and each.error.uid for each in outcomes] == [None, "b"]
    steps = [
        Step(odd_fails_async, uid="a"),
        Step(Function(lambda row: 1 // (row - 2)), uid="b", errors="drop"),
    ]
    outcomes = results_of(steps, range(4), errors="column")
    assert [each.error and each.error.uid for each in outcomes] == [None, "a", "a"]


async def odd_fails_async(row: int) -> int:
    return odd_fails(row)


@pytest.mark.contract
def test_an_error_that_ends_the_task_names_the_function_of_the_chain() -> None:
    async def fails(row: int) -> int:
        raise ValueError("no")

    with pytest.raises(CallFailed, match="in 'fails' of the chain") as caught:
        results_of([Function(lambda row: row), fails], range(3))
    assert isinstance(caught.value.cause, ValueError)
    with pytest.raises(CallFailed, match="in 'odd' of the chain"):
        results_of([Step(odd_fails_async, uid="odd"), Function(lambda row: row)], range(3))


def letters_in(path: Path) -> list[tuple[Any, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(letter["row"], letter["_error"]["uid"]) for letter in map(json.loads, lines)]


@pytest.mark.contract
def test_a_function_of_a_chain_of_which_too_many_rows_failed_is_named_at_the_end() -> None:
    def odd(row: int) -> int:
        if row % 2:
            raise ConnectionError(row)
        return row

    # A fraction of so few rows is looked at when all have come.
    with pytest.raises(TooManyFailures, match="in 'odd' of the chain"):
        results_of(
            [Function(lambda row: row), Step(odd, uid="odd", errors=Errors("null", stop_after=0.2))], range(9)
        )


@pytest.mark.contract
def test_each_function_of_a_chain_puts_its_failed_items_aside_for_itself(tmp_path: Path) -> None:
    second = Function(lambda row: 1 // (row - 20), no_time)
    steps = [
        Step(
            Function(lambda row: 10 * odd_fails(row), no_time),
            uid="first",
            errors=Errors(dead_letter=tmp_path / "first"),
        ),
        Step(second, uid="second", errors=Errors(dead_letter=tmp_path / "second")),
    ]
    # Without virtual time: files are written in a thread.
    assert list(async_map(range(4), steps)) == [-1]
    assert letters_in(tmp_path / "first") == [(1, "first"), (3, "first")]
    # The item as it was given, with which the chain may begin again.
    assert letters_in(tmp_path / "second") == [(2, "second")]
    assert second.rows == [0, 20]
    found = list(
        async_map(range(2), [odd_fails_async, second], errors=Errors("column", dead_letter=tmp_path / "both"))
    )
    assert [each.error is None for each in found] == [True, False]
    assert letters_in(tmp_path / "both") == [(1, "odd_fails_async")]


@pytest.mark.contract
def test_the_counts_of_a_chain_belong_to_each_function() -> None:
    async def script() -> Any:
        steps = [
            Step(odd_fails_async, uid="a", retry=Retry(3, initial=0.1), errors="null"),
            Step(Function(lambda row: [row, row]), uid="b", batch=None),
            Step(Function(lambda row: row), uid="c"),
        ]
        async with async_map(range(4), steps, errors="null") as results:
            found = [each async for each in results]
        assert len(found) == 6
        return results.statistics_by_uid()

    counts = play(script)
    assert list(counts) == ["a", "b", "c"]
    assert [each.errors for each in counts.values()] == [2, 0, 0]
    assert [each.retries for each in counts.values()] == [4, 0, 0]
    assert [each.calls for each in counts.values()] == [8, 2, 4]
    assert [(each.rows_in, each.results) for each in counts.values()] == [(4, 4), (4, 4), (6, 6)]


# -- forms of functions, and their options -----------------------------------------------------------


async def tens(rows: list[int]) -> list[dict[str, int]]:
    return [{"n": 10 * row} for row in rows]


def blocking(record: Any) -> int:
    assert threading.current_thread() is not threading.main_thread()
    return int(record.n) + 1


def called_back(n: int, collector: Collector[int]) -> None:
    threading.Thread(target=lambda: collector.complete(n + 1)).start()


async def spelled(n: int) -> Any:
    yield str(n)
    yield "-"


class Opened:
    """A resource; tells in the end that it was closed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def __aenter__(self) -> Opened:
        self.log.append("opened")
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.log.append("closed")

    async def __call__(self, text: str) -> str:
        assert self.log == ["opened"]
        return text


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("awaits", [True, False])
def test_functions_of_every_kind_stand_in_one_chain(ordered: bool, awaits: bool) -> None:
    opened = Opened()
    steps = [Step(tens, batch=Batch(7)), blocking, called_back, spelled, Step(opened, uid="opened")]
    results = async_map(range(40), steps, ordered=ordered, capacity=5)

    async def taken() -> list[Any]:
        return [each async for each in results]

    found = asyncio.run(taken()) if awaits else list(results)
    expected = [text for row in range(40) for text in (str(10 * row + 2), "-")]
    assert found == expected if ordered else Counter(found) == Counter(expected)
    assert opened.log == ["opened", "closed"]


def test_a_list_of_one_function_is_that_function() -> None:
    fn = Function(odd_fails)
    outcomes = results_of([Step(fn, uid="only")], range(3), errors="column")
    assert [each.result for each in outcomes] == [0, None, 2] and outcomes[1].error.uid == "only"
    assert results_of([fn], range(3), errors="drop") == [0, 2]
    alone = async_map([0], odd_fails)
    assert list(alone) == [0] and alone.statistics_by_uid() == {}


async def f(row: Any) -> Any:
    return row


async def g(row: Any) -> Any:
    return row


def test_options_beside_a_list_hold_for_each_function_and_those_of_a_step_stand_above() -> None:
    first, second, third = (Function(lambda row: row) for _ in range(3))
    steps = [
        Step(first, uid="a"),
        Step(second, uid="b", capacity=4),
        Step(third, uid="c", options=Options(capacity=5)),
    ]
    results_of(steps, range(50), capacity=3, ordered=False)
    assert (first.most, second.most, third.most) == (3, 3, 3)
    first.seconds = lambda row: 0.0
    results_of(steps, range(50), capacity=3, ordered=False)
    assert (second.most, third.most) == (4, 4)


@pytest.mark.parametrize(
    ("functions", "options", "error"),
    [
        ([], {}, "must hold one function at least"),
        ([f, f], {}, "uid 'f': stands twice in the list"),
        ([f, g], {"ledger": Ledger("calls", uid="x")}, "each function of a list has its own"),
        ([f, 3], {}, "fn=3: must be an async function"),
        ([f, Step(g, errors="null")], {"errors": "column"}, "leaves the chain in one form"),
        ([f, Step(g, capacity=0)], {}, "capacity=0"),
        ([f, Step(g, uid="")], {}, "uid='': must be a text"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_at_the_call(functions: Any, options: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        async_map([], functions, **options)


def test_a_ledger_in_a_chain_asks_for_names_and_one_key(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    with pytest.raises(ValueError, match=r"Step\(f, uid='embed-v1'\)"):
        async_map([], [f, g], ledger=dataclasses.replace(ledger, run="r"))
    with pytest.raises(ValueError, match="key: the functions have different ones"):
        async_map(
            [],
            [
                Step(f, ledger=dataclasses.replace(ledger, uid="f", run="r", key=["a"])),
                Step(g, ledger=dataclasses.replace(ledger, uid="g", run="r", key=["b"])),
            ],
        )
    with pytest.raises(ValueError, match="run=None"):
        async_map([], [Step(f, uid="f"), Step(g, uid="g")], ledger=ledger)


# -- snapshots ---------------------------------------------------------------------------------------


# -- the ledger --------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


class Counted:
    """A function that counts its calls by what it was given."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.calls: Counter[Any] = Counter()

    async def __call__(self, row: Any) -> Any:
        self.calls[row] += 1
        await asyncio.sleep(0)
        return self.answer(row)


@pytest.mark.contract
@pytest.mark.parametrize("key", [None, [0]], ids=["whole rows", "key"])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_second_run_of_a_chain_calls_no_function_again(ledger: Ledger, key: Any, ordered: bool) -> None:
    @dataclass
    class Item:
        name: str
        place: int

    first = Counted(lambda row: [Item(row[1], place) for place in range(row[0] % 3)])
    second = Counted(lambda item: {"text": f"{item.name} {item.place}"})
    third = Counted(lambda record: record.text.upper())
    steps = [Step(first, uid="first"), Step(second, uid="second"), Step(third, uid="third", batch=None)]
    rows = [(n, f"row {n}") for n in range(40)]

    def run() -> list[Any]:
        found = list(
            async_map(rows, steps, ledger=dataclasses.replace(ledger, run="run", key=key), ordered=ordered)
        )
        return found if ordered else sorted(found)

    expected = [f"ROW {n} {place}" for n in range(40) for place in range(n % 3)]
    assert run() == run() == (expected if ordered else sorted(expected))
    for fn in (first, second, third):
        assert set(fn.calls.values()) == {1}


@pytest.mark.contract
def test_a_function_is_called_again_where_the_one_in_front_answers_otherwise_and_only_there(
    ledger: Ledger,
) -> None:
    answers = {n: n for n in range(20)}
    second = Counted(lambda n: n + 1)
    # The first one has no ledger: it is called in each run, and what it gives may be another.
    steps = [
        Step(Counted(lambda n: answers[n]), uid="first", ledger=None),
        Step(second, uid="second"),
    ]

    def run() -> list[Any]:
        return list(async_map(range(20), steps, ledger=dataclasses.replace(ledger, run="run")))

    assert run() == [n + 1 for n in range(20)]
    answers[3] = 300
    assert run() == [301 if n == 3 else n + 1 for n in range(20)]
    assert second.calls == {**dict.fromkeys(range(20), 1), 300: 1}
    # Both answers are in the ledger now.
    assert run()[3] == 301 and second.calls[300] == 1
    answers[3] = 3
    assert run()[3] == 4 and second.calls[3] == 1


@pytest.mark.contract
def test_what_failed_in_a_chain_is_called_again_by_the_next_run_and_nothing_else(ledger: Ledger) -> None:
    broken = True

    def halves(n: int) -> int:
        if broken and n % 2:
            raise ConnectionError(n)
        return n

    first, second = Counted(lambda n: 10 * n), Counted(lambda n: halves(n // 10))
    steps = [Step(first, uid="first"), Step(second, uid="second")]

    def run(retry: bool) -> list[Any]:
        kept = Ledger(ledger.location, retry_errors=retry)
        return list(async_map(range(6), steps, ledger=dataclasses.replace(kept, run="run"), errors="column"))

    told = [(None, "second") if n % 2 else (n, None) for n in range(6)]
    assert [(each.result, each.error and each.error.uid) for each in run(False)] == told
    # What is found of a failure says where it was, too.
    assert [(each.result, each.error and each.error.uid) for each in run(False)] == told
    broken = False
    assert [each.result for each in run(True)] == list(range(6))
    assert set(first.calls.values()) == {1}
    assert second.calls == {10 * n: 1 + n % 2 for n in range(6)}


@pytest.mark.contract
def test_rows_with_one_key_whose_first_answers_differ_are_both_called_and_no_error(ledger: Ledger) -> None:
    numbers = iter(range(100))
    second = Counted(lambda n: n)
    steps = [Step(Counted(lambda row: next(numbers)), uid="first", ledger=None), Step(second, uid="second")]
    Numbered = collections.namedtuple("Numbered", ["id"])
    rows = [Numbered(1), Numbered(1), Numbered(2)]
    found = list(async_map(rows, steps, ledger=dataclasses.replace(ledger, run="run", key=["id"])))
    assert sorted(found) == [0, 1, 2] and set(second.calls.values()) == {1}
