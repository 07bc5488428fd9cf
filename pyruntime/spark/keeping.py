"""How the tasks of one operator use its ledger: whose results they are, and in which form they are kept.

`settle_ledger` is for the driver. A `Keeping` is sent to the workers and opened on the task's thread.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from pillarbox.aio.journal import Journal, open_journal
from pillarbox.aio.options import Options
from pillarbox.ledger import LedgerError, LedgerWarning, expire_batches
from pillarbox.spark.record import Record

log = logging.getLogger("pillarbox")

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""The local properties by which Spark's tasks know their micro-batch; they stay the same in a restart."""

BATCHES_KEPT = 1
"""Micro-batches before the present one whose results are kept: Spark has committed those before them."""


@dataclass(frozen=True)
class Keeping:
    """What a task needs to use the ledger of its options.

    shape: the type of the results, which do not fit another. zone: the session's time zone. columns: those
    of a row. key: the positions of those that identify it, None for the whole row. spread: whether a row is
    a tuple of arguments, otherwise it is a record. only_failed: call only rows that failed.
    """

    shape: str
    zone: str | None
    columns: tuple[str, ...]
    key: tuple[int, ...] | None
    spread: bool
    only_failed: bool

    def open(self, options: Options) -> Journal:
        """The journal of this task. Raises ValueError in a batch job without a run, LedgerError, OSError."""
        run, batch = _run(options)
        context = TaskContext.get()
        key = range(len(self.columns)) if self.key is None else self.key
        return open_journal(
            options,
            run,
            batch=batch,
            config={"shape": self.shape, "zone": self.zone},
            values_of=_arguments(key) if self.spread else _fields([self.columns[each] for each in key]),
            key=None if self.key is None else [*range(len(key))],
            prepare=None if options.ledger is None or options.ledger.values == "pickle" else keepable,
            attempt="" if context is None else str(context.partitionId()),
            only_failed=self.only_failed,
        )


def settle_ledger(
    options: Options,
    columns: Sequence[str],
    shape: str,
    zone: str | None,
    *,
    session: Any,
    streaming: bool | None,
    spread: bool,
    only_failed: bool = False,
) -> Keeping | None:
    """How tasks use the ledger of `options`; None where there is none. Any thread of the driver.

    columns: those of the input row. streaming: whether the rows are of a streaming query, None where that is
    not known. Raises TypeError, ValueError, and LedgerError for a place that cannot be written.
    """
    ledger = options.ledger
    if ledger is None:
        return None
    key = None if options.key is None else tuple(_position(name, columns) for name in options.key)
    if options.run is None and streaming is False and not _in_micro_batch(session):
        raise ValueError(
            "run=None: a batch job needs a name by which it is known when it is run again, such as "
            "run='2026-11-21'; only a streaming query has one of its own"
        )
    ledger.check()
    return Keeping(shape, zone, tuple(columns), key, spread, only_failed)


def _position(name: str | int, columns: Sequence[str]) -> int:
    if isinstance(name, str) and name in columns:
        return columns.index(name)
    if isinstance(name, int) and 0 <= name < len(columns):
        return name
    raise ValueError(f"key: {name!r} is no column; the columns are {', '.join(columns)}")


def _in_micro_batch(session: Any) -> bool:
    """Whether this is `foreachBatch`; over Connect nobody knows, so the task will say it."""
    if session is None or type(session).__module__.startswith("pyspark.sql.connect"):
        return True
    return session.sparkContext.getLocalProperty(QUERY) is not None


def _run(options: Options) -> tuple[str, int | None]:
    if options.run is not None:
        return options.run, None
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    batch = None if context is None else context.getLocalProperty(BATCH)
    if query is None or batch is None:
        raise ValueError(
            "run=None: this is no streaming query, so the run needs a name, such as run='2026-11-21'"
        )
    return query, int(batch)


def expire_committed(options: Options) -> None:
    """Delete what the ledger has of micro-batches that are committed. For the task's thread, at its end.

    One task of each micro-batch does it. What it cannot delete stays, and is said.
    """
    ledger, context = options.ledger, TaskContext.get()
    if ledger is None or options.run is not None or context is None or context.partitionId() != 0:
        return
    query, batch = _run(options)
    if batch is None or batch <= BATCHES_KEPT or options.uid is None:
        return
    try:
        expire_batches(ledger, query, batch - BATCHES_KEPT - 1, uid=options.uid)
    except (OSError, LedgerError, LedgerWarning) as error:
        log.warning(
            "results of committed micro-batches were not deleted: %s: %s", type(error).__name__, error
        )


# -- rows and results ----------------------------------------------------------------------------


def _arguments(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda row: tuple([row[place] for place in places])


def _fields(names: Sequence[str]) -> Callable[[Record], tuple[Any, ...]]:
    def fields(record: Record) -> tuple[Any, ...]:
        columns, index = record._columns, record._index
        return tuple([columns[name][index] for name in names])

    return fields


_KEPT = frozenset({str, int, float, bool, bytes, type(None)})


def keepable(result: Any) -> Any:
    """What a ledger keeps of a function's result: rows of all kinds as dicts, and times with a fixed offset.

    The schema makes the same columns of it.
    """
    kind = type(result)
    if kind in _KEPT:
        return result
    if kind is list:
        if result and type(result[0]) is float:
            return result
        return [keepable(item) for item in result]
    if kind is dict:
        return {name: keepable(value) for name, value in result.items()}
    if isinstance(result, tuple):
        names = getattr(result, "__fields__", None) or getattr(result, "_fields", None)
        if names is None or len(set(names)) != len(result):
            return tuple([keepable(value) for value in result])
        return {name: keepable(value) for name, value in zip(names, result, strict=True)}
    if dataclasses.is_dataclass(kind):
        return {each.name: keepable(getattr(result, each.name)) for each in dataclasses.fields(kind)}
    if isinstance(result, datetime.datetime) and result.tzinfo is not None:
        return result.astimezone(datetime.timezone.utc)
    return result
