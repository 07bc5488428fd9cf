"""Costs that a proxy states in a header of its answers, for clients without prices."""

from __future__ import annotations

import base64
import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pillarbox import Batch, Budget, PillarboxError, async_map
from pillarbox.clients import Chat, Embeddings, Http, Price, Rerank
from pillarbox.frames import ask
from tests.clients.raw_service import RawRequest, RawService

HEADER = "x-litellm-response-cost"
ROWS = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
BACKENDS = ("libcurl", "aiohttp")
NOT_COSTS = [
    "-0.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1e7",
    "1_0",
    "None",
    "",
    "0.5, 0.5",
    "0x1p3",
    "9" * 400,
    "٣",
]


def service_of(costs: Sequence[str | None]) -> RawService:
    """A service of questions, vectors and scores. costs: of its answers, the last one for all others."""
    left = [*costs]

    def answer(request: RawRequest) -> bytes:
        asked = json.loads(request.body)
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        if request.path.endswith("/chat/completions"):
            choice = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
            told: dict[str, Any] = {"choices": [choice]}
        elif request.path.endswith("/embeddings"):
            vector = base64.b64encode(np.ones(4, np.float32).tobytes()).decode()
            told = {"data": [{"index": place, "embedding": vector} for place in range(len(asked["input"]))]}
        else:
            told = {"results": [{"index": 0, "relevance_score": 0.5}]}
        body = json.dumps({**told, "usage": usage}).encode()
        cost = left.pop(0) if len(left) > 1 else left[0]
        line = b"" if cost is None else f"X-LiteLLM-Response-Cost: {cost}\r\n".encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), line, body)

    return RawService(answer)


def job_of(kind: str, url: str, backend: str = "aiohttp", **options: Any) -> Iterator[Any]:
    """A job of three rows by a client of that kind, one after the other."""
    http = Http(proxy="direct", backend=backend)  # type: ignore[arg-type]
    given = {"capacity": 1, "batch": None, **options}
    if kind == "chat":
        return async_map(ROWS, Chat(f"{url}/v1", "small", prompt="{text}", http=http), **given)
    if kind == "embeddings":
        texts = Embeddings(f"{url}/v1", "small", encoding="base64", dimensions=4, http=http)
        return async_map([row["text"] for row in ROWS], texts, **{**given, "batch": Batch(1)})
    ranked = [{"query": "q", "documents": [row["text"]]} for row in ROWS]
    return async_map(ranked, Rerank(f"{url}/v1", "small", api="vllm", http=http), **given)


@pytest.mark.contract(
    "Without prices the cost of a call is the one that a LiteLLM proxy states in its answer.",
    convicts=["stated_costs_are_not_read"],
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["chat", "embeddings", "rerank"])
def test_a_stated_cost_is_the_cost_of_the_call(kind: str, backend: str) -> None:
    with service_of(["0.25", "1e-3", "2"]) as service:
        results = job_of(kind, service.url, backend)
        assert len(list(results)) == 3
    assert results.statistics().cost == pytest.approx(2.251)


@pytest.mark.contract("A bound on the cost holds by the costs that a proxy states.")
@pytest.mark.parametrize("kind", ["chat", "embeddings", "rerank"])
def test_a_bound_on_the_cost_holds_by_what_is_stated(kind: str) -> None:
    with service_of(["0.5"]) as service:
        results = job_of(kind, service.url, budget=Budget(max_cost=1.0), errors="null")
        assert [each is None for each in results] == [False, False, True]
        assert len(service.requests) == 2


@pytest.mark.contract(
    "A stated cost that is not an amount is unknown, said once, and a bound on the cost ends the job.",
    convicts=["stated_costs_are_believed"],
)
@pytest.mark.parametrize("cost", NOT_COSTS)
def test_a_stated_cost_that_is_not_an_amount_is_unknown(cost: str, caplog: pytest.LogCaptureFixture) -> None:
    with service_of([cost]) as service, caplog.at_level(logging.WARNING, "pillarbox"):
        results = job_of("chat", service.url)
        assert len(list(results)) == 3
        assert results.statistics().cost == 0.0
        told = [record for record in caplog.records if HEADER in record.getMessage()]
        assert len(told) == 1 and len(told[0].getMessage()) < 400
        with pytest.raises(PillarboxError, match=f"states a cost that is none .{HEADER}: .*give prices"):
            list(job_of("chat", service.url, budget=Budget(max_cost=1.0), errors="null"))


@pytest.mark.parametrize("kind", ["chat", "embeddings", "rerank"])
def test_where_nothing_is_stated_a_bound_on_the_cost_ends_the_job(kind: str) -> None:
    with service_of(["0.1", None]) as service, pytest.raises(PillarboxError, match="max_cost=9.0: "):
        list(job_of(kind, service.url, budget=Budget(max_cost=9.0), errors="null"))


@pytest.mark.contract("Prices that are given count, whatever a proxy states.")
def test_prices_that_are_given_count_before_what_is_stated() -> None:
    with service_of(["5"]) as service:
        prices = {"small": Price(1e6, 1e6)}
        http = Http(proxy="direct", backend="aiohttp")
        chat = Chat(f"{service.url}/v1", "small", prompt="{text}", http=http, prices=prices)
        results = async_map(ROWS, chat, capacity=1)
        assert list(results) == ["yes"] * 3
    assert results.statistics().cost == 9.0


@pytest.mark.contract(
    "A bound on the cost is taken in Spark and in frames where the client is told that costs are stated.",
    convicts=["stated_costs_are_no_prices"],
)
def test_a_client_that_is_told_of_stated_costs_takes_a_bound_in_frames() -> None:
    frame = pd.DataFrame(ROWS)

    def asked(url: str, prices: Any) -> pd.DataFrame:
        http = Http(proxy="direct", backend="aiohttp")
        client = Chat(f"{url}/v1", "small", prompt="{text}", http=http, prices=prices)
        client, bound = pickle.loads(pickle.dumps(client)), Budget(max_cost=0.25)
        return ask(frame, client=client, into="answer", budget=bound, errors="null", capacity=1)

    with service_of(["0.2"]) as service:
        with pytest.raises(ValueError, match=r"max_cost=0.25: needs .* or Price.STATED"):
            asked(service.url, {})
        # The second call passes the bound, and is the last.
        assert len(service.requests) == 0
        found = asked(service.url, Price.STATED)
        assert len(service.requests) == 2
    assert found["answer"].notna().tolist() == [True, True, False]


def test_vectors_and_ranks_take_a_bound_by_stated_costs_and_say_what_they_are() -> None:
    texts = Embeddings("http://localhost:1/v1", "small").with_prices(Price.STATED)
    ranks = Rerank("http://localhost:1/v1", "small", api="vllm", prices=Price.STATED)
    for client in (texts, ranks):
        client.check_budget(Budget(max_cost=1.0))
        assert repr(pickle.loads(pickle.dumps(client)).prices) == "Price.STATED"


def test_any_mapping_is_a_table_of_prices() -> None:
    prices = {"small": Price(1.0)}
    texts = Embeddings("http://localhost:1/v1", "small").with_prices(MappingProxyType(prices))
    prices.clear()
    assert pickle.loads(pickle.dumps(texts)).prices == {"small": Price(1.0)}
