"""A stream of a source whose driver is killed in a micro-batch: every row is once in the output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.unit.source_logs import GATED, append
from tests.versions import needs_source_streams

RunScript = Callable[..., list[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(640), needs_source_streams]

DRIVER = """
import pathlib, signal, time
sys.path.insert(0, sys.argv[2])
from pyspark import cloudpickle
from pillarbox.spark import register_source
from tests.spark import queries
from tests.spark.unit import source_logs
from tests.spark.unit.source_logs import LogSource
cloudpickle.register_pickle_by_value(source_logs)
tmp, phase, partitions, rows = pathlib.Path(sys.argv[1]), sys.argv[3], sys.argv[4], sys.argv[5]

register_source(spark, LogSource(str(tmp / "log"), gate=str(tmp)), "logs")
stream = spark.readStream.format("logs").option("partitions", partitions).option("max_rows", rows).load()
writer = stream.writeStream.format("parquet").option("path", str(tmp / "out"))
writer = writer.option("checkpointLocation", str(tmp / "checkpoint"))
if phase == "killed":
    query = queries.start(writer)
    while not (tmp / "reached").exists():
        assert query.isActive, query.exception()
        time.sleep(0.02)
    os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os._exit(0)
(tmp / "open").touch()
query = queries.start(writer.trigger(availableNow=True))
print(query.awaitTermination(3600), query.exception())
print(*sorted((row.file, row.n) for row in spark.read.parquet(str(tmp / "out")).collect()), sep=";")
"""


def offset(tmp_path: Path, number: int) -> Any:
    return json.loads((tmp_path / "checkpoint/offsets" / str(number)).read_text().splitlines()[-1])


@pytest.mark.contract
def test_after_a_killed_driver_another_parallelism_reads_every_row_once(
    run_script: RunScript, tmp_path: Path
) -> None:
    files = {file: [at * 1000 + n for n in range(50)] for at, file in enumerate("abcd")}
    # The fifth micro-batch comes to it.
    files["c"][30] = GATED
    for file, numbers in files.items():
        append(tmp_path / "log", file, numbers)
    root = str(Path(__file__).parents[2])
    assert run_script(DRIVER, str(tmp_path), root, "killed", "3", "28", alone=True) == []
    offsets, commits = (
        sorted(int(path.name) for path in (tmp_path / "checkpoint" / each).glob("[0-9]*"))
        for each in ("offsets", "commits")
    )
    # A micro-batch was planned and had begun, and was not done.
    assert len(commits) > 1
    assert offsets == [*commits, len(commits)]
    planned = offset(tmp_path, offsets[-1])
    append(tmp_path / "log", "e", [5000, 5001])
    files["e"] = [5000, 5001]
    lines = run_script(
        DRIVER, str(tmp_path), root, "ends", "2", "17", master="local[4]", timeout=300, alone=True
    )
    assert lines[0] == "True None"
    assert lines[1] == ";".join(
        str(pair) for pair in sorted((file, n) for file, numbers in files.items() for n in numbers)
    )
    assert offset(tmp_path, offsets[-1]) == planned
