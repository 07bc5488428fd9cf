"""Old sources in Spark: a function as a stream, over a restart from the checkpoint; a format in batch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pillarbox.sources.legacy import FromInputFormat, FromSourceFunction
from pillarbox.spark import register_source
from tests.spark.unit import source_functions
from tests.spark.unit.source_functions import CountingTo, Tens
from tests.spark.unit.streams import Collected, until
from tests.versions import needs_source_streams

cloudpickle.register_pickle_by_value(source_functions)

pytestmark = pytest.mark.timeout(300)

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])


@pytest.mark.slow
@needs_source_streams
def test_a_function_goes_on_from_the_checkpoint_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    end, found = tmp_path / "end", Collected()
    end.write_text("40")
    source = FromSourceFunction(partial(CountingTo, str(end)), schema=SCHEMA)
    name = register_source(spark, source, "old_function")
    stream = spark.readStream.format(name).option("max_rows", "15").load()
    assert stream.schema.simpleString() == "struct<n:bigint,name:string>"

    def start() -> None:
        writer = stream.writeStream.foreachBatch(found).option("checkpointLocation", str(tmp_path / "kept"))
        query = writer.start()
        try:
            wanted = int(end.read_text())
            until(lambda: len(found.rows) >= wanted, query)
            # It goes on while the query runs.
            (tmp_path / "more").write_text(str(wanted + 7))
            (tmp_path / "more").replace(end)
            until(lambda: len(found.rows) >= wanted + 7, query)
        finally:
            query.stop()

    start()
    batches = len(found.batches)
    written = max((tmp_path / "kept/offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(written.read_text().splitlines()[-1])["number"] == len(found.batches)
    end.write_text("80")
    start()
    assert [(row.n, row.name) for row in found.rows] == [(n, f"n{n}") for n in range(87)]
    assert len(found.batches) > batches
    assert max(len(rows) for rows in found.batches.values()) <= 15


@pytest.mark.slow
def test_a_format_is_read_in_batch_by_its_splits(spark: SparkSession) -> None:
    source = FromInputFormat(Tens, min_splits=7, schema=pa.schema([("n", pa.int64())]))
    frame = spark.read.format(register_source(spark, source, "old_format")).load()
    assert sorted(row.n for row in frame.collect()) == list(range(70))
