"""The end of processing-time timers: quiesce, wait for those that began, shutdown, a closed mailbox."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import pytest

from pillarbox.kernel import MailboxClosedError
from pillarbox.mailbox.processor import MailboxProcessor
from pillarbox.task.timers import ProcessingTimeService
from pillarbox.testing import FakeClock


class Task:
    """A task with timers on a clock that the test moves."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.processor = MailboxProcessor(lambda controller: None)
        self.executor = self.processor.executor()
        self.timers = ProcessingTimeService(self.executor, self.clock, **options)
        self.fired: list[Any] = []

    def run(self) -> None:
        """Run the mail that is there, and what it puts, until there is none."""
        while self.processor.mailbox.has_mail():
            self.processor.run_mailbox_step()

    def at(self, timestamp: float) -> Any:
        return self.timers.register_timer(timestamp, self.fired.append)


@pytest.mark.contract
def test_quiesce_forgets_what_is_not_due_and_lets_what_is_due_fire() -> None:
    task = Task(timers_a_mail=2)
    timers = [task.at(float(second)) for second in range(1, 8)]
    task.clock.advance(5.0)
    task.timers.quiesce()
    assert [timer.done for timer in timers] == [False] * 5 + [True] * 2
    assert not task.timers.timers_done().done()
    task.clock.advance(100.0)
    task.run()
    assert task.fired == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert task.timers.timers_done().done()
    assert task.at(0.0).done
    task.run()
    assert len(task.fired) == 5


def test_timers_done_can_be_waited_for_by_yielding_within_a_mail() -> None:
    task = Task()

    def end() -> None:
        task.timers.quiesce()
        while not task.timers.timers_done().done():
            task.executor.yield_()
        task.fired.append("ended")
        task.processor.all_actions_completed()

    task.executor.execute(end)
    task.at(1.0)
    task.clock.advance(1.0)
    task.processor.run_mailbox_loop()
    assert task.fired == [1.0, "ended"]


def test_timers_done_is_done_at_once_if_nothing_has_begun() -> None:
    task = Task()
    task.at(1.0)
    task.timers.quiesce()
    assert task.timers.timers_done().done()
    assert not task.timers.timers_done().cancel()


def test_timers_done_waits_for_a_timer_that_is_running() -> None:
    task = Task()

    def quiesces(_: float) -> None:
        task.timers.quiesce()
        assert not task.timers.timers_done().done()

    task.timers.register_timer(0.0, quiesces)
    task.run()
    assert task.timers.timers_done().done()


def test_another_thread_waits_for_timers_done_as_for_any_future() -> None:
    task = Task()
    task.at(1.0)
    task.clock.advance(1.0)
    outcomes: list[Any] = []

    def wait() -> None:
        with pytest.raises(FutureTimeoutError):
            task.timers.timers_done().result(0)
        waiting.set()
        outcomes.append(task.timers.timers_done().exception())

    waiting = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    task.timers.quiesce()
    task.run()
    thread.join()
    assert outcomes == [None]


def test_what_is_due_when_the_mailbox_is_quiesced_fires_in_the_drain_also_beyond_one_mail() -> None:
    task = Task(timers_a_mail=3)
    for _ in range(10):
        task.at(1.0)
    task.timers.register_timer(1.0, lambda at: task.clock.advance(5.0))
    task.clock.advance(1.0)
    task.processor.prepare_close()
    task.processor.drain()
    assert task.fired == [1.0] * 10
    assert task.timers.timers_done().done()


def test_a_service_quiesced_after_its_mailbox_has_nothing_left_to_wait_for() -> None:
    task = Task()
    task.processor.prepare_close()
    timer = task.at(1.0)
    task.clock.advance(1.0)
    task.timers.quiesce()
    assert timer.done
    assert task.timers.timers_done().done()


@pytest.mark.contract
@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_no_timer_outlives_the_end(end: str) -> None:
    task = Task()
    timer = task.at(1.0)
    task.clock.advance(1.0)
    if end == "shutdown":
        task.timers.shutdown()
        assert timer.done
        assert task.timers.timers_done().done()
    else:
        task.processor.close()
    task.at(2.0)
    task.clock.advance(10.0)
    if end == "shutdown":
        task.run()
    else:
        with pytest.raises(MailboxClosedError):
            task.processor.run_mailbox_step()
    assert task.fired == []
