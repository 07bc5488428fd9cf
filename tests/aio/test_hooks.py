"""Functions that users give beside their own: one that raises fails its row, whatever it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pillarbox import (
    Batch,
    Budget,
    Buffer,
    Dedupe,
    Errors,
    Options,
    Rate,
    Retry,
    RetryBudget,
    Timeout,
    async_map,
)

KINDS = (ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
HOOKS: dict[str, Callable[[Callable[..., Any]], dict[str, Any]]] = {
    "usage": lambda hook: {"budget": Budget(usage=hook)},
    "dedupe": lambda hook: {"options": Options(dedupe=hook)},
    "result": lambda hook: {"retry": Retry(3, result=hook)},
    "weight": lambda hook: {"rate": Rate(units_per_minute=1e6, weight=hook)},
    "batch weight": lambda hook: {"batch": Batch(2, weight=hook, max_weight=10.0)},
}
FAILING: dict[str, Callable[[Callable[..., Any]], dict[str, Any]]] = {
    "when": lambda hook: {"retry": Retry(3, when=hook)},
    "retry_after": lambda hook: {"retry": Retry(3, retry_after=hook)},
    "fallback": lambda hook: {"timeout": Timeout(0.01, fallback=hook)},
}


def raising(kind: type[BaseException]) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise kind("from the hook")

    return hook


async def right(row: Any) -> Any:
    await asyncio.sleep(0)
    return row


async def wrong(row: int) -> int:
    raise ConnectionError(row)


async def slow(row: int) -> int:
    await asyncio.Event().wait()
    return row


@pytest.mark.contract
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_fails_its_rows_and_nothing_hangs(hook: str, kind: type[BaseException]) -> None:
    options = HOOKS[hook](raising(kind))
    outcomes = list(async_map(range(4), right, errors="column", **options))
    assert [outcome.error.type for outcome in outcomes if outcome.error] == [kind.__name__] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", FAILING)
def test_a_hook_that_raises_about_a_failure_is_what_the_row_fails_with(
    hook: str, kind: type[BaseException]
) -> None:
    fn = slow if hook == "fallback" else wrong
    outcomes = list(async_map(range(4), fn, errors="column", **FAILING[hook](raising(kind))))
    assert [outcome.error.type for outcome in outcomes if outcome.error] == [kind.__name__] * 4


@pytest.mark.parametrize("hook", [*HOOKS, *FAILING])
def test_a_hook_that_would_have_to_be_awaited_is_refused_at_once(hook: str) -> None:
    async def awaited(*_: Any) -> None: ...

    with pytest.raises(TypeError, match="must be a plain function"):
        Options(**{**HOOKS, **FAILING}[hook](awaited))


def test_an_error_whose_text_raises_fails_its_row_alone() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise AttributeError("no text")

    async def call(row: int) -> int:
        if row == 1:
            raise Unspeakable
        return row

    first, second, third = async_map(range(3), call, errors="column")
    assert (first.result, third.result) == (0, 2)
    assert second.error is not None
    assert second.error.message == "<a Unspeakable whose text raised AttributeError>"


def test_a_batch_that_is_tried_again_is_one_retry_of_the_budget() -> None:
    calls = 0

    async def down(rows: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        raise ConnectionError("down")

    retry = Retry(6, initial=0.0, budget=RetryBudget(share=0.5, least=0))
    assert (
        list(
            async_map(
                range(64), down, batch=Batch(8), capacity=1, retry=retry, errors=Errors("drop", floor=None)
            )
        )
        == []
    )
    assert calls <= 8 + 4


def test_a_table_of_columns_is_no_list_of_results() -> None:
    class Table(list[str]):
        columns = ("label", "score")

    async def predict(rows: list[int]) -> Table:
        return Table(["label", "score"])

    outcomes = list(async_map([1, 2], predict, batch=Batch(2), errors="column"))
    assert {outcome.error and outcome.error.type for outcome in outcomes} == {"BatchResultError"}


@pytest.mark.contract
def test_values_of_other_types_are_other_rows_although_they_are_equal() -> None:
    async def kind(row: object) -> str:
        await asyncio.sleep(0.001)
        return type(row).__name__

    assert list(async_map([1, True, 1.0], kind, options=Options(dedupe=Dedupe(memo=9)))) == [
        "int",
        "bool",
        "float",
    ]


def test_rows_that_share_a_call_have_its_result_although_the_call_changed_its_row() -> None:
    class Row:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Row) and self.value == other.value

        def __hash__(self) -> int:
            return hash(self.value)

    async def call(row: Row) -> int:
        await asyncio.sleep(0.001)
        row.value += 100
        return row.value

    assert list(async_map([Row(1), Row(1), Row(2)], call, options=Options(dedupe=True))) == [101, 101, 102]


def test_bytes_are_bounded_also_when_rows_leave_one_by_one() -> None:
    small, large = b"x", bytes(100_000)

    async def call(row: bytes) -> int:
        await asyncio.sleep(0 if row is small else 0.001)
        return len(row)

    rows = iter([small] * 300 + [large] * 100)
    most = 0
    with async_map(
        rows, call, capacity=50, ordered=False, options=Options(buffer=Buffer(max_bytes=500_000))
    ) as results:
        for _ in results:
            statistics = results.statistics()
            assert statistics is not None
            most = max(most, statistics.held_bytes)
    assert 400_000 < most <= 600_100


@pytest.mark.contract("A function whose future holds StopIteration fails its row, as any error does.")
@pytest.mark.parametrize("batch", [None, Batch(2)], ids=["rows", "batches"])
def test_a_future_that_holds_stop_iteration_fails_its_row(batch: Batch | None) -> None:
    pool = ThreadPoolExecutor(1)

    def first(row: Any) -> Any:
        rows = row if isinstance(row, list) else [row]
        return pool.submit(lambda: [next(iter(range(each))) for each in rows])

    with pool:
        outcomes = [*async_map([1, 2, 0], first, batch=batch, errors="column")]
    assert [outcome.error is None for outcome in outcomes] == [True, True, False]
    assert "StopIteration" in outcomes[2].error.message
