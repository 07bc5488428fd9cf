"""Daft: an async function of a column. Run in its own environment.

`max_concurrency` is its own limit. `semaphore` is the limit that one writes oneself, since Daft's own does
not bound the calls in flight, which are counted.
"""

from __future__ import annotations

import asyncio

import daft

from bench.peers.jobs import Job, call_for
from bench.peers.serve import Collect, serve


def run(job: Job) -> Collect:
    """A column of answers beside the rows."""
    call = call_for(job)
    if job.contender == "semaphore":
        slots = None

        async def ask(row: int) -> int:
            nonlocal slots
            if slots is None:
                slots = asyncio.Semaphore(job.capacity)
            async with slots:
                return await call(row)

        function = daft.func(ask, return_dtype=daft.DataType.int64(), use_process=False)
    else:

        async def ask_directly(row: int) -> int:
            return await call(row)

        function = daft.func(
            ask_directly,
            return_dtype=daft.DataType.int64(),
            use_process=False,
            max_concurrency=job.capacity,
        )
    rows = daft.from_pydict({"id": list(range(job.rows))})
    done = rows.with_column("answer", function(rows["id"])).collect()

    def collect() -> tuple[list[int], list[int]]:
        columns = done.to_pydict()
        return columns["id"], columns["answer"]

    return collect


if __name__ == "__main__":
    serve(run, f"Daft {daft.__version__}")
