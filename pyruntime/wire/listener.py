"""Where peers come in: a port, strangers until they have proved who they are. One loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from pillarbox.wire.ending import end
from pillarbox.wire.frames import CONNECT, MAGIC, MAX_FRAME, Channel, ProtocolError, welcome

log = logging.getLogger("pillarbox")

STRANGERS = 64
"""Connections whose peer is not known yet. One more, and the oldest of them is cut off."""


class Listener:
    """Listens on a port, and has `serve` called for each peer that knows `secret`. Confined to its loop.

    serve: runs for as long as the connection is to last; its end, and what it raises, ends the connection.
    strangers: connections whose peer is not known yet, at most; the oldest makes room.
    connect: seconds for a stranger to prove who he is.
    """

    def __init__(
        self,
        secret: bytes,
        serve: Callable[[Channel, asyncio.StreamWriter], Awaitable[None]],
        *,
        magic: bytes = MAGIC,
        max_frame: int = MAX_FRAME,
        strangers: int = STRANGERS,
        connect: float = CONNECT,
    ) -> None:
        self._secret = secret
        self._serve = serve
        self._magic = magic
        self._max_frame = max_frame
        self._most_strangers = strangers
        self._connect = connect
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        limit = self._max_frame + 4096
        self._server = await asyncio.start_server(self._connected, host, port, limit=limit)
        return int(self._server.sockets[0].getsockname()[1])

    def refuse(self) -> None:
        """Take no other connections."""
        if self._server is None or not self._server.sockets:
            return
        loop = asyncio.get_running_loop()
        # asyncio takes a connection in two turns, and does not close it if its server is closed between them.
        with contextlib.suppress(NotImplementedError):
            for each in self._server.sockets:
                loop.remove_reader(each.fileno())
        loop.call_soon(self._server.close)

    async def stop(self) -> None:
        """Take no other connections, cut off those that are there, wait for their ends."""
        self._stopping = True
        self.refuse()
        await asyncio.sleep(0)
        for writer in self._writers:
            writer.transport.abort()
        await end(*self._tasks)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: a task that is cancelled before its first step would leave the connection open.
        if self._stopping:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._admit(reader, writer))
        self._tasks.add(task)
        self._writers.add(writer)

        def ended(task: asyncio.Task[None]) -> None:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

        task.add_done_callback(ended)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await self._meet(reader, writer)
        if channel is not None:
            await self._serve(channel, writer)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        if len(self._strangers) >= self._most_strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            proof = welcome(reader, writer, self._secret, self._magic, self._max_frame)
            return await asyncio.wait_for(proof, self._connect)
        except (ProtocolError, EOFError, OSError, asyncio.TimeoutError) as error:
            log.debug("a connection was refused: %s", error)
            return None
        finally:
            self._strangers.pop(writer, None)
