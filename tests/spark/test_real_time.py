"""Real-time Mode: Spark refuses Python, as docs/spark.md says; without its check `async_map` runs there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.real_time import settings_of
from tests.servers import fixtures
from tests.servers.kafka_server import KafkaServer
from tests.servers.maven import SPARK_KAFKA
from tests.spark.conftest import ScriptRunner
from tests.versions import needs_pyspark

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_pyspark(4, 3, "low latencies"),
]

kafka = fixtures.kafka
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
SCRIPT = """
import sys
from pillarbox import Options
from pillarbox.spark import async_map

server, folder, real, topic = sys.argv[1:]
kafka = {"kafka.bootstrap.servers": server}
rows = spark.readStream.format("kafka").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
rows = rows.selectExpr("cast(value as string) as value")

async def shout(row):
    return {"value": row.value + "!"}

def run(results):
    writer = results.writeStream.format("kafka").options(**kafka, topic=topic + "-out").outputMode("update")
    query = writer.option("checkpointLocation", folder).trigger(realTime="5 seconds").start()
    try:
        query.awaitTermination(30 if real == "true" else None)
    except Exception as error:
        print(str(error).splitlines()[0])
    query.stop()

run(async_map(rows, shout, schema="value string", keep=[], options=Options(latency="low")))
"""


def settings(is_checked: bool) -> dict[str, str]:
    SPARK_KAFKA.folder_or_skip()
    return settings_of(is_low=True, is_checked=is_checked)


def test_spark_refuses_functions_of_python_in_real_time_mode_as_the_page_says(
    kafka: KafkaServer, run_script: ScriptRunner, tmp_path: Path
) -> None:
    kafka.create("refused")
    kafka.create("refused-out")
    (said,) = run_script(
        SCRIPT, kafka.bootstrap, str(tmp_path), "false", "refused", settings=settings(True), alone=True
    )
    quoted = " ".join(PAGE.partition("    [STREAMING_REAL_TIME_MODE")[2].partition("\n\n")[0].split())
    assert quoted in said, said


def test_without_the_check_results_of_async_map_leave_in_real_time_mode(
    kafka: KafkaServer, run_script: ScriptRunner, tmp_path: Path
) -> None:
    kafka.create("taken")
    kafka.create("taken-out")
    kafka.produce("taken", "a", "b", "c")
    said = run_script(
        SCRIPT, kafka.bootstrap, str(tmp_path), "true", "taken", settings=settings(False), alone=True
    )
    assert said == []
    assert [value for _, value in kafka.consume("taken-out", 3)] == [b"a!", b"b!", b"c!"]
