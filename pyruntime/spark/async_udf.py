"""The async operator as a column: `async_udf`, and what it runs in each task.

`async_udf` and calls of what it returns are for the driver. `UdfTask` is sent to the workers and
runs on their task thread.
"""

# Why a column is an Arrow UDF over an iterator of batches. One that is called with each batch must give its
# results before Spark hands over the next, so the calls in flight drain at the end of every batch, and one
# slow call holds up the partition. Over an iterator the next batches come while calls of this one run. What
# Spark wants is as many results as rows, in their order, in batches of any size.
#
# Why it is said to be not deterministic. Spark copies a deterministic expression to each place where its
# column is used, and takes it apart around filters: two uses of a column would be two paid calls a row.
#
# Why dead letters find the arguments of a failed row by its place (`_Aside`). To carry them through the
# operator beside each row would hold all of them twice; results of a column are in order, so the slices that
# have come are enough, and are let go when their last row has left.

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

from pillarbox.aio.batching import Batch
from pillarbox.aio.concurrency import Adaptive
from pillarbox.aio.errors import Failed, shorten
from pillarbox.aio.function import collector_parameter, is_async_generator
from pillarbox.aio.limits.rate import Rate, SharedLimits
from pillarbox.aio.options import (
    UNSET,
    Budget,
    ErrorMode,
    Errors,
    Options,
    Timeout,
    given_options,
    resolve_options,
)
from pillarbox.clients.chat import Chat
from pillarbox.ledger import Ledger
from pillarbox.spark.client_columns import check_max_cost
from pillarbox.spark.dead_letters import DeadLetterWriter, dead_letter_of
from pillarbox.spark.error_column import ERROR, ERROR_ARROW, ERROR_TYPE, error_array
from pillarbox.spark.function import Shipment, check_sendable, name_of, ship
from pillarbox.spark.operator_plan import OperatorPlan, check_progress, plan_operator
from pillarbox.spark.progress import Progress
from pillarbox.spark.questions import answer_column, check_question
from pillarbox.spark.records import MAX_SLICE_ROWS, ArrowInput, decode_column, rows_of
from pillarbox.spark.results import ValueEncoder
from pillarbox.spark.schema import arrow_type, condition_of, parse_type
from pillarbox.spark.worker import run_job
from pillarbox.spark.writer import SkippedRows, put_nulls
from pillarbox.task.protocols import RowBatch
from pillarbox.validate import check_bool

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import ColumnOptionNames

Slice: TypeAlias = tuple[pa.Array, ...]
"""The argument columns of some rows."""

ROW_BYTES = 72
"""The bytes of a row of arguments besides its share of its columns."""


class TypedClient(Protocol):
    """A client that knows the type of its results and how its requests are filled, as `Embeddings` does."""

    @property
    def result_type(self) -> str:
        """The type of one result, as a DDL string."""

    @property
    def batch(self) -> Batch:
        """The option that fills its requests."""

    def __call__(self, column: Any, /) -> Any:
        """Call the service for a column."""


@overload
def async_udf(
    fn: str | T.DataType,
    *,
    skip_null: bool = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: Progress | None = ...,
    options: Options | None = ...,
    **more: Unpack[ColumnOptionNames],
) -> Callable[[Callable[..., Any]], AsyncUdf]: ...
@overload
def async_udf(
    fn: TypedClient,
    *,
    skip_null: bool = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: Progress | None = ...,
    options: Options | None = ...,
    **more: Unpack[ColumnOptionNames],
) -> AsyncUdf: ...
@overload
def async_udf(
    fn: Chat,
    *,
    skip_null: bool = ...,
    errors: ErrorMode | Errors = ...,
    progress: Progress | None = ...,
    options: Options | None = ...,
    **more: Unpack[ColumnOptionNames],
) -> AsyncUdf: ...
@overload
def async_udf(
    fn: Callable[..., Any],
    returnType: str | T.DataType,
    *,
    skip_null: bool = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: Progress | None = ...,
    options: Options | None = ...,
    **more: Unpack[ColumnOptionNames],
) -> AsyncUdf: ...
def async_udf(
    fn: Any,
    returnType: Any = None,
    *,
    skip_null: bool = False,
    # From `Options`, but ordered:
    capacity: int | Literal["auto"] | Adaptive = UNSET,
    timeout: float | Timeout | None = UNSET,
    retry: Any = UNSET,
    rate: Rate | None = UNSET,
    batch: Batch | None = UNSET,
    errors: ErrorMode | Errors = UNSET,
    budget: Budget | None = UNSET,
    ledger: Ledger | None = UNSET,
    limits: SharedLimits | None = UNSET,
    progress: Progress | None = None,
    options: Options | None = None,
) -> Any:
    """Make a column function of an async function: called with each row's values, many at a time.

        df.withColumn("vector", async_udf(embeddings)("text"))

        @async_udf("array<float>", capacity=64, timeout=30.0, retry=4)
        async def embed(text: str) -> list[float]: ...

        df.withColumn("vector", embed("text"))

    fn: the function; a decorator gets the type in its place, as `pyspark.sql.functions.udf` does.
    returnType: the type of one result, as a DDL string or a DataType; for a `Chat` unless given that of its
        answers. A client such as `Embeddings` knows it, and is called in its own batches, as Arrow, unless
        `batch` says otherwise. With `errors="column"` the column is a struct of `result`, of this type, and
        `_error`: type, message, attempts, latency and status, null for good rows.
    skip_null: a row that has a null among the arguments is not called, and gives null.
    progress, options: as for `async_map`. Dead letters hold the values of all arguments, and a row that fails
        gives null unless `errors` says otherwise.
    The function gets the columns as arguments and returns one value; it may be plain (it then runs in
    threads), it may bring the value by a `Collector`, its last parameter, and it may be an object with
    `__aenter__`/`__aexit__`, as in `async_map`.

    The column is non-deterministic, so that Spark puts no copy of it into a filter. Each action calls, and a
    column that is not needed is not called: see the page "Every action calls". Results
    stand with their rows, always in order, and no row can be left out; calls of several rows overlap over
    the whole partition. `spark.udf.register("embed", embed)` makes it a function of SQL.

    No session is needed before the function is called with columns, so it may stand in any module.
    Raises TypeError or ValueError at once for a bad argument; errors in the task are those of
    `async_map`.

    Options:
    capacity: concurrency: calls in flight, at most (1 or more). A call that waits for its retry or for the
        rate is not counted. "auto" or an `Adaptive` finds the number while it runs.
    timeout: seconds over all attempts of a row, or a `Timeout`; None for no limit.
    retry: a number of attempts or a `Retry`; None to call once.
    rate: a `Rate`: calls a second, units a minute, for this task or shared.
    batch: a `Batch`: the function takes a list of rows and gives a list of results, by position.
    errors: what becomes of a row that fails for good: "fail" (the default) ends the job with the first;
        "null" gives None for it; "column" says it beside the results; "drop" leaves it out. Or an `Errors`.
    budget: a `Budget`: calls and cost of the whole job, at most.
    ledger: a `Ledger` with `uid` and `run`: what a call gave is kept before its row is emitted, and not
        called again by whoever runs the same rows again.
    limits: a `Coordinator`, or one `at` an address: `rate` and `budget` hold for all tasks that share it
        together, otherwise `rate` for each task alone.
    """
    given = given_options(locals())
    if callable(fn) and hasattr(fn, "result_type"):
        returnType = returnType or fn.result_type
        if "batch" not in given and (not isinstance(options, Options) or options.batch is None):
            given["batch"] = dataclasses.replace(fn.batch, arrow=True)
    resolved = _resolve(options, given)
    check_max_cost(fn, resolved.budget)
    if isinstance(fn, Chat) and returnType is None:
        check_question(fn, resolved)
        fn, returnType = answer_column(fn)
    check_bool("skip_null", skip_null)
    check_progress(progress)
    is_decorator = returnType is None and not callable(fn)
    result = fn if is_decorator else returnType
    if _session() is not None:
        # An error in it then comes here, and not where the function is used.
        parse_type("returnType", result)
    elif not isinstance(result, str | T.DataType):
        raise TypeError(f"returnType={result!r}: must be a DDL string or a DataType")

    def decorate(fn: Callable[..., Any]) -> AsyncUdf:
        token = check_sendable(fn, resolved)
        if is_async_generator(fn):
            raise TypeError(
                f"fn={shorten(fn)}: must return one value, an async generator gives several: use async_map"
            )
        return AsyncUdf(fn, token, resolved, result, progress, skip_null)

    return decorate if is_decorator else decorate(fn)


def _resolve(options: Options | None, given: Mapping[str, Any]) -> Options:
    """The options of a column, which has a value for each row."""
    resolved = resolve_options(options, given)
    errors = resolved.errors
    if not resolved.ordered:
        raise ValueError("ordered=False: results of a column stand with their rows; use async_map")
    if resolved.where is not None:
        raise ValueError("where: say it where the column is made: embed('text', where='text is not null')")
    if errors.mode == "drop" and errors.dead_letter is None:
        raise ValueError("errors='drop': a column cannot leave out rows; use 'null' or 'column'")
    letter = dead_letter_of(errors.dead_letter, ())
    mode = "null" if errors.mode == "drop" else errors.mode
    return dataclasses.replace(resolved, errors=dataclasses.replace(errors, mode=mode, dead_letter=letter))


class AsyncUdf:
    """A function of columns. Built only by `async_udf`; for the driver, safe in any thread.

    `func` is the function that was given, `returnType` the type of the column.
    """

    deterministic = False

    def __init__(
        self,
        fn: Callable[..., Any],
        token: str,
        options: Options,
        result: str | T.DataType,
        progress: Progress | None,
        skip_null: bool,
    ) -> None:
        if hasattr(fn, "__name__"):
            functools.update_wrapper(self, fn)
        self._fn = fn
        self._given_result = result
        self._token = token
        self._options = options
        self._progress = progress
        self._skip_null = skip_null
        self._in_sql: UdfTask | None = None

    @functools.cached_property
    def _result(self) -> T.DataType:
        # Spark parses types, so this waits for a session.
        return parse_type("returnType", self._given_result)

    @property
    def returnType(self) -> T.DataType:
        """The type of the column. Raises ValueError for a type that cannot be."""
        if self._options.errors.mode == "column":
            return T.StructType().add("result", self._result).add(ERROR, ERROR_TYPE)
        return self._result

    @property
    def func(self) -> Callable[..., Any]:
        """The function that was given; in Spark's workers, once registered, what SQL calls for it."""
        if self._in_sql is None:
            return self._fn
        return Shipment(self._in_sql.run, name_of(self._fn), called=self._fn)

    def _signature(self) -> inspect.Signature:
        """The parameters that are columns: all but the one for a collector."""
        signature = inspect.signature(self._fn)
        collector = collector_parameter(self._fn)
        if collector is None:
            return signature
        return signature.replace(
            parameters=[each for each in signature.parameters.values() if each.name != collector.name]
        )

    @property
    def evalType(self) -> int:
        """The kind of function that `spark.udf.register` makes of it, which asks for it first.

        Raises TypeError or ValueError where SQL cannot call the function.
        """
        name = name_of(self._fn)
        if not hasattr(F, "arrow_udf"):
            raise TypeError(
                f"{name}: spark.udf.register needs PySpark 4.1 or later for it; use it as a column"
            )
        if self._options.ledger is not None:
            raise ValueError(
                f"{name}: spark.udf.register cannot tell the ledger which columns SQL calls it with; "
                "use it as a column, or without a ledger"
            )
        parameters = self._signature().parameters.values()
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [each.name for each in parameters if each.kind in plain]
        if self._options.errors.dead_letter is not None and not all(
            each.kind in plain and each.default is each.empty for each in parameters
        ):
            raise ValueError(
                f"{name}: with dead_letter, spark.udf.register needs a function with a fixed number of "
                "arguments, whose names the columns of the dead letters get"
            )
        self._in_sql = self._task(names, "sql")
        return PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF

    def asNondeterministic(self) -> AsyncUdf:
        """The same: Spark may not repeat its calls anyway."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # By what it was given: what is made of it belongs to a session.
        given = self._fn, self._token, self._options, self._given_result, self._progress, self._skip_null
        return AsyncUdf, given

    def __call__(self, *columns: Column | str, **named: Column | str) -> Column:
        """The column of the results for the given columns, or names of columns.

        where: call only rows for which this holds, a Column or SQL; the others give null. It is an argument
        like others for a function that has one of that name.

        Raises TypeError where the function does not take such arguments.
        """
        name = getattr(self._fn, "__qualname__", type(self._fn).__qualname__)
        signature = self._signature()
        where = None
        if "where" not in signature.parameters and "where" in named:
            where = condition_of(named.pop("where"))
        try:
            bound = signature.bind(*columns, **named)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        if bound.kwargs:
            raise TypeError(
                f"{name}: {', '.join(bound.kwargs)} must be given by position, after all before it"
            )
        if not bound.args:
            raise TypeError(f"{name}: needs at least one column, to know for which rows it is called")
        for argument in bound.args:
            # Classic and Connect have a Column class each, and neither imports the other's.
            if not isinstance(argument, str) and type(argument).__name__ != "Column":
                raise TypeError(
                    f"{name}: argument {argument!r} must be a Column or the name of one, "
                    f"not {type(argument).__name__}; use pyspark.sql.functions.lit for a constant"
                )
        task = self._task(_argument_names(bound), ", ".join(map(str, bound.args)), where is not None)
        return _call(task, bound.args if where is None else (*bound.args, where), name_of(self._fn))

    def _task(self, names: Sequence[str], arguments: str, has_where: bool = False) -> UdfTask:
        plan = plan_operator(
            self._fn,
            self._options,
            token=self._token,
            session=_session(),
            progress=self._progress,
            columns=names,
            results=self._result,
            arguments=arguments,
        )
        return UdfTask(plan, self._result, self.returnType, has_where, self._skip_null)


def _session() -> SparkSession | None:
    """The session of this thread, or that of the process: a thread that made none has none of its own."""
    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _argument_names(bound: inspect.BoundArguments) -> list[str]:
    """The names of the arguments as the function has them; those of `*rest` are numbered from 0."""
    names: list[str] = []
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{name}_{place}" for place in range(len(value)))
        else:
            names.append(name)
    return names


def _call(task: UdfTask, arguments: tuple[Any, ...], name: str) -> Column:
    if not hasattr(F, "arrow_udf"):
        from pillarbox.spark.pandas_udf import call_as_pandas_udf

        return call_as_pandas_udf(task, arguments, name)
    run = ship(task.run, name)
    column: Column = F.arrow_udf(run, task.return_type).asNondeterministic()(*arguments)
    return column


class UdfTask:
    """The part of a column of `async_udf` that runs in each task. Sent to the workers as it is.

    result: the type of what the function gives. return_type: that of the column. has_where: whether the last
    column says which rows are called. skip_null: whether rows with a null are not.
    """

    def __init__(
        self,
        plan: OperatorPlan,
        result: T.DataType,
        return_type: T.DataType,
        has_where: bool,
        skip_null: bool,
    ) -> None:
        self._plan = plan
        self._result = result
        self.return_type = return_type
        self._has_where = has_where
        self._skip_null = skip_null

    def run(self, columns: Iterator[pa.Array | Slice]) -> Iterator[pa.Array]:
        """The results for the argument columns: bare where there is one, tuples where there are several."""
        return self.results(each if isinstance(each, tuple) else (each,) for each in columns)

    def results(self, batches: Iterator[Slice]) -> Generator[pa.Array, None, None]:
        """The results for batches of argument columns, in batches of other sizes."""
        plan = self._plan
        encoder = ValueEncoder(self._result, plan.time_zone)
        with ExitStack() as stack:
            aside = skipped = None
            if self._has_where or self._skip_null:
                skipped = SkippedRows(ordered=True)
                batches = (tuple(each.columns) for each in skipped.called(map(self._with_mask, batches)))
            slices = _sliced(batches)
            if plan.dead_letters is not None:
                writer = stack.enter_context(DeadLetterWriter(plan.dead_letters))
                aside = _Aside(writer, plan.dead_letters.names)
                slices = aside.remember(slices)
            batch = plan.options.batch
            unpack = _records if batch is not None and batch.arrow else _rows
            chunks = stack.enter_context(closing(run_job(plan, ArrowInput(slices, unpack), convert=encoder)))
            for chunk in chunks:
                _, results = zip(*chunk, strict=True)
                if aside is not None:
                    aside.put(results)
                arrays, _ = encoder.encode(results)
                array = arrays[0]
                if plan.options.errors.mode == "column":
                    array = self._with_errors(array, results)
                if skipped is not None:
                    array = put_nulls(array, skipped.beside(len(chunk))[0])
                yield array
            if skipped is not None:
                kind = arrow_type(self.return_type)
                if len(places := skipped.beside(None)[0]):
                    yield pa.nulls(len(places), kind)

    def _with_mask(self, columns: Slice) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        mask = columns[-1] if self._has_where else None
        if mask is not None:
            columns = columns[:-1]
        if self._skip_null:
            for column in columns:
                mask = column.is_valid() if mask is None else pc.and_kleene(mask, column.is_valid())
        return _numbered(columns), mask

    def _with_errors(self, array: pa.Array, results: Sequence[Any]) -> pa.Array:
        fields = [pa.field("result", array.type), pa.field(ERROR, ERROR_ARROW)]
        return pa.StructArray.from_arrays([array, error_array(results)], fields=fields)


class _Aside:
    """Finds the arguments of failed rows again: results come in the order of the rows."""

    def __init__(self, dead_letters: DeadLetterWriter, names: Sequence[str]) -> None:
        self._dead_letters = dead_letters
        self._names = list(names)
        # Grows on the thread that reads the input, shrinks on the task's.
        # A deque takes both without a lock; and a slice is put in before its rows can have results.
        self._slices: deque[Slice] = deque()
        self._done = 0

    def remember(self, slices: Iterator[Slice]) -> Iterator[Slice]:
        for columns in slices:
            self._slices.append(columns)
            yield columns

    def put(self, results: Sequence[Any]) -> None:
        if Failed not in set(map(type, results)):
            return self._skip(len(results))
        place = 0
        while place < len(results):
            columns = self._slices[0]
            count = min(len(columns[0]) - self._done, len(results) - place)
            some = results[place : place + count]
            bad = [index for index, result in enumerate(some) if type(result) is Failed]
            if bad:
                indices = pa.array([self._done + index for index in bad], pa.int64())
                rows = pa.RecordBatch.from_arrays([column.take(indices) for column in columns], self._names)
                self._dead_letters.add(rows, [some[index] for index in bad])
            self._skip(count)
            place += count
        return None

    def _skip(self, count: int) -> None:
        self._done += count
        while self._slices and self._done >= len(self._slices[0][0]):
            self._done -= len(self._slices.popleft()[0])


def _sliced(batches: Iterator[Slice]) -> Iterator[Slice]:
    for columns in batches:
        for start in range(0, len(columns[0]), MAX_SLICE_ROWS):
            yield tuple(column.slice(start, MAX_SLICE_ROWS) for column in columns)


def _numbered(columns: Slice) -> pa.RecordBatch:
    """The columns with their places for names."""
    return pa.RecordBatch.from_arrays(list(columns), list(map(str, range(len(columns)))))


def _records(columns: Slice) -> RowBatch:
    return rows_of(_numbered(columns))


def _rows(columns: Slice) -> RowBatch:
    size = sum(column.nbytes for column in columns) // len(columns[0])
    rows = list(zip(*[decode_column(column) for column in columns], strict=True))
    return RowBatch(rows, size + ROW_BYTES)
