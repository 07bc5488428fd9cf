"""The cost of the operator for a row when the calls cost nothing.

A round is a whole job of some thousand rows, threads started and ended included. The hand-written asyncio
of the first group is the least that such calls cost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.conftest import Chunks
from pillarbox import Retry, Timeout, async_map

ROWS = 5_000
CAPACITY = 256
ROUNDS = 20


async def at_once(row: int) -> int:
    """A call that never waits."""
    return row


async def in_a_turn(row: int) -> int:
    """A call that waits for one turn of the event loop, as an answer that is there would make it."""
    await asyncio.sleep(0)
    return row


async def several(row: int) -> AsyncIterator[int]:
    """A call with two results."""
    yield row
    yield -row


def plain(row: int) -> int:
    """A blocking function that does not block."""
    return row


def by_hand() -> None:
    """Fixed workers over a shared queue of rows."""

    async def worker(todo: deque[int], results: list[int]) -> None:
        while todo:
            results.append(await in_a_turn(todo.popleft()))

    async def main() -> None:
        todo = deque(range(ROWS))
        results: list[int] = []
        await asyncio.gather(*[worker(todo, results) for _ in range(CAPACITY)])
        assert len(results) == ROWS

    asyncio.run(main())


@pytest.mark.benchmark(group="operator: calls of one turn")
def test_asyncio_fixed_workers(chunks: Chunks) -> None:
    chunks(by_hand, ROWS, rounds=ROUNDS)


@pytest.mark.benchmark(group="operator: calls of one turn")
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"timeout": 30.0},
        {"timeout": Timeout(30.0, attempt=10.0), "retry": Retry()},
    ],
    ids=["bare", "timeout", "timeouts and retry"],
)
def test_operator(chunks: Chunks, ordered: bool, options: dict[str, Any]) -> None:
    def run() -> None:
        results = async_map(range(ROWS), in_a_turn, ordered=ordered, capacity=CAPACITY, **options)
        assert sum(1 for _ in results) == ROWS

    chunks(run, ROWS, rounds=ROUNDS)


@pytest.mark.benchmark(group="operator: other functions and inputs")
@pytest.mark.parametrize("fn", [at_once, several, plain], ids=lambda fn: fn.__name__)
def test_kind_of_function(chunks: Chunks, fn: Any) -> None:
    def run() -> None:
        assert sum(1 for _ in async_map(range(ROWS), fn, capacity=CAPACITY)) == ROWS

    chunks(run, ROWS, rounds=ROUNDS)


@pytest.mark.benchmark(group="operator: other functions and inputs")
def test_input_that_is_read_by_a_thread(chunks: Chunks) -> None:
    def run() -> None:
        rows = (row for row in range(ROWS))
        assert sum(1 for _ in async_map(rows, in_a_turn, capacity=CAPACITY)) == ROWS

    chunks(run, ROWS, rounds=ROUNDS)
