"""The async operator over a stream, whose slow calls leave with a later micro-batch. For the driver.

`async_stream` builds the plan: rows are packed into buckets, `transformWithState` runs `BucketProcessor`,
what leaves is unpacked.
"""

# Why rows go through Spark's state, where a queue in the worker would be shorter. What a micro-batch emits
# must be the same when it is run again, by another worker or for a second action of `foreachBatch`; an
# operator that emitted what had finished by then lost and doubled rows without a failure. So calls live
# outside, and what leaves is decided by committed state alone: docs/decisions/streams.md. The price is that a
# row leaves one or two micro-batches after its call has ended, and the state store of RocksDB.

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.options import Options, StreamOptionNames, resolve_options
from pillarbox.spark.compat import ASYNC_STREAM_SINCE, VARIANT_TYPES, require
from pillarbox.spark.dataframe import check_comparable
from pillarbox.spark.operator_plan import (
    check_sendable,
    map_in_arrow,
    name_of,
    output_schema,
    plan_operator,
)
from pillarbox.spark.schema import arrow_type, check_column, check_frame, holds, parse_schema
from pillarbox.spark.stream.bad_state import bad_state_folder
from pillarbox.spark.stream.bucket_state import StreamPlan
from pillarbox.spark.stream.buckets import DIGEST, KEY, through_buckets, unpack
from pillarbox.spark.stream.settings import check_settings
from pillarbox.validate import check_duration, suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_WAIT = 1.0
"""Seconds by which slow calls hold a micro-batch up, unless said otherwise."""


@suggesting_options(Options, StreamOptionNames)
def async_stream(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    schema: str | T.StructType,
    key: str | Sequence[str] | None = None,
    max_wait: float = MAX_WAIT,
    keep: str | Sequence[str] = (),
    options: Options | None = None,
    # From `Options`, but budget:
    **more: Unpack[StreamOptionNames],
) -> DataFrame:
    """Call `fn` with each row of a stream; slow calls are emitted by a later micro-batch than fast ones.

    df: a streaming DataFrame. fn, schema, keep, options: as for `async_map`. The limits apply to each
        executor.
    key: the columns whose rows belong together: with `ordered`, rows with equal keys are emitted in the order
        of their arrival. None for the whole row. A ledger identifies a row here by its whole content, so it
        has no `key`.
    max_wait: seconds for which slow calls may delay a micro-batch, in all. Rows whose calls have not finished
        by then are kept in Spark's state, their calls continue, and a later micro-batch emits them.

        >>> from pillarbox import async_stream
        >>> from pillarbox.spark import stream_settings
        >>> async def call(row):
        ...     return row.value * 2
        >>> stream_settings(spark)
        >>> stream = spark.readStream.format("rate").load()
        >>> results = async_stream(stream, call, schema="double long", keep=["value"], max_wait=5.0)
        >>> results.isStreaming, results.columns
        (True, ['value', 'double'])

    The rows of a micro-batch are fixed by the commit of the previous one, so each action of foreachBatch and
    each replay has the same rows: a sink that is idempotent by batch number has each row once, whichever
    process is killed. A row is emitted by the second micro-batch that begins after the end of its call, at
    the latest. Micro-batches follow one another while rows are pending, and only then. With the trigger
    `availableNow` the query ends when all rows have been emitted. Rows are emitted later than they arrived,
    so a watermark belongs after `async_stream`, with a delay that covers the longest call.

    A row of the committed state that cannot be continued, such as a null in a column that is NOT NULL, ends
    the query with an error that names it; `Errors(bad_state=folder)` stores it there, once, and continues.

    A call that has not ended when its executor dies is repeated, or found in the ledger. Needs PySpark 4.2
    or later with pandas and protobuf, and the state store of RocksDB. The limit `max_wait` and the state
    are Flink's asynchronous operator (FLIP-12) in Spark's micro-batches.

    On the driver. Raises TypeError or ValueError at once for a bad argument, for a DataFrame that is not
    streaming, and for a session that lacks a requirement; in a task the errors of `async_map`, and
    `StreamStateError`.

    Options:
    ordered: emit results in the order of their rows; otherwise in the order in which calls finish.
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
    endpoints: the `Endpoints` of the service that the function calls: each attempt gets one of them, which
        the function finds as `current_call().endpoint`. Clients have their own.
    ledger: a `Ledger` with `uid` and `run`: it stores each result before the row is emitted, and a later run
        of the same rows does not repeat the call.
    limits: a `Coordinator`, or one `at` an address: all tasks that use it share one `rate` and one `budget`.
        Without it `rate` applies to each task alone.
    """
    check_frame(df)
    if not df.isStreaming:
        raise ValueError("df: is not a stream, so that nothing could leave later; use async_map")
    resolved = resolve_options(options, more)
    if resolved.where is not None or resolved.latency != "normal":
        raise ValueError("where, latency: are not for a stream whose calls outlive a micro-batch")
    if resolved.ledger is not None and resolved.ledger.key is not None:
        raise ValueError(
            f"ledger: its key={resolved.ledger.key!r} must be None, as a row here is known as a whole"
        )
    if resolved.dedupe is not None and resolved.dedupe.across_tasks:
        raise ValueError(
            "across_tasks=True: not for a stream whose calls outlive a micro-batch, where the ledger knows "
            "each row by itself; leave it out"
        )
    if resolved.ledger is not None and resolved.ledger.cache is not None:
        raise ValueError(
            f"ledger: its cache={resolved.ledger.cache!r} must be left out, as a row here is known by its "
            "place in the stream; use async_map, or leave out cache"
        )
    token = check_sendable(fn, resolved)
    check_comparable(df.schema, resolved)
    results = parse_schema("schema", schema)
    for name in (KEY, DIGEST):
        if name in df.columns:
            raise ValueError(f"df: a column may not be called {name!r}")
    kept, output = output_schema(df.schema, keep, results, resolved.errors.mode)
    hashed = _hash(df.schema, key)
    wait = check_duration("max_wait", max_wait, above_zero=True)
    session = df.sparkSession
    _check_session(session)
    operator = plan_operator(
        fn,
        # A row's place among others is settled when it leaves, not when its call ends.
        dataclasses.replace(resolved, ordered=False),
        token=token,
        session=session,
        progress=None,
        columns=df.columns,
        results=results,
        streaming=True,
    )
    if operator.dead_letters is not None:
        operator.dead_letters.check_types(df.schema)
    bad_folder = bad_state_folder(resolved.errors.bad_state, operator.dead_letters)
    plan = StreamPlan(
        name=uuid.uuid4().hex,
        operator=operator,
        schema=results,
        kept=tuple(kept),
        columns=tuple((field.name, _arrow_type(field.dataType)) for field in df.schema.fields),
        output=output.simpleString(),
        ordered=resolved.ordered,
        max_wait=wait,
        required=tuple(field.name for field in df.schema.fields if not field.nullable),
        leaves=tuple(
            pa.field(field.name, _arrow_type(field.dataType) or pa.null(), field.nullable)
            for field in output.fields
        ),
        bad_state=bad_folder,
    )
    # Its module needs what the check above is for.
    from pillarbox.spark.stream.clock import read_clock

    leaving = through_buckets(df, plan, hashed, read_clock(session))
    return map_in_arrow(leaving, unpack, name_of(fn), output)


def _hash(schema: T.StructType, key: object) -> Column:
    """The hash of the key's columns, the same in every process and version."""
    names = [key] if isinstance(key, str) else key
    if names is None:
        names = list(schema.names)
    elif not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"key={key!r}: must be a column name, a list of column names, or None")
    elif not names:
        raise ValueError(f"key={key!r}: must name a column, or be None for the whole row")
    for name in names:
        check_column(f"key={key!r}", name, schema.names)
    return F.xxhash64(*[_hashable(name, schema[name].dataType) for name in names])


def _hashable(name: str, kind: T.DataType) -> Column:
    column = F.col(f"`{name.replace('`', '``')}`")
    # Spark hashes no maps and variants, at any depth.
    return F.to_json(F.struct(column)) if holds(kind, (T.MapType, *VARIANT_TYPES)) else column


def _check_session(session: SparkSession) -> None:
    require(ASYNC_STREAM_SINCE, "async_stream")
    missing = [name for name in ("pandas", "google.protobuf") if not _is_there(name)]
    if missing:
        what = ", ".join(name.removeprefix("google.") for name in missing)
        raise ValueError(f"async_stream needs {what}: install pyspark[sql] and protobuf")
    check_settings(session)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _arrow_type(kind: T.DataType) -> pa.DataType | None:
    try:
        return arrow_type(kind)
    except TypeError:
        # Carried as it comes, as results of this type could not be.
        return None
