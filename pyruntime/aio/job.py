"""One run of the operator, seen from the thread that consumes its results.

Three threads: one reads the input ahead, the loop's thread owns the operator and makes the calls,
and the caller's takes the results. All methods of `Job` are for the caller's thread.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from pillarbox.aio.counts import OperatorStatistics
from pillarbox.aio.errors import CallTimeout, shorten
from pillarbox.aio.journal import Journal
from pillarbox.aio.operator import AsyncOperator
from pillarbox.aio.options import Options
from pillarbox.aio.sinks import Chunk, HandoverSink
from pillarbox.aio.sources import CollectionSource, HandoverSource, Lot, one_lot, read_ahead
from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.wire.loop_thread import LoopThread

log = logging.getLogger("pillarbox")

STALL = 5.0
"""Seconds by which a deadline may be missed before the event loop counts as blocked."""

CLOSE = 5.0
"""Seconds that ending a job early may take before its threads are left to themselves."""

IN_MEMORY = (list, tuple, range, set, frozenset, dict)
"""Collections whose iteration never waits; others may read a file or a database."""

_numbers = itertools.count(1)


class Job:
    """Runs `fn` over `rows` on a loop thread.

    rows: an `IN_MEMORY` collection, which is read on the loop's thread, or any iterable, which is read
        ahead in a thread of its own, by at most `read_ahead_items` items or `read_ahead_bytes` as `weigh`
        gives them.
    unpack: turns items of a read-ahead iterable into lots of rows.
    loop_thread: the thread to run on; it outlives the job.
    chunk_rows, linger: see `HandoverSink`. spread, journal: see `AsyncOperator`.
    idle: called by `take` after each second without a result; what it raises, `take` raises.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        rows: Iterable[Any],
        *,
        loop_thread: LoopThread,
        unpack: Callable[[Iterable[Any]], Iterator[Lot]] = one_lot,
        read_ahead_items: int,
        read_ahead_bytes: int | None = None,
        weigh: Callable[[Any], int] | None = None,
        chunk_rows: int = 1,
        linger: float = 0.0,
        spread: bool = False,
        idle: Callable[[], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._loop_thread = loop_thread
        self._idle = idle
        # A chunk waits while another is built: what is not taken stays in the operator's window.
        self._outbox = Handover(1)
        self._inbox: Handover | None = None
        self._reader: threading.Thread | None = None
        self._operator: AsyncOperator | None = None
        self._ended = threading.Event()
        self._stopped = False
        context = contextvars.copy_context()
        source: CollectionSource | HandoverSource
        if isinstance(rows, IN_MEMORY):
            source = CollectionSource(rows)
        else:
            self._inbox = Handover(read_ahead_items, read_ahead_bytes)
            source = HandoverSource(self._inbox, unpack)
            self._reader = threading.Thread(
                target=context.copy().run,
                args=(read_ahead, rows, self._inbox, weigh),
                name=f"pillarbox-read-{next(_numbers)}",
                daemon=True,
            )
            self._reader.start()
        self._make_sink = partial(
            HandoverSink, self._outbox, loop_thread.loop, rows=chunk_rows, linger=linger
        )
        self._make_operator = partial(
            AsyncOperator,
            fn,
            options,
            source,
            loop=loop_thread.loop,
            context=context,
            spread=spread,
            journal=journal,
        )
        loop_thread.submit(self._run())

    def take(self) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end.

        Raises what the job failed with, and `CallTimeout` when the event loop is blocked by a call
        that does not give it back.
        """
        while True:
            try:
                chunk = self._outbox.take(1.0)
            except HandoverClosedError:
                return None
            if chunk is not None:
                return chunk  # type: ignore[no-any-return]
            self._check_stall()
            if self._idle is not None:
                self._idle()

    def close(self) -> bool:
        """Stop what still runs, drop what was not taken, and wait for the job's threads.

        Returns False if the event loop is blocked, so that calls have not ended after `CLOSE` seconds. A
        reading thread that hangs in its input is left behind, with a warning. Idempotent.
        """
        self._outbox.close()
        if self._inbox is not None:
            self._inbox.close()
        self._loop_thread.call(self._stop)
        ended = self._ended.wait(CLOSE)
        if self._reader is not None:
            self._reader.join(CLOSE)
            if self._reader.is_alive():
                log.warning("thread %s still waits for input; it is left behind", self._reader.name)
        return ended

    def statistics(self) -> OperatorStatistics | None:
        """Counts of the operator so far; None before it has begun."""
        return None if self._operator is None else self._operator.statistics()

    async def _run(self) -> None:
        try:
            self._operator = operator = self._make_operator(self._make_sink())
            operator.start()
            if self._stopped:
                operator.stop()
            await operator.ended
        except BaseException as error:
            self._outbox.fail(error)
            raise
        finally:
            self._ended.set()

    def _stop(self) -> None:
        self._stopped = True
        if self._operator is not None:
            self._operator.stop()

    def _check_stall(self) -> None:
        operator = self._operator
        overdue = None if operator is None else operator.overdue()
        if overdue is None:
            return
        call, limit, seconds, deadline = overdue
        if self._loop_thread.loop.time() - deadline < STALL:
            return
        # In the text and not in a cause, which Spark drops.
        detail = (
            f"The event loop has not had its turn for {STALL:g} s since: an async function blocks it, here:\n"
            f"{self._loop_thread.stack()}"
        )
        raise CallTimeout(limit, seconds, call.attempt, shorten(call.row), detail)
