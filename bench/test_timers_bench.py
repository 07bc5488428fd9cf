"""The cost of a task's timer, from its registration to its call as mail, while few or many others wait.

The clock is moved by the suite, so nothing waits for time to pass. An event loop's timers are the peer: they
call back on the loop's thread, as ours do on the mailbox thread, but no mailbox stands between, and they give
way to nothing.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from bench.conftest import Chunks
from pillarbox.mailbox.processor import Controller, MailboxProcessor
from pillarbox.task.timers import ProcessingTimeService
from pillarbox.testing.clocks import FakeClock

MANY = 1_000
ALL = 100_000
WAITING = [10, ALL]

each_number_of_others = pytest.mark.parametrize("waiting", WAITING)


def nothing(_: float = 0.0) -> None:
    """Do nothing: the callback of a timer."""


class Task:
    """A task that has nothing but timers."""

    def __init__(self, waiting: int = 0) -> None:
        self.clock = FakeClock()
        self.processor = MailboxProcessor(self._suspend)
        self.processor.run_mailbox_step()
        self.timers = ProcessingTimeService(self.processor.executor(), self.clock)
        rng = random.Random(waiting)
        for _ in range(waiting):
            self.timers.register_timer(1e9 + rng.random(), nothing)

    @staticmethod
    def _suspend(controller: Controller) -> None:
        controller.suspend_default_action()

    def register_and_fire(self, offsets: list[float]) -> None:
        """Register a timer for each offset, in seconds of at most one, and let that second pass."""
        now, register = self.clock(), self.timers.register_timer
        for offset in offsets:
            register(now + offset, nothing)
        self.clock.advance(1.0)
        self.run()

    def run(self) -> None:
        """Run mail until there is none: until everything that is due has fired."""
        while self.processor.run_mailbox_step():
            pass


@pytest.mark.benchmark(group="a task's timer is registered and cancelled")
@each_number_of_others
def test_registered_and_cancelled(chunks: Chunks, waiting: int) -> None:
    register = Task(waiting).timers.register_timer

    def run() -> None:
        for _ in range(MANY):
            register(1e8, nothing).cancel()

    chunks(run, MANY)


@pytest.mark.benchmark(group="a task's timer is registered and fires")
@each_number_of_others
def test_registered_and_fired(chunks: Chunks, waiting: int) -> None:
    task = Task(waiting)
    rng = random.Random(1)
    offsets = [rng.random() for _ in range(MANY)]

    chunks(lambda: task.register_and_fire(offsets), MANY)
    assert len(task.timers) == waiting


@pytest.mark.benchmark(group="a task's timer is registered and fires, 100,000 at a time")
@pytest.mark.parametrize("moments", ["one moment", "moments of their own"])
def test_a_hundred_thousand(chunks: Chunks, moments: str) -> None:
    task = Task()
    rng = random.Random(2)
    offsets = [1.0 if moments == "one moment" else rng.random() for _ in range(ALL)]

    chunks(lambda: task.register_and_fire(offsets), ALL, rounds=10)
    assert len(task.timers) == 0


@pytest.mark.benchmark(group="a task's timer is registered and fires, 100,000 at a time")
def test_event_loop_a_hundred_thousand(chunks: Chunks) -> None:
    loop = asyncio.new_event_loop()
    rng = random.Random(2)
    offsets = [rng.random() for _ in range(ALL)]

    async def fire() -> None:
        # Long past, so that all of them are due in the next turn of the loop.
        past = loop.time() - 10.0
        for offset in offsets:
            loop.call_at(past + offset, nothing)
        fired = loop.create_future()
        loop.call_at(past + 5.0, fired.set_result, None)
        await fired

    chunks(lambda: loop.run_until_complete(fire()), ALL, rounds=10)
    loop.close()
