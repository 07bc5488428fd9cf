"""The form in which vectors are asked for: found out by any refusal, and looked at again after a while."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pillarbox import Batch, Errors, Retry, async_map
from pillarbox.clients import Embeddings, Http
from pillarbox.clients.openai_api import AnswerError
from pillarbox.clients.transport import HttpStatusError
from tests.clients.raw_service import RawRequest, RawService, raw_answer
from tests.clients.unit.raw_embeddings import Reply, answer, check, embedded, serving, vector_of

TEXTS = [f"text {number}" for number in range(20)]
ALL_FAIL = Errors("column", floor=None)
WAIT_S = 30.0
QUICK = Retry(3, initial=0.001, maximum=0.002)


def in_base64(request: dict[str, Any]) -> bool:
    return request.get("encoding_format") == "base64"


@pytest.mark.contract
@pytest.mark.parametrize("body", [{"error": {"message": "encoding_format base64 is not supported"}}, "no"])
@pytest.mark.parametrize("status", [400, 403, 405, 409, 415, 418, 422, 424, 500, 501, 505])
def test_a_first_refusal_of_base64_with_any_status_has_lists_of_floats_asked_for_once(
    status: int, body: Any
) -> None:
    with serving(lambda request: Reply(status, body) if in_base64(request) else answer(request)) as service:
        check(embedded(service.client(max_texts=5), TEXTS, retry=QUICK, capacity=1), TEXTS)
    assert [in_base64(request) for request in service.requests] == [True] + [False] * 4


@pytest.mark.contract
@pytest.mark.parametrize(
    "inner", [{"code": 400, "message": "no base64"}, {"message": "no base64"}, "no base64"]
)
def test_a_refusal_of_base64_in_an_answer_of_success_is_one(inner: Any) -> None:
    refusal = Reply(200, {"error": inner})
    with serving(lambda request: refusal if in_base64(request) else answer(request)) as service:
        check(embedded(service.client(), TEXTS), TEXTS)
    assert service.sizes == [20, 20]


@pytest.mark.contract
@pytest.mark.parametrize("status", [401, 404, 429, 502, 503])
def test_a_refusal_that_cannot_be_of_the_form_asks_for_no_other_form(status: int) -> None:
    with serving(lambda request: Reply(status, {"error": "no"})) as service:
        client = service.client()

        async def once() -> None:
            async with client:
                await client(TEXTS)

        with pytest.raises(HttpStatusError):
            asyncio.run(once())
    assert [in_base64(request) for request in service.requests] == [True]


@pytest.mark.contract
def test_a_service_that_ignores_the_form_is_read_as_it_answers() -> None:
    with serving(lambda request: answer({"input": request["input"]})) as service:
        check(embedded(service.client(max_texts=5), TEXTS), TEXTS)
    assert service.sizes == [5] * 4


@pytest.mark.contract
def test_one_spurious_refusal_does_not_decide_for_the_life_of_the_process() -> None:
    refused: list[int] = []

    def handle(request: dict[str, Any]) -> Reply:
        if not refused:
            refused.append(1)
            return Reply(500, "a fault that passes")
        return answer(request)

    texts = [f"text {number}" for number in range(400)]
    with serving(handle) as service:
        check(embedded(service.client(max_texts=1), texts, capacity=1), texts)
    asked = [in_base64(request) for request in service.requests]
    assert asked[:3] == [True, False, False]
    # It was asked for again after a while, and is from then on.
    assert all(asked[300:])


@pytest.mark.contract
def test_a_form_that_stays_refused_is_looked_at_ever_more_rarely() -> None:
    texts = [f"text {number}" for number in range(1000)]
    with serving(lambda request: Reply(400, "no") if in_base64(request) else answer(request)) as service:
        check(embedded(service.client(max_texts=1), texts, capacity=1), texts)
    looks = [place for place, request in enumerate(service.requests) if in_base64(request)]
    gaps = [after - before for before, after in pairwise(looks)]
    assert len(looks) == 3
    assert gaps[1] > 1.9 * gaps[0] > 400


@pytest.mark.contract
def test_a_request_in_flight_is_judged_by_the_form_in_which_it_was_sent() -> None:
    """The request of "late" is refused when that of "first" has found out the form."""
    arrived, settled = threading.Event(), threading.Event()

    def handle(request: dict[str, Any]) -> Reply:
        if not in_base64(request):
            return answer(request)
        if request["input"] == ["late"]:
            arrived.set()
            assert settled.wait(WAIT_S)
        return Reply(500, "no")

    async def job(client: Embeddings) -> Any:
        async with client:
            late = asyncio.ensure_future(client(["late"]))
            assert await asyncio.to_thread(arrived.wait, WAIT_S)
            await client(["first"])
            settled.set()
            return (await late)[0]

    with serving(handle) as service:
        assert [*asyncio.run(job(service.client()))] == vector_of("late")
    assert [request["input"][0] for request in service.requests if not in_base64(request)] == [
        "first",
        "late",
    ]


@pytest.mark.contract
def test_a_form_that_has_worked_and_is_refused_from_then_on_is_given_up() -> None:
    seen: list[int] = []

    def handle(request: dict[str, Any]) -> Reply:
        seen.append(1)
        return Reply(400, "no base64") if len(seen) > 3 and in_base64(request) else answer(request)

    with serving(handle) as service:
        outcomes = embedded(service.client(max_texts=1), TEXTS, capacity=1)
    failed = [each.error is not None for each in outcomes]
    # What worked is believed for some refusals: they may be of the texts.
    assert 1 <= sum(failed) <= 5
    assert not any(failed[10:])


@pytest.mark.contract
def test_a_form_that_has_worked_and_is_refused_by_its_name_loses_no_text() -> None:
    seen: list[int] = []

    def handle(request: dict[str, Any]) -> Reply:
        seen.append(1)
        gone = len(seen) > 3 and in_base64(request)
        return Reply(400, {"error": "encoding_format: unknown"}) if gone else answer(request)

    with serving(handle) as service:
        check(embedded(service.client(max_texts=1), TEXTS, capacity=1), TEXTS)
    # It is given up after four refusals.
    assert len(service.requests) == len(TEXTS) + 4


@pytest.mark.contract
def test_a_service_that_ignores_float16_is_asked_for_it_twice_at_most() -> None:
    texts = [f"text {number}" for number in range(1000)]
    with serving(answer) as service:
        check(embedded(service.client(max_texts=1, encoding="float16"), texts, capacity=1), texts)
    assert sum("embed_dtype" in request for request in service.requests) == 2


@pytest.mark.contract
def test_a_service_that_refuses_every_request_alike_is_not_asked_twice_for_each() -> None:
    with serving(lambda request: Reply(422, {"error": "no field of this name: user"})) as service:
        outcomes = embedded(service.client(max_texts=1), [*TEXTS] * 5, errors=ALL_FAIL, capacity=1)
    assert all(each.error is not None for each in outcomes)
    assert len(service.requests) <= 1.25 * len(outcomes)


@pytest.mark.contract
def test_base64_of_float64_is_read_as_such() -> None:
    with serving(lambda request: answer(request, kind="d")) as service:
        check(embedded(service.client(max_texts=5), TEXTS), TEXTS)


@pytest.mark.contract(
    "Lists of floats are the vectors of the texts by their index, also where the answer has other lists.",
    convicts=["vectors_in_order_of_answer"],
)
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("order", ["in order", "backwards"])
def test_lists_of_floats_are_the_vectors_of_the_texts_by_their_index(order: str, first: int) -> None:
    def handle(request: dict[str, Any]) -> Reply:
        # Lists of other numbers in front, behind and between do no harm.
        sent = answer({"input": request["input"]}, usage={"prompt_tokens": 3, "of": [1, 2]}).body
        for each in sent["data"]:
            each["offsets"] = [0, 1]
        found = sent["data"] if order == "in order" else sent["data"][::-1]
        return Reply(200, {"model": "m", "seeds": [[7]] * first, "data": found, "usage": sent["usage"]})

    with serving(handle) as service:
        check(embedded(service.client(encoding="float"), TEXTS), TEXTS)


@pytest.mark.contract(
    "Lists of floats that are not vectors of one length fail in words.", convicts=["lists_of_other_lengths"]
)
@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        ([1.0, 2.0, 3.0], "not of one length"),
        ([1.0] * 5, "not of one length"),
        ([], "not of one length"),
        ([1.0, None, 3.0, 4.0], "not one of embeddings|not numbers"),
        ([[1.0] * 4], "not one of embeddings|not numbers"),
    ],
)
def test_lists_of_floats_that_are_not_vectors_of_one_length_fail_in_words(spoiled: Any, words: str) -> None:
    def handle(request: dict[str, Any]) -> Reply:
        sent = answer({"input": request["input"]})
        sent.body["data"][-1]["embedding"] = spoiled
        return sent

    async def once(client: Embeddings) -> None:
        async with client:
            await client(TEXTS[:3])

    with serving(handle) as service, pytest.raises(AnswerError, match=words):
        asyncio.run(once(service.client(encoding="float")))


def test_a_number_that_float32_does_not_hold_is_the_rows_fault_alone() -> None:
    def handle(request: dict[str, Any]) -> Reply:
        sent = answer({"input": request["input"]})
        for place, text in enumerate(request["input"]):
            if text == TEXTS[1]:
                sent.body["data"][place]["embedding"][0] = 1e39
        return sent

    with serving(handle) as service:
        first, second, third = embedded(service.client(encoding="float"), TEXTS[:3], errors=ALL_FAIL)
    check([first, third], [TEXTS[0], TEXTS[2]])
    assert "not finite" in second.error.message


@pytest.mark.contract(
    "A vector with a number that is not finite fails its row alone, whatever else is in flight.",
    convicts=["finite_by_another_answer", "infinite_numbers_pass"],
)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("backend", ["libcurl", "aiohttp"])
@pytest.mark.parametrize("rows", [2, 6], ids=["a request", "three requests"])
def test_a_number_that_is_not_finite_fails_its_row_among_calls_in_flight(
    rows: int, backend: Any, odd: float
) -> None:
    vector, spoilt = np.full(5, 0.5, np.float32), np.float32([0.5, 0.5, 0.5, odd, 0.5])
    texts = [f"text {number}" for number in range(96)]

    def answer(request: RawRequest) -> bytes:
        asked = json.loads(request.body)["input"]
        given = [spoilt if text.endswith("7") else vector for text in asked]
        data = [{"embedding": base64.b64encode(each.tobytes()).decode()} for each in given]
        body = json.dumps({"data": data, "usage": {"prompt_tokens": 9}}).encode()
        return raw_answer(body, "application/json")

    with RawService(answer) as service:
        http = Http(proxy="direct", backend=backend)
        options = {"encoding": "base64", "dimensions": 5, "max_texts": 2, "http": http}
        client = Embeddings(f"{service.url}/v1", "m", **options)
        found = list(async_map(texts, client, batch=Batch(rows), capacity=8, errors="column"))
    assert [each.error is not None for each in found] == [text.endswith("7") for text in texts]
    assert all(np.array_equal(each.result, vector) for each in found if each.error is None)
