"""A process that has no descriptor, memory or port left for a call: no row fails for it, or the task does."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from typing import Any

import pytest

from pillarbox import Batch, Budget, Collector, Errors, Retry, Step, Timeout, async_map, current_call
from pillarbox.wire import Kind, read_error
from tests.aio.virtual import play

MODES = ["null", "drop", "column", "fail"]


def lacking(number: int = errno.EMFILE) -> OSError:
    """The error of a system that has none left."""
    return OSError(number, "Too many open files")


class Slots:
    """Things of which a process has so many: a call that gets none ends as the system would have it."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self.count = count
        self.error = lacking() if error is None else error
        self.taken = self.most = self.refused = 0
        self.calls: Counter[Any] = Counter()

    async def call(self, row: Any) -> Any:
        self.calls[row] += 1
        if self.taken >= self.count:
            self.refused += 1
            raise self.error
        self.taken += 1
        self.most = max(self.most, self.taken)
        try:
            await asyncio.sleep(0.01)
            return row
        finally:
            self.taken -= 1

    async def of_batch(self, rows: list[Any]) -> list[Any]:
        await self.call(rows[0])
        return rows


def values(results: list[Any], mode: str) -> list[Any]:
    """The results of rows, none of which has an error."""
    if mode == "column":
        assert all(each.error is None for each in results)
        return [each.result for each in results]
    return results


ERRORS = [
    lacking(),
    lacking(errno.ENFILE),
    lacking(errno.ENOBUFS),
    lacking(errno.ENOMEM),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@pytest.mark.contract(
    "A call that lacks descriptors, memory or a thread fails no row: it is made again, beside fewer others.",
    convicts=["lacking_row_fails"],
)
@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_batches", [False, True])
def test_no_row_fails_for_what_its_process_lacks(error: Exception, mode: Any, in_batches: bool) -> None:
    slots = Slots(7, error)
    fn = slots.of_batch if in_batches else slots.call
    batch = Batch(3) if in_batches else None
    results = list(async_map(range(300), fn, capacity=60, batch=batch, errors=Errors(mode, floor=None)))
    assert values(results, mode) == list(range(300))
    assert slots.most == 7 and slots.refused


@pytest.mark.contract(
    "A call that lacked something of its process does not count as an attempt, whatever `retry` is.",
    convicts=["lacking_counts_as_attempt"],
)
@pytest.mark.parametrize("retry", [None, Retry(2, initial=0.0, max_outage=0.0)])
def test_what_lacked_something_is_no_attempt(retry: Retry | None) -> None:
    slots = Slots(5)
    attempts: set[int] = set()

    async def fn(row: int) -> int:
        attempts.add(current_call().attempt)
        return await slots.call(row)

    assert list(async_map(range(100), fn, capacity=50, retry=retry)) == list(range(100))
    assert attempts == {1} and slots.refused


def test_what_fails_otherwise_has_all_its_attempts() -> None:
    slots = Slots(3)
    failures: Counter[int] = Counter()

    async def fn(row: int) -> int:
        await slots.call(row)
        failures[row] += 1
        if failures[row] < 3:
            raise ConnectionResetError
        return row

    retry = Retry(3, initial=0.0, max_outage=0.0)
    results = list(async_map(range(40), fn, capacity=20, retry=retry, errors=Errors("null", floor=None)))
    assert results == list(range(40))


def test_what_was_not_called_uses_no_budget_up() -> None:
    slots, budget = Slots(5), Budget(max_calls=100)
    results = list(async_map(range(100), slots.call, capacity=50, budget=budget, errors="null"))
    assert results == list(range(100))


@pytest.mark.contract(
    "The time of a row begins with a call that had what it needs.", convicts=["lacking_row_times_out"]
)
def test_the_time_of_a_row_begins_with_the_call_that_is_made() -> None:
    slots = Slots(2)

    async def main() -> list[Any]:
        job = async_map(
            range(60),
            slots.call,
            capacity=40,
            timeout=Timeout(total=0.015),
            errors=Errors("null", floor=None),
        )
        return [result async for result in job]

    # 60 calls of 0.01 s, two at a time: what was returned at the start waits for most of its time.
    assert play(main) == list(range(60))


def test_fewer_in_flight_are_told_once_with_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slots = Slots(7)
    with caplog.at_level(logging.WARNING):
        list(async_map(range(300), slots.call, capacity=60))
    (text,) = [record.getMessage() for record in caplog.records if "descriptors" in record.getMessage()]
    assert text.startswith(
        "capacity: 60 calls of Slots.call may be in flight, and this process has too few file "
    )
    assert "[Errno 24] Too many open files" in text and "RLIMIT_NOFILE" in text and "ulimit -n" in text


@pytest.mark.contract(
    "A task whose calls alone still lack something ends, with the resource, its limit and what to do.",
    convicts=["lacking_never_ends"],
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (lacking(), "no file descriptors left.*RLIMIT_NOFILE.*ulimit -n"),
        (MemoryError(), "no bytes of memory left.*MemoryError.*spark.executor.pyspark.memory"),
        (RuntimeError("can't start new thread"), "no threads left.*ulimit -u"),
    ],
    ids=["descriptors", "memory", "threads"],
)
def test_a_task_that_cannot_go_on_ends_in_words(error: Any, words: str, mode: Any, in_batches: bool) -> None:
    slots = Slots(0, error)

    async def main() -> None:
        fn = slots.of_batch if in_batches else slots.call
        batch = Batch(4) if in_batches else None
        job = async_map(range(50), fn, capacity=20, batch=batch, errors=Errors(mode, floor=None))
        async for _ in job:
            raise AssertionError("a result")

    with pytest.raises(RuntimeError, match=words):
        play(main)
    # At first all are tried, then one at a time.
    assert slots.refused < 60


def test_what_others_hold_is_waited_for_for_some_seconds() -> None:
    slots = Slots(0)

    async def main() -> list[Any]:
        asyncio.get_running_loop().call_later(2.0, setattr, slots, "count", 3)
        return [row async for row in async_map(range(20), slots.call, capacity=10)]

    assert play(main) == list(range(20))


def test_more_calls_are_made_again_once_there_is_more() -> None:
    slots = Slots(4)

    async def main() -> list[Any]:
        asyncio.get_running_loop().call_later(1.0, setattr, slots, "count", 1000)
        return [row async for row in async_map(range(60_000), slots.call, capacity=30)]

    assert len(play(main)) == 60_000
    assert slots.most > 12


def test_a_batch_that_alone_takes_too_much_memory_is_divided() -> None:
    sizes: list[int] = []

    async def fn(rows: list[int]) -> list[int]:
        sizes.append(len(rows))
        if len(rows) > 3:
            raise MemoryError
        return rows

    results = list(async_map(range(64), fn, batch=Batch(16), capacity=1, errors="null"))
    assert results == list(range(64)) and min(sizes) >= 1


def test_a_function_behind_another_waits_too() -> None:
    slots = Slots(5)
    steps = [Step(slots.call, uid="a"), Step(slots.call, uid="b")]
    assert list(async_map(range(100), steps, capacity=20, errors="null")) == list(range(100))


def test_a_collector_that_fails_for_want_of_a_descriptor_fails_no_row() -> None:
    slots = Slots(5)

    def start(row: int, collector: Collector[int]) -> None:
        async def run() -> None:
            try:
                collector.complete(await slots.call(row))
            except OSError as error:
                collector.fail(error)

        tasks.add(asyncio.get_running_loop().create_task(run()))

    tasks: set[asyncio.Task[None]] = set()
    assert list(async_map(range(100), start, capacity=40, errors="null")) == list(range(100))


# -- the errors of clients -----------------------------------------------------------------------------------


def raised_from(error: BaseException, cause: BaseException, *, is_cause: bool = True) -> BaseException:
    """`error`, raised from `cause` or while that was handled."""
    error.__cause__, error.__context__ = (cause, cause) if is_cause else (None, cause)
    return error


class NewConnectionError(OSError):
    """As urllib3 calls it."""


class ConnectError(Exception):
    """As httpx calls it."""


class ClientConnectorError(OSError):
    """As aiohttp calls it."""

    def __init__(self, os_error: OSError) -> None:
        super().__init__(os_error.errno, os_error.strerror)
        self.os_error = os_error


@pytest.mark.parametrize(
    "error",
    [
        *ERRORS,
        raised_from(NewConnectionError("cannot connect"), lacking()),
        raised_from(ConnectError("[Errno 24]"), lacking(), is_cause=False),
        ClientConnectorError(lacking()),
        OSError("Multiple exceptions: [Errno 24] Too many open files, [Errno 111] Connect call failed"),
        raised_from(ValueError("no answer"), MemoryError()),
    ],
    ids=repr,
)
def test_what_a_process_lacks_is_read_behind_the_errors_of_clients(error: BaseException) -> None:
    assert read_error(error).kind is Kind.EXHAUSTED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ECONNREFUSED, "refused"), Kind.NOT_REACHED),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), Kind.NOT_REACHED),
        (socket.gaierror(socket.EAI_AGAIN, "again"), Kind.NOT_REACHED),
        (RuntimeError("another"), Kind.UNKNOWN),
    ],
    ids=repr,
)
def test_other_errors_are_what_they_were(error: BaseException, kind: Kind) -> None:
    assert read_error(error).kind is kind


# -- real limits ---------------------------------------------------------------------------------------------

SERVER = """
    import asyncio, os, resource, socket, sys, threading, time
    from pillarbox import Batch, Errors, async_map

    listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
    port = listening.getsockname()[1]
    if not os.fork():
        async def handle(reader, writer):
            try:
                while await reader.readuntil(b"\\r\\n\\r\\n"):
                    await asyncio.sleep(0.02)
                    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        async def serve():
            server = await asyncio.start_server(handle, sock=listening)
            loop = asyncio.get_running_loop()
            while os.getppid() == parent:
                await asyncio.sleep(0.1)

        parent = os.getppid()
        asyncio.run(serve())
        os._exit(0)
    url = f"http://127.0.0.1:{port}/"

    def few(free):
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, used + free))
"""

FUNCTIONS = {
    "asyncio": """
        async def fn(row):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET / HTTP/1.1\\r\\n\\r\\n")
                await reader.readuntil(b"ok")
                return row
            finally:
                writer.close()
    """,
    "aiohttp": """
        import aiohttp
        async def fn(row):
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                await answer.read()
                return row
    """,
    "httpx": """
        import httpx
        async def fn(row):
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                await client.get(url)
                return row
    """,
    "openai": """
        import httpx, openai
        async def fn(row):
            http = httpx.AsyncClient(trust_env=False, verify=False)
            async with openai.AsyncOpenAI(
                api_key="k", base_url=url, max_retries=0, http_client=http, timeout=60
            ) as client:
                await client.get("/", cast_to=httpx.Response)
                return row
    """,
    "requests": """
        import requests
        def fn(row):
            requests.get(url, timeout=30)
            return row
    """,
    "files": """
        def fn(row):
            with open("/proc/self/status"):
                time.sleep(0.01)
                return row
    """,
    "own_libcurl": """
        from pillarbox.clients.transport import Http, open_transport
        class Own:
            async def __aenter__(self):
                self.transport = open_transport(Http(backend="libcurl"))
                return self
            async def __aexit__(self, *_):
                await self.transport.close()
            async def __call__(self, row):
                return row if (await self.transport.request("GET", url, headers={})).body == b"ok" else None
        fn = Own()
    """,
}
FUNCTIONS["own_aiohttp"] = FUNCTIONS["own_libcurl"].replace('"libcurl"', '"aiohttp"')
# Below so many descriptors the transports bound their connections themselves.
TAKE_MOST = """
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(400 - used - 30)]
"""


def run(program: str) -> str:
    """Run a program in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def has(kind: str) -> None:
    package = {"own_libcurl": "pycurl", "own_aiohttp": "aiohttp", "files": "os"}.get(kind, kind)
    pytest.importorskip(package)


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
@pytest.mark.contract("No row fails where a process runs out of descriptors, whichever client opens them.")
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_no_row_fails_where_real_descriptors_run_out(kind: str) -> None:
    has(kind)
    limits = TAKE_MOST if kind.startswith("own") else "\n    few(30)\n"
    job = """
    job = async_map(range(200), fn, capacity=100, errors=Errors("null", floor=None))
    print(sum(result is None for result in job))
    """
    program = textwrap.dedent(SERVER) + textwrap.dedent(FUNCTIONS[kind]) + textwrap.dedent(limits)
    assert run(program + textwrap.dedent(job)) == "0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_no_row_fails_where_real_memory_runs_out() -> None:
    program = """
        import os, resource, time
        from pillarbox import Errors, async_map

        def fn(row):
            held = bytearray(64 << 20)
            time.sleep(0.02)
            return len(held) > row and row

        list(async_map(range(8), lambda row: row, capacity=8))
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (700 << 20),) * 2)
        print(list(async_map(range(100), fn, capacity=8, errors=Errors("null", floor=None))) == [*range(100)])
    """
    assert run(textwrap.dedent(program)) == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
@pytest.mark.contract("A job in a process without memory for a thread ends in words; it waited for ever.")
@pytest.mark.parametrize("kib", [0, 64, 1024, 9_000])
def test_a_job_without_memory_for_a_thread_ends(kib: int) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    program = f"""
        import faulthandler, os, resource, sys
        import pillarbox.spark.worker
        from pillarbox import async_map

        async def fn(row):
            return row

        list(async_map(range(8), fn, capacity=8))
        faulthandler.dump_traceback_later(60, exit=True)
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + ({kib} << 10),) * 2)
        try:
            print(len(list(async_map(range(100), fn, capacity=8))))
        except (RuntimeError, MemoryError) as error:
            print("no bytes of memory left" in str(error))
    """
    assert run(textwrap.dedent(program)) in ("True\n", "100\n")


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_a_job_without_descriptors_for_its_event_loop_ends_in_words() -> None:
    program = """
        import os, resource
        from pillarbox import async_map

        async def fn(row):
            return row

        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
        try:
            list(async_map(range(100), fn))
        except RuntimeError as error:
            print("no file descriptors left" in str(error) and "RLIMIT_NOFILE" in str(error))
    """
    assert run(textwrap.dedent(program)) == "True\n"
