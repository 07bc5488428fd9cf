"""PyFlink: `AsyncDataStream` of the DataStream API, one task slot, no time-out. Run in its own environment.

`tuned` lets a bundle hold 100,000 rows or 60 s: it waits for all calls at the end of each. A time-out of its
own would cost a thread a row. The answers go to a file.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyflink.common import Configuration, Encoder, Time, Types, WatermarkStrategy
from pyflink.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.version import __version__

from bench.peers.jobs import Job, call_for
from bench.peers.serve import Answers, Collect, serve

BUNDLES = {
    "python.fn-execution.bundle.size": "100000",
    "python.fn-execution.bundle.time": "60000",
}


def run(job: Job) -> Collect:
    """The job from a sequence of numbers to a file of `row,answer`."""
    configuration = Configuration()
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    if job.contender == "tuned":
        for key, value in BUNDLES.items():
            configuration.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(1)
    source = NumberSequenceSource(0, job.rows - 1)
    rows = environment.from_source(source, WatermarkStrategy.no_watermarks(), "rows", Types.LONG())
    call = call_for(job)

    class Ask(AsyncFunction):  # type: ignore[misc]
        async def async_invoke(self, value: int) -> list[str]:
            return [f"{value},{await call(value)}"]

    wait = AsyncDataStream.ordered_wait if job.ordered else AsyncDataStream.unordered_wait
    answers = wait(rows, Ask(), Time.milliseconds(0), job.capacity, Types.STRING())
    folder = Path(job.marks + ".answers")
    answers.sink_to(FileSink.for_row_format(str(folder), Encoder.simple_string_encoder()).build())
    environment.execute(f"{job.contender} {job.workload}")
    return lambda: _read(folder)


def _read(folder: Path) -> Answers:
    lines = [
        line.split(",") for part in sorted(folder.rglob("*part-*")) for line in part.read_text().splitlines()
    ]
    shutil.rmtree(folder)
    return [int(row) for row, _ in lines], [int(answer) for _, answer in lines]


if __name__ == "__main__":
    serve(run, f"PyFlink {__version__}")
