"""A connection between two processes: proof of both sides, frames that nobody can forge, heartbeats.

Each side proves that it knows the secret without sending it (challenge and response), then each frame carries
a code over its number, its direction and its text (HMAC-SHA256, RFC 2104), under a key of this connection
alone, so that none can be changed or sent again. Nothing is encrypted, unless the server has a certificate:
then all goes through TLS, and the client takes that certificate alone. A frame is a JSON list that begins
with the kind of the message. It is bounded and checked here, on both sides, before anybody else sees it.

Used on the event loop of either side.
"""

# grpcio and `multiprocessing.connection` were weighed, see docs/decisions/one-transport.md: the first is 18
# MB and proves no shared secret, the second proves one at the beginning and then unpickles whatever comes.
#
# TLS is `ssl.SSLObject` over memory, not the transport's (`loop.start_tls`). A transport hands what is
# written to the loop, which encrypts and sends it later; a process that dies in between has said nothing. A
# task of a shared budget has to say that a call begins *before* it does, so its frame must be with the
# system when `send` returns. Encrypted here, a frame is bytes like any other, and goes the same way with
# TLS as without.

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

MAGIC = b"pillarbox-rpc-1\n"
"""The first bytes of a server, with the version of the protocol."""
NONCE_NBYTES = 32
CODE_NBYTES = 32
MAX_FRAME_NBYTES = 256 * 1024
MAX_BUFFER_NBYTES = MAX_FRAME_NBYTES + 4096
"""Bytes that a reader takes ahead, about: a frame has room."""
MAX_UNREAD_NBYTES = 1024 * 1024
"""Bytes that a peer may leave unread before it is cut off."""
CONNECT_TIMEOUT_S = 5.0
"""For a connection to be made and both sides to be known."""
HEARTBEAT_INTERVAL_S = 5.0
HEARTBEAT_TIMEOUT_S = 3 * HEARTBEAT_INTERVAL_S
"""Seconds without a frame of the peer, after which a connection is cut off."""

T = TypeVar("T")


class ProtocolError(Exception):
    """The peer is not what it should be, or does not say what it should."""


class RefusedError(Exception):
    """The server will not serve this client, now or later, and says why."""


BROKEN = (
    ProtocolError, EOFError, OSError, asyncio.TimeoutError,
    LookupError, TypeError, ValueError, RecursionError,
)  # fmt: skip
"""The errors by which what a peer does or says ends its connection."""


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Made once: `json.dumps` makes one for each message."""


def encode(message: Any) -> bytes:
    """The text of a message. Any thread. Raises TypeError or ValueError for what JSON cannot hold."""
    return _ENCODER.encode(message).encode()


class TlsStream:
    """TLS over two streams. What `encrypt` returns is to be sent at once, in order. Confined to a loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        server_side: bool,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)

    async def handshake(self) -> None:
        """Agree on keys with the peer. Raises what is in `BROKEN`; ssl.SSLError is an OSError."""
        await self._done(self._object.do_handshake)

    async def readexactly(self, size: int) -> bytes:
        """See `asyncio.StreamReader.readexactly`."""
        found = bytearray()
        while len(found) < size:
            some = await self._done(functools.partial(self._object.read, size - len(found)))
            if not some:
                raise EOFError("the peer has ended the encrypted connection")
            found += some
        return bytes(found)

    def encrypt(self, data: bytes) -> bytes:
        """Return what is to be sent for `data`."""
        self._object.write(data)
        return self._outgoing.read()

    def certificate(self) -> bytes:
        """Return the peer's certificate; empty if it has shown none."""
        return self._object.getpeercert(binary_form=True) or b""

    async def _done(self, step: Callable[[], T]) -> T:
        """The result of a step of TLS, which is tried again for as long as it lacks bytes of the peer."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            finally:
                if self._outgoing.pending:
                    _write(self._writer, self._outgoing.read())
            data = await self._reader.read(MAX_BUFFER_NBYTES)
            if not data:
                raise EOFError("the peer has ended the connection")
            self._incoming.write(data)


class Connection:
    """A connection whose peer is known. Confined to the loop of its streams.

    tls: encrypts what is sent; None for plain frames. direct: the socket of the same connection, where what
    is sent is to be with the system when `send` returns (see `connect`). Otherwise it is with the loop, and
    ends with the process.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        send_key: bytes,
        receive_key: bytes,
        tls: TlsStream | None = None,
        direct: socket.socket | None = None,
    ) -> None:
        self._reader: asyncio.StreamReader | TlsStream = tls or reader
        self._tls = tls
        self._writer = writer
        self._direct = direct
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0
        self._is_cut = False
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._loop.call_later(HEARTBEAT_INTERVAL_S, self._beat)

    def send(self, kind: str, *fields: Any) -> bool:
        """Send a message; it is not waited for. A peer that does not read is cut off.

        False if the peer surely never gets it: it has gone, or is cut off.
        """
        return self.send_text(encode([kind, *fields]))

    def send_text(self, text: bytes) -> bool:
        """The same for a message that was encoded before."""
        if len(text) > MAX_FRAME_NBYTES:
            raise ProtocolError(f"a message of {len(text):,} bytes: at most {MAX_FRAME_NBYTES:,}")
        # The number is not sent: both sides count. A frame that is left out, sent twice or sent back to its
        # sender has another number or direction, and its code does not fit.
        code = hmac.digest(self._send_key, self._sent.to_bytes(8, "big") + text, "sha256")
        self._sent += 1
        transport = self._writer.transport
        if transport.is_closing():
            return False
        frame = len(text).to_bytes(4, "big") + code + text
        # An error of TLS is an OSError, too.
        with contextlib.suppress(OSError):
            if self._tls is not None:
                frame = self._tls.encrypt(frame)
            if self._direct is not None:
                if self._direct.send(frame) == len(frame):
                    return True
            elif transport.get_write_buffer_size() <= MAX_UNREAD_NBYTES:
                self._writer.write(frame)
                return True
        # A part of a frame is none.
        self.abort()
        return False

    async def receive(self) -> list[Any]:
        """The next message: its kind, a str, and what belongs to it.

        Raises what is in `BROKEN` at the end; RefusedError where the server refuses the client for good.
        """
        while True:
            kind, *fields = message = await self._receive_frame()
            if kind == "no":
                raise RefusedError(str(fields[0]))
            if kind == "later":
                raise ProtocolError(str(fields[0]))
            if kind != "beat":
                return message

    async def _receive_frame(self) -> list[Any]:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > MAX_FRAME_NBYTES:
            raise ProtocolError(f"a frame of {size:,} bytes: at most {MAX_FRAME_NBYTES:,}")
        code = await self._reader.readexactly(CODE_NBYTES)
        text = await self._reader.readexactly(size)
        expected = hmac.digest(self._receive_key, self._received.to_bytes(8, "big") + text, "sha256")
        if not hmac.compare_digest(code, expected):
            raise ProtocolError("a frame that was not made by the peer for this place")
        self._received += 1
        self._heard_at = self._loop.time()
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise ProtocolError("a frame that is not JSON") from None
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise ProtocolError("a frame that is not a message")
        return message

    def _beat(self) -> None:
        # TCP's own keep-alive is the system's: it takes two hours unless somebody sets it, and a peer whose
        # process is stopped answers it all the same.
        if self._writer.transport.is_closing():
            return
        if self._loop.time() - self._heard_at > HEARTBEAT_TIMEOUT_S:
            self.abort()
            return
        self.send("beat")
        self._loop.call_later(HEARTBEAT_INTERVAL_S, self._beat)

    def is_heard_out(self) -> bool:
        """Return True if nothing is missing of what the peer has sent, now that its end has come.

        The end that a system makes of a connection comes after all that was sent (FIN). A reset does not, nor
        does what this side did.
        """
        theirs = self._writer.get_extra_info("socket")
        try:
            return not self._is_cut and not theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except (OSError, RuntimeError):
            return False

    def close(self) -> None:
        """Close the connection; what was sent still goes out."""
        self._writer.close()

    async def wait_closed(self) -> None:
        """Wait until nothing is left of it."""
        await self._writer.wait_closed()

    def abort(self) -> None:
        """Cut the connection off, whatever the peer has still to say."""
        self._is_cut = True
        self._writer.transport.abort()


# -- the handshake ------------------------------------------------------------------------------


def _code(secret: bytes, purpose: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(secret, purpose + server + client, "sha256")


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    # A transport of uvloop that has closed raises RuntimeError, one of asyncio says nothing.
    if writer.transport.is_closing():
        raise ConnectionResetError("the peer has gone")
    writer.write(data)


async def server_handshake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    context: ssl.SSLContext | None = None,
) -> Connection:
    """Prove both sides to each other, as the server. Raises ProtocolError for a peer without the secret."""
    server = secrets.token_bytes(NONCE_NBYTES)
    _write(writer, MAGIC + server)
    tls = None
    if context is not None:
        # Only now: a client that is slow with TLS counts as one that has not proved itself, too.
        tls = TlsStream(reader, writer, context, True)
        await tls.handshake()
    source = tls or reader
    client = await source.readexactly(NONCE_NBYTES)
    proof = await source.readexactly(CODE_NBYTES)
    if not hmac.compare_digest(proof, _code(secret, b"client", server, client)):
        raise ProtocolError("a client without the secret")
    own = _code(secret, b"server", server, client)
    _write(writer, own if tls is None else tls.encrypt(own))
    to_client = _code(secret, b"to client", server, client)
    to_server = _code(secret, b"to server", server, client)
    return Connection(reader, writer, to_client, to_server, tls)


async def client_handshake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    fingerprint: bytes | None = None,
    direct: socket.socket | None = None,
) -> Connection:
    """The same as the client. Raises ProtocolError for a server without the secret or the certificate."""
    greeting = await reader.readexactly(len(MAGIC) + NONCE_NBYTES)
    if not greeting.startswith(MAGIC):
        raise ProtocolError("not a server of Pillarbox, or one of another version")
    server = greeting[len(MAGIC) :]
    tls = None
    if fingerprint is not None:
        tls = TlsStream(reader, writer, _pinned_context(), False)
        await tls.handshake()
        if not hmac.compare_digest(hashlib.sha256(tls.certificate()).digest(), fingerprint):
            raise ProtocolError("its certificate is not the one that this client was told of")
    client = secrets.token_bytes(NONCE_NBYTES)
    own = client + _code(secret, b"client", server, client)
    _write(writer, own if tls is None else tls.encrypt(own))
    try:
        proof = await (tls or reader).readexactly(CODE_NBYTES)
    except (EOFError, OSError):
        raise ProtocolError("it does not accept this task's secret") from None
    if not hmac.compare_digest(proof, _code(secret, b"server", server, client)):
        raise ProtocolError("it does not know the secret")
    to_client = _code(secret, b"to client", server, client)
    to_server = _code(secret, b"to server", server, client)
    return Connection(reader, writer, to_server, to_client, tls, direct)


def _own_socket(writer: asyncio.StreamWriter) -> socket.socket:
    theirs = writer.get_extra_info("socket")
    own = socket.fromfd(theirs.fileno(), theirs.family, theirs.type)
    own.setblocking(False)
    return own


def _pinned_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate is compared as a whole: who has signed it, and for which name, does not matter.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def connect(
    host: str, port: int, secret: bytes, fingerprint: bytes | None = None, *, direct: bool = False
) -> AsyncIterator[Connection]:
    """A connection to a server that knows `secret`; cut off at the end, and what is unsent is lost.

    fingerprint: the SHA-256 of the server's certificate, for TLS; None for none.
    direct: what is sent is with the system when `send` returns, whatever becomes of this process.
    Raises what is in `BROKEN` where there is no such server.
    """
    opening = asyncio.open_connection(host, port, limit=MAX_BUFFER_NBYTES)
    reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
    try:
        with _own_socket(writer) if direct else contextlib.nullcontext() as own:
            proof = client_handshake(reader, writer, secret, fingerprint, own)
            connection = await asyncio.wait_for(proof, CONNECT_TIMEOUT_S)
            try:
                yield connection
            finally:
                connection.abort()
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
