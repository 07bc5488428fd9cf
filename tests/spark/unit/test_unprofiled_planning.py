"""The profiles that a process in which Spark plans a source does not report to a Declarative Pipeline.

tests/spark/test_pipelines.py has the real pipeline, which takes a minute.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from pyspark import accumulators
from pyspark.accumulators import AccumulatorParam, SpecialAccumulatorIds
from pyspark.sql import types as T

from pillarbox.spark.compat import DataSource
from pillarbox.spark.data_source import PillarboxSource
from pillarbox.spark.stream.clock import Clock
from tests.versions import needs_async_stream

pytestmark = needs_async_stream

OF_PROFILES = (SpecialAccumulatorIds.SQL_UDF_PROFIER, SpecialAccumulatorIds.SQL_UDF_PROFIER_V2)
OF_A_USER = 7
MADE: dict[str, str] = {"source": "generator", "rows": "1"}
ROW = T.StructType([T.StructField("id", T.LongType())])


@pytest.mark.contract(
    "A process in which Spark plans a source of Pillarbox reports no profile, which ends a pipeline.",
    convicts=["clocks_report_profiles", "made_sources_report_profiles", "planned_sources_report_profiles"],
)
@pytest.mark.parametrize(
    ("source", "plan"),
    [
        (Clock({}), lambda clock: clock.schema()),
        (Clock({}), lambda clock: clock.simpleStreamReader(ROW)),
        (None, lambda _: PillarboxSource(MADE)),
        (PillarboxSource(MADE), lambda source: source.reader(ROW)),
        (PillarboxSource(MADE), lambda source: source.streamReader(ROW)),
    ],
)
def test_planning_a_source_reports_no_profile(
    monkeypatch: pytest.MonkeyPatch, source: DataSource | None, plan: Callable[[DataSource | None], object]
) -> None:
    registry: dict[int, object] = {}
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", registry)
    # As Spark's process does before it calls the source.
    for number in (
        SpecialAccumulatorIds.SQL_UDF_PROFIER,
        SpecialAccumulatorIds.SQL_UDF_PROFIER_V2,
        OF_A_USER,
    ):
        accumulators._deserialize_accumulator(number, {}, AccumulatorParam())
    assert len(registry) == 3
    plan(source)
    assert list(registry) == [OF_A_USER]
