"""An event loop whose time is the test's, and an operator on it: waiting for an hour takes no time.

Everything is for the thread that runs the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pillarbox import Options, Retry
from pillarbox.aio.chained import Stage
from pillarbox.aio.errors import Failed
from pillarbox.aio.task_run import TaskRun
from pillarbox.task import InputStatus
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, TaskOutput

T = TypeVar("T")

HOUR = 3600.0

LONG = 100_000.0
"""Seconds after which a test must have ended."""


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Does not wait: the loop's time moves instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("the loop waits for something that nobody will do")
        if not ready and timeout:
            # To the very time of the timer: sums of steps are inexact.
            first: asyncio.TimerHandle = self.loop._scheduled[0]  # type: ignore[attr-defined]
            self.loop.now = first.when()
        assert self.loop.now < LONG, "the job does not end"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sleeps by moving its own time, `now`, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def armed(self) -> list[asyncio.TimerHandle]:
        """The timers that would still fire."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return [timer for timer in scheduled if not timer.cancelled()]


def play(script: Callable[[], Awaitable[T]], new_loop: Callable[[], VirtualLoop] = VirtualLoop) -> T:
    """Run `script()` on a loop of its own; no task may be left when it has ended."""
    loop = new_loop()
    try:
        result: T = loop.run_until_complete(_played(script))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        assert not left
        return result
    finally:
        loop.close()


async def _played(script: Callable[[], Awaitable[T]]) -> T:
    return await script()


class Rig:
    """An operator whose rows are pushed by the test; what it emits is kept, with the time of its emission.

    `error` is what the job failed with.
    """

    def __init__(
        self, fn: Callable[..., Any], *, spread: bool = False, convert: Any = None, **options: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.row_bytes = 1
        self.emitted: list[tuple[Any, Any]] = []
        self.times: dict[Any, float] = {}
        self.error: BaseException | None = None
        self._rows: list[Any] = []
        self._no_more = False
        self._awaited: Future[None] | None = None
        self.run = TaskRun(
            [Stage(fn, Options(**options), convert=convert)],
            self,
            self,
            loop=loop,
            context=contextvars.copy_context(),
            spread=spread,
        )
        (self.operator,) = self.run.operators
        self.run.start()

    @property
    def results(self) -> list[Any]:
        return [result for _, result in self.emitted]

    # -- by the test --------------------------------------------------------------------------

    def push(self, *rows: Any) -> None:
        """The rows come now, all at once."""
        self._rows.extend(rows)
        self._awake()

    async def end(self) -> None:
        """No more rows come; wait until the job has ended."""
        self._no_more = True
        self._awake()
        await self.run.ended

    async def stop(self) -> None:
        """End the job early, and wait for that."""
        self.run.stop()
        await self.run.ended

    def _awake(self) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)

    # -- as the input ------------------------------------------------------------------------

    def emit_next(self, output: TaskOutput) -> InputStatus:
        if not self._rows:
            return InputStatus.END_OF_INPUT if self._no_more else InputStatus.NOTHING_AVAILABLE
        rows, self._rows = self._rows, []
        output.collect(RowBatch(rows, self.row_bytes))
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[None] | None:
        if self._rows or self._no_more:
            return None
        self._awaited = Future()
        return self._awaited

    def close(self) -> None:
        self._rows = []

    # -- as the output ------------------------------------------------------------------------

    is_available = True
    has_ended = False

    def call_when_room(self, wake: Callable[[], None]) -> None:
        raise AssertionError("there is always room")

    def collect(self, batch: RowBatch) -> None:
        for call, result in batch.rows:
            self.emitted.append((call.row, result))
            self.times[call.row] = round(self.loop.now, 6)

    def emit_watermark(self, timestamp: float) -> None:
        self.has_ended = timestamp == MAX_WATERMARK

    def emit_barrier(self, barrier: Any) -> None:
        pass

    def finish(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        self.error = error


class Service:
    """An async function of a list of rows that takes `seconds`; keeps what it was called with, and when."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.calls: list[tuple[float, list[Any]]] = []
        self.running = self.most = self.cancelled = 0

    async def __call__(self, rows: list[Any]) -> list[Any]:
        self.calls.append((round(asyncio.get_running_loop().time(), 6), rows))
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


def infos(rig: Rig) -> dict[Any, Any]:
    """The `ErrorInfo` of each row that failed."""
    return {row: result.info for row, result in rig.emitted if type(result) is Failed}


def now() -> float:
    return asyncio.get_running_loop().time()


def run(fn: Callable[..., Any], rows: int, **options: Any) -> tuple[Rig, float]:
    """The job over so many rows, and the seconds that it took."""

    async def script() -> tuple[Rig, float]:
        rig = Rig(fn, **options)
        rig.push(*range(rows))
        await rig.end()
        return rig, now()

    return play(script)


def lost(rig: Rig, rows: int) -> int:
    return rows - sum(row == result for row, result in rig.emitted)
