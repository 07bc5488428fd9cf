"""The transport that always works: aiohttp. On the thread of the loop that it was opened on."""

# aiohttp says too little of a connection that ended: whether it had been kept, whether a byte of an answer
# had come, whether it was reset; and a body without a length that a reset cuts off is whole for it. So
# `Handler` notes that of each connection. It takes the place of aiohttp's own by `_factory`, which each
# version has that we know; without it nothing is sent again.

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import io
import socket
import ssl
import time
import traceback
from collections.abc import Mapping
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
    OWN_LIMITS,
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
    most_connections,
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

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._content = content

    def getbuffer(self) -> memoryview:
        """Return the bytes that were given: aiohttp asks for their number, for which BytesIO copies them."""
        return memoryview(self._content)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next piece."""
        self.taken_at = time.monotonic()
        return super().read(size)


class Handler(ResponseHandler):
    """A connection of aiohttp that remembers how it was used, and how it ended."""

    made_at = received_at = 0.0
    was_reset = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note when the connection was made."""
        self.made_at = time.monotonic()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Note when bytes of an answer came last."""
        self.received_at = time.monotonic()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note whether it was a reset."""
        self.was_reset = isinstance(exc, OSError)
        super().connection_lost(exc)

    def set_exception(self, exc: Any, *others: Any) -> None:
        """Name the connection in its error."""
        exc.pillarbox_handler = self
        super().set_exception(exc, *others)


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
            limit=most_connections(),
            limit_per_host=options.connections or 0,
            force_close=not keep,
            ssl=self._tls,
            **kept,  # type: ignore[arg-type]
        )
        if hasattr(connector, "_factory"):
            factory: Any = functools.partial(Handler, loop=asyncio.get_running_loop())
            connector._factory = factory
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
        more: dict[str, Any] = {}
        if place := address.fragment:
            # The address of DNS to connect to; the name stays that of the server. A proxy connects by itself.
            named, address = address, address.with_fragment(None)
            if proxy is None:
                address = address.with_host(place)
                headers = {**headers, "Host": named.raw_authority}
                if named.scheme == "https":
                    more = {"server_hostname": named.host}
        has_answer = False
        began = time.monotonic()
        try:
            async with session.request(
                method, address, headers=headers, data=data, allow_redirects=False, proxy=proxy, **more
            ) as response:
                has_answer = True
                return await self._read(response)
        except (TransportError, HttpStatusError):
            raise
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            if self._session.closed:
                raise ConnectionAbortedError("the transport was closed during the request") from None
            if not has_answer:
                found = _error_before_answer(error, began, data, body)
                if found is not None:
                    raise found from None
            # aiohttp's error quotes the address, whose query may hold keys.
            raise await self._error_of(error, proxy or str(address)) from None

    async def _read(self, response: aiohttp.ClientResponse) -> Response:
        """Read an answer as a whole, and take its codings away."""
        found = response.headers
        if response.status == SWITCHING_PROTOCOLS:
            response.close()
            raise AnsweredBadly("the server switches to another protocol, which nobody has asked for")
        transfer, length = found.get("Transfer-Encoding"), found.get("Content-Length")
        if transfer is not None and transfer.strip().lower() != "chunked":
            response.close()
            raise AnsweredBadly(f"the answer has the transfer coding {transfer[:40]!r}, which is not known")
        limit, content = self._limit, response.content
        if length is not None and int(length) > limit:
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
        if length is None and transfer is None:
            # aiohttp takes what came before a reset for the whole.
            handler = getattr(response, "_protocol", None)
            if isinstance(handler, Handler) and handler.was_reset:
                raise BrokenAnswer("the connection was reset in the middle of the answer")
        if "Content-Encoding" not in found:
            return Response(response.status, found, body)
        codings = ", ".join(found.getall("Content-Encoding"))
        # These headers are found by names in any case.
        return Response(response.status, found, await decoded(body, codings, limit))

    async def _error_of(self, error: Exception, url: str) -> Exception:
        """The error that says what happened, the same as of the other backend."""
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, ssl.CertificateError | aiohttp.ClientConnectorCertificateError):
            return CertificateRefused(message)
        if isinstance(error, asyncio.TimeoutError):
            is_connecting = isinstance(error, _CONNECT_TIMEOUTS) or _was_connecting(error)
            if is_connecting:
                return ConnectTimeout(f"no connection to {URL(url).host} in time")
            return ReadTimeout("no answer in time")
        if isinstance(error, aiohttp.ClientConnectorError):
            return await self._connector_error(error, url, message)
        if isinstance(error, aiohttp.ClientHttpProxyError):
            words = f"the proxy refuses a tunnel with the status {error.status}"
            return HttpStatusError(words, error.status, {}, b"")
        is_of_body = isinstance(error, aiohttp.ClientPayloadError)
        if isinstance(error.__cause__, HttpProcessingError) and not is_of_body:
            return AnsweredBadly(
                f"{type(error.__cause__).__name__}: {' '.join(error.__cause__.message.split())}"
            )
        if isinstance(error, ValueError):
            # An address that is none.
            return error
        return BrokenAnswer(message)

    async def _connector_error(self, error: aiohttp.ClientConnectorError, url: str, message: str) -> OSError:
        """The error for a connection that was not made."""
        cause = error.os_error
        if isinstance(cause, ssl.CertificateError):
            return CertificateRefused(message)
        if isinstance(cause, ssl.SSLError):
            return AnsweredBadly(message)
        if cause.errno is None or isinstance(cause, socket.gaierror):
            # Resolvers of other kinds give no number.
            return await self._names.error_of(URL(url).host or url)
        if cause.errno in OWN_LIMITS:
            return OSError(cause.errno, message)
        return NotReached(message)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        if self._fresh is not None:
            await self._fresh.close()


def _was_connecting(error: BaseException) -> bool:
    """True if the total time-out has ended an attempt to connect, by the place where it was cancelled."""
    cause = error.__cause__ or error.__context__ or error
    places = traceback.walk_tb(cause.__traceback__)
    return any(frame.f_globals.get("__name__") == "aiohttp.connector" for frame, _ in places)


def _error_before_answer(
    error: Exception, began: float, data: bytes | Body | None, body: bytes | None
) -> TransportError | None:
    """The error for a connection that ended before the first byte of an answer; None for another event."""
    if not isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError) or isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError
    ):
        return None
    named = getattr(error, "pillarbox_handler", getattr(error.__cause__, "pillarbox_handler", None))
    if not isinstance(named, Handler):
        # The connection had ended when the request was to be written.
        return error_before_answer(is_reused=True, is_reset=True, quiet_s=0.0, body_bytes=0)
    if named.received_at > began:
        return None
    since = data.taken_at if isinstance(data, Body) else max(began, named.made_at)
    return error_before_answer(
        is_reused=named.made_at < began,
        is_reset=named.was_reset or getattr(error, "errno", None) in _RESETS,
        quiet_s=time.monotonic() - since,
        body_bytes=len(body or b""),
    )


_CONNECT_TIMEOUTS: tuple[type[BaseException], ...] = tuple(
    found for name in ("ConnectionTimeoutError",) if (found := getattr(aiohttp, name, None)) is not None
)
_RESETS = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


def _limits() -> dict[str, Any]:
    """The bounds of headers that this version of aiohttp lets one set."""
    known = inspect.signature(aiohttp.ClientSession.__init__).parameters
    wanted = {"max_line_size": MAX_LINE_BYTES, "max_field_size": MAX_LINE_BYTES, "max_headers": MAX_HEADERS}
    return {name: value for name, value in wanted.items() if name in known}


_LIMITS = _limits()
