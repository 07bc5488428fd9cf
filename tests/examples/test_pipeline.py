"""The example `examples/pipeline`, as its README has it run: with a real Kafka, its driver killed midway."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.kafka_server import LONG, KafkaServer
from tests.versions import needs_source_streams
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline"
ORDERS = 3000
KILLED_AT = 1800
"""Calls after which the driver is killed: most of the second of three batches."""
LATENCY = 0.1
IN_FLIGHT = 2 * 64
"""Calls of two tasks."""
UNSAVED = 0.25
"""Seconds for which an answer may not be on disk yet, and some for the kill."""


def script(name: str, *words: str) -> list[str]:
    return [sys.executable, str(EXAMPLE / name), *words]


@contextlib.contextmanager
def service() -> Iterator[str]:
    with subprocess.Popen(
        script("service.py", "--port", "0", "--latency", str(LATENCY)), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def calls(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/calls", timeout=LONG) as answer:
        found: dict[str, int] = json.load(answer)
        return found


REPEATED_S = {"stream": UNSAVED, "batch": UNSAVED, "task": UNSAVED + 1.5}
"""Seconds whose answers may be asked for again: with a ledger, and with a checkpoint now and then."""


# Two starts of Spark: half a minute, or several on a machine that is busy.
@pytest.mark.contract(
    "A job from Kafka through a service to Parquet that is killed in the middle and started again writes "
    "every order once: as a stream, as a batch and as a task, from one source."
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [pytest.param("stream", marks=needs_source_streams), "batch", "task"])
def test_a_job_that_is_killed_and_started_again_writes_every_order_once(how: str, tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    server = KafkaServer(tmp_path / "kafka")
    out = tmp_path / "out"
    try:
        subprocess.run(
            script("orders.py", "--kafka", server.bootstrap, "--count", str(ORDERS)), check=True, timeout=LONG
        )
        with service() as url:
            words = ["--kafka", server.bootstrap, "--service", url, "--out", str(out), "--rows", "1000"]
            words += ["--how", how]
            # In a group of its own, so that its virtual machine is killed with it. Its workers find out.
            with (tmp_path / "first.txt").open("w") as said:
                killed = subprocess.Popen(
                    script("job.py", *words), start_new_session=True, stderr=said, cwd=tmp_path
                )
            try:

                def is_far_enough() -> bool:
                    assert killed.poll() is None, (tmp_path / "first.txt").read_text()[-5000:]
                    return calls(url)["answered"] >= KILLED_AT

                wait_until(is_far_enough)
            finally:
                os.killpg(killed.pid, signal.SIGKILL)
                killed.wait(LONG)
            before = calls(url)
            assert before["orders"] < ORDERS
            again = subprocess.run(
                script("job.py", *words), capture_output=True, text=True, timeout=LONG, cwd=tmp_path
            )
            assert again.returncode == 0, again.stderr[-5000:]
            after = calls(url)
    finally:
        server.close()
    pence = sum(350 + 95 * (1 + order % 5) for order in range(ORDERS))
    assert again.stdout.splitlines()[-1] == f"{ORDERS} orders, {pence} pence"
    assert after["orders"] == ORDERS
    # Without ledger and checkpoints it would be all that was answered before.
    assert after["answered"] - ORDERS <= IN_FLIGHT + IN_FLIGHT * REPEATED_S[how] / LATENCY
    assert written(out) == sorted(range(ORDERS))


def written(out: Path) -> list[int]:
    """The orders in the files that count."""
    import pyarrow.parquet as pq

    metadata = out / "orders" / "_spark_metadata"
    files = [str(file) for file in (out / "orders").glob("*.parquet")]
    if metadata.exists():
        files = [
            json.loads(line)["path"].removeprefix("file://")
            for entry in metadata.iterdir()
            if not entry.name.startswith(".") and entry.suffix != ".crc"
            for line in entry.read_text().splitlines()[1:]
        ]
    return sorted(
        order for file in {*files} for order in pq.read_table(file, columns=["order"])["order"].to_pylist()
    )
