"""A process that cannot start one more thread: rows that were not called wait, or the task fails in words."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox import Batch, Errors, Step, Timeout, async_map
from tests.threads import begun

CALLS = "pillarbox-call-"


class FewThreads:
    """A stand-in for the start of threads: of those for calls, as many as `left` says begin."""

    def __init__(self, error: BaseException) -> None:
        self.start = threading.Thread.start
        self.error = error
        self.left = 0
        self.refused = 0

    def __call__(self, thread: threading.Thread) -> None:
        if thread.name.startswith(CALLS) and self.room <= 0:
            self.refused += 1
            raise self.error
        self.start(thread)

    @property
    def room(self) -> int:
        """Threads that may begin: those that have ended leave room."""
        return self.left - len(begun(CALLS))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FewThreads:
    error = getattr(request, "param", RuntimeError("can't start new thread"))
    few = FewThreads(error)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: few(thread))
    return few


def same(row: int) -> int:
    return row


def all_same(rows: list[int]) -> list[int]:
    return rows


@pytest.mark.contract("Rows wait for the threads there are where no more can be started; none fails for it.")
@pytest.mark.parametrize(
    "threads",
    [RuntimeError("can't start new thread"), MemoryError(), OSError(12, "Cannot allocate memory")],
    indirect=True,
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("batch", [None, Batch(3)])
def test_rows_wait_for_the_threads_there_are(threads: FewThreads, batch: Batch | None) -> None:
    threads.left = 3
    names: set[str] = set()

    def call(given: Any) -> Any:
        names.add(threading.current_thread().name)
        return given

    results = list(async_map(range(300), call, capacity=60, batch=batch, errors="null"))
    assert results == list(range(300))
    assert len(names) <= 3 and threads.refused


def test_fewer_threads_than_capacity_are_told_once_with_numbers_and_what_to_do(
    threads: FewThreads, caplog: pytest.LogCaptureFixture
) -> None:
    threads.left = 3
    with caplog.at_level(logging.WARNING):
        list(async_map(range(300), same, capacity=60))
    (text,) = [record.getMessage() for record in caplog.records if "threads" in record.getMessage()]
    assert text.startswith("capacity: 60 calls of same may be in flight, and no more than 3 threads can be ")
    assert "can't start new thread" in text and "ulimit -u" in text


@pytest.mark.contract("A task that can start no thread at all fails in words, and no row of it does.")
@pytest.mark.parametrize("mode", ["null", "drop", "column", "fail"])
@pytest.mark.parametrize("batch", [None, Batch(3)])
def test_a_task_without_any_thread_fails_in_words(
    threads: FewThreads, mode: Any, batch: Batch | None
) -> None:
    fn: Any = same if batch is None else all_same
    with pytest.raises(RuntimeError, match=r"^no thread can be started for the calls of .*ulimit -u"):
        list(async_map(range(300), fn, capacity=60, batch=batch, errors=Errors(mode, floor=None)))


def test_a_function_behind_one_that_has_taken_all_threads_gets_one_of_them(threads: FewThreads) -> None:
    threads.left = 4
    steps = [Step(same, uid="a"), Step(same, uid="b"), Step(same, uid="c")]
    assert list(async_map(range(300), steps, capacity=60, errors="null")) == list(range(300))


@pytest.mark.slow
def test_more_threads_are_tried_later(threads: FewThreads) -> None:
    threads.left = 1
    both = threading.Barrier(2)

    def meet(row: int) -> int:
        # The first call waits for one in a second thread, which is allowed from now on.
        threads.left = 2
        if row < 2:
            both.wait(30)
        return row

    assert list(async_map(range(10), meet, capacity=5)) == list(range(10))


def test_waiting_for_a_thread_is_no_attempt(threads: FewThreads) -> None:
    threads.left = 2
    calls: list[int] = []

    def count(row: int) -> int:
        calls.append(row)
        return row

    job = async_map(range(200), count, capacity=50, retry=None, timeout=Timeout(attempt=30.0))
    assert list(job) == list(range(200))
    assert sorted(calls) == list(range(200))


def test_calls_that_go_on_without_their_threads_leave_these_to_others(threads: FewThreads) -> None:
    threads.left = 1
    futures: list[Future[int]] = []

    def later(row: int) -> Future[int]:
        futures.append(Future())
        if len(futures) == 5:
            for place, future in enumerate(futures):
                future.set_result(place)
        return futures[-1]

    # Each ends only once all five have begun.
    assert sorted(async_map(range(5), later, capacity=5)) == list(range(5))


def test_threads_that_are_all_left_behind_end_the_job(threads: FewThreads) -> None:
    threads.left = 2
    release = threading.Event()

    def hang(row: int) -> int:
        release.wait(60)
        return row

    errors = Errors("null", floor=None)
    job = async_map(range(100), hang, capacity=20, timeout=Timeout(attempt=0.01), errors=errors)
    with pytest.raises(RuntimeError, match="thread"):
        list(job)
    release.set()
    for thread in begun(CALLS):
        thread.join()
