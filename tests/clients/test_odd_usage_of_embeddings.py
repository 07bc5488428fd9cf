"""Right vectors beside a usage that is absent or odd are kept; their cost is unknown, and that is said."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import pillarbox
from pillarbox import Budget, PillarboxError
from pillarbox.clients import Http, Price
from tests.clients.unit.raw_embeddings import answer, serving, vector_of

TEXTS = [f"text {number}" for number in range(12)]
BACKENDS = ["libcurl", "aiohttp"]
KNOWN = [
    ({"prompt_tokens": 5, "total_tokens": 5}, 5),
    ({"prompt_tokens": 5.0}, 5),
    ({"total_tokens": 7}, 7),
    ({"prompt_tokens": None, "total_tokens": 7}, 7),
    ({"prompt_tokens": -1, "total_tokens": 7}, 7),
    ({"input_tokens": 9}, 9),
    ({"prompt_tokens": 5, "details": {"cached": "x"}, "total_tokens": "many"}, 5),
]
UNKNOWN = [
    None,
    {},
    {"prompt_tokens": -1, "total_tokens": -1},
    {"prompt_tokens": "7"},
    {"prompt_tokens": 5.5},
    {"prompt_tokens": True},
    {"prompt_tokens": None},
    {"tokens": 5},
    "7",
    [7],
    7,
]


def run(usage: Any, backend: Any, encoding: Any = "auto", **options: Any) -> tuple[list[Any], Any]:
    """The results of a job of six requests, and what the operator has counted."""

    async def job(client: Any) -> tuple[list[Any], Any]:
        given = {"batch": client.batch, "capacity": 1, **options}
        rows = pillarbox.async_map(TEXTS, client, **given)
        return [row async for row in rows], rows.statistics()

    with serving(lambda request: answer(request, usage=usage)) as service:
        http = Http(proxy="direct", backend=backend)
        client = service.client(max_texts=2, encoding=encoding, http=http)
        return asyncio.run(job(client.with_prices({"m": Price(1_000_000.0)})))


@pytest.mark.contract
@pytest.mark.parametrize("encoding", ["auto", "float"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("usage", "tokens"), KNOWN)
def test_a_count_of_tokens_is_read_however_a_service_names_and_types_it(
    usage: Any, tokens: int, backend: Any, encoding: Any
) -> None:
    found, statistics = run(usage, backend, encoding)
    assert [[*each] for each in found] == [vector_of(text) for text in TEXTS]
    assert statistics.cost == statistics.tokens == 6 * tokens


@pytest.mark.contract
@pytest.mark.parametrize("encoding", ["auto", "float"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("usage", UNKNOWN)
def test_right_vectors_beside_an_odd_usage_are_kept_and_that_is_said_once(
    usage: Any, backend: Any, encoding: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pillarbox"):
        found, statistics = run(usage, backend, encoding)
    assert [[*each] for each in found] == [vector_of(text) for text in TEXTS]
    assert (statistics.calls, statistics.cost, statistics.tokens) == (12, 0.0, 0.0)
    said = [record for record in caplog.records if "no count of tokens" in record.getMessage()]
    assert len(said) == 1


@pytest.mark.contract
@pytest.mark.parametrize("usage", UNKNOWN[:4])
def test_a_bound_on_the_cost_ends_the_job_in_words_where_the_usage_is_odd(usage: Any) -> None:
    with pytest.raises(PillarboxError, match="cannot be held, since nobody knows what a call cost"):
        run(usage, "auto", budget=Budget(max_cost=100.0), errors="column")


@pytest.mark.contract
def test_a_bound_on_the_cost_ends_the_job_when_the_usage_goes_missing_later() -> None:
    served: list[int] = []

    async def job(client: Any) -> list[Any]:
        given = {"batch": client.batch, "capacity": 1, "errors": "column", "budget": Budget(max_cost=1000.0)}
        return [row async for row in pillarbox.async_map(TEXTS, client, **given)]

    def handle(request: dict[str, Any]) -> Any:
        served.append(1)
        return answer(request, usage={"prompt_tokens": 5} if len(served) < 4 else None)

    with serving(handle) as service:
        client = service.client(max_texts=2).with_prices({"m": Price(1_000_000.0)})
        with pytest.raises(PillarboxError, match="cannot be held"):
            asyncio.run(job(client))
    assert len(served) == 4
