"""Requests through each transport, against real servers."""

from __future__ import annotations

import asyncio
import base64
import gzip
import pickle
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientError, web

from pillarbox.clients import Http
from pillarbox.clients import transport as transport_module
from pillarbox.clients.transport import (
    Backend,
    BrokenAnswer,
    HttpStatusError,
    Transport,
    open_transport,
    status_error,
)
from pillarbox.clients.vectors import FLOAT32, block_of_bytes, decode_openai
from pillarbox.wire import is_overload, is_permanent, is_unreached, retry_after_of
from tests.certificates import make_certificate

BACKENDS: list[Backend] = ["aiohttp", "libcurl"]
CONNECTION_ERRORS = (OSError, ClientError)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param  # type: ignore[no-any-return]


@asynccontextmanager
async def opened(options: Http) -> AsyncIterator[Transport]:
    transport = open_transport(options)
    try:
        yield transport
    finally:
        await transport.close()


async def echo(request: web.Request) -> web.Response:
    body = await request.read()
    seen = {"method": request.method, "path": request.raw_path, "key": request.headers.get("x-key", "")}
    return web.json_response(seen | {"body": body.decode()}, headers={"X-Said": "yes"})


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


# -- requests and answers ------------------------------------------------------------------------------------


def test_a_request_brings_status_headers_and_body(serve: Any, backend: Backend) -> None:
    async def test() -> None:
        async with serve(echo) as url, opened(Http(backend=backend)) as transport:
            sent = {"headers": {"X-Key": "k"}, "body": b"ab"}
            answer = await transport.request("POST", f"{url}/a%20b?q=1", **sent)
            assert answer.status == 200
            assert answer.headers.get("x-said") == "yes"
            assert b'"method": "POST", "path": "/a%20b?q=1", "key": "k", "body": "ab"' in answer.body
            # The next request by the same connection has nothing of this one.
            answer = await transport.request("GET", f"{url}/c", headers={})
            assert b'"method": "GET", "path": "/c", "key": "", "body": ""' in answer.body
            answer = await transport.request("PUT", f"{url}/d", headers={}, body=b"")
            assert b'"method": "PUT", "path": "/d", "key": "", "body": ""' in answer.body
            answer = await transport.request("DELETE", f"{url}/d", headers={})
            assert b'"method": "DELETE"' in answer.body

    run(test)


def test_bodies_are_decompressed_and_large_ones_arrive_whole(serve: Any, backend: Backend) -> None:
    large = bytes(range(256)) * 20_000

    async def compressed(request: web.Request) -> web.Response:
        assert "gzip" in request.headers["Accept-Encoding"]
        assert await request.read() == large
        return web.Response(body=gzip.compress(large), headers={"Content-Encoding": "gzip"})

    async def test() -> None:
        async with serve(compressed) as url, opened(Http(backend=backend)) as transport:
            answers = await asyncio.gather(
                *[transport.request("POST", url, headers={}, body=large) for _ in range(8)]
            )
            assert all(answer.body == large for answer in answers)

    run(test)


def test_a_redirect_is_an_answer_and_is_not_followed(serve: Any, backend: Backend) -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/other"})

    async def test() -> None:
        async with serve(elsewhere) as url, opened(Http(backend=backend)) as transport:
            answer = await transport.request("GET", f"{url}/one", headers={})
            assert (answer.status, answer.headers["location"]) == (307, "/other")
            assert asked == ["/one"]

    run(test)


def test_a_line_break_in_a_header_is_refused(serve: Any, backend: Backend) -> None:
    async def test() -> None:
        async with serve(echo) as url, opened(Http(backend=backend)) as transport:
            with pytest.raises(ValueError, match=r"(?i)header") as raised:
                await transport.request("GET", url, headers={"X-Key": "secret\r\nX-Other: 1"})
            assert "secret" not in str(raised.value)
            assert (await transport.request("GET", url, headers={"X-Key": "k"})).status == 200

    run(test)


def openai_answer(block: Any, *, encoded: bool) -> dict[str, Any]:
    """The answer of a service with the vectors of a block."""
    texts = [base64.b64encode(row.tobytes()).decode() if encoded else row.tolist() for row in block]
    items = [{"object": "embedding", "index": index, "embedding": text} for index, text in enumerate(texts)]
    return {"object": "list", "data": items, "usage": {"prompt_tokens": 7, "total_tokens": 7}}


@pytest.mark.parametrize(
    ("status", "encoded", "wanted"),
    [(200, True, 3), (200, False, 3), (200, True, 2), (200, True, 0), (500, True, 3)],
)
def test_vectors_are_read_by_the_transport_or_are_in_the_body(
    serve: Any, backend: Backend, status: int, encoded: bool, wanted: int
) -> None:
    blocks = np.random.default_rng(1).standard_normal((8, 3, 1_024)).astype(np.float32)

    async def embed(request: web.Request) -> web.Response:
        found = openai_answer(blocks[int(request.path.strip("/"))], encoded=encoded)
        return web.json_response(found, status=status)

    async def test() -> None:
        async with serve(embed) as url, opened(Http(backend=backend, connections=2)) as transport:
            numbers = [*range(8)] * 3
            answers = await asyncio.gather(
                *[
                    transport.request("POST", f"{url}/{number}", headers={}, body=b"", vectors=wanted)
                    for number in numbers
                ]
            )
        is_read = backend == "libcurl" and (status, encoded, wanted) == (200, True, 3)
        for number, answer in zip(numbers, answers, strict=True):
            assert answer.status == status
            assert (answer.vectors is not None, not answer.body) == (is_read, is_read)
            if answer.vectors is None:
                found = decode_openai(answer.body, 3)
            else:
                found = block_of_bytes(answer.vectors.block, 3, FLOAT32, answer.vectors.tokens)
            assert found.tokens == 7
            # Each has memory of its own, which may be written to.
            found.block[:] -= blocks[number]
            assert not found.block.any()

    run(test)


# -- connections ---------------------------------------------------------------------------------------------


def test_connections_are_kept_and_bounded(serve: Any, backend: Backend) -> None:
    peers: set[Any] = set()

    async def note(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        await asyncio.sleep(0)
        return web.Response()

    async def test() -> None:
        # The wait for one of the connections is not a part of connecting.
        options = Http(backend=backend, connections=3)
        async with serve(note) as url, opened(options) as transport:
            for _ in range(3):
                await asyncio.gather(*[transport.request("GET", url, headers={}) for _ in range(20)])
        assert 1 <= len(peers) <= 3

    run(test)


class Closing(asyncio.Protocol):
    """Answers the first request of a connection, and closes at the second without a word."""

    received: list[bytes]
    made: list[Any]

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._answered = False
        type(self).made.append(transport)

    def data_received(self, data: bytes) -> None:
        if not data.startswith((b"GET", b"POST")):
            return
        type(self).received.append(data[:4].strip())
        if self._answered:
            self._transport.close()
        else:
            self._answered = True
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@asynccontextmanager
async def closing_server() -> AsyncIterator[tuple[str, list[bytes]]]:
    protocol = type("_Closing", (Closing,), {"received": [], "made": []})
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", protocol.received
    finally:
        server.close()
        for transport in protocol.made:
            transport.abort()


def test_a_request_that_a_closed_kept_connection_lost_is_sent_once_more(backend: Backend) -> None:
    async def test() -> None:
        async with closing_server() as (url, received), opened(Http(backend=backend)) as transport:
            for _ in range(2):
                assert (await transport.request("GET", url, headers={})).body == b"ok"
            assert received == [b"GET"] * 3
            answer = await transport.request("POST", url, headers={}, body=b"a question")
            assert answer.body == b"ok"
            assert received[3:] == [b"POST"] * 2

    run(test)


def test_a_request_that_a_server_may_have_worked_for_is_not_sent_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each wait is a long one.
    monkeypatch.setattr(transport_module, "SOON_S", 0.0)

    async def test() -> None:
        async with closing_server() as (url, received), opened(Http(backend=backend)) as transport:
            await transport.request("POST", url, headers={}, body=b"first")
            with pytest.raises(BrokenAnswer) as raised:
                await transport.request("POST", url, headers={}, body=b"once")
            assert not is_unreached(raised.value)
            assert received == [b"POST"] * 2

    run(test)


def test_a_refused_connection_is_known_as_unreached(backend: Backend) -> None:
    async def test() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with opened(Http(backend=backend)) as transport:
            with pytest.raises(CONNECTION_ERRORS) as raised:
                await transport.request("GET", f"http://127.0.0.1:{port}/", headers={})
            assert is_unreached(raised.value)

    run(test)


def test_a_cancelled_request_ends_and_leaves_the_transport_usable(serve: Any, backend: Backend) -> None:
    async def test() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            if request.path == "/fast":
                return web.Response(text="fast")
            arrived.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()
            return web.Response()

        async with serve(slow) as url, opened(Http(backend=backend, connections=1)) as transport:
            task = asyncio.ensure_future(transport.request("GET", url, headers={}))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await transport.request("GET", f"{url}/fast", headers={})).body == b"fast"

    run(test)


def test_an_answer_that_is_decoded_holds_no_connection(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pillarbox.clients import libcurl_transport

    async def test() -> None:
        both = asyncio.Event()
        arrived = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal arrived
            arrived += 1
            if arrived == 2:
                both.set()
            twice = gzip.compress(gzip.compress(b"whole"))
            return web.Response(body=twice, headers={"Content-Encoding": "gzip, gzip"})

        async def decoded_later(body: bytes, codings: str, most: int) -> bytes:
            # The second request is sent while the first answer is decoded.
            await both.wait()
            return await decoded(body, codings, most)

        decoded = libcurl_transport.decoded
        monkeypatch.setattr(libcurl_transport, "decoded", decoded_later)
        async with serve(answer) as url, opened(Http(backend="libcurl", connections=1)) as transport:
            some = asyncio.gather(*(transport.request("GET", url, headers={}) for _ in range(2)))
            assert [each.body for each in await asyncio.wait_for(some, 60.0)] == [b"whole"] * 2

    run(test)


def test_closing_fails_the_requests_in_flight(serve: Any, backend: Backend) -> None:
    async def test() -> None:
        arrived = asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            arrived.set()
            await asyncio.Event().wait()
            return web.Response()

        async with serve(slow) as url:
            transport = open_transport(Http(backend=backend))
            task = asyncio.ensure_future(transport.request("GET", url, headers={}))
            await arrived.wait()
            await transport.close()
            await transport.close()
            with pytest.raises(CONNECTION_ERRORS):
                await task
            with pytest.raises(RuntimeError, match="closed"):
                await transport.request("GET", url, headers={})

    run(test)


# -- time-outs by phase --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_answer_that_is_late_times_out_by_its_phase(serve: Any, backend: Backend) -> None:
    async def test() -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse()
            if request.path == "/begins":
                await answer.prepare(request)
                await answer.write(b"a")
            await asyncio.Event().wait()
            return answer

        async def end(path: str, **options: Any) -> BaseException:
            async with opened(Http(backend=backend, **options)) as transport:
                with pytest.raises((TimeoutError, asyncio.TimeoutError)) as raised:
                    await transport.request("GET", path, headers={})
            return raised.value

        async with serve(slow) as url:
            ends = await asyncio.gather(
                *(
                    end(url + path, **options)
                    for options in ({"read_timeout": 1.0}, {"read_timeout": None, "total_timeout": 1.0})
                    for path in ("", "/begins")
                )
            )
        assert not any(map(is_unreached, ends))

    run(test)


def test_a_connection_that_is_late_times_out_as_unreached(backend: Backend) -> None:
    async def test() -> None:
        # A server that accepts, and never answers the handshake of TLS.
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with opened(Http(backend=backend, connect_timeout=0.2)) as transport:
            with pytest.raises((TimeoutError, asyncio.TimeoutError)) as raised:
                await transport.request("GET", f"https://127.0.0.1:{port}/", headers={})
            assert is_unreached(raised.value)
        server.close()

    run(test)


# -- TLS and proxies -----------------------------------------------------------------------------------------


def test_a_certificate_is_checked_unless_it_is_not_to_be(
    serve: Any, backend: Backend, tmp_path: Path
) -> None:
    pem = make_certificate(tmp_path, names="IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)

    async def test() -> None:
        async with serve(echo, tls=context) as url:
            async with opened(Http(backend=backend)) as transport:
                with pytest.raises(CONNECTION_ERRORS) as raised:
                    await transport.request("GET", url, headers={})
                assert not is_unreached(raised.value)
            for trusted in ({"verify": False}, {"ca_file": str(pem)}):
                async with opened(Http(backend=backend, **trusted)) as transport:  # type: ignore[arg-type]
                    assert (await transport.request("GET", url, headers={})).status == 200

    run(test)


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="a server of asyncio 3.10 never ends a connection of TLS that was left"
)
def test_http2_is_spoken_to_servers_that_speak_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server's own end waits so long for connections of TLS that the client has left.
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 0.01, raising=False)
    hypercorn_asyncio = pytest.importorskip("hypercorn.asyncio")
    hypercorn_config = pytest.importorskip("hypercorn.config")
    pem = make_certificate(tmp_path, names="IP:127.0.0.1")
    versions: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        versions.append(scope["http_version"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def test() -> None:
        config = hypercorn_config.Config()
        config.certfile = config.keyfile = str(pem)
        config.bind = ["127.0.0.1:0"]
        config.accesslog = config.errorlog = None
        sockets = config.create_sockets()
        config.create_sockets = lambda: sockets  # the port is known before it serves
        port = sockets.secure_sockets[0].getsockname()[1]
        sockets.secure_sockets[0].listen()
        ended = asyncio.Event()
        server = asyncio.ensure_future(
            hypercorn_asyncio.serve(app, config, shutdown_trigger=ended.wait, mode="asgi")
        )
        try:
            async with opened(Http(http2=True, verify=False)) as transport:
                answers = await asyncio.gather(
                    *[transport.request("GET", f"https://127.0.0.1:{port}/", headers={}) for _ in range(8)]
                )
            assert {answer.body for answer in answers} == {b"ok"}
            async with opened(Http(backend="libcurl", verify=False)) as transport:
                await transport.request("GET", f"https://127.0.0.1:{port}/", headers={})
            assert versions == ["2"] * 8 + ["1.1"]
        finally:
            ended.set()
            await server

    run(test)


class Proxy(asyncio.Protocol):
    """Answers each request itself, as a proxy with a cache does, with the line that it was asked with."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        said = data.partition(b"\r\n")[0]
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))


def test_requests_go_by_the_proxy_that_is_given_or_in_the_environment(
    serve: Any, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def asked(url: str, **options: Any) -> bytes:
        async with opened(Http(backend=backend, **options)) as transport:
            return (await transport.request("GET", url, headers={})).body

    async def test() -> None:
        server = await asyncio.get_running_loop().create_server(Proxy, "127.0.0.1", 0)
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        by_proxy = b"GET http://service.invalid/path HTTP/1.1"
        assert await asked("http://service.invalid/path", proxy=proxy) == by_proxy
        monkeypatch.setenv("http_proxy", proxy)
        assert await asked("http://service.invalid/path") == by_proxy
        async with serve(echo) as url:
            assert b'"path": "/direct"' in await asked(f"{url}/direct", proxy="direct")
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert b'"path": "/past"' in await asked(f"{url}/past")
            # A proxy that is given is for all requests.
            assert await asked(f"{url}/all", proxy=proxy) == f"GET {url}/all HTTP/1.1".encode()
        server.close()

    run(test)


class Tunnel:
    """A proxy that opens tunnels: it notes the line and the headers of each request, and sees bytes then."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.seen = b""
        self._open: set[asyncio.Task[Any]] = set()

    async def ended(self) -> None:
        """Wait until all connections are closed: their transports are of this loop."""
        while self._open:
            await asyncio.wait(self._open)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        method, target, _ = head.split(b" ", 2)
        if method != b"CONNECT":
            writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        host, _, port = target.decode().rpartition(":")
        inner, outer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(self._pass(reader, outer), self._pass(inner, writer))

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(2**16):
                self.seen += data
                target.write(data)
        except ConnectionError:
            pass
        finally:
            target.close()
            with suppress(ConnectionError):
                await target.wait_closed()


@pytest.mark.contract
def test_https_goes_by_a_tunnel_of_the_proxy_that_sees_neither_keys_nor_answers(
    serve: Any, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    pem = make_certificate(tmp_path, names="IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    tunnel = Tunnel()

    async def test() -> None:
        server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with serve(echo, tls=context) as url:
            options: dict[str, Any] = {"backend": backend, "ca_file": str(pem)}
            monkeypatch.setenv("https_proxy", proxy)
            for more in ({"proxy": proxy}, {}):
                async with opened(Http(**options, **more)) as transport:
                    for _ in range(2):
                        answer = await transport.request("GET", f"{url}/of", headers={"X-Key": "sk-secret"})
                        assert (answer.status, b'"key": "sk-secret"' in answer.body) == (200, True)
            async with opened(Http(backend=backend, proxy=proxy)) as transport:
                # The certificate is that of the server behind it.
                with pytest.raises(CONNECTION_ERRORS):
                    await transport.request("GET", url, headers={})
        server.close()
        await tunnel.ended()
        address = url.removeprefix("https://").encode()
        # One tunnel for each transport: it is kept like any connection.
        assert [head.split(b"\r\n")[0] for head in tunnel.asked] == [b"CONNECT %s HTTP/1.1" % address] * 3
        assert b"sk-secret" not in tunnel.seen + b"".join(tunnel.asked)
        assert b'"method"' not in tunnel.seen

    run(test)


# -- options and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"connections": 0}, "connections=0: must be at least 1"),
        ({"read_timeout": -1}, "read_timeout=-1: must be a finite number of seconds above 0 or None"),
        ({"proxy": "http://me:secret@host:1"}, "proxy: must not hold a user or a password"),
        ({"proxy": "host"}, "proxy='host': must be 'http://host:port', 'direct' or None"),
        ({"verify": False, "ca_file": "a.pem"}, "ca_file='a.pem': nothing is verified"),
        ({"http2": True, "backend": "aiohttp"}, "http2=True: aiohttp speaks HTTP/1.1 only"),
        ({"backend": "curl"}, "backend='curl': must be one of 'auto', 'libcurl', 'aiohttp'"),
    ],
)
def test_a_wrong_option_of_the_transport_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        Http(**arguments)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_missing_file_of_certificates_is_told_when_the_transport_opens(backend: Backend) -> None:
    with pytest.raises(FileNotFoundError, match="ca_file='none.pem': is not a file"):
        open_transport(Http(backend=backend, ca_file="none.pem"))


def test_the_error_of_a_status_tells_what_the_operator_reads(serve: Any, backend: Backend) -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "x"}}, status=429, headers={"Retry-After": "7"})

    async def poor(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "insufficient_quota"}}, status=429)

    async def error_of(handler: Any) -> HttpStatusError:
        async with serve(handler) as url, opened(Http(backend=backend)) as transport:
            answer = await transport.request("GET", f"{url}/path?key=hidden", headers={})
            return status_error("GET", f"{url}/path?key=hidden", answer)

    error = pickle.loads(pickle.dumps(asyncio.run(error_of(busy))))
    assert is_overload(error)
    assert retry_after_of(error) == 7.0
    assert "/path: HTTP 429 Too Many Requests" in str(error)
    assert "hidden" not in str(error)
    poor_error = asyncio.run(error_of(poor))
    assert is_permanent(poor_error)
    assert not is_overload(poor_error)
