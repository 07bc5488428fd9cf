"""Events on the wire, through both transports, through clients of users, and as the operator takes them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import pickle
import socket
import ssl
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from pillarbox import Retry, async_map
from pillarbox.clients import Http, HttpLookup
from pillarbox.clients.transport import (
    AnswerTooLarge,
    Backend,
    CertificateRefused,
    ConnectTimeout,
    HostUnknown,
    NotReached,
    NotSent,
    open_transport,
)
from pillarbox.testing.wire_cases import CASES, after_request, first, once, saying, staying
from pillarbox.testing.wire_cases import answer as answered
from pillarbox.testing.wire_server import Connection, WireServer
from pillarbox.testing.wire_suite import Send, WireSuite, WrongReading, wire_suite
from pillarbox.wire import Kind, is_permanent, is_unreached, is_unsent, of_all_rows, read_error
from tests.certificates import make_certificate

BACKENDS: list[Backend] = ["libcurl", "aiohttp"]
OK = answered(b"ok")


def opener(backend: Backend, **options: Any) -> Callable[[], AbstractAsyncContextManager[Send]]:
    """Opens a transport, as the suite wants it."""

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Send]:
        settings = {"total_timeout": 2.0, "max_answer_bytes": 1 << 24, "proxy": "direct"} | options
        transport = open_transport(Http(backend=backend, **settings))

        async def send(method: str, url: str, headers: Any, body: bytes | None) -> Any:
            return await transport.request(method, url, headers=headers, body=body)

        try:
            yield send
        finally:
            await transport.close()

    return open_client


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "libcurl":
        pytest.importorskip("pycurl")
    return request.param  # type: ignore[no-any-return]


@pytest.mark.contract("Both transports give each event on the wire the same class.")
@pytest.mark.parametrize("name", CASES)
def test_an_event_on_the_wire_has_the_same_class_by_both_transports(backend: Backend, name: str) -> None:
    WireSuite(opener(backend)).check(name)


def test_there_are_cases_of_all_classes_that_come_from_the_wire() -> None:
    assert len(CASES) > 100
    from_elsewhere = {Kind.CUT, Kind.OTHER_KIND, Kind.UNKNOWN, Kind.EXHAUSTED}
    assert {kind for case in CASES.values() for kind in case.kinds} == {*Kind} - from_elsewhere


def test_the_suite_is_a_test_case_and_names_what_is_wrong() -> None:
    @asynccontextmanager
    async def open_client() -> AsyncIterator[Send]:
        async def send(method: str, url: str, headers: Any, body: bytes | None) -> Any:
            return 200, {}, b"ok"

        yield send

    suite = wire_suite(open_client, leave_out=["gzip"])
    assert len([name for name in dir(suite) if name.startswith("test_")]) == len(CASES) - 1
    with pytest.raises(WrongReading, match="refused: nobody listens at the port: .* is not 'not reached'"):
        WireSuite(open_client).check("refused")
    with pytest.raises(ValueError, match="leave_out: nonsense is not the name of a case"):
        wire_suite(open_client, leave_out=["nonsense"])


# -- names and certificates --------------------------------------------------------------------------------


def error_of(backend: Backend, url: str, **options: Any) -> BaseException:
    async def test() -> BaseException:
        async with opener(backend, **options)() as send:
            with pytest.raises(OSError) as raised:  # noqa: PT011
                await send("POST", url, {}, b"a question")
            return raised.value

    return asyncio.run(asyncio.wait_for(test(), 60))


def resolver(number: int, words: str) -> Callable[..., Any]:
    def refuse(host: Any, *others: Any, **options: Any) -> Any:
        raise socket.gaierror(number, words)

    return refuse


@pytest.mark.contract("A silent name server is waited for, a name that does not exist is told at once.")
def test_a_silent_name_server_is_told_from_a_name_that_does_not_exist(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://service.invalid/"
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_AGAIN, "no answer for now"))
    silent = error_of(backend, url)
    assert (type(silent), is_unreached(silent), is_permanent(silent)) == (NotReached, True, False)
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_NONAME, "not known"))
    unknown = error_of(backend, url)
    assert (type(unknown), is_unreached(unknown), is_permanent(unknown)) == (HostUnknown, False, True)
    assert of_all_rows(unknown)
    assert "the host 'service.invalid' does not exist: not known" in str(unknown)


def test_the_name_of_a_proxy_is_resolved_alike(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_NONAME, "not known"))
    error = error_of(backend, "http://127.0.0.1:1/", proxy="http://proxy.invalid:3128")
    assert isinstance(error, HostUnknown)
    assert "proxy.invalid" in str(error)


def test_a_certificate_that_is_not_believed_is_a_fault_of_all_rows(backend: Backend, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(make_certificate(tmp_path, names="IP:127.0.0.1"))
    with WireServer(staying(OK), context) as server:
        error = error_of(backend, server.url)
    assert (type(error), is_permanent(error), of_all_rows(error)) == (CertificateRefused, True, True)


def test_a_server_that_speaks_no_tls_answers_badly(backend: Backend) -> None:
    def script(connection: Connection) -> None:
        connection.read_some(1)
        connection.send(answered(b"", status="400 Bad"))
        connection.wait_for_end()

    with WireServer(script) as server:
        error = error_of(backend, server.url.replace("http:", "https:"))
    assert read_error(error).kind in (Kind.ANSWERED_BADLY, Kind.NOT_REACHED)
    assert not is_permanent(error)


def test_a_server_that_never_ends_the_handshake_of_tls_is_not_reached(backend: Backend) -> None:
    with WireServer(Connection.wait_for_end) as server:
        error = error_of(backend, server.url.replace("http:", "https:"), total_timeout=0.5)
    assert isinstance(error, ConnectTimeout)


def test_a_proxy_that_refuses_a_tunnel_is_read_by_its_status(backend: Backend) -> None:
    async def test() -> BaseException:
        proxy = saying(answered(b"", status="407 Who"))
        with WireServer(proxy) as server:
            async with opener(backend, proxy=server.url)() as send:
                with pytest.raises(Exception) as raised:  # noqa: PT011
                    await send("GET", "https://127.0.0.1:1/", {}, None)
                return raised.value

    reading = read_error(asyncio.run(asyncio.wait_for(test(), 60)))
    assert (reading.kind, reading.status) == (Kind.REFUSED_ALL, 407)


def test_the_errors_of_transports_travel_between_processes() -> None:
    for error in (NotSent("a"), NotReached("b"), HostUnknown("c"), AnswerTooLarge.of(7)):
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), str(found)) == (type(error), str(error))
        assert read_error(found).kind is error.kind


@pytest.mark.parametrize("name", ["garbage", "no_answer", "length_not_reached", "reset_without_an_answer"])
def test_no_error_of_a_transport_shows_the_query_of_the_address(backend: Backend, name: str) -> None:
    script = CASES[name].script
    assert script is not None
    with WireServer(script) as server:
        error = error_of(backend, f"{server.url}/path?key=sk-hidden", total_timeout=0.5)
    assert "sk-hidden" not in "".join(traceback.format_exception(error))


# -- as the operator takes them ----------------------------------------------------------------------------


def rows_of(url: str, backend: Backend, rows: int, http: Any = None, **options: Any) -> list[Any]:
    """The outcomes of a lookup for each row, by POST."""
    http = {"backend": backend, "proxy": "direct"} | (http or {})
    client = HttpLookup(f"{url}/{{id}}", method="POST", body=["id"], parse="text", http=Http(**http))
    return list(async_map([{"id": row} for row in range(rows)], client, errors="column", **options))


@pytest.mark.contract("A request that was lost with a kept connection is not an attempt of its row.")
@pytest.mark.parametrize("end", [Connection.close, Connection.reset])
def test_a_service_that_closes_each_kept_connection_loses_no_row(
    backend: Backend, end: Callable[[Connection], None]
) -> None:
    with WireServer(once(end)) as server:
        outcomes = rows_of(server.url, backend, 60, capacity=4)
    assert [outcome.result for outcome in outcomes] == ["ok"] * 60


def test_an_answer_above_the_bound_is_the_error_of_its_row(backend: Backend) -> None:
    bomb = answered(gzip.compress(bytes(1 << 22)), "Content-Encoding: gzip")

    def script(connection: Connection) -> None:
        while True:
            path = connection.read_request().path
            connection.send(bomb if path == "/3" else OK)

    with WireServer(script) as server:
        outcomes = rows_of(server.url, backend, 6, {"max_answer_bytes": 1 << 20}, capacity=2, retry=3)
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert [(error.type, error.attempts) for error in failed] == [("AnswerTooLarge", 1)]
    assert "more than max_answer_bytes=1,048,576 of Http" in failed[0].message


def test_a_large_answer_is_decompressed_on_another_thread() -> None:
    from pillarbox.clients import codings

    made: set[int] = set()

    class Noted(codings.Inflation):
        def work(self, max_bytes: int | None) -> bool:
            made.add(threading.get_ident())
            return super().work(max_bytes)

    async def test(body: bytes) -> bytes:
        return await codings.decoded(gzip.compress(body), "gzip", 1 << 24)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(codings, "Inflation", Noted)
        assert asyncio.run(test(bytes(1000))) == bytes(1000)
        assert made == {threading.get_ident()}
        assert asyncio.run(test(bytes(1 << 22))) == bytes(1 << 22)
        assert len(made) == 2


class OfUser:
    """A client that a user has written with aiohttp."""

    def __init__(self, method: str, url: str) -> None:
        self._request = method, url

    async def __aenter__(self) -> OfUser:
        import aiohttp

        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def __call__(self, row: int) -> str:
        data = b"a question" if self._request[0] == "POST" else None
        async with self._session.request(*self._request, data=data) as answer:
            return await answer.text()


@pytest.mark.contract("A parse error of aiohttp is not a status of the service, in functions of users too.")
def test_a_garbled_answer_is_asked_for_again_in_a_function_of_a_user() -> None:
    with WireServer(first(saying(b"garbage\r\n\r\n"))) as server:
        own = OfUser("GET", server.url)
        outcomes = list(async_map([1, 2], own, retry=Retry(2, initial=0.001), errors="column", capacity=1))
    assert [outcome.result for outcome in outcomes] == ["ok", "ok"]


@pytest.mark.contract(
    "A request of a user's client that was lost with a kept connection is not an attempt of its row."
)
@pytest.mark.parametrize(
    ("retry", "fails"), [(Retry(1), False), (Retry(1, on=(ValueError,)), True), (None, True)]
)
def test_a_request_of_a_client_of_a_user_that_was_not_sent_is_sent_once_more(
    retry: Retry | None, fails: bool
) -> None:
    with WireServer(first(once(after_request(Connection.close)))) as server:
        own = OfUser("POST", server.url)
        outcomes = list(async_map([1, 2], own, retry=retry, errors="column", capacity=1))
    assert [outcome.error is not None for outcome in outcomes] == [False, fails]
    assert len(server.requests) == (2 if fails else 3)


# -- connections -------------------------------------------------------------------------------------------


class Meeting:
    """A script that answers when so many requests are there at a time."""

    def __init__(self, number: int) -> None:
        self._barrier = threading.Barrier(number)
        self._lock = threading.Lock()
        self._open = self.most = 0

    def __call__(self, connection: Connection) -> None:
        while True:
            connection.read_request()
            with self._lock:
                self._open += 1
                self.most = max(self.most, self._open)
            with contextlib.suppress(threading.BrokenBarrierError):
                self._barrier.wait(30)
            with self._lock:
                self._open -= 1
            connection.send(OK)


@pytest.mark.contract("A client has as many connections as the operator has calls, unless told.")
def test_a_client_has_as_many_connections_as_calls_are_in_flight(backend: Backend) -> None:
    meeting = Meeting(100)
    with WireServer(meeting) as server:
        outcomes = rows_of(server.url, backend, 200, capacity=100)
    assert meeting.most == 100
    assert all(outcome.result == "ok" for outcome in outcomes)


def test_a_bound_on_connections_holds_and_the_wait_for_them_is_told(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = Meeting(3)
    with WireServer(meeting) as server:
        outcomes = rows_of(server.url, backend, 30, {"connections": 3}, capacity=12)
    assert meeting.most == 3
    assert all(outcome.result == "ok" for outcome in outcomes)
    told = [record.getMessage() for record in caplog.records if "connections=3" in record.getMessage()]
    assert len(told) == 1


def test_connections_leave_descriptors_to_others(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4, 4))
    meeting = Meeting(3)
    with WireServer(meeting) as server:
        outcomes = rows_of(server.url, backend, 30, capacity=12)
    assert meeting.most == 3
    assert all(outcome.result == "ok" for outcome in outcomes)


# -- clients of users --------------------------------------------------------------------------------------


@asynccontextmanager
async def by_aiohttp() -> AsyncIterator[Send]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=1)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:

        async def send(method: str, url: str, headers: Any, body: bytes | None) -> Any:
            asked = session.request(method, url, headers=headers, data=body, allow_redirects=False)
            async with asked as answer:
                if answer.status >= 300:
                    answer.raise_for_status()
                return answer.status, answer.headers, await answer.read()

        yield send


@asynccontextmanager
async def by_httpx() -> AsyncIterator[Send]:
    httpx = pytest.importorskip("httpx")
    async with httpx.AsyncClient(timeout=1, trust_env=False) as client:

        async def send(method: str, url: str, headers: Any, body: bytes | None) -> Any:
            answer = await client.request(method, url, headers=headers, content=body)
            if answer.status_code >= 300:
                answer.raise_for_status()
            return answer.status_code, answer.headers, answer.content

        yield send


@asynccontextmanager
async def by_requests() -> AsyncIterator[Send]:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.trust_env = False

        async def send(method: str, url: str, headers: Any, body: bytes | None) -> Any:
            def call() -> Any:
                more = {"headers": headers, "data": body, "timeout": 1, "allow_redirects": False}
                answer = session.request(method, url, **more)
                answer.raise_for_status()
                return answer.status_code, answer.headers, answer.content

            return await asyncio.to_thread(call)

        yield send


@asynccontextmanager
async def by_openai() -> AsyncIterator[Send]:
    openai, httpx = pytest.importorskip("openai"), pytest.importorskip("httpx")
    http = httpx.AsyncClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url="http://none", api_key="none", max_retries=0, timeout=1, http_client=http
    ) as client:

        async def send(method: str, url: str, headers: Any, body: bytes | None) -> Any:
            client.base_url = url
            answer = await client.embeddings.with_raw_response.create(model="m", input="x")
            return answer.status_code, answer.headers, answer.content

        yield send


READ_ALIKE = (
    *("refused", "closed_at_once", "reset_at_once", "closed_without_an_answer", "reset_without_an_answer"),
    *("length_not_reached", "chunk_cut", "last_chunk_missing", "gzip_that_is_none", "no_answer"),
    *("garbage", "a_status_that_is_no_number", "a_header_that_is_too_long", "bytes_behind_the_body"),
    *("no_end_of_the_body", "retry_after_twice", "retry_after_beside_garbage", "retry_after_a_date_of_c"),
    *("status_401", "status_402", "status_405", "status_422", "status_500", "status_502", "status_503"),
    *("overload_in_a_success", "refusal_in_a_success"),
)


@pytest.mark.contract("The errors of usual clients are read as those of our own.")
@pytest.mark.parametrize("client", [by_aiohttp, by_httpx, by_requests, by_openai])
@pytest.mark.parametrize("name", READ_ALIKE)
def test_the_errors_of_clients_of_users_are_read_alike(client: Any, name: str) -> None:
    WireSuite(client).check(name)


@pytest.mark.parametrize("client", [by_aiohttp, by_httpx, by_requests])
@pytest.mark.parametrize("name", ["kept_closed_behind_the_request", "kept_reset_at_the_request"])
def test_a_lost_kept_connection_of_a_client_of_a_user_was_not_sent(client: Any, name: str) -> None:
    async def test() -> BaseException:
        script = CASES[name].script
        assert script is not None
        with WireServer(script) as server:
            async with client() as send:
                await send("POST", server.url, {}, b"a question")
                with pytest.raises(Exception) as raised:  # noqa: PT011
                    await send("POST", server.url, {}, b"another")
                return raised.value

    error = asyncio.run(asyncio.wait_for(test(), 60))
    assert is_unsent(error), repr(error)
