"""The transport that always works: aiohttp. On the thread of the loop that it was opened on."""

# aiohttp says too little of a connection that ended: whether it had been kept, whether a byte of an answer
# had come, whether it was reset; and a body without a length that a reset cuts off is whole for it. So
# `Handler` notes that of each connection. It takes the place of aiohttp's own by `_factory`, which each
# version has that we know; without it nothing is sent again.

from __future__ import annotations

import asyncio
import errno
import functools
import io
import ssl
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from pillarbox.clients.codings import decoded
from pillarbox.clients.transport import (
    CODINGS,
    KEEP_ALIVE_S,
    MAX_HEADERS,
    MAX_LINE_BYTES,
    USER_AGENT,
    AnsweredBadly,
    AnswerTooLarge,
    BrokenAnswer,
    CertificateRefused,
    ConnectTimeout,
    Http,
    HttpStatusError,
    Names,
    NotReached,
    NotSent,
    Places,
    ReadTimeout,
    Response,
    TransportError,
    error_before_answer,
    proxy_finder,
    tls_context,
)

FILE_BODY_BYTES = 1 << 20
READ_BUFFER_BYTES = 1 << 20
"""Above this aiohttp stops to read from a connection; large answers are read whole anyway."""
SWITCHING_PROTOCOLS = 101


class Body(io.BytesIO):
    """A body that aiohttp writes in pieces, and the time at which it has taken the last."""

    taken_at = 0.0

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next piece."""
        self.taken_at = time.monotonic()
        return super().read(size)


class Handler(ResponseHandler):
    """A connection of aiohttp that remembers how it was used, and how it ended."""

    requests = 0
    began = 0.0
    has_received = False
    was_reset = False

    def set_response_params(self, *args: Any, **options: Any) -> None:
        """Begin a request."""
        _USED.set(self)
        self.requests += 1
        self.began = time.monotonic()
        self.has_received = False
        super().set_response_params(*args, **options)

    def data_received(self, data: bytes) -> None:
        """Note that an answer has begun."""
        self.has_received = True
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note whether it was a reset."""
        self.was_reset = isinstance(exc, OSError)
        super().connection_lost(exc)


_USED: ContextVar[Handler | None] = ContextVar("handler", default=None)


class AiohttpTransport:
    """Requests by one session of aiohttp, and by another for what is sent once more."""

    def __init__(self, options: Http) -> None:
        self._options = options
        self._proxy_of = proxy_finder(options)
        self._limit = options.max_answer_bytes
        self._places = None if options.connections is None else Places(options.connections)
        self._names = Names()
        self._tls = tls_context(options)
        self._session = self._opened(keep=True)
        self._fresh: aiohttp.ClientSession | None = None

    def _opened(self, keep: bool) -> aiohttp.ClientSession:
        options, kept = self._options, {} if not keep else {"keepalive_timeout": KEEP_ALIVE_S}
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=options.connections or 0,
            force_close=not keep,
            ssl=self._tls,
            **kept,  # type: ignore[arg-type]
        )
        if hasattr(connector, "_factory"):
            connector._factory = functools.partial(Handler, loop=asyncio.get_running_loop())
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": CODINGS},
            timeout=aiohttp.ClientTimeout(
                total=options.total_timeout,
                sock_connect=options.connect_timeout,
                sock_read=options.read_timeout,
            ),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            **_LIMITS,
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
        """Send one request: see `Transport.request`. It reads no vectors."""
        if self._session.closed:
            raise RuntimeError("the transport is closed")
        address = URL(url, encoded=True)
        if self._places is None:
            return await self._sent(method, address, headers, body)
        async with self._places.of(f"{address.scheme}://{address.authority}"):
            return await self._sent(method, address, headers, body)

    async def _sent(
        self, method: str, address: URL, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        try:
            return await self._sent_once(self._session, method, address, headers, body)
        except NotSent:
            if self._session.closed:
                raise
        if self._fresh is None:
            self._fresh = self._opened(keep=False)
        return await self._sent_once(self._fresh, method, address, headers, body)

    async def _sent_once(
        self,
        session: aiohttp.ClientSession,
        method: str,
        address: URL,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Response:
        # aiohttp asks for a file where a body is large, which it writes in pieces.
        data = body if body is None or len(body) < FILE_BODY_BYTES else Body(body)
        proxy = self._proxy_of(address.scheme, address.authority)
        _USED.set(None)
        has_answer = False
        try:
            async with session.request(
                method, address, headers=headers, data=data, allow_redirects=False, proxy=proxy
            ) as response:
                has_answer = True
                return await self._read(response)
        except (TransportError, HttpStatusError):
            raise
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            if self._session.closed:
                raise ConnectionAbortedError("the transport was closed during the request") from None
            raise await self._error_of(error, has_answer, data, body, proxy or str(address)) from error

    async def _read(self, response: aiohttp.ClientResponse) -> Response:
        """Read an answer as a whole, and take its codings away."""
        found = response.headers
        if response.status == SWITCHING_PROTOCOLS:
            response.close()
            raise AnsweredBadly("the server switches to another protocol, which nobody has asked for")
        transfer = found.get("Transfer-Encoding")
        if transfer is not None and transfer.strip().lower() != "chunked":
            response.close()
            raise AnsweredBadly(f"the answer has the transfer coding {transfer[:40]!r}, which is not known")
        limit, content = self._limit, response.content
        if (response.content_length or 0) > limit:
            response.close()
            raise AnswerTooLarge.of(limit)
        body = await content.readany()
        if not content.at_eof():
            parts, size = [body], len(body)
            while part := await content.readany():
                parts.append(part)
                size += len(part)
                if size > limit:
                    response.close()
                    raise AnswerTooLarge.of(limit)
            body = b"".join(parts)
        if len(body) > limit:
            raise AnswerTooLarge.of(limit)
        handler = _USED.get()
        if handler is not None and handler.was_reset and transfer is None and response.content_length is None:
            # aiohttp takes what came before a reset for the whole.
            raise BrokenAnswer("the connection was reset in the middle of the answer")
        codings = found.getall("Content-Encoding", ())
        if codings:
            body = await decoded(body, ", ".join(codings), limit)
        # These headers are found by names in any case.
        return Response(response.status, found, body)

    async def _error_of(
        self, error: Exception, has_answer: bool, data: bytes | Body | None, body: bytes | None, url: str
    ) -> Exception:
        """The error that says what happened, the same as of the other backend."""
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, aiohttp.ClientConnectorDNSError if _HAS_DNS_ERROR else _NoError):
            return await self._names.error_of(URL(url).host or url)
        if isinstance(error, ssl.CertificateError | aiohttp.ClientConnectorCertificateError):
            return CertificateRefused(message)
        if isinstance(error, asyncio.TimeoutError):
            is_connecting = isinstance(error, _CONNECT_TIMEOUTS) or _USED.get() is None
            return ConnectTimeout(message) if is_connecting else ReadTimeout(message)
        if isinstance(error, aiohttp.ClientConnectorError):
            return await self._connector_error(error, url, message)
        if isinstance(error, aiohttp.ClientHttpProxyError):
            words = f"the proxy refuses a tunnel with the status {error.status}"
            return HttpStatusError(words, error.status, {}, b"")
        if isinstance(error.__cause__, HttpProcessingError) and not isinstance(
            error, aiohttp.ClientPayloadError
        ):
            return AnsweredBadly(message)
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
            return error
        if has_answer or isinstance(error, aiohttp.ClientPayloadError):
            return BrokenAnswer(message)
        handler = _USED.get()
        if handler is None or handler.has_received:
            return NotReached(message) if handler is None else BrokenAnswer(message)
        since = data.taken_at if isinstance(data, Body) else handler.began
        is_reset = handler.was_reset or getattr(error, "errno", None) in _RESETS
        return error_before_answer(
            is_reused=handler.requests > 1,
            is_reset=is_reset,
            quiet_s=time.monotonic() - since,
            body_bytes=len(body or b""),
        )

    async def _connector_error(
        self, error: aiohttp.ClientConnectorError, url: str, message: str
    ) -> TransportError:
        """The error for a connection that was not made."""
        cause = error.os_error
        if isinstance(cause, ssl.CertificateError):
            return CertificateRefused(message)
        if isinstance(cause, ssl.SSLError):
            return AnsweredBadly(message)
        if cause.errno is None or (isinstance(cause, OSError) and type(cause).__name__ == "gaierror"):
            # A resolver of another kind has no number.
            return await self._names.error_of(URL(url).host or url)
        return NotReached(message)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        if self._fresh is not None:
            await self._fresh.close()


class _NoError(Exception):
    """Stands for an error that this version of aiohttp does not have."""


_HAS_DNS_ERROR = hasattr(aiohttp, "ClientConnectorDNSError")
_CONNECT_TIMEOUTS: tuple[type[BaseException], ...] = tuple(
    found for name in ("ConnectionTimeoutError",) if (found := getattr(aiohttp, name, None)) is not None
)
_RESETS = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


def _limits() -> dict[str, Any]:
    """The bounds of headers that this version of aiohttp lets one set."""
    import inspect

    known = inspect.signature(aiohttp.ClientSession.__init__).parameters
    wanted = {"max_line_size": MAX_LINE_BYTES, "max_field_size": MAX_LINE_BYTES, "max_headers": MAX_HEADERS}
    return {name: value for name, value in wanted.items() if name in known}


_LIMITS = _limits()
