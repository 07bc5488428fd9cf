"""The place and the kind of the event loop: `python -m bench.loops`.

Four ways to run one operator, interleaved: the loop in a thread of its own, which the operator has, or on the
thread that takes the results, which then runs it only while it waits for some; asyncio's loop, or uvloop's.
The work: a function that returns at once; the simulated service; and both with a consumer that computes for a
while between two chunks, as Spark's does. Rows a second and CPU time a row of this process, medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from bench import service
from bench.table import Column, print_table
from pillarbox.aio.calls import Chunk
from pillarbox.aio.options import Options
from pillarbox.aio.row_inputs import CollectionInput
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import ResultStream, TaskRun
from pillarbox.loop_thread import LoopThread
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch

CHUNK = 2048
CAPACITY = 256
Function = Callable[[int], Awaitable[int]]
Consume = Callable[[Chunk], None]
NewLoop = Callable[[], asyncio.AbstractEventLoop]


async def at_once(row: int) -> int:
    """A service that takes no time."""
    return service.answer(row)


def busy_consumer(chunk: Chunk) -> None:
    """Work on the consuming thread, 5 us a row, that holds the GIL."""
    end = time.perf_counter() + 5e-6 * len(chunk)
    while time.perf_counter() < end:
        pass


def idle_consumer(chunk: Chunk) -> None:
    """A consumer that only takes."""


class _TaskThreadOutput:
    """Keeps results for the thread that runs the loop, until there is a chunk of them."""

    is_available = True
    has_ended = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.chunk: Chunk = []
        self.ended = False
        self.error: BaseException | None = None

    def collect(self, batch: RowBatch) -> None:
        self.chunk.extend(batch.rows)
        if len(self.chunk) >= CHUNK:
            self._loop.stop()

    def call_when_room(self, wake: Callable[[], None]) -> None:
        raise AssertionError("there is always room")

    def emit_watermark(self, timestamp: float) -> None:
        self.has_ended = timestamp == MAX_WATERMARK

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        raise AssertionError("there are no checkpoints")

    def finish(self) -> None:
        self.ended = True
        self._loop.stop()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finish()


def on_task_thread(new_loop: NewLoop, fn: Function, rows: int, consume: Consume) -> int:
    """Run the operator's loop on this thread, whenever results are waited for."""
    loop = new_loop()
    sink = _TaskThreadOutput(loop)
    taken = 0

    async def start() -> None:
        run = TaskRun(
            [Stage(fn, Options(capacity=CAPACITY))],
            CollectionInput(range(rows)),
            sink,
            loop=loop,
            context=contextvars.copy_context(),
        )
        run.start()

    loop.run_until_complete(start())
    while not sink.ended:
        loop.run_forever()
        chunk, sink.chunk = sink.chunk, []
        consume(chunk)
        taken += len(chunk)
    loop.close()
    if sink.error is not None:
        raise sink.error
    return taken


def on_own_thread(new_loop: NewLoop, fn: Function, rows: int, consume: Consume) -> int:
    """Run the operator as it is built: the loop in a thread, chunks by way of a handover."""
    thread = LoopThread("bench-loop", new_loop)
    job = ResultStream(
        [Stage(fn, Options(capacity=CAPACITY))],
        range(rows),
        loop_thread=thread,
        chunk_rows=CHUNK,
        linger=0.1,
    )
    taken = 0
    while (chunk := job.take()) is not None:
        consume(chunk)
        taken += len(chunk)
    job.close()
    thread.close(5.0)
    return taken


def loops() -> dict[str, NewLoop]:
    """asyncio's loop, and uvloop's where it is installed."""
    found: dict[str, NewLoop] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        print("uvloop is not installed", file=sys.stderr)
    else:
        found["uvloop"] = uvloop.new_event_loop
    return found


WORK: dict[str, tuple[Function, Consume, int]] = {
    "at once": (at_once, idle_consumer, 100_000),
    "at once, busy consumer": (at_once, busy_consumer, 100_000),
    "service": (service.call, idle_consumer, 30_000),
    "service, busy consumer": (service.call, busy_consumer, 30_000),
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.loops", description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    ways = {
        f"{place}, {name}": (run, new_loop)
        for place, run in (("own thread", on_own_thread), ("task thread", on_task_thread))
        for name, new_loop in loops().items()
    }
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(repeat):
        for work, (fn, consume, rows) in WORK.items():
            for way, (run, new_loop) in ways.items():
                began, cpu = time.perf_counter(), time.process_time()
                taken = run(new_loop, fn, rows, consume)
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                assert taken == rows, f"{way}: {taken} of {rows} rows"
                measured.setdefault((work, way), []).append((rows / seconds, cpu / rows * 1e6))
    columns = [
        Column("work", right=False),
        Column("loop", right=False),
        Column("rows/s"),
        Column("CPU us/row"),
    ]
    print_table(
        columns,
        [
            [
                work,
                way,
                f"{statistics.median(rate for rate, _ in runs):,.0f}",
                f"{statistics.median(cpu for _, cpu in runs):.2f}",
            ]
            for (work, way), runs in measured.items()
        ],
    )


if __name__ == "__main__":
    main()
