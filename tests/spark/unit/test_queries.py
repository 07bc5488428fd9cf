"""The advice for a query that did not begin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pillarbox.spark.stream.clock import ADVICE
from tests.spark.state_store import PROVIDER, ROCKSDB
from tests.versions import needs_async_stream

SLOW_PYTHON = """#!/bin/sh
case "$*" in
  *streaming*) if [ ! -e "$0.was-asked" ]; then touch "$0.was-asked"; exit; fi ;;
esac
exec {python} "$@"
"""
SCRIPT = """
import logging
from pathlib import Path
from pillarbox.spark import async_stream
from tests.spark import queries
folder, python = Path(sys.argv[1]), sys.argv[2]
spark.conf.set(sys.argv[3], sys.argv[4])
spark.sparkContext.pythonExec = python

class Printing(logging.Handler):
    def emit(self, record):
        print("query ID", record.getMessage().split(" ", 2)[2], flush=True)

logging.getLogger("pillarbox").addHandler(Printing())

async def same(row):
    return row.id

spark.range(10).write.parquet(str(folder / "in"))
stream = async_stream(spark.readStream.schema("id long").parquet(str(folder / "in")), same, schema="id long")
writer = stream.writeStream.format("parquet").option("path", str(folder / "out"))
writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
query = writer.start()
try:
    query.awaitTermination()
except Exception as error:
    print(queries.NOT_CONNECTED.search(str(error)) is not None)
print(queries.NOT_CONNECTED.search(str(query.exception())) is not None)
Path(python + ".was-asked").unlink()
queries.start(writer).awaitTermination()
print(Path(python + ".was-asked").exists())
print(sorted(row.id for row in spark.read.parquet(str(folder / "out")).collect()))
"""


@pytest.mark.slow
@needs_async_stream
def test_spark_says_so_of_a_process_that_does_not_connect_the_log_what_to_do_and_the_query_starts_again(
    run_script: Callable[..., list[str]], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON.format(python=sys.executable))
    python.chmod(0o700)
    lines = run_script(SCRIPT, str(tmp_path), str(python), PROVIDER, ROCKSDB, timeout=380, alone=True)
    told = [line for line in lines if line.startswith("query ID")]
    # Once for each of the two failures.
    assert told == ["query ID " + ADVICE.partition("%s ")[2]] * 2
    assert [line for line in lines if line not in told] == ["True", "True", "True", str([*range(10)])]
