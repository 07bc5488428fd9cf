"""Timers when the thread does not start, or the clock cannot be read: somebody hears of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pillarbox.mailbox.processor import Controller, MailboxProcessor
from pillarbox.task.operator_timers import monotonic_epoch
from pillarbox.task.timers import ProcessingTimeService
from pillarbox.testing import FakeClock


def idle(controller: Controller) -> None:
    controller.suspend_default_action()


class Refused:
    """A stand-in for the start of threads that fails the first time."""

    def __init__(self) -> None:
        self.start = threading.Thread.start
        self.left = 1

    def __call__(self, thread: threading.Thread) -> None:
        if self.left:
            self.left -= 1
            raise RuntimeError("can't start new thread")
        self.start(thread)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Refused()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: refused(thread))


@pytest.mark.usefixtures("refused")
def test_timers_fire_after_one_whose_thread_did_not_start() -> None:
    processor = MailboxProcessor(idle)
    timers = ProcessingTimeService(processor.executor(), monotonic_epoch())
    fired: list[str] = []

    def fire(timestamp: float) -> None:
        fired.append("second")
        processor.all_actions_completed()

    with pytest.raises(RuntimeError, match="can't start new thread"):
        timers.register_timer(0.0, lambda timestamp: fired.append("first"))
    assert len(timers) == 0
    # Later than the first: an alarm that still counted on the first would not be set.
    timers.register_timer(1.0, fire)
    processor.run_mailbox_loop()
    timers.shutdown()
    assert fired == ["second"]


@pytest.mark.usefixtures("refused")
def test_timers_whose_thread_did_not_start_can_be_shut_down() -> None:
    timers = ProcessingTimeService(MailboxProcessor(idle).executor(), monotonic_epoch())
    with pytest.raises(RuntimeError, match="can't start new thread"):
        timers.register_timer(timers.current_processing_time() + 3600.0, print)
    timers.shutdown()
    assert timers.timers_done().done()


def test_the_thread_of_the_timers_tells_the_task_of_a_clock_that_cannot_be_read() -> None:
    broken, here = threading.Event(), threading.get_ident()

    def clock() -> float:
        if threading.get_ident() != here:
            broken.set()
        if broken.is_set():
            raise OSError("the clock cannot be read")
        return 1.0

    processor = MailboxProcessor(idle)
    timers = ProcessingTimeService(processor.executor(), clock)
    timers.register_timer(3600.0, print)
    with pytest.raises(OSError, match="the clock cannot be read"):
        processor.run_mailbox_loop()
    timers.shutdown()
    assert timers.timers_done().done()


def test_timers_are_done_though_the_alarm_cannot_be_closed() -> None:
    class Clock(FakeClock):
        def on_advance(self, callback: Callable[[], object]) -> Callable[[], None]:
            def take_back() -> None:
                raise OSError("it is not there any more")

            return take_back

    timers = ProcessingTimeService(MailboxProcessor(idle).executor(), Clock())
    timer = timers.register_timer(5.0, print)
    with pytest.raises(OSError, match="not there"):
        timers.shutdown()
    assert timer.done
    assert timers.timers_done().done()
