"""The seeded scheduler: one order for one seed, deadlocks found, and a task played in many orders."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.kernel import OrderedQueue
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import TaskCancelled, TaskState, Watermark
from pillarbox.testing.scheduler import Deadlock, ScheduleFailed, SeededScheduler, explore
from pillarbox.testing.test_io import CollectedOutput, PushedInput
from tests.task.unit.operators import Counted, Door, Map, Numbers, Responses

RECORDS = 6


class Calls(Operator):
    """An asynchronous operator: two calls in flight, which the scheduler completes; results in order.

    A record that finds no room yields until there is some.
    """

    uid = "calls"

    def __init__(self, scheduler: SeededScheduler) -> None:
        self.scheduler = scheduler
        self.queue = OrderedQueue(2)
        self.all_out: Future[None] | None = None

    def restore_state(self, state: Any) -> None:
        self.queue.restore(state)

    def open(self) -> None:
        self._admit_restored()

    def process(self, record: Any) -> None:
        while self.queue.restoring or len(self.queue) == self.queue.capacity:
            self.context.executor.yield_()
        self._call(self.queue.put(record), record)

    def _call(self, handle: int, record: Any) -> None:
        result = ("result", record)
        self.scheduler.event(self._complete, handle, result, name=f"call {record}")

    def _complete(self, handle: int, result: Any) -> None:
        if self.queue.complete(handle, result):
            self.context.executor.try_execute(self._emit)

    def _emit(self) -> None:
        for _, result in self.queue.emit_many():
            self.output.collect(result)
        self._admit_restored()
        ended = not len(self.queue) and not self.queue.restoring
        if ended and self.all_out is not None and not self.all_out.done():
            self.all_out.set_result(None)

    def _admit_restored(self) -> None:
        while (admitted := self.queue.admit_restored()) is not None:
            self._call(*admitted)
        # What was restored with its result makes no call that would say so.
        if self.queue.has_completed():
            self.context.executor.try_execute(self._emit)

    def snapshot_state(self, barrier: CheckpointBarrier) -> Any:
        return self.queue.snapshot()

    def end_input(self) -> Future[None] | None:
        if len(self.queue) or self.queue.restoring:
            self.all_out = Future()
        return self.all_out

    def close(self) -> None:
        self.queue.close()


class Forgets(Calls):
    """Does not look whether what it restores has finished already, which no completion will say."""

    def _admit_restored(self) -> None:
        while (admitted := self.queue.admit_restored()) is not None:
            self._call(*admitted)


def make_task(
    scheduler: SeededScheduler, responses: Responses | None = None, calls: type[Calls] = Calls
) -> tuple[StreamTask, CollectedOutput]:
    output = CollectedOutput()
    operators = [Counted(2, "before"), calls(scheduler), Map(lambda x: x, "after"), Counted(1, "behind")]
    task = StreamTask(
        Numbers(RECORDS),
        operators,
        output,
        mailbox=scheduler.mailbox(),
        responder=responses,
    )
    return task, output


EXPECTED = [(("result", (i // 2, i)), i) for i in range(2 * RECORDS)]


def checkpoints(task: StreamTask, futures: list[Future[TaskSnapshot]], last: bool = False) -> Iterator[Any]:
    """A coordinator: aligned and unaligned ones in turn, completed or aborted; then a crash, if `last`."""
    for checkpoint_id in range(1, 6):
        options = CheckpointOptions(aligned=checkpoint_id % 2 == 0)
        futures.append(task.trigger_checkpoint_async(checkpoint_id, options))
        yield
        if checkpoint_id % 3:
            yield task.notify_checkpoint_complete_async(checkpoint_id)
        else:
            yield task.notify_checkpoint_aborted_async(checkpoint_id)
    if last:
        task.cancel()


def test_the_same_seed_gives_the_same_order() -> None:
    def play(seed: int) -> tuple[list[str], list[Any]]:
        scheduler = SeededScheduler(seed)
        task, output = make_task(scheduler)
        scheduler.add(task)
        scheduler.script("checkpoints", checkpoints(task, []))
        scheduler.run()
        return scheduler.trace, [str(element) for element in output.records]

    assert play(3) == play(3)
    assert play(3)[0] != play(4)[0]


@pytest.mark.contract
@pytest.mark.parametrize("stepped", [True, False])
def test_in_every_order_each_record_comes_out_once_and_in_order(stepped: bool) -> None:
    def scenario(scheduler: SeededScheduler) -> None:
        responses = Responses()
        task, output = make_task(scheduler, responses)
        scheduler.script("checkpoints", checkpoints(task, []))
        if stepped:
            scheduler.add(task)
        else:
            task.run()
        scheduler.run()
        assert output.records == EXPECTED
        assert task.state is TaskState.FINISHED

    assert explore(scenario, range(40)) == 40


def crash_and_restore(scheduler: SeededScheduler, calls: type[Calls] = Calls) -> bool:
    """A task that is cancelled at some time and restored; whether there were elements on their way."""
    responses = Responses()
    first, output = make_task(scheduler, responses, calls)
    scheduler.script("checkpoints", checkpoints(first, [], last=True))
    try:
        first.run()
    except TaskCancelled:
        kept: list[Any] = []
        snapshot = responses.acknowledged[-1] if responses.acknowledged else None
        if snapshot is not None:
            position = output.elements.index(snapshot.barrier)
            others = (CheckpointBarrier, Watermark)
            kept = [e for e in output.elements[:position] if not isinstance(e, others)]
        second, rest = make_task(scheduler, None, calls)
        second.restore(snapshot)
        second.run()
        assert [*kept, *rest.records] == EXPECTED
        return snapshot is not None and any(s.pending for s in snapshot.operators.values())
    assert output.records == EXPECTED
    return False


@pytest.mark.contract
def test_in_every_order_a_crash_and_a_restore_lose_nothing_and_repeat_nothing() -> None:
    on_their_way: list[bool] = []
    assert explore(lambda scheduler: on_their_way.append(crash_and_restore(scheduler)), range(120)) > 100
    # The search did come upon what it is for: elements on their way, and a record at the door.
    assert sum(on_their_way) >= 5


def test_an_operator_that_would_hang_after_a_restore_is_found() -> None:
    with pytest.raises(ScheduleFailed) as caught:
        explore(lambda scheduler: crash_and_restore(scheduler, Forgets), range(200))
    assert isinstance(caught.value.__cause__, Deadlock)


def test_two_tasks_take_turns_and_one_may_feed_the_other() -> None:
    def scenario(scheduler: SeededScheduler) -> None:
        between = PushedInput()

        class Between(CollectedOutput):
            def collect(self, record: Any) -> None:
                between.push(record)

        first = StreamTask(
            Numbers(RECORDS), [Map(lambda x: x)], Between(), name="first", mailbox=scheduler.mailbox()
        )
        output = CollectedOutput()
        second = StreamTask(
            between, [Map(lambda x: x + 1)], output, name="second", mailbox=scheduler.mailbox()
        )
        scheduler.add(first)
        scheduler.add(second)

        def ends() -> Iterator[None]:
            while first.state is not TaskState.FINISHED:
                yield
            between.push_status(InputStatus.END_OF_INPUT)

        scheduler.script("ends", ends())
        scheduler.run()
        assert output.records == [i + 1 for i in range(RECORDS)]
        assert {"first", "second", "ends"} == set(scheduler.trace)

    assert explore(scenario, range(20)) > 10


def test_an_operator_that_yields_for_ever_is_a_deadlock_and_not_a_hang() -> None:
    scheduler = SeededScheduler(11)
    source = PushedInput()
    task = StreamTask(source, [Door()], CollectedOutput(), mailbox=scheduler.mailbox())
    source.push("in", "waits")
    scheduler.event(lambda: None, name="an event")
    with pytest.raises(Deadlock, match="take of priority 0 waits for ever, with seed 11, after an event"):
        task.run()
    assert task.state is TaskState.FAILED


def test_a_task_that_nobody_ends_is_a_deadlock() -> None:
    scheduler = SeededScheduler(0)
    task = StreamTask(
        PushedInput(), [Map(str)], CollectedOutput(), name="lonely", mailbox=scheduler.mailbox()
    )
    scheduler.add(task)
    with pytest.raises(Deadlock, match="task 'lonely' waits for ever"):
        scheduler.run()
    task.close()


def test_a_scenario_that_fails_in_one_order_is_found_with_its_seed_and_fails_again_with_it() -> None:
    def scenario(scheduler: SeededScheduler) -> None:
        order: list[str] = []
        for name in "abc":
            scheduler.event(order.append, name, name=name)
        scheduler.run()
        assert order != ["c", "b", "a"]

    with pytest.raises(ScheduleFailed, match="failed with seed .* after c, b, a") as caught:
        explore(scenario, range(200))
    assert isinstance(caught.value.__cause__, AssertionError)
    with pytest.raises(AssertionError):
        scenario(SeededScheduler(caught.value.seed))


def test_a_script_waits_for_the_future_that_it_yields() -> None:
    def scenario(scheduler: SeededScheduler) -> None:
        done: Future[None] = Future()
        order: list[str] = []

        def waits() -> Iterator[Any]:
            yield done
            order.append("goes on")

        def others() -> Iterator[None]:
            yield
            order.append("completes")
            done.set_result(None)

        scheduler.script("waits", waits())
        scheduler.script("others", others())
        scheduler.run()
        assert order == ["completes", "goes on"]

    assert explore(scenario, range(30)) > 2
