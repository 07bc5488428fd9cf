"""Spares calls that nobody means: rows that are not called, results that are kept.

The operator never sees rows that are not called, so they count for no limit and no budget. One `SkippedRows`
belongs to one task: `called` runs on the thread that reads the input, the rest on the task's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

WHERE = "__pillarbox_where"
"""The column of the condition, the last one of the input."""


def condition_of(where: Any) -> Any:
    """The Column of a condition given as one, or as SQL. On the driver. Raises TypeError."""
    if isinstance(where, str):
        return F.expr(where)
    if type(where).__name__ != "Column":
        raise TypeError(f"where={where!r}: must be a Column or SQL, not {type(where).__name__}")
    return where


class SkippedRows:
    """The rows of a task that are not called. ordered: whether they stand at their places among others."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        # Grows on the thread that reads the input, shrinks on the task's.
        self._seen: deque[tuple[pa.RecordBatch, list[bool]]] = deque()
        self._place = 0

    def called(self, batches: Iterator[tuple[pa.RecordBatch, pa.BooleanArray]]) -> Iterator[pa.RecordBatch]:
        """Of batches, each with its mask, the rows that are to be called."""
        for batch, mask in batches:
            mask = mask.fill_null(False)
            self._seen.append((batch, mask.to_pylist()))
            called = batch.filter(mask)
            if called.num_rows:
                yield called

    def beside(self, results: int | None) -> tuple[list[int], list[pa.RecordBatch]]:
        """The rows that leave with the next results, and the order of both; with None those that are left.

        In the order a result is -1, and a skipped row its number among those that leave now.
        """
        order: list[int] = []
        skipped: list[pa.RecordBatch] = []
        count = 0
        if not self._ordered:
            order, results = [-1] * (results or 0), None
        while self._seen and results != 0:
            batch, flags = self._seen[0]
            places = []
            place = self._place
            while place < len(flags) and results != 0:
                if not flags[place]:
                    places.append(place)
                    order.append(count)
                    count += 1
                elif results is not None:
                    order.append(-1)
                    results -= 1
                place += 1
            if places:
                skipped.append(batch.take(pa.array(places, pa.int64())))
            if place < len(flags):
                self._place = place
            else:
                self._seen.popleft()
                self._place = 0
        return order, skipped


def put_back(
    written: pa.RecordBatch, skipped: pa.RecordBatch, order: list[int], counts: list[int] | None
) -> pa.RecordBatch:
    """The rows of both, of the same columns, as `SkippedRows.beside` orders them.

    counts: the rows of each result; None for one each.
    """
    indices: list[int] = []
    row = result = 0
    for each in order:
        if each >= 0:
            indices.append(written.num_rows + each)
            continue
        count = 1 if counts is None else counts[result]
        indices.extend(range(row, row + count))
        row += count
        result += 1
    arrays = [pa.concat_arrays([a, b]) for a, b in zip(written.columns, skipped.columns, strict=True)]
    both = pa.RecordBatch.from_arrays(arrays, written.schema.names)
    return both.take(pa.array(indices, pa.int64()))


@contextmanager
def called_once(df: DataFrame) -> Iterator[DataFrame]:
    """Call for the rows of `df` now, once, and keep the results for all that is done with them in the block.

        def write(batch, number):  # of foreachBatch
            with called_once(async_map(batch, lookup, schema="price double", keep="*")) as priced:
                priced.write.mode("append").parquet("prices")
                priced.where("price > 100").write.mode("append").parquet("dear")

    df: a batch DataFrame, such as what `async_map` gives. Its rows are persisted (memory, then disk), and let
    go at the end of the block. Where an executor is lost with what it kept, its partitions are called again;
    a ledger keeps that from being paid. On the driver. Raises TypeError, ValueError for a stream, and what
    the job raises.
    """
    if not callable(getattr(df, "persist", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    if df.isStreaming:
        raise ValueError(
            "df: is a stream, whose rows cannot be kept; use it on micro-batches, in foreachBatch"
        )
    kept = df.persist()
    try:
        # Every partition, which the first use of the rows may not need.
        kept.write.format("noop").mode("overwrite").save()
        yield kept
    finally:
        kept.unpersist()
