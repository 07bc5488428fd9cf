"""The async operator over a DataFrame: `async_map`, and what it runs in each task.

`async_map` is for the driver. `MapTask` is sent to the workers and runs on their task thread.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.options import DEFAULT_CAPACITY, Options
from pillarbox.aio.retry import Retry
from pillarbox.aio.sinks import Chunk
from pillarbox.spark.function import check_sendable
from pillarbox.spark.progress import Progress
from pillarbox.spark.record import Columns, records, sliced
from pillarbox.spark.results import FAILED, RowEncoder
from pillarbox.spark.schema import check_unique, kept_columns, parse_schema
from pillarbox.spark.types import time_zone
from pillarbox.spark.worker import run_job


def async_map(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    schema: str | T.StructType,
    keep: str | Sequence[str] = (),
    ordered: bool = True,
    capacity: int = DEFAULT_CAPACITY,
    reorder: int | None = None,
    timeout: float | None = None,
    attempt_timeout: float | None = None,
    retry: Retry | None = None,
    errors: str = "fail",
    progress: Progress | None = None,
) -> DataFrame:
    """Call `fn` with each row of `df`, many at a time in each task; a DataFrame of the rows it gives.

    fn: an async function of one record, read as `record.name` or `record["name"]`; or a plain one,
        which runs in threads; or an object with either as its `__call__`. An object with
        `__aenter__`/`__aexit__` is opened once per worker process and closed when no task has used it for
        10 s. It returns a row (dict, tuple, Row, named tuple, dataclass; a bare value where the schema
        has one column that is no array, map or struct), a list of 0..n rows, or an async iterator of rows.
    schema: the columns of the rows that `fn` gives, as a DDL string or a StructType.
    keep: input columns to carry in front of them, as Arrow; "*" for all.
    ordered: rows in the order of the input, within a partition; otherwise as calls finish.
    capacity: calls in flight in one task. reorder: rows read and not yet written by one task, at most;
        default 8 x capacity.
    timeout, attempt_timeout: seconds for all attempts of a row, and for one. retry: a `Retry`.
    errors: "fail" fails the task with the first row that fails for good; "null" gives one row of nulls
        in its place.
    progress: a `Progress`, to see the job while it runs.

    Batch and streaming DataFrames, classic and Connect. Nothing is called before an action runs; a
    task that Spark runs again calls again. Raises TypeError or ValueError at once for a bad argument;
    in the task, `CallFailed` or `CallTimeout` with the row, and `ResultError` for a result that does not
    fit the schema.
    """
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    token = check_sendable(fn)
    options = Options(ordered, capacity, reorder, timeout, attempt_timeout, retry, errors)
    check_progress(progress)
    results = parse_schema("schema", schema)
    check_unique("df", df.columns)
    kept = kept_columns(keep, df.schema)
    output = T.StructType([df.schema[name] for name in kept] + results.fields)
    check_unique("keep and schema", output.names)
    for field in results.fields:
        if errors == "null" and not field.nullable:
            raise ValueError(f"errors='null': column {field.name!r} of the schema is NOT NULL")
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    folder = None if progress is None else progress.new_operator()
    task = MapTask(fn, token, options, results, kept, zone, folder)
    return df.mapInArrow(task.run, output)


def check_progress(progress: Any) -> None:
    """Raise TypeError unless `progress` is a `Progress` or None."""
    if progress is not None and not isinstance(progress, Progress):
        raise TypeError(f"progress={progress!r}: must be a pillarbox.spark.Progress or None")


class MapTask:
    """What `async_map` runs in each task. Sent to the workers as it is."""

    def __init__(
        self,
        fn: Callable[[Any], Any],
        token: str,
        options: Options,
        schema: T.StructType,
        kept: list[str],
        zone: str | None,
        progress: str | None,
    ) -> None:
        self._fn = fn
        self._token = token
        self._options = options
        self._schema = schema
        self._kept = kept
        self._zone = zone
        self._progress = progress

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output batches for a partition's input batches."""
        zone = None if self._zone is None else time_zone(self._zone)
        writer = _Writer(self._kept, self._schema, zone)
        chunks = run_job(
            self._fn,
            self._token,
            self._options,
            sliced(batches),
            records,
            spread=False,
            failed=FAILED,
            progress=self._progress,
        )
        with closing(chunks):
            for chunk in chunks:
                batch = writer.write(chunk)
                if batch.num_rows:
                    yield batch


class _Writer:
    """Makes output batches of chunks: kept columns as Arrow, beside the results of their rows."""

    def __init__(self, kept: list[str], schema: T.StructType, zone: datetime.tzinfo | None) -> None:
        self._kept = kept
        self._encoder = RowEncoder(schema, zone)
        self._names = kept + schema.names

    def write(self, chunk: Chunk) -> pa.RecordBatch:
        rows = [call.row for call, _ in chunk]
        if not self._kept:
            arrays, _ = self._encoder.encode(rows, [result for _, result in chunk])
            return pa.RecordBatch.from_arrays(arrays, self._names)
        # Rows of several input slices may be mixed in a chunk of unordered results. Grouping them
        # by slice costs nothing in order, as there is none among them, and one `take` per slice.
        groups: dict[int, tuple[Columns, list[int], list[Any], list[Any]]] = {}
        for row, (_, result) in zip(rows, chunk, strict=True):
            columns = row._columns
            group = groups.get(id(columns))
            if group is None:
                group = groups[id(columns)] = (columns, [], [], [])
            group[1].append(row._index)
            group[2].append(row)
            group[3].append(result)
        inputs = [row for _, _, some, _ in groups.values() for row in some]
        results = [result for _, _, _, some in groups.values() for result in some]
        arrays, counts = self._encoder.encode(inputs, results)
        parts = []
        offset = 0
        for columns, indices, _, _ in groups.values():
            if counts is not None:
                some = counts[offset : offset + len(indices)]
                offset += len(indices)
                indices = [index for index, count in zip(indices, some, strict=True) for _ in range(count)]
            parts.append(_take(columns.batch.select(self._kept), indices))
        kept = parts[0].columns
        if len(parts) > 1:
            kept = [pa.concat_arrays([part.column(name) for part in parts]) for name in self._kept]
        return pa.RecordBatch.from_arrays([*kept, *arrays], self._names)


def _take(batch: pa.RecordBatch, indices: list[int]) -> pa.RecordBatch:
    count = len(indices)
    if (
        count
        and indices[-1] - indices[0] == count - 1
        and indices == list(range(indices[0], indices[0] + count))
    ):
        return batch.slice(indices[0], count)
    return batch.take(pa.array(indices, pa.int64()))
