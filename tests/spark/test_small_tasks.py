"""The connections of tasks to Spark hold no small write back, whichever door the task comes through."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.versions import pyspark_version

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone shows the connections")

SCRIPT = """
import os, socket, stat
from dataclasses import dataclass
import pyarrow as pa
from pillarbox.sources import SimpleSource
from pillarbox.sources.split import OffsetSplit
from pillarbox.spark import async_map, async_udf, register_source


def held_back():
    "The TCP connections of this process, and those of them that hold small writes back."
    connections = held = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    each.getpeername()
                    connections += 1
                    held += not each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        except OSError:
            continue
    return f"{min(connections, 1)} {held}"


async def of_row(row):
    return {"found": held_back()}


@async_udf("string")
async def of_value(value):
    return held_back()


@dataclass(frozen=True)
class Looked(SimpleSource):
    schema = (("found", "string"),)

    def list_splits(self):
        return [OffsetSplit("one", 0, 1)]

    def read(self, split):
        yield pa.RecordBatch.from_pydict({"found": [held_back()]}), 1


rows = spark.range(3)
print(*{row.found for row in async_map(rows, of_row, schema="found string").collect()})
print(*{row.found for row in rows.select(of_value("id").alias("found")).collect()})
if sys.argv[1:] == ["sources"]:
    name = register_source(spark, Looked())
    print(*{row.found for row in spark.read.format(name).load().collect()})
"""


@pytest.mark.contract(
    "A small task waits for no delayed acknowledgement: its connection to Spark on loopback sends at once."
)
def test_a_small_task_waits_for_no_delayed_acknowledgement(run_script: Callable[..., list[str]]) -> None:
    sources = ["sources"] if pyspark_version() >= (4, 0) else []
    assert run_script(SCRIPT, *sources) == ["1 0"] * (2 + len(sources))
