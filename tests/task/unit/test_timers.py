"""Processing-time timers: when they fire, in what order, what they give way to, and how they end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.kernel import MAX_PRIORITY, WrongThreadError
from pillarbox.mailbox.processor import Controller, MailboxProcessor
from pillarbox.task.operator_timers import monotonic_epoch
from pillarbox.task.timers import ProcessingTimeService
from pillarbox.testing import FakeClock
from tests.search import examples

HOUR, MINUTE = 3600.0, 60.0


class Task:
    """A task whose default action is counted; its timers are on a clock that the test moves."""

    def __init__(self, now: float = 0.0, priority: int = 0, **options: Any) -> None:
        self.clock = FakeClock(now)
        self.actions = 0
        self.processor = MailboxProcessor(self._action)
        self.executor = self.processor.executor(priority)
        self.timers = ProcessingTimeService(self.executor, self.clock, **options)
        self.fired: list[Any] = []

    def _action(self, controller: Controller) -> None:
        self.actions += 1

    def run(self) -> None:
        """Run the mail that is there, and what it puts, until there is none."""
        while self.processor.mailbox.has_mail():
            self.processor.run_mailbox_step()

    def at(self, timestamp: float) -> Any:
        return self.timers.register_timer(timestamp, self.fired.append)


@pytest.fixture
def real() -> Iterator[tuple[MailboxProcessor, ProcessingTimeService]]:
    processor = MailboxProcessor(lambda controller: None)
    timers = ProcessingTimeService(processor.executor(), monotonic_epoch())
    yield processor, timers
    timers.shutdown()
    processor.close()


def timer_threads(known: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "pillarbox-timers" and thread not in known
    ]


# ---- firing


@pytest.mark.contract
def test_a_timer_fires_once_when_the_clock_has_come_to_it() -> None:
    task = Task()
    timer = task.at(5.0)
    task.clock.advance(4.999)
    task.run()
    assert task.fired == []
    assert not timer.done
    task.clock.advance(0.001)
    assert task.fired == []
    task.run()
    task.clock.advance(100.0)
    task.run()
    assert task.fired == [5.0]
    assert timer.done
    assert not timer.cancel()


@pytest.mark.contract
def test_a_timer_fires_as_mail_and_never_in_the_call_that_registers_it() -> None:
    task = Task(now=10.0)
    task.at(3.0)
    assert task.fired == []
    assert len(task.processor.mailbox) == 1
    task.run()
    assert task.fired == [3.0]


def test_its_mail_has_the_priority_of_the_operator() -> None:
    task = Task(priority=3)
    task.at(1.0)
    task.clock.advance(1.0)
    assert not task.processor.executor(4).try_yield()
    assert task.processor.executor(3).try_yield()
    assert task.fired == [1.0]


@pytest.mark.contract
@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e8)), max_size=40), st.integers(1, 5))
@settings(max_examples=examples(100), deadline=None)
def test_timers_fire_in_the_order_of_their_timestamps_each_not_before_it(
    registered: list[tuple[float, float]], timers_a_mail: int
) -> None:
    task = Task(timers_a_mail=timers_a_mail)
    fired: list[tuple[float, float]] = []
    expected = []
    for number, (timestamp, later) in enumerate(registered):
        moment = max(timestamp, task.clock())
        expected.append((moment, number))
        task.timers.register_timer(moment, lambda at, number=number: fired.append((at, number)))
        task.clock.advance(later)
        due = sorted(pair for pair in expected if pair[0] <= task.clock())
        task.run()
        assert sorted(fired) == due
    for moment, _ in sorted(expected):
        task.clock.set(max(moment, task.clock()))
        task.run()
    assert sorted(fired) == sorted(expected)
    assert len(task.timers) == 0


def test_timers_of_one_timestamp_fire_in_the_order_of_their_registration_whenever_that_was() -> None:
    task = Task()
    fired: list[int] = []
    for number in range(20):
        task.timers.register_timer(7.3, lambda _, number=number: fired.append(number))
        task.clock.advance(0.1)
    task.clock.set(7.3)
    task.run()
    assert fired == list(range(20))


def test_a_timer_may_register_and_cancel_others() -> None:
    task = Task()
    victim = task.at(2.0)

    def callback(at: float) -> None:
        assert victim.cancel()
        task.at(at)
        task.at(9.0)

    task.timers.register_timer(1.0, callback)
    task.clock.advance(5.0)
    task.run()
    assert task.fired == [1.0]
    task.clock.advance(5.0)
    task.run()
    assert task.fired == [1.0, 9.0]


@pytest.mark.contract
def test_a_cancelled_timer_does_not_fire_even_if_its_mail_is_there() -> None:
    task = Task()
    timer = task.at(1.0)
    task.clock.advance(1.0)
    assert timer.cancel()
    assert not timer.cancel()
    task.run()
    assert task.fired == []
    assert timer.done


def test_an_error_of_a_timer_ends_the_task_and_leaves_the_others_as_they_were() -> None:
    task = Task()

    def fail(_: float) -> None:
        raise LookupError("timer")

    failing = task.timers.register_timer(1.0, fail)
    task.at(1.0)
    task.at(2.0)
    task.clock.advance(2.0)
    with pytest.raises(LookupError, match="timer"):
        task.processor.run_mailbox_loop()
    assert failing.done
    task.run()
    assert task.fired == [1.0, 2.0]


def test_while_a_timer_yields_others_fire() -> None:
    task = Task()

    def waits(_: float) -> None:
        while task.fired != [1.0, 2.0]:
            assert task.executor.try_yield(deferrable=True)
        task.fired.append("waited")

    task.timers.register_timer(1.0, waits)
    task.at(1.0)
    task.at(2.0)
    task.executor.execute(task.clock.set, 2.0)
    task.clock.advance(1.0)
    task.run()
    assert task.fired == [1.0, 2.0, "waited"]


@pytest.mark.contract
def test_a_yield_that_asks_for_no_deferrable_mail_gets_every_timer_that_is_due() -> None:
    task = Task(timers_a_mail=3)
    for second in range(100):
        task.at(float(second))
    task.clock.advance(100.0)
    while len(task.fired) < 100:
        assert task.executor.try_yield()
        assert len(task.processor.mailbox) <= 2
    assert task.fired == [float(second) for second in range(100)]
    task.at(200.0)
    task.run()
    task.clock.set(200.0)
    task.run()
    assert task.fired[100:] == [200.0]


@pytest.mark.contract
@pytest.mark.parametrize("later", [None, 1000.0])
def test_a_timer_registered_while_the_rest_waits_fires_in_a_yield(later: float | None) -> None:
    task = Task(timers_a_mail=1)
    task.at(1.0)
    task.at(1.0)
    if later is not None:
        task.at(later)
    task.clock.set(1.0)
    assert task.executor.try_yield()
    assert task.fired == [1.0]
    # The mail for the rest waits, and is for this one too.
    task.at(0.5)
    assert task.executor.try_yield()
    assert task.executor.try_yield()
    assert task.fired == [1.0, 0.5, 1.0]
    while task.executor.try_yield():
        pass
    task.at(2.0)
    task.clock.set(2.0)
    assert task.executor.try_yield()
    assert task.fired[3:] == [2.0]


@pytest.mark.contract
def test_the_rest_of_the_timers_sets_the_alarm_again() -> None:
    task = Task(timers_a_mail=1)
    for moment in (1.0, 1.0, 2.0):
        task.at(moment)
    task.clock.set(1.0)
    task.run()
    assert task.fired == [1.0, 1.0]
    task.clock.set(2.0)
    task.run()
    task.at(3.0)
    task.clock.set(3.0)
    task.run()
    assert task.fired == [1.0, 1.0, 2.0, 3.0]


def test_a_yield_gets_every_timer_by_the_clock_of_the_system(
    real: tuple[MailboxProcessor, ProcessingTimeService],
) -> None:
    processor, timers = real
    fired: list[float] = []
    due = timers.current_processing_time()
    for _ in range(200):
        timers.register_timer(due, fired.append)
    while len(fired) < 200:
        processor.executor().yield_()
    assert fired == [due] * 200


# ---- giving way


def test_a_long_run_of_timers_gives_way_to_a_checkpoint_and_to_input() -> None:
    task = Task(timers_a_mail=10)
    for _ in range(1000):
        task.at(1.0)
    seen: list[tuple[str, int]] = []

    def checkpoint() -> None:
        seen.append(("checkpoint", len(task.fired)))

    task.clock.advance(1.0)
    task.timers.register_timer(0.5, lambda _: task.executor.execute(checkpoint, urgent=True))
    actions_before = task.actions
    task.run()
    assert len(task.fired) == 1000
    assert seen[0][1] <= 10
    assert task.actions - actions_before >= 100


def test_a_watermark_that_came_first_is_not_passed_by_the_rest_of_a_run_of_timers() -> None:
    task = Task(timers_a_mail=4)
    for _ in range(10):
        task.at(1.0)
    task.clock.advance(1.0)
    task.executor.execute(task.fired.append, "watermark")
    task.run()
    assert task.fired == [1.0] * 4 + ["watermark"] + [1.0] * 6


def test_slow_timers_give_way_after_a_millisecond() -> None:
    task = Task(timers_a_mail=1000)

    def slow(at: float) -> None:
        task.fired.append(at)
        task.clock.advance(0.0004)

    for _ in range(9):
        task.timers.register_timer(1.0, slow)
    task.clock.advance(1.0)
    counts = []
    while task.processor.mailbox.has_mail():
        task.processor.run_mailbox_step()
        counts.append(len(task.fired))
    assert counts[:3] == [3, 6, 9]


@pytest.mark.contract
def test_timers_that_register_themselves_again_at_once_do_not_starve_the_input() -> None:
    task = Task(timers_a_mail=8)

    def again(at: float) -> None:
        task.fired.append(at)
        task.timers.register_timer(at, again)

    task.timers.register_timer(0.0, again)
    for _ in range(10):
        task.processor.run_mailbox_step()
    assert task.actions == 10
    assert 10 <= len(task.fired) <= 8 * 10


def test_urgent_mail_that_puts_itself_again_does_not_starve_timers() -> None:
    task = Task()

    def urgent() -> None:
        task.processor.executor(MAX_PRIORITY).execute(urgent, urgent=True)

    urgent()
    task.at(1.0)
    task.clock.advance(1.0)
    for _ in range(10):
        task.processor.run_mailbox_step()
    assert task.fired == [1.0]


# ---- threads and arguments


def test_with_a_real_clock_a_timer_fires_when_its_time_has_come(real: Any) -> None:
    processor, timers = real
    fired: list[float] = []

    def callback(at: float) -> None:
        fired.append(timers.current_processing_time() - at)
        if len(fired) == 3:
            processor.all_actions_completed()

    known, far = set(threading.enumerate()), list[float]()
    timers.register_timer(timers.current_processing_time() + HOUR, far.append)
    for seconds in (0.02, 0.01, 0.0):
        timers.register_timer(timers.current_processing_time() + seconds, callback)
    assert len(timer_threads(known)) == 1
    processor.run_mailbox_loop()
    assert len(fired) == 3 and min(fired) >= 0.0
    assert far == []


def test_no_wake_up_is_lost_while_timers_are_registered_cancelled_and_fired() -> None:
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
    timers = ProcessingTimeService(processor.executor(), monotonic_epoch(), timers_a_mail=3)
    rng = random.Random(3)
    waiting: dict[int, Any] = {}
    early = fired = registered = 0

    def register() -> None:
        nonlocal registered
        number = registered = registered + 1
        at = timers.current_processing_time() + rng.random() * 0.002

        def callback(timestamp: float) -> None:
            nonlocal early, fired
            del waiting[number]
            fired += 1
            early += timers.current_processing_time() < timestamp
            if registered < 1000:
                register()
            if waiting and rng.random() < 0.3:
                other = rng.choice(list(waiting))
                assert waiting.pop(other).cancel()
                register()
            if not waiting:
                processor.all_actions_completed()

        waiting[number] = timers.register_timer(at, callback)

    for _ in range(20):
        register()
    processor.run_mailbox_loop()
    assert fired >= 700
    assert early == 0
    timers.shutdown()
    processor.close()


def test_another_thread_may_move_the_clock_and_each_timer_fires_once() -> None:
    task = Task(timers_a_mail=7)
    for second in range(1, 1001):
        task.at(float(second))
    task.timers.register_timer(1000.0, lambda _: task.processor.all_actions_completed())

    def move() -> None:
        for _ in range(1000):
            task.clock.advance(1.0)

    thread = threading.Thread(target=move)
    thread.start()
    task.processor.run_mailbox_loop()
    thread.join()
    assert task.fired == [float(second) for second in range(1, 1001)]


def test_shutdown_ends_the_thread_of_the_timers(real: Any) -> None:
    _, timers = real
    known = set(threading.enumerate())
    timers.register_timer(timers.current_processing_time() + HOUR, print)
    (thread,) = timer_threads(known)
    timers.shutdown()
    assert not thread.is_alive()
    timers.shutdown()


def test_only_the_mailbox_thread_uses_timers() -> None:
    task = Task()
    timer = task.at(1.0)
    calls = [
        lambda: task.at(2.0),
        timer.cancel,
        task.timers.quiesce,
        task.timers.shutdown,
    ]
    caught = []

    def intrude() -> None:
        for call in calls:
            try:
                call()
            except WrongThreadError as error:
                caught.append(str(error))

    thread = threading.Thread(target=intrude, name="intruder")
    thread.start()
    thread.join()
    assert len(caught) == len(calls)
    assert all("intruder" in text for text in caught)
    assert not timer.done


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda timers: timers.register_timer("soon", print), TypeError, "timestamp='soon'"),
        (lambda timers: timers.register_timer(float("inf"), print), ValueError, "timestamp=inf"),
        (lambda timers: timers.register_timer(1.0, None), TypeError, "callback=None"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(Task().timers)


def test_the_usual_clock_is_the_time_of_day_and_never_goes_back() -> None:
    clock = monotonic_epoch()
    before = time.time()
    readings = [clock() for _ in range(1000)]
    assert readings == sorted(readings)
    assert before - MINUTE < readings[0] < time.time() + MINUTE
