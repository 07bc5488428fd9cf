"""Pillarbox over Spark DataFrames, batch and streaming, classic and Connect. Needs PySpark 3.5 or later."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pillarbox.lazy_names import at_first_use

if TYPE_CHECKING:
    from pillarbox.api import async_map
    from pillarbox.spark.async_udf import async_udf
    from pillarbox.spark.client_columns import ask, embed_text, lookup
    from pillarbox.spark.cost_estimate import estimate_cost
    from pillarbox.spark.data_source import register_source
    from pillarbox.spark.dataframe import called_once
    from pillarbox.spark.error_column import call_failed, failed_rows, skipped_rows
    from pillarbox.spark.progress import Progress
    from pillarbox.spark.stream.async_stream import async_stream
    from pillarbox.spark.stream.settings import stream_settings
    from pillarbox.spark.token_columns import count_tokens, split_text, text_splitter, token_counter

__all__ = [
    "Progress",
    "ask",
    "async_map",
    "async_stream",
    "async_udf",
    "call_failed",
    "called_once",
    "count_tokens",
    "embed_text",
    "estimate_cost",
    "failed_rows",
    "lookup",
    "register_source",
    "skipped_rows",
    "split_text",
    "stream_settings",
    "text_splitter",
    "token_counter",
]

_MODULES = {
    ".api": ["async_map"],
    "async_udf": ["async_udf"],
    "client_columns": ["ask", "embed_text", "lookup"],
    "cost_estimate": ["estimate_cost"],
    "data_source": ["register_source"],
    "dataframe": ["called_once"],
    "error_column": ["call_failed", "failed_rows", "skipped_rows"],
    "progress": ["Progress"],
    "stream.async_stream": ["async_stream"],
    "stream.settings": ["stream_settings"],
    "token_columns": ["count_tokens", "split_text", "text_splitter", "token_counter"],
}

if not TYPE_CHECKING:
    # At the first use. Some are of a ring, and a job that lacks it does without. And each process of a source
    # imports this package; that of a stream is a new one with each query, and has no use for the operator.
    __getattr__ = at_first_use(__name__, _MODULES)


# PySpark's own, at each Python function that it makes, of a pandas that is newer than it. Nothing of ours
# passes through what it warns of; users who call pandas by PySpark are warned as before.
warnings.filterwarnings(
    "ignore",
    message="PySpark does not yet fully support pandas",
    category=FutureWarning,
    module=r"pyspark\.(?!sql\.pandas\.conversion)",
)
