"""Streams of sources with a PySpark that is too old for them: refused, and the error says which is needed."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pillarbox.spark import compat, register_source
from pillarbox.spark.data_source import PillarboxSource
from tests.spark.unit import source_logs
from tests.spark.unit.source_logs import LogSource, append
from tests.versions import pyspark_version

cloudpickle.register_pickle_by_value(source_logs)

NEEDED = "as a stream needs PySpark 4.2 or later, and this is"


def test_the_error_names_the_pyspark_that_is_there_and_the_one_that_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "VERSION", (4, 1))
    with pytest.raises(ValueError, match=NEEDED) as error:
        PillarboxSource({"source": "generator"}).streamReader(StructType())
    assert f"this is {pyspark.__version__}" in str(error.value)
    assert "format 'pillarbox'" in str(error.value)


@pytest.mark.skipif(pyspark_version() >= (4, 2), reason="this PySpark can read streams of sources")
def test_a_query_of_an_old_spark_fails_with_it(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(3))
    name = register_source(spark, LogSource(str(tmp_path / "log")), "too_early")
    writer = spark.readStream.format(name).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=NEEDED):
        query.awaitTermination(3600)
