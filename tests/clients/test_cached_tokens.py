"""Counts of tokens that do not fit together, as services answer them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pillarbox
from pillarbox.clients import Chat, Http, Price
from tests.clients.chat_service import ChatService, serving


@pytest.mark.contract(
    "A service that counts more cached tokens than it was asked with is paid for those alone, and answers.",
    convicts=["cached_tokens_unbounded"],
)
def test_more_cached_tokens_than_tokens_cost_what_the_tokens_cost() -> None:
    usage = {
        "prompt_tokens": 1_000_000,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 9_000_000},
    }
    service = ChatService(change=lambda reply: {**reply, "usage": usage})

    async def job() -> tuple[list[Any], Any]:
        async with serving(service):
            client = Chat(
                f"{service.url}/v1",
                "small",
                prompt="{text}",
                http=Http(proxy="direct"),
                prices={"small": Price(input=2.0, output=8.0, cached_input=0.5)},
            )
            results = pillarbox.async_map([{"text": "all is well"}], client)
            return [row async for row in results], results.statistics()

    found, statistics = asyncio.run(job())
    assert len(found) == 1 and found[0]
    assert statistics.cost == pytest.approx(0.5)
