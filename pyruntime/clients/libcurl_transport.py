"""The fast transport: libcurl, on a native thread. On the thread of the loop that it was opened on; Linux."""

# libcurl does all of HTTP, TLS, proxies, pools and time-outs. Its multi handle is driven by a thread of the
# kernel's, without the GIL (`pillarbox.kernel.libcurl`); here requests are put together, and errors
# translated. pycurl brings the library, and the names of its options.

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import weakref
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pycurl

from pillarbox.clients.codings import decoded
from pillarbox.clients.transport import (
    CODINGS,
    KEEP_ALIVE_S,
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
    VectorBytes,
    error_before_answer,
    most_connections,
    proxy_finder,
)
from pillarbox.kernel import ForkedError, libcurl
from pillarbox.lacks import shortage_of_descriptors

RECEIVE_BUFFER_BYTES = 1 << 17
"""libcurl's default, 16 kB, hands a large answer over in many small pieces."""

SUPPRESS_CONNECT_HEADERS = 265
"""An option that pycurl does not name: the headers of a proxy's tunnel are not those of the answer."""


def _codes(*names: str) -> frozenset[int]:
    return frozenset(getattr(pycurl, name) for name in names if hasattr(pycurl, name))


_CERTIFICATE_CODES = _codes("E_SSL_PEER_CERTIFICATE", "E_PEER_FAILED_VERIFICATION", "E_SSL_ISSUER_ERROR")
_TLS_CODES = _codes(
    *("E_SSL_CACERT_BADFILE", "E_SSL_CERTPROBLEM", "E_SSL_CIPHER", "E_SSL_CONNECT_ERROR"),
    "E_SSL_ENGINE_INITFAILED",
)
_CONNECT_CODES = _codes("E_COULDNT_CONNECT", "E_PROXY")
_RESOLVER_CODES = _codes("E_COULDNT_RESOLVE_HOST", "E_COULDNT_RESOLVE_PROXY")
_CLOSED_CODES = _codes("E_GOT_NOTHING", "E_SEND_ERROR", "E_RECV_ERROR", "E_SEND_FAIL_REWIND")
"""Codes of a connection that ended; some of them also of an answer that cannot be read."""
_CUT_CODES = _codes("E_PARTIAL_FILE", "E_HTTP2", "E_HTTP2_STREAM") | {libcurl.BROKEN_OFF}
_RESETS = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})
_LOST = _RESETS | {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN}
"""Numbers of the system that end a connection. libcurl keeps older ones, as that of a connect that waits."""


# The extension is linked with libcurl, or is a module of pycurl's package that is.
libcurl.load(getattr(pycurl, "_pycurl", pycurl).__file__)


class _Headers(Mapping[str, str]):
    """The headers of an answer, parsed when the first is asked for: few are."""

    __slots__ = ("_found", "_lower", "_received")

    def __init__(self, received: bytes) -> None:
        self._received = received
        self._lower: bytes | None = None
        self._found: dict[str, str] | None = None

    def mention(self, word: bytes) -> bool:
        """Return True if `word`, in lower case, stands anywhere in the headers; parses none."""
        lower = self._lower
        if lower is None:
            lower = self._lower = self._received.lower()
        return word in lower

    def _parsed(self) -> dict[str, str]:
        if self._found is None:
            found: dict[str, str] = {}
            for line in self._received.split(b"\n"):
                if line.startswith(b"HTTP/"):
                    # Those of a proxy, or of an interim answer, came before.
                    found = {}
                    continue
                name, colon, value = line.decode("latin-1").partition(":")
                if colon:
                    key = name.strip().lower()
                    found[key] = f"{found[key]}, {value.strip()}" if key in found else value.strip()
            self._found = found
        return self._found

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())


class _Way(NamedTuple):
    """The parts of a request that follow from its address alone, `asked`. host: with the scheme."""

    asked: str
    url: bytes
    host: str
    proxy: bytes
    connect_to: libcurl.HeaderLines | None


class LibcurlTransport:
    """Requests by one multi handle of libcurl."""

    def __init__(self, options: Http) -> None:
        self._proxy_of = proxy_finder(options)
        self._max_answer_bytes = options.max_answer_bytes
        self._places = None if options.connections is None else Places(options.connections)
        self._names = Names()
        self._loop = asyncio.get_running_loop()
        self._headers: dict[str, str] | None = None
        self._lines = libcurl.HeaderLines([])
        # To the last address: most requests go to the same one.
        self._way = _Way("", b"", "", b"", None)
        # For each address that stands in place of a name.
        self._connect_to: dict[str, libcurl.HeaderLines] = {}
        self._will_flush = False
        self._closed = False
        self._thread = libcurl.HttpThread(
            _options_of(options),
            [
                (pycurl.M_MAX_HOST_CONNECTIONS, options.connections or 0),
                (pycurl.M_MAX_TOTAL_CONNECTIONS, most_connections()),
            ],
            options.max_answer_bytes,
        )
        # Before the interpreter ends, or libcurl's own end would find it at work.
        self._end_thread = weakref.finalize(self, _end, self._thread)
        self._loop.add_reader(self._thread.fileno(), self._thread.resolve_futures)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        vectors: int = 0,
    ) -> Coroutine[Any, Any, Response]:
        """Send one request: see `Transport.request`."""
        if self._closed:
            raise RuntimeError("the transport is closed")
        if headers != self._headers:
            self._lines = libcurl.HeaderLines(header_lines(headers))
            self._headers = dict(headers)
        if url != self._way.asked:
            self._way = self._way_to(url)
        # The address and the headers are those of now: others may be the last ones when it runs.
        return self._answered(method, self._way, self._lines, body, vectors)

    async def _answered(
        self,
        method: str,
        way: _Way,
        lines: libcurl.HeaderLines,
        body: bytes | None,
        vectors: int,
    ) -> Response:
        """The answer to one request, which is sent once more where nothing of it was read.

        Raises the error of the last.
        """
        place = None if self._places is None else self._places.of(way.host)
        if place is not None:
            await place.acquire()
        try:
            is_fresh = False
            while True:
                future: asyncio.Future[None] = self._loop.create_future()
                sent = self._thread.send(
                    future,
                    method.encode(),
                    way.url,
                    lines,
                    way.proxy,
                    body,
                    vectors,
                    is_fresh,
                    way.connect_to,
                )
                if not self._will_flush:
                    self._flush_soon()
                try:
                    await future
                except BaseException:
                    if not self._closed and not self._loop.is_closed():
                        self._thread.cancel(sent)
                        if not self._will_flush:
                            self._flush_soon()
                    raise
                if not sent.code:
                    break
                error = await self._error_of(sent, way, body)
                if is_fresh or self._closed or not isinstance(error, NotSent):
                    raise error
                is_fresh = True
        finally:
            if place is not None:
                place.release()
        if sent.has_vectors:
            return Response(
                sent.status, _Headers(sent.head), b"", VectorBytes(sent, sent.tokens, sent.are_finite)
            )
        if not sent.has_other_coding:
            return Response(sent.status, _Headers(sent.head), sent.body)
        found = _Headers(sent.head)
        whole = await decoded(sent.body, found.get("content-encoding", ""), self._max_answer_bytes)
        return Response(sent.status, found, whole)

    def _way_to(self, url: str) -> _Way:
        address, _, number = url.partition("#")
        scheme, _, rest = address.partition("://")
        host = rest.partition("/")[0]
        proxy = self._proxy_of(scheme.lower(), host) or ""
        # A proxy connects by itself.
        connect_to = self._lines_of(number) if number and not proxy else None
        place = f"{scheme}://{host}#{number}"
        return _Way(url, address.encode("ascii"), place, proxy.encode(), connect_to)

    def _lines_of(self, number: str) -> libcurl.HeaderLines:
        """The option by which libcurl connects to an address of DNS in place of the name."""
        found = self._connect_to.get(number)
        if found is None:
            host = f"[{number}]" if ":" in number else number
            found = self._connect_to[number] = libcurl.HeaderLines([f"::{host}:".encode("ascii")])
        return found

    async def _error_of(self, sent: libcurl.HttpRequest, way: _Way, body: bytes | None) -> Exception:
        if sent.code in _RESOLVER_CODES:
            named = (way.proxy if sent.code == pycurl.E_COULDNT_RESOLVE_PROXY else way.url).decode()
            return await self._names.error_of(urlsplit(named).hostname or named)
        if sent.code in (libcurl.TOO_LARGE, pycurl.E_FILESIZE_EXCEEDED):
            return AnswerTooLarge.of(self._max_answer_bytes)
        return _error_of(sent, len(body or b""))

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._thread.fileno())
        self._end_thread()

    def _flush_soon(self) -> None:
        """Wake the thread once for all requests of this turn of the loop."""
        self._will_flush = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        if not self._closed:
            self._thread.flush()


def _end(thread: libcurl.HttpThread) -> None:
    # In the child of a fork it does not run.
    with suppress(ForkedError):
        thread.close()


def _options_of(options: Http) -> list[tuple[int, int | bytes]]:
    """The options of each request, by their numbers."""
    found: list[tuple[int, int | bytes]] = [
        (pycurl.NOSIGNAL, 1),
        (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.USERAGENT, USER_AGENT.encode()),
        # The thread decompresses: libcurl takes a stream that is cut for a whole one.
        (pycurl.ACCEPT_ENCODING, CODINGS.encode()),
        (pycurl.HTTP_CONTENT_DECODING, 0),
        (SUPPRESS_CONNECT_HEADERS, 1),
        (pycurl.MAXFILESIZE_LARGE, options.max_answer_bytes),
        (pycurl.BUFFERSIZE, RECEIVE_BUFFER_BYTES),
        (pycurl.MAXAGE_CONN, int(KEEP_ALIVE_S)),
        (pycurl.PATH_AS_IS, 1),
    ]
    if options.http2:
        found += [(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS), (pycurl.PIPEWAIT, 1)]
    else:
        found.append((pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1))
    # 0 would be libcurl's default of 300 seconds.
    connect = options.connect_timeout if options.connect_timeout is not None else 1e6
    found.append((pycurl.CONNECTTIMEOUT_MS, max(1, round(connect * 1000))))
    if options.total_timeout is not None:
        found.append((pycurl.TIMEOUT_MS, max(1, round(options.total_timeout * 1000))))
    if options.read_timeout is not None:
        found += [(pycurl.LOW_SPEED_LIMIT, 1), (pycurl.LOW_SPEED_TIME, max(1, round(options.read_timeout)))]
    if not options.verify:
        found += [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]
    elif options.ca_file is not None:
        found.append((pycurl.CAINFO, os.fsencode(options.ca_file)))
    else:
        # libcurl of a wheel was built on another system: the certificates are where Python finds them.
        paths = ssl.get_default_verify_paths()
        if paths.cafile is not None:
            found.append((pycurl.CAINFO, os.fsencode(paths.cafile)))
        if paths.capath is not None:
            found.append((pycurl.CAPATH, os.fsencode(paths.capath)))
    return found


def _error_of(sent: libcurl.HttpRequest, body_bytes: int) -> Exception:
    """The error that says what happened, the same as of the other backend."""
    code, message = sent.code, sent.message
    if code == libcurl.CLOSED_MEANWHILE:
        return ConnectionAbortedError("the transport was closed during the request")
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return ReadTimeout(message) if sent.request_nbytes > 0 else ConnectTimeout(message)
    if sent.connect_code >= 300:
        words = f"the proxy refuses a tunnel with the status {sent.connect_code}"
        return HttpStatusError(words, sent.connect_code, {}, b"")
    if code in _CERTIFICATE_CODES:
        return CertificateRefused(message)
    if code in _TLS_CODES:
        return NotReached(_with_errno(sent)) if sent.os_errno in _LOST else AnsweredBadly(message)
    if code in _CONNECT_CODES:
        if not sent.os_errno and (shortage := shortage_of_descriptors()) is not None:
            # libcurl keeps no number of a socket that it was not given.
            return OSError(shortage.errno, f"{shortage.strerror}: {message}")
        if sent.os_errno in OWN_LIMITS:
            return OSError(sent.os_errno, f"{os.strerror(sent.os_errno)}: {message}")
        return NotReached(_with_errno(sent))
    if code in (pycurl.E_URL_MALFORMAT, pycurl.E_UNSUPPORTED_PROTOCOL) and not sent.request_nbytes:
        return ValueError(f"url: {message}")
    if code == pycurl.E_OUT_OF_MEMORY:
        return MemoryError(message)
    if code in _CLOSED_CODES and not sent.head:
        is_reset = sent.os_errno in _RESETS
        if is_reset or code in (pycurl.E_GOT_NOTHING, pycurl.E_SEND_FAIL_REWIND):
            return error_before_answer(
                is_reused=sent.is_reused,
                is_reset=is_reset,
                quiet_s=sent.quiet_seconds,
                body_bytes=body_bytes,
            )
    is_lost = code in _CLOSED_CODES and sent.os_errno in _LOST
    if code in _CUT_CODES or is_lost or (code == pycurl.E_GOT_NOTHING and _is_interim(sent.head)):
        return BrokenAnswer(_with_errno(sent) if message else "the answer broke off")
    return AnsweredBadly("the answer does not decompress" if code == libcurl.BADLY_CODED else message)


def _with_errno(sent: libcurl.HttpRequest) -> str:
    number = sent.os_errno if sent.os_errno in _LOST or sent.code in _CONNECT_CODES else 0
    return f"[Errno {number}] {os.strerror(number)}: {sent.message}" if number else sent.message


def _is_interim(head: bytes) -> bool:
    """True if the last status is one before an answer; another protocol is none that was asked for."""
    status = head.rpartition(b"HTTP/")[2].split(None, 2)[1:2]
    return bool(status) and len(status[0]) == 3 and status[0][:1] == b"1" and status[0] != b"101"


def header_lines(headers: Mapping[str, str]) -> list[bytes]:
    """The lines of the headers for libcurl, which checks none of them. Raises ValueError."""
    # Without this line it asks a server, and waits a second, before it sends a large body.
    lines = [b"Expect:"]
    for name, value in headers.items():
        if any(sign in name or sign in value for sign in ("\r", "\n", "\0")) or ":" in name or not name:
            # The value may be a key.
            raise ValueError(f"headers: the name or the value of {name!r} holds a line break or a colon")
        # A header without a value is written so; "name:" would take it out.
        lines.append((f"{name}: {value}" if value else f"{name};").encode())
    return lines
