"""Structured output of `Chat`: forms that a service refuses, once, for a time, for all rows, or ignores."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from aiohttp import web

import pillarbox
from pillarbox import Errors, Outcome
from pillarbox.clients import Chat, Http
from pillarbox.clients.chat import AnswerInvalid
from tests.clients.chat_service import ChatService, Messages, error, serving

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")

DIRECT = Http(proxy="direct", read_timeout=600.0)
ROWS = [{"text": "all is well"}]
SCHEMA, OBJECT, PROMPT = "json_schema", "json_object", None
ANSWER = '{"words": 3, "first": "all"}'


class Counted(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: int
    first: str


class Bounded(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: Annotated[int, pydantic.Field(ge=0, le=5)] = 0
    first: str = pydantic.Field(default="", max_length=5, pattern="^[a-z]*$")


@dataclass
class Choosy(ChatService):
    """A service that decides by each request, with the number that it has, whether to refuse it.

    refuse: gives a status, or an answer, or None.
    """

    refuse: Callable[[dict[str, Any], int], Any] = lambda asked, number: None
    answer: Callable[[Messages], str] = lambda messages: ANSWER
    refused: int = field(default=0)

    async def respond(self, request: web.Request) -> web.Response:
        asked = await request.json()
        found = self.refuse(asked, len(self.requests))
        if asyncio.iscoroutine(found):
            # It comes in its turn, and is refused in another.
            self.requests.append(asked)
            found = await found
            self.requests.remove(asked)
        if found is None:
            return await super().respond(request)
        self.requests.append(asked)
        self.refused += 1
        return error(found, "no, sorry") if isinstance(found, int) else found


def kind_of(asked: dict[str, Any]) -> str | None:
    kind: str | None = (asked.get("response_format") or {}).get("type")
    return kind


def without(*kinds: str | None, status: Any = 400) -> Callable[[dict[str, Any], int], Any]:
    """Refuse these kinds of structured output."""
    return lambda asked, number: status if kind_of(asked) in kinds else None


def ask(*services: ChatService, rows: Any = ROWS * 3, client: Any = None, **options: Any) -> list[Any]:
    """The results of a job over `rows` at all of these services by turns; client: options of the client."""

    async def job() -> list[Any]:
        async with AsyncExitStack() as stack:
            urls = [f"{(await stack.enter_async_context(serving(each))).url}/v1" for each in services]
            given = {"prompt": "{text}", "http": DIRECT, "answer": Counted, **(client or {})}
            results = pillarbox.async_map(rows, Chat(urls, "small", **given), **options)
            return [row async for row in results]

    return asyncio.run(job())


def lost(outcomes: list[Outcome]) -> list[str]:
    return [outcome.error.message for outcome in outcomes if outcome.error is not None]


# -- in flight -----------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("backend", ["libcurl", "aiohttp"])
def test_a_row_in_flight_while_another_finds_out_the_form_is_asked_again_in_it(backend: Any) -> None:
    found_out = asyncio.Event()

    def refuse(asked: dict[str, Any], number: int) -> Any:
        async def after_another_has_an_answer() -> int:
            await found_out.wait()
            return 400

        if kind_of(asked) == SCHEMA:
            return 400 if number == 0 else after_another_has_an_answer()
        found_out.set()
        return None

    service = Choosy(refuse=refuse)
    client = {"http": Http(proxy="direct", backend=backend)}
    found = ask(service, rows=ROWS * 16, client=client, capacity=8)
    assert found == [Counted(words=3, first="all")] * 16
    # Those that were sent before were not for nothing but once.
    assert service.structures_asked.count(OBJECT) == 16


@pytest.mark.contract
def test_of_many_calls_that_begin_at_once_one_goes_through_the_forms() -> None:
    service = Choosy(refuse=without(SCHEMA, OBJECT))
    found = ask(service, rows=ROWS * 64, capacity=32)
    assert found == [Counted(words=3, first="all")] * 64
    asked = Counter(service.structures_asked)
    assert asked[PROMPT] == 64
    # All of the first were sent before it was known; the second to look is the other.
    assert asked[SCHEMA] <= 33
    assert asked[OBJECT] <= 4


@pytest.mark.contract
def test_a_call_that_goes_through_the_forms_and_fails_leaves_it_to_another() -> None:
    def refuse(asked: dict[str, Any], number: int) -> Any:
        is_bad = "bad" in asked["messages"][-1]["content"]
        return error(400, "too bad") if is_bad else 400 if kind_of(asked) == SCHEMA else None

    rows = [{"text": "bad"}, *ROWS * 9]
    outcomes = ask(Choosy(refuse=refuse), rows=rows, capacity=10, errors="column")
    (told,) = lost(outcomes)
    assert "too bad" in told


# -- one refusal ---------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("status", [400, 422, 500])
def test_one_refusal_that_has_passed_does_not_decide(status: int) -> None:
    service = Choosy(refuse=lambda asked, number: status if number == 0 else None)
    assert ask(service, rows=ROWS * 6, capacity=1) == [Counted(words=3, first="all")] * 6
    assert service.structures_asked == [SCHEMA, OBJECT, *[SCHEMA] * 5]


@pytest.mark.contract
def test_a_stricter_form_that_a_service_has_learned_is_found_after_a_while() -> None:
    service = Choosy(refuse=lambda asked, number: 400 if kind_of(asked) == SCHEMA and number < 100 else None)
    ask(service, rows=ROWS * 300, capacity=1)
    asked = service.structures_asked
    # The first two rows have looked, and the one after 256 more.
    assert asked[:5] == [SCHEMA, OBJECT, SCHEMA, OBJECT, OBJECT]
    assert asked[5:259] == [OBJECT] * 254
    assert asked[260:] == [SCHEMA] * 42


@pytest.mark.contract
@pytest.mark.parametrize(("words", "most_lost"), [("response_format: unknown", 0), ("no", 3)])
def test_a_form_that_a_service_has_forgotten_is_given_up(words: str, most_lost: int) -> None:
    def refuse(asked: dict[str, Any], number: int) -> Any:
        return error(400, words) if kind_of(asked) == SCHEMA and number >= 10 else None

    outcomes = ask(Choosy(refuse=refuse), rows=ROWS * 40, capacity=1, errors="column")
    assert len(lost(outcomes)) <= most_lost


@pytest.mark.contract
def test_a_row_that_is_refused_in_the_form_that_works_is_asked_once() -> None:
    def refuse(asked: dict[str, Any], number: int) -> Any:
        return 400 if "bad" in asked["messages"][-1]["content"] else None

    service = Choosy(refuse=refuse)
    rows = [*ROWS * 3, {"text": "bad"}, *ROWS, {"text": "bad"}, *ROWS]
    outcomes = ask(service, rows=rows, capacity=1, errors="column")
    assert len(lost(outcomes)) == 2
    assert service.structures_asked == [SCHEMA] * 7


# -- which refusals ------------------------------------------------------------------------------------------


IN_A_SUCCESS = {"error": {"code": 400, "message": "response_format: no such type"}}


@pytest.mark.contract
@pytest.mark.parametrize("status", [400, 403, 415, 422, 500, 501, "success"])
def test_a_form_may_be_refused_with_nearly_every_status(status: Any) -> None:
    def refuse(asked: dict[str, Any], number: int) -> Any:
        if kind_of(asked) == SCHEMA:
            return web.json_response(IN_A_SUCCESS) if status == "success" else status
        return None

    assert ask(Choosy(refuse=refuse), rows=ROWS * 5) == [Counted(words=3, first="all")] * 5


@pytest.mark.contract
@pytest.mark.parametrize("status", [401, 404, 413, 429, 503])
def test_a_refusal_that_is_not_of_the_form_is_asked_in_one_form(status: int) -> None:
    service = Choosy(refuse=lambda asked, number: status)
    outcomes = ask(service, rows=ROWS, errors="column")
    assert len(lost(outcomes)) == 1
    assert service.structures_asked == [SCHEMA]


@pytest.mark.contract
def test_an_overload_while_forms_are_tried_is_an_overload() -> None:
    def refuse(asked: dict[str, Any], number: int) -> Any:
        if number == 1:
            return error(429, "slow down", **{"Retry-After": "0"})
        return 400 if kind_of(asked) == SCHEMA else None

    assert ask(Choosy(refuse=refuse), rows=ROWS, retry=2) == [Counted(words=3, first="all")]


@pytest.mark.contract
@pytest.mark.parametrize("status", [400, 403, 500])
def test_rows_that_are_refused_alike_in_all_forms_are_not_asked_in_all_of_them(status: int) -> None:
    service = Choosy(refuse=lambda asked, number: error(status, f"unknown field 'foo', request {number}"))
    outcomes = ask(service, rows=ROWS * 60, capacity=8, errors=Errors("column", floor=None))
    assert len(lost(outcomes)) == 60
    assert len(service.requests) <= 1.6 * 60


def test_rows_that_are_refused_for_another_cause_do_not_keep_others_from_their_form() -> None:
    def refuse(asked: dict[str, Any], number: int) -> Any:
        if kind_of(asked) in (SCHEMA, OBJECT):
            return error(400, "response_format is not supported")
        return error(400, "too long") if "long" in asked["messages"][-1]["content"] else None

    rows = [*[{"text": "long"}] * 6, *ROWS * 6]
    outcomes = ask(Choosy(refuse=refuse), rows=rows, capacity=1, errors="column")
    assert [outcome.error is None for outcome in outcomes] == [False] * 6 + [True] * 6


# -- addresses -----------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_form_belongs_to_the_address_that_refused_the_others() -> None:
    strict, weak = Choosy(), Choosy(refuse=without(SCHEMA))
    found = ask(strict, weak, rows=ROWS * 12, capacity=1)
    assert found == [Counted(words=3, first="all")] * 12
    assert strict.structures_asked == [SCHEMA] * 6
    assert weak.structures_asked == [SCHEMA, OBJECT, SCHEMA, OBJECT, *[OBJECT] * 4]


# -- schemas -------------------------------------------------------------------------------------------------


def has_bounds(asked: dict[str, Any]) -> bool:
    return "maximum" in json.dumps((asked.get("response_format") or {}).get("json_schema"))


@pytest.mark.contract
def test_a_schema_without_bounds_comes_before_a_weaker_form_and_bounds_are_checked_here() -> None:
    texts = ['{"words": 9, "first": "all"}', ANSWER]
    service = Choosy(
        refuse=lambda asked, number: 400 if has_bounds(asked) else None,
        answer=lambda messages: texts.pop(0) if len(texts) > 1 else texts[0],
    )
    found = ask(service, client={"answer": Bounded}, capacity=1)
    assert found == [Bounded(words=3, first="all")] * 3
    assert set(service.structures_asked) == {SCHEMA}
    plain = service.requests[-1]["response_format"]["json_schema"]
    assert plain["strict"] is True
    assert plain["schema"]["properties"]["words"]["type"] == "integer"
    assert not {"minimum", "maximum", "maxLength", "pattern", "default"} & {
        word for each in plain["schema"]["properties"].values() for word in each
    }
    # What the service does not hold to stands in the prompt, and in the correction.
    assert '"maximum": 5' in service.requests[-1]["messages"][0]["content"]
    (corrected,) = (asked for asked in service.requests if len(asked["messages"]) == 3)
    assert "less than or equal to 5" in corrected["messages"][-1]["content"]
    assert not has_bounds(corrected)


@pytest.mark.contract
def test_all_forms_are_tried_from_the_strictest_to_the_prompt() -> None:
    service = Choosy(refuse=without(SCHEMA, OBJECT))
    ask(service, rows=ROWS, client={"answer": Bounded})
    assert service.structures_asked == [SCHEMA, SCHEMA, OBJECT, OBJECT, PROMPT]
    assert [has_bounds(asked) for asked in service.requests[:2]] == [True, False]


@pytest.mark.parametrize(
    ("structure", "asked"), [("json_schema", [SCHEMA] * 2), ("json_object", [OBJECT] * 2)]
)
def test_a_kind_that_is_given_has_a_plain_form_too(structure: str, asked: list[str]) -> None:
    service = Choosy(refuse=lambda asked, number: 400 if number == 0 else None)
    ask(service, rows=ROWS, client={"answer": Bounded, "structure": structure})
    assert service.structures_asked == asked


# -- ignored -------------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_one_reply_that_is_not_json_does_not_decide() -> None:
    texts = ["Three words.", ANSWER]
    service = Choosy(answer=lambda messages: texts.pop(0) if len(texts) > 1 else texts[0])
    ask(service, rows=ROWS * 6, capacity=1)
    assert service.structures_asked.count(OBJECT) <= 1
    assert service.structures_asked[-5:] == [SCHEMA] * 5


@pytest.mark.contract
def test_a_service_that_ignores_a_form_after_it_has_worked_by_chance_is_asked_in_another() -> None:
    replies = 0

    def answer(messages: Messages) -> str:
        nonlocal replies
        replies += 1
        return ANSWER if replies == 1 or "JSON" in messages[0]["content"] else "Three words."

    service = Choosy(answer=answer)
    outcomes = ask(service, rows=ROWS * 12, capacity=1, errors="column")
    assert len(lost(outcomes)) <= 1
    assert service.structures_asked[-6:] == [OBJECT] * 6


def test_an_answer_that_does_not_fit_is_the_error_of_its_row_in_every_form() -> None:
    service = Choosy(refuse=without(SCHEMA), answer=lambda messages: '{"words": "many"}')
    (outcome,) = ask(service, rows=ROWS, client={"repairs": 1}, errors="column")
    assert outcome.error.type == AnswerInvalid.__name__
