"""The rows that a task reads from a source, at the border to Spark. Without a session."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from pillarbox.spark.data_source import BatchReader, Read
from tests.spark.unit.source_logs import HoleSource


def rows_of(source: Any) -> list[Any]:
    reader = BatchReader(dataclasses.replace(Read.of(source, {}), schema=pa.schema(source.schema)))
    return [row for partition in reader.partitions() for row in reader.read(partition)]


@pytest.mark.contract(
    "A task ends in words at a null that the schema of its source does not have, in records and in batches.",
    convicts=["nulls_of_sources_pass", "nulls_of_records_pass"],
)
@pytest.mark.parametrize("form", ["records", "batch"])
def test_a_null_that_the_schema_does_not_have_ends_its_task(form: str) -> None:
    assert len(rows_of(HoleSource(((1,), (2,)), b"a", form))) > 0
    with pytest.raises(ValueError, match="an element of v is null, but the schema says NOT NULL"):
        rows_of(HoleSource(((1,), (2, None)), b"a", form))
