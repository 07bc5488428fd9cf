"""The thread of libcurl by itself: its edges, which requests through a transport do not meet."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pillarbox.kernel import ForkedError

pycurl = pytest.importorskip("pycurl")
if sys.platform != "linux":
    pytest.skip("the thread waits in an epoll", allow_module_level=True)

from pillarbox.clients import libcurl_transport  # noqa: E402
from pillarbox.kernel import libcurl  # noqa: E402

NAME = "pillarbox-http"
NO_HEADERS = libcurl.HeaderLines([])


def native_threads() -> int:
    """The number of threads of this process that drive libcurl."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        # One may end meanwhile.
        with suppress(OSError):
            found += (task / "comm").read_text().strip() == NAME
    return found


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    opened = asyncio.new_event_loop()
    yield opened
    opened.close()


@pytest.fixture
def thread() -> Iterator[libcurl.HttpThread]:
    opened = libcurl.HttpThread([(pycurl.NOSIGNAL, 1)], [])
    yield opened
    opened.close()


def sent(thread: libcurl.HttpThread, future: asyncio.Future[None]) -> libcurl.HttpRequest:
    """A request to a port of this machine that nobody listens at."""
    return thread.send(future, b"GET", b"http://127.0.0.1:1/", NO_HEADERS, b"", None)


def test_what_was_not_flushed_ends_with_the_thread(
    loop: asyncio.AbstractEventLoop, thread: libcurl.HttpThread
) -> None:
    futures = [loop.create_future() for _ in range(3)]
    requests = [sent(thread, future) for future in futures]
    thread.cancel(requests[0])
    futures[1].cancel()
    thread.close()
    assert [future.done() for future in futures] == [True] * 3
    assert futures[1].cancelled()
    # Cancelled; the others failed to connect, or had not begun.
    assert all(request.code != 0 for request in requests)
    thread.close()


def test_a_request_that_has_ended_may_be_cancelled(
    loop: asyncio.AbstractEventLoop, thread: libcurl.HttpThread
) -> None:
    ended = loop.create_future()
    request = sent(thread, ended)
    loop.add_reader(thread.fileno(), thread.resolve_futures)
    thread.flush()
    loop.run_until_complete(asyncio.wait_for(ended, 60))
    assert request.code == pycurl.E_COULDNT_CONNECT
    assert request.os_errno
    thread.cancel(request)
    thread.flush()
    another = loop.create_future()
    sent(thread, another)
    thread.flush()
    loop.run_until_complete(asyncio.wait_for(another, 60))
    loop.remove_reader(thread.fileno())


def test_what_was_sent_is_let_go_of_when_the_request_has_ended(
    loop: asyncio.AbstractEventLoop, thread: libcurl.HttpThread
) -> None:
    headers, body = libcurl.HeaderLines([b"Expect:"]), os.urandom(100)
    before = sys.getrefcount(headers), sys.getrefcount(body)
    request = thread.send(loop.create_future(), b"POST", b"http://127.0.0.1:1/", headers, b"", body)
    assert (sys.getrefcount(headers), sys.getrefcount(body)) == (before[0] + 1, before[1] + 1)
    thread.close()
    assert request.code
    assert (sys.getrefcount(headers), sys.getrefcount(body)) == before


def test_a_thread_that_nobody_refers_to_ends(loop: asyncio.AbstractEventLoop) -> None:
    gc.collect()
    before = native_threads()
    opened = libcurl.HttpThread([], [])
    assert native_threads() == before + 1
    future = loop.create_future()
    sent(opened, future)
    del opened
    gc.collect()
    assert native_threads() == before
    assert future.done()


def test_a_transport_that_was_not_closed_ends_its_thread() -> None:
    gc.collect()
    before = native_threads()

    async def forget() -> weakref.ref[object]:
        return weakref.ref(libcurl_transport.LibcurlTransport(libcurl_transport.Http()))

    assert asyncio.run(forget())() is None
    assert native_threads() == before


def test_in_the_child_of_a_fork_a_thread_refuses_to_work(
    loop: asyncio.AbstractEventLoop, thread: libcurl.HttpThread
) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            for call in (thread.flush, thread.resolve_futures, thread.close, thread.fileno):
                try:
                    call()
                except ForkedError:
                    refused += 1
            try:
                sent(thread, loop.create_future())
            except ForkedError:
                refused += 1
            # A thread of its own works.
            future = loop.create_future()
            own = libcurl.HttpThread([], [])
            sent(own, future)
            own.close()
            code = 0 if refused == 5 and future.done() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    future = loop.create_future()
    sent(thread, future)
    thread.close()
    assert future.done()


def test_a_zero_byte_is_refused(loop: asyncio.AbstractEventLoop, thread: libcurl.HttpThread) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        thread.send(loop.create_future(), b"GET", b"http://127.0.0.1/\0", NO_HEADERS, b"", None)
    with pytest.raises(ValueError, match="zero byte"):
        libcurl.HeaderLines([b"a: \0"])


def test_an_option_that_libcurl_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="libcurl refuses 1 for its option 9999"):
        libcurl.HttpThread([(9_999, 1)], [])
    with pytest.raises(ValueError, match="libcurl refuses 1 for its option 9999"):
        libcurl.HttpThread([], [(9_999, 1)])


def test_a_library_without_libcurl_is_told() -> None:
    with pytest.raises(ImportError, match="libcurl was not found") as raised:
        libcurl.load(pytest.importorskip("_ctypes").__file__)
    assert raised.value.name == "libcurl"
    # The one that was found before stays.
    libcurl.HttpThread([], []).close()


def test_the_signals_of_the_process_are_for_other_threads(thread: libcurl.HttpThread) -> None:
    thread.fileno()
    masks = []
    for task in Path("/proc/self/task").iterdir():
        # A thread of another test may end between the listing and this look.
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == NAME:
                lines = (task / "status").read_text().splitlines()
                masks += [int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:")]
    assert masks
    # All but those that cannot be blocked (9 and 19) and two of the C library's (32 and 33).
    assert {mask | 1 << 8 | 1 << 18 | 3 << 31 for mask in masks} == {(1 << 64) - 1}
    assert threading.current_thread() is threading.main_thread()
