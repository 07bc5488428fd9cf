"""`Embeddings` against servers with limits of a minute, told nothing but a number of attempts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pillarbox
from pillarbox.clients import Embeddings, Http, Secret
from tests.clients.embedding_service import Service, serving, vector_of
from tests.servers.model_servers import KEY, LiteLLMProxy, QuotaServer

pytestmark = [pytest.mark.server, pytest.mark.slow]

DIRECT = Http(proxy="direct", read_timeout=30.0)


async def embedded(client: Embeddings, texts: list[str], **options: Any) -> list[Any]:
    return [row async for row in pillarbox.async_map(texts, client, batch=client.batch, **options)]


@pytest.mark.contract(needs="a service with limits of tokens")
def test_tokens_a_minute_are_waited_for_as_long_as_the_service_says(tmp_path: Path) -> None:
    tokens_per_minute, rows = 3000, 110
    server = QuotaServer(tmp_path, tokens_per_minute)
    try:
        # Thirty tokens each, by its count.
        texts = [f"number {number:03} " + "x" * 109 for number in range(rows)]
        client = Embeddings(server.url, "text-embedding-3-small", max_texts=10, http=DIRECT)
        began = time.monotonic()
        found = asyncio.run(embedded(client, texts, retry=8, capacity=4))
        took = time.monotonic() - began
        asked, verdict = server.requests(), server.verdict()
    finally:
        server.close()
    assert len(found) == rows and len({row.tobytes() for row in found}) == rows
    statuses = [each["status"] for each in asked]
    assert statuses.count(200) == rows / 10 and set(statuses) == {200, 429}
    # What was refused was asked for again no sooner than the answer said, and no storm came.
    assert (verdict["passed"], verdict["errors"], verdict["warnings"]) == (True, 0, 0)
    assert len(statuses) < 2 * rows / 10
    assert took >= (30 * rows - tokens_per_minute) / (tokens_per_minute / 60) / 2


@pytest.mark.contract(needs="the proxy LiteLLM")
@pytest.mark.parametrize("limits", [{"rpm": 4}, {"tpm": 75}])
def test_limits_of_a_litellm_proxy_cost_time_and_no_row(tmp_path: Path, limits: dict[str, int]) -> None:
    service = Service()
    texts = [f"verse {number}" for number in range(20)]

    async def job() -> list[Any]:
        async with serving(service):
            proxy = await asyncio.to_thread(LiteLLMProxy, tmp_path, f"{service.url}/v1", "small", **limits)
            try:
                client = Embeddings(proxy.url, "small", max_texts=4, key=Secret.literal(KEY), http=DIRECT)
                return await embedded(client, texts, retry=4, capacity=2)
            finally:
                await asyncio.to_thread(proxy.close)

    found = asyncio.run(job())
    assert np.array_equal(np.stack(found), np.stack([vector_of(text) for text in texts]))
    # Each request reached the service once: the proxy refuses by itself, and says that a minute has to pass.
    assert service.sizes == [4] * 5
