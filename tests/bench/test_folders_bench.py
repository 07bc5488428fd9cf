"""The measurement of a day of a hundred: right rows in each way, and the opened files counted right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyspark.sql import SparkSession

from bench.sources import folders
from bench.sources.measure import Effort, Way

TINY = Effort(rounds=1, size=0.001, warm_up=False)


@pytest.fixture(autouse=True)
def _times_of_access(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_text("x")
    os.utime(probe, ns=(folders.LONG_AGO, probe.stat().st_mtime_ns))
    probe.read_text()
    if probe.stat().st_atime_ns == folders.LONG_AGO:
        pytest.skip("the file system keeps no times of access")


@pytest.mark.slow
def test_a_filter_opens_all_files_and_a_pattern_those_of_its_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    measured = folders.measure(spark, tmp_path / "days", TINY, lambda text: None, days=5)
    figures = {each.name: each for each in measured}
    assert figures["files, a filter, files opened"].values == [5]
    assert figures["files, a pattern, files opened"].values == [1]
    assert figures["Spark's Parquet, a filter, files opened"].values[0] < 5
    assert figures["files, a pattern"].against == "files, a filter"


def test_files_that_are_opened_are_counted(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path in paths:
        path.write_text("x")

    def read_two() -> None:
        for path in paths[1:]:
            path.read_text()

    assert folders.opened(Way("two", read_two), paths) == 2
    with pytest.raises(AssertionError, match="times of access"):
        folders.opened(Way("none", lambda: None), paths)
