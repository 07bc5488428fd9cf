"""`Chat` through a LiteLLM proxy, in front of a service that spoils a fifth of its answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox.clients import Chat, Http, Price, Secret
from tests.clients.chat_service import ChatService, serving
from tests.servers.model_servers import KEY, LiteLLMProxy

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")
pytestmark = [pytest.mark.server, pytest.mark.slow]

DIRECT = Http(proxy="direct", read_timeout=30.0)


class Counted(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: int
    first: str


def through_proxy(
    service: ChatService, folder: Path, rows: list[Any], **options: Any
) -> tuple[list[Any], Any]:
    """The results of a job over `rows`, by a proxy in front of `service`, and what was counted."""

    async def job() -> tuple[list[Any], Any]:
        async with serving(service):
            proxy = await asyncio.to_thread(LiteLLMProxy, folder, f"{service.url}/v1", "small")
            try:
                chat = Chat(
                    proxy.url,
                    "small",
                    prompt="{text}",
                    answer=Counted,
                    prices={"small": Price(1.0, 2.0)},
                    key=Secret.literal(KEY),
                    http=DIRECT,
                )
                results = pillarbox.async_map(rows, chat, **options)
                return [row async for row in results], results.statistics()
            finally:
                await asyncio.to_thread(proxy.close)

    return asyncio.run(job())


@pytest.mark.contract(needs="the proxy LiteLLM")
def test_by_a_litellm_proxy_spoiled_answers_are_asked_again_and_all_calls_are_paid(tmp_path: Path) -> None:
    service = ChatService(spoils=True, seed=25)
    rows = [{"text": f"row {number} of many"} for number in range(400)]
    found, statistics = through_proxy(service, tmp_path, rows, retry=5, capacity=16)
    assert found == [Counted(words=4, first="row")] * len(rows)
    assert statistics.calls == len(service.requests) <= 1.25 * len(rows)
    assert set(service.structures_asked) == {"json_schema"}
    used = sum(len(each["content"]) for request in service.requests for each in request["messages"])
    assert statistics.tokens > used
    assert statistics.cost > used / 1e6
