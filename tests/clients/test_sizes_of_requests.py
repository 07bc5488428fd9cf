"""Requests that are refused for their size are divided, and the size is kept; empty texts are not sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from pillarbox import Batch, Errors, Retry
from pillarbox.clients import Embeddings
from tests.clients.unit.raw_embeddings import Reply, answer, check, embedded, serving, vector_of

Handle = Callable[[dict[str, Any]], Reply]
QUICK = Retry(3, initial=0.001, maximum=0.002)
TOO_MANY = {"error": {"message": "batch size must be <= 10"}}


def most(texts: int, status: int = 400, body: Any = TOO_MANY) -> Handle:
    """A service that takes so many texts."""
    return lambda request: Reply(status, body) if len(request["input"]) > texts else answer(request)


def texts_of(number: int, characters: int = 0) -> list[str]:
    return [f"text {each} " + "x" * characters for each in range(number)]


@pytest.mark.contract
@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("limit", [1, 7, 10, 32])
def test_a_limit_of_texts_costs_at_most_a_tenth_more_requests(limit: int, status: int) -> None:
    texts = texts_of(600 * limit)
    with serving(most(limit, status)) as service:
        check(embedded(service.client(), texts, retry=QUICK, capacity=4), texts)
        assert len(service.requests) <= 1.1 * ceil(len(texts) / limit)


@pytest.mark.contract
def test_a_limit_is_kept_for_the_next_job_of_the_client_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = texts_of(640)
    with serving(most(10)) as service, caplog.at_level(logging.WARNING, "pillarbox"):
        client = service.client()
        check(embedded(client, texts, retry=QUICK), texts)
        before = len(service.requests)
        check(embedded(client, texts, retry=QUICK), texts)
        assert max(service.sizes[before:]) <= 10
        assert len(service.requests) - before <= 1.1 * len(texts) / 10
    told = [record.getMessage() for record in caplog.records if "for their size" in record.getMessage()]
    assert len(told) == 0
    told = [text for record in caplog.records if "max_texts" in (text := record.getMessage())]
    assert len(told) == 1
    assert "refuses requests of 11 texts and takes those of 10" in told[0]


@pytest.mark.contract
@pytest.mark.parametrize("backend", ["aiohttp", "libcurl"])
def test_a_reset_for_a_large_body_divides_it_and_its_size_is_kept(backend: Any) -> None:
    from pillarbox.clients import Http

    if backend == "libcurl":
        pytest.importorskip("pycurl")
    texts = texts_of(128, 10_000)
    with serving(answer, most_bytes=200_000) as service:
        client = service.client(http=Http(proxy="direct", backend=backend))
        check(embedded(client, texts, retry=QUICK, capacity=4), texts)
        resets = service.resets
        assert 1 <= resets <= 12
        check(embedded(client, texts, retry=QUICK, capacity=4), texts)
        # Some more, to know it better; not those of each first request.
        assert service.resets <= resets + 3


@pytest.mark.contract
def test_a_limit_of_bytes_fills_requests_of_texts_of_any_length() -> None:
    def handle(request: dict[str, Any]) -> Reply:
        too_large = sum(map(len, request["input"])) > 200_000
        return Reply(413, {"error": "Payload Too Large"}) if too_large else answer(request)

    texts = [f"text {each} " + "x" * (each * 7919 % 40_000) for each in range(1500)]
    needed = sum(map(len, texts)) / 200_000
    with serving(handle) as service:
        check(embedded(service.client(), texts, retry=QUICK, capacity=4), texts)
        assert len(service.requests) <= 1.5 * needed
        before = len(service.requests)
        # Short ones go on in whole requests.
        short = texts_of(640)
        check(embedded(service.client(), short, retry=QUICK), short)
        assert len(service.requests) - before <= 13


@pytest.mark.contract
def test_by_hand_a_body_that_is_too_large_is_divided() -> None:
    texts = texts_of(50, 1000)

    async def by_hand(client: Embeddings) -> Any:
        async with client:
            return await client(texts)

    handle = lambda request: Reply(413, "") if sum(map(len, request["input"])) > 9000 else answer(request)  # noqa: E731
    with serving(handle) as service:
        block = asyncio.run(by_hand(service.client()))
    assert block.tolist() == [vector_of(text) for text in texts]


@pytest.mark.contract
def test_one_text_that_is_too_large_alone_costs_its_row_only() -> None:
    texts = [*texts_of(20), "x" * 9000, *texts_of(20)]
    handle = lambda request: Reply(413, "") if sum(map(len, request["input"])) > 5000 else answer(request)  # noqa: E731
    with serving(handle) as service:
        outcomes = embedded(service.client(), texts, retry=QUICK)
    failed = outcomes.pop(20)
    assert failed.error is not None
    assert failed.error.status == 413
    check(outcomes, texts_of(20) * 2)


@pytest.mark.contract
def test_a_service_that_refuses_every_size_is_not_asked_for_each_half() -> None:
    texts = texts_of(640)
    with serving(lambda request: Reply(413, {"error": "no"})) as service:
        outcomes = embedded(
            service.client(), texts, retry=QUICK, capacity=4, errors=Errors("column", floor=None)
        )
        assert all(each.error is not None for each in outcomes)
        assert sum(service.sizes) <= 3 * len(texts)


@pytest.mark.contract
def test_a_limit_that_was_raised_is_found_out_after_a_while() -> None:
    limit = [10]
    with serving(lambda request: most(limit[0])(request)) as service:
        client = service.client()
        texts = texts_of(640)
        check(embedded(client, texts, retry=QUICK), texts)
        limit[0] = 1000
        texts = texts_of(6400)
        check(embedded(client, texts, retry=QUICK, capacity=1), texts)
        assert service.sizes[-5:-1] == [64] * 4


@pytest.mark.contract
def test_a_bad_text_is_not_taken_for_a_limit() -> None:
    texts = [*texts_of(100), "bad", *texts_of(1000)]
    refuses = lambda request: Reply(400, "no") if "bad" in request["input"] else answer(request)  # noqa: E731
    with serving(refuses) as service:
        outcomes = embedded(service.client(), texts, retry=QUICK, capacity=1)
        assert [each.error is not None for each in outcomes] == [text == "bad" for text in texts]
        assert service.sizes[-8:-1] == [64] * 7


@pytest.mark.contract
@pytest.mark.parametrize("size", [64, 3])
def test_empty_and_blank_texts_cost_no_request_and_are_the_errors_of_their_rows(size: int) -> None:
    empty = {"", " ", "\n\t", "\u3000"}
    texts = ["a", "", "b", " ", "\n\t", "c", "\u3000", "d", "", " "]

    def handle(request: dict[str, Any]) -> Reply:
        return Reply(400, "empty") if empty.intersection(request["input"]) else answer(request)

    with serving(handle) as service:
        outcomes = embedded(service.client(), texts, batch=Batch(size), retry=QUICK)
        assert len(service.requests) <= ceil(len(texts) / size)
    for text, outcome in zip(texts, outcomes, strict=True):
        if text in empty:
            assert (outcome.error.type, outcome.error.attempts) == ("EmptyText", 1)
            assert "is empty" in outcome.error.message
        else:
            check([outcome], [text])


@pytest.mark.contract
def test_a_batch_of_empty_texts_is_called_once() -> None:
    with serving(answer) as service:
        outcomes = embedded(service.client(), [""] * 50, retry=QUICK, errors=Errors("column", floor=None))
        assert {each.error.type for each in outcomes} == {"EmptyText"}
        assert service.requests == []


@pytest.mark.contract
@pytest.mark.parametrize("given", ["", " \n", ["", " "]])
def test_by_hand_an_empty_text_is_raised(given: Any) -> None:
    async def by_hand() -> None:
        async with Embeddings("http://127.0.0.1:9/v1", "m") as client:
            await client(given)

    with pytest.raises(ValueError, match="is empty"):
        asyncio.run(by_hand())
