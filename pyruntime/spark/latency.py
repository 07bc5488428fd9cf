"""Prompt delivery: what Spark holds rows back with between a task and its Python worker, and how to end that.

The JVM collects rows for an Arrow batch; the worker collects output, and so does the JVM; and while the JVM
waits for its own input it reads no output. Prompt delivery needs a setting for each. What no setting ends:
the JVM looks one row ahead, so a row reaches a worker once the next is there, or the end. For the driver.
"""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from pillarbox.aio.options import Latency

PIPELINED = "spark.python.udf.pipelined.enabled"
BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"

LOW_LATENCY = {PIPELINED: "true", BUFFER: "64", RECORDS: "1"}
"""The configuration of a session for `latency="low"`: `SparkSession.builder.config(map=LOW_LATENCY)`.

The last two may also be set while the session runs, before the query is started. With more records in a
batch each waits for the others. All three hold for every Python function of the session and cost throughput.
"""

_MAX_DEFAULTS = {BUFFER: ("65536", 4096), RECORDS: ("10000", 1000)}
"""The default of a setting, and the most that is still prompt; one row's output is more than 64 bytes."""


def knows_pipelined() -> bool:
    """True if this PySpark has workers that read, call and write at the same time."""
    return "flush_per_batch" in inspect.signature(ArrowStreamSerializer.__init__).parameters


def check_latency(latency: Latency, session: Any) -> bool:
    """True if latency is to be low. Raises ValueError if the session is not set up for it.

    session: a Spark session, or None where there is none yet.
    """
    if latency == "normal":
        return False
    if not knows_pipelined():
        raise ValueError(f"latency='low': needs a PySpark that knows {PIPELINED}, which 4.3 does")
    if session is None:
        raise ValueError("latency='low': there is no active Spark session whose settings could be checked")
    wrong = []
    if session.conf.get(PIPELINED, "false").lower() != "true":
        wrong.append(f"{PIPELINED}=true (read when Spark starts)")
    for name, (default, most) in _MAX_DEFAULTS.items():
        if not 0 < int(session.conf.get(name, default)) <= most:
            wrong.append(f"{name} of at most {most}")
    if wrong:
        raise ValueError(
            f"latency='low': the session needs {', '.join(wrong)}; build it with "
            "SparkSession.builder.config(map=pillarbox.spark.latency.LOW_LATENCY)"
        )
    return True
