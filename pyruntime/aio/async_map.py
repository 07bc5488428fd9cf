"""The operator without Spark: an iterator over the results of a function's calls over an iterable.

With `for` the calls run on an event loop in a thread, with `async for` on the caller's own.
"""

# Alternatives, and why they are worse.
#
# To run the loop on the caller's thread while it waits for a result: it stands still while the caller
# computes, so that no call begins, no answer is read and no time-out fires. The figures stand in
# docs/decisions/loop-thread.md.
#
# To run the calls of `async for` on a loop of its own too: what the function uses, a session or a lock,
# belongs to the caller's loop, and fails on another.
#
# To decide by the function that is called, with a name for each: a reader would have two functions with the
# same twenty options. The way of iterating decides, and the first result binds it.

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from pillarbox.aio.chained import Stage, as_fields, form_of_failures
from pillarbox.aio.error_policy import DeadLetterFiles
from pillarbox.aio.errors import Failed, Outcome
from pillarbox.aio.function import configuration_of
from pillarbox.aio.ledger_scope import CachePin, budget_of_run, content_of, scope_of
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.options import Options
from pillarbox.aio.parsing import with_parse
from pillarbox.aio.task_io import Chunk
from pillarbox.aio.task_run import CLOSE_TIMEOUT_S, ResultStream
from pillarbox.ledger import Ledger
from pillarbox.ledger.cache import CACHE_RUN
from pillarbox.ledger.cache_upkeep import begin_execution
from pillarbox.ledger.keys import ChainedIdentity, execution_id, identity_of_source
from pillarbox.rpc.loop_thread import LoopThread

R = TypeVar("R")

log = logging.getLogger("pillarbox")

READ_AHEAD_ITEMS = 128
"""Items read from an iterable before there is room for them."""

_numbers = itertools.count(1)


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
        stages: Sequence[Stage],
        rows: Iterable[Any] | AsyncIterable[Any],
        results_of: Callable[[Chunk], Iterator[R]],
        dead_letters: DeadLetterFiles | None = None,
    ) -> None:
        self._dead_letters = dead_letters
        self._start: tuple[Sequence[Stage], Iterable[Any] | AsyncIterable[Any]] | None = (stages, rows)
        self._stream: ResultStream | None = None
        # That of the stream's loop, with `for`.
        self._thread: LoopThread | None = None
        self._is_awaited = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._results_of = results_of
        self._results: Iterator[R] = iter(())
        self._last: Totals | None = None
        self._last_by_uid: dict[str, Totals | None] = {}

    # -- for, with ----------------------------------------------------------------------------

    def __iter__(self) -> AsyncMapIterator[R]:
        return self

    def __next__(self) -> R:
        for result in self._results:
            return result
        self._refuse_in_thread("`for`")
        while True:
            try:
                chunk = self._take()
            except BaseException:
                self._end(_close_quietly)
                raise
            if chunk is None:
                self.close()
                raise StopIteration
            self._results = self._results_of(chunk)
            for result in self._results:
                return result

    def _take(self) -> Chunk | None:
        if self._stream is None:
            if self._start is None:
                return None
            # Taken away first: what fails here is not tried again by the next `next`.
            (stages, rows), self._start = self._start, None
            stages = open_ledgers(stages)
            self._thread = thread = LoopThread(f"pillarbox-loop-{next(_numbers)}")
            self._stream = _stream_of(stages, rows, thread)
            # It must not hold this iterator, or that would never be dropped.
            self._finalizer = weakref.finalize(self, _close_dropped, self._stream, thread)
        chunk = self._stream.take()
        if self._dead_letters is not None and chunk is not None:
            self._dead_letters.write(chunk)
        return chunk

    def close(self) -> None:
        """Cancel the calls in flight and end the threads; results not taken are dropped. Idempotent.

        Raises RuntimeError where the results are iterated with `async for`: use `aclose` there.
        """
        self._refuse_in_thread("`close`, but with `aclose`")
        self._end(_close)

    def _end(self, close: Callable[[ResultStream, LoopThread], None]) -> None:
        stream, thread = self._forget(), self._thread
        if stream is not None and thread is not None:
            self._thread = None
            close(stream, thread)

    def _refuse_in_thread(self, wanted: str) -> None:
        if self._stream is not None and self._thread is None:
            raise RuntimeError(
                f"these results are iterated with `async for`; go on so, and not with {wanted}"
            )

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
        self._refuse_in_loop("`async for`")
        if self._is_awaited:
            raise RuntimeError("two tasks wait for results of one async_map; take them in one task")
        while True:
            self._is_awaited = True
            try:
                chunk = await self._take_in_loop()
            except BaseException:
                # The cancellation of the task that waits, for one: its calls are cancelled with it.
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
        if self._stream is None:
            if self._start is None:
                return None
            (stages, rows), self._start = self._start, None
            if any(stage.options.ledger is not None for stage in stages):
                # It reads files or a bucket.
                stages = await asyncio.to_thread(open_ledgers, stages)
            self._stream = _stream_of(stages, rows, None)
            # Nobody waits for the end then: the loop goes on, and runs it.
            self._finalizer = weakref.finalize(self, self._stream.stop_soon)
        chunk = await self._stream.take_async()
        if self._dead_letters is not None and chunk is not None and _has_failed(chunk):
            await asyncio.to_thread(self._dead_letters.write, chunk)
        return chunk

    async def aclose(self) -> None:
        """Cancel the calls in flight and wait for their end; results not taken are dropped. Idempotent.

        On the event loop where the results are iterated. Raises RuntimeError where that is done with `for`.
        """
        self._refuse_in_loop("`aclose`, but with `close`")
        stream = self._forget()
        if stream is not None:
            await stream.aclose()

    async def _close_quietly_in_loop(self) -> None:
        try:
            await self.aclose()
        except Exception:
            log.warning("the function of async_map could not be closed", exc_info=True)

    def _refuse_in_loop(self, wanted: str) -> None:
        if self._thread is not None:
            raise RuntimeError(f"these results are iterated with `for`; go on so, and not with {wanted}")

    async def __aenter__(self) -> AsyncMapIterator[R]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- either way ---------------------------------------------------------------------------

    def statistics(self) -> Totals | None:
        """Counts so far: rows, results, calls, retries, errors, time-outs; None before the first result.

        Of several functions those of the last one: see `statistics_by_uid`.
        """
        stream = self._stream
        return self._last if stream is None else stream.statistics() or self._last

    def statistics_by_uid(self) -> dict[str, Totals | None]:
        """Counts so far of each function of a list, by its `uid`; none before the first result."""
        stream = self._stream
        return self._last_by_uid if stream is None else stream.statistics_by_uid() or self._last_by_uid

    def _forget(self) -> ResultStream | None:
        """Ask for nothing more; returns what is to be closed."""
        self._last = self.statistics()
        self._last_by_uid = self.statistics_by_uid()
        self._start = None
        self._results = iter(())
        if self._finalizer is not None:
            self._finalizer.detach()
        stream, self._stream = self._stream, None
        return stream


def _stream_of(
    stages: Sequence[Stage], rows: Iterable[Any] | AsyncIterable[Any], thread: LoopThread | None
) -> ResultStream:
    ledgers = [stage.options.ledger for stage in stages if stage.options.ledger is not None]
    key = ledgers[0].key if ledgers else None
    stages = [
        stage._replace(convert=with_parse(stage.fn, stage.convert, keeps=stage.ledger_session is not None))
        for stage in stages
    ]
    return ResultStream(
        stages,
        rows,
        loop_thread=thread,
        read_ahead_items=READ_AHEAD_ITEMS,
        opens=True,
        identify=identity_of_source(key),
    )


def _close(stream: ResultStream, thread: LoopThread) -> None:
    timeout = CLOSE_TIMEOUT_S
    try:
        if not stream.close():
            # A call blocks the loop. Its thread is a daemon, and has been waited for.
            timeout = 0.0
    except TimeoutError:
        timeout = 0.0
        raise
    finally:
        thread.close(timeout)


def _close_quietly(stream: ResultStream, thread: LoopThread) -> None:
    """Close while another error is on its way, or where nobody would get this one."""
    try:
        _close(stream, thread)
    except TimeoutError as error:
        log.warning("%s", error)
    except Exception:
        log.warning("the function of async_map could not be closed", exc_info=True)


def _close_dropped(stream: ResultStream, thread: LoopThread) -> None:
    # The garbage collector runs where it likes: on a thread of this run, which must not wait for itself, or
    # on another's event loop.
    if threading.current_thread() is threading.main_thread():
        _close_quietly(stream, thread)
    else:
        args = (stream, thread)
        threading.Thread(target=_close_quietly, args=args, name="pillarbox-close", daemon=True).start()


def open_ledgers(stages: Sequence[Stage]) -> list[Stage]:
    """The functions with what their ledgers have. Blocks. Raises LedgerError and OSError."""
    opened: list[Stage] = []
    for position, stage in enumerate(stages):
        ledger = stage.options.ledger
        options = budget_of_run(stage.options, None if ledger is None else ledger.run)
        ledger_session = None
        if ledger is not None:
            execution = execution_id()
            more: dict[str, Any] = {"identify": ChainedIdentity(ledger.inputs) if position else None}
            if ledger.cache is not None:
                more = _cached(stage.fn, ledger, execution.hex())
            ledger_session = LedgerSession(
                options,
                str(ledger.run_name),
                execution=execution,
                alone=True,
                prepare=None if position == len(stages) - 1 else as_fields,
                **more,
            )
            if opened and opened[0].ledger_session is not None:
                ledger_session.follow(opened[0].ledger_session)
        opened.append(stage._replace(options=options, ledger_session=ledger_session))
    return opened


def _cached(fn: Callable[..., Any], ledger: Ledger, owner: str) -> dict[str, Any]:
    """The further arguments of a session with a cache. Blocks. Raises LedgerError and OSError."""
    config = {"shape": None, "zone": None, "client": configuration_of(fn)}
    scope = scope_of(ledger, CACHE_RUN, config=config)
    cut = begin_execution(ledger, scope, owner)
    return {
        "config": config,
        "cut": cut,
        "identify": content_of(ledger, fn),
        "pin": CachePin(ledger, scope, owner, cut),
    }


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
    uids: frozenset[str | None], results_of: Callable[[Chunk], Iterator[Any]], chunk: Chunk
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
        _check_options(stage.options)
    results_of = _RESULTS[form_of_failures(stages)]
    places = {
        stage.uid: stage.options.errors.dead_letter
        for stage in stages
        if stage.options.errors.dead_letter is not None
    }
    dead_letters = DeadLetterFiles(places, has_source=len(stages) > 1) if places else None
    drops = frozenset(stage.uid for stage in stages if stage.drops)
    if stages[0].uid is not None and drops:
        results_of = partial(_without, drops, results_of)
    return AsyncMapIterator(stages, rows, results_of, dead_letters)


def _has_failed(chunk: Chunk) -> bool:
    return any(type(each) is Failed for _, each in chunk)


def _check_options(options: Options) -> None:
    if options.where is not None or options.latency != "normal":
        raise ValueError("where, latency: are for a DataFrame; filter an iterable before it is given")
    ledger = options.ledger
    if ledger is None:
        return
    if ledger.run_name is None:
        raise ValueError("run=None: with a ledger a run needs a name: Ledger(folder, run='2026-11-21')")
    ledger.check()
