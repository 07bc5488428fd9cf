"""A service of embeddings on a raw socket, which refuses, resets and errs as a test says."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pillarbox
from pillarbox.clients import Embeddings, Http
from pillarbox.testing.wire_server import Connection, WireServer

DIRECT = Http(proxy="direct")


class Reply(NamedTuple):
    """An answer of the service: a status, and a body that is sent as JSON."""

    status: int
    body: Any


def vector_of(text: str, length: int = 4) -> list[float]:
    """A vector that tells texts apart."""
    return [float(len(text)), *map(float, text.encode()[-3:].ljust(3, b"\0")), *[0.5] * (length - 4)][:length]


def answer(request: dict[str, Any], length: int = 4, usage: Any = None, kind: str = "f") -> Reply:
    """The answer of a service that is right. kind: of the numbers in base64."""
    vectors: list[Any] = [vector_of(text, length) for text in request["input"]]
    if request.get("encoding_format") == "base64":
        vectors = [base64.b64encode(struct.pack(f"<{length}{kind}", *each)).decode() for each in vectors]
    data = [{"index": place, "embedding": each} for place, each in enumerate(vectors)]
    return Reply(200, {"data": data} if usage is None else {"data": data, "usage": usage})


class Raw:
    """A service that is served. url: its address. requests: those that it took, parsed. resets: those that it
    reset before it had read them."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.resets = 0

    @property
    def sizes(self) -> list[int]:
        """Texts of each request."""
        return [len(request["input"]) for request in self.requests]

    def client(self, **options: Any) -> Embeddings:
        """A client of the service."""
        return Embeddings(self.url, "m", **{"http": DIRECT, **options})


@contextmanager
def serving(handle: Callable[[dict[str, Any]], Reply], *, most_bytes: int = 1 << 40) -> Iterator[Raw]:
    """Serve by `handle`. most_bytes: of a body; the connection of a larger one is reset."""
    raw = Raw()

    def script(connection: Connection) -> None:
        while True:
            head = connection.read_head().decode("latin-1")
            length = int(head.lower().partition("content-length:")[2].partition("\r\n")[0])
            if length > most_bytes:
                raw.resets += 1
                connection.read_some(most_bytes // 2)
                connection.reset()
                return
            request = json.loads(connection.read_exactly(length))
            raw.requests.append(request)
            reply = handle(request)
            body = json.dumps(reply.body).encode()
            connection.send(
                f"HTTP/1.1 {reply.status} X\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )

    with WireServer(script) as server:
        raw.url = f"{server.url}/v1"
        yield raw


def embedded(client: Embeddings, texts: Sequence[Any], **options: Any) -> list[Any]:
    """The outcomes of a job over `texts`: result and error of each."""

    async def job() -> list[Any]:
        given = {"batch": client.batch, "errors": "column", **options}
        return [row async for row in pillarbox.async_map(texts, client, **given)]

    return asyncio.run(job())


def check(outcomes: Sequence[Any], texts: Sequence[str], length: int = 4) -> None:
    """Assert that each text has its vector."""
    assert [each.error for each in outcomes] == [None] * len(texts)
    assert [[*map(float, each.result)] for each in outcomes] == [vector_of(text, length) for text in texts]
