"""Calls again what failed in an earlier run: `retry_failed`. For the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.batching import Batch
from pillarbox.aio.chained import Stage
from pillarbox.aio.concurrency import Adaptive
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
from pillarbox.ledger import Ledger
from pillarbox.spark.dataframe import map_dataframe
from pillarbox.spark.progress import Progress


def retry_failed(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    schema: str | T.StructType,
    keep: str | Sequence[str] = (),
    progress: Progress | None = None,
    # From `Options`:
    ordered: bool = UNSET,
    capacity: int | Literal["auto"] | Adaptive = UNSET,
    timeout: float | Timeout | None = UNSET,
    retry: Any = UNSET,
    rate: Rate | None = UNSET,
    batch: Batch | None = UNSET,
    errors: ErrorMode | Errors = UNSET,
    budget: Budget | None = UNSET,
    ledger: Ledger | None = UNSET,
    limits: SharedLimits | None = UNSET,
    options: Options | None = None,
) -> DataFrame:
    """The rows of `df` as `async_map` gives them; only those are called that failed in an earlier run.

    ledger, schema: those of the earlier run, whose results are found by them. What has a
    result there gets it; what failed is called again, by this `fn` and these options; what was never tried is
    not called, and is marked as `NotCalled`. All others: as for `async_map`; `errors` is "column" unless
    given, and may not be "fail". The results of rows that do well now are in the ledger afterwards.

    df: a batch DataFrame of the same rows. Raises TypeError or ValueError at once for a bad argument.
    """
    given = given_options(locals())
    if "errors" not in given and (options is None or options.errors.mode == "fail"):
        given["errors"] = "column"
    resolved = resolve_options(options, given)
    if resolved.ledger is None:
        raise ValueError(
            "ledger=None: the ledger of the earlier run says what failed; without one, call what is in its "
            "output: async_map(failed_rows(df), ...)"
        )
    if resolved.errors.mode == "fail":
        raise ValueError(
            "errors='fail': rows that are not called must be marked: use 'column', 'null' or 'drop'"
        )
    if getattr(df, "isStreaming", False):
        raise ValueError(
            "df: is a stream; rows that failed in it are called again from a batch of the same data"
        )
    if resolved.ledger.cache is not None:
        raise ValueError(
            "ledger: is a cache, which knows of no earlier run; async_map over the same rows calls those "
            "again that failed"
        )
    if resolved.ledger.run is None:
        raise ValueError("run=None: must be the name of the earlier run: Ledger(folder, uid=..., run=...)")
    return map_dataframe(
        df, [Stage(fn, resolved)], schema=schema, keep=keep, progress=progress, only_failed=True
    )
