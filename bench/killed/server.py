"""A service of embeddings that counts the texts it is asked for, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from bench.clients.server import RawHttp, embeddings_answer

SIGMA = 0.5
"""Of the logarithm of a latency."""


class CountingServer:
    """The service, as a context manager: `url` is its address.

    Answers come log-normally distributed seconds after a request, `latency` in the mean, drawn by its first
    text. Only `texts` are counted.

    `asked` counts each text when its request arrives, `answered` has the texts whose answer was sent.
    `watch(count)` returns an event that is set when so many texts are answered.
    """

    def __init__(self, latency: float, texts: list[str]) -> None:
        self._latency = latency
        self._texts = set(texts)
        self.asked: Counter[str] = Counter()
        self.answered: set[str] = set()
        self._transports: set[Any] = set()
        self._watched: tuple[int, threading.Event] | None = None

    def connected(self, transport: Any) -> None:
        """Keep a connection, to close it at the end."""
        self._transports.add(transport)

    def watch(self, count: int) -> threading.Event:
        """The event of so many answered texts."""
        event = threading.Event()
        self._watched = count, event
        return event

    def request(self, transport: Any, texts: list[str], answer: bytes) -> None:
        """Count a request and answer it later, on the loop."""
        self.asked.update(text for text in texts if text in self._texts)
        spread = math.exp(random.Random(texts[0]).gauss(-SIGMA * SIGMA / 2, SIGMA))
        self._loop.call_later(self._latency * spread, self._answer, transport, texts, answer)

    def _answer(self, transport: Any, texts: list[str], answer: bytes) -> None:
        if transport.is_closing():
            return
        transport.write(answer)
        self.answered.update(self._texts.intersection(texts))
        if self._watched is not None and len(self.answered) >= self._watched[0]:
            self._watched[1].set()

    def __enter__(self) -> CountingServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(20)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _listen(self) -> asyncio.Server:
        return await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        for transport in self._transports:
            transport.abort()
        # A transport closes its socket in the next turn of the loop.
        await asyncio.sleep(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class _Connection(RawHttp):
    def __init__(self, server: CountingServer) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._server.connected(transport)

    def respond(self, head: bytes, body: bytes) -> None:
        asked = json.loads(body)
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        answer = embeddings_answer(len(texts), asked.get("encoding_format") == "base64")
        self._server.request(self._transport, texts, answer)
