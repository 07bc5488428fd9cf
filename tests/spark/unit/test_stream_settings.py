"""The settings of a session for `async_stream`: made by one call, and warned of where they cost something."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pillarbox.spark import stream_settings
from pillarbox.spark.stream.settings import PARTITIONS, check_settings
from tests.spark.state_store import PROVIDER, ROCKSDB


@pytest.fixture(autouse=True)
def _kept(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in (PARTITIONS, PROVIDER)}
    yield
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.mark.contract(
    "One call sets what a stream needs in a session, with no partition that has nothing to do."
)
def test_one_call_sets_what_a_stream_needs(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set(PARTITIONS, "200")
    with pytest.raises(ValueError, match=r"call pillarbox\.spark\.stream_settings\(spark\) first"):
        check_settings(spark)
    stream_settings(spark)
    # A session of `local[2]`.
    assert (spark.conf.get(PROVIDER), spark.conf.get(PARTITIONS)) == (ROCKSDB, "2")
    with caplog.at_level(logging.WARNING, logger="pillarbox"):
        check_settings(spark)
    assert not caplog.records
    stream_settings(spark, partitions=16)
    assert spark.conf.get(PARTITIONS) == "16"


def test_partitions_that_have_nothing_to_do_are_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set(PARTITIONS, "200")
    with caplog.at_level(logging.WARNING, logger="pillarbox"):
        check_settings(spark)
    assert f"{PARTITIONS}=200, and its rows are dealt out to 16 buckets" in caplog.text


@pytest.mark.parametrize("partitions", [0, 17])
def test_a_number_of_partitions_that_cannot_be_is_refused(spark: SparkSession, partitions: int) -> None:
    with pytest.raises(ValueError, match=f"partitions={partitions}: must be from 1 to 16"):
        stream_settings(spark, partitions)
