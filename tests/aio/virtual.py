"""`async_map` in virtual time: rows that come when a test says so, and a service that takes its seconds.

Waiting for an hour takes no time. Everything is for the thread that runs the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import pairwise
from typing import Any, TypeVar

from pillarbox import ErrorInfo, Options, Outcome, Retry, async_map
from pillarbox.testing import VirtualTimeLoop, run_virtual

T = TypeVar("T")

HOUR = 3600.0

LONG = 100_000.0
"""Seconds after which a test must have ended."""


def play(script: Callable[[], Awaitable[T]]) -> T:
    """Run `script()` in virtual time; no task may be left when it has ended."""
    return run_virtual(played(script), longest=LONG)


async def played(script: Callable[[], Awaitable[T]]) -> T:
    """The result of `script()`, with no task left."""
    result = await script()
    # What was cancelled last ends in the next turn.
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return result


def now() -> float:
    """The virtual time, in seconds."""
    return round(asyncio.get_running_loop().time(), 6)


def loop_of() -> VirtualTimeLoop:
    """The loop that runs the test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


class Job:
    """An `async_map` whose rows are pushed by the test; it keeps the results, and when they came.

    With errors="column" a row that failed has its `ErrorInfo` as its result. `error` is what the job failed
    with.
    """

    def __init__(self, fn: Any, **options: Any) -> None:
        self.results: list[Any] = []
        self.came: list[float] = []
        self.error: BaseException | None = None
        self._rows: list[Any] = []
        self._coming: deque[Any] = deque()
        self._no_more = False
        self._awake = asyncio.Event()
        self._in_order = options.get("ordered", True)
        self.iterator = async_map(self._arrivals(), fn, options=Options(**options))
        self._taking = asyncio.ensure_future(self._take())

    def push(self, *rows: Any) -> None:
        """The rows come now, all at once."""
        self._rows += rows
        self._coming += rows
        self._awake.set()

    async def end(self) -> None:
        """No more rows come; wait until the job has ended."""
        self._no_more = True
        self._awake.set()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the job has ended."""
        await asyncio.wait([self._taking])

    async def stop(self) -> None:
        """Leave the job early, and wait for its end."""
        self._taking.cancel()
        await self.ended()

    @property
    def emitted(self) -> list[tuple[Any, Any]]:
        """Rows and their results, for a job in order that drops nothing."""
        assert self._in_order
        return list(zip(self._rows, self.results, strict=False))

    @property
    def times(self) -> dict[Any, float]:
        """By row, when its result came."""
        assert self._in_order
        return dict(zip(self._rows, self.came, strict=False))

    def statistics(self) -> Any:
        """The job's counts."""
        return self.iterator.statistics()

    async def _arrivals(self) -> AsyncIterator[Any]:
        while True:
            while self._coming:
                yield self._coming.popleft()
            if self._no_more:
                return
            self._awake.clear()
            await self._awake.wait()

    async def _take(self) -> None:
        try:
            async for result in self.iterator:
                self.results.append(_unpacked(result))
                self.came.append(now())
        except Exception as error:
            self.error = error


def _unpacked(result: Any) -> Any:
    if type(result) is Outcome:
        return result.result if result.error is None else result.error
    return result


class Service:
    """An async function of a list of rows that takes `seconds`; keeps what it was called with, and when."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.calls: list[tuple[float, list[Any]]] = []
        self.running = self.most = self.cancelled = 0

    async def __call__(self, rows: list[Any]) -> list[Any]:
        self.calls.append((now(), rows))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
            return await self.answer(rows)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def answer(self, rows: list[Any]) -> list[Any]:
        return [("answer", row) for row in rows]


def answers(*rows: Any) -> list[tuple[str, Any]]:
    """The results of a `Service` for the rows."""
    return [("answer", row) for row in rows]


def again(attempts: int, seconds: float, **more: Any) -> Retry:
    """Tries again after exactly so many seconds."""
    return Retry(attempts, initial=seconds, maximum=seconds, jitter=False, **more)


class Scripted(Service):
    """Answers as `reply` says: a function of the number of the call, from 1, and its rows."""

    def __init__(self, reply: Callable[[int, list[Any]], Any], seconds: float = 0.0) -> None:
        super().__init__(seconds)
        self.reply = reply

    async def answer(self, rows: list[Any]) -> list[Any]:
        reply: list[Any] = self.reply(len(self.calls), rows)
        return reply

    @property
    def batches(self) -> list[list[Any]]:
        return [rows for _, rows in self.calls]


def poison(*bad: Any, error: type[BaseException] = ValueError) -> Callable[[int, list[Any]], list[Any]]:
    """Fails each batch that has one of the rows."""

    def reply(number: int, rows: list[Any]) -> list[Any]:
        found = [row for row in rows if row in bad]
        if found:
            raise error(f"bad row {found[0]}")
        return answers(*rows)

    return reply


class Failing:
    """An async function whose calls fail with the errors in turn, then with the last; None is a success.

    Keeps when the calls began.
    """

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = errors
        self.began: list[float] = []

    async def __call__(self, row: Any) -> Any:
        self.began.append(now())
        error = self.errors[min(len(self.began), len(self.errors)) - 1]
        if error is not None:
            raise error
        return row

    @property
    def pauses(self) -> list[float]:
        """Seconds between the calls."""
        return [round(later - earlier, 6) for earlier, later in pairwise(self.began)]


def called(retry: Any, *errors: BaseException | None, **options: Any) -> Failing:
    """The calls of one row that fail so."""
    fn = Failing(*errors)
    run(fn, 1, retry=retry, **{"errors": "column", **options})
    return fn


def infos(job: Job) -> dict[Any, ErrorInfo]:
    """The `ErrorInfo` of each row that failed, of a job with errors="column"."""
    return {row: result for row, result in job.emitted if type(result) is ErrorInfo}


def run(fn: Callable[..., Any], rows: int, **options: Any) -> tuple[Job, float]:
    """The job over so many rows, and the seconds that it took."""

    async def script() -> tuple[Job, float]:
        job = Job(fn, **options)
        job.push(*range(rows))
        await job.end()
        return job, now()

    return play(script)


def results_of(rows: Iterable[Any], fn: Any, **options: Any) -> list[Any]:
    """The results of a job over all the rows at once, unpacked. Raises what the job fails with."""

    async def script() -> list[Any]:
        return [_unpacked(result) async for result in async_map(rows, fn, options=Options(**options))]

    return play(script)


def lost(job: Job, rows: int) -> int:
    """Rows, which are numbers, without themselves as their result."""
    found = [result for result in job.results if type(result) is int]
    assert len(found) == len({*found})
    return rows - len({*found}.intersection(range(rows)))
