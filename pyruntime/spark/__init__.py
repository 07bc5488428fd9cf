"""Pillarbox over Spark DataFrames, batch and streaming, classic and Connect. Needs PySpark 4.0 or later."""

from pillarbox.spark.async_map import async_map
from pillarbox.spark.async_udf import AsyncUdf, async_udf
from pillarbox.spark.progress import Progress, ProgressTotals
from pillarbox.spark.record import Record
from pillarbox.spark.results import ResultError

__all__ = ["AsyncUdf", "Progress", "ProgressTotals", "Record", "ResultError", "async_map", "async_udf"]
