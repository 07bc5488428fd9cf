"""Clients report the limits that a service names: the operator waits for them, against a real server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from pillarbox import Batch, Rate, async_map
from pillarbox.clients import Chat, Embeddings, HttpLookup

RESET_S = 0.4
NAMED = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": f"{1000 * RESET_S:.0f}ms",
}

ANSWERS: dict[str, Any] = {
    "lookup": {"name": "a"},
    "chat": {
        "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    },
    "embeddings": {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "usage": {"prompt_tokens": 3}},
}


def client_of(kind: str, url: str) -> Any:
    if kind == "lookup":
        return HttpLookup(url + "/{id}")
    if kind == "chat":
        return Chat(url, "model", prompt="{id}")
    return Embeddings(url, "model", encoding="float")


def between_calls(serve: Any, kind: str, **options: Any) -> float:
    """Seconds between the requests for two rows, as the service sees them."""
    came: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        came.append(time.monotonic())
        return web.json_response(ANSWERS[kind], headers=NAMED)

    async def run() -> None:
        async with serve(answer) as url:
            client = client_of(kind, url)
            rows = [{"id": "a"}, {"id": "b"}] if kind != "embeddings" else ["a", "b"]
            batch = Batch(1) if kind == "embeddings" else None
            found = [each async for each in async_map(rows, client, capacity=1, batch=batch, **options)]
            assert len(found) == 2

    asyncio.run(run())
    first, *_, last = came
    return last - first


@pytest.mark.contract("Clients learn the limits of their service from its answers, unless a rate is given.")
@pytest.mark.parametrize("kind", ["lookup", "chat", "embeddings"])
def test_a_client_waits_for_the_limit_that_an_answer_names(serve: Any, kind: str) -> None:
    assert between_calls(serve, kind) >= RESET_S


@pytest.mark.parametrize("options", [{"rate": Rate(learn=True)}, {"rate": Rate(1000.0, learn=True)}])
def test_a_client_learns_beside_a_rate_that_says_so(serve: Any, options: dict[str, Any]) -> None:
    assert between_calls(serve, "lookup", **options) >= RESET_S
