"""The fast transport: libcurl, by pycurl. On the thread of the loop that it was opened on; Linux.

Written after the multi-socket interface that libcurl documents (https://curl.se/libcurl/c/libcurl-multi.html).
"""

# libcurl does all of HTTP, TLS, proxies, pools and time-outs; here it is only told which sockets are ready.
# pycurl has a driver of its own for asyncio, `AsyncCurlMulti`, which registers each socket with the loop for
# each request and takes it out after the answer; through `selectors` that is a large part of a small request.
# Here the sockets are in an epoll of the transport's own, where it is two cheap system calls, and the loop
# watches that one file: docs/decisions/http-transport.md has the figures.

from __future__ import annotations

import asyncio
import errno
import io
import os
import select
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import pycurl

from pillarbox.clients.transport import (
    KEEP_ALIVE_S,
    USER_AGENT,
    ConnectTimeout,
    Http,
    ReadTimeout,
    Response,
    proxy_finder,
)

RECEIVE_BUFFER_BYTES = 1 << 17
"""libcurl's default, 16 kB, hands a large answer over in many small pieces."""
MAX_IDLE_HANDLES = 1_024
MAX_EVENTS = 256

_SOCKET_EVENTS = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_TLS_CODES = frozenset(
    getattr(pycurl, name)
    for name in (
        *("E_SSL_CACERT_BADFILE", "E_SSL_CERTPROBLEM", "E_SSL_CIPHER", "E_SSL_CONNECT_ERROR"),
        *(
            "E_SSL_ENGINE_INITFAILED",
            "E_SSL_ISSUER_ERROR",
            "E_SSL_PEER_CERTIFICATE",
            "E_PEER_FAILED_VERIFICATION",
        ),
    )
    if hasattr(pycurl, name)
)


class _Handle:
    """An easy handle of libcurl with the answer that it receives; used for one request after another."""

    __slots__ = ("body", "curl", "future", "head", "lines", "method", "proxy")

    def __init__(self, curl: Any) -> None:
        self.curl = curl
        self.body: list[bytes] = []
        self.head: list[bytes] = []
        self.future: asyncio.Future[None] | None = None
        # These options are set, so that setting them again can be left out.
        self.lines: list[str] | None = None
        self.method = ""
        self.proxy = ""
        curl.setopt(pycurl.WRITEFUNCTION, self.body.append)
        curl.setopt(pycurl.HEADERFUNCTION, self.head.append)


class _Headers(Mapping[str, str]):
    """The headers of an answer, parsed when the first is asked for: few are."""

    __slots__ = ("_found", "_received")

    def __init__(self, received: list[bytes]) -> None:
        self._received = received
        self._found: dict[str, str] | None = None

    def _parsed(self) -> dict[str, str]:
        if self._found is None:
            found: dict[str, str] = {}
            for line in self._received:
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

    def __iter__(self) -> Any:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())


class LibcurlTransport:
    """Requests by one multi handle of libcurl."""

    def __init__(self, options: Http) -> None:
        self._options = options
        self._proxy_of = proxy_finder(options)
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._idle: list[_Handle] = []
        self._running: dict[Any, _Handle] = {}
        self._headers: dict[str, str] | None = None
        self._lines: list[str] = []
        self._due: float | None = None
        self._alarm: asyncio.Handle | None = None
        self._closed = False
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, options.connections)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._loop.add_reader(self._epoll.fileno(), self._sockets_ready)

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> Response:
        """Send one request: see `Transport.request`. Errors are those of the standard library."""
        if self._closed:
            raise RuntimeError("the transport is closed")
        handle = self._idle.pop() if self._idle else _Handle(self._new_curl())
        curl = handle.curl
        try:
            self._prepare(handle, method, url, headers, body)
            handle.future = future = self._loop.create_future()
            self._running[curl] = handle
            self._multi.add_handle(curl)
            await future
            return Response(
                curl.getinfo(pycurl.RESPONSE_CODE), _Headers(handle.head.copy()), b"".join(handle.body)
            )
        finally:
            if self._running.pop(curl, None) is not None:
                # Cancelled, or not added.
                self._remove(curl)
            handle.future = None
            handle.body.clear()
            handle.head.clear()
            if not self._closed and len(self._idle) < MAX_IDLE_HANDLES:
                self._idle.append(handle)

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        for handle in list(self._running.values()):
            self._finish(handle, ConnectionAbortedError("the transport was closed during the request"))
        for handle in self._idle:
            handle.curl.close()
        self._idle.clear()
        self._multi.close()
        self._epoll.close()

    # -- one request ---------------------------------------------------------------------------------------

    def _new_curl(self) -> Any:
        options, curl = self._options, pycurl.Curl()
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.USERAGENT, USER_AGENT)
        curl.setopt(pycurl.ACCEPT_ENCODING, "")
        curl.setopt(pycurl.BUFFERSIZE, RECEIVE_BUFFER_BYTES)
        curl.setopt(pycurl.MAXAGE_CONN, int(KEEP_ALIVE_S))
        curl.setopt(pycurl.PROXY, "")
        curl.setopt(pycurl.PATH_AS_IS, 1)
        if options.http2:
            curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
            curl.setopt(pycurl.PIPEWAIT, 1)
        else:
            curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        # 0 would be libcurl's default of 300 seconds.
        connect = options.connect_timeout if options.connect_timeout is not None else 1e6
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, round(connect * 1000)))
        if options.total_timeout is not None:
            curl.setopt(pycurl.TIMEOUT_MS, max(1, round(options.total_timeout * 1000)))
        if options.read_timeout is not None:
            curl.setopt(pycurl.LOW_SPEED_LIMIT, 1)
            curl.setopt(pycurl.LOW_SPEED_TIME, max(1, round(options.read_timeout)))
        if not options.verify:
            curl.setopt(pycurl.SSL_VERIFYPEER, 0)
            curl.setopt(pycurl.SSL_VERIFYHOST, 0)
        elif options.ca_file is not None:
            curl.setopt(pycurl.CAINFO, options.ca_file)
        else:
            # libcurl of a wheel was built on another system: the certificates are where Python finds them.
            paths = ssl.get_default_verify_paths()
            if paths.cafile is not None:
                curl.setopt(pycurl.CAINFO, paths.cafile)
            if paths.capath is not None:
                curl.setopt(pycurl.CAPATH, paths.capath)
        return curl

    def _prepare(
        self, handle: _Handle, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        curl = handle.curl
        curl.setopt(pycurl.URL, url)
        if headers != self._headers:
            self._lines = header_lines(headers)
            self._headers = dict(headers)
        if handle.lines is not self._lines:
            curl.setopt(pycurl.HTTPHEADER, self._lines)
            handle.lines = self._lines
        scheme, _, rest = url.partition("://")
        proxy = self._proxy_of(scheme.lower(), rest.partition("/")[0]) or ""
        if handle.proxy != proxy:
            curl.setopt(pycurl.PROXY, proxy)
            handle.proxy = proxy
        if body is None:
            if handle.method != method:
                curl.setopt(pycurl.HTTPGET, 1)
                curl.setopt(pycurl.CUSTOMREQUEST, method)
                handle.method = method
            return
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.CUSTOMREQUEST, method)
        curl.setopt(pycurl.POSTFIELDSIZE_LARGE, len(body))
        # Not POSTFIELDS: libcurl would send a body that it can begin again a second time, by itself, when a
        # kept connection breaks before the answer; the service may have worked for the first.
        curl.setopt(pycurl.READFUNCTION, io.BytesIO(body).read)
        handle.method = ""

    def _remove(self, curl: Any) -> None:
        try:  # noqa: SIM105 (for each request: `suppress` costs more)
            self._multi.remove_handle(curl)
        except pycurl.error:
            # It never was there.
            pass

    def _finish(self, handle: _Handle, error: BaseException | None) -> None:
        del self._running[handle.curl]
        self._remove(handle.curl)
        future = handle.future
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    # -- driven by the loop --------------------------------------------------------------------------------

    def _watch(self, events: int, descriptor: int, multi: Any, data: Any) -> None:
        """Called by libcurl: which events of a socket it waits for."""
        wanted = _SOCKET_EVENTS.get(events)
        if wanted is None:
            try:  # noqa: SIM105
                self._epoll.unregister(descriptor)
            except OSError:
                # Closed already, which takes it out.
                pass
            return
        try:
            self._epoll.register(descriptor, wanted)
        except FileExistsError:
            self._epoll.modify(descriptor, wanted)

    def _sockets_ready(self) -> None:
        action = self._multi.socket_action
        for descriptor, events in self._epoll.poll(0, MAX_EVENTS):
            mask = pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
            if events & ~select.EPOLLOUT:
                # Errors and ends are found by reading.
                mask |= pycurl.CSELECT_IN
            action(descriptor, mask)
        self._collect()

    def _set_timer(self, milliseconds: int) -> None:
        """Called by libcurl: when it wants to be called next; -1 is never.

        A timer that is set for later than the one that runs is not started: that one starts it when it ends.
        """
        if self._closed:
            return
        if milliseconds < 0:
            self._due = None
            return
        now = self._loop.time()
        self._due = due = now + milliseconds / 1000
        if self._alarm is not None and self._alarm_at <= due:
            return
        self._start_alarm(due, now)

    def _start_alarm(self, due: float, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        # Not at once: libcurl must not be called from within its own call.
        self._alarm = (
            self._loop.call_soon(self._timer_due) if due <= now else self._loop.call_at(due, self._timer_due)
        )

    def _timer_due(self) -> None:
        self._alarm = None
        due, now = self._due, self._loop.time()
        if due is None:
            return
        if due > now + 0.0005:
            self._start_alarm(due, now)
            return
        self._due = None
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._collect()

    def _collect(self) -> None:
        """End the requests that libcurl has finished."""
        left = 1
        while left:
            left, succeeded, failed = self._multi.info_read()
            for curl in succeeded:
                self._finish(self._running[curl], None)
            for curl, code, message in failed:
                self._finish(self._running[curl], self._error_of(curl, code, message))

    def _error_of(self, curl: Any, code: int, message: str) -> Exception:
        """The error of the standard library that says the same, for `pillarbox.aio.service_errors`."""
        if code == pycurl.E_OPERATION_TIMEDOUT:
            was_sent = curl.getinfo(pycurl.REQUEST_SIZE) > 0
            return ReadTimeout(message) if was_sent else ConnectTimeout(message)
        if code in _TLS_CODES:
            return ssl.SSLError(code, message)
        if code in (pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_RESOLVE_PROXY):
            return socket.gaierror(socket.EAI_NONAME, message)
        if code in (pycurl.E_URL_MALFORMAT, pycurl.E_UNSUPPORTED_PROTOCOL):
            return ValueError(f"url: {message}")
        if code == pycurl.E_SEND_FAIL_REWIND:
            return ConnectionResetError(
                errno.ECONNRESET, "the server closed the connection before it answered"
            )
        number = curl.getinfo(pycurl.OS_ERRNO)
        if number:
            return OSError(number, f"{os.strerror(number)}: {message}")
        return ConnectionError(f"{message} (libcurl's error {code})")


def header_lines(headers: Mapping[str, str]) -> list[str]:
    """The lines of the headers for libcurl, which checks none of them. Raises ValueError."""
    # Without this line it asks a server, and waits a second, before it sends a large body.
    lines = ["Expect:"]
    for name, value in headers.items():
        if any(sign in name or sign in value for sign in ("\r", "\n", "\0")) or ":" in name or not name:
            # The value may be a key.
            raise ValueError(f"headers: the name or the value of {name!r} holds a line break or a colon")
        # A header without a value is written so; "name:" would take it out.
        lines.append(f"{name}: {value}" if value else f"{name};")
    return lines
