"""A connection that a test can break: a TCP proxy on a thread of its own. Thread-safe."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from pillarbox.loop_thread import LoopThread
from pillarbox.rpc.connection import RpcHandle


class Proxy:
    """Passes bytes on to the server of `handle`; `handle` of this one leads through it.

    cut_after: bytes in either direction after which a connection is cut; they are passed on. None: never.
    """

    def __init__(self, handle: RpcHandle, cut_after: int | None = None) -> None:
        self._target = handle.addresses[0]
        self.cut_after = cut_after
        self.connections = 0
        self.passed = bytearray()
        """The bytes that went through in either direction."""
        self.refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = LoopThread("proxy", asyncio.new_event_loop)
        port = self._thread.submit(self._listen()).result()
        self.handle = replace(handle, addresses=(("127.0.0.1", port),))

    def cut(self) -> None:
        """Break every connection."""
        self._thread.submit(self._cut()).result()

    def hold(self) -> None:
        """Pass nothing on, and say nothing: as when a cable is pulled."""
        self._passing = False

    def refuse(self, refusing: bool) -> None:
        """Take no connections, or take them again."""
        self.refusing = refusing

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *reason: object) -> None:
        self._thread.submit(self._close()).result()
        self._thread.close(5)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _close(self) -> None:
        # One that is taken in this turn is seen in the next.
        for each in self._server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if not self.refusing:
                self.connections += 1
                await self._pass_both(reader, writer)
        writer.transport.abort()
        self._writers.discard(writer)
        self._tasks.discard(task)

    async def _pass_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_server = await asyncio.open_connection(*self._target)
        self._writers.add(to_server)
        ways = [self._pass(reader, to_server), self._pass(theirs, writer)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before the wait, which may be cancelled.
            to_server.transport.abort()
            self._writers.discard(to_server)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cut_after
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if left is not None:
                    data, left = data[:left], left - len(data)
                if self._passing:
                    self.passed += data
                    writer.write(data)
                    await writer.drain()
                if left is not None and left <= 0:
                    return
