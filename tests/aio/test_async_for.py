"""`async_map` in a coroutine: async iterables as input, results by `async for`."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from pillarbox import Batch, Buffer, CallFailed, Errors, Options, Outcome, PillarboxError, async_map
from tests.aio.virtual import now, play
from tests.threads import begun

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

LONG_S = 8.0
"""Seconds of the virtual loop that a call takes."""


@pytest.fixture(autouse=True)
def asyncio_reports_nothing(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def after_a_while(row: int) -> int:
    await asyncio.sleep(LONG_S)
    return row


async def identity(row: int) -> int:
    return row


async def items(count: int) -> AsyncIterator[int]:
    for row in range(count):
        await asyncio.sleep(1.0)
        yield row


def one_by_one(count: int) -> Iterator[int]:
    yield from range(count)


class Pages:
    """An async generator that says how far it was read, and whether it was closed."""

    def __init__(self, count: int = 10**9, fails_at: int | None = None) -> None:
        self.read = 0
        self.closed = False
        self._count = count
        self._fails_at = fails_at

    async def __call__(self) -> AsyncIterator[int]:
        try:
            for row in range(self._count):
                if row == self._fails_at:
                    raise OSError("the page is gone")
                self.read += 1
                yield row
        finally:
            await asyncio.sleep(0)
            self.closed = True


# -- results ----------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("rows", [lambda: range(300), lambda: one_by_one(300), lambda: items(300)])
@pytest.mark.parametrize("ordered", [True, False])
def test_async_for_gives_every_result_once_in_the_order_asked_for(
    rows: Callable[[], Any], ordered: bool
) -> None:
    async def script() -> list[int]:
        return [each async for each in async_map(rows(), identity, capacity=7, ordered=ordered)]

    found = asyncio.run(_without_pauses(script))
    assert (found if ordered else sorted(found)) == [*range(300)]


async def _without_pauses(script: Callable[[], Awaitable[list[int]]]) -> list[int]:
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    loop.call_later = lambda delay, *more, **how: call_later(delay / 1000, *more, **how)  # type: ignore[method-assign]
    return await script()


def test_calls_run_at_the_same_time_on_the_callers_loop() -> None:
    """A hundred calls, fifty at a time, take the time of two; the test's own loop carries them."""

    async def script() -> None:
        assert [each async for each in async_map(range(100), after_a_while, capacity=50)] == [*range(100)]
        assert now() == pytest.approx(2 * LONG_S)

    play(script)


def test_a_call_may_use_what_belongs_to_the_callers_loop() -> None:
    async def script() -> list[tuple[int, int]]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        asked: asyncio.Queue[int] = asyncio.Queue()
        lock = asyncio.Lock()

        async def answer() -> None:
            for _ in range(20):
                await queue.put(10 * await asked.get())

        async def call(row: int) -> tuple[int, int]:
            async with lock:
                await asked.put(row)
                return row, await queue.get()

        answering = asyncio.create_task(answer())
        found = [each async for each in async_map(items(20), call)]
        await answering
        return found

    assert play(script) == [(row, 10 * row) for row in range(20)]


def test_other_tasks_of_the_loop_go_on_while_results_are_waited_for() -> None:
    async def script() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(1.0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async for _ in async_map(range(4), after_a_while, capacity=1):
            pass
        ticking.cancel()
        return ticks

    assert play(script) in (31, 32)


def test_a_blocking_function_runs_in_threads_and_leaves_the_loop_free() -> None:
    async def script() -> set[str]:
        free = threading.Event()

        def call(row: int) -> str:
            # Returns once the loop has run something else meanwhile.
            assert free.wait()
            return threading.current_thread().name

        asyncio.get_running_loop().call_later(0.01, free.set)
        return {each async for each in async_map(range(4), call, capacity=2)}

    assert all(name.startswith("pillarbox-call-") for name in asyncio.run(script()))


@pytest.mark.contract("An iteration by for reads an async iterable too.")
def test_for_reads_an_async_iterable_too() -> None:
    pages = Pages(500)
    assert list(async_map(pages(), identity, capacity=7)) == [*range(500)]
    assert pages.closed


def test_results_of_one_async_map_are_the_input_of_another() -> None:
    async def script() -> list[int]:
        first = async_map(range(10), after_a_while)
        return [each async for each in async_map(first, after_a_while)]

    assert play(script) == [*range(10)]


def test_batches_and_outcomes_are_those_of_for() -> None:
    async def embed(rows: list[int]) -> list[int]:
        return [row * 2 for row in rows]

    def picky(row: int) -> int:
        if row == 2:
            raise ValueError(row)
        return row

    async def script() -> None:
        assert [each async for each in async_map(items(9), embed, batch=Batch(4))] == [*range(0, 18, 2)]
        found: list[Any] = [each async for each in async_map(range(3), picky, errors="column")]
        assert found[:2] == [Outcome(0, None), Outcome(1, None)]
        assert found[2].error.attempts == 1

    play(script)


def test_context_variables_of_the_caller_are_seen_by_calls_and_by_the_iterable() -> None:
    user = contextvars.ContextVar("user", default="nobody")

    async def names() -> AsyncIterator[str]:
        yield user.get()

    async def call(name: str) -> tuple[str, str]:
        return name, user.get()

    async def script() -> list[tuple[str, str]]:
        user.set("ann")
        return [each async for each in async_map(names(), call)]

    assert play(script) == [("ann", "ann")]


def test_failed_items_are_put_aside(tmp_path: Any) -> None:
    def picky(row: int) -> int:
        if row == 2:
            raise ValueError(row)
        return row

    async def script() -> list[int]:
        path = tmp_path / "failed.jsonl"
        found = [each async for each in async_map(range(4), picky, errors=Errors(dead_letter=path))]
        assert len(path.read_text().splitlines()) == 1
        return found

    assert asyncio.run(script()) == [0, 1, 3]


# -- the input --------------------------------------------------------------------------------


@pytest.mark.contract
def test_an_async_iterable_is_read_no_further_than_the_window_and_what_is_read_ahead() -> None:
    async def script() -> None:
        pages = Pages()
        results = async_map(pages(), after_a_while, capacity=4, options=Options(buffer=Buffer(8)))
        assert await results.__anext__() == 0
        assert pages.read <= 1 + 8 + 2 * 128 + 8
        await results.aclose()
        assert pages.closed

    play(script)


def test_a_function_in_the_place_of_the_rows_is_refused_with_the_order_of_both() -> None:
    with pytest.raises(
        TypeError, match=r"rows=<function .*>: must be a DataFrame or an iterable; rows come first"
    ):
        async_map(lambda: None, [1])  # type: ignore[call-overload]


@pytest.mark.parametrize("way", ["for", "async for"])
def test_an_error_of_the_async_iterable_reaches_the_consumer(way: str) -> None:
    async def by_async_for() -> list[int]:
        return [each async for each in async_map(pages(), identity)]

    def by_for() -> list[int]:
        return list(async_map(pages(), identity))

    pages = Pages(fails_at=300)
    run = by_for if way == "for" else lambda: play(by_async_for)
    with pytest.raises(OSError, match="the page is gone"):
        run()
    assert pages.closed


def test_what_is_no_iterable_of_either_kind_is_refused_at_the_call() -> None:
    with pytest.raises(
        TypeError, match="rows=7: must be an iterable, an async iterable or a Spark DataFrame, not int"
    ):
        async_map(7, identity)  # type: ignore[call-overload]


# -- the end ----------------------------------------------------------------------------------


class Endless:
    """A resource whose calls end by cancellation only, from row 1 on; `full` is done when 8 of them run."""

    def __init__(self) -> None:
        self.running = self.cancelled = 0
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open: asyncio.Task[Any] | None = None
        self.closed_in: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Endless:
        self.open = asyncio.current_task()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.running == 0
        self.closed_in = asyncio.current_task()

    async def __call__(self, row: int) -> int:
        if row:
            self.running += 1
            if self.running == 8:
                self.full.set_result(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1
        return row

    @property
    def is_closed(self) -> bool:
        """It was closed by the task that opened it, as cancel scopes and task groups need it."""
        return self.open is not None and self.closed_in is self.open


async def leave_by_break(endless: Endless, pages: Pages) -> None:
    async for _ in async_map(pages(), endless, capacity=8):
        await endless.full
        break
    await asyncio.sleep(1.0)


async def leave_by_async_with(endless: Endless, pages: Pages) -> None:
    async with async_map(pages(), endless, capacity=8) as results:
        assert await results.__anext__() == 0
        await endless.full
    assert endless.is_closed


async def leave_by_cancelling(endless: Endless, pages: Pages) -> None:
    async def consume() -> None:
        async for _ in async_map(pages(), endless, capacity=8):
            pass

    consuming = asyncio.create_task(consume())
    await endless.full
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    assert endless.is_closed


async def leave_by_an_error(endless: Endless, pages: Pages) -> None:
    async def consume() -> None:
        async with async_map(pages(), endless, capacity=8) as results:
            async for _ in results:
                await endless.full
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert endless.is_closed


@pytest.mark.contract
@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_async_with, leave_by_cancelling, leave_by_an_error]
)
def test_leaving_early_cancels_calls_and_closes_the_function_and_the_iterable(
    leave: Callable[[Endless, Pages], Awaitable[None]],
) -> None:
    async def script() -> None:
        endless, pages = Endless(), Pages()
        await leave(endless, pages)
        assert endless.cancelled == 8
        assert endless.is_closed
        assert pages.closed

    play(script)


@pytest.mark.contract("The end of an async generator that is the input is not cancelled a second time.")
def test_what_closes_the_input_already_is_not_cancelled_again() -> None:
    async def script() -> bool:
        endless = Endless()
        pages = Pages()
        results = async_map(pages(), endless, capacity=8)
        async for _ in results:
            await endless.full
            break
        # As the end of the loop does, which cancels all tasks in any order.
        [read] = [task for task in asyncio.all_tasks() if "_read_ahead" in str(task.get_coro())]
        read.cancel()
        await asyncio.sleep(0)
        await results.aclose()
        return pages.closed

    assert asyncio.run(script())


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_a_program_that_ends_right_after_break_reports_nothing(kept: bool) -> None:
    there: list[Any] = []

    async def main() -> None:
        endless = Endless()
        pages = Pages()
        there.extend([endless, pages])
        results = async_map(pages(), endless, capacity=8)
        if kept:
            there.append(results)
        async for _ in results:
            await endless.full
            return

    asyncio.run(main())
    assert there[0].cancelled == 8
    assert there[0].is_closed
    assert there[1].closed
    del there[2:]
    gc.collect()


def test_a_loop_that_was_closed_too_early_is_told_of_by_asyncio_alone(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def first_of(iteration: AsyncIterator[int]) -> int:
        return await iteration.__anext__()

    loop = asyncio.new_event_loop()
    iteration = async_map(range(10), identity, capacity=2).__aiter__()
    assert loop.run_until_complete(first_of(iteration)) == 0
    loop.close()
    del iteration, loop
    gc.collect()
    told = {record.getMessage().splitlines()[0] for record in caplog.records}
    assert told == {"Task was destroyed but it is pending!"}
    assert [str(each.message) for each in recwarn] == []
    caplog.clear()


def test_a_failing_call_ends_the_iteration_and_what_runs() -> None:
    async def fail(row: int) -> int:
        if row == 3:
            raise ValueError(row)
        return await after_a_while(row)

    async def script() -> None:
        results = async_map(Pages()(), fail, capacity=8)
        with pytest.raises(CallFailed, match="ValueError"):
            async for _ in results:
                pass
        assert [each async for each in results] == []
        counts = results.statistics()
        assert counts is not None
        assert counts.errors == 1

    play(script)


def test_an_error_of_opening_the_function_reaches_the_consumer() -> None:
    class Client:
        async def __aenter__(self) -> Client:
            raise OSError("no route")

        async def __aexit__(self, *_: object) -> None: ...

        async def __call__(self, row: int) -> int:
            return row

    async def script() -> None:
        with pytest.raises(PillarboxError, match="no route"):
            async for _ in async_map(items(3), Client()):
                pass

    play(script)


@pytest.mark.contract("A partial of an async object is called as the object is.")
def test_a_partial_of_an_async_object_runs_on_the_event_loop() -> None:
    class Adds:
        async def __call__(self, row: int, more: int = 0) -> int:
            await asyncio.sleep(1.0)
            return row + more

    async def script() -> None:
        fn = functools.partial(functools.partial(Adds()), more=10)
        assert [row async for row in async_map(items(3), fn)] == [10, 11, 12]
        assert now() == 4.0

    play(script)


def test_nothing_runs_before_the_first_result_is_asked_for() -> None:
    async def script() -> None:
        pages = Pages()
        async_map(pages(), identity)
        await asyncio.sleep(1.0)
        assert pages.read == 0

    play(script)


def test_one_object_is_iterated_one_way() -> None:
    async def first_only(row: int) -> int:
        if row:
            await asyncio.Event().wait()
        return row

    async def script() -> None:
        results = async_map(range(10), after_a_while, capacity=1)
        assert await results.__anext__() == 0
        with pytest.raises(RuntimeError, match="iterated with `async for`"):
            next(results)
        with pytest.raises(RuntimeError, match="aclose"):
            results.close()
        assert [each async for each in results] == [*range(1, 10)]

    play(script)
    results = async_map(range(10), first_only)
    assert next(results) == 0
    with pytest.raises(RuntimeError, match="iterated with `for`"):
        asyncio.run(_next(results))
    results.close()


async def _next(results: Any) -> Any:
    return await results.__anext__()


def test_two_tasks_cannot_take_results_at_once() -> None:
    async def script() -> None:
        results = async_map(range(10), after_a_while)
        first = asyncio.create_task(_next(results))
        await asyncio.sleep(1.0)
        with pytest.raises(RuntimeError, match="two tasks"):
            await results.__anext__()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    play(script)


def test_an_iterable_that_ignores_its_cancellation_is_left_behind_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn() -> AsyncIterator[int]:
        yield 0
        released = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(LONG_S, released.set_result, None)
        while not released.done():
            try:
                await asyncio.shield(released)
            except asyncio.CancelledError:
                continue

    async def script() -> None:
        results = async_map(stubborn(), identity)
        assert await results.__anext__() == 0
        with caplog.at_level(logging.WARNING, "pillarbox"):
            await results.aclose()
        assert "did not end after it was cancelled" in caplog.text
        await asyncio.sleep(2 * LONG_S)

    play(script)


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="eager tasks came with Python 3.12")
def test_a_loop_whose_tasks_begin_at_once_carries_the_calls() -> None:
    async def script() -> list[int]:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return [each async for each in async_map(items(20), identity, capacity=3)]

    assert play(script) == [*range(20)]


def test_an_input_that_cannot_block_has_no_thread() -> None:
    async def script(rows: Any) -> set[str]:
        results = async_map(rows, after_a_while)
        await results.__anext__()
        names = {thread.name.rsplit("-", 1)[0] for thread in begun()}
        await results.aclose()
        return names

    # What looks for code that blocks reads the frames of another thread, which only a GIL allows.
    watching = {"pillarbox-watch"} if getattr(sys, "_is_gil_enabled", lambda: True)() else set()
    assert play(lambda: script(range(10**6))) == watching
    assert play(lambda: script(items(10**6))) == watching
