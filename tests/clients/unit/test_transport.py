"""Requests through the transport, against real servers."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from aiohttp import web

from pillarbox.aio.service_errors import is_overload, is_permanent, retry_after_of
from pillarbox.clients import Http, HttpStatusError
from pillarbox.clients.transport import open_transport, status_error


async def echo(request: web.Request) -> web.Response:
    body = await request.read()
    seen = {"method": request.method, "path": request.raw_path, "key": request.headers.get("x-key", "")}
    return web.json_response(seen | {"body": body.decode()}, headers={"X-Said": "yes"})


def test_a_request_brings_status_headers_and_body(serve: Any) -> None:
    async def run() -> None:
        async with serve(echo) as url:
            transport = open_transport(Http())
            try:
                sent = {"headers": {"X-Key": "k"}, "body": b"ab"}
                answer = await transport.request("POST", f"{url}/a%20b?q=1", **sent)
            finally:
                await transport.close()
        assert answer.status == 200
        assert answer.headers.get("x-said") == "yes"
        assert b'"path": "/a%20b?q=1", "key": "k", "body": "ab"' in answer.body

    asyncio.run(run())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"connections": 0}, "connections=0: must be at least 1"),
        ({"read_timeout": -1}, "read_timeout=-1: must be a finite number of seconds above 0 or None"),
        ({"proxy": "http://me:secret@host:1"}, "proxy: must not hold a user or a password"),
        ({"proxy": "host"}, "proxy='host': must be 'http://host:port', 'direct' or None"),
        ({"verify": False, "ca_file": "a.pem"}, "ca_file='a.pem': nothing is verified"),
        ({"http2": True, "backend": "aiohttp"}, "http2=True: aiohttp speaks HTTP/1.1 only"),
        ({"backend": "curl"}, "backend='curl': must be one of 'auto', 'aiohttp'"),
    ],
)
def test_a_wrong_option_of_the_transport_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        Http(**arguments)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_error_of_a_status_tells_what_the_operator_reads(serve: Any) -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "x"}}, status=429, headers={"Retry-After": "7"})

    async def poor(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "insufficient_quota"}}, status=429)

    async def error_of(handler: Any) -> HttpStatusError:
        async with serve(handler) as url:
            transport = open_transport(Http())
            try:
                answer = await transport.request("GET", f"{url}/path?key=hidden", headers={})
            finally:
                await transport.close()
            return status_error("GET", f"{url}/path?key=hidden", answer)

    error = pickle.loads(pickle.dumps(asyncio.run(error_of(busy))))
    assert is_overload(error)
    assert retry_after_of(error) == 7.0
    assert "/path: HTTP 429 Too Many Requests" in str(error)
    assert "hidden" not in str(error)
    poor_error = asyncio.run(error_of(poor))
    assert is_permanent(poor_error)
    assert not is_overload(poor_error)
