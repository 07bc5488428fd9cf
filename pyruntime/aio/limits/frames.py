"""How a coordinator and its clients talk: who they are, and frames that nobody can forge or send again.

Each side proves that it knows the secret without sending it (challenge and response), then each
frame carries a code over its number, its direction and its text (HMAC-SHA256, RFC 2104), under a key of this
connection alone. Nothing is encrypted. Used on the event loop of either side.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from typing import Any

MAGIC = b"pillarbox-limits-1\n"
NONCE = 32
CODE = 32
MAX_FRAME = 64 * 1024
"""Bytes of the text of a frame."""
MAX_UNSENT = 1024 * 1024
"""Bytes that a peer may leave unread."""


class ProtocolError(Exception):
    """The peer is not what it should be, or does not say what it should."""


def _code(secret: bytes, purpose: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(secret, purpose + server + client, "sha256")


class Channel:
    """A connection whose peer is known. Confined to the loop of its streams."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send_key: bytes, receive_key: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; it is not waited for. A peer that does not read is cut off."""
        text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > MAX_FRAME:
            raise ProtocolError(f"a message of {len(text):,} bytes: at most {MAX_FRAME:,}")
        code = hmac.digest(self._send_key, self._sent.to_bytes(8, "big") + text, "sha256")
        self._sent += 1
        transport = self._writer.transport
        if transport.get_write_buffer_size() > MAX_UNSENT:
            transport.abort()
        else:
            self._writer.write(len(text).to_bytes(4, "big") + code + text)

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises ProtocolError, and EOFError or OSError at the end."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > MAX_FRAME:
            raise ProtocolError(f"a frame of {size:,} bytes: at most {MAX_FRAME:,}")
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

    def close(self) -> None:
        """Close the connection; what was sent still goes out."""
        self._writer.close()


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> Channel:
    """Prove both sides to each other, as the server. Raises ProtocolError for a peer without the secret."""
    server = secrets.token_bytes(NONCE)
    writer.write(MAGIC + server)
    client = await reader.readexactly(NONCE)
    if not hmac.compare_digest(await reader.readexactly(CODE), _code(secret, b"client", server, client)):
        raise ProtocolError("a client without the secret")
    writer.write(_code(secret, b"server", server, client))
    to_client = _code(secret, b"to client", server, client)
    return Channel(reader, writer, to_client, _code(secret, b"to server", server, client))


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> Channel:
    """The same as the client. Raises ProtocolError for a server without the secret."""
    greeting = await reader.readexactly(len(MAGIC) + NONCE)
    if not greeting.startswith(MAGIC):
        raise ProtocolError("not a coordinator")
    server = greeting[len(MAGIC) :]
    client = secrets.token_bytes(NONCE)
    writer.write(client + _code(secret, b"client", server, client))
    try:
        proof = await reader.readexactly(CODE)
    except (EOFError, OSError):
        raise ProtocolError("it does not accept this task's secret") from None
    if not hmac.compare_digest(proof, _code(secret, b"server", server, client)):
        raise ProtocolError("it does not know the secret")
    to_client = _code(secret, b"to client", server, client)
    return Channel(reader, writer, _code(secret, b"to server", server, client), to_client)
