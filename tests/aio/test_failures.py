"""The operator without Spark: time-outs, retries, errors, and functions that misbehave."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import pickle
import threading
from collections.abc import Iterator

import pytest

from pillarbox import Buffer, CallFailed, CallTimeout, Retry, Timeout, async_map
from tests.aio.virtual import Job, now, play
from tests.waiting import until, wait_until

pytestmark = pytest.mark.usefixtures("each_loop")

FAST = Retry(attempts=3, initial=0.001, maximum=0.002)


class Flaky:
    """Fails the first `failures` attempts of each row."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.attempts: dict[int, int] = {}

    async def __call__(self, row: int) -> int:
        self.attempts[row] = self.attempts.get(row, 0) + 1
        if self.attempts[row] <= self.failures:
            raise self.error(f"row {row}")
        return row


@pytest.mark.contract
def test_an_error_fails_with_the_row_the_attempts_and_the_original_traceback() -> None:
    async def broken(row: str) -> str:
        raise ValueError("bad gateway")

    with pytest.raises(
        CallFailed, match=r"call failed after 1 attempt for row 'x{50}.*…: ValueError: bad gateway"
    ) as caught:
        list(async_map(["x" * 1000], broken))
    assert caught.value.attempts == 1
    assert len(caught.value.row or "") <= 200
    assert isinstance(caught.value.__cause__, ValueError)
    traceback = caught.value.__cause__.__traceback__
    names = []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names[-1] == "broken"


@pytest.mark.contract
def test_errors_can_be_pickled() -> None:
    failed = pickle.loads(pickle.dumps(CallFailed(2, ValueError("x"), "row")))
    assert (failed.attempts, failed.row, str(failed)) == (
        2,
        "row",
        str(CallFailed(2, ValueError("x"), "row")),
    )
    late = pickle.loads(pickle.dumps(CallTimeout("timeout", 1.5, 2, "row")))
    assert (late.seconds, late.attempts, late.limit) == (1.5, 2, "timeout")
    assert isinstance(late, TimeoutError)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_retry_succeeds_in_a_later_attempt(ordered: bool) -> None:
    # Not as if the service were away, which would be waited for.
    flaky = Flaky(2, OSError)
    results = async_map(range(20), flaky, retry=FAST, capacity=3, ordered=ordered)
    assert sorted(results) == list(range(20))
    assert set(flaky.attempts.values()) == {3}
    counts = results.statistics()
    assert counts is not None
    assert (counts.calls, counts.retries, counts.errors) == (60, 40, 0)


@pytest.mark.contract
def test_after_the_last_attempt_the_error_says_how_many_there_were() -> None:
    with pytest.raises(CallFailed, match="call failed after 3 attempts for row 7: ConnectionError: row 7"):
        list(async_map([7], Flaky(3), retry=FAST))


@pytest.mark.contract
def test_only_the_named_errors_are_retried() -> None:
    flaky = Flaky(1)
    with pytest.raises(CallFailed, match="after 1 attempt"):
        list(async_map([1], flaky, retry=Retry(attempts=5, on=(TimeoutError,))))


@pytest.mark.contract
def test_a_call_that_waits_for_its_retry_holds_no_slot() -> None:
    second = threading.Event()

    async def call(row: int) -> int:
        if row == 0 and not second.is_set():
            raise ConnectionError
        second.set()
        return row

    # With a slot held for an hour, row 1 would not be called.
    retry = Retry(attempts=2, initial=3600, maximum=3600, jitter=False)
    results = async_map(range(2), call, capacity=1, retry=retry, ordered=False)
    assert next(results) == 1
    results.close()


@pytest.mark.contract
def test_errors_null_gives_none_for_failed_rows_and_goes_on() -> None:
    async def odd_only(row: int) -> int:
        if row % 2 == 0:
            raise ValueError(row)
        return row

    results = async_map(range(6), odd_only, errors="null")
    assert list(results) == [None, 1, None, 3, None, 5]
    counts = results.statistics()
    assert counts is not None and counts.errors == 3


@pytest.mark.contract
def test_a_timeout_cancels_the_coroutine_and_fails_with_the_limit() -> None:
    cancelled = threading.Event()

    async def never(row: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(CallTimeout, match=r"no result within timeout=0.05 s, in attempt 1 for row 3"):
        list(async_map([3], never, timeout=0.05))
    assert cancelled.is_set()


def test_an_attempt_that_times_out_is_tried_again() -> None:
    seen: list[int] = []

    async def slow_once(row: int) -> int:
        seen.append(row)
        if len(seen) == 1:
            await asyncio.Event().wait()
        return row

    async def script() -> None:
        async with async_map([5], slow_once, timeout=Timeout(attempt=5.0), retry=FAST) as results:
            assert [row async for row in results] == [5]
        assert seen == [5, 5]
        counts = results.statistics()
        assert counts is not None and (counts.timeouts, counts.retries, counts.late) == (1, 1, 0)

    play(script)


@pytest.mark.contract
def test_the_timeout_bounds_all_attempts_and_their_pauses() -> None:
    async def fail(row: int) -> None:
        raise ConnectionError

    retry = Retry(attempts=100, initial=3600, maximum=3600, jitter=False)
    with pytest.raises(CallTimeout, match="no result within timeout=0.1 s"):
        list(async_map([1], fail, timeout=0.1, retry=retry))


@pytest.mark.contract
def test_the_timeout_does_not_count_the_wait_for_a_slot() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(4.0)
        return row

    async def script() -> None:
        # Twenty calls one after the other take four times as long as each may.
        job = Job(call, capacity=1, timeout=20.0, buffer=Buffer(20))
        job.push(*range(20))
        await job.end()
        assert job.results == [*range(20)]
        assert now() == pytest.approx(80.0)

    play(script)


@pytest.mark.contract
def test_a_call_that_swallows_its_cancellation_does_not_hold_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    ended = threading.Event()

    async def stubborn(row: int) -> int:
        if row == 0:
            while not release.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue
            ended.set()
        return row

    async def script() -> None:
        async with async_map(range(5), stubborn, capacity=1, timeout=9.0, errors="null") as results:
            assert [row async for row in results] == [None, 1, 2, 3, 4]
        counts = results.statistics()
        assert counts is not None and counts.abandoned == 1
        release.set()
        await until(ended.is_set)

    with caplog.at_level(logging.WARNING, "pillarbox"):
        play(script)
    assert "stubborn did not end within" in caplog.text


@pytest.mark.contract
@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_function_that_raises_what_ends_loops_fails_its_row_and_nothing_hangs(
    kind: type[BaseException],
) -> None:
    async def odd(row: int) -> int:
        if row == 2:
            raise kind()
        return row

    with pytest.raises(CallFailed, match=f"row 2: {kind.__name__}") as caught:
        list(async_map(range(5), odd, capacity=2))
    assert isinstance(caught.value.cause, kind)
    assert list(async_map(range(5), odd, capacity=2, errors="null")) == [0, 1, None, 3, 4]


def test_a_function_that_cancels_its_own_task_fails_its_row_only() -> None:
    async def odd(row: int) -> int:
        if row == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return row

    assert list(async_map(range(6), odd, capacity=1, errors="null")) == [0, 1, None, 3, 4, 5]


def test_a_cancellation_left_behind_does_not_reach_the_next_call() -> None:
    async def odd(row: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return row

    assert list(async_map(range(20), odd, capacity=2)) == list(range(20))


@pytest.mark.contract
def test_a_failed_job_cancels_the_calls_in_flight() -> None:
    cancelled = threading.Event()

    async def call(row: int) -> None:
        if row == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        raise ValueError

    with pytest.raises(CallFailed):
        list(async_map(range(2), call))
    assert cancelled.is_set()


# -- blocking functions --------------------------------------------------------------------------


@pytest.mark.contract
def test_a_blocking_function_runs_in_threads_under_the_same_limits() -> None:
    lock = threading.Lock()
    running = most = 0
    barrier = threading.Barrier(4)

    def call(row: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait()
        with lock:
            running -= 1
        return row

    assert list(async_map(range(40), call, capacity=4)) == list(range(40))
    assert most == 4


def test_a_blocking_function_is_retried_and_fails_like_an_async_one() -> None:
    attempts: dict[int, int] = {}
    lock = threading.Lock()

    def call(row: int) -> int:
        with lock:
            attempts[row] = attempts.get(row, 0) + 1
        if attempts[row] < 3:
            raise ConnectionError(row)
        return row

    assert list(async_map(range(10), call, retry=FAST, capacity=4)) == list(range(10))
    attempts.clear()
    with pytest.raises(CallFailed, match="after 1 attempt"):
        list(async_map([1], call))


def test_a_blocking_call_that_never_returns_meets_its_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()

    def call(row: int) -> int:
        if row == 0:
            release.wait(30)
        return row

    with caplog.at_level(logging.WARNING, "pillarbox"):
        results = async_map(range(5), call, capacity=1, timeout=0.3, errors="null")
        assert list(results) == [None, 1, 2, 3, 4]
    release.set()
    counts = results.statistics()
    assert counts is not None and counts.abandoned == 1
    assert "call did not return within" in caplog.text


def test_a_blocking_call_that_returns_late_is_counted_and_ignored() -> None:
    late = threading.Event()

    def call(row: int) -> int:
        if row == 0 and not late.is_set():
            late.set()
            wait_until(lambda: (counts := results.statistics()) and counts.timeouts)
        return row

    results = async_map(range(3), call, capacity=1, timeout=Timeout(attempt=0.3), retry=FAST)
    assert list(results) == [0, 1, 2]
    counts = results.statistics()
    assert counts is not None and (counts.timeouts, counts.late, counts.abandoned) == (1, 1, 0)


@pytest.mark.contract
def test_a_plain_function_that_returns_an_awaitable_is_refused_with_advice() -> None:
    async def inner(row: int) -> int:
        return row

    def wrapper(row: int) -> object:
        return inner(row)

    with pytest.raises(CallFailed, match="make it `async def`"):
        list(async_map([1], wrapper))


def test_a_generator_function_gives_the_list_of_what_it_yields() -> None:
    def several(row: int) -> Iterator[int]:
        yield from range(row)

    assert list(async_map(range(3), several)) == [[], [0], [0, 1]]


def test_a_generator_function_sees_the_context_of_the_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    def several(row: int) -> Iterator[str]:
        yield variable.get()

    assert list(async_map(range(2), several)) == [["caller"], ["caller"]]


def test_a_context_variable_that_cannot_be_compared_does_no_harm() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    variable: contextvars.ContextVar[Odd] = contextvars.ContextVar("variable")
    variable.set(Odd())

    async def call(row: int) -> int:
        variable.set(Odd())
        return row

    assert list(async_map(range(10), call, capacity=2)) == list(range(10))


def test_a_task_of_a_call_that_raises_system_exit_fails_the_row_and_not_the_loop() -> None:
    async def inner() -> None:
        raise SystemExit(3)

    async def call(row: int) -> int:
        if row == 1:
            await asyncio.create_task(inner())
        return row

    assert list(async_map(range(4), call, errors="null")) == [0, None, 2, 3]


def test_a_timeout_that_the_function_raises_is_the_functions_and_not_ours() -> None:
    async def call(row: int) -> int:
        raise CallTimeout("timeout", 7.0, 1, "another row")

    with pytest.raises(CallFailed, match="row 1: CallTimeout: no result within timeout=7 s"):
        list(async_map([1], call))


def test_a_null_in_the_place_of_a_row_is_explained_once_for_each_kind_of_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def call(row: int) -> int:
        raise ValueError(row) if row % 2 else ConnectionError(row)

    with caplog.at_level(logging.WARNING, "pillarbox"):
        assert list(async_map(range(9), call, errors="null", capacity=1)) == [None] * 9
    assert [record.getMessage() for record in caplog.records] == [
        "a row failed, the first one for ConnectionError: "
        "call failed after 1 attempt for row 0: ConnectionError: 0",
        "a row failed, the first one for ValueError: call failed after 1 attempt for row 1: ValueError: 1",
    ]
