"""Declarative Pipelines: the file on docs/spark.md runs, and what Spark forbids there is said in words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pillarbox.testing import serve
from tests.versions import needs_pyspark

pytest.importorskip("grpc_status", reason="the package grpcio-status is not installed")
pytest.importorskip("yaml", reason="the package PyYAML is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.slow, needs_pyspark(4, 3, "pipelines")]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
FILE = "\n".join(re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SPECIFICATION = """name: reviews
storage: {folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
  spark.sql.streaming.stateStore.providerClass: {provider}
"""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
REFUSED = """
@dp.materialized_view
def refused():
    found = []
    for call in (
        lambda df: async_map(df, double, schema="double long"),
        lambda df: embed_text(df, "text", into="vector", client=model),
    ):
        try:
            call(spark.read.table("reviews"))
        except ValueError as error:
            found.append((str(error),))
    says = [f"'{error}'" for error, in found]
    return spark.sql(f"select explode(array({', '.join(says)})) as says")
"""
TEXTS = {1: "lovely", 2: "the soup was cold"}


def run(folder: Path, word: str, url: str) -> None:
    """Run the command of PySpark with the specification in the folder."""
    program = Path(str(find_spec("pyspark").origin)).with_name("bin") / "spark-pipelines"  # type: ignore[union-attr]
    environment = {**os.environ, "SERVICE_URL": url, "REVIEWS": str(folder / "in")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [str(program), word], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


def rows_of(folder: Path, dataset: str) -> list[dict[str, Any]]:
    files = (folder / "spark-warehouse" / dataset).glob("*.parquet")
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.contract("In a Declarative Pipeline columns and DataFrames of results are computed, each once.")
def test_the_pipeline_of_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "reviews.py").write_text(FILE + REFUSED)
    (tmp_path / "spark-pipeline.yml").write_text(
        SPECIFICATION.format(folder=tmp_path.as_uri(), provider=ROCKSDB)
    )
    (tmp_path / "in").mkdir()
    table = pa.table({"id": pa.array([*TEXTS], pa.int64()), "text": [*TEXTS.values()]})
    pq.write_table(table, tmp_path / "in" / "reviews.parquet")
    with serve() as service:
        run(tmp_path, "dry-run", service.url)
        assert service.statistics().requests == 0
        run(tmp_path, "run", service.url)
        # Two questions, and each text once as a column and once in the stream.
        assert service.statistics().inputs == 6
    judged = {row["id"]: row for row in rows_of(tmp_path, "judged")}
    assert {number: row["mood"] for number, row in judged.items()} == {1: "good", 2: "bad"}
    vectors = {row["id"]: row["vector"] for row in rows_of(tmp_path, "vectors")}
    assert vectors == {number: row["vector"] for number, row in judged.items()}
    assert {row["id"]: row["double"] for row in rows_of(tmp_path, "doubles")} == {1: 2, 2: 4}
    assert {row["id"]: row["double"] for row in rows_of(tmp_path, "later")} == {1: 2, 2: 4}
    assert len(rows_of(tmp_path, "numbers")) == 5
    says = [row["says"] for row in rows_of(tmp_path, "refused")]
    assert len(says) == 2 and all("does not tell the columns of a DataFrame" in each for each in says)
