"""The transport that always works: aiohttp. On the thread of the loop that it was opened on."""

from __future__ import annotations

import io
from collections.abc import Mapping

import aiohttp
from yarl import URL

from pillarbox.clients.transport import KEEP_ALIVE_S, USER_AGENT, Http, Response, proxy_finder, tls_context

LARGE_BODY_BYTES = 1 << 20
READ_BUFFER_BYTES = 1 << 20
"""Above this aiohttp stops to read from a connection; large answers are read whole anyway."""


class AiohttpTransport:
    """Requests by one session of aiohttp."""

    def __init__(self, options: Http) -> None:
        self._proxy_of = proxy_finder(options)
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=options.connections,
            keepalive_timeout=KEEP_ALIVE_S,
            ssl=tls_context(options),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT},
            timeout=aiohttp.ClientTimeout(
                total=options.total_timeout,
                sock_connect=options.connect_timeout,
                sock_read=options.read_timeout,
            ),
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        vectors: int = 0,
    ) -> Response:
        """Send one request: see `Transport.request`. Errors are those of aiohttp. It reads no vectors."""
        address = URL(url, encoded=True)
        async with self._session.request(
            method,
            address,
            headers=headers,
            # aiohttp asks for a file where a body is large, which it writes in pieces.
            data=body if body is None or len(body) < LARGE_BODY_BYTES else io.BytesIO(body),
            allow_redirects=False,
            proxy=self._proxy_of(address.scheme, address.authority),
        ) as response:
            # These headers are found by names in any case.
            return Response(response.status, response.headers, await response.read())

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
