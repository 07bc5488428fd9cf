"""`current_call` in every kind of function: the row, the attempt, the error before, time left, a logger."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pillarbox import AskAgain, Batch, Collector, Ledger, Retry, Step, Timeout, async_map, current_call
from tests.aio.virtual import play

pytestmark = pytest.mark.usefixtures("each_loop")


async def by_coroutine(row: int) -> tuple[str, int]:
    await asyncio.sleep(0)
    return current_call().identity, current_call().attempt


def by_thread(row: int) -> tuple[str, int]:
    return current_call().identity, current_call().attempt


def by_generator(row: int) -> Iterator[Any]:
    yield current_call().identity
    yield current_call().attempt


async def by_async_generator(row: int) -> AsyncIterator[Any]:
    yield current_call().identity
    await asyncio.sleep(0)
    yield current_call().attempt


def by_future(row: int) -> Future[tuple[str, int]]:
    future: Future[tuple[str, int]] = Future()
    future.set_result(by_thread(row))
    return future


def by_collector(row: int, collector: Collector[tuple[str, int]]) -> None:
    collector.complete(by_thread(row))


async def by_child(row: int) -> tuple[str, int]:
    return await asyncio.create_task(by_coroutine(row))


async def by_to_thread(row: int) -> tuple[str, int]:
    return await asyncio.to_thread(by_thread, row)


@pytest.mark.contract
@pytest.mark.parametrize(
    "fn",
    [
        *(by_coroutine, by_thread, by_generator, by_async_generator, by_future, by_collector, by_child),
        by_to_thread,
    ],
)
def test_each_kind_of_function_knows_the_row_and_the_attempt_of_its_call(fn: Callable[..., Any]) -> None:
    # Each row twice: its identity is that of its content.
    found = [tuple(each) for each in async_map([*range(200), *range(200)], fn, capacity=20)]
    assert found[:200] == found[200:]
    assert len({identity for identity, _ in found}) == 200
    assert {attempt for _, attempt in found} == {1}
    assert all(len(identity) == 32 and int(identity, 16) >= 0 for identity, _ in found)


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_attempt_and_last_error_follow_the_row(kind: str) -> None:
    seen: dict[int, list[tuple[int, str]]] = defaultdict(list)

    def call(row: int) -> int:
        now = current_call()
        seen[row].append((now.attempt, repr(now.error)))
        if now.attempt == 1:
            raise OSError("gone")
        if now.attempt == 2:
            raise AskAgain("not JSON")
        return row

    async def coroutine(row: int) -> int:
        return call(row)

    fn = coroutine if kind == "coroutine" else call
    rows = list(async_map(range(50), fn, capacity=7, retry=Retry(2, initial=0.0)))
    assert rows == [*range(50)]
    told = [(1, "None"), (2, "OSError('gone')"), (3, "AskAgain('not JSON', 2, None)")]
    assert all(seen[row] == told for row in range(50))


@pytest.mark.contract
def test_a_batch_has_one_call_for_all_of_its_rows_and_one_for_each() -> None:
    seen: list[Any] = []

    async def call(rows: list[int]) -> list[Any]:
        now = current_call()
        assert len(rows) == 1 or now.identity not in {each.identity for each in now.rows}
        seen.append([(each.attempt, type(each.error).__name__) for each in now.rows])
        if now.attempt == 1:
            assert now.error is None
            return [ValueError(row) if row % 2 else row for row in rows]
        assert isinstance(now.error, ValueError)
        return list(rows)

    rows = range(4)
    assert list(async_map(rows, call, batch=Batch(4), retry=Retry(2, initial=0.0))) == [*rows]
    assert seen[0] == [(1, "NoneType")] * 4
    assert [each for some in seen[1:] for each in some] == [(2, "ValueError")] * 2


@pytest.mark.contract
def test_a_task_that_outlives_its_call_still_finds_that_call() -> None:
    async def scenario() -> dict[int, tuple[str, str]]:
        go = asyncio.Event()
        found: dict[int, tuple[str, str]] = {}
        left: list[asyncio.Task[None]] = []

        async def later(row: int, identity: str) -> None:
            await go.wait()
            found[row] = identity, current_call().identity

        async def call(row: int) -> int:
            left.append(asyncio.create_task(later(row, current_call().identity)))
            return row

        async with async_map(range(100), call, capacity=3) as results:
            assert [row async for row in results] == [*range(100)]
            go.set()
            await asyncio.gather(*left)
        return found

    found = asyncio.run(scenario())
    assert len({identity for identity, _ in found.values()}) == 100
    assert all(at_first == later for at_first, later in found.values())


@pytest.mark.contract
@pytest.mark.parametrize("limits", [Timeout(60.0), Timeout(attempt=60.0), Timeout(90.0, attempt=60.0)])
@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_the_time_left_is_that_of_the_limit_that_comes_first(limits: Timeout, batch: Batch | None) -> None:
    async def call(row: Any) -> Any:
        left = current_call().seconds_left
        assert left is not None
        return row if batch is None else [left] * len(row)

    async def one(row: int) -> float:
        left = current_call().seconds_left
        assert left is not None
        return left

    async def script() -> list[float]:
        async with async_map(
            range(4), one if batch is None else call, timeout=limits, batch=batch
        ) as results:
            return [left async for left in results]

    assert play(script) == [pytest.approx(60.0)] * 4


def test_without_a_limit_of_time_none_is_left() -> None:
    async def call(row: int) -> float | None:
        return current_call().seconds_left

    assert list(async_map([1], call)) == [None]


@pytest.mark.contract
def test_the_time_left_of_a_row_goes_on_over_its_attempts() -> None:
    left: list[float] = []

    async def call(row: int) -> int:
        now = current_call()
        assert now.seconds_left is not None
        left.append(now.seconds_left)
        if now.attempt < 3:
            await asyncio.sleep(10.0)
            raise AskAgain("again")
        return row

    async def script() -> None:
        async with async_map([1], call, timeout=30.0) as results:
            assert [row async for row in results] == [1]

    play(script)
    assert left == pytest.approx([30.0, 20.0, 10.0], abs=1.0)


@pytest.mark.contract
def test_a_call_that_is_cancelled_knows_its_row_while_it_cleans_up() -> None:
    cleaned: dict[str, str] = {}

    async def call(row: int) -> int:
        identity = current_call().identity
        try:
            if row == 0:
                await asyncio.sleep(60)
        finally:
            cleaned[identity] = current_call().identity
        return row

    async def script() -> None:
        async with async_map(range(5), call, timeout=5.0, errors="null", capacity=2) as results:
            assert [row async for row in results] == [None, 1, 2, 3, 4]

    play(script)
    assert len(cleaned) == 5 and all(before == after for before, after in cleaned.items())


@pytest.mark.contract
def test_the_logger_tells_row_attempt_error_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    async def call(row: int) -> str:
        now = current_call()
        if now.attempt == 1:
            raise AskAgain("refused with key=sk-abcdefghijklmnopqrstuvwxyz123456")
        now.logger.warning("called %s", "again", extra={"model": "small"})
        return now.identity

    with caplog.at_level(logging.INFO, logger="pillarbox.call"):
        (identity,) = async_map([1], call, timeout=30.0)
    (record,) = [each for each in caplog.records if each.name == "pillarbox.call"]
    said = record.__dict__
    assert record.getMessage() == f"[row {identity[:8]}, attempt 2] called again"
    assert (said["row"], said["attempt"], said["model"]) == (identity, 2, "small")
    assert said["last_error"].startswith("AskAgain: refused with key=")
    assert "abcdefghijklmnop" not in said["last_error"]
    assert 0.0 < said["seconds_left"] <= 30.0


@pytest.mark.contract
def test_with_a_ledger_the_identity_is_that_of_the_key(tmp_path: Path) -> None:
    async def call(row: dict[str, Any]) -> str:
        return current_call().identity

    def identities(run: str, text: str, key: list[str] | None) -> list[str]:
        ledger = Ledger(str(tmp_path), uid="ask", run=run, key=key)
        return list(async_map([{"id": number, "text": text} for number in range(3)], call, ledger=ledger))

    first = identities("a", "one", ["id"])
    assert len(set(first)) == 3
    assert identities("b", "another", ["id"]) == first
    assert identities("c", "one", None) != identities("d", "another", None)


def test_each_function_of_a_chain_has_its_own_call() -> None:
    async def first(row: int) -> dict[str, Any]:
        if current_call().attempt == 1:
            raise AskAgain("once more")
        return {"row": row, "attempt": current_call().attempt}

    async def second(row: Any) -> tuple[int, int]:
        return row.attempt, current_call().attempt

    steps = [Step(first, uid="first"), Step(second, uid="second")]
    assert list(async_map(range(3), steps)) == [(2, 1)] * 3


def test_rows_that_have_no_fingerprint_have_an_identity_too() -> None:
    seen: dict[int, set[str]] = defaultdict(set)

    async def call(row: Any) -> int:
        seen[id(row)].add(current_call().identity)
        if current_call().attempt < 3:
            raise AskAgain("again")
        return 0

    rows = [object(), object()]
    assert list(async_map(rows, call)) == [0, 0]
    assert [len(identities) for identities in seen.values()] == [1, 1]
    assert len(set.union(*seen.values())) == 2


def test_outside_of_a_call_there_is_none() -> None:
    with pytest.raises(LookupError, match="current_call: no call of an operator runs here"):
        current_call()


LATE_IMPORT = """
import asyncio
import sys
import pillarbox

async def call(row):
    # Nobody has imported it before: the worker that carries this call has begun without.
    assert row or "pillarbox.aio.current" not in sys.modules
    from pillarbox import current_call
    identity = current_call().identity
    child = await asyncio.create_task(ask(current_call))
    await asyncio.sleep(0)
    assert identity == child == current_call().identity
    if row == 1:
        try:
            await asyncio.sleep(60)
        finally:
            assert current_call().identity == identity
            print("cleaned")
    return identity

async def ask(current_call):
    return current_call().identity

if sys.argv[1] == "asyncio":
    sys.modules["uvloop"] = None
results = pillarbox.async_map(range(40), call, capacity=2, ordered=False)
found = [next(results) for _ in range(39)]
results.close()
assert len(set(found)) == 39, found
print("ok")
"""


def test_a_function_may_import_it_in_the_middle_of_its_first_call(request: pytest.FixtureRequest) -> None:
    loop = request.node.callspec.params["each_loop"]
    done = subprocess.run([sys.executable, "-c", LATE_IMPORT, loop], capture_output=True, text=True)
    assert done.stdout.split() == ["cleaned", "ok"], done.stderr
