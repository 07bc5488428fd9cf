"""The operator without Spark: an iterator over the results of a function's calls over an iterable.

With `for` the calls run on an event loop in a thread, with `async for` on the caller's own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from pillarbox.aio.chained import Chain, Stage, as_fields, chain_of, form_of_failures
from pillarbox.aio.errors import Failed, Outcome, shorten
from pillarbox.aio.function import enter_function
from pillarbox.aio.journal import Journal, budget_of_run, open_journal, scope_of
from pillarbox.aio.letter_file import ChainLetters, LetterFile
from pillarbox.aio.meter import OperatorStatistics
from pillarbox.aio.options import Options
from pillarbox.aio.task_io import Chunk
from pillarbox.aio.task_run import CLOSE, LoopRun, ThreadRun
from pillarbox.ledger import execution_id
from pillarbox.ledger.function_code import code_hash, keep_code, warn_if_changed
from pillarbox.ledger.keys import ChainedIdentity, identity_of_source
from pillarbox.rpc.loop_thread import LoopThread

R = TypeVar("R")

log = logging.getLogger("pillarbox")

READ_AHEAD = 128
"""Items read from an iterable before there is room for them."""

_numbers = itertools.count(1)


class _Run:
    """The threads of one iteration, apart from the iterator, so that dropping the iterator ends them."""

    def __init__(self, functions: _Functions, rows: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._thread = LoopThread(f"pillarbox-loop-{next(_numbers)}")
        self._fn = functions.fn
        self._resources = AsyncExitStack()
        self.job: ThreadRun | None = None
        try:
            stages = [
                stage._replace(fn=self._thread.run(enter_function(stage.fn, self._resources)))
                for stage in functions.opened()
            ]
            first = stages[0]
            self.job = ThreadRun(
                first.fn,
                first.options,
                rows,
                loop_thread=self._thread,
                read_ahead_items=READ_AHEAD,
                journal=first.journal,
                chain=functions.chain(stages),
            )
        except BaseException:
            self.close_quietly()
            raise

    def close(self) -> None:
        if self.job is not None and not self.job.close():
            # A call blocks the loop: nothing more can be run on it, and its thread is a daemon.
            self._thread.close(0.0)
            return
        closing = self._thread.submit(self._resources.aclose())
        left = CLOSE
        try:
            closing.result(CLOSE)
        except FutureTimeoutError:
            # Its thread is a daemon, and has been waited for.
            left = 0.0
            raise TimeoutError(f"fn={shorten(self._fn)}: could not be closed within {CLOSE:g} s") from None
        finally:
            self._thread.close(left)

    def close_quietly(self) -> None:
        """Close while another error is on its way, or where nobody would get this one."""
        try:
            self.close()
        except TimeoutError as error:
            log.warning("%s", error)
        except Exception:
            log.warning("fn=%s: could not be closed", shorten(self._fn), exc_info=True)

    def close_from_any_thread(self) -> None:
        # The garbage collector runs where it likes: on a thread of this run, which must not wait for
        # itself, or on another's event loop.
        if threading.current_thread() is threading.main_thread():
            self.close_quietly()
        else:
            threading.Thread(target=self.close_quietly, name="pillarbox-close", daemon=True).start()


class _Functions:
    """What is called for each item: one function, or those of a list, one behind the other. Any thread.

    is_list: True if they were given as a list, so that failures say in which one they were.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self.is_list = bool(stages[0].uid)
        self.has_ledger = any(stage.options.ledger is not None for stage in stages)

    @property
    def fn(self) -> Any:
        """The function, or the list of them."""
        return [stage.fn for stage in self._stages] if self.is_list else self._stages[0].fn

    def opened(self) -> list[Stage]:
        """The functions with what their ledgers have. Blocks. Raises LedgerError and OSError."""
        opened: list[Stage] = []
        for position, stage in enumerate(self._stages):
            ledger = stage.options.ledger
            options = budget_of_run(stage.options, None if ledger is None else ledger.run)
            journal = self._open_journal(position, stage._replace(options=options))
            if journal is not None and opened and opened[0].journal is not None:
                journal.follow(opened[0].journal)
            opened.append(stage._replace(options=options, journal=journal))
        return opened

    def _open_journal(self, position: int, stage: Stage) -> Journal | None:
        ledger = stage.options.ledger
        if ledger is None:
            return None
        run = str(ledger.run)
        keep_code(ledger, scope_of(ledger, run), code_hash(stage.fn))
        return open_journal(
            stage.options,
            run,
            execution=execution_id(),
            alone=True,
            identify=ChainedIdentity(ledger.inputs) if position else None,
            prepare=None if position == len(self._stages) - 1 else as_fields,
        )

    def chain(self, stages: Sequence[Stage]) -> Chain | None:
        """The chain of `stages`, which have been opened; None where there is one function that is no list."""
        if not self.is_list:
            return None
        ledgers = [each.options.ledger for each in stages if each.options.ledger is not None]
        key = ledgers[0].key if ledgers else None
        return chain_of(stages, identity_of_source(key))


class AsyncMapIterator(Iterator[R], AsyncIterator[R], Generic[R]):
    """The results of `async_map`, for `for` and `with` or `async for` and `async with`. Built by `async_map`.

    1. Nothing runs before the first result is asked for.
    2. With `for`, calls run on an event loop in a thread of their own. With `async for` they run on the
       caller's event loop, which is not blocked: calls and an async iterable may use what belongs to it.
    3. `close` or `aclose`, the end of a `with` block, the end of the results, an error, the cancellation of
       the task that waits for a result, and dropping the iterator, as `break` does, cancel the calls in
       flight and end its threads; a blocking call cannot be cancelled, it is waited for, for a second.
    4. One thread at a time, or one task of one event loop, may use it.
    """

    def __init__(
        self,
        functions: _Functions,
        rows: Iterable[Any] | AsyncIterable[Any],
        results_of: Callable[[Chunk], Iterator[R]],
        letters: LetterFile | ChainLetters | None = None,
    ) -> None:
        self._letters = letters
        self._start: tuple[_Functions, Iterable[Any] | AsyncIterable[Any]] | None = (functions, rows)
        self._run: _Run | None = None
        self._loop_job: LoopRun | None = None
        self._is_awaited = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._results_of = results_of
        self._results: Iterator[R] = iter(())
        self._last: OperatorStatistics | None = None
        self._last_by_uid: dict[str, OperatorStatistics | None] = {}

    # -- for, with ----------------------------------------------------------------------------

    def __iter__(self) -> AsyncMapIterator[R]:
        return self

    def __next__(self) -> R:
        for result in self._results:
            return result
        self._refuse(self._loop_job, "`async for`", "`for`")
        while True:
            try:
                chunk = self._take()
            except BaseException:
                self._end(_Run.close_quietly)
                raise
            if chunk is None:
                self.close()
                raise StopIteration
            self._results = self._results_of(chunk)
            for result in self._results:
                return result

    def _take(self) -> Chunk | None:
        if self._run is None:
            if self._start is None:
                return None
            start, self._start = self._start, None
            self._run = _Run(*start)
            self._finalizer = weakref.finalize(self, self._run.close_from_any_thread)
        assert self._run.job is not None
        chunk = self._run.job.take()
        if self._letters is not None and chunk is not None:
            self._letters.write(chunk)
        return chunk

    def close(self) -> None:
        """Cancel the calls in flight and end the threads; results not taken are dropped. Idempotent.

        Raises RuntimeError where the results are iterated with `async for`: use `aclose` there.
        """
        self._refuse(self._loop_job, "`async for`", "`close`, but with `aclose`")
        self._end(_Run.close)

    def _end(self, close: Callable[[_Run], None]) -> None:
        self._forget()
        if self._run is not None:
            run, self._run = self._run, None
            close(run)

    def __enter__(self) -> AsyncMapIterator[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- async for, async with ----------------------------------------------------------------

    def __aiter__(self) -> AsyncMapIterator[R]:
        return self

    async def __anext__(self) -> R:
        for result in self._results:
            return result
        self._refuse(self._run, "`for`", "`async for`")
        if self._is_awaited:
            raise RuntimeError("two tasks wait for results of one async_map; take them in one task")
        while True:
            self._is_awaited = True
            try:
                chunk = await self._take_in_loop()
            except BaseException:
                await self._close_quietly_in_loop()
                raise
            finally:
                self._is_awaited = False
            if chunk is None:
                await self.aclose()
                raise StopAsyncIteration
            self._results = self._results_of(chunk)
            for result in self._results:
                return result

    async def _take_in_loop(self) -> Chunk | None:
        if self._loop_job is None:
            if self._start is None:
                return None
            (functions, rows), self._start = self._start, None
            stages = await asyncio.to_thread(functions.opened) if functions.has_ledger else functions.opened()
            first = stages[0]
            self._loop_job = LoopRun(
                first.fn,
                first.options,
                rows,
                read_ahead_items=READ_AHEAD,
                journal=first.journal,
                chain=functions.chain(stages),
            )
            self._finalizer = weakref.finalize(self, self._loop_job.stop_from_any_thread)
        chunk = await self._loop_job.take()
        if self._letters is not None and chunk is not None and any(type(each) is Failed for _, each in chunk):
            await asyncio.to_thread(self._letters.write, chunk)
        return chunk

    async def aclose(self) -> None:
        """Cancel the calls in flight and wait for their end; results not taken are dropped. Idempotent.

        On the event loop where the results are iterated. Raises RuntimeError where that is done with `for`.
        """
        self._refuse(self._run, "`for`", "`aclose`, but with `close`")
        self._forget()
        if self._loop_job is not None:
            job, self._loop_job = self._loop_job, None
            await job.close()

    async def _close_quietly_in_loop(self) -> None:
        try:
            await self.aclose()
        except Exception:
            log.warning("the function of async_map could not be closed", exc_info=True)

    async def __aenter__(self) -> AsyncMapIterator[R]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- either way ---------------------------------------------------------------------------

    def statistics(self) -> OperatorStatistics | None:
        """Counts so far: rows, results, calls, retries, errors, time-outs; None before the first result.

        Of several functions those of the last one: see `statistics_by_uid`.
        """
        job = self._job
        return self._last if job is None else job.statistics() or self._last

    def statistics_by_uid(self) -> dict[str, OperatorStatistics | None]:
        """Counts so far of each function of a list, by its `uid`; none before the first result."""
        job = self._job
        return self._last_by_uid if job is None else job.statistics_by_uid() or self._last_by_uid

    @property
    def _job(self) -> ThreadRun | LoopRun | None:
        return self._loop_job if self._run is None else self._run.job

    def _forget(self) -> None:
        """Nothing more is asked for."""
        self._last = self.statistics()
        self._last_by_uid = self.statistics_by_uid()
        self._start = None
        self._results = iter(())
        if self._finalizer is not None:
            self._finalizer.detach()

    @staticmethod
    def _refuse(other: object, used: str, wanted: str) -> None:
        if other is not None:
            raise RuntimeError(f"these results are iterated with {used}; go on so, and not with {wanted}")


def _plain(chunk: Chunk) -> Iterator[Any]:
    return iter([result for _, result in chunk])


def _nulls(chunk: Chunk) -> Iterator[Any]:
    return iter([None if type(result) is Failed else result for _, result in chunk])


def _outcomes(chunk: Chunk) -> Iterator[Any]:
    return iter(
        [
            Outcome(None, result.info) if type(result) is Failed else Outcome(result, None)
            for _, result in chunk
        ]
    )


def _without_failed(chunk: Chunk) -> Iterator[Any]:
    return iter([result for _, result in chunk if type(result) is not Failed])


def _without(
    uids: frozenset[str], results_of: Callable[[Chunk], Iterator[Any]], chunk: Chunk
) -> Iterator[Any]:
    """The results of a chunk but for what failed in the functions `uids`, which drop it."""
    return results_of([pair for pair in chunk if type(pair[1]) is not Failed or pair[1].info.uid not in uids])


_RESULTS: dict[str, Callable[[Chunk], Iterator[Any]]] = {
    "fail": _plain,
    "null": _nulls,
    "column": _outcomes,
    "drop": _without_failed,
}


def iterate(rows: Iterable[Any] | AsyncIterable[Any], stages: Sequence[Stage]) -> AsyncMapIterator[Any]:
    """The iterator that `async_map` gives for an iterable. Raises TypeError or ValueError."""
    if not isinstance(rows, Iterable | AsyncIterable):
        raise TypeError(
            f"rows={rows!r}: must be an iterable, an async iterable or a Spark DataFrame, "
            f"not {type(rows).__name__}"
        )
    for stage in stages:
        _check_options(stage.fn, stage.options)
    results_of = _RESULTS[form_of_failures(stages)]
    functions = _Functions(stages)
    if not functions.is_list:
        place = stages[0].options.errors.dead_letter
        letters = None if place is None else LetterFile(place)
        return AsyncMapIterator(functions, rows, results_of, letters)
    drops = frozenset(stage.uid for stage in stages if stage.drops)
    places = {
        stage.uid: stage.options.errors.dead_letter
        for stage in stages
        if stage.options.errors.dead_letter is not None
    }
    aside = ChainLetters(places, has_source=len(stages) > 1) if places else None
    if drops:
        results_of = partial(_without, drops, results_of)
    return AsyncMapIterator(functions, rows, results_of, aside)


def _check_options(fn: Callable[..., Any], options: Options) -> None:
    if options.where is not None or options.latency != "normal":
        raise ValueError("where, latency: are for a DataFrame; filter an iterable before it is given")
    ledger = options.ledger
    if ledger is None:
        return
    if ledger.run is None:
        raise ValueError("run=None: with a ledger a run needs a name: Ledger(folder, run='2026-11-21')")
    ledger.check()
    warn_if_changed(ledger, scope_of(ledger, ledger.run), fn, code_hash(fn))
