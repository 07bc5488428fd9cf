"""Calls again what failed in an earlier run: `retry_failed`. For the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.options import Options, settle_options
from pillarbox.aio.signature import with_options
from pillarbox.spark.async_map import mapped
from pillarbox.spark.dead_letters import DeadLetter
from pillarbox.spark.latency import Latency
from pillarbox.spark.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames


@with_options()
def retry_failed(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    schema: str | T.StructType,
    keep: str | Sequence[str] = (),
    progress: Progress | None = None,
    dead_letter: str | DeadLetter | None = None,
    latency: Latency = "normal",
    options: Options | None = None,
    **given: Unpack[OptionNames],
) -> DataFrame:
    """The rows of `df` as `async_map` gives them; only those are called that failed in an earlier run.

    ledger, uid, run, key, schema: those of the earlier run, whose results are found by them. What has a
    result there gets it; what failed is called again, by this `fn` and these options; what was never tried is
    not called, and is marked as `NotCalled`. All others: as for `async_map`; `errors` is "column" unless
    given, and may not be "fail". The results of rows that do well now are in the ledger afterwards.

    df: a batch DataFrame of the same rows. Raises TypeError or ValueError at once for a bad argument.
    """
    if "errors" not in given and dead_letter is None and (options is None or options.errors == "fail"):
        given["errors"] = "column"
    settled = settle_options(options, dict(given), dead_letter, instead="drop")
    if settled.ledger is None:
        raise ValueError(
            "ledger=None: the ledger of the earlier run says what failed; without one, call what is in its "
            "output: async_map(failed(df), ...)"
        )
    if settled.errors == "fail":
        raise ValueError(
            "errors='fail': rows that are not called must be marked: use 'column', 'null' or 'drop'"
        )
    if getattr(df, "isStreaming", False):
        raise ValueError(
            "df: is a stream; rows that failed in it are called again from a batch of the same data"
        )
    if settled.run is None:
        raise ValueError("run=None: must be the name of the earlier run")
    return mapped(
        df,
        fn,
        settled,
        schema=schema,
        keep=keep,
        progress=progress,
        dead_letter=dead_letter,
        latency=latency,
        only_failed=True,
    )
