"""The use that the tasks of one operator make of its ledger: whose results they are, and in which form.

`plan_ledger` is for the driver. A `LedgerPlan` is sent to the workers and opened on the task's thread.
"""

# How a task knows whose results it may take. A batch job has a run that its user names, as nothing of Spark's
# is the same when it is started again. A streaming query has an id in its checkpoint and numbers its
# micro-batches, and a restart runs the last one again under its number. Both reach tasks as local properties
# only, so they are read there: the plan is made once, for all micro-batches.
#
# Why an execution is told apart besides. Within one, two rows of one key and different inputs are a mistake
# of the key, and an error; over two, an input that has changed is a row that has changed, and is called
# again. Neither a stage nor an attempt would do, as one action has several, each with rows of the same
# DataFrame.
#
# Why what was called again is added up on the driver: each of thousands of tasks would have a line in a log
# of its own worker, which nobody reads. The accumulator is not for its value, it is what a task can send.

from __future__ import annotations

import dataclasses
import datetime
import logging
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam, AddingAccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pillarbox.aio.function import configuration_of, parse_of
from pillarbox.aio.ledger_records import KeptForms
from pillarbox.aio.ledger_scope import StaleAnswers, fields_of, scope_of
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.options import Options
from pillarbox.aio.row_fields import as_fields
from pillarbox.ledger import Ledger, LedgerError
from pillarbox.ledger.errors import LedgerWarning
from pillarbox.ledger.keys import (
    ChainedIdentity,
    ContentIdentity,
    RowIdentity,
    content_of_values,
    execution_id,
)
from pillarbox.ledger.ledger import CACHE_RUN
from pillarbox.ledger.runs import RunJob, planned_job
from pillarbox.providers import BEGIN_EXECUTION, CACHE_PIN, CHECK_CLAIMS_PLACE, EXPIRE_BATCHES, provided
from pillarbox.spark.normal_forms import is_vector
from pillarbox.spark.records import Record, columns_of, decode_column, raw_value
from pillarbox.spark.results import Block, EncodedRow, RowEncoder, ValueEncoder, runs_of_rows
from pillarbox.spark.schema import check_column, holds, time_zone
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""The local properties by which Spark's tasks know their micro-batch; they stay the same in a restart."""

EXECUTION = "spark.sql.execution.id"
"""The local property by which tasks know the action that they are of; it is the same in all its stages."""

STREAM_RUN = "stream"
"""The run of the calls of a stream that names none. The id of its query will not do: a task of an action in a
thread of foreachBatch does not know it, and calls whatever a task begins first."""

STAGE_POLL_INTERVAL_S = 0.2
"""Seconds between two looks whether a stage has ended."""

BATCHES_KEPT = 1
"""Micro-batches before the present one whose results are kept: Spark has committed those before them."""


@dataclass(frozen=True)
class LedgerPlan:
    """The plan by which a task uses the ledger of its options.

    results: the type of the results, which do not fit another. zone: the session's time zone. columns: those
    of a row. key: the positions of those that identify it, None for the whole row. arguments: the columns of
    `async_udf`, whose rows are tuples of arguments; None where they are records. identity: the name of the
    ledger's place as the driver sees it; None where it cannot.
    inputs: the positions of the columns that count, None for all. plan: tells this use of the operator apart
    from all others. told: takes what tasks called again to the driver; None where they log it. is_behind: the
    rows are those that another function gives, and their identity is that of the rows of the DataFrame, whose
    columns these are; what another function gets of this one has no type (`results` is None). client, cut:
    of a cache what decides about the client's results, and the time before which records are too old; None
    where each task says that itself.
    """

    results: T.DataType | None
    zone: str | None
    columns: tuple[str, ...]
    key: tuple[int, ...] | None
    arguments: str | None
    identity: str | None
    inputs: tuple[int, ...] | None
    plan: str
    told: Accumulator[Any] | None
    is_behind: bool = False
    client: Mapping[str, Any] | None = None
    cut: int | None = None
    job: RunJob | None = None

    def check_place(self, ledger: Ledger) -> None:
        """Raise LedgerError where this worker sees another place than the driver. On the task's thread."""
        if self.identity is None:
            ledger.identity()
        else:
            ledger.check_identity(self.identity)

    def open(self, options: Options) -> LedgerSession:
        """The session of this task. Raises ValueError in a batch job without a run, LedgerError, OSError."""
        assert options.ledger is not None
        self.check_place(options.ledger)
        run, batch = _run(options)
        context = TaskContext.get()
        if batch is not None:
            expire_committed(options, run, batch)
        prepare = self.prepare()
        return LedgerSession(
            # The functions of a row of it get the arguments.
            options if self.arguments is None else options.spread(),
            run,
            batch=batch,
            config=self.config(options.ledger),
            **self._identity(options.ledger),
            execution=self.execution(),
            forms=KeptForms(prepare, prepare.vectors if isinstance(prepare, ResultCodec) else None),
            attempt="" if context is None else str(context.partitionId()),
            job=self.job_of(context),
            tell=None if self.told is None or context is None else self._tell,
        )

    def open_for_stream(self, options: Options, identify: Callable[[Any], bytes]) -> LedgerSession:
        """The session of the process that makes the calls of a stream.

        identify: the key of a row. It says all: micro-batch, row, number among equal ones.
        """
        assert options.ledger is not None
        self.check_place(options.ledger)
        return LedgerSession(
            options,
            STREAM_RUN if options.ledger.run is None else options.ledger.run,
            config=self.config(options.ledger),
            # It may be looked up twice, so nothing is counted here.
            identify=lambda row: (identify(row), b""),
            execution=execution_id(),
            forms=KeptForms(self.prepare()),
            # A lease is for attempts with the same rows; here, each process has its own.
            attempt=uuid.uuid4().hex,
            job=self.job,
        )

    def job_of(self, context: TaskContext | None) -> RunJob | None:
        """The job of which a task is, or with None of calls that are made outside of one; None without."""
        if self.job is None or context is None:
            return self.job
        action = context.getLocalProperty(EXECUTION) or f"stage {context.stageId()}"
        return self.job.of_stage(action, context.stageId())

    def execution(self) -> bytes:
        """The execution of which the present task is: one action over this plan."""
        context = TaskContext.get()
        if context is None:
            return execution_id()
        # An RDD of a DataFrame is run outside of such an action: then the stage has to do.
        return execution_id(self.plan, context.getLocalProperty(EXECUTION) or f"stage {context.stageId()}")

    def _tell(self, stale: StaleAnswers) -> None:
        context = TaskContext.get()
        assert self.told is not None
        assert context is not None
        self.told.add([(context.stageId(), stale)])

    def row_identity(self) -> RowIdentity:
        """The maker of rows' keys and of the fingerprints of their inputs."""
        key = () if self.key is None else self.key
        counted = range(len(self.columns)) if self.inputs is None else self.inputs
        others = tuple(place for place in counted if place not in key)
        whole = counted if self.inputs is None else (*key, *others)
        if self.is_behind:
            # Only the key is asked for. What the function gets is another row.
            whole, others = range(len(self.columns)), ()
        names = self._names(others)
        values_of = self._values_of(others)
        return RowIdentity(
            None if self.key is None else self._values_of(key),
            lambda row: (names, values_of(row)),
            self._values_of(whole),
            self._names(whole),
            dict(enumerate(self.columns)),
            lambda rows: (self._columns_of(key, rows), names, self._columns_of(others, rows)),
            lambda rows: self._columns_of(whole, rows),
        )

    def _columns_of(self, places: Sequence[int], rows: Sequence[Any]) -> list[Sequence[Any]]:
        """The columns at these places of many rows."""
        if self.arguments is not None:
            return [[row[place] for row in rows] for place in places]
        return columns_of(rows, [self.columns[place] for place in places])

    def _names(self, places: Sequence[int]) -> tuple[Any, ...]:
        # A parameter may be renamed without anything else.
        return tuple(places) if self.arguments is not None else tuple(self.columns[place] for place in places)

    def _values_of(self, places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
        if self.arguments is not None:
            return lambda row: tuple([row[place] for place in places])
        return _fields([self.columns[place] for place in places])

    def _identity(self, ledger: Ledger) -> dict[str, Any]:
        """The arguments of a session about the identity of rows, and about a cache. On the task's thread."""
        if ledger.cache is None:
            return {"identify": ChainedIdentity(ledger.inputs) if self.is_behind else self.row_identity()}
        scope = scope_of(ledger, CACHE_RUN, config=self.config(ledger))
        pin = provided(CACHE_PIN, "cache")(ledger, scope, self.owner, self.cut)
        behind = content_of_values(ledger.inputs) if self.is_behind else None
        return {"identify": behind or self.content_identity(), "cut": pin.join(), "pin": pin}

    @property
    def owner(self) -> str:
        """The name of this plan's executions among those that use a cache."""
        return self.plan[:16]

    def content_identity(self) -> ContentIdentity:
        """The maker of keys by what the function gets of a row."""
        counted = range(len(self.columns)) if self.inputs is None else self.inputs
        names, values_of = self._names(counted), self._values_of(counted)
        return ContentIdentity(
            lambda row: (names, values_of(row)), lambda rows: (names, self._columns_of(counted, rows))
        )

    def config(self, ledger: Ledger) -> dict[str, Any]:
        """The configuration that, besides its uid and key, decides whose results these are."""
        # One function may be called for several columns, under one uid.
        shape = None if self.results is None else self.results.simpleString()
        if ledger.cache is not None:
            return {"shape": shape, "zone": self.zone, "client": self.client}
        return {"shape": shape, "zone": self.zone, "arguments": self.arguments}

    def prepare(self) -> Callable[[Any], Any]:
        """The function that makes of a result what is kept."""
        if self.results is None:
            return as_fields
        zone = None if self.zone is None else time_zone(self.zone)
        return ResultCodec(self.results, zone, is_row=self.arguments is None)


def plan_ledger(
    fn: Callable[..., Any],
    options: Options,
    columns: Sequence[str],
    results: T.DataType | None,
    zone: str | None,
    *,
    session: SparkSession | None,
    streaming: bool | None,
    arguments: str | None,
    is_behind: bool = False,
) -> LedgerPlan | None:
    """The plan of how tasks use the ledger of `options`; None where there is none. Any thread of the driver.

    columns: those of the input row. streaming: whether the rows are of a streaming query, None where that is
    not known. Raises TypeError, ValueError, and LedgerError for a place that cannot be written.
    """
    ledger = options.ledger
    if ledger is None:
        return None
    key = None if ledger.key is None else tuple(_position("key", name, columns) for name in ledger.key)
    inputs = None
    # Behind another function they are columns of its rows, which nobody knows yet.
    if ledger.inputs is not None and not is_behind:
        inputs = tuple(_position("inputs", name, columns) for name in ledger.inputs)
    elif ledger.cache is not None and arguments is None and not is_behind:
        inputs = tuple(_position("inputs", name, columns) for name in fields_of(fn)) or None
    if ledger.run_name is None and streaming is False and not _in_micro_batch(session):
        raise ValueError(
            "run=None: a batch job needs a name by which it is known when it is run again, such as "
            "Ledger(folder, run='2026-11-21'); only a streaming query has one of its own"
        )
    if parse_of(fn) is not None:
        # Raw results are kept, which know nothing of what they are parsed into.
        results = zone = None
    if results is not None:
        check_keepable(results)
    ledger.check()
    if options.dedupe is not None and options.dedupe.across_tasks:
        provided(CHECK_CLAIMS_PLACE, "dedupe")(ledger)
    # The client of Spark Connect has a disk of its own; a bucket is the same one for all.
    apart = session is not None and is_connect(session) and ledger.local_path is not None
    identity = None if apart else ledger.identity()
    plan = LedgerPlan(
        results,
        zone,
        tuple(columns),
        key,
        arguments,
        identity,
        inputs,
        uuid.uuid4().hex,
        _listen(session, ledger),
        is_behind,
        None if ledger.cache is None else configuration_of(fn),
    )
    if ledger.cache is not None and not apart:
        scope = scope_of(ledger, CACHE_RUN, config=plan.config(ledger))
        cut = provided(BEGIN_EXECUTION, "cache")(ledger, scope, plan.owner, by_age=bool(streaming))
        # Each micro-batch of a stream has a cut of its own.
        plan = plan if streaming else dataclasses.replace(plan, cut=cut)
    _check_alone(fn, options, plan)
    return _holding(plan, ledger, session) if ledger.holds_runs else plan


def _holding(plan: LedgerPlan, ledger: Ledger, session: SparkSession | None) -> LedgerPlan:
    """The plan whose run is held from now on. Raises LedgerHeldError if another job has it, LedgerError."""
    context = None if session is None or is_connect(session) else session.sparkContext
    named = "" if context is None else f"{context.appName} ({context.applicationId})"
    scope = scope_of(ledger, str(ledger.run_name), config=plan.config(ledger))
    tracker = None if context is None else context.statusTracker()

    def is_over(stage: int | None) -> bool | None:
        # Without Spark's word the tasks find it out.
        return True if tracker is None or stage not in tracker.getActiveStageIds() else None

    def is_active() -> bool:
        try:
            return tracker is not None and bool(tracker.getActiveJobsIds())
        except Exception:
            return False  # Spark is stopped

    job = planned_job(ledger, scope, plan.plan, named, is_over=is_over, is_active=is_active)
    return dataclasses.replace(plan, job=job)


class _StaleAnswersOfTasks(AccumulatorParam[Any]):
    """Adds up on the driver what the tasks of a stage called again, and says it once, at the stage's end."""

    def __init__(self, context: SparkContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._stages: dict[int, StaleAnswers] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # In a task it only collects.
        return (AddingAccumulatorParam, ([],))

    def zero(self, value: object) -> Any:
        return []

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        for stage, stale in value2:
            with self._mutex:
                if stage in self._stages:
                    self._stages[stage].add(stale)
                    continue
                self._stages[stage] = stale
            # Here is the thread on which Spark takes the updates of all tasks: it must not wait for the
            # stage's end.
            start_thread(
                threading.Thread(target=self._say, args=(stage,), name="pillarbox-stale", daemon=True)
            )
        return []

    def _say(self, stage: int) -> None:
        pause = threading.Event()
        try:
            tracker = self._context.statusTracker()
            while (info := tracker.getStageInfo(stage)) is not None:
                if info.numCompletedTasks >= info.numTasks or stage not in tracker.getActiveStageIds():
                    break
                pause.wait(STAGE_POLL_INTERVAL_S)
        except Exception:
            log.debug("whether stage %d has ended is not known: Spark is stopped", stage, exc_info=True)
        with self._mutex:
            stale = self._stages.pop(stage)
        stale.log(self._ledger, self._ledger.run_name or "of the streaming query")


def _listen(session: SparkSession | None, ledger: Ledger) -> Accumulator[Any] | None:
    """The accumulator that takes the counts of tasks to the driver; None over Connect."""
    if session is None or is_connect(session):
        return None
    context = session.sparkContext
    accumulator: Accumulator[Any] = context.accumulator([], _StaleAnswersOfTasks(context, ledger))
    return accumulator


_operators: dict[Any, tuple[str, tuple[str, ...]]] = {}


def _check_alone(fn: Callable[..., Any], options: Options, plan: LedgerPlan) -> None:
    """Warn where two operators of a run would take each other's results for their own."""
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    ledger = options.ledger
    assert ledger is not None
    # A cache has the answers to any rows, wherever they come from.
    own = f"{named.__module__}.{named.__qualname__}", plan.columns if ledger.cache is None else ()
    place = repr((ledger.location, ledger.run_name, ledger.uid, ledger.key, *plan.config(ledger).values()))
    other = _operators.setdefault(place, own)
    if other != own:
        _operators[place] = own
        warnings.warn(
            LedgerWarning(
                f"uid={ledger.uid!r}: was that of {other[0]} over the columns {', '.join(other[1])} before, "
                f"in the same run={ledger.run!r}, and is now that of {own[0]} over {', '.join(own[1])}. "
                "Their results are not told apart: unless one replaces the other, give each a uid of its own"
            ),
            stacklevel=2,
        )


def _position(option: str, name: str | int, columns: Sequence[str]) -> int:
    if isinstance(name, int) and 0 <= name < len(columns):
        return name
    return columns.index(check_column(option, name, columns))  # type: ignore[arg-type]


def _in_micro_batch(session: SparkSession | None) -> bool:
    """Return True if this is `foreachBatch`; over Connect nobody knows, so the task will say it."""
    if session is None or is_connect(session):
        return True
    return session.sparkContext.getLocalProperty(QUERY) is not None


def is_connect(session: object) -> bool:
    """True for a session of Spark Connect. Any thread."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _run(options: Options) -> tuple[str, int | None]:
    assert options.ledger is not None
    if options.ledger.run_name is not None:
        return options.ledger.run_name, None
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    batch = None if context is None else context.getLocalProperty(BATCH)
    if query is None or batch is None:
        raise ValueError(
            "run=None: not a streaming query, so the run needs a name: Ledger(folder, run='2026-11-21')"
        )
    return query, int(batch)


def expire_committed(options: Options, query: str, batch: int) -> None:
    """Delete what the ledger has of micro-batches that are committed. Any thread, any number of tasks.

    What cannot be deleted stays, and is said.
    """
    assert options.ledger is not None
    try:
        expire = provided(EXPIRE_BATCHES, "the ledger of a stream")
        expire(options.ledger, query, batch - BATCHES_KEPT - 1, uid=options.ledger.uid)
    except (OSError, LedgerError, ModuleNotFoundError) as error:
        log.warning(
            "results of committed micro-batches were not deleted: %s: %s", type(error).__name__, error
        )


def _fields(names: Sequence[str]) -> Callable[[Record], tuple[Any, ...]]:
    def fields(record: Record) -> tuple[Any, ...]:
        columns, index = record.__columns__, record.__place__
        try:
            return tuple([columns[name][index] for name in names])
        except ValueError:
            # A text is not UTF-8: the row is known by its bytes.
            return tuple([raw_value(columns[name], index) for name in names])

    return fields


def check_keepable(results: T.DataType) -> None:
    """Raise ValueError for a type of results that a ledger does not keep. For the driver."""
    if holds(results, T.UserDefinedType):
        raise ValueError(f"schema={results.simpleString()!r}: a ledger keeps no user-defined types")


class ResultCodec:
    """Makes of converted results (see `results`) what a ledger keeps: as their schema reads them.

    results: the columns of a row of `async_map`, or with is_row=False the type of the values of `async_udf`.
    Most are plain values that a ledger gives back as they were; all others are made into Arrow columns and
    back. For the thread of the event loop.
    """

    def __init__(self, results: Any, zone: datetime.tzinfo | None, *, is_row: bool = True) -> None:
        self._encoder = RowEncoder(results, zone) if is_row else ValueEncoder(results, zone)
        self._is_row = is_row
        self._kinds = [field.dataType for field in results.fields] if is_row else [results]
        self._is_exact = _is_exact(results)
        # Of the block whose rows came last: they come together.
        self._block: Block | None = None
        self._columns: list[Any] = []

    def __call__(self, result: object) -> Any:
        """The kept form of `result`: one that gives the same rows, or an equal value."""
        if type(result) is EncodedRow:
            values = tuple([column[result.index] for column in self._columns_of(result)])
            return values if self._is_row else values[0]
        if self._is_exact:
            is_plain = self._encoder.is_plain
            if all(map(is_plain, result)) if self._is_row and type(result) is list else is_plain(result):
                return result
        arrays, _ = self._encoder.encode([result])
        columns = [[plain(value) for value in decode_column(array)] for array in arrays]
        rows = list(zip(*columns, strict=True))
        return rows if self._is_row else rows[0][0]

    def vectors(self, results: list[Any]) -> tuple[Any, bool] | None:
        """The kept forms of the vectors of one block, as a matrix of NumPy; None for any other results.

        And whether each is in a tuple. The matrix is the memory of the block.
        """
        if type(results[0]) is not EncodedRow or len(results[0].block) != 1:
            return None
        first = results[0].index
        (column,) = self._columns_of(results[0])
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
            return None
        if {*map(type, results)} != {EncodedRow} or len(runs_of_rows(results)) != 1:
            return None
        return column[first : first + len(results)], self._is_row

    def _columns_of(self, row: EncodedRow) -> list[Any]:
        if row.block is not self._block:
            self._block = row.block
            matrix = row.block.matrix
            # Known already, and else found out again by a dozen small steps.
            self._columns = list(map(_values_to_keep, row.block, self._kinds)) if matrix is None else [matrix]
        return self._columns


def _is_exact(kind: T.DataType) -> bool:
    """Return True if a ledger gives back any value of this type, in its normal form, as it was."""
    if isinstance(kind, T.StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    if isinstance(kind, T.MapType):
        return _is_exact(kind.keyType) and _is_exact(kind.valueType)
    if isinstance(kind, T.ArrayType):
        return not is_vector(kind) and _is_exact(kind.elementType)
    return not isinstance(kind, T.TimestampType)


def _values_to_keep(column: pa.Array, kind: T.DataType) -> Sequence[Any]:
    """The values of a column of a block, of kinds that a ledger keeps; vectors of one length as NumPy's."""
    if is_vector(kind) and len(column) and not column.null_count:
        numbers, offsets = column.values, column.offsets.to_numpy()
        lengths = np.diff(offsets)
        if not numbers.null_count and lengths[0] and (lengths == lengths[0]).all():
            # A row is a view: its bytes are copied once, into the ledger's file.
            some = _numbers_of(numbers)[offsets[0] : offsets[-1]]
            return some.reshape(len(column), -1)  # type: ignore[return-value]
    return [plain(value) for value in decode_column(column)]


def _numbers_of(values: pa.Array) -> np.ndarray[Any, Any]:
    """The numbers of an array without nulls, where they are, but for bits."""
    if pa.types.is_boolean(values.type):
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    # By its buffer: Arrow's own way lets go of the GIL, which costs more than all the rest here, as the
    # ledger's writer waits for it.
    numbers = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
    return numbers[values.offset : values.offset + len(values)]


def plain(value: object) -> Any:
    """A value as it was read from an Arrow column, of kinds that a ledger keeps."""
    if isinstance(value, T.Row):
        return tuple([plain(part) for part in value])
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {plain(key): plain(part) for key, part in value.items()}
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    return value
