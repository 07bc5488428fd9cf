"""The async operator over a stream, whose slow calls leave with a later micro-batch. For the driver.

`async_stream` builds the plan: rows are packed into buckets, `transformWithState` runs `StreamProcessor`,
what leaves is unpacked.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.check import check_seconds
from pillarbox.aio.options import Options, settle_options
from pillarbox.aio.signature import with_options
from pillarbox.mailbox.check import check_positive_int
from pillarbox.spark.dead_letter import DeadLetter
from pillarbox.spark.function import check_sendable, name_of, ship
from pillarbox.spark.schema import parse_schema
from pillarbox.spark.stream.end import TICKS, end_when_drained
from pillarbox.spark.stream.pack import BUCKET, KEY, LEAVING, PACKED, Pack, Unpack
from pillarbox.spark.stream.plan import StreamPlan
from pillarbox.spark.stream.processor import StreamProcessor
from pillarbox.spark.types import arrow_type
from pillarbox.spark.work import settle, settle_output

if TYPE_CHECKING:
    from typing_extensions import Unpack as UnpackOptions

    from pillarbox.aio.options import OptionNames

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

MAX_WAIT = 1.0
"""Seconds by which slow calls hold a micro-batch up, unless said otherwise."""

REUSE = "spark.python.worker.reuse"

BUCKETS = 64
"""Buckets by default: the same in every session, as a restart needs it."""

MOST_BUCKETS = 2**20


@with_options()
def async_stream(  # type: ignore[misc]
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    schema: str | T.StructType,
    key: str | Sequence[str] | None = None,
    buckets: int | None = None,
    max_wait: float = MAX_WAIT,
    keep: str | Sequence[str] = (),
    dead_letter: str | DeadLetter | None = None,
    options: Options | None = None,
    **given: UnpackOptions[OptionNames],
) -> DataFrame:
    """Call `fn` with each row of the stream `df`; slow calls leave with a later micro-batch than fast ones.

    fn, schema, keep, dead_letter, options: as for `async_map`. The limits hold for each worker process.
    key: the columns whose rows belong together: with `ordered`, rows of one key leave in the order in which
        they came. None for the whole row. Not what `Options.key` is: in a ledger a row here is known as a
        whole.
    buckets: into so many parts the keys are divided, each with a state of its own; None for 64. With
        `ordered` it has to stay the same as long as rows are pending in the checkpoint.
    max_wait: seconds by which slow calls may hold a micro-batch up, in all. What has not finished by then
        stays in Spark's state, its call goes on, and it leaves with a later micro-batch.

    The output has each row's results once, whatever is killed (with a sink that writes a micro-batch once). A
    call that has not ended when its process dies is made again, or found in the ledger. Rows leave later
    than they came, so a watermark belongs behind `async_stream`, with a delay that covers the longest call.

    With the trigger `availableNow` the query ends when all has been emitted; over Connect `drain(query)` does
    that. Needs PySpark 4.0 or later with pandas and protobuf, and the state store of RocksDB. The limit by
    `max_wait` and the state are Flink's asynchronous operator (FLIP-12) in Spark's micro-batches.

    On the driver. Raises TypeError or ValueError at once for a bad argument, for a DataFrame that is no
    stream, and for a session that lacks what is needed; in a task what `async_map` raises, and
    `StreamStateError`.
    """
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    if not df.isStreaming:
        raise ValueError("df: is no stream, so that nothing could leave later; use async_map")
    settled = settle_options(options, dict(given), dead_letter, instead="drop")
    token = check_sendable(fn, settled)
    results = parse_schema("schema", schema)
    if KEY in df.columns:
        raise ValueError(f"df: a column may not be called {KEY!r}")
    kept, output = settle_output(df.schema, keep, results, settled.errors)
    hashed = _hash(df.schema, key)
    wait = check_seconds("max_wait", max_wait)
    if wait is None:
        raise TypeError("max_wait=None: must be a number of seconds")
    session = df.sparkSession
    number = _buckets(buckets)
    _check_session(session)
    work = settle(
        fn,
        # A row's place among others is settled when it leaves, not when its call ends.
        dataclasses.replace(settled, ordered=False, key=None),
        token=token,
        session=session,
        progress=None,
        dead_letter=dead_letter,
        latency="normal",
        columns=df.columns,
        shape=f"{df.schema.simpleString()} {output.simpleString()}",
        results=results,
        streaming=True,
    )
    if work.letters is not None:
        work.letters.dead_letter.check_types(df.schema)
    plan = StreamPlan(
        name=uuid.uuid4().hex,
        work=work,
        schema=results,
        kept=tuple(kept),
        columns=tuple((field.name, _arrow_type(field.dataType)) for field in df.schema.fields),
        output=output.simpleString(),
        ordered=settled.ordered,
        max_wait=wait,
        buckets=number,
    )
    end_when_drained(session)
    name = name_of(fn)
    packed = (
        df.withColumn(KEY, hashed).mapInArrow(ship(Pack(number).run, name), PACKED).union(_clock(session))
    )
    leaving = packed.groupBy(BUCKET).transformWithStateInPandas(
        StreamProcessor(plan), LEAVING, "Append", "ProcessingTime"
    )
    return leaving.mapInArrow(ship(Unpack().run, name), output)


def _clock(session: Any) -> DataFrame:
    """A stream that moves on with each micro-batch, and gives none of its rows.

    After a restart Spark makes no micro-batch before some source has moved: without this one, what is pending
    would wait for new input, and with `availableNow` the query would end without it. Of Spark's own sources
    it is the one that knows `availableNow`, and no clock that could be set back.
    """
    ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
    clock: DataFrame = ticks.option("startTimestamp", TICKS).load().where("false")
    return clock.select(*[F.lit(None).cast(field.dataType).alias(field.name) for field in PACKED.fields])


def _hash(schema: T.StructType, key: Any) -> Column:
    """The hash of the key's columns, the same in every process and version."""
    names = [key] if isinstance(key, str) else key
    if names is None:
        names = list(schema.names)
    elif not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"key={key!r}: must be a column name, a list of column names, or None")
    elif not names:
        raise ValueError(f"key={key!r}: must name a column, or be None for the whole row")
    for name in names:
        if name not in schema.names:
            raise ValueError(f"key={key!r}: no column {name!r}; the input has {', '.join(schema.names)}")
    return F.xxhash64(*[_hashable(name, schema[name].dataType) for name in names])


def _hashable(name: str, kind: T.DataType) -> Column:
    column = F.col(f"`{name.replace('`', '``')}`")
    # Spark hashes no maps, at any depth.
    return F.to_json(F.struct(column)) if "map<" in kind.simpleString() else column


def _buckets(buckets: Any) -> int:
    if buckets is None:
        return BUCKETS
    number = check_positive_int("buckets", buckets)
    if number > MOST_BUCKETS:
        raise ValueError(f"buckets={buckets!r}: may be at most {MOST_BUCKETS:,}")
    return number


def _check_session(session: Any) -> None:
    missing = [name for name in ("pandas", "google.protobuf") if not _is_there(name)]
    if missing or not hasattr(_grouped(), "transformWithStateInPandas"):
        what = ", ".join(name.removeprefix("google.") for name in missing) or "PySpark 4.0 or later"
        raise ValueError(f"async_stream needs {what}: install pyspark[sql] and protobuf")
    provider = session.conf.get(PROVIDER, "")
    if provider.rpartition(".")[2] != ROCKSDB.rpartition(".")[2]:
        raise ValueError(
            f"async_stream needs the state store of RocksDB, and the session has {PROVIDER}={provider}: "
            f"set it to {ROCKSDB}"
        )
    reuse = session.conf.get(REUSE, "true")
    if reuse == "false":
        raise ValueError(
            "async_stream needs workers that outlive a task, for the calls between micro-batches, and the "
            f"session has {REUSE}={reuse}"
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _grouped() -> Any:
    from pyspark.sql import GroupedData

    return GroupedData


def _arrow_type(kind: T.DataType) -> pa.DataType | None:
    try:
        return arrow_type(kind)
    except TypeError:
        # Carried as it comes, as results of this type could not be.
        return None
