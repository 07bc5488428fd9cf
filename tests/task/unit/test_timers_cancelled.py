"""Timers that are cancelled at the end of the input: the task does not wait for them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.mailbox.processor import MailboxProcessor
from pillarbox.task.timers import ProcessingTimeService, Timer
from pillarbox.testing import FakeClock
from tests.search import examples


class Task:
    """A task with timers on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.processor = MailboxProcessor(lambda controller: None)
        self.timers = ProcessingTimeService(self.processor.executor(), self.clock)
        self.fired: list[float] = []

    def run(self) -> None:
        """Run the mail that is there, and what it puts, until there is none."""
        while self.processor.mailbox.has_mail():
            self.processor.run_mailbox_step()

    def at(self, timestamp: float) -> Timer:
        return self.timers.register_timer(timestamp, self.fired.append)


@pytest.mark.contract(convicts=["cancelled_timer_waited_for"])
def test_a_task_that_ends_does_not_wait_for_a_timer_that_is_cancelled_before_it_fires() -> None:
    task = Task()
    due = task.at(1.0)
    task.clock.advance(1.0)
    task.timers.quiesce()
    assert not task.timers.timers_done().done()
    assert due.cancel()
    assert task.timers.timers_done().done()
    task.run()
    assert task.fired == []


steps = st.lists(
    st.tuples(st.sampled_from(["register", "cancel", "advance", "quiesce", "run"]), st.integers(0, 5)),
    max_size=30,
)


@settings(max_examples=examples(200))
@given(steps)
def test_whatever_is_cancelled_when_timers_are_done_once_the_input_has_ended(
    steps: list[tuple[str, int]],
) -> None:
    task = Task()
    timers: list[Timer] = []
    has_ended = False
    for step, number in [*steps, ("quiesce", 0), ("run", 0)]:
        if step == "register":
            timers.append(task.at(task.clock() + number))
        elif step == "cancel" and number < len(timers):
            timers[number].cancel()
        elif step == "advance":
            task.clock.advance(float(number))
        elif step == "quiesce":
            task.timers.quiesce()
            has_ended = True
        elif step == "run":
            task.run()
        all_done = all(timer.done for timer in timers)
        assert task.timers.timers_done().done() == (has_ended and all_done)
    assert task.timers.timers_done().done()
