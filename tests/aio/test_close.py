"""The operator without Spark: what is opened is closed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest

from pillarbox import CallFailed, async_map


def pillarbox_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("pillarbox-"))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


async def identity(row: int) -> int:
    return row


class Endless:
    """Calls that end only by cancellation, from row 1 on; says how many were cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def __call__(self, row: int) -> int:
        if row:
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


@pytest.mark.parametrize("end", [by_close, by_with])
@pytest.mark.parametrize("source", [rows, lambda: range(100)], ids=["iterator", "collection"])
def test_closing_early_cancels_the_calls_and_ends_the_threads(
    end: Callable[[object], None], source: Callable[[], object]
) -> None:
    endless = Endless()
    results = async_map(endless, source(), capacity=8)  # type: ignore[call-overload]
    assert next(results) == 0
    end(results)
    assert endless.cancelled == 8
    assert pillarbox_threads() == []
    assert list(results) == []


def test_dropping_the_iterator_ends_the_threads() -> None:
    endless = Endless()
    results = async_map(endless, range(100), capacity=8)
    assert next(results) == 0
    del results
    gc.collect()
    assert endless.cancelled == 8
    assert pillarbox_threads() == []


def test_an_iterator_that_was_never_used_starts_nothing() -> None:
    async_map(identity, range(3))
    assert pillarbox_threads() == []


def test_after_the_last_result_no_thread_is_left() -> None:
    results = async_map(identity, rows())
    assert len(list(results)) == 100
    assert pillarbox_threads() == []


def test_after_an_error_no_thread_is_left() -> None:
    def fail(row: int) -> int:
        raise ValueError(row)

    with pytest.raises(CallFailed):
        list(async_map(fail, rows()))


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


def test_a_resource_is_opened_before_the_first_call_and_closed_after_the_last() -> None:
    session = Session()
    assert list(async_map(session, range(3))) == [0, 1, 2]
    assert session.log == ["open", "call", "call", "call", "close"]


def test_a_resource_is_closed_when_the_iteration_ends_early() -> None:
    session = Session()
    with async_map(session, range(1000), capacity=1) as results:
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
    assert list(async_map(connection, range(3))) == [1, 2, 3]
    assert connection.log == ["open", "close"]


def test_a_resource_that_cannot_be_opened_says_so_and_leaves_nothing() -> None:
    class Broken:
        async def __aenter__(self) -> None:
            raise ConnectionError("refused")

        async def __aexit__(self, *error: object) -> None:
            raise AssertionError("was never entered")

        async def __call__(self, row: int) -> int:
            return row

    with pytest.raises(ConnectionError, match="refused"):
        next(async_map(Broken(), [1]))


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
            list(async_map(call, [1]))
        except KeyboardInterrupt:
            names = [t.name for t in threading.enumerate() if t.name.startswith("pillarbox")]
            print("interrupted", names, flush=True)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.splitlines() == ["cancelled", "interrupted []"], (out, err)
    assert process.returncode == 0


def test_a_process_ends_although_an_iterator_is_left_open() -> None:
    process = run_script(
        """
        import asyncio
        from pillarbox import async_map

        async def call(row):
            if row:
                await asyncio.Event().wait()
            return row

        results = async_map(call, range(10))
        print(next(results), flush=True)
        """
    )
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "0\n", "")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
def test_a_hundred_runs_leave_no_open_file() -> None:
    list(async_map(identity, range(3)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        list(async_map(identity, range(3)))
    assert len(os.listdir("/proc/self/fd")) <= before
