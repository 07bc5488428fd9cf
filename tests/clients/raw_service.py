"""A service for the tests that keeps the bytes of each request, and gives bytes for answers."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple


class RawRequest(NamedTuple):
    """A request as it came. headers: by names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def raw_answer(body: bytes, *content_types: str, status: int = 200) -> bytes:
    """The bytes of an answer, with a header for each of the content types."""
    lines = "".join(f"Content-Type: {each}\r\n" for each in content_types)
    return f"HTTP/1.1 {status} Told\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode("latin-1") + body


class RawService:
    """Serves on a port of loopback while it is entered. answer: gives the bytes for a request."""

    def __init__(self, answer: Callable[[RawRequest], bytes]) -> None:
        self.requests: list[RawRequest] = []
        service = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                while first := self.rfile.readline().decode("latin-1"):
                    method, path, _ = first.split(" ", 2)
                    headers = {}
                    while (line := self.rfile.readline().decode("latin-1").strip()) != "":
                        name, _, value = line.partition(":")
                        headers[name.lower()] = value.strip()
                    body = self.rfile.read(int(headers.get("content-length", 0)))
                    request = RawRequest(method, path, headers, body)
                    service.requests.append(request)
                    self.wfile.write(answer(request))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            # With fewer, connections that are made at a time wait for seconds.
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> RawService:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
