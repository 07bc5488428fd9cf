"""One way to send HTTP requests, below all clients: options, the protocol of a transport, errors.

`open_transport` is for a running event loop; the values are for any thread.
"""

# The backends are other people's HTTP clients: docs/decisions/http-transport.md compares them. Two choices
# are made here, so that they do not depend on the backend. Redirects are not followed: they would carry the
# headers, and with them keys, to another server. The proxy is looked up here, because each HTTP client reads
# other variables of the environment, and some read passwords from `.netrc` with them.

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from pillarbox.clients.charsets import charset_of, content_type_of, shown_text
from pillarbox.lacks import shortage_of_descriptors
from pillarbox.redaction import redacted, without_secrets
from pillarbox.validate import (
    check_bool,
    check_choice,
    check_limit_of_time,
    check_positive_int,
    check_text,
    naming_arguments,
)
from pillarbox.wire import EXHAUSTED_ERRNOS, Kind, exhaustion_in, read_error

_log = logging.getLogger("pillarbox")

BACKENDS = ("auto", "libcurl", "aiohttp")
SURROGATES = ("error", "replace")
Surrogates: TypeAlias = Literal["error", "replace"]
Backend: TypeAlias = Literal["auto", "libcurl", "aiohttp"]

MAX_ERROR_BODY_BYTES = 65_536
"""Bytes of an answer that an error keeps: enough for each service's error object."""
MAX_MESSAGE_CHARACTERS = 300
"""Characters of an answer that stand in the text of an error."""
USER_AGENT = "pillarbox"
CODINGS = "gzip, deflate"
"""The content codings that are asked for, by both backends."""
MAX_ANSWER_BYTES = 1 << 27
"""Bytes of an answer, unless told: more than 2,048 vectors of 3,072 numbers as text."""
LARGE_BODY_BYTES = 65_536
"""A body from here on may be refused for its size by closing the connection; a smaller one is not."""
SOON_S = 1.0
"""Seconds after the last byte of a request within which a closed connection tells that nothing was read."""
MAX_LINE_BYTES = 102_400
"""Bytes of one line of an answer's headers, libcurl's own bound."""
OWN_LIMITS = EXHAUSTED_ERRNOS | {errno.EADDRNOTAVAIL}
"""Numbers of the system for limits of this machine: descriptors, memory, ports; not of a service."""
DESCRIPTORS_SHARE = 0.75
"""The share of the descriptors that this process may have which connections take at most."""
MAX_HEADERS = 5_000
"""Headers of an answer, libcurl's own bound."""
KEEP_ALIVE_S = 4.0
"""Seconds for which an idle connection is used again: many servers close theirs after five, and a request
that meets the closing is lost."""
ON_LINUX = sys.platform == "linux"
"""The thread that drives libcurl waits in an epoll."""
DIRECT = "direct"
"""The value of `proxy` for no proxy, whatever the environment says."""


@naming_arguments
@dataclass(frozen=True)
class Http:
    """Options of the HTTP transport of one client.

    connections: open connections to one endpoint (scheme, host, port), at least 1; further requests wait.
        None for one per request in flight, which the operator's capacity limits, and three quarters of the
        descriptors that the process may have.
    connect_timeout: seconds for a connection with its TLS handshake; None for no limit.
    read_timeout: seconds without a byte from the server; None for no limit.
    total_timeout: seconds for a whole request, without the wait for one of `connections`; None for no limit.
    proxy: `http://host:port` for all requests; None for the proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
        NO_PROXY define in the worker; "direct" for none.
    verify: False accepts each certificate. ca_file: a file in PEM, on the worker, with the certificates to
        trust in place of the system's.
    http2: offer HTTP/2 to servers with TLS; needs libcurl.
    backend: the HTTP client; "auto" is libcurl (Linux, `pip install 'pillarbox[libcurl]'`) if it is
        installed, otherwise aiohttp.
    max_answer_bytes: of one decompressed answer; a longer one is the error of its row.
    surrogates: lone surrogates in texts that are sent and in JSON that is received: "error" fails their row,
        "replace" sends U+FFFD for each.

        >>> from pillarbox.clients import Chat, Http
        >>> slow = Http(read_timeout=600.0, connections=16)
        >>> client = Chat("https://host/v1", "small", prompt="{text}", http=slow)

    A picklable value; any thread may use it. Raises TypeError and ValueError for a bad argument.
    """

    connections: int | None = None
    connect_timeout: float | None = 10.0
    read_timeout: float | None = 60.0
    total_timeout: float | None = 300.0
    proxy: str | None = None
    verify: bool = True
    ca_file: str | None = None
    http2: bool = False
    backend: Backend = "auto"
    surrogates: Surrogates = "error"
    max_answer_bytes: int = MAX_ANSWER_BYTES

    def __post_init__(self) -> None:
        if self.connections is not None:
            check_positive_int("connections", self.connections)
        check_positive_int("max_answer_bytes", self.max_answer_bytes)
        for name in ("connect_timeout", "read_timeout", "total_timeout"):
            check_limit_of_time(name, getattr(self, name))
        if self.proxy is not None and self.proxy != DIRECT:
            _check_proxy(self.proxy)
        check_bool("verify", self.verify)
        if self.ca_file is not None:
            check_text("ca_file", self.ca_file)
            if not self.verify:
                raise ValueError(
                    f"ca_file={self.ca_file!r}: nothing is verified with verify=False; leave one of them out"
                )
        check_bool("http2", self.http2)
        check_choice("backend", self.backend, BACKENDS)
        check_choice("surrogates", self.surrogates, SURROGATES)
        if self.http2 and self.backend == "aiohttp":
            raise ValueError("http2=True: aiohttp speaks HTTP/1.1 only; leave http2 or backend out")


def _check_proxy(proxy: object) -> None:
    """Accept `http://host:port`. A password in it would travel with the plan and stand in errors."""
    if not isinstance(proxy, str):
        raise TypeError(f"proxy={type(proxy).__name__}: must be a str such as 'http://host:3128', or None")
    parts = urlsplit(proxy)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "proxy: must not hold a user or a password; set HTTPS_PROXY and HTTP_PROXY in the environment of "
            "the workers instead, and leave proxy out"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"proxy={proxy!r}: must be 'http://host:port', 'direct' or None")


class VectorBytes(NamedTuple):
    """Vectors that the transport has read of an answer.

    block: a buffer of bytes, all vectors one after the other, which may be written to. tokens: of the texts,
    as the service counted them; None where it did not. are_finite: read as float32, all numbers are.
    """

    block: Any
    tokens: int | None
    are_finite: bool


class Response(NamedTuple):
    """An answer, received as a whole and decompressed.

    headers: found by names in lower case; of a header that came several times one value, or all joined.
    vectors: those that were asked for; the body is empty then.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    vectors: VectorBytes | None = None


class Transport(Protocol):
    """Sends requests over kept connections. On the thread of the loop that it was opened on."""

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        vectors: int = 0,
    ) -> Coroutine[Any, Any, Response]:
        """Send one request and return the whole answer, whatever its status.

        url: absolute, percent-encoded; as its fragment the address to connect to for its name, unless there
        is a proxy, which connects by itself (see `pillarbox.clients.addresses`). vectors: the number of
        vectors in base64 that an answer in OpenAI's form should hold; a transport that can reads them, and
        leaves an answer that is another one as it is. Cancelling ends the request. Raises a TransportError
        or an HttpTimeout, whose `kind` tells what happened; both backends raise the same for the same
        event. A request is sent once more, on a fresh connection, where nothing of it was read: see
        `NotSent`.
        """
        ...

    async def close(self) -> None:
        """Close all connections; requests in flight fail. May be called again."""
        ...


class MissingExtra(ImportError):
    """Raised if the package of an option is not installed."""


class HttpTimeout(TimeoutError):
    """The base of the time-outs of a request."""

    kind: ClassVar[Kind] = Kind.LATE


class ConnectTimeout(HttpTimeout):
    """No connection was made in time: `connect_timeout`, or `total_timeout` before there was one."""

    kind = Kind.NOT_REACHED


class ReadTimeout(HttpTimeout):
    """The answer did not come in time: `read_timeout` or `total_timeout`."""


class TransportError(ConnectionError):
    """The base of the errors of a request that has no answer; `kind` is its class in `pillarbox.wire`."""

    kind: ClassVar[Kind] = Kind.UNKNOWN


class NotSent(TransportError):
    """The connection ended before the first byte of an answer, so that nothing of the request was read.

    That is: a kept connection that was closed or reset, or a fresh one that was reset, within a second of the
    request. The transport has then sent the request once more, on a fresh connection; this is the error of
    that second time.
    """

    kind = Kind.NOT_SENT
    was_sent_again = True


class NotReached(TransportError):
    """No connection was made, or a fresh one was closed without an answer."""

    kind = Kind.NOT_REACHED


class BrokenAnswer(TransportError):
    """The answer broke off, in its headers, its body or its compressed stream, or after a long wait."""

    kind = Kind.BROKEN


class AnsweredBadly(TransportError):
    """The answer cannot be read as HTTP, has a content coding that is not known, or TLS fails."""

    kind = Kind.ANSWERED_BADLY


class BodyRefused(TransportError):
    """The server closed a fresh connection while a large body was sent, or soon after: it is too large."""

    kind = Kind.REFUSED_SIZE


class AnswerTooLarge(TransportError):
    """The answer has more bytes than `max_answer_bytes`."""

    kind = Kind.REFUSED_SIZE

    @classmethod
    def of(cls, limit: int) -> AnswerTooLarge:
        """The error for a bound."""
        return cls(f"the answer has more than max_answer_bytes={limit:,} of Http")


class HostUnknown(TransportError):
    """The name of the host does not exist."""

    kind = Kind.REFUSED_ALL


class CertificateRefused(TransportError):
    """The server's certificate is not believed: it has expired, or is for another name, or is self-signed."""

    kind = Kind.REFUSED_ALL


def error_before_answer(
    *, is_reused: bool, is_reset: bool, quiet_s: float, body_bytes: int
) -> TransportError:
    """The error for a connection that ended after the request, before the first byte of an answer.

    is_reused: the connection had been kept. is_reset: it was reset, not closed. quiet_s: seconds since the
    last byte of the request was sent; 0 if not all were. body_bytes: of the request. A `NotSent` is for
    sending the request once more.
    """
    how = "reset" if is_reset else "closed"
    if quiet_s >= SOON_S:
        return BrokenAnswer(f"the server {how} the connection after {quiet_s:.1f} s, without an answer")
    if is_reused:
        return NotSent(f"the server {how} the kept connection before it answered")
    if body_bytes >= LARGE_BODY_BYTES:
        return BodyRefused(
            f"the server {how} the connection for a body of {body_bytes:,} bytes: it is probably too large"
        )
    if is_reset:
        return NotSent("the server reset the connection before it answered")
    return NotReached("the server closed the connection without an answer")


class HttpStatusError(Exception):
    """Error of a service that answered with a status that is not a success.

        >>> from pillarbox import CallFailed, async_map
        >>> from pillarbox.clients import HttpLookup
        >>> from pillarbox.testing import serve
        >>> with serve(key="the right one") as service:
        ...     planes = HttpLookup(f"{service.url}/planes/{{tailnum}}")
        ...     try:
        ...         list(async_map([{"tailnum": "N14228"}], planes))
        ...     except CallFailed as failed:
        ...         print(type(failed.cause).__name__, failed.cause.status)
        HttpStatusError 401

    status: the HTTP status. headers: of the answer. body: its first bytes. The operator reads Retry-After,
    overload, permanent failures and accounts without credit from these.
    """

    def __init__(self, message: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers)
        # It travels to the driver in the error of a row: a page of HTML of a proxy should not, in full.
        self.body = body[:MAX_ERROR_BODY_BYTES]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.headers, self.body)


def status_error(method: str, url: str, response: Response) -> HttpStatusError:
    """The error for an answer. Its text names the address without the query, which may hold keys or rows."""
    try:
        phrase = f" {HTTPStatus(response.status).phrase}"
    except ValueError:
        phrase = ""
    # A service may quote the key that it refuses.
    body = without_secrets(response.body)
    headers = {name: redacted(value) for name, value in response.headers.items()}
    charset = charset_of(content_type_of(response.headers))
    said = redacted(" ".join(shown_text(body[: 4 * MAX_MESSAGE_CHARACTERS], charset).split()))
    if len(said) > MAX_MESSAGE_CHARACTERS:
        said = said[:MAX_MESSAGE_CHARACTERS] + "..."
    message = f"{method} {without_query(url)}: HTTP {response.status}{phrase}" + (f": {said}" if said else "")
    return HttpStatusError(message, response.status, headers, body)


def without_query(url: str) -> str:
    """`url` without user, password, query and fragment: what an error may say."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def open_transport(options: Http) -> Transport:
    """Open a transport on the running event loop; connections are made as requests need them.

    Raises MissingExtra with the line that installs the package, and FileNotFoundError for a `ca_file` that is
    not there.
    """
    if options.ca_file is not None and not Path(options.ca_file).is_file():
        raise FileNotFoundError(f"ca_file={options.ca_file!r}: is not a file on this worker")
    transport_type = _transport_type(options)
    opened: Transport = transport_type(options)
    return opened


def _transport_type(options: Http) -> Any:
    backend: Backend = options.backend
    if backend == "auto":
        backend = "libcurl" if options.http2 or _libcurl_is_here() else "aiohttp"
    if backend == "aiohttp":
        return _backend("aiohttp", "aiohttp", "http").AiohttpTransport
    if not ON_LINUX:
        raise MissingExtra("the HTTP client libcurl is for Linux: leave http2 and backend out")
    return _backend("libcurl", "pycurl", "libcurl").LibcurlTransport


def _libcurl_is_here() -> bool:
    """Return True if pycurl is installed, with a libcurl that other modules can use."""
    if not ON_LINUX or find_spec("pycurl") is None:
        return False
    try:
        import_module("pillarbox.clients.libcurl_transport")
    except ImportError as error:
        if error.name != "libcurl":
            raise
        return False
    return True


def _backend(name: str, package: str, extra: str) -> Any:
    try:
        return import_module(f"pillarbox.clients.{name}_transport")
    except ModuleNotFoundError as error:
        # Another module that is missing is a defect of the installation, and must not be told as a missing
        # extra.
        if error.name != package:
            raise
        raise MissingExtra(
            f"the HTTP client {name} needs the package {package}: pip install 'pillarbox[{extra}]'"
        ) from None


def most_connections() -> int:
    """Connections that the descriptors of this process allow for; 0 for no bound."""
    try:
        import resource
    except ImportError:
        return 0
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if soft == resource.RLIM_INFINITY else max(1, int(soft * DESCRIPTORS_SHARE))


class Names:
    """Tells apart why the name of a host was not resolved: clients often do not. On one loop's thread."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[OSError]] = {}

    async def error_of(self, host: str) -> OSError:
        """Ask the resolver once more, on another thread, and return the error: HostUnknown or NotReached.

        Where this process has no descriptor left, as the resolver needs, the error says that. Raises
        RuntimeError if the thread cannot be started.
        """
        if (shortage := shortage_of_descriptors()) is not None:
            return OSError(shortage.errno, f"{shortage.strerror}: the host {host!r} was not resolved")
        asked = self._asked.get(host)
        if asked is None:
            # Shared: many rows ask for one host.
            asked = self._asked[host] = asyncio.ensure_future(_error_of_name(host))
            asked.add_done_callback(lambda _: self._asked.pop(host, None))
        error = await asyncio.shield(asked)
        return type(error)(*error.args)


async def _error_of_name(host: str) -> OSError:
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(None, socket.getaddrinfo, host, None)
    except socket.gaierror as error:
        if (shortage := shortage_of_descriptors()) is not None:
            return OSError(shortage.errno, f"{shortage.strerror}: the host {host!r} was not resolved")
        if read_error(error).kind is Kind.REFUSED_ALL:
            return HostUnknown(f"the host {host!r} does not exist: {error.strerror}; look at the address")
        return NotReached(f"the name server gives no answer for {host!r} for now: {error.strerror}")
    except (OSError, UnicodeError) as error:
        if exhaustion_in(error) is not None and isinstance(error, OSError):
            return error
        return HostUnknown(f"the host {host!r} is not a name: {error}")
    return NotReached(f"the host {host!r} was not resolved at first")


class Places:
    """Lets `connections` requests go to one endpoint at a time; the others wait. On one loop's thread."""

    # The wait is here, and not in the HTTP client, where it would count as the service's time.

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._places: dict[str, asyncio.Semaphore] = {}
        self._has_warned = False

    def of(self, endpoint: str) -> asyncio.Semaphore:
        """The places of an endpoint (scheme, host and port)."""
        places = self._places.get(endpoint)
        if places is None:
            places = self._places[endpoint] = asyncio.Semaphore(self._connections)
        if places.locked() and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "requests to %s wait for one of connections=%d of Http; left out, there are as many as calls",
                endpoint,
                self._connections,
            )
        return places


def tls_context(options: Http) -> ssl.SSLContext:
    """The TLS settings of these options, for clients that use Python's `ssl`."""
    context = ssl.create_default_context(cafile=options.ca_file)
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def proxy_finder(options: Http) -> Callable[[str, str], str | None]:
    """A function of scheme and host (with port, if any) that returns the address of the proxy, or None."""
    if options.proxy == DIRECT:
        return lambda scheme, host: None
    if options.proxy is not None:
        proxy = options.proxy
        return lambda scheme, host: proxy
    proxies = getproxies_environment()
    if not proxies:
        return lambda scheme, host: None

    def of_environment(scheme: str, host: str) -> str | None:
        if proxy_bypass_environment(host, proxies):
            return None
        return proxies.get(scheme) or proxies.get("all")

    return of_environment
