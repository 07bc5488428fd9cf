"""The inputs of a task of rows: collections, iterables that a thread reads ahead, async iterables.

Rows come in batches, whose rows weigh the same, so that nothing has to be weighed row by row. Inputs are
confined to the mailbox thread, but for what says otherwise.

An input has its position in the task's snapshot: the rows that it has emitted. What a restored one reads
begins where the first one did, and that many rows are passed over.
"""

# Alternatives, and why they are worse.
#
# To read an iterable on the loop's thread, item by item: one that waits for a file or a database holds up
# every call. To read each in a thread of its own: a list would cost a hand-over for nothing. So collections
# in memory are read in place, and of the rest only what is known to be asynchronous is read on the loop.

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from typing import Any

from pillarbox.aio.errors import said
from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.lacks import in_words
from pillarbox.task import InputStatus
from pillarbox.task.protocols import RowBatch, TaskOutput
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

CANCEL_TIMEOUT_S = 1.0
"""Seconds that an async iterable has to end after its reading was cancelled."""

BATCH_ROWS = 1024
"""Rows of a collection that become one batch."""

IN_MEMORY = (list, tuple, range, set, frozenset, dict)
"""Collections whose iteration never waits; others may read a file or a database."""

COLUMNS = ("Series", "Index", "ChunkedArray")
"""Classes of columns, of pandas, Polars and Arrow."""

_numbers = itertools.count(1)


_ROWS_OF_OTHERS = {
    ("pandas", "DataFrame"): "rows.to_dict('records')",
    ("pandas", "Series"): "rows.tolist()",
    ("pandas", "Index"): "rows.tolist()",
    ("polars", "DataFrame"): "rows.iter_rows(named=True)",
    ("polars", "LazyFrame"): "rows.collect().iter_rows(named=True)",
    ("polars", "Series"): "rows.to_list()",
    ("pyarrow", "Table"): "rows.to_pylist()",
    ("pyarrow", "RecordBatch"): "rows.to_pylist()",
    ("pyarrow", "Array"): "rows.to_pylist()",
    ("pyarrow", "ChunkedArray"): "rows.to_pylist()",
    ("pyspark", "Frame"): "rows.to_spark()",
    ("pyspark", "IndexOpsMixin"): "rows.to_frame().to_spark()",
}
"""An iterable of rows, of tables and columns of others: by the library and the name of a class."""


def is_table(rows: object) -> bool:
    """Return True for an object that may be a table: it exports a stream of Arrow, or is of `datasets`."""
    # A column exports one as well.
    is_stream = hasattr(rows, "__arrow_c_stream__") and type(rows).__name__ not in COLUMNS
    return is_stream or type(rows).__module__.partition(".")[0] == "datasets"


def check_rows(rows: Any) -> None:
    """Raise TypeError for rows whose iteration gives none, such as a table, which gives names of columns."""
    kind = type(rows)
    if isinstance(rows, str | bytes | bytearray | memoryview):
        parts = "characters" if isinstance(rows, str) else "numbers"
        raise TypeError(
            f"rows: a {kind.__name__} would be called {parts} one by one; write [rows] for one row"
        )
    if isinstance(rows, Mapping):
        raise TypeError(
            f"rows: a {kind.__name__} would be called key by key; write rows.values() or rows.items(), or "
            "[rows] for one row"
        )
    for each in kind.__mro__:
        # By name: no library is imported for it. Where its tables are subclassed they are known too.
        instead = _ROWS_OF_OTHERS.get((each.__module__.partition(".")[0], each.__name__))
        if instead is not None:
            break
    else:
        # The protocol of tables: pandas', Polars', Modin's, cuDF's, Ibis' and others'.
        if not hasattr(kind, "__dataframe__"):
            return
        instead = "an iterable of its rows"
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    raise TypeError(f"rows: a {name} is not iterated by rows of plain values; write {instead}")


class CollectionInput:
    """Rows that are all in memory: read where they are used, with no thread between.

    The base of inputs, of which others have something to begin and to end.
    """

    def __init__(self, rows: Collection[Any]) -> None:
        # In slices: a thread between would cost more than the reading.
        self._rows = iter(rows)
        self._position = 0
        # Rows still to be passed over, which were emitted before the snapshot.
        self._passed = 0
        self.failure: BaseException | None = None
        """The error with which the task is to end when the results of the rows before it have left."""

    def start(self, context: contextvars.Context) -> None:
        """Begin to read ahead in `context`, where something is read ahead."""

    def stop(self) -> None:
        """Have a thread that reads end at its next item. Any thread."""

    def join(self, timeout: float) -> None:
        """Wait for the end of a thread that reads, for `timeout` seconds at most. Blocks. Any thread."""

    async def closed(self) -> None:
        """Wait for the end of a coroutine that reads, for a time."""

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next rows. They weigh nothing more where they are admitted."""
        rows = list(islice(self._rows, BATCH_ROWS))
        if not rows:
            return self._end()
        self._emit(rows, output, 0)
        return InputStatus.MORE_AVAILABLE

    def _emit(self, rows: list[Any], output: TaskOutput, row_bytes: int | None) -> None:
        if self._passed:
            passed = min(self._passed, len(rows))
            self._passed -= passed
            rows = rows[passed:]
            if not rows:
                return
        self._position += len(rows)
        output.collect(RowBatch(rows, row_bytes))

    def _end(self) -> InputStatus:
        if self._passed:
            raise ValueError(
                f"the input has ended {self._passed:,} rows before the position that the snapshot has of it: "
                "a restored task must read the rows that it read before, in the same order"
            )
        return InputStatus.END_OF_INPUT

    def snapshot_state(self) -> int:
        """The rows that were emitted."""
        return self._position

    def restore_state(self, state: int) -> None:
        """Pass over as many rows; what is read begins where it did before.

        `emit_next` raises ValueError if the input ends before.
        """
        self._position = self._passed = state

    def available(self) -> Future[None] | None:
        """A future that is done when there are rows, or none come any more; None if that is so now."""
        return None

    def close(self) -> None:
        """Read no more."""
        self._rows = iter(())


class IterableInput(CollectionInput):
    """Rows of an iterable, which a thread of its own reads ahead.

    defers_failure: an error of the iterable is kept as `failure`, and the input ends in front of it: the rows
    before are called, and the task ends with the error once their results have left. Otherwise it ends the
    task at once, as where the results of a failed task are of no use.

    Subclasses read items that are more than a row, by at most `ahead` items and `ahead_bytes`, as `weigh`
    gives them; None for any.
    """

    def __init__(
        self, items: Any, ahead: int, ahead_bytes: int | None = None, *, defers_failure: bool = False
    ) -> None:
        super().__init__(())
        self._defers_failure = defers_failure
        self._items = items
        self._handover = Handover(ahead, ahead_bytes)
        self._reader: threading.Thread | None = None

    def start(self, context: contextvars.Context) -> None:
        """Begin to read, in a thread that runs in `context`."""
        name = f"pillarbox-read-{next(_numbers)}"
        self._reader = threading.Thread(target=context.run, args=(self._read,), name=name, daemon=True)
        with in_words("the thread that reads the rows cannot begin"):
            start_thread(self._reader)

    def stop(self) -> None:
        """Have the reading thread end at its next item. Any thread."""
        self._handover.close()

    def join(self, timeout: float) -> None:
        """Wait for the end of the reading thread, for `timeout` seconds at most. Blocks. Any thread."""
        if self._reader is not None:
            self._reader.join(timeout)
            if self._reader.is_alive():
                log.warning("thread %s still waits for input; it is left behind", self._reader.name)

    def weigh(self, item: Any) -> int:
        """The bytes of an item. On the reading thread."""
        return 0

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows that have been read; raises what the reading failed with."""
        try:
            items = self._handover.take_all()
        except HandoverClosedError:
            return self._end()
        except Exception as error:
            if not self._defers_failure:
                raise
            self.failure = error
            # The calls that have begun may take long, and whoever waits for them wants to know.
            log.warning(
                "the input failed, and ends the job when the rows before have: %s: %s",
                type(error).__name__,
                said(error),
            )
            return InputStatus.END_OF_INPUT
        if not items:
            return InputStatus.NOTHING_AVAILABLE
        self._emit([*chain.from_iterable(items)], output, None)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[None] | None:
        """A future that is done when something is read, or the input ends or fails."""
        future: Future[None] = Future()
        return future if self._handover.arm_wakeup_consumer(partial(future.set_result, None)) else None

    def close(self) -> None:
        """Read no more."""
        self._handover.close()

    def _read(self) -> None:
        handover, weigh = self._handover, self.weigh
        # Most inputs weigh nothing: a call of a method that returns 0 would be the dearest part of reading.
        weighs = type(self).weigh is not IterableInput.weigh
        try:
            for item in self._items:
                # In a tuple, since a handover does not take None, and an iterable may yield it.
                if not handover.put((item,), weigh(item) if weighs else 0):
                    return
        except BaseException as error:
            handover.fail(error)
        else:
            handover.finish()


# It has the hand-over of a thread too, though both ends are on one loop: a list of its own would be a second
# way to wait for room, to end and to fail, for a tenth of a microsecond a row.


class AsyncIterableInput(IterableInput):
    """Rows of an async iterable, read by a coroutine of the task's loop, at most `ahead` in front.

    An async generator is closed when it is not read to its end.
    """

    def __init__(self, rows: AsyncIterable[Any], loop: asyncio.AbstractEventLoop, ahead: int) -> None:
        super().__init__(rows, ahead, defers_failure=True)
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False

    def start(self, context: contextvars.Context) -> None:
        """Begin to read, in a coroutine that runs in `context`."""
        self._task = context.run(asyncio.Task, self._read_ahead(), loop=self._loop)

    def stop(self) -> None:
        """Do nothing: `close`, on the loop, cancels the coroutine."""

    def close(self) -> None:
        """Cancel the coroutine that reads."""
        super().close()
        # The end of the loop cancels it as well, and a second time would cut the generator's own end short.
        if self._task is not None and not self._is_ending:
            self._task.cancel()

    async def closed(self) -> None:
        """Wait for the end of the coroutine that reads, for `CANCEL_TIMEOUT_S` seconds at most."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=CANCEL_TIMEOUT_S)
            if not self._task.done():
                log.warning("%r did not end after it was cancelled; it is left behind", self._items)
                self._task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def _read_ahead(self) -> None:
        handover = self._handover
        iterator = None
        try:
            iterator = self._items.__aiter__()
            while True:
                try:
                    row = await iterator.__anext__()
                except StopAsyncIteration:
                    break
                while not handover.try_put((row,)):
                    room = self._loop.create_future()
                    if handover.ended:
                        return
                    # The consumer is on this loop too.
                    if handover.arm_wakeup_producer(partial(set_done, room)):
                        await room
            handover.finish()
        except BaseException as error:
            handover.fail(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._is_ending = True
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()


def input_of(
    rows: Iterable[Any] | AsyncIterable[Any] | CollectionInput,
    loop: asyncio.AbstractEventLoop,
    ahead: int,
    *,
    awaits: bool,
) -> CollectionInput:
    """The input of a task on `loop` over `rows`, of which at most `ahead` are read in front.

    awaits: rows that can be iterated either way are iterated with `async for`.
    """
    if isinstance(rows, CollectionInput):
        return rows
    if isinstance(rows, IN_MEMORY):
        return CollectionInput(rows)
    if isinstance(rows, AsyncIterable) and (awaits or not isinstance(rows, Iterable)):
        return AsyncIterableInput(rows, loop, ahead)
    return IterableInput(rows, ahead, defers_failure=True)


def set_done(ready: asyncio.Future[None]) -> None:
    """Wake up who waits for `ready`, unless that was cancelled."""
    if not ready.done():
        ready.set_result(None)
