"""Works of the task in one process, chunk by chunk: `python -m bench.task.works WORK [WORD ...]`.

`bench.chunks` asks, with the package of one state or the other in front of the path: so nothing here uses
more of it than a user would. An operation is a row, or a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import Callable
from typing import Any

from bench import service
from bench.contenders import operator
from bench.peers.jobs import if_there
from bench.serve import Work, serve
from pillarbox import Batch, Retry, async_map

CAPACITY = 256


async def at_once(row: int) -> int:
    """A call that never waits."""
    return row


async def all_at_once(rows: list[int]) -> list[int]:
    """The same for a batch."""
    return rows


async def in_a_turn(row: int) -> int:
    """A call that waits for one turn of the event loop."""
    await asyncio.sleep(0)
    return row


KINDS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "row": (at_once, {}),
    "batch": (all_at_once, {"batch": Batch(64)}),
    "guarded": (at_once, {"timeout": 30.0, "retry": Retry()}),
    "turn": (in_a_turn, {}),
}
"""Functions that cost nothing, and the options that they are called with."""


class _OnLoop:
    """Notes the CPU time of the thread of the event loop, from the opening of a resource to its end."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn
        self.used = 0

    async def __aenter__(self) -> Callable[[Any], Any]:
        self.used = -time.thread_time_ns()
        return self._fn

    async def __aexit__(self, *_: object) -> None:
        self.used += time.thread_time_ns()

    async def __call__(self, row: Any) -> Any:
        raise AssertionError("what is called is what entering gave")


def _check(made: int, rows: int) -> None:
    if made != rows:
        raise AssertionError(f"{made} results of {rows} rows")


def _check_answers(answers: list[int], rows: int) -> None:
    if answers != [service.answer(row) for row in range(rows)]:
        raise AssertionError(f"wrong answers ({len(answers)} for {rows} rows)")


def loop(kind: str, order: str) -> Work:
    """CPU time of the loop's thread, from the start to the end of a job."""
    fn, options = KINDS[kind]

    def work(rows: int) -> int:
        resource = _OnLoop(fn)
        results = async_map(range(rows), resource, ordered=order == "ordered", capacity=CAPACITY, **options)
        _check(sum(1 for _ in results), rows)
        return resource.used

    return work


def serving(capacity: str, order: str) -> Work:
    """Time of a job of the simulated service."""
    run = operator(order == "ordered")

    def work(rows: int) -> int:
        began = time.perf_counter_ns()
        answers = run(rows, int(capacity))
        took = time.perf_counter_ns() - began
        if (answers if order == "ordered" else sorted(answers)) != [
            service.answer(row) for row in range(rows)
        ]:
            raise AssertionError(f"wrong answers ({len(answers)} for {rows} rows)")
        return took

    return work


def partition(kind: str, order: str) -> Work:
    """CPU time of this process for what a worker of Spark does with a partition, without its sockets."""
    from bench.walk import ANSWERS, function_of_partition, id_batches
    from pillarbox.spark import async_map as map_frame

    # Defined here, so that they are sent as those of a script are.
    async def answer(record: Any) -> int:
        return record.id  # type: ignore[no-any-return]

    async def answer_all(records: list[Any]) -> list[int]:
        return [record.id for record in records]

    fn, options = {"row": (answer, {}), "batch": (answer_all, {"batch": Batch(64)})}[kind]
    ordered = order == "ordered"
    function = function_of_partition(
        lambda df: map_frame(
            df,
            fn,
            schema=ANSWERS,
            keep="*",
            ordered=ordered,
            capacity=CAPACITY,
            **options,  # type: ignore[arg-type]
        )
    )

    def work(rows: int) -> int:
        batches = id_batches(rows, 10_000)
        began = time.process_time_ns()
        made = sum(batch.num_rows for batch in function(iter(batches)))
        used = time.process_time_ns() - began
        _check(made, rows)
        return used

    return work


def stages(how: str, each: str) -> Work:
    """Two functions, in a chain or one job after the other: time with the service, CPU time without."""

    async def first(row: int) -> int:
        if each == "service":
            await asyncio.sleep(service.latency(row))
        return 2 * row

    async def second(half: int) -> int:
        if each == "service":
            await asyncio.sleep(service.latency(half + 1))
        return half + 1

    def run(rows: int) -> list[int]:
        if how == "chain":
            # Whoever checks types knows of one function only, until there are chains.
            both: Any = [first, second]
            return list(if_there(lambda: async_map(range(rows), both, capacity=CAPACITY)))
        halves = list(async_map(range(rows), first, capacity=CAPACITY))
        return list(async_map(halves, second, capacity=CAPACITY))

    run(1)

    def work(rows: int) -> int:
        clock = time.perf_counter_ns if each == "service" else time.process_time_ns
        began = clock()
        answers = run(rows)
        took = clock() - began
        _check_answers(answers, rows)
        return took

    return work


def checkpoint(entries: str) -> Work:
    """Time that a checkpoint takes on the mailbox thread, of a task that holds so many calls in flight."""
    from pillarbox.task import StreamTask
    from pillarbox.task.checkpoint import CheckpointOptions
    from pillarbox.testing.test_io import CollectedOutput, PushedInput

    count = int(entries)
    loop = asyncio.new_event_loop()
    # The calls are in flight when the process ends.
    loop.set_exception_handler(lambda *_: None)
    source = PushedInput()
    try:
        holds, rows, held_by = _shipped(loop, count)
    except ImportError:
        # A state whose operator takes no snapshots.
        holds, rows, held_by = _least(count)
    task = StreamTask(source, [holds], CollectedOutput())
    source.push(*rows)
    unaligned = CheckpointOptions(aligned=False)
    ids = iter(range(1, 1 << 62))

    async def take() -> int:
        snapshot = task.trigger_checkpoint_async(next(ids), unaligned)
        began = time.perf_counter_ns()
        task.run_step()
        took = time.perf_counter_ns() - began
        (operator,) = snapshot.result(0).operators.values()
        if len(held_by(operator.state)) != count:
            raise AssertionError(f"a snapshot holds {len(held_by(operator.state))} of {count} rows")
        return took

    async def fill() -> None:
        # The calls begin, and wait for good.
        for _ in range(count + 10):
            task.run_step()
            await asyncio.sleep(0)

    loop.run_until_complete(fill())

    def work(checkpoints: int) -> int:
        return sum(loop.run_until_complete(take()) for _ in range(checkpoints))

    return work


Held = tuple[Any, list[Any], Callable[[Any], Any]]
"""An operator, elements that it takes in for good, and what of its state are the entries."""


def _shipped(loop: asyncio.AbstractEventLoop, count: int) -> Held:
    """The operator that ships. Raises ImportError where it takes no snapshots."""
    from pillarbox import Options
    from pillarbox.aio.async_wait import AsyncWaitOperator
    from pillarbox.task.protocols import RowBatch

    async def for_ever(row: int) -> None:
        await loop.create_future()

    operator = AsyncWaitOperator(
        for_ever, Options(capacity=count), loop=loop, context=contextvars.copy_context()
    )
    return operator, [RowBatch(list(range(count)), 0)], lambda state: state.entries


def _least(count: int) -> Held:
    """The least operator that has the kernel's queue, as in `tests/task/unit/test_scheduler.py`."""
    from pillarbox.kernel import OrderedQueue
    from pillarbox.task import Operator
    from pillarbox.task.checkpoint import CheckpointBarrier

    class Holds(Operator):
        def __init__(self) -> None:
            self.queue = OrderedQueue(count)

        def process(self, record: Any) -> None:
            self.queue.put(record)

        def snapshot_state(self, barrier: CheckpointBarrier) -> Any:
            return self.queue.snapshot()

        def close(self) -> None:
            self.queue.close()

    return Holds(), list(range(count)), lambda state: state


def files() -> Work:
    """Files whose code runs for a row."""
    from bench.walk import passed, walk, without_spark

    return lambda _: len(passed(walk(without_spark)))


WORKS: dict[str, Callable[..., Work]] = {
    "loop": loop,
    "serving": serving,
    "partition": partition,
    "stages": stages,
    "checkpoint": checkpoint,
    "files": files,
}


def main(words: list[str]) -> None:
    """The child's command."""
    serve(WORKS[words[0]](*words[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
