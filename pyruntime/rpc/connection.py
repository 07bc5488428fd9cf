"""A connection between two processes: proof of both sides, frames that nobody can forge, heartbeats.

Each side proves that it knows the secret without sending it (challenge and response), then each frame carries
a code over its number, its direction and its text (HMAC-SHA256, RFC 2104), under a key of this connection
alone, so that none can be changed or sent again. Nothing is encrypted, unless the server has a certificate:
then all goes through TLS, and the client takes that certificate alone. A frame is a JSON list that begins
with the kind of the message. It is bounded and checked here, on both sides, before anybody else sees it.

A `RpcHandle` is the way to a server, a value for any thread; a `Reconnector` connects to it again and again.
All else is used on the event loop of either side.
"""

# grpcio and `multiprocessing.connection` were weighed, see docs/decisions/one-transport.md: the first is 18
# MB and proves no shared secret, the second proves one at the beginning and then unpickles whatever comes.
#
# TLS begins after the server's greeting (`loop.start_tls`), not with the connection: so the handshake of a
# peer that is slow with it happens within the bound on peers that are not known yet.
#
# A client connects again without its task seeing it. Nothing here knows which of its messages were heard
# before a connection broke: clients of each service say counts since the beginning of their task, which may
# be said again. So no message needs a number, an acknowledgement, or a session that outlives the connection.

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import math
import random
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

MAGIC = b"pillarbox-rpc-1\n"
"""The first bytes of a server, with the version of the protocol."""
NONCE_NBYTES = 32
CODE_NBYTES = 32
MAX_FRAME_NBYTES = 256 * 1024
MAX_BUFFER_NBYTES = MAX_FRAME_NBYTES + 4096
"""Bytes that a reader takes ahead, about: a frame has room."""
MAX_UNREAD_NBYTES = 1024 * 1024
"""Bytes that a peer may leave unread before it is cut off."""
FIRST_PAUSE_S = 0.02
"""Seconds before a client connects again for the first time, at most."""


class Timing(NamedTuple):
    """The seconds of a connection. Clients have those of their server, from its handle."""

    connect_timeout_s: float = 5.0
    """For a connection to be made, for both sides to be known, and for the client to be served."""
    heartbeat_interval_s: float = 5.0
    heartbeat_timeout_s: float = 15.0
    """Without a frame of the peer, after which a connection is cut off."""
    max_pause_s: float = 1.0
    """Before a client connects again, at most, after many attempts."""


DEFAULT_TIMING = Timing()


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


def encode(message: object) -> bytes:
    """The text of a message. Any thread. Raises TypeError or ValueError for what JSON cannot hold."""
    return _ENCODER.encode(message).encode()


class Connection:
    """A connection whose peer is known. Confined to the loop of its streams."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        send_key: bytes,
        receive_key: bytes,
        timing: Timing,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timing = timing
        self._loop.call_later(timing.heartbeat_interval_s, self._beat)

    def send(self, kind: str, *fields: object) -> None:
        """Send a message; it is not waited for. A peer that does not read is cut off."""
        self.send_text(encode([kind, *fields]))

    def send_text(self, text: bytes) -> None:
        """The same for a message that was encoded before."""
        if len(text) > MAX_FRAME_NBYTES:
            raise ProtocolError(f"a message of {len(text):,} bytes: at most {MAX_FRAME_NBYTES:,}")
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_UNREAD_NBYTES:
            self.abort()
            return
        # The number is not sent: both sides count. A frame that is left out, sent twice or sent back to its
        # sender has another number or direction, and its code does not fit.
        code = hmac.digest(self._send_key, self._sent.to_bytes(8, "big") + text, "sha256")
        self._sent += 1
        self._writer.write(len(text).to_bytes(4, "big") + code + text)

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
        if self._loop.time() - self._heard_at > self._timing.heartbeat_timeout_s:
            self.abort()
            return
        self.send("beat")
        self._loop.call_later(self._timing.heartbeat_interval_s, self._beat)

    def close(self) -> None:
        """Close the connection; what was sent still goes out."""
        self._writer.close()

    async def wait_closed(self) -> None:
        """Wait until nothing is left of it."""
        await self._writer.wait_closed()

    def abort(self) -> None:
        """Cut the connection off, whatever the peer has still to say."""
        self._writer.transport.abort()


# -- the handshake ------------------------------------------------------------------------------


def _code(secret: bytes, purpose: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(secret, purpose + server + client, "sha256")


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    # A transport of uvloop that has closed raises RuntimeError, one of asyncio says nothing.
    if writer.transport.is_closing():
        raise ConnectionResetError("the peer has gone")
    writer.write(data)


async def _start_tls(
    writer: asyncio.StreamWriter, context: ssl.SSLContext, server_side: bool
) -> asyncio.Transport:
    """Encrypt what goes on; gives the transport of it. Raises what is in `BROKEN`."""
    protocol = writer.transport.get_protocol()
    transport = await asyncio.get_running_loop().start_tls(
        writer.transport, protocol, context, server_side=server_side
    )
    if transport is None:
        raise ConnectionResetError("the peer has gone")
    # As `StreamWriter.start_tls` does, which Python 3.10 lacks.
    writer._transport = transport  # type: ignore[attr-defined]
    protocol._over_ssl = True  # type: ignore[attr-defined]
    return transport


async def server_handshake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    context: ssl.SSLContext | None = None,
    timing: Timing = DEFAULT_TIMING,
) -> Connection:
    """Prove both sides to each other, as the server. Raises ProtocolError for a peer without the secret."""
    server = secrets.token_bytes(NONCE_NBYTES)
    _write(writer, MAGIC + server)
    if context is not None:
        await _start_tls(writer, context, True)
    client = await reader.readexactly(NONCE_NBYTES)
    proof = await reader.readexactly(CODE_NBYTES)
    if not hmac.compare_digest(proof, _code(secret, b"client", server, client)):
        raise ProtocolError("a client without the secret")
    _write(writer, _code(secret, b"server", server, client))
    to_client = _code(secret, b"to client", server, client)
    return Connection(reader, writer, to_client, _code(secret, b"to server", server, client), timing)


async def client_handshake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    fingerprint: bytes | None = None,
    timing: Timing = DEFAULT_TIMING,
) -> Connection:
    """The same as the client. Raises ProtocolError for a server without the secret or the certificate."""
    greeting = await reader.readexactly(len(MAGIC) + NONCE_NBYTES)
    if not greeting.startswith(MAGIC):
        raise ProtocolError("not a server of Pillarbox, or one of another version")
    server = greeting[len(MAGIC) :]
    if fingerprint is not None:
        transport = await _start_tls(writer, _pinned_context(), False)
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(certificate).digest(), fingerprint):
            raise ProtocolError("its certificate is not the one that this client was told of")
    client = secrets.token_bytes(NONCE_NBYTES)
    _write(writer, client + _code(secret, b"client", server, client))
    try:
        proof = await reader.readexactly(CODE_NBYTES)
    except (EOFError, OSError):
        raise ProtocolError("it does not accept this task's secret") from None
    if not hmac.compare_digest(proof, _code(secret, b"server", server, client)):
        raise ProtocolError("it does not know the secret")
    to_server = _code(secret, b"to server", server, client)
    return Connection(reader, writer, to_server, _code(secret, b"to client", server, client), timing)


def _pinned_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate is compared as a whole: who has signed it, and for which name, does not matter.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# -- for clients --------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class RpcHandle:
    """The place where a server listens, the secret that it asks for, and a service of it. A plain value.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    fingerprint: the SHA-256 of the server's certificate, for TLS; None for none.
    """

    addresses: tuple[tuple[str, int], ...]
    secret: bytes
    service: str
    fingerprint: bytes | None = None
    timing: Timing = DEFAULT_TIMING

    def __repr__(self) -> str:
        return f"<service {self.service!r} at {self.where}>"

    @property
    def where(self) -> str:
        """The addresses, as errors show them."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)


@contextlib.asynccontextmanager
async def connect(handle: RpcHandle, address: tuple[str, int] | None = None) -> AsyncIterator[Connection]:
    """A connection to a server that knows the secret; cut off at the end, and what is unsent is lost.

    address: one of the handle's; None for the first. Raises what is in `BROKEN` where no such server is.
    """
    timeout = handle.timing.connect_timeout_s
    opening = asyncio.open_connection(*(address or handle.addresses[0]), limit=MAX_BUFFER_NBYTES)
    reader, writer = await asyncio.wait_for(opening, timeout)
    try:
        proof = client_handshake(reader, writer, handle.secret, handle.fingerprint, handle.timing)
        yield await asyncio.wait_for(proof, timeout)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Reconnector:
    """A client of a service, over one connection after the other. Confined to a loop."""

    def __init__(self, handle: RpcHandle) -> None:
        self.connection: Connection | None = None
        """The connection that is served; None while there is none."""
        self.trouble: BaseException | None = None
        """The error that has ended the last connection."""
        self._handle = handle

    def say(self, kind: str, *fields: object) -> None:
        """Send a message, where anybody may hear it."""
        if self.connection is not None:
            self.connection.send(kind, *fields)

    async def run(
        self,
        hello: Callable[[], list[Any]],
        talk: Callable[[Connection], Awaitable[None]],
        patience: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Connect again and again, say `hello`, and have `talk` use the connection, until it returns.

        patience: gives the seconds after which it connects again at the latest. Raises what that raises, and
        RefusedError if the service will not have this client.
        """
        pause_s = FIRST_PAUSE_S
        for address in itertools.cycle(self._handle.addresses):
            try:
                async with connect(self._handle, address) as connection:
                    connection.send("open", self._handle.service, *hello())
                    # The service says that it is there before all else.
                    await asyncio.wait_for(connection.receive(), self._handle.timing.connect_timeout_s)
                    self.connection, pause_s = connection, FIRST_PAUSE_S
                    await talk(connection)
                    return
            except BROKEN as error:
                self.trouble = error
            finally:
                self.connection = None
            # Full jitter, so that all clients do not come back at once (Brooker, 2015).
            await asyncio.sleep(min(random.uniform(0.0, pause_s), patience()))
            pause_s = min(pause_s * 2, self._handle.timing.max_pause_s)

    def __str__(self) -> str:
        trouble = self.trouble
        detail = "" if trouble is None else f" ({str(trouble) or type(trouble).__name__})"
        return f"{self._handle.where}{detail}"
