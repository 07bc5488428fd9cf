"""aiostream: `stream.map` with a limit of tasks, in order or not. Run in its own environment."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from aiostream import stream

from bench.peers.jobs import Job, call_for
from bench.peers.serve import Collect, serve


def run(job: Job) -> Collect:
    """Map a range; the answers are collected in a list."""
    call = call_for(job)

    async def one(row: int, *_: int) -> tuple[int, int]:
        return row, await call(row)

    async def main() -> list[tuple[int, int]]:
        rows = stream.iterate(range(job.rows))
        mapped = stream.map(rows, one, ordered=job.ordered, task_limit=job.capacity)
        async with mapped.stream() as streamer:
            return [pair async for pair in streamer]

    pairs = asyncio.run(main())
    return lambda: ([row for row, _ in pairs], [answer for _, answer in pairs])


if __name__ == "__main__":
    serve(run, f"aiostream {version('aiostream')}")
