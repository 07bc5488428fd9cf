"""Old input formats in Spark: read in batch, split by split."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pillarbox.sources.legacy import FromInputFormat
from pillarbox.spark import register_source
from tests.spark.unit import source_formats
from tests.spark.unit.source_formats import Tens

cloudpickle.register_pickle_by_value(source_formats)


@pytest.mark.slow
def test_a_format_is_read_in_batch_by_its_splits(spark: SparkSession) -> None:
    source = FromInputFormat(Tens, min_splits=7, schema=pa.schema([("n", pa.int64())]))
    frame = spark.read.format(register_source(spark, source, "old_format")).load()
    assert sorted(row.n for row in frame.collect()) == list(range(70))
