"""Pathway: a function on its asynchronous executors. Run in its own environment; a job a process.

The rows are a static table, the answers go to a subscriber.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pathway as pw

from bench.peers.jobs import Job, call_for
from bench.peers.serve import Collect, serve


class Rows(pw.Schema):
    """The input."""

    row: int


def run(job: Job) -> Collect:
    """A column of answers, by the executor that the contender is named for."""
    call = call_for(job)

    async def ask(row: int) -> int:
        return await call(row)

    fully = job.contender == "fully async"
    executor = (pw.udfs.fully_async_executor if fully else pw.udfs.async_executor)(capacity=job.capacity)
    function = pw.udf(ask, executor=executor, return_type=int)
    table = pw.debug.table_from_rows(Rows, [(row,) for row in range(job.rows)])
    answered = table.select(pw.this.row, answer=function(pw.this.row))
    if fully:
        answered = answered.await_futures()
    rows: list[int] = []
    answers: list[int] = []

    def take(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            rows.append(row["row"])
            answers.append(row["answer"])

    pw.io.subscribe(answered, on_change=take)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return lambda: (rows, answers)


if __name__ == "__main__":
    serve(run, f"Pathway {version('pathway')}")
