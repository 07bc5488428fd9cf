"""Other threads and coroutines beside a running task: requests, cancellation, completions."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task import Operator
from pillarbox.task.checkpoint import CheckpointDeclined, CheckpointOptions
from pillarbox.task.protocols import MAX_WATERMARK, TaskCancelled, TaskState, Watermark
from tests.task.unit.operators import Counted, Door, Map, Rig

UNALIGNED = CheckpointOptions(aligned=False)
END = Watermark(MAX_WATERMARK)


def test_another_thread_gets_its_unaligned_checkpoint_of_a_task_that_waits_in_a_yield() -> None:
    door = Door()
    rig = Rig(Counted(2), door)
    waits = threading.Event()
    found: list[Any] = []

    def coordinate() -> None:
        assert waits.wait(timeout=60)
        future = rig.task.trigger_checkpoint_async(1, UNALIGNED)
        # The operator goes on waiting: only its yield can have run this.
        found.append(future.result(timeout=60).operators["door"].pending)
        found.append(rig.task.notify_checkpoint_complete_async(1).result(timeout=60))
        door.let_go()

    door.blocked = waits.set
    thread = threading.Thread(target=coordinate)
    thread.start()
    rig.run("x")
    thread.join()
    assert found == [(("x", 1),), True]
    assert rig.output.records == [("x", 0), ("x", 1)]


def test_another_thread_cancels_a_task_that_waits_in_a_yield() -> None:
    door = Door()
    rig = Rig(door)
    waits = threading.Event()
    door.blocked = waits.set

    def cancel() -> None:
        assert waits.wait(timeout=60)
        rig.task.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    rig.push(1, 2)
    with pytest.raises(TaskCancelled):
        rig.task.run()
    thread.join()
    assert rig.task.state is TaskState.CANCELLED


@pytest.mark.contract
def test_every_request_of_threads_that_race_with_the_end_is_answered() -> None:
    rig = Rig(Map(str))
    futures: list[list[Future[Any]]] = [[], []]
    begun = threading.Barrier(3)

    died: list[BaseException] = []

    def ask(mine: list[Future[Any]], first: int) -> None:
        options = UNALIGNED if first else CheckpointOptions()
        begun.wait()
        try:
            for checkpoint_id in range(first, first + 400, 2):
                mine.append(rig.task.trigger_checkpoint_async(checkpoint_id, options))
                mine.append(rig.task.notify_checkpoint_complete_async(checkpoint_id))
        except BaseException as error:
            died.append(error)

    threads = [threading.Thread(target=ask, args=(mine, i)) for i, mine in enumerate(futures)]
    for thread in threads:
        thread.start()
    rig.push(*range(50))
    rig.end()
    begun.wait()
    rig.task.run()
    for thread in threads:
        thread.join()
    assert died == []
    assert [len(mine) for mine in futures] == [400, 400]
    for future in (*futures[0], *futures[1]):
        error = future.exception(timeout=60)
        assert error is None or isinstance(error, CheckpointDeclined)
    assert rig.output.records == [str(i) for i in range(50)]


class Awaits(Operator):
    """Doubles each record in a coroutine of the loop that the task runs on."""

    def __init__(self) -> None:
        self.calls: set[asyncio.Task[None]] = set()
        self.all_out: Future[None] = Future()
        self.ending = False

    def process(self, record: int) -> None:
        self.calls.add(asyncio.ensure_future(self.call(record)))

    async def call(self, record: int) -> None:
        for _ in range(record):
            await asyncio.sleep(0)
        self.context.executor.execute(self.emit, asyncio.current_task(), 2 * record)

    def emit(self, call: Any, result: int) -> None:
        self.output.collect(result)
        self.calls.discard(call)
        if self.ending and not self.calls:
            self.all_out.set_result(None)

    def end_input(self) -> Future[None] | None:
        self.ending = True
        return self.all_out if self.calls else None


def test_the_end_waits_for_coroutines_of_the_loop_that_the_task_runs_on() -> None:
    async def main() -> list[Any]:
        rig = Rig(Awaits(), Map(str))
        rig.push(30, 10, 20)
        rig.end()
        await rig.task.run_async()
        return rig.output.elements

    assert asyncio.run(main()) == [END, "20", "40", "60"]


def test_a_checkpoint_can_be_awaited_beside_the_task() -> None:
    async def main() -> tuple[Any, list[Any]]:
        rig = Rig(Counted())
        running = asyncio.ensure_future(rig.task.run_async())
        rig.push("a")
        snapshot = await asyncio.wrap_future(rig.task.trigger_checkpoint_async(1))
        last = await asyncio.wrap_future(rig.task.trigger_checkpoint_async(2))
        rig.end()
        await running
        return last.operators["counted"].state, [snapshot.barrier.id, rig.task.state]

    assert asyncio.run(main()) == (1, [1, TaskState.FINISHED])


def test_a_future_of_end_input_that_fails_ends_the_task() -> None:
    under_way: Future[Any] = Future()

    class Waits(Operator):
        def process(self, record: Any) -> None:
            raise AssertionError("there is no record")

        def end_input(self) -> Future[Any]:
            return under_way

    rig = Rig(Waits())
    rig.end()
    rig.step()
    thread = threading.Thread(target=under_way.set_exception, args=(OSError("a call has failed"),))
    thread.start()
    with pytest.raises(OSError, match="a call has failed"):
        rig.task.run()
    thread.join()
    assert rig.task.state is TaskState.FAILED
