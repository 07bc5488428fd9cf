"""A small HTTP server for metrics: on loopback for everybody, beyond it only for those who know the token.

Made and closed by any one thread; each request is answered in a thread of its own.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import math
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger("pillarbox")

REQUEST_SECONDS = 10.0
"""Seconds that a client may take to send its request and to read the answer."""

MOST_CLIENTS = 16
"""Clients that are answered at a time; more are turned away."""

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsServer:
    """Serves a WSGI application at `/metrics` from its making on, until it is closed.

    Raises TypeError or ValueError for bad arguments, OSError where the address cannot be had.
    """

    def __init__(self, application: Wsgi, port: int, host: str, token: str | None) -> None:
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"port={port!r}: must be an int, 0 for any free one")
        if not 0 <= port <= 65535:
            raise ValueError(f"port={port!r}: must be 0 to 65535")
        if token is not None and (not isinstance(token, str) or not token or not token.isascii()):
            raise ValueError("token: must be a text in ASCII that is not empty, or None")
        if token is None and not _is_loopback(host):
            raise ValueError(
                f"host={host!r}: is not on loopback, so whoever asks must know a secret: give a token"
            )
        self._server = _Server((host, port), _Handler)
        self._server.set_app(_guarded(application, token))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="pillarbox-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening and wait for the server's thread. Idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # A client that sends nothing must not hold up `close`.
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._clients: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Without the look-up of the host's name, which may wait for a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            if len(self._clients) >= MOST_CLIENTS:
                return False
            self._clients[request] = time.monotonic() + REQUEST_SECONDS
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        # A time-out of the socket would begin anew with each byte.
        self._hang_up(time.monotonic())

    def server_close(self) -> None:
        super().server_close()
        self._hang_up(math.inf)

    def _hang_up(self, now: float) -> None:
        with self._lock:
            for request, deadline in self._clients.items():
                if deadline <= now:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Whoever can connect could fill standard error otherwise.
        log.debug("a request for metrics failed", exc_info=True)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is no news."""


def _guarded(application: Wsgi, token: str | None) -> Wsgi:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if token is not None:
            given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
                return [b""]
        if environ.get("PATH_INFO") != "/metrics":
            start_response("404 Not Found", [("Content-Length", "0")])
            return [b""]
        return application(environ, start_response)

    return answer


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
