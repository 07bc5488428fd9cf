"""The metrics of a processor: how its time divides, how long mail waits, how much there is of it."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.mailbox.metrics import (
    BOUNDS_S,
    Doing,
    LatencyHistogram,
    TaskTimes,
    TimeSpent,
    lower_bound,
)
from pillarbox.mailbox.processor import REASONS, Controller, MailboxProcessor, Suspension


class Clock:
    """Seconds that a test sets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def idle(controller: Controller) -> None:
    controller.suspend_default_action()


# ---- the histogram


def test_a_bucket_holds_durations_that_differ_by_an_eighth_at_most() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
    for low, high in pairwise(BOUNDS_S[7:]):
        assert high / low <= 1.125 + 1e-12


@pytest.mark.parametrize("nanoseconds", [0, 1, 7, 8, 9, 15, 16, 17, 31, 1000, 123_456_789, 10**12, 2**44 - 1])
def test_a_duration_is_below_the_bound_of_its_bucket_and_of_no_smaller_one(nanoseconds: int) -> None:
    histogram = LatencyHistogram()
    histogram.record((nanoseconds + 0.5) * 1e-9)
    ((bound, count),) = histogram.snapshot().buckets
    assert lower_bound(bound) <= (nanoseconds + 0.5) * 1e-9 < bound
    assert count == 1


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 2.0**44 * 1e-9, 1e9, float("inf")])
def test_what_is_out_of_scale_is_counted_at_its_ends(seconds: float) -> None:
    histogram = LatencyHistogram()
    histogram.record(seconds)
    snapshot = histogram.snapshot()
    assert snapshot.measurements == 1
    assert snapshot.max == max(seconds, 0.0) == snapshot.p99


def test_quantiles_are_right_to_an_eighth_and_the_largest_is_exact() -> None:
    histogram = LatencyHistogram()
    assert histogram.snapshot() == (0, 0.0, 0.0, 0.0, 0.0, ())
    for i in range(1, 1001):
        histogram.record(i * 1e-3)
    snapshot = histogram.snapshot()
    assert snapshot.measurements == sum(count for _, count in snapshot.buckets) == 1000
    for value, exact in ((snapshot.p50, 0.5), (snapshot.p95, 0.95), (snapshot.p99, 0.99)):
        assert exact <= value <= exact * 1.125
    assert snapshot.max == 1.0
    assert all(low < high for (low, _), (high, _) in pairwise(snapshot.buckets))


@given(st.lists(st.integers(0, 2**50) | st.integers(0, 100), max_size=200))
def test_many_durations_are_counted_as_each_of_them(nanoseconds: list[int]) -> None:
    durations = [(each + 0.5) * 1e-9 for each in nanoseconds]
    one_by_one, together = LatencyHistogram(), LatencyHistogram()
    for seconds in durations:
        one_by_one.record(seconds)
    given_durations = [*durations]
    together.record_all(given_durations)
    assert together.snapshot() == one_by_one.snapshot()
    assert given_durations == durations


def test_durations_at_a_bound_are_counted_above_it() -> None:
    histogram = LatencyHistogram()
    histogram.record_all([*BOUNDS_S[:-1], *BOUNDS_S[:-1], 1e9])
    assert [count for _, count in histogram.snapshot().buckets] == [2] * (len(BOUNDS_S) - 2) + [3]


# ---- times


@pytest.mark.contract
def test_time_is_divided_among_what_the_task_did() -> None:
    clock = Clock()
    times = TaskTimes(clock)
    for doing, seconds in ((Doing.BUSY, 2.5), (Doing.IDLE, 5.0), (Doing.BACK_PRESSURED, 1.5), (None, 1.0)):
        times.switch(doing)
        clock.now += seconds
    assert times.spent() == pytest.approx(TimeSpent(busy=2.5, idle=5.0, back_pressured=1.5))


def test_what_goes_on_counts_up_to_now() -> None:
    clock = Clock()
    times = TaskTimes(clock)
    assert times.spent() == (0.0, 0.0, 0.0)
    times.switch(Doing.IDLE)
    clock.now += 0.25
    assert times.spent() == pytest.approx((0.0, 0.25, 0.0))


@given(
    st.lists(st.tuples(st.sampled_from([None, *Doing]), st.sampled_from([0.0, 0.125, 0.5, 0.875, 1.0, 2.25])))
)
def test_time_adds_up_however_often_it_changes_its_kind(steps: list[tuple[Doing | None, float]]) -> None:
    clock = Clock(100.25)
    times = TaskTimes(clock)
    spent = dict.fromkeys(Doing, 0.0)
    for doing, seconds in steps:
        times.switch(doing)
        clock.now += seconds
        if doing is not None:
            spent[doing] += seconds
    assert list(times.spent()) == pytest.approx([*spent.values()])


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    clock = Clock()
    times = TaskTimes(clock)
    times.switch(Doing.BUSY)
    clock.now += 4
    times.switch(Doing.IDLE)
    clock.now -= 2
    times.switch(Doing.BUSY)
    assert times.spent() == pytest.approx((4.0, 0.0, 0.0))


# ---- of a processor


@pytest.mark.parametrize(
    ("reasons", "share"),
    [
        (["idle"], "idle"),
        (["back_pressured"], "back_pressured"),
        (["idle", "back_pressured"], "back_pressured"),
    ],
)
def test_waiting_counts_for_the_reason_of_the_suspension(reasons: list[str], share: str) -> None:
    clock = Clock()
    suspensions: list[Suspension] = []
    waits = threading.Event()

    def action(controller: Controller) -> None:
        clock.now += 1.0
        suspensions.extend(controller.suspend_default_action(reason) for reason in reasons)  # type: ignore[arg-type]
        waits.set()

    processor = MailboxProcessor(action, clock=clock, latency_interval=None)

    def end() -> None:
        waits.wait(30)
        while processor.metrics.times.doing is Doing.BUSY:
            pass
        clock.now += 3.0
        processor.executor().execute(processor.all_actions_completed)

    thread = threading.Thread(target=end)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    snapshot = processor.metrics.snapshot()
    assert snapshot.busy == pytest.approx(1.0)
    assert getattr(snapshot, share) == pytest.approx(3.0)
    assert snapshot.idle + snapshot.back_pressured == pytest.approx(3.0)
    clock.now += 4.0
    assert processor.metrics.snapshot().busy == pytest.approx(1.0)


@pytest.mark.contract(convicts=["back_pressure_never_ends"])
def test_a_task_that_was_back_pressured_and_waits_for_input_is_idle() -> None:
    clock, suspensions = Clock(), list[Suspension]()
    reasons = iter(REASONS[::-1])

    def action(controller: Controller) -> None:
        suspensions.append(controller.suspend_default_action(next(reasons)))

    processor = MailboxProcessor(action, clock=clock, latency_interval=None)
    for doing in (Doing.BACK_PRESSURED, Doing.IDLE):
        assert not processor.run_mailbox_step()
        assert processor.metrics.times.doing is doing
        clock.now += 1.0
        suspensions.pop().resume()
    snapshot = processor.metrics.snapshot()
    assert (snapshot.idle, snapshot.back_pressured) == pytest.approx((1.0, 1.0))


def test_mail_that_runs_under_a_suspended_action_is_busy_time() -> None:
    clock = Clock()

    def work() -> None:
        clock.now += 1.0

    processor = MailboxProcessor(idle, clock=clock, latency_interval=None)
    processor.run_mailbox_step()
    clock.now += 1.0
    processor.executor().execute(work)
    processor.executor().execute(work)
    processor.run_mailbox_step()
    snapshot = processor.metrics.snapshot()
    assert (snapshot.busy, snapshot.idle) == pytest.approx((2.0, 1.0))


def test_steps_that_wait_are_idle_and_the_end_is_neither() -> None:
    clock = Clock()
    processor = MailboxProcessor(idle, clock=clock)
    processor.run_mailbox_step()
    assert processor.metrics.times.doing is Doing.IDLE
    processor.executor().execute(processor.all_actions_completed)
    processor.run_mailbox_step()
    assert processor.metrics.times.doing is None


def test_the_latency_of_mail_is_measured_now_and_then() -> None:
    clock = Clock()

    def action(controller: Controller) -> None:
        clock.now += 0.125
        if processor.default_actions == 10_000:
            controller.all_actions_completed()

    processor = MailboxProcessor(action, clock=clock, latency_interval=10.0)
    processor.run_mailbox_loop()
    latency = processor.metrics.snapshot().latency
    # 1250 seconds have passed.
    assert 50 <= latency.measurements <= 125
    # A mail that is put between two rounds runs at once.
    assert latency.max == 0.0


def test_the_measured_latency_holds_what_mail_waits_for() -> None:
    clock = Clock()
    processor = MailboxProcessor(idle, clock=clock, latency_interval=10.0)
    executor = processor.executor()

    def slow() -> None:
        clock.now += 3.0

    processor.metrics.measure_now()
    executor.execute(slow, urgent=True)
    executor.execute(processor.all_actions_completed)
    processor.run_mailbox_loop()
    latency = processor.metrics.snapshot().latency
    assert (latency.measurements, latency.max, latency.p50) == (1, 3.0, 3.0)


def test_a_loop_that_sleeps_measures_when_it_wakes() -> None:
    clock = Clock()
    processor = MailboxProcessor(idle, clock=clock, latency_interval=10.0)
    executor = processor.executor()
    waits = threading.Event()

    def wake() -> None:
        waits.wait(30)
        for _ in range(3):
            while processor.metrics.times.doing is not Doing.IDLE:
                pass
            clock.now += 60.0
            executor.submit(int).result(30)
        executor.execute(processor.all_actions_completed)

    executor.execute(waits.set)
    thread = threading.Thread(target=wake)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    assert processor.metrics.snapshot().latency.measurements >= 2


def test_without_an_interval_nothing_is_measured() -> None:
    clock = Clock()

    def action(controller: Controller) -> None:
        clock.now += 10.0
        if processor.default_actions == 1000:
            controller.all_actions_completed()

    processor = MailboxProcessor(action, clock=clock, latency_interval=None)
    processor.run_mailbox_loop()
    assert processor.metrics.snapshot().latency.measurements == 0
    assert processor.mailbox.statistics().put == 0


def test_the_mail_that_measures_is_no_work_of_the_task() -> None:
    processor = MailboxProcessor(idle, latency_interval=10.0)
    executor = processor.executor()
    processor.run_mailbox_step()
    processor.metrics.measure_now()
    assert len(processor.mailbox) == 1
    assert processor.metrics.snapshot().queue_length == 0
    assert not executor.try_yield()
    processor.drain()
    assert processor.metrics.snapshot().mails == 0
    assert processor.metrics.snapshot().latency.measurements == 1


def test_the_snapshot_counts_mails_run_and_mails_that_wait() -> None:
    processor = MailboxProcessor(idle)
    executor = processor.executor()
    for _ in range(5):
        executor.execute(int)
    executor.try_yield()
    snapshot = processor.metrics.snapshot()
    assert (snapshot.mails, snapshot.queue_length) == (1, 4)
    processor.close()
    assert processor.metrics.snapshot().queue_length == 0


def test_any_thread_takes_snapshots_while_the_loop_runs() -> None:
    made = time.monotonic()
    processor = MailboxProcessor(lambda controller: None, latency_interval=1e-6)
    broken: list[str] = []

    def watch() -> None:
        last = 0
        for _ in range(300):
            snapshot = processor.metrics.snapshot()
            total = snapshot.busy + snapshot.idle + snapshot.back_pressured
            passed = time.monotonic() - made
            if not (0.0 <= total <= passed + 1e-9 and last <= snapshot.latency.measurements):
                broken.append(str(snapshot))
            last = snapshot.latency.measurements
            if not snapshot.latency.p50 <= snapshot.latency.p99 <= snapshot.latency.max:
                broken.append(str(snapshot))
        processor.executor().execute(processor.all_actions_completed)

    thread = threading.Thread(target=watch)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    assert broken == []
    assert processor.metrics.snapshot().busy > 0
