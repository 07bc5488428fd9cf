"""The tests' own session: what one test leaves in it is not there for the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def behind(session: SparkSession) -> Iterator[None]:
    """Ends after `spark` has."""
    yield
    assert session.streams.active == []


@pytest.mark.usefixtures("behind")
def test_a_query_that_a_test_leaves_has_ended_before_the_next_test(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = spark.readStream.format("rate").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.isActive
