"""A real streaming query: Spark's progress of each micro-batch beside the operators', observed counts."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox.spark import Progress, async_map
from pillarbox.spark.progress import BatchProgress, ProgressListener


class Batches:
    """The events of a listener, for a thread that waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.told: list[BatchProgress] = []

    def __call__(self, batch: BatchProgress) -> None:
        with self._changed:
            self.told.append(batch)
            self._changed.notify_all()

    def wait(self, count: int) -> list[BatchProgress]:
        with self._changed:
            self._changed.wait_for(lambda: len(self.told) >= count)
            return list(self.told)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files of 10, 20 and 30 rows: three micro-batches."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        rows = (json.dumps({"id": number * 1000 + i}) for i in range((number + 1) * 10))
        (folder / f"{number}.json").write_text("\n".join(rows))
    return folder


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[list[ProgressListener]]:
    """Listeners that are taken away after the test."""
    added: list[ProgressListener] = []
    yield added
    for listener in added:
        spark.streams.removeListener(listener)


def test_each_micro_batch_is_told_with_what_the_operators_did_in_it(
    spark: SparkSession,
    files: Path,
    tmp_path: Path,
    listening: list[ProgressListener],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def call(row: Any) -> int:
        if row.id % 10 == 3:
            raise ValueError
        return int(row.id)

    batches = Batches()
    with Progress(file=io.StringIO()) as progress, caplog.at_level(logging.INFO, logger="pillarbox"):
        listener = ProgressListener(progress, on_batch=batches)
        spark.streams.addListener(listener)
        listening.append(listener)
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(files))
        out = async_map(stream, call, schema="n long", errors="null", progress=progress)
        failed = out.withColumn("_error", F.when(F.col("n").isNull(), F.lit("failed")))
        query = (
            failed.observe("counts", F.count("_error").alias("errors"))
            .writeStream.format("parquet")
            .queryName("told")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(3600)
        assert query.exception() is None
        told = [batch for batch in batches.wait(3) if batch.spark.numInputRows]
    assert {str(batch.spark.id) for batch in told} == {query.id}
    assert [batch.spark.batchId for batch in told] == [0, 1, 2]
    # Which file comes first is Spark's choice.
    assert sorted(batch.spark.numInputRows for batch in told) == [10, 20, 30]
    for batch in told:
        rows = batch.spark.numInputRows
        assert batch.totals.results == batch.totals.calls == rows
        assert batch.totals.errors == batch.spark.observedMetrics["counts"].errors == rows // 10
        assert dict(batch.totals.errors_by_type) == {"ValueError": rows // 10}
        assert batch.totals.latency.measurements == rows
    assert progress.totals.results == 60
    lines = [record.message for record in caplog.records if "micro-batch" in record.message]
    assert [line.split(":")[0] for line in lines] == [f"told, micro-batch {i}" for i in range(3)]
    assert all("calls, 0 retries" in line for line in lines)


def event(**changes: Any) -> Any:
    said = {"id": "q", "name": None, "batchId": 3, "numInputRows": 5, "durationMs": {}}
    return SimpleNamespace(progress=SimpleNamespace(**{**said, **changes}))


def test_what_on_batch_raises_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    def fail(batch: BatchProgress) -> None:
        raise ZeroDivisionError

    listener = ProgressListener(Progress(), on_batch=fail, log=False)
    listener.onQueryProgress(event())
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_without_a_log_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    batches = Batches()
    with caplog.at_level(logging.INFO, logger="pillarbox"):
        listener = ProgressListener(Progress(), on_batch=batches, log=False)
        listener.onQueryProgress(event(durationMs={"triggerExecution": 1500}))
    assert caplog.records == []
    (batch,) = batches.told
    assert str(batch) == "q, micro-batch 3: 5 rows in 1.5 s, 0 calls, 0 retries, 0 errors"


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="progress=7"):
        ProgressListener(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_batch=7"):
        ProgressListener(Progress(), on_batch=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="log='yes'"):
        ProgressListener(Progress(), log="yes")  # type: ignore[arg-type]
