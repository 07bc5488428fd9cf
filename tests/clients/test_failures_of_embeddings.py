"""Failures of an embedding service, for an operator that is told nothing but the number of attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web

import pillarbox
from pillarbox import CallFailed, Retry
from pillarbox.clients import Embeddings, Http
from pillarbox.clients.transport import HttpStatusError
from tests.clients.embedding_service import Service, serving, vector_of

TEXTS = ["love", "hate", "war", "peace"]


class Refusing(Service):
    """A service that answers each request by `refuse`, with None for its own answer."""

    refuse: Callable[[int, list[str]], web.Response | None]

    async def answer(self, request: web.Request) -> web.Response:
        refused = self.refuse(len(self.requests), (await request.json())["input"])
        answer = await super().answer(request)
        return answer if refused is None else refused


def run(refuse: Any, texts: list[str] = TEXTS, **options: Any) -> tuple[list[Any], Refusing]:
    """The results of a job over `texts`, and its service. client: more options of that."""
    service = Refusing()
    service.refuse = refuse

    async def job() -> list[Any]:
        async with serving(service):
            more = options.pop("client", {})
            client = Embeddings(
                f"{service.url}/v1", "e5", http=Http(proxy="direct", read_timeout=600.0), **more
            )
            rows = pillarbox.async_map(texts, client, **{"retry": 3, "batch": client.batch, **options})
            return [row async for row in rows]

    return asyncio.run(job()), service


def error(status: int, code: str = "server_error", **headers: str) -> web.Response:
    body = {"error": {"message": f"no: {code}", "type": code, "code": code}}
    return web.json_response(body, status=status, headers=headers)


def first(answer: Callable[[], web.Response]) -> Any:
    return lambda request, texts: answer() if request == 0 else None


def check_all(results: list[Any]) -> None:
    assert np.array_equal(np.stack(results), np.stack([vector_of(text) for text in TEXTS]))


@pytest.mark.contract
@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
def test_a_service_that_is_overloaded_or_ill_is_asked_again(status: int) -> None:
    results, service = run(first(lambda: error(status)))
    check_all(results)
    assert service.sizes == [4, 4]


@pytest.mark.contract
# The second is that of a LiteLLM proxy.
@pytest.mark.parametrize("header", ["Retry-After", "llm_provider-retry-after"])
def test_a_service_is_asked_again_no_sooner_than_it_says(header: str) -> None:
    began = time.monotonic()
    refused = first(lambda: error(429, "rate_limit_exceeded", **{header: "0.25"}))
    results, service = run(refused, retry=Retry(2, initial=0.001))
    check_all(results)
    assert service.sizes == [4, 4]
    assert time.monotonic() - began >= 0.25


@pytest.mark.contract
@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "insufficient_quota"), (402, "billing"), (401, "invalid_api_key"), (404, "model")],
)
def test_an_account_or_address_that_no_pause_mends_is_asked_once(status: int, code: str) -> None:
    with pytest.raises(CallFailed) as found:
        run(lambda request, texts: error(status, code), TEXTS[:1])
    cause = found.value.cause
    assert isinstance(cause, HttpStatusError)
    assert cause.status == status
    assert found.value.attempts == 1
    assert code in str(found.value)


@pytest.mark.contract
def test_one_text_that_a_service_refuses_costs_its_own_row_only() -> None:
    results, _ = run(
        lambda request, texts: error(400, "invalid_request_error") if "war" in texts else None,
        errors="column",
    )
    vectors = [value for value, _ in results]
    errors = [info for _, info in results]
    assert vectors[2] is None
    assert errors[2].status == 400
    assert [info is None for info in errors] == [True, True, False, True]
    others = [text for text in TEXTS if text != "war"]
    assert np.array_equal(np.stack([v for v in vectors if v is not None]), [vector_of(t) for t in others])


CUT = {"client": {"max_texts": 2}, "batch": pillarbox.Batch(4)}
"""Options of jobs whose batches are two requests."""


@pytest.mark.contract
@pytest.mark.parametrize("status", [429, 500, 503])
def test_only_the_rows_of_a_request_that_failed_are_asked_for_again(status: int) -> None:
    results, service = run(lambda request, texts: error(status) if request == 1 else None, **CUT)
    check_all(results)
    asked = [request["input"] for request in service.requests]
    assert asked[:2] == [TEXTS[:2], TEXTS[2:]]
    # Each row has a pause of its own.
    assert sorted(text for texts in asked[2:] for text in texts) == sorted(TEXTS[2:])


@pytest.mark.contract
def test_a_text_that_is_refused_in_one_of_several_requests_costs_its_own_row_and_nothing_twice() -> None:
    results, service = run(
        lambda request, texts: error(400, "invalid_request_error") if "war" in texts else None,
        errors="column",
        **CUT,
    )
    assert [info is None for _, info in results] == [True, True, False, True]
    asked = [request["input"] for request in service.requests]
    assert asked == [TEXTS[:2], TEXTS[2:], ["war"], ["peace"]]


@pytest.mark.contract
def test_without_retry_only_the_rows_of_a_request_that_failed_fail() -> None:
    results, service = run(
        lambda request, texts: error(500) if "war" in texts else None,
        [*TEXTS, "light"],
        errors="column",
        retry=None,
        client={"max_texts": 2},
        batch=pillarbox.Batch(5),
    )
    assert [info is None for _, info in results] == [True, True, False, False, True]
    assert service.sizes == [2, 2, 1]


@pytest.mark.contract
def test_a_connection_that_breaks_is_made_again() -> None:
    class Breaking(Refusing):
        async def answer(self, request: web.Request) -> web.Response:
            answer = await super().answer(request)
            if len(self.requests) == 1:
                assert request.transport is not None
                request.transport.abort()
            return answer

    service = Breaking()
    service.refuse = lambda request, texts: None

    async def job() -> list[Any]:
        async with serving(service):
            client = Embeddings(f"{service.url}/v1", "e5", http=Http(proxy="direct"))
            return [row async for row in pillarbox.async_map(TEXTS, client, batch=client.batch, retry=3)]

    check_all(asyncio.run(job()))
    assert service.sizes == [4, 4]


@pytest.mark.contract
def test_rows_are_views_of_one_block_of_an_answer() -> None:
    results, _ = run(lambda request, texts: None)
    blocks = {id(row.base) for row in results}
    assert len(blocks) == 1
    assert results[0].base is not None
