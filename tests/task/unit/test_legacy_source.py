"""Old source functions: the lock that they share with who takes their rows, room, cancel and the end."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.task.legacy import SourceCancelled, SourceContext
from tests.task.unit.sources import LONG, AtomicSource, Job, Source


@pytest.fixture
def run() -> Iterator[Callable[..., Job]]:
    """Makes the job of a body, and ends it."""
    jobs: list[Job] = []

    def make(
        body: Callable[..., object], kind: type[Source] = Source, start: bool = True, **options: Any
    ) -> Job:
        job = Job(kind(body), **options)
        jobs.append(job)
        if start:
            job.start()
        return job

    yield make
    for job in jobs:
        job.start()
        job.close()
        job.end()


# ---- the lock


def loop_without_the_lock(source: Source, context: SourceContext) -> None:
    while not source.stop.is_set():
        context.collect("record")
        source.offset += 1


def loop_with_a_section_a_record(source: Source, context: SourceContext) -> None:
    while not source.stop.is_set():
        with context.checkpoint_lock:
            context.collect("record")
            source.offset += 1


def loop_that_never_gives_the_lock_up(source: Source, context: SourceContext) -> None:
    with context.checkpoint_lock, context.checkpoint_lock:
        while not source.stop.is_set():
            context.collect("record")
            source.offset += 1


@pytest.mark.contract
@pytest.mark.parametrize(
    "body", [loop_without_the_lock, loop_with_a_section_a_record, loop_that_never_gives_the_lock_up]
)
def test_no_source_holds_a_checkpoint_for_longer_than_one_record(run: Any, body: Any) -> None:
    job = run(body, start=False)
    at_record = threading.Event()

    def on_record(count: int) -> None:
        if count in (5, 9):
            # The checkpoint joins the queue while this record is being emitted.
            job.queue.forget()
            at_record.set()
            job.queue.wait_for_next()

    job.on_record = on_record
    job.start()
    taken = 0
    for expected in (5, 9):
        assert at_record.wait(LONG)
        at_record.clear()
        elements, state, ended = job.take()
        taken += len(elements)
        assert (taken, ended) == (expected, False)
        if body is not loop_without_the_lock:
            assert state == expected


@pytest.mark.contract
def test_a_record_and_its_state_are_one_step_also_if_the_state_comes_first(run: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        while not source.stop.is_set():
            with context.checkpoint_lock:
                source.offset += 1
                if source.offset == 5:
                    changed.set()
                    job.queue.wait_for_next()
                context.collect("record")
                context.emit_watermark(1.0)

    changed = threading.Event()
    job = run(body, start=False)
    job.start()
    assert changed.wait(LONG)
    elements, state, _ = job.take()
    assert (len(elements), state, job.timestamp) == (5, 5, 1.0)


@pytest.mark.parametrize("kind", [Source, AtomicSource])
def test_several_records_are_one_step_for_a_source_that_says_so(
    run: Any, kind: type[Source], caplog: pytest.LogCaptureFixture
) -> None:
    def body(source: Source, context: SourceContext) -> None:
        with context.checkpoint_lock:
            for number in range(3):
                context.collect(number)
            source.offset += 3

    at_record = threading.Event()

    def on_record(count: int) -> None:
        if count == 2:
            at_record.set()
            job.queue.wait_for_next()

    job = run(body, kind, start=False)
    job.on_record = on_record
    job.start()
    assert at_record.wait(LONG)
    assert job.take()[:2] == (([0, 1, 2], 3) if kind is AtomicSource else ([0, 1], 0))
    job.end()
    assert ("source under test kept the checkpoint lock" in caplog.text) == (kind is Source)


def test_a_source_may_emit_from_threads_of_its_own(run: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        def work() -> None:
            for _ in range(200):
                with context.checkpoint_lock:
                    context.collect("record")
                    offset = source.offset
                    source.offset = offset + 1

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    job = run(body)
    job.end()
    elements, state, ended = job.take()
    assert (len(elements), state, ended) == (600, 600, True)


# ---- what is emitted


def test_elements_are_emitted_in_order_and_idleness_ends_with_the_next_one(run: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        for step in (
            lambda: context.collect(None),
            lambda: context.collect_with_timestamp("b", 2),
            lambda: context.collect_with_timestamp("early", 1),
            context.mark_as_temporarily_idle,
            context.mark_as_temporarily_idle,
            lambda: context.emit_watermark(3),
            context.mark_as_temporarily_idle,
            # Times of records count no more where there are watermarks.
            lambda: context.collect_with_timestamp("c", 7),
            lambda: context.emit_watermark(float("inf")),
        ):
            assert goes_on.acquire(timeout=LONG)
            step()
            done.release()

    goes_on, done = threading.Semaphore(0), threading.Semaphore(0)
    job = run(body)
    for elements, timestamp, idle in (
        ([None], None, False),
        (["b"], 2.0, False),
        (["early"], 2.0, False),
        ([], 2.0, True),
        ([], 2.0, True),
        ([], 3.0, False),
        ([], 3.0, True),
        (["c"], 3.0, False),
        ([], float("inf"), False),
    ):
        goes_on.release()
        assert done.acquire(timeout=LONG)
        assert (job.take()[0], job.timestamp, job.idle, job.is_idle) == (elements, timestamp, idle, idle)
    job.end()
    assert job.take() == ([], 0, True)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda context: context.collect_with_timestamp(1, None), TypeError, "timestamp=None"),
        (lambda context: context.emit_watermark(float("nan")), ValueError, "timestamp=nan"),
        (lambda context: context.wait(-1), ValueError, "seconds=-1"),
    ],
)
def test_a_bad_argument_is_named_and_reaches_the_task(run: Any, call: Any, error: Any, text: str) -> None:
    job = run(lambda source, context: call(context))
    job.end()
    with pytest.raises(error, match=text):
        job.take()


# ---- room


@pytest.mark.contract
@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_a_source_is_no_further_ahead_than_the_capacity(run: Any, capacity: int) -> None:
    job = run(loop_with_a_section_a_record, start=False, capacity=capacity)
    job.start()
    for _ in range(20):
        assert job.waits_for_room.wait(LONG)
        job.waits_for_room.clear()
        elements, _, _ = job.take()
        assert 1 <= len(elements) <= capacity


@pytest.mark.parametrize("section", [False, True])
def test_a_source_waits_for_room_without_the_lock(run: Any, section: bool) -> None:
    def body(source: Source, context: SourceContext) -> None:
        context.collect("first")
        with context.checkpoint_lock if section else contextlib.nullcontext():
            context.collect("second")

    job = run(body, capacity=1)
    assert job.waits_for_room.wait(LONG)
    assert job.take()[0] == ["first"]
    job.end()
    assert job.take()[0] == ["second"]


@pytest.mark.parametrize("kind", [Source, AtomicSource])
def test_a_section_that_has_begun_is_held_up_before_its_second_record_only_if_it_may_be(
    run: Any, kind: type[Source]
) -> None:
    def body(source: Source, context: SourceContext) -> None:
        with context.checkpoint_lock:
            context.collect(1)
            context.collect(2)

    job = run(body, kind, capacity=1)
    if kind is Source:
        assert job.waits_for_room.wait(LONG)
        assert job.take()[0] == [1]
    job.end()
    assert job.take()[0] == ([2] if kind is Source else [1, 2])


# ---- waits of who takes


def test_who_waits_hears_of_an_element_of_the_end_and_of_a_wake_up(run: Any) -> None:
    go = threading.Event()

    def body(source: Source, context: SourceContext) -> None:
        context.collect(1)
        assert go.wait(LONG)

    job = run(body)
    assert job.wait_for_news(LONG)
    assert job.take()[0] == [1]
    assert not job.wait_for_news(0.0)
    job.wake_up()
    assert job.wait_for_news(LONG)
    assert job.take() == ([], 0, False)
    go.set()
    assert job.wait_for_news(LONG)
    assert job.take() == ([], 0, True)


# ---- the end


@pytest.mark.contract("An error of a legacy source reaches the task.")
def test_an_error_of_the_source_reaches_the_task(run: Any) -> None:
    def fail(source: Source, context: SourceContext) -> None:
        raise LookupError("source")

    job = run(fail)
    assert job.wait_for_news(LONG)
    job.end()
    with pytest.raises(LookupError, match="source"):
        job.take()


def wait_for_the_lock(job: Job, context: SourceContext) -> None:
    context.collect("never")


def wait_for_a_section(job: Job, context: SourceContext) -> None:
    with context.checkpoint_lock:
        job.source.offset = -1


def wait_for_an_event(job: Job, context: SourceContext) -> None:
    assert job.source.stop.wait(LONG)


def wait_for_time(job: Job, context: SourceContext) -> None:
    assert context.wait(LONG)
    assert context.is_cancelled


def swallow_and_go_on(job: Job, context: SourceContext) -> None:
    while True:
        with contextlib.suppress(Exception):
            context.collect("never")


@pytest.mark.contract
@pytest.mark.parametrize(
    "waits",
    [
        wait_for_the_lock,
        wait_for_a_section,
        wait_for_an_event,
        wait_for_time,
        swallow_and_go_on,
    ],
)
def test_a_cancel_interrupts_a_source_that_waits(run: Any, waits: Any) -> None:
    began = threading.Event()

    def body(source: Source, context: SourceContext) -> None:
        began.set()
        waits(job, context)

    job = run(body, start=False, grace=0.0)
    with job.lock:
        job.start()
        assert began.wait(LONG)
        # The lock stays with who closes, until then.
        job.close()
        assert job.lock.is_held
    job.end()
    assert job.close()
    assert job.elements == []
    assert job.source.cancels == 1
    assert job.source.offset == 0
    assert job._error is None


def test_a_source_that_is_cancelled_within_a_section_emits_nothing_more(run: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        with context.checkpoint_lock:
            inside.set()
            assert source.stop.wait(LONG)
            context.collect("never")

    inside = threading.Event()
    job = run(body)
    assert inside.wait(LONG)
    assert job.close()
    assert job.elements == []


def test_a_cancel_interrupts_a_source_that_waits_for_room(run: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        context.collect(1)
        context.collect("never")

    job = run(body, capacity=1)
    assert job.waits_for_room.wait(LONG)
    assert job.close()
    assert job.elements == [1]


@pytest.mark.contract
def test_a_source_that_ignores_its_cancel_is_named_and_abandoned_and_emits_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    holds, go_on = threading.Event(), threading.Event()
    caught: list[str] = []

    def body(source: Source, context: SourceContext) -> None:
        with context.checkpoint_lock:
            context.collect(1)
            holds.set()
            assert go_on.wait(LONG)
            for emit in (lambda: context.collect(2), context.mark_as_temporarily_idle):
                with pytest.raises(SourceCancelled):
                    emit()
                caught.append("cancelled")

    job = Job(Source(body), grace=0.01)
    job.start()
    assert holds.wait(LONG)
    assert not job.close()
    assert not job.close()
    (record,) = caplog.records
    assert "source under test has not ended within 0.01 s" in record.message
    go_on.set()
    job.end()
    assert job.close()
    assert job._thread.daemon
    assert job.elements == [1]
    assert caught == ["cancelled"] * 2
    assert job.lock.acquire(0)


def test_an_error_after_the_cancel_is_no_error_of_the_task(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def body(source: Source, context: SourceContext) -> None:
        assert source.stop.wait(LONG)
        raise OSError("the connection was closed")

    job = run(body)
    with caplog.at_level(logging.INFO, logger="pillarbox"):
        assert job.close()
    assert job.take()[2]
    assert "under test ended with an error after its cancel" in caplog.text


def test_a_cancel_that_raises_is_logged_and_the_source_ends(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Source):
        def cancel(self) -> None:
            raise LookupError("cancel")

    job = run(lambda source, context: context.wait(LONG), Fails)
    assert job.close()
    assert "the cancel of source under test raised" in caplog.text


def test_a_source_that_has_ended_is_not_cancelled(run: Any) -> None:
    job = run(lambda source, context: context.collect(1))
    job.end()
    assert job.close()
    assert job.source.cancels == 0


def test_a_source_that_ends_with_the_lock_in_its_hands_leaves_it_free(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = run(lambda source, context: context.checkpoint_lock.acquire())
    job.end()
    assert job.lock.acquire(0)
    assert "under test ended without giving the checkpoint lock back" in caplog.text
