"""A raw HTTP server on loopback that costs next to nothing, so that the client is measured.

`python -m bench.clients.server` prints its port, and ends when its input does; with `--service-ms 20` each
answer takes that long, as that of a model does. It knows just enough of HTTP/1.1 for clients that are sound:
a request line, a content length, kept connections. Answers are built once:

- `GET /lookup/7` gives `{"id": 7, ...}` of about 100 bytes;
- `POST .../chat/completions` gives for the question "Row 7" `{"id": 7, ...}` as a reply;
- `POST .../embeddings` gives one vector of 1,024 floats for each text of `input`, in the form that
  `encoding_format` asks for: numbers in JSON, or base64 of float32.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import TracebackType
from typing import Any

from bench.chunks import ROOT

DIMENSIONS = 1_024
VECTORS = 16
"""Different vectors; text number i of a request gets vector number i modulo this."""


@cache
def vectors() -> list[list[float]]:
    """The vectors, each number one of float32 and written in at most 9 digits."""
    generator = random.Random(20)
    return [[_float32(generator.gauss(0.0, 0.03)) for _ in range(DIMENSIONS)] for _ in range(VECTORS)]


def _float32(number: float) -> float:
    return float(f"{struct.unpack('f', struct.pack('f', number))[0]:.9g}")


@cache
def _items(encoded: bool) -> list[str]:
    texts = []
    for vector in vectors():
        if encoded:
            packed = struct.pack(f"<{DIMENSIONS}f", *vector)
            texts.append(f'"{base64.b64encode(packed).decode()}"')
        else:
            texts.append(json.dumps(vector, separators=(",", ":")))
    return texts


def whole_answer(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    return b"%s%d\r\n\r\n%s" % (head, len(body), body)


@cache
def embeddings_answer(count: int, encoded: bool) -> bytes:
    """The whole answer for so many texts."""
    items = _items(encoded)
    data = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{items[index % VECTORS]}}}'
        for index in range(count)
    )
    usage = f'{{"prompt_tokens":{8 * count},"total_tokens":{8 * count}}}'
    return whole_answer(f'{{"object":"list","data":[{data}],"model":"raw","usage":{usage}}}'.encode())


def lookup_answer(row: bytes) -> bytes:
    """The whole answer for a row."""
    return whole_answer(
        b'{"id":%s,"name":"row %s","manufacturer":"BOEING","model":"737-824","seats":149}' % (row, row)
    )


def chat_answer(row: bytes) -> bytes:
    """The whole answer to the question about a row."""
    content = json.dumps(f'{{"id":{row.decode()},"name":"row {row.decode()}","tags":["a","b"]}}').encode()
    return whole_answer(
        b'{"id":"1","object":"chat.completion","created":1,"model":"raw","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":%s},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}' % content
    )


class RawHttp(asyncio.Protocol):
    """One connection. service_s: seconds until an answer is sent."""

    def __init__(self, service_s: float = 0.0) -> None:
        self._service_s = service_s

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head, body_start = self._received[:end], end + 4
            length = 0
            if head.startswith(b"POST"):
                lower = head.lower()
                if b"expect: 100-continue" in lower and len(self._received) == body_start:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                length = int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self._received) < body_start + length:
                return
            body = self._received[body_start : body_start + length]
            self._received = self._received[body_start + length :]
            self.respond(head, body)

    def respond(self, head: bytes, body: bytes) -> None:
        """Send the answer to a request."""
        answer = self._answer_to(head, body)
        if self._service_s:
            asyncio.get_running_loop().call_later(self._service_s, self._transport.write, answer)
        else:
            self._transport.write(answer)

    def _answer_to(self, head: bytes, body: bytes) -> bytes:
        path = head.split(b" ", 2)[1]
        if path.endswith(b"/completions"):
            return chat_answer(json.loads(body)["messages"][-1]["content"].split()[-1].encode())
        if path.endswith(b"/embeddings"):
            asked = json.loads(body)
            count = 1 if isinstance(asked["input"], str) else len(asked["input"])
            return embeddings_answer(
                count, "base64" in (asked.get("encoding_format"), asked.get("embedding_type"))
            )
        return lookup_answer(path.rpartition(b"/")[2])


class RawServer:
    """The server's process, as a context manager; `url` is where it answers.

    service_ms: milliseconds that each answer takes.
    """

    command: Sequence[str] = ("-m", "bench.clients.server")

    def __init__(self, service_ms: float = 0.0) -> None:
        if service_ms:
            self.command = (*self.command, "--service-ms", str(service_ms))

    def __enter__(self) -> RawServer:
        self._process = subprocess.Popen(
            [sys.executable, *self.command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.pid = self._process.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=20)


async def serve(protocol: Callable[[], asyncio.Protocol]) -> None:
    """Serve on a free port, print it, and end when the input does."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m bench.clients.server", description=__doc__)
    parser.add_argument("--service-ms", type=float, default=0.0)
    uvloop.install()
    asyncio.run(serve(partial(RawHttp, parser.parse_args().service_ms / 1e3)))
