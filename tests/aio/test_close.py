"""The operator without Spark: what is opened is closed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox import CallFailed, PillarboxError, async_map
from tests.threads import begun

pytestmark = pytest.mark.usefixtures("each_loop", "no_thread_is_left")


def pillarbox_threads() -> list[str]:
    return sorted(thread.name for thread in begun())


async def identity(row: int) -> int:
    return row


class Endless:
    """Calls that end only by cancellation, from row 1 on; says how many were cancelled.

    `full` is set when 8 of them run.
    """

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.full = threading.Event()

    async def __call__(self, row: int) -> int:
        if row:
            self.begun += 1
            if self.begun == 8:
                self.full.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return row


def rows() -> Iterator[int]:
    yield from range(100)


def by_close(results: object) -> None:
    results.close()  # type: ignore[attr-defined]


def by_with(results: object) -> None:
    with results:  # type: ignore[attr-defined]
        pass


@pytest.mark.contract
@pytest.mark.parametrize("end", [by_close, by_with])
@pytest.mark.parametrize("source", [rows, lambda: range(100)], ids=["iterator", "collection"])
def test_closing_early_cancels_the_calls_and_ends_the_threads(
    end: Callable[[object], None], source: Callable[[], object]
) -> None:
    endless = Endless()
    results = async_map(source(), endless, capacity=8)  # type: ignore[call-overload]
    assert next(results) == 0
    assert endless.full.wait()
    end(results)
    assert endless.cancelled == 8
    assert pillarbox_threads() == []
    assert list(results) == []


def test_dropping_the_iterator_ends_the_threads() -> None:
    endless = Endless()
    results = async_map(range(100), endless, capacity=8)
    assert next(results) == 0
    assert endless.full.wait()
    del results
    gc.collect()
    assert endless.cancelled == 8
    assert pillarbox_threads() == []


def test_an_iterator_that_was_never_used_starts_nothing() -> None:
    async_map(range(3), identity)
    assert pillarbox_threads() == []


@pytest.mark.contract
def test_after_the_last_result_no_thread_is_left() -> None:
    results = async_map(rows(), identity)
    assert len(list(results)) == 100
    assert pillarbox_threads() == []


def test_after_an_error_no_thread_is_left() -> None:
    def fail(row: int) -> int:
        raise ValueError(row)

    with pytest.raises(CallFailed):
        list(async_map(rows(), fail))


class Session:
    """A resource that counts how it is used."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Session:
        self.loop = asyncio.get_running_loop()
        self.log.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.log.append("close")

    async def __call__(self, row: int) -> int:
        assert asyncio.get_running_loop() is self.loop
        self.log.append("call")
        return row


@pytest.mark.contract
def test_a_resource_is_opened_before_the_first_call_and_closed_after_the_last() -> None:
    session = Session()
    assert list(async_map(range(3), session)) == [0, 1, 2]
    assert session.log == ["open", "call", "call", "call", "close"]


def test_a_resource_is_closed_when_the_iteration_ends_early() -> None:
    session = Session()
    with async_map(range(1000), session, capacity=1) as results:
        next(results)
    assert session.log[0] == "open"
    assert session.log[-1] == "close"
    assert session.log.count("close") == 1


def test_a_plain_context_manager_around_a_blocking_function_works_too() -> None:
    class Connection:
        def __init__(self) -> None:
            self.log: list[str] = []

        def __enter__(self) -> Callable[[int], int]:
            self.log.append("open")
            return lambda row: row + 1

        def __exit__(self, *error: object) -> None:
            self.log.append("close")

        def __call__(self, row: int) -> int:
            raise AssertionError("what __enter__ gave is to be called")

    connection = Connection()
    assert list(async_map(range(3), connection)) == [1, 2, 3]
    assert connection.log == ["open", "close"]


def test_a_resource_that_cannot_be_opened_says_so_and_leaves_nothing() -> None:
    class Broken:
        async def __aenter__(self) -> None:
            raise ConnectionError("refused")

        async def __aexit__(self, *error: object) -> None:
            raise AssertionError("was never entered")

        async def __call__(self, row: int) -> int:
            return row

    with pytest.raises(PillarboxError, match="its __aenter__ raised ConnectionError: refused") as caught:
        next(async_map([1], Broken()))
    assert type(caught.value).__name__ == "OpenFailed"


@pytest.mark.contract
def test_closing_waits_for_blocking_calls_before_it_closes_their_resource() -> None:
    class Connection:
        def __init__(self) -> None:
            self.is_open = False
            self.used_closed = 0
            self.began = threading.Event()

        def __enter__(self) -> Connection:
            self.is_open = True
            return self

        def __exit__(self, *error: object) -> None:
            self.is_open = False

        def __call__(self, row: int) -> int:
            if row:
                self.began.set()
                time.sleep(0.2)
            self.used_closed += not self.is_open
            return row

    connection = Connection()
    with async_map(range(50), connection, capacity=4) as results:
        next(results)
        assert connection.began.wait()
    assert (connection.used_closed, connection.is_open) == (0, False)
    assert pillarbox_threads() == []


@pytest.mark.contract
def test_an_error_while_closing_does_not_hide_the_error_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Session):
        async def __aexit__(self, *error: object) -> None:
            raise RuntimeError("cannot close")

        async def __call__(self, row: int) -> int:
            if row == 3:
                raise ValueError("call")
            return row

    with caplog.at_level(logging.WARNING, "pillarbox"), pytest.raises(CallFailed, match="call"):
        list(async_map(range(5), Broken()))
    assert "cannot close" in caplog.text
    with pytest.raises(RuntimeError, match="cannot close"):
        list(async_map(range(2), Broken()))


@pytest.mark.parametrize("turns", range(8))
def test_a_job_that_is_left_in_its_first_turns_calls_nothing_afterwards(turns: int) -> None:
    calls = []

    async def call(row: int) -> int:
        calls.append(row)
        await asyncio.sleep(0)
        return row

    async def consume() -> None:
        async for _ in async_map(range(1000), call, capacity=1):
            pass

    async def script() -> int:
        consuming = asyncio.create_task(consume())
        for _ in range(turns):
            await asyncio.sleep(0)
        consuming.cancel()
        await asyncio.wait([consuming])
        begun = len(calls)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(0.01)
        assert len(calls) == begun
        return begun

    assert asyncio.run(script()) <= turns
    assert turns > 1 or calls == []


def test_an_iterator_may_be_collected_on_any_thread() -> None:
    class Cycle:
        pass

    session = Session()
    cycle: Any = Cycle()
    cycle.self = cycle
    cycle.results = async_map(iter(range(1000)), session, capacity=2)
    next(cycle.results)
    del cycle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    for thread in begun():
        thread.join()
    assert session.log[-1] == "close"
    assert pillarbox_threads() == []


def run_script(source: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_while_waiting_for_a_result_cancels_and_ends() -> None:
    process = run_script(
        """
        import asyncio, threading
        from pillarbox import async_map

        async def call(row):
            print("called", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                print("cancelled", flush=True)

        try:
            list(async_map([1], call))
        except KeyboardInterrupt:
            names = [t.name for t in threading.enumerate() if t.name.startswith("pillarbox")]
            print("interrupted", names, flush=True)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert out.splitlines() == ["cancelled", "interrupted []"], (out, err)
    assert process.returncode == 0


@pytest.mark.contract
def test_a_process_ends_although_an_iterator_is_left_open() -> None:
    process = run_script(
        """
        import asyncio
        from pillarbox import async_map

        async def call(row):
            if row:
                await asyncio.Event().wait()
            return row

        results = async_map(range(10), call)
        print(next(results), flush=True)
        """
    )
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "0\n", "")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
def test_a_hundred_runs_leave_no_open_file() -> None:
    list(async_map(range(3), identity))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        list(async_map(range(3), identity))
    # What other tests have left in this process may open a file of its own meanwhile; a run's would be 100.
    assert len(os.listdir("/proc/self/fd")) < before + 50
