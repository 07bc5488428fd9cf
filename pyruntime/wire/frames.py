"""How a coordinator and its clients talk: who they are, and frames that nobody can forge or send again.

Each side proves that it knows the secret without sending it (challenge and response), then each
frame carries a code over its number, its direction and its text (HMAC-SHA256, RFC 2104), under a key of this
connection alone. Nothing is encrypted. Used on the event loop of either side.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
from typing import Any

MAGIC = b"pillarbox-limits-1\n"
"""What a server begins with, unless it speaks of something else."""
NONCE = 32
CODE = 32
MAX_FRAME = 64 * 1024
"""Bytes of the text of a frame, unless both sides have agreed on another number."""
MAX_UNSENT = 1024 * 1024
"""Bytes that a peer may leave unread."""
CONNECT = 5.0
"""Seconds for a connection to be made and both sides to be known."""
BEAT = 5.0
"""Seconds between two signs of life."""
SILENCE = 3 * BEAT
"""Seconds without one after which a connection is given up."""


class ProtocolError(Exception):
    """The peer is not what it should be, or does not say what it should."""


BROKEN = (ProtocolError, EOFError, OSError, asyncio.TimeoutError, KeyError, TypeError, ValueError)
"""What ends a connection, of what its peer does and says."""


def _code(secret: bytes, purpose: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(secret, purpose + server + client, "sha256")


def own_socket(writer: asyncio.StreamWriter) -> socket.socket:
    """The socket of a connection, to send on without waiting for the loop. Whoever asks closes it."""
    theirs = writer.get_extra_info("socket")
    own = socket.fromfd(theirs.fileno(), theirs.family, theirs.type)
    own.setblocking(False)
    return own


def encode(message: Any) -> bytes:
    """The text of a message. Any thread. Raises TypeError or ValueError for what JSON cannot hold."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


class Channel:
    """A connection whose peer is known. Confined to the loop of its streams.

    direct: the socket of the same connection, where what is sent is to be with the system when `send` returns
    (see `own_socket`). Otherwise it is with the loop, and ends with the process.
    max_frame: bytes of the text of a frame at most, the same on both sides.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        send_key: bytes,
        receive_key: bytes,
        direct: socket.socket | None = None,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._max_frame = max_frame
        self._direct = direct
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; it is not waited for. A peer that does not read is cut off.

        False if the peer surely never gets it: it has gone, or is cut off.
        """
        return self.send_text(encode(message))

    def send_text(self, text: bytes) -> bool:
        """The same for a message that was encoded before."""
        if len(text) > self._max_frame:
            raise ProtocolError(f"a message of {len(text):,} bytes: at most {self._max_frame:,}")
        code = hmac.digest(self._send_key, self._sent.to_bytes(8, "big") + text, "sha256")
        self._sent += 1
        transport = self._writer.transport
        if transport.is_closing():
            return False
        frame = len(text).to_bytes(4, "big") + code + text
        if self._direct is None:
            if transport.get_write_buffer_size() <= MAX_UNSENT:
                self._writer.write(frame)
                return True
        else:
            with contextlib.suppress(OSError):
                if self._direct.send(frame) == len(frame):
                    return True
        # A part of a frame is none.
        transport.abort()
        return False

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises ProtocolError, and EOFError or OSError at the end."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > self._max_frame:
            raise ProtocolError(f"a frame of {size:,} bytes: at most {self._max_frame:,}")
        code = await self._reader.readexactly(CODE)
        text = await self._reader.readexactly(size)
        expected = hmac.digest(self._receive_key, self._received.to_bytes(8, "big") + text, "sha256")
        if not hmac.compare_digest(code, expected):
            raise ProtocolError("a frame that was not made by the peer for this place")
        self._received += 1
        try:
            message = json.loads(text)
        except ValueError:
            raise ProtocolError("a frame that is no JSON") from None
        if not isinstance(message, dict):
            raise ProtocolError("a frame that is no message")
        return message

    @property
    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def close(self) -> None:
        """Close the connection; what was sent still goes out."""
        self._writer.close()

    def abort(self) -> None:
        """Cut the connection off."""
        self._writer.transport.abort()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    # A transport of uvloop that has closed raises RuntimeError, one of asyncio says nothing.
    if writer.transport.is_closing():
        raise ConnectionResetError("the peer has gone")
    writer.write(data)


async def welcome(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    magic: bytes = MAGIC,
    max_frame: int = MAX_FRAME,
) -> Channel:
    """Prove both sides to each other, as the server. Raises ProtocolError for a peer without the secret."""
    server = secrets.token_bytes(NONCE)
    _write(writer, magic + server)
    client = await reader.readexactly(NONCE)
    if not hmac.compare_digest(await reader.readexactly(CODE), _code(secret, b"client", server, client)):
        raise ProtocolError("a client without the secret")
    _write(writer, _code(secret, b"server", server, client))
    to_client = _code(secret, b"to client", server, client)
    to_server = _code(secret, b"to server", server, client)
    return Channel(reader, writer, to_client, to_server, None, max_frame)


async def introduce(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    direct: socket.socket | None = None,
    magic: bytes = MAGIC,
    max_frame: int = MAX_FRAME,
) -> Channel:
    """The same as the client. Raises ProtocolError for a server without the secret."""
    greeting = await reader.readexactly(len(magic) + NONCE)
    if not greeting.startswith(magic):
        raise ProtocolError("not a coordinator")
    server = greeting[len(magic) :]
    client = secrets.token_bytes(NONCE)
    _write(writer, client + _code(secret, b"client", server, client))
    try:
        proof = await reader.readexactly(CODE)
    except (EOFError, OSError):
        raise ProtocolError("it does not accept this task's secret") from None
    if not hmac.compare_digest(proof, _code(secret, b"server", server, client)):
        raise ProtocolError("it does not know the secret")
    to_client = _code(secret, b"to client", server, client)
    to_server = _code(secret, b"to server", server, client)
    return Channel(reader, writer, to_server, to_client, direct, max_frame)
