"""How the tasks of one operator use its ledger: whose results they are, and in which form they are kept.

`settle_ledger` is for the driver. A `Keeping` is sent to the workers and opened on the task's thread.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql import types as T

from pillarbox.aio.journal import Journal, open_journal, scope_of
from pillarbox.aio.options import Options
from pillarbox.ledger import KeyMaker, Ledger, LedgerError, LedgerWarning, expire_batches
from pillarbox.spark.kept_results import KeptRows, KeptValues, check_keepable
from pillarbox.spark.record import Record
from pillarbox.spark.types import time_zone

log = logging.getLogger("pillarbox")

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""The local properties by which Spark's tasks know their micro-batch; they stay the same in a restart."""

BATCHES_KEPT = 1
"""Micro-batches before the present one whose results are kept: Spark has committed those before them."""


@dataclass(frozen=True)
class Keeping:
    """What a task needs to use the ledger of its options.

    results: the type of the results, which do not fit another. zone: the session's time zone. columns: those
    of a row. key: the positions of those that identify it, None for the whole row. arguments: the columns of
    `async_udf`, whose rows are tuples of arguments; None where they are records. only_failed: call only rows
    that failed. identity: the name of the ledger's place as the driver sees it; None where it cannot.
    """

    results: T.DataType
    zone: str | None
    columns: tuple[str, ...]
    key: tuple[int, ...] | None
    arguments: str | None
    only_failed: bool
    identity: str | None

    def check_place(self, ledger: Ledger) -> None:
        """Raise LedgerError where this worker sees another place than the driver. On the task's thread."""
        if self.identity is None:
            ledger.identity()
        else:
            ledger.check_identity(self.identity)

    def open(self, options: Options) -> Journal:
        """The journal of this task. Raises ValueError in a batch job without a run, LedgerError, OSError."""
        assert options.ledger is not None
        self.check_place(options.ledger)
        run, batch = _run(options)
        context = TaskContext.get()
        if batch is not None:
            expire_committed(options, run, batch)
        return open_journal(
            options,
            run,
            batch=batch,
            config=self.config,
            key_of=self._key_of(),
            prepare=self.prepare(),
            attempt="" if context is None else str(context.partitionId()),
            only_failed=self.only_failed,
        )

    def _key_of(self) -> Callable[[Any], bytes]:
        places = range(len(self.columns)) if self.key is None else self.key
        names = [self.columns[place] for place in places]
        values_of = _fields(names) if self.arguments is None else _arguments(places)
        make_key = KeyMaker(None if self.key is None else range(len(names)))
        return lambda row: make_key(values_of(row))

    @property
    def config(self) -> dict[str, Any]:
        """What of the operator, besides its uid and key, decides whose results these are."""
        # One function may be called for several columns, under one uid.
        return {"shape": self.results.simpleString(), "zone": self.zone, "arguments": self.arguments}

    def prepare(self) -> Callable[[Any], Any]:
        """What makes of a result what is kept."""
        zone = None if self.zone is None else time_zone(self.zone)
        if self.arguments is None:
            assert isinstance(self.results, T.StructType)
            return KeptRows(self.results, zone)
        return KeptValues(self.results, zone)


def settle_ledger(
    fn: Callable[..., Any],
    options: Options,
    columns: Sequence[str],
    results: T.DataType,
    zone: str | None,
    *,
    session: Any,
    streaming: bool | None,
    arguments: str | None,
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
    check_keepable(results)
    ledger.check()
    # The client of Spark Connect has a disk of its own; a bucket is the same one for all.
    apart = session is not None and _is_connect(session) and ledger.local_path is not None
    identity = None if apart else ledger.identity()
    keeping = Keeping(results, zone, tuple(columns), key, arguments, only_failed, identity)
    if only_failed:
        _check_has_run(options, keeping)
    else:
        _check_alone(fn, options, keeping)
    return keeping


_operators: dict[Any, tuple[str, tuple[str, ...]]] = {}


def _check_has_run(options: Options, keeping: Keeping) -> None:
    """Raise ValueError where the ledger has nothing of the earlier run."""
    ledger = options.ledger
    assert ledger is not None
    scope = scope_of(options, str(options.run), config=keeping.config)
    if ledger.folder(scope).segments():
        return
    there = sorted({f"run={each.run!r} uid={each.uid!r}" for each in ledger.scopes()})
    more = f"; it has {', '.join(there[:10])}" if there else ", and nothing else"
    raise ValueError(
        f"run={options.run!r}, uid={options.uid!r}, key={options.key!r}: the ledger has nothing of these "
        f"names and this type of results{more}"
    )


def _check_alone(fn: Callable[..., Any], options: Options, keeping: Keeping) -> None:
    """Warn where two operators of a run would take each other's results for their own."""
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    own = f"{named.__module__}.{named.__qualname__}", keeping.columns
    assert options.ledger is not None
    place = options.ledger.location, options.run, options.uid, options.key, *keeping.config.values()
    other = _operators.setdefault(place, own)
    if other != own:
        _operators[place] = own
        warnings.warn(
            LedgerWarning(
                f"uid={options.uid!r}: was that of {other[0]} over the columns {', '.join(other[1])} before, "
                f"in the same run={options.run!r}, and is now that of {own[0]} over {', '.join(own[1])}. "
                "Their results are not told apart: unless one replaces the other, give each a uid of its own"
            ),
            stacklevel=2,
        )


def _position(name: str | int, columns: Sequence[str]) -> int:
    if isinstance(name, str) and name in columns:
        return columns.index(name)
    if isinstance(name, int) and 0 <= name < len(columns):
        return name
    raise ValueError(f"key: {name!r} is no column; the columns are {', '.join(columns)}")


def _in_micro_batch(session: Any) -> bool:
    """Whether this is `foreachBatch`; over Connect nobody knows, so the task will say it."""
    if session is None or _is_connect(session):
        return True
    return session.sparkContext.getLocalProperty(QUERY) is not None


def _is_connect(session: Any) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


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


def expire_committed(options: Options, query: str, batch: int) -> None:
    """Delete what the ledger has of micro-batches that are committed. Any thread, any number of tasks.

    What cannot be deleted stays, and is said.
    """
    assert options.ledger is not None
    try:
        expire_batches(options.ledger, query, batch - BATCHES_KEPT - 1, uid=options.uid)
    except (OSError, LedgerError) as error:
        log.warning(
            "results of committed micro-batches were not deleted: %s: %s", type(error).__name__, error
        )


def _arguments(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda row: tuple([row[place] for place in places])


def _fields(names: Sequence[str]) -> Callable[[Record], tuple[Any, ...]]:
    def fields(record: Record) -> tuple[Any, ...]:
        columns, index = record._columns, record._index
        return tuple([columns[name][index] for name in names])

    return fields
