"""Count the ways to the mailbox thread: mail, calls of the loop, timers; `python -m bench.mails [--rows N]`.

Runs jobs on an asyncio loop that counts the calls of other threads and the timers that fire, and counts the
mail of the task's mailbox: answers of coroutines, answers of threads many and few at a time, calls that each
meet their time-out, a job that another thread cancels half way, and a checkpoint that one asks for.

A second table compares calls of 2 ms in threads with those of a pool of threads, and of threads that take the
rows themselves: CPU, and how often a thread gave its core away (`ru_nvcsw`), a call.
"""

# Samples and measurements are timers as well: they come by time, whatever the rows do, and are left out.

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from bench.table import Column, print_table
from pillarbox import async_map
from pillarbox.aio.options import Errors, Options
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import ResultStream

BY_TIME = {"_sample", "_measure"}
"""Timers that fire by time, whatever the rows do."""


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts calls of other threads and timers that fired, by their functions."""

    def __init__(self) -> None:
        super().__init__()
        self.crossings: Counter[str] = Counter()
        self.timers: Counter[str] = Counter()

    def call_soon_threadsafe(self, callback: Any, *args: Any, **more: Any) -> asyncio.Handle:
        """Count the call, if it is of another thread."""
        if threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            self.crossings[name_of(callback)] += 1
        return super().call_soon_threadsafe(callback, *args, **more)

    def call_at(self, when: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
        """Count the timer when it fires."""

        def fired() -> None:
            self.timers[name_of(callback, args)] += 1
            callback(*args)

        return super().call_at(when, fired, **more)


def name_of(callback: Any, args: tuple[Any, ...] = ()) -> str:
    """The name of a function; of one that guards another, the other's."""
    while isinstance(callback, partial):
        args, callback = (*callback.args, *args), callback.func
    name: str = getattr(callback, "__name__", type(callback).__name__)
    return name_of(args[0], args[1:]) if name == "guarded" and args else name


Then = Callable[[ResultStream], None]
"""Is called by another thread once half of the results were taken."""


def count(
    fn: Callable[[int], Any], rows: int, then: Then | None = None, **options: Any
) -> tuple[int, CountingLoop]:
    """The mails of a job's mailbox, and its loop."""
    loop = CountingLoop()

    async def run() -> int:
        stream = ResultStream([Stage(fn, Options(**options))], range(rows), loop_thread=None, chunk_rows=64)
        taken, other = 0, threading.Thread(target=partial(then or (lambda _: None), stream))
        while (chunk := await stream.take_async()) is not None:
            taken += len(chunk)
            if other.ident is None and taken >= rows // 2:
                other.start()
                while then is not None and other.is_alive():
                    await asyncio.sleep(0)
        run_of_task = stream._run
        assert run_of_task is not None
        await stream.aclose()
        return run_of_task.task.processor.mailbox.statistics().put

    try:
        return loop.run_until_complete(run()), loop
    finally:
        loop.close()


async def coroutine(row: int) -> int:
    """A call on the loop."""
    await asyncio.sleep(0)
    return row


async def hangs(row: int) -> int:
    """A call that does not end by itself."""
    await asyncio.Event().wait()
    return row


def at_once(row: int) -> int:
    """A call in a thread that ends at once."""
    return row


def after_a_while(row: int) -> int:
    """A call in a thread that takes 2 ms."""
    time.sleep(0.002)
    return row


def cancel(stream: ResultStream) -> None:
    """End the job, on another thread."""
    stream.stop_soon()


def take_checkpoint(stream: ResultStream) -> None:
    """Ask for a snapshot, on another thread."""
    with suppress(Exception):
        stream.checkpoint(1).result(10)


THREADS = 32
ROUNDS = 3


def by_operator(rows: int) -> None:
    """Calls of 2 ms, in threads of the operator."""
    for _ in async_map(range(rows), after_a_while, capacity=THREADS):
        pass


def by_pool(rows: int) -> None:
    """The same calls in a pool of threads, whose results another thread takes in order."""
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(after_a_while, range(rows)):
            pass


def by_threads(rows: int) -> None:
    """The same calls in threads that take rows themselves and give no result to another thread."""
    left = iter(range(rows))
    threads = [threading.Thread(target=lambda: [*map(after_a_while, left)]) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def costs(job: Callable[[int], None], rows: int) -> tuple[float, float, float]:
    """Microseconds of CPU of this process a call, those in the system, and voluntary switches a call."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    job(rows)
    after = resource.getrusage(resource.RUSAGE_SELF)
    system = after.ru_stime - before.ru_stime
    cpu = system + after.ru_utime - before.ru_utime
    return cpu / rows * 1e6, system / rows * 1e6, (after.ru_nvcsw - before.ru_nvcsw) / rows


def compare_threads(rows: int) -> None:
    """Print what calls of 2 ms in threads cost, in interleaved rounds."""
    jobs = {"async_map": by_operator, "ThreadPoolExecutor.map": by_pool, "threads alone": by_threads}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            found[name].append(costs(job, rows))
    columns = [Column(f"calls of 2 ms, {THREADS} threads", right=False), Column("CPU us")]
    columns += [Column("in the system"), Column("switches")]
    print_table(
        columns,
        [
            [name, *(f"{statistics.median(values):.1f}" for values in zip(*each, strict=True))]
            for name, each in found.items()
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="how answers, time-outs and cancellations reach the mailbox thread"
    )
    logging.disable()
    parser.add_argument("--rows", type=int, default=2000)
    rows = parser.parse_args().rows
    jobs: dict[str, tuple[Callable[[int], Any], Then | None, dict[str, Any]]] = {
        "answers of coroutines": (coroutine, None, {"capacity": 64}),
        "answers of threads, at once": (at_once, None, {"capacity": 64}),
        "answers of threads, after 2 ms": (after_a_while, None, {"capacity": 8}),
        "time-outs": (hangs, None, {"capacity": 64, "timeout": 0.02, "errors": Errors("null", floor=None)}),
        "coroutines, cancelled by a thread": (coroutine, cancel, {"capacity": 64}),
        "coroutines, a checkpoint": (coroutine, take_checkpoint, {"capacity": 64}),
    }
    table = []
    for name, (fn, then, options) in jobs.items():
        mails, loop = count(fn, rows, then, **options)
        timers = Counter({each: fired for each, fired in loop.timers.items() if each not in BY_TIME})
        table.append([name, f"{mails:,}", shown(loop.crossings), shown(timers)])
    columns = [Column(f"{rows:,} rows", right=False), Column("mails")]
    columns += [
        Column("calls of the loop by other threads", right=False),
        Column("timers that fired", right=False),
    ]
    print_table(columns, table)
    print()
    compare_threads(5 * rows)


def shown(counts: Counter[str]) -> str:
    """Counts by name, the largest first."""
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common()) or "none"


if __name__ == "__main__":
    main()
