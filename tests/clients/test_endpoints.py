"""`Endpoints` with real servers on loopback: of functions, of clients, of one name with many addresses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import socket
import ssl
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.limits.asking import Asks
from pillarbox import Endpoints, Retry, Timeout, async_map, current_call
from pillarbox.clients import Chat, Embeddings, Http, HttpLookup
from tests.certificates import make_certificate
from tests.clients.raw_service import RawRequest, RawService, raw_answer

ROWS = 60
DIRECT = Http(proxy="direct")


def answered(request: RawRequest) -> bytes:
    return raw_answer(request.path.rpartition("/")[2].encode(), "application/json")


def says(status: int, *headers: str) -> Any:
    lines = "".join(f"{header}\r\n" for header in headers)
    refusal = f"HTTP/1.1 {status} Told\r\nContent-Length: 2\r\n{lines}\r\n{{}}".encode()
    return lambda request: refusal


def job(urls: list[str], **options: Any) -> Any:
    """The statistics of a job that has a right result for each row."""
    with async_map(range(ROWS), Asks(), endpoints=Endpoints(urls), capacity=8, **options) as results:
        assert [*results] == [*range(ROWS)]
        return results.statistics()


@pytest.mark.contract("A function with endpoints loses no row where one of three is dead, refuses or fails.")
@pytest.mark.parametrize(
    ("bad", "retry"),
    [
        (None, None),
        (says(503), None),
        (says(429, "Retry-After: 3000"), None),
        (says(401), None),
        (says(500), Retry(3, initial=0.0)),
    ],
    ids=["dead", "503", "429", "401", "500"],
)
def test_a_function_loses_no_row_for_one_endpoint(bad: Any, retry: Any) -> None:
    with ExitStack() as stack:
        good = [stack.enter_context(RawService(answered)) for _ in range(2)]
        if bad is None:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ill = f"http://127.0.0.1:{probe.getsockname()[1]}"
        else:
            ill = stack.enter_context(RawService(bad)).url
        found = job([ill, *(each.url for each in good)], retry=retry)
        name = ill.removeprefix("http://")
        assert found.endpoint_errors == {name: found.endpoint_calls[name]}
        assert found.calls == sum(found.endpoint_calls.values()) < 2 * ROWS
        assert sum(len(each.requests) for each in good) == ROWS


def test_a_function_loses_no_row_for_an_endpoint_that_hangs() -> None:
    ended = asyncio.Event()

    async def script() -> Any:
        async def hangs(request: web.Request) -> web.Response:
            await ended.wait()
            return web.Response()

        async with AsyncExitStack() as stack:
            with RawService(answered) as one, RawService(answered) as two:
                runner = web.AppRunner(web.Application(), shutdown_timeout=0.05)
                runner.app.router.add_get("/{row}", hangs)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                urls = [one.url, f"http://127.0.0.1:{runner.addresses[0][1]}", two.url]
                options: Any = {"retry": Retry(2, initial=0.0), "timeout": Timeout(attempt=1.0)}
                rows = async_map(range(ROWS), Asks(), endpoints=Endpoints(urls), capacity=8, **options)
                found = [row async for row in rows]
                ended.set()
                return found, rows.statistics()

    found, statistics = asyncio.run(script())
    assert found == [*range(ROWS)]
    assert 0 < statistics.timeouts < 10


@pytest.mark.parametrize("kind", ["chat", "embeddings", "lookup"])
def test_a_client_takes_endpoints_with_weights(kind: str) -> None:
    def answer(request: RawRequest) -> bytes:
        if kind == "lookup":
            return answered(request)
        given: dict[str, Any] = {"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 1}}
        if kind == "chat":
            choice = {"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}
            given = {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        return raw_answer(json.dumps(given).encode(), "application/json")

    with RawService(answer) as one, RawService(answer) as two:
        path = "/{row}" if kind == "lookup" else "/v1"
        urls = [each.url + path for each in (one, two)]
        endpoints = Endpoints(urls, weights={urls[0]: 3.0})
        client: Any
        if kind == "chat":
            client = Chat(endpoints, "m", prompt="{row}", http=DIRECT)
        elif kind == "embeddings":
            client = Embeddings(endpoints, "m", encoding="float", http=DIRECT)
        else:
            client = HttpLookup(endpoints, http=DIRECT)
        client = pickle.loads(pickle.dumps(client))
        rows: Any = ["text"] * 40 if kind == "embeddings" else [{"row": row} for row in range(40)]
        with async_map(rows, client, capacity=1) as results:
            assert len([*results]) == 40
            counts = results.statistics().endpoint_calls
        asked = len(one.requests), len(two.requests)
        assert sum(asked) == 40 and asked[0] > asked[1] > 0
        assert counts == {f"127.0.0.1:{one.port}": asked[0], f"127.0.0.1:{two.port}": asked[1]}


@pytest.mark.contract("A second task of a process knows which address of a client is dead.")
def test_a_second_task_knows_which_address_is_dead() -> None:
    with RawService(answered) as good, RawService(says(503, "Retry-After: 3000")) as bad:
        for _ in range(2):
            client = pickle.loads(pickle.dumps(HttpLookup([good.url + "/{row}", bad.url + "/{row}"])))
            rows = [{"row": row} for row in range(ROWS)]
            assert [*async_map(rows, client, capacity=4)] == [*range(ROWS)]
            asked = len(bad.requests)
            bad.requests.clear()
            assert (asked > 0) == (_ == 0)


# -- a name with many addresses ------------------------------------------------------------------------

NAME = "models.internal"
NUMBERS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has DNS give two addresses of loopback for `NAME`; the names that were asked for."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *more: Any, **by_name: Any) -> Any:
        if host != NAME:
            return real(host, port, *more, **by_name)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in NUMBERS]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def two_servers(stack: AsyncExitStack, tls: ssl.SSLContext | None = None) -> tuple[int, Counter[Any]]:
    """Servers on one port of two addresses: the port, and what each was asked by which name."""
    asked: Counter[Any] = Counter()

    async def answer(request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        asked[transport.get_extra_info("sockname")[0], request.headers["Host"]] += 1
        return web.json_response(int(request.path.rpartition("/")[2]))

    app = web.Application()
    app.router.add_get("/{row}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    with socket.create_server((NUMBERS[1], 0)) as probe:
        port: int = probe.getsockname()[1]
    for number in NUMBERS:
        await web.TCPSite(runner, number, port, ssl_context=tls).start()
    return port, asked


@pytest.mark.contract(
    "A client connects to each address of a name, and keeps the name for the Host header and for TLS."
)
@pytest.mark.parametrize("backend", ["aiohttp", "libcurl"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_client_spreads_over_the_addresses_of_a_name(
    scheme: str, backend: Any, resolved: list[str], tmp_path: Path
) -> None:
    tls, names = None, set()
    http = Http(proxy="direct", backend=backend)
    if scheme == "https":
        certificate = make_certificate(tmp_path, names=f"DNS:{NAME}")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        tls.sni_callback = lambda sock, name, context: names.add(name)
        http = dataclasses.replace(http, ca_file=str(certificate))

    async def script() -> tuple[int, Counter[Any], Any]:
        async with AsyncExitStack() as stack:
            port, asked = await two_servers(stack, tls)
            url = f"{scheme}://{NAME}:{port}/{{row}}"
            client = HttpLookup(Endpoints(url, resolve=True), params={"more": "1"}, http=http)
            rows = async_map([{"row": row} for row in range(40)], client, capacity=4)
            assert [row async for row in rows] == [*range(40)]
            return port, asked, rows.statistics()

    port, asked, found = asyncio.run(script())
    assert {*asked} == {(number, f"{NAME}:{port}") for number in NUMBERS}
    assert min(asked.values()) > 5
    assert {*found.endpoint_calls} == {f"{number}:{port}" for number in NUMBERS}
    assert len(resolved) == 1
    if tls is not None:
        assert names == {NAME}


def test_a_function_finds_the_address_and_the_name(resolved: list[str]) -> None:
    async def call(row: int) -> tuple[str, str]:
        endpoint = current_call().endpoint
        return endpoint.url, endpoint.host

    endpoints = Endpoints(f"http://{NAME}:8000/v1", resolve=True)
    found = {*async_map(range(8), call, endpoints=endpoints)}
    assert found == {(f"http://{number}:8000/v1", f"{NAME}:8000") for number in NUMBERS}


def test_a_name_that_is_not_resolved_is_one_endpoint() -> None:
    async def call(row: int) -> str:
        url: str = current_call().endpoint.url
        return url

    url = "http://no-such-host.invalid:8000"
    assert {*async_map(range(3), call, endpoints=Endpoints(url, resolve=True))} == {url}


def test_a_client_refuses_endpoints_beside_its_own_address() -> None:
    client = HttpLookup("http://host/{row}")
    with pytest.raises(TypeError, match="endpoints: HttpLookup sends requests to its own addresses"):
        async_map([{"row": 1}], client, endpoints=Endpoints("http://one"))
