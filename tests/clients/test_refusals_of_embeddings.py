"""Refusals of an embedding service that all rows meet, or that come as an answer of success."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pillarbox
from pillarbox import Batch, Errors, Retry, current_call
from pillarbox.clients import Http
from tests.clients.unit.raw_embeddings import Reply, answer, check, embedded, serving

TEXTS = [f"text {number}" for number in range(640)]
QUICK = Retry(3, initial=0.001, maximum=0.002)
ALL_FAIL = Errors("column", floor=None)


@pytest.mark.contract
@pytest.mark.parametrize(
    "inner", [{"code": 402, "message": "no credit"}, {"code": "401", "message": "no such key"}]
)
def test_an_error_in_an_answer_of_success_has_the_status_in_it_and_its_words(inner: Any) -> None:
    with serving(lambda request: Reply(200, {"error": inner})) as service:
        (found,) = embedded(service.client(), TEXTS[:1], retry=QUICK)
        assert found.error.status == int(inner["code"])
        assert inner["message"] in found.error.message
        assert found.error.attempts == 1
        assert len(service.requests) == 1


@pytest.mark.contract
def test_an_overload_in_an_answer_of_success_is_waited_for() -> None:
    answers = [Reply(200, {"error": {"code": 429, "message": "too fast"}})]
    with serving(lambda request: answers.pop() if answers else answer(request)) as service:
        check(embedded(service.client(), TEXTS[:4], retry=QUICK), TEXTS[:4])
        assert service.sizes == [4, 4]


def each_index(change: Callable[[int], Any]) -> Callable[[dict[str, Any]], Reply]:
    def handle(request: dict[str, Any]) -> Reply:
        reply = answer(request)
        for place, item in enumerate(reply.body["data"]):
            item["index"] = change(place)
        return reply

    return handle


@pytest.mark.contract
@pytest.mark.parametrize(
    ("handle", "options"),
    [
        (answer, {"dimensions": 2}),
        (each_index(lambda place: 7), {}),
        (each_index(lambda place: place + 1), {}),
        (each_index(lambda place: "first"), {}),
        (lambda request: Reply(200, {"error": {"code": 402, "message": "no credit"}}), {}),
        (lambda request: Reply(200, {"data": []}), {}),
        (lambda request: Reply(404, {"error": {"message": "the model m does not exist"}}), {}),
        (lambda request: Reply(405, "no"), {}),
        (lambda request: Reply(501, "no"), {}),
        (lambda request: Reply(403, "no"), {}),
        (lambda request: Reply(400, {"error": {"message": "unknown field"}}), {}),
    ],
)
def test_a_fault_of_all_rows_is_found_out_and_costs_at_most_three_times_the_texts(
    handle: Callable[[dict[str, Any]], Reply], options: dict[str, Any]
) -> None:
    with serving(handle) as service:
        client = service.client(**options)
        outcomes = embedded(client, TEXTS, retry=QUICK, errors=ALL_FAIL, capacity=4)
        assert all(each.error is not None for each in outcomes)
        assert sum(service.sizes) <= 3 * len(TEXTS)
        assert len(service.requests) <= 60


@pytest.mark.contract
def test_answers_that_are_too_long_for_the_client_have_their_requests_divided() -> None:
    with serving(answer) as service:
        client = service.client(http=Http(proxy="direct", max_answer_bytes=1000))
        check(embedded(client, TEXTS, retry=QUICK, capacity=2), TEXTS)
        assert max(service.sizes[-20:]) < 30


@pytest.mark.contract
def test_a_function_may_say_how_many_rows_fill_its_calls() -> None:
    sizes: list[int] = []

    async def few(rows: list[str]) -> list[str]:
        sizes.append(len(rows))
        current_call().suggest_rows(5 / len(rows))
        return rows

    assert [each.error for each in embedded_by(few, TEXTS[:100], Batch(20))] == [None] * 100
    # It is heard by the time that the next call is made.
    assert sizes[2:] == [5] * len(sizes[2:])
    assert len(sizes) >= 14


def embedded_by(fn: Any, rows: list[str], batch: Any) -> list[Any]:
    return list(pillarbox.async_map(rows, fn, batch=batch, errors="column", capacity=1))
