"""A server on loopback that says on the wire exactly what a script tells it to: bytes, closes, resets.

Plain sockets in threads, so that nothing is read that the script does not read, and nothing is closed in
another way than it says. Any thread.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, TypeAlias

RECEIVED_BYTES = 65_536
PATIENCE_S = 30.0
"""Seconds after which a script that waits for bytes gives up, so that no thread stays."""


class WireRequest(NamedTuple):
    """A request that a script has read."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Gone(Exception):
    """Raised in a script where the client has closed the connection."""


class Connection:
    """One connection, as a script sees it. On the thread of the script.

    number: of the connection, from 0.
    """

    def __init__(self, accepted: socket.socket, number: int, note: Callable[[WireRequest], None]) -> None:
        self._socket = accepted
        self._note = note
        self._received = b""
        self.number = number

    def read_head(self) -> bytes:
        """Read up to the end of the headers of a request, and leave what follows. Raises Gone."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        return head

    def read_request(self) -> WireRequest:
        """Read a whole request. Raises Gone."""
        first, *lines = self.read_head().decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        request = WireRequest(method, path, headers, self.read_exactly(length))
        self._note(request)
        return request

    def read_exactly(self, nbytes: int) -> bytes:
        """Read so many bytes of a request. Raises Gone."""
        while len(self._received) < nbytes:
            self._receive()
        found, self._received = self._received[:nbytes], self._received[nbytes:]
        return found

    def read_some(self, nbytes: int) -> None:
        """Read so many bytes of a request, and forget them. Raises Gone."""
        while len(self._received) < nbytes:
            self._receive()
        self._received = self._received[nbytes:]

    def _receive(self) -> None:
        try:
            more = self._socket.recv(RECEIVED_BYTES)
        except OSError:
            raise Gone from None
        if not more:
            raise Gone
        self._received += more

    def send(self, data: bytes) -> None:
        """Send bytes. Raises Gone."""
        try:
            self._socket.sendall(data)
        except OSError:
            raise Gone from None

    def end_sending(self) -> None:
        """Send the end of the stream, and go on reading."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def wait_for_end(self) -> None:
        """Wait until the client has closed the connection."""
        with suppress(Gone):
            while True:
                self._receive()
                self._received = b""

    def reset(self) -> None:
        """Close the connection by a reset."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the connection. With bytes that were not read the system sends a reset."""
        with suppress(OSError):
            self._socket.close()


Script: TypeAlias = Callable[[Connection], None]
"""Serves one connection, on a thread of its own; what it leaves open is closed at its end."""


class WireServer:
    """A server whose connections are served by a script. Any thread; a context manager.

    tls: for a server with TLS. url: its address. requests: that scripts have read whole, in order.
    """

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._tls = tls
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.requests: list[WireRequest] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._accepting = threading.Thread(target=self._accept, name="wire-server", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            accepted.settimeout(PATIENCE_S)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                number, self.connections = self.connections, self.connections + 1
                self._open.add(accepted)
            thread = threading.Thread(target=self._serve, args=(accepted, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket, number: int) -> None:
        used = accepted
        with suppress(Gone, OSError):
            if self._tls is not None:
                used = self._tls.wrap_socket(accepted, server_side=True)
            connection = Connection(used, number, self.requests.append)
            self._script(connection)
        with self._lock:
            self._open.discard(accepted)
        with suppress(OSError):
            used.close()
        with suppress(OSError):
            accepted.close()

    def close(self) -> None:
        """Close all connections, and end the threads."""
        # Only a shutdown ends an `accept` that waits.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(PATIENCE_S)
        with self._lock:
            still_open = [*self._open]
        for accepted in still_open:
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def __enter__(self) -> WireServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
