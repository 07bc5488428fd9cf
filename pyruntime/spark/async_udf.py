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

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T

from pillarbox.aio.batching import Batch
from pillarbox.aio.errors import shorten
from pillarbox.aio.function import collector_parameter, is_async_generator
from pillarbox.aio.options import (
    ErrorMode,
    Errors,
    Options,
    UdfOptionNames,
    resolve_options,
)
from pillarbox.aio.stages import check_no_state
from pillarbox.redaction import Redact
from pillarbox.spark import compat
from pillarbox.spark.column_functions import adapted, check_budget
from pillarbox.spark.dataframe import MapTask
from pillarbox.spark.error_column import ERROR, ERROR_TYPE
from pillarbox.spark.observation import JobProgress, check_progress
from pillarbox.spark.operator_plan import (
    OperatorPlan,
    check_sendable,
    name_of,
    plan_operator,
)
from pillarbox.spark.records import arguments_of, rows_of
from pillarbox.spark.results import ValueEncoder
from pillarbox.spark.schema import condition_of, parse_type
from pillarbox.spark.shipment import Shipment, active_session, ship
from pillarbox.spark.writer import WHERE, RowWriter
from pillarbox.task.protocols import RowBatch
from pillarbox.validate import check_bool, suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.calls import Chunk
    from pillarbox.aio.options import ColumnOptionNames


@overload
def async_udf(
    fn: str | T.DataType,
    *,
    skip_null: bool = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: JobProgress | None = ...,
    options: Options | None = ...,
    **more: Unpack[ColumnOptionNames],
) -> Callable[[Callable[..., Any]], AsyncUdf]: ...
@overload
def async_udf(
    fn: Callable[..., Any],
    returnType: str | T.DataType | None = ...,
    *,
    skip_null: bool = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: JobProgress | None = ...,
    options: Options | None = ...,
    **more: Unpack[ColumnOptionNames],
) -> AsyncUdf: ...
@suggesting_options(Options, UdfOptionNames)
def async_udf(
    fn: Any,
    returnType: Any = None,
    *,
    skip_null: bool = False,
    progress: JobProgress | None = None,
    options: Options | None = None,
    # From `Options`, but ordered:
    **more: Unpack[UdfOptionNames],
) -> Any:
    """Make a column function of an async function, which is called concurrently with the values of each row.

    fn: the function; as a decorator, `async_udf` takes the type in its place, like
        `pyspark.sql.functions.udf`.
    returnType: the type of one result, as a DDL string or a DataType; by default a `Chat` gives that of its
    answers, and a client such as `Embeddings` its own. Such a client is called in its own batches, as Arrow,
    unless `batch` is given. With `errors="column"` the column is a struct of `result`, of this type, and
    `_error`: type, message, attempts, latency and status, null for good rows.
    skip_null: a row with a null among the arguments is not called and gives null.
    progress, options: as for `async_map`.

        >>> from pillarbox import async_udf
        >>> @async_udf("string", capacity=64, timeout=30.0, retry=4)
        ... async def upper(text: str) -> str:
        ...     return text.upper()
        >>> df = spark.createDataFrame([("a",), ("b",)], "text string")
        >>> df.withColumn("upper", upper("text")).collect()
        [Row(text='a', upper='A'), Row(text='b', upper='B')]

    The function takes the values of the columns as arguments and returns one value. It may be plain (it then
    runs in threads), it may complete a `Collector`, its last parameter, and it may be an object with
    `__aenter__`/`__aexit__`, as in `async_map`.

    The column is non-deterministic, so that Spark does not copy it into a filter. Each action makes the calls
    again, and a column that is not needed is not called: see the page "Every action calls". Results are
    always in the order of their rows, and no row can be omitted; calls of several rows overlap over the whole
    partition. `spark.udf.register("upper", upper)` makes it a function of SQL.

    No session is needed before the function is called with columns, so any module may define it. Any thread
    of the driver. Raises TypeError or ValueError at once for a bad argument; errors in the task are those of
    `async_map`.

    Options:
    capacity: the concurrency: calls in flight, at most (1 or more). A call that waits for a retry or for the
        rate does not count. "auto" or an `Adaptive` finds the number at run time; a `Shared` is a number for
        all tasks together, which needs `limits`.
    timeout: seconds for all attempts of a row, or a `Timeout`; None for no limit.
    retry: the number of attempts (1 or more) or a `Retry`; None for one attempt.
    rate: a `Rate` that limits calls per second or units per minute, for this task or shared.
    hedge: a `Hedge`: while the call of a row is slow another one is made, and the first good answer counts;
        for async functions that may be called twice with one row without harm.
    batch: a `Batch`: the function takes a list of rows and returns a list of results, by position.
    errors: the treatment of rows that fail for good: "fail" (the default) ends the job at the first one;
        "null" emits None; "column" emits the error beside the result; "drop" omits the row. Or an `Errors`.
    budget: a `Budget` that limits the calls and the cost of the whole job.
    endpoints: the `Endpoints` of the service that the function calls: each attempt gets one of them, which
        the function finds as `current_call().endpoint`. Clients have their own.
    ledger: a `Ledger` with `uid` and `run`: it stores each result before the row is emitted, and a later run
        of the same rows does not repeat the call.
    limits: a `Coordinator`, or one `at` an address: all tasks that use it share one `rate` and one `budget`.
        Without it `rate` applies to each task alone.
    """
    given: dict[str, Any] = {**more}
    if callable(fn) and hasattr(fn, "result_type"):
        returnType = returnType or fn.result_type
        has_batch = "batch" in given or (isinstance(options, Options) and options.batch is not None)
        if hasattr(fn, "batch") and not has_batch:
            given["batch"] = dataclasses.replace(fn.batch, arrow=True)
    resolved = _resolve(options, given)
    check_budget(fn, resolved.budget)
    if returnType is None:
        fn, returnType = adapted(fn, resolved) or (fn, None)
    check_bool("skip_null", skip_null)
    check_progress(progress)
    is_decorator = returnType is None and not callable(fn)
    result = fn if is_decorator else returnType
    if active_session() is not None:
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
    if not resolved.ordered:
        raise ValueError("ordered=False: results of a column stand with their rows; use async_map")
    if resolved.where is not None:
        raise ValueError("where: say it where the column is made: embed('text', where='text is not null')")
    check_no_state(resolved)
    if resolved.errors.dead_letter is not None:
        raise ValueError(
            "dead_letter: a column has no rows to put aside; use async_map, or errors='column', which says "
            "beside each result what failed"
        )
    if resolved.errors.mode == "drop":
        raise ValueError("errors='drop': a column cannot leave out rows; use 'null' or 'column'")
    return resolved


class AsyncUdf:
    """Column function that `async_udf` made, for DataFrames and SQL.

        >>> from pillarbox import async_udf
        >>> async def upper(text):
        ...     return text.upper()
        >>> made = async_udf(upper, "string")
        >>> type(made).__name__, made.returnType.simpleString()
        ('AsyncUdf', 'string')

    A call with columns returns a Column. It has the attributes of PySpark's own UDFs, so that
    `spark.udf.register` accepts it. Any thread of the driver.
    """

    deterministic = False

    def __init__(
        self,
        fn: Callable[..., Any],
        token: str,
        options: Options,
        result: str | T.DataType,
        progress: JobProgress | None,
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
        """The wrapped function; in Spark's workers, once registered, the function that SQL calls for it."""
        if self._in_sql is None:
            return self._fn
        run = compat.column_task(self._in_sql.run, self.returnType)
        return Shipment(run, name_of(self._fn), called=self._fn)

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
        if self._options.ledger is not None:
            raise ValueError(
                f"{name}: spark.udf.register cannot tell the ledger which columns SQL calls it with; "
                "use it as a column, or without a ledger"
            )
        # Whatever SQL calls it with, nothing asks for the names.
        self._in_sql = self._task((), "sql")
        return compat.COLUMN_KIND

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
                    f"{name}: argument {shorten(argument)} must be a Column or the name of one, "
                    f"not {type(argument).__name__}; use pyspark.sql.functions.lit for a constant"
                )
        task = self._task(_argument_names(bound), ", ".join(map(str, bound.args)), where is not None)
        run = ship(compat.column_task(task.run, self.returnType), name_of(self._fn))
        arguments = bound.args if where is None else (*bound.args, where)
        return compat.column_function(run, self.returnType)(*arguments)

    def _task(self, names: Sequence[str], arguments: str, has_where: bool = False) -> UdfTask:
        plan = plan_operator(
            self._fn,
            self._options,
            token=self._token,
            session=active_session(),
            progress=self._progress,
            columns=names,
            results=self._result,
            arguments=arguments,
        )
        return UdfTask(plan, self._result, has_where=has_where, skip_null=self._skip_null)


def _argument_names(bound: inspect.BoundArguments) -> list[str]:
    """The names of the arguments as the function has them; those of `*rest` are numbered from 0."""
    names: list[str] = []
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{name}_{place}" for place in range(len(value)))
        else:
            names.append(name)
    return names


class UdfTask(MapTask):
    """The part of a column of `async_udf` that runs in each task. Sent to the workers as it is.

    result: the type of what the function gives. has_where: whether the last column says which rows are
    called. skip_null: whether rows with a null are not.
    """

    def __init__(self, plan: OperatorPlan, result: T.DataType, *, has_where: bool, skip_null: bool) -> None:
        schema = T.StructType([T.StructField("result", result)])
        super().__init__([plan], schema, [], plan.options.errors.mode, skips=has_where or skip_null)
        self._has_where = has_where
        self._skip_null = skip_null

    def run(self, batches: Iterator[Any]) -> Generator[pa.Array, None, None]:
        """The results for the argument columns: bare where there is one, tuples where there are several."""
        with closing(super().run(map(self._numbered, batches))) as written:
            for batch in written:
                yield batch.column(0)

    def _numbered(self, arguments: pa.Array | tuple[pa.Array, ...]) -> pa.RecordBatch:
        """The columns with their places for names, and last which rows are called, if not all are."""
        columns = [*arguments] if isinstance(arguments, tuple) else [arguments]
        mask = columns.pop() if self._has_where else None
        names = list(map(str, range(len(columns))))
        if self._skip_null:
            for column in columns:
                # Columns beside each other alone need it, and its import takes longer than a small task.
                import pyarrow.compute as pc

                mask = column.is_valid() if mask is None else pc.and_kleene(mask, column.is_valid())
        if mask is None:
            return pa.RecordBatch.from_arrays(columns, names)
        return pa.RecordBatch.from_arrays([*columns, mask], [*names, WHERE])

    def _unpack(self, batch: pa.RecordBatch) -> RowBatch:
        options = self._plans[0].options
        return rows_of(batch) if options.batch is not None and options.batch.arrow else arguments_of(batch)

    def _writer(self, stack: ExitStack) -> RowWriter:
        plan = self._plans[0]
        return _ColumnWriter(
            self._schema, plan.time_zone, errors=self._errors, redact=plan.options.errors.redaction
        )


class _ColumnWriter(RowWriter):
    """Writes results as one column: their values, or structs of value and error."""

    def __init__(
        self, schema: T.StructType, zone: datetime.tzinfo | None, *, errors: str, redact: Redact
    ) -> None:
        super().__init__([], schema, zone, errors=errors, redact=redact)
        self.encoder = ValueEncoder(schema.fields[0].dataType, zone)

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        """The results of a chunk, and nothing else."""
        return self._packed(super().write(chunk))

    def nulls(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Nulls for rows that were not called: also where others are structs of value and error."""
        kind = self._packed(super().nulls(rows)).column(0).type
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows, kind)], ["result"])

    def _packed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_columns == 1:
            return batch
        packed = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
        return pa.RecordBatch.from_arrays([packed], ["result"])
