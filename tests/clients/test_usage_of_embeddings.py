"""Usage of `Embeddings`: tokens, cost and telemetry of what services count, for an operator that is told."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import numpy as np
import pytest
from aiohttp import web

import pillarbox
from pillarbox import Batch, Budget, CallFailed, PillarboxError
from pillarbox.clients import Embeddings, Http, Price
from pillarbox.clients.transport import HttpStatusError
from tests.clients.embedding_service import Block, Service, serving, tokens_of, vector_of

TEXTS = ["love your enemies", "a time to plant", "hate", "war and peace"]
PRICE = 1_000_000.0
"""Of a million tokens: each costs 1."""
PRICES = {"e5": Price(PRICE)}
BACKENDS = ["libcurl", "aiohttp"]


def run(
    service: Service,
    texts: Any = TEXTS,
    *,
    by: Any = None,
    path: str = "/v1",
    client: Any = None,
    prices: Any = PRICES,
    **options: Any,
) -> tuple[list[Any], Any]:
    """The results of a job over `texts`, and what the operator has counted.

    by: makes the function that the operator calls, of the client. client: more options of that. prices: its
    prices.
    """

    async def job() -> tuple[list[Any], Any]:
        async with serving(service):
            given = {"http": Http(proxy="direct"), **(client or {})}
            e5 = Embeddings(service.url + path, "e5", **given)
            if prices:
                e5 = e5.with_prices(prices)
            fn = e5 if by is None else by(e5)
            # A bound needs another mode than "fail"; "null" gives the vectors alone.
            mode = "null" if "budget" in options else "fail"
            rows = pillarbox.async_map(texts, fn, **{"batch": e5.batch, "errors": mode, **options})
            found = [row async for row in rows]
            return found, rows.statistics()

    return asyncio.run(job())


def count(texts: Any) -> int:
    return sum(tokens_of(text) for text in texts if text is not None)


@pytest.mark.contract
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("path", "client", "provider"),
    [
        ("/v1", {}, "openai"),
        ("/v1", {"encoding": "float"}, "openai"),
        ("", {"api": "tei"}, "tei"),
        ("", {"api": "azure", "api_version": "1"}, "azure.ai.openai"),
    ],
)
def test_embeddings_cost_what_the_service_counts_at_the_price_of_the_model(
    path: str, client: Any, provider: str, backend: Any
) -> None:
    http = Http(proxy="direct", backend=backend)
    found, statistics = run(Service(), path=path, client={**client, "max_texts": 2, "http": http})
    assert np.allclose(np.stack(found), [vector_of(text) for text in TEXTS], atol=1e-6)
    assert statistics.cost == statistics.tokens == count(TEXTS)
    (used,) = statistics.tokens_used.items()
    assert (json.loads(used[0]), used[1]) == (["embeddings", provider, "e5", "input"], count(TEXTS))
    (duration,) = statistics.operation_duration.items()
    assert json.loads(duration[0]) == ["embeddings", provider, "e5", ""]
    assert duration[1].measurements == 2


@pytest.mark.contract
@pytest.mark.parametrize(("batch", "texts"), [(None, TEXTS), (Batch(5), [*TEXTS, None])])
def test_each_row_and_each_request_of_a_cut_batch_is_billed_once(batch: Any, texts: Any) -> None:
    found, statistics = run(Service(), texts, batch=batch, client={"max_texts": 2}, capacity=2)
    assert [vector is None for vector in found] == [text is None for text in texts]
    assert statistics.cost == count(TEXTS)


@pytest.mark.contract
def test_a_long_text_costs_the_tokens_of_all_its_pieces() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([each]): each for each in range(256)}
    letters = tiktoken.Encoding("letters", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})
    service = Service()
    more = {"max_text_tokens": 20, "long_texts": "chunk", "tokenizer": letters, "max_texts": 2}
    _, statistics = run(service, ["love your enemies and " * 4], client=more)
    pieces = [text for request in service.requests for text in request["input"]]
    assert len(service.requests) > 1 and len(pieces) > 2
    assert statistics.cost == count(pieces)


@pytest.mark.contract
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("client", [{}, {"dimensions": 7}, {"encoding": "float"}])
def test_an_answer_that_is_no_good_is_billed_where_the_service_counted(client: Any, backend: Any) -> None:
    def one_is_missing(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "data": answer["data"][1:]}

    def other_dimensions(answer: dict[str, Any]) -> dict[str, Any]:
        for item in answer["data"]:
            item["embedding"] = [0.5] * 5
        return answer

    service = Service(change=other_dimensions if client.get("dimensions") else one_is_missing)
    client = {**client, "http": Http(proxy="direct", backend=backend)}
    found, statistics = run(service, TEXTS[:1], client=client, errors="column", retry=2)
    assert found[0].error.type == ("OtherLength" if "dimensions" in client else "AnswerError")
    assert len(service.requests) == statistics.calls
    assert statistics.cost == len(service.requests) * count(TEXTS[:1]) > 0


class FailsThen(Service):
    """A service that answers its second request with 500."""

    async def answer(self, request: web.Request) -> web.Response:
        answer = await super().answer(request)
        return web.Response(status=500) if len(self.requests) == 2 else answer


@pytest.mark.contract
def test_of_a_batch_in_which_a_request_failed_the_answered_ones_are_billed() -> None:
    service = FailsThen()
    options: Any = {"batch": Batch(4), "client": {"max_texts": 2}}
    _, statistics = run(service, retry=3, **options)
    # The first two texts once, the others once more after the refusal, which counted nothing.
    assert statistics.cost == count(TEXTS)
    with pytest.raises(CallFailed) as failed:
        run(FailsThen(), **options)
    assert isinstance(failed.value.cause, HttpStatusError)


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(1)])
def test_a_budget_of_cost_holds_for_embeddings_without_a_function_of_usage(batch: Any) -> None:
    service = Service()
    bound = Budget(max_cost=2.5 * tokens_of("love"))
    found, statistics = run(service, ["love"] * 9, batch=batch, budget=bound, errors="column", capacity=1)
    assert len(service.requests) == 3
    assert statistics.cost == 3 * tokens_of("love")
    assert [row.error is None for row in found] == [True] * 3 + [False] * 6
    assert found[-1].error.type == "NotCalled"


@pytest.mark.contract
def test_texts_that_are_not_sent_cost_nothing_and_break_no_bound() -> None:
    service = Service()
    found, statistics = run(service, [None] * 3, budget=Budget(max_cost=1.0))
    assert (found, statistics.cost, service.requests) == ([None] * 3, 0.0, [])


@pytest.mark.contract
@pytest.mark.parametrize(
    ("usage", "prices", "message"),
    [(True, {}, "does not say what the call cost"), (False, PRICES, "does not say what its answers cost")],
)
def test_a_bound_on_a_cost_that_nobody_knows_ends_the_job(usage: bool, prices: Any, message: str) -> None:
    with pytest.raises(PillarboxError, match=message):
        run(Service(usage=usage), prices=prices, budget=Budget(max_cost=1.0))


@pytest.mark.contract
def test_a_service_that_counts_no_tokens_has_durations_alone() -> None:
    found, statistics = run(Service(usage=False))
    assert len(found) == len(TEXTS)
    assert (statistics.cost, statistics.tokens, statistics.tokens_used) == (0.0, 0.0, {})
    assert len(statistics.operation_duration) == 1


@pytest.mark.contract
def test_a_function_of_usage_decides_the_cost_where_one_is_given() -> None:
    budget = Budget(max_cost=100.0, usage=lambda text, vector: 0.25)
    _, statistics = run(Service(), budget=budget)
    assert statistics.cost == 1.0
    # Telemetry has what the service counted all the same.
    assert sum(statistics.tokens_used.values()) == count(TEXTS)


@pytest.mark.contract
def test_by_hand_and_in_a_function_of_a_job_a_client_gives_vectors_and_the_job_is_told() -> None:
    kinds = []

    def around(e5: Embeddings) -> Any:
        async def first_number(texts: list[str]) -> list[float]:
            async with e5:
                block: Block = await e5(texts)
            kinds.append(type(block))
            return [float(number) for number in block[:, 0]]

        return first_number

    found, statistics = run(Service(), by=around, budget=Budget(max_cost=1000.0))
    assert found == [float(vector_of(text)[0]) for text in TEXTS]
    assert statistics.cost == count(TEXTS)

    async def by_hand() -> tuple[Any, int, float]:
        service = Service()
        async with (
            serving(service),
            Embeddings(f"{service.url}/v1", "e5", http=Http(proxy="direct")).with_prices(PRICES) as e5,
        ):
            return await e5(TEXTS), e5.tokens, e5.cost

    block, tokens, cost = asyncio.run(by_hand())
    assert {type(block), *kinds} == {np.ndarray}
    assert tokens == cost == count(TEXTS)


@pytest.mark.contract
def test_a_blocking_function_with_a_loop_of_its_own_is_billed_too() -> None:
    def around(e5: Embeddings) -> Any:
        async def embed(texts: list[str]) -> Any:
            async with e5:
                return await e5(texts)

        return lambda texts: asyncio.run(embed(texts))

    found, statistics = run(Service(), by=around, budget=Budget(max_cost=1000.0))
    assert np.array_equal(np.stack(found), [vector_of(text) for text in TEXTS])
    assert statistics.cost == count(TEXTS)


@pytest.mark.contract
def test_vectors_that_are_billed_are_views_of_the_block_of_their_answer() -> None:
    found, _ = run(Service(), budget=Budget(max_cost=1000.0))
    assert all(vector.base is not None and vector.base is found[0].base for vector in found)


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"e5": 1.0}, r"prices\['e5'\]=1.0: must be a pillarbox.clients.Price"),
        ({"m": Price(1.0)}, "prices: has no price of model='e5', but of 'm'"),
        (5, "prices=5: must be a mapping"),
    ],
)
def test_a_wrong_table_of_prices_is_named(prices: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Embeddings("https://host/v1", "e5").with_prices(prices)


def test_a_client_with_prices_pickles_and_finds_what_one_without_has_found() -> None:
    plain = Embeddings("https://host/v1", "e5", dimensions=7, body={"x": 1})
    priced = plain.with_prices(PRICES)
    assert (plain.prices, priced.prices) == ({}, PRICES)
    assert pickle.loads(pickle.dumps(priced)) == priced
    assert priced.configuration == plain.configuration
