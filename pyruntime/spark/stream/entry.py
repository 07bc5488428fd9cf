"""A row of a stream with its call, as it lives in one process between micro-batches.

`Entry` is made on the task's thread; what is said of its call is guarded by the lock of its `Engine`.
`counted` is for the operator; what it makes runs where the operator calls functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox.aio.coroutines import collect
from pillarbox.aio.failure import Failed
from pillarbox.aio.function import collector_parameter, is_async, is_async_generator, with_collector
from pillarbox.kernel import Collector
from pillarbox.spark.stream.state import Held, Ticket

if TYPE_CHECKING:
    from pillarbox.spark.record import Record


class Entry(tuple[Any, ...]):
    """One row: the tuple of its record alone, which is what an operator calls a row of one argument.

    ticket: where its call is, None where there is none yet. dropped: nobody waits for it any more.
    is_committed: the committed state names this ticket. is_late: it was begun again too often. watchers:
    called on the loop's thread when it has finished, for other processes. The rest is as in `Held`.
    """

    def __new__(cls, record: Record, *_: Any) -> Entry:  # noqa: D102
        return super().__new__(cls, (record,))

    def __init__(
        self,
        record: Record,
        key: int,
        batch: int,
        identity: bytes | None = None,
        attempts: int = 0,
        ticket: Ticket | None = None,
        output: pa.RecordBatch | None = None,
    ) -> None:
        self.record = record
        self.key = key
        self.batch = batch
        self.identity = identity
        self.attempts = attempts
        self.attempts_before = attempts
        self.ticket = ticket
        self.output = output
        self.result: Any = None
        self.done = output is not None
        self.dropped = False
        self.is_committed = False
        self.is_late = False
        self.bucket = -1
        self.watchers: list[Callable[[Entry], None]] = []

    def finish(self, result: Any, *, elsewhere: bool = False) -> None:
        """Its call has ended with `result`, in another process where it says so."""
        if type(result) is Failed and self.attempts_before and not elsewhere:
            # Those of processes that are gone count as well.
            info = result.info._replace(attempts=result.info.attempts + self.attempts_before)
            result = Failed(info, result.not_called)
        self.result = result
        self.done = True

    def held(self) -> Held:
        """What the state keeps of it."""
        return Held(
            self.record,
            self.key,
            self.batch,
            self.identity,
            self.attempts,
            None if self.output is not None else self.ticket,
            self.output,
        )


def counted(fn: Callable[..., Any], *, in_batches: bool) -> Callable[..., Any]:
    """`fn` as a function of entries, whose attempts it counts. in_batches: it takes lists of rows."""
    made: Callable[..., Any]
    if in_batches:
        made = _in_batches(fn)
    elif (parameter := collector_parameter(fn)) is not None:
        hand_over = with_collector(fn, parameter, spread=False)

        def handed(entry: Entry, collector: Collector[Any]) -> object:
            entry.attempts += 1
            return hand_over(entry.record, collector)

        made = handed
    elif is_async_generator(fn):

        async def collected(entry: Entry) -> Any:
            entry.attempts += 1
            return await collect(fn, entry.record)

        made = collected
    elif is_async(fn):

        async def awaited(entry: Entry) -> Any:
            entry.attempts += 1
            return await fn(entry.record)

        made = awaited
    else:

        def blocking(entry: Entry) -> Any:
            entry.attempts += 1
            return fn(entry.record)

        made = blocking
    made.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
    return made


def _in_batches(fn: Callable[..., Any]) -> Callable[..., Any]:
    def records(entries: list[Entry]) -> list[Any]:
        for entry in entries:
            entry.attempts += 1
        return [entry.record for entry in entries]

    if is_async(fn):

        async def awaited(entries: list[Entry]) -> Any:
            return await fn(records(entries))

        return awaited
    return lambda entries: fn(records(entries))
