"""A real HTTP service on loopback that answers as a test says. It runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aiohttp import web


class Reply(NamedTuple):
    """One answer."""

    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012
    body: str = "{}"
    type: str = "application/json"


@contextmanager
def answering(reply: Callable[[str], Reply]) -> Iterator[str]:
    """Answer every request with `reply(path)`, called in the service's thread; gives the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="answering")
    thread.start()

    async def answer(request: web.Request) -> web.Response:
        status, headers, body, kind = reply(request.path)
        return web.Response(status=status, headers=headers, text=body, content_type=kind)

    async def start() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
