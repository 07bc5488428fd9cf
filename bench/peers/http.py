"""Real HTTP on loopback: a server in a process of its own, and the session that asks it. Uses aiohttp.

`python -m bench.peers.http` is the server: it prints its port and ends when its input does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bench.chunks import ROOT

if TYPE_CHECKING:
    import aiohttp


class Ask:
    """An HTTP session of so many connections that are kept alive, and a call of one row by it.

    An async context manager on the event loop that makes the calls. May be pickled before it is entered.
    """

    def __init__(self, url: str, connections: int) -> None:
        self._url = url
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Ask:
        import aiohttp

        connector = aiohttp.TCPConnector(limit=self._connections)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(self, row: int) -> int:
        """The answer for a row."""
        assert self._session is not None
        async with self._session.get(f"{self._url}/{row}") as answer:
            return int(await answer.text())


class AskRow(Ask):
    """Called with a row."""

    async def __call__(self, row: int) -> int:
        return await self.ask(row)


class AskRecord(Ask):
    """Called with a record that has a column `id`."""

    async def __call__(self, record: Any) -> int:
        return await self.ask(record.id)


class Server:
    """The server's process, as a context manager; `url` is where it answers."""

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.http"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=20)


async def _serve() -> None:
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=str(2 * int(request.match_info["row"]) + 1))

    app = web.Application()
    app.router.add_get("/{row}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve())
