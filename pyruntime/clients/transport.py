"""One way to send HTTP requests, below all clients: options, the protocol of a transport, errors.

`open_transport` is for a running event loop; the values are for any thread.
"""

# The backends are other people's HTTP clients: docs/decisions/http-transport.md compares them. Two choices
# are made here, so that they do not depend on the backend. Redirects are not followed: they would carry the
# headers, and with them keys, to another server. The proxy is looked up here, because each HTTP client reads
# other variables of the environment, and some read passwords from `.netrc` with them.

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from pillarbox.redaction import redacted, without_secrets
from pillarbox.validate import check_bool, check_choice, check_limit_of_time, check_positive_int, check_text

BACKENDS = ("auto", "libcurl", "aiohttp")
SURROGATES = ("error", "replace")
Surrogates: TypeAlias = Literal["error", "replace"]
Backend: TypeAlias = Literal["auto", "libcurl", "aiohttp"]

MAX_ERROR_BODY_BYTES = 65_536
"""Bytes of an answer that an error keeps: enough for each service's error object."""
MAX_MESSAGE_CHARACTERS = 300
"""Characters of an answer that stand in the text of an error."""
USER_AGENT = "pillarbox"
KEEP_ALIVE_S = 4.0
"""Seconds for which an idle connection is used again: many servers close theirs after five, and a request
that meets the closing is lost."""
ON_LINUX = sys.platform == "linux"
"""The thread that drives libcurl waits in an epoll."""
DIRECT = "direct"
"""The value of `proxy` for no proxy, whatever the environment says."""


@dataclass(frozen=True)
class Http:
    """Options of the HTTP transport of one client.

    connections: open connections to one endpoint (scheme, host, port), at least 1; requests above wait.
    connect_timeout: seconds for a connection with its TLS handshake. read_timeout: seconds without a byte
    from the server. total_timeout: seconds for a whole request, the wait for a connection included. Each may
    be None for no limit. proxy: `http://host:port` for all requests; None for what HTTP_PROXY, HTTPS_PROXY,
    ALL_PROXY and NO_PROXY say where the request is made; "direct" for none. verify: False accepts each
    certificate. ca_file: a file in PEM, on the worker, with the certificates to trust instead of the
    system's. http2: offer HTTP/2 to servers with TLS, for which libcurl is needed. backend: the HTTP client;
    "auto" takes libcurl (Linux, `pip install 'pillarbox[libcurl]'`) where it is installed, aiohttp elsewhere.
    surrogates: half characters (lone surrogates) in texts that are sent and in JSON that comes back: "error"
    fails their row, "replace" puts U+FFFD for each.

    A picklable value; any thread. Raises TypeError and ValueError.
    """

    connections: int = 64
    connect_timeout: float | None = 10.0
    read_timeout: float | None = 60.0
    total_timeout: float | None = 300.0
    proxy: str | None = None
    verify: bool = True
    ca_file: str | None = None
    http2: bool = False
    backend: Backend = "auto"
    surrogates: Surrogates = "error"

    def __post_init__(self) -> None:
        check_positive_int("connections", self.connections)
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


def _check_proxy(proxy: Any) -> None:
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
    as the service counted them; None where it did not.
    """

    block: Any
    tokens: int | None


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

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        vectors: int = 0,
    ) -> Response:
        """Send one request and return the whole answer, whatever its status.

        url: absolute, percent-encoded. vectors: the number of vectors in base64 that an answer in OpenAI's
        form should hold; a transport that can reads them, and leaves an answer that is another one as it is.
        Cancelling ends the request. Raises errors of connections, TLS and time-outs that
        `pillarbox.aio.service_errors` knows; nothing is tried again but an idempotent request whose kept
        connection the server had closed.
        """
        ...

    async def close(self) -> None:
        """Close all connections; requests in flight fail. May be called again."""
        ...


class MissingExtra(ImportError):
    """Raised if the package of an option is not installed."""


class HttpTimeout(TimeoutError):
    """The base of the time-outs of a request."""


class ConnectTimeout(HttpTimeout):
    """No connection was made in time: `connect_timeout`, or `total_timeout` before there was one."""


class ReadTimeout(HttpTimeout):
    """The answer did not come in time: `read_timeout` or `total_timeout`."""


class HttpStatusError(Exception):
    """A service answered with a status that is not a success.

    status: the HTTP status. headers: of the answer. body: its first bytes. Retry-After, overload, permanent
    failures and accounts without credit are read from these by the operator.
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
    said = " ".join(body[: 4 * MAX_MESSAGE_CHARACTERS].decode(errors="replace").split())
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
