"""The wait of a checkpoint when the input never waits: at most one record's time and a millisecond.

A round is one checkpoint, asked for by another thread of a task that is never idle, from the request to the
answer. The limit is for the time from the request to the snapshot, which the task's own thread notes: it
stands in the extra information, in seconds. A record that computes keeps the GIL, so the answer itself
reaches the other thread up to a switch interval (5 ms) later; a record that sleeps gives the GIL away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import TaskCancelled, TaskOutput

RECORD = 0.0005
ROUNDS = 200


class Endless:
    """An input that always has another record."""

    def emit_next(self, output: TaskOutput) -> InputStatus:
        output.collect(1)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> None:
        return None

    def close(self) -> None:
        return None


class Nowhere:
    """An output that keeps nothing and always has room."""

    is_available = True

    def collect(self, record: Any) -> None:
        pass

    def emit_watermark(self, timestamp: float) -> None:
        pass

    def emit_barrier(self, barrier: Any) -> None:
        pass

    def call_when_room(self, wake: Any) -> None:
        raise AssertionError("there is always room")


def computes() -> None:
    end = time.perf_counter() + RECORD / 2
    while time.perf_counter() < end:
        pass


def sleeps() -> None:
    time.sleep(RECORD / 2)


class Works(Operator):
    """Takes half of `RECORD` seconds for a record."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def process(self, record: Any) -> None:
        self.work()
        self.output.collect(record)


class Busy:
    """A task on a thread of its own, under full input; notes when its snapshots are taken."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.taken: list[float] = []
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, name="task")
        self.thread.start()
        self.ready.wait()

    def _run(self) -> None:
        operators = [Works(self.work), Works(self.work)]
        self.task = StreamTask(Endless(), operators, Nowhere())
        self.ready.set()
        try:
            self.task.run()
        except TaskCancelled:
            return

    def take(self, checkpoint_id: int, options: CheckpointOptions) -> TaskSnapshot:
        future = self.task.trigger_checkpoint_async(checkpoint_id, options)
        # On the mailbox thread, so that the time to wake who waits does not count.
        future.add_done_callback(lambda _: self.taken.append(time.perf_counter()))
        return future.result(timeout=10)

    def end(self) -> None:
        self.task.cancel()
        self.thread.join()


@pytest.mark.benchmark(group="checkpoint latency under full input")
@pytest.mark.parametrize("work", [computes, sleeps], ids=["computes", "sleeps"])
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
def test_checkpoint_latency(benchmark: Any, aligned: bool, work: Callable[[], None]) -> None:
    task = Busy(work)
    asked: list[float] = []
    ids = iter(range(1, 1_000_000))
    options = CheckpointOptions(aligned=aligned)

    def checkpoint() -> None:
        asked.append(time.perf_counter())
        task.take(next(ids), options)

    try:
        benchmark.extra_info["record_seconds"] = RECORD
        benchmark.pedantic(checkpoint, rounds=ROUNDS, warmup_rounds=10)
    finally:
        task.end()
    seconds = sorted(end - begin for begin, end in zip(asked, task.taken, strict=True))
    benchmark.extra_info["snapshot_median"] = seconds[len(seconds) // 2]
    benchmark.extra_info["snapshot_p95"] = seconds[len(seconds) * 95 // 100]
    benchmark.extra_info["snapshot_longest"] = seconds[-1]


@pytest.mark.benchmark(group="a record through a task")
@pytest.mark.parametrize("operators", [1, 4])
def test_records(benchmark: Any, operators: int) -> None:
    records = 20_000

    class Pass(Operator):
        def process(self, record: Any) -> None:
            self.output.collect(record)

    class Some(Endless):
        left = records

        def emit_next(self, output: TaskOutput) -> InputStatus:
            if not self.left:
                return InputStatus.END_OF_INPUT
            self.left -= 1
            return super().emit_next(output)

    def run() -> None:
        StreamTask(Some(), [Pass() for _ in range(operators)], Nowhere()).run()

    benchmark.extra_info["operations"] = records
    benchmark.pedantic(run, rounds=10, warmup_rounds=1)
