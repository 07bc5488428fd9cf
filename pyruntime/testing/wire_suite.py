"""`wire_suite`: checks that an HTTP client, one's own or ours, gives each event on the wire its class.

Each check starts a server on loopback that says exactly what its case tells it to, sends a request, and reads
the answer or the error by `pillarbox.wire`. In the thread of the test runner, on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import socket
import unittest
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from pillarbox.testing.wire_cases import CASES, OK, WireCase
from pillarbox.testing.wire_server import WireServer
from pillarbox.wire import Kind, Reading, read_answer, read_error

Send: TypeAlias = Callable[[str, str, Mapping[str, str], "bytes | None"], Awaitable[Any]]
"""Sends a request: method, address, headers, body. Gives a sequence of status, headers and body."""

PATIENCE_S = 60.0
"""Seconds after which a check fails whose client gives neither an answer nor an error."""


class WrongReading(AssertionError):
    """Raised if a client gives an event another class than it has."""


class WireSuite:
    """The cases for one client.

    open_client: a function that gives an async context manager of a `Send`. Its client follows no redirects,
    tries nothing again, waits two seconds for an answer at most, and takes answers of 32 MiB at most.
    """

    def __init__(self, open_client: Callable[[], AbstractAsyncContextManager[Send]]) -> None:
        self._open_client = open_client

    def check(self, name: str) -> None:
        """Check one case of `CASES`. Raises WrongReading."""
        case = CASES[name]
        asyncio.run(asyncio.wait_for(self._check(case), PATIENCE_S))

    async def _check(self, case: WireCase) -> None:
        if case.script is None:
            with socket.socket() as taken:
                # Bound and not listening: nobody else takes it meanwhile.
                taken.bind(("127.0.0.1", 0))
                reading, body = await self._read(case, f"http://127.0.0.1:{taken.getsockname()[1]}")
            _compare(case, reading, body, [])
            return
        with WireServer(case.script) as server:
            reading, body = await self._read(case, server.url)
        _compare(case, reading, body, server.requests)

    async def _read(self, case: WireCase, url: str) -> tuple[Reading, bytes | None]:
        async with self._open_client() as send:
            for _ in range(case.before):
                answer = await send("GET", f"{url}/before", {}, None)
                if not OK.endswith(bytes(answer[2])):
                    raise WrongReading(f"{case.name}: the request before it was not answered")
            try:
                answer = await send(case.method, f"{url}/path", {}, case.body)
            except Exception as error:
                return read_error(error), None
            return read_answer(answer[0], answer[1], answer[2]), bytes(answer[2])


def _compare(case: WireCase, reading: Reading, body: bytes | None, requests: Collection[object]) -> None:
    right = " or ".join(repr(kind.value) for kind in case.kinds)
    if reading.kind not in case.kinds:
        raise WrongReading(f"{case.name}: {case.about}: {reading} is not {right}")
    if reading.kind is not case.kinds[0]:
        return
    if case.answer is not None and body != case.answer:
        raise WrongReading(f"{case.name}: {case.about}: the body is {body!r:.80}, not {case.answer!r:.80}")
    for name in ("status", "location"):
        wanted = getattr(case, name)
        if wanted is not None and getattr(reading, name) != wanted:
            raise WrongReading(f"{case.name}: {name}={getattr(reading, name)!r} is not {wanted!r}")
    if (
        reading.kind is Kind.OVERLOADED
        and case.status is not None
        and reading.retry_after != case.retry_after
    ):
        raise WrongReading(f"{case.name}: retry_after={reading.retry_after!r} is not {case.retry_after!r}")
    if case.reads is not None and len(requests) > case.reads:
        raise WrongReading(f"{case.name}: the server has read {len(requests)} requests, not {case.reads}")


def wire_suite(
    open_client: Callable[[], AbstractAsyncContextManager[Send]], *, leave_out: Collection[str] = ()
) -> type[unittest.TestCase]:
    """Make a test case with a test for each of `CASES`, for pytest and unittest.

        >>> import unittest
        >>> from pillarbox.testing.wire_suite import wire_suite
        >>> TestClient = wire_suite(lambda: None)
        >>> issubclass(TestClient, unittest.TestCase)
        True

    open_client: a function that returns an async context manager of a `Send`, see `WireSuite`. leave_out:
        names
    of cases to omit. Raises ValueError for an unknown name.
    """
    unknown = set(leave_out) - set(CASES)
    if unknown:
        raise ValueError(f"leave_out: {', '.join(sorted(unknown))} is not the name of a case")
    suite = WireSuite(open_client)

    def test_of(name: str) -> Callable[[unittest.TestCase], None]:
        return lambda self: suite.check(name)

    tests = {f"test_{name}": test_of(name) for name in CASES if name not in leave_out}
    return type("TestWire", (unittest.TestCase,), tests)
