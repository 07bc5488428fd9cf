"""How a client comes in: a connection whose server is known. On the loop of whoever connects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from pillarbox.wire.frames import CONNECT, MAGIC, MAX_FRAME, Channel, introduce, own_socket


@contextlib.asynccontextmanager
async def connected(
    host: str,
    port: int,
    secret: bytes,
    *,
    magic: bytes = MAGIC,
    max_frame: int = MAX_FRAME,
    direct: bool = False,
) -> AsyncIterator[Channel]:
    """A connection to a server that knows `secret`; cut off at the end, and what is unsent is lost.

    direct: what is sent is with the system when `send` returns, see `Channel`.
    Raises what is in `BROKEN` where there is no such server.
    """
    opening = asyncio.open_connection(host, port, limit=max_frame + 4096)
    reader, writer = await asyncio.wait_for(opening, CONNECT)
    try:
        with own_socket(writer) if direct else contextlib.nullcontext() as own:
            proof = introduce(reader, writer, secret, own, magic, max_frame)
            yield await asyncio.wait_for(proof, CONNECT)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
