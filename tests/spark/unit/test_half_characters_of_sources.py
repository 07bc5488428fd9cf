"""Half a character in the error of a source: Spark's workers write it, and hang where they cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pillarbox.sources import SimpleSource
from pillarbox.sources.split import OffsetSplit
from pillarbox.spark import register_source

CUT = "not JSON: cut \ud83d"


@dataclass(frozen=True)
class BadSource(SimpleSource[OffsetSplit]):
    """A source that fails when it lists its splits, or when it reads one."""

    where: str = "read"
    schema = (("n", "int64"),)

    def list_splits(self) -> list[OffsetSplit]:
        if self.where == "list":
            raise ValueError(CUT)
        return [OffsetSplit("a", 0, 1)]

    def read(self, split: OffsetSplit) -> Iterator[Any]:
        raise ValueError(CUT)
        yield


@pytest.mark.contract
@pytest.mark.parametrize("where", ["list", "read"])
def test_a_source_whose_error_has_half_a_character_ends_its_job_with_its_words(
    spark: SparkSession, where: str
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    name = register_source(spark, BadSource(where), f"bad_{where}")
    with pytest.raises(Exception, match="not JSON: cut"):
        spark.read.format(name).load().collect()
