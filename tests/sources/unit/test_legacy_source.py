"""Old source functions: sections, room, cancel and the end, as who takes their rows sees them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.sources.legacy import (
    FromSourceFunction,
    FunctionSplit,
    SourceCancelled,
    SourceContext,
    SourceFunction,
)
from pillarbox.sources.reader import Fetched, ReaderContext, SplitsAdded
from tests.sources.unit.number_source import LONG


class Function(SourceFunction):
    """Runs `body(self, context)`; `offset` is its state."""

    def __init__(self, body: Callable[[Function, SourceContext], object]) -> None:
        self.body = body
        self.offset = 0
        self.stop = threading.Event()
        self.ended = threading.Event()
        self.cancels = 0

    def run(self, context: SourceContext) -> None:
        try:
            self.body(self, context)
        finally:
            self.ended.set()

    def cancel(self) -> None:
        self.cancels += 1
        self.stop.set()

    def snapshot_state(self) -> int:
        return self.offset

    def restore_state(self, state: int) -> None:
        self.offset = state


class Job:
    """A function that is read as a source's splits are; `fetch` gives what it has emitted since the last."""

    def __init__(self, body: Callable[..., object], kind: type[Function] = Function, **options: Any) -> None:
        self.function = kind(body)
        source = FromSourceFunction(lambda: self.function, **{"grace": LONG, **options})
        source.name = "under test"
        self.reader = source.create_reader(ReaderContext()).make_split_reader()
        self.reader.handle_splits_changes(SplitsAdded((FunctionSplit("function"),)))

    def fetch(self) -> Fetched | None:
        found = self.reader.fetch()
        return found[0] if found else None

    def fetch_next(self) -> Fetched:
        """The next that the function says, however long it takes."""
        while (fetched := self.fetch()) is None:
            pass
        return fetched

    def fetch_rows(self, count: int) -> list[Any]:
        rows: list[Any] = []
        while len(rows) < count:
            if (fetched := self.fetch()) is not None:
                rows += fetched.records
        return rows


@pytest.fixture
def run() -> Iterator[Callable[..., Job]]:
    """Makes the job of a body, and ends it."""
    jobs: list[Job] = []

    def make(body: Callable[..., object], kind: type[Function] = Function, **options: Any) -> Job:
        jobs.append(Job(body, kind, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.reader.close()


def begin_and_wake(job: Job) -> None:
    """Begin the function, whatever it emits."""
    job.reader.wake_up()
    job.fetch()


# ---- sections


@pytest.mark.contract
def test_no_function_holds_a_checkpoint_up_one_has_what_sections_that_ended_have_emitted(run: Any) -> None:
    def body(function: Function, context: SourceContext) -> None:
        context.collect("first")
        with context.checkpoint_lock:
            context.collect("second")
            inside.set()
            # It keeps the lock for as long as it likes.
            assert go_on.wait(LONG)
            function.offset = 2

    inside, go_on = threading.Event(), threading.Event()
    job = run(body)
    assert job.fetch_next()[1:3] == (["first"], [1, 0])
    assert inside.wait(LONG)
    job.reader.wake_up()
    assert job.fetch() is None
    go_on.set()
    assert job.fetch_next()[1:3] == (["second"], [1, 2])


@pytest.mark.contract
@pytest.mark.parametrize("first", ["state", "record"])
def test_a_record_and_its_state_are_one_step_also_if_the_state_comes_first(run: Any, first: str) -> None:
    def body(function: Function, context: SourceContext) -> None:
        while not function.stop.is_set():
            with context.checkpoint_lock, context.checkpoint_lock:
                function.offset += first == "state"
                context.collect("record")
                context.emit_watermark(1.0)
                function.offset += first == "record"

    job = run(body, capacity=3)
    taken = 0
    while taken < 1000:
        if (fetched := job.fetch()) is not None:
            taken += len(fetched.records)
            assert (fetched.position, fetched.timestamp) == ([1, taken], 1.0)


def test_a_section_that_raised_goes_out_with_the_next_one(run: Any) -> None:
    def body(function: Function, context: SourceContext) -> None:
        with contextlib.suppress(LookupError), context.checkpoint_lock:
            context.collect(1)
            raise LookupError
        function.offset = 1
        context.collect(2)

    assert run(body).fetch()[1:3] == ([1, 2], [1, 1])


def test_a_section_of_more_records_than_the_capacity_is_an_error_that_says_what_to_do(run: Any) -> None:
    def body(function: Function, context: SourceContext) -> None:
        with context.checkpoint_lock:
            for number in range(4):
                context.collect(number)

    with pytest.raises(RuntimeError, match="under test emits more than capacity=3 records.*larger capacity"):
        run(body, capacity=3).fetch()


def test_a_source_may_emit_from_threads_of_its_own(run: Any) -> None:
    def body(function: Function, context: SourceContext) -> None:
        def work() -> None:
            for _ in range(200):
                with context.checkpoint_lock:
                    context.collect("record")
                    offset = function.offset
                    function.offset = offset + 1

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    job = run(body)
    assert len(job.fetch_rows(600)) == 600
    assert job.fetch_next()[2:4] == ([1, 600], True)


# ---- what is emitted


def test_elements_are_emitted_in_order_and_idleness_ends_with_the_next_one(run: Any) -> None:
    steps: list[tuple[Callable[[SourceContext], object], list[Any], float | None, bool]] = [
        (lambda context: context.collect(None), [None], None, False),
        (lambda context: context.collect_with_timestamp("b", 2), ["b"], 2.0, False),
        (lambda context: context.collect_with_timestamp("early", 1), ["early"], 2.0, False),
        (lambda context: context.mark_as_temporarily_idle(), [], 2.0, True),
        (lambda context: context.emit_watermark(3), [], 3.0, False),
        (lambda context: context.mark_as_temporarily_idle(), [], 3.0, True),
        # Times of records count no more where there are watermarks.
        (lambda context: context.collect_with_timestamp("c", 7), ["c"], 3.0, False),
        (lambda context: context.emit_watermark(float("inf")), [], float("inf"), False),
    ]

    def body(function: Function, context: SourceContext) -> None:
        for step, *_ in steps:
            assert goes_on.acquire(timeout=LONG)
            step(context)

    goes_on = threading.Semaphore(0)
    job = run(body)
    for _, records, timestamp, idle in steps:
        goes_on.release()
        fetched = job.fetch()
        assert (fetched.records, fetched.timestamp, fetched.idle) == (records, timestamp, idle)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda context: context.collect_with_timestamp(1, None), TypeError, "timestamp=None"),
        (lambda context: context.emit_watermark(float("nan")), ValueError, "timestamp=nan"),
        (lambda context: context.wait(-1), ValueError, "seconds=-1"),
    ],
)
def test_a_bad_argument_is_named_and_reaches_the_task(run: Any, call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        run(lambda function, context: call(context)).fetch()


@pytest.mark.contract
@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_a_source_is_no_further_ahead_than_the_capacity(run: Any, capacity: int) -> None:
    def body(function: Function, context: SourceContext) -> None:
        while not function.stop.is_set():
            with context.checkpoint_lock:
                context.collect("record")
                function.offset += 1
                most[0] = max(most[0], function.offset - taken[0])

    most, taken = [0], [0]
    job = run(body, capacity=capacity)
    while taken[0] < 200:
        fetched = job.fetch()
        assert 1 <= len(fetched.records) <= capacity
        taken[0] += len(fetched.records)
    # What a fetch has taken and is not counted here yet comes besides.
    assert capacity <= most[0] <= 2 * capacity


# ---- the end


@pytest.mark.contract("An error of a legacy source reaches the task.")
def test_an_error_of_the_source_reaches_the_task(run: Any) -> None:
    def fail(function: Function, context: SourceContext) -> None:
        context.collect(1)
        raise LookupError("source")

    job = run(fail)
    assert job.fetch_rows(1) == [1]
    with pytest.raises(LookupError, match="source"):
        job.fetch()


def wait_for_room(function: Function, context: SourceContext) -> None:
    while True:
        context.collect("again")


def wait_for_a_section(function: Function, context: SourceContext) -> None:
    while True:
        with context.checkpoint_lock:
            context.collect("again")


def wait_for_an_event(function: Function, context: SourceContext) -> None:
    assert function.stop.wait(LONG)


def wait_for_time(function: Function, context: SourceContext) -> None:
    assert context.wait(LONG)
    assert context.is_cancelled


def swallow_and_go_on(function: Function, context: SourceContext) -> None:
    while True:
        with contextlib.suppress(Exception):
            context.collect("again")


@pytest.mark.contract
@pytest.mark.parametrize(
    "waits", [wait_for_room, wait_for_a_section, wait_for_an_event, wait_for_time, swallow_and_go_on]
)
def test_a_cancel_interrupts_a_source_that_waits(run: Any, waits: Any) -> None:
    job = run(waits, capacity=1)
    begin_and_wake(job)
    job.reader.close()
    assert job.function.ended.is_set()
    assert job.function.cancels == 1


@pytest.mark.contract
def test_a_source_that_ignores_its_cancel_is_named_and_abandoned_and_emits_nothing_more(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def body(function: Function, context: SourceContext) -> None:
        context.collect(1)
        try:
            with context.checkpoint_lock:
                context.collect(2)
                holds.set()
                assert go_on.wait(LONG)
        except SourceCancelled:
            caught.append("cancelled")
        for emit in (lambda: context.collect(3), context.mark_as_temporarily_idle):
            with pytest.raises(SourceCancelled):
                emit()
            caught.append("cancelled")

    holds, go_on = threading.Event(), threading.Event()
    caught: list[str] = []
    job = run(body, grace=0.01)
    assert job.fetch_rows(1) == [1]
    assert holds.wait(LONG)
    job.reader.close()
    job.reader.close()
    (record,) = caplog.records
    assert "source under test has not ended within 0.01 s" in record.message
    go_on.set()
    assert job.function.ended.wait(LONG)
    assert caught == ["cancelled"] * 3


def test_an_error_after_the_cancel_is_no_error_of_the_task(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def body(function: Function, context: SourceContext) -> None:
        assert function.stop.wait(LONG)
        raise OSError("the connection was closed")

    job = run(body)
    begin_and_wake(job)
    with caplog.at_level(logging.INFO, logger="pillarbox"):
        job.reader.close()
    assert "under test ended with an error after its cancel" in caplog.text


def test_a_cancel_that_raises_is_logged_and_the_source_ends(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Function):
        def cancel(self) -> None:
            raise LookupError("cancel")

    job = run(lambda function, context: context.wait(LONG), Fails)
    begin_and_wake(job)
    job.reader.close()
    assert job.function.ended.is_set()
    assert "the cancel of source under test raised" in caplog.text


def test_a_source_that_has_ended_is_not_cancelled(run: Any) -> None:
    job = run(lambda function, context: context.collect(1))
    assert job.fetch_rows(1) == [1]
    while not (fetched := job.fetch()) or not fetched.finished:
        pass
    assert job.function.cancels == 0
