"""`Chat` as a function of the operator: prompts, answers of a type, structured output, repairs, usage."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest
from aiohttp import web

import pillarbox
from pillarbox import Budget, CallFailed
from pillarbox.clients import Chat, Http, Price, Secret
from pillarbox.clients.answers import AnswerMismatch
from pillarbox.clients.chat import AnswerInvalid, ReplyCut, ReplyOfOtherKind, ReplyRefused
from pillarbox.clients.openai_api import AnswerError
from pillarbox.clients.transport import HttpStatusError
from tests.clients.chat_service import ChatService, Messages, error, serving

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")

ROWS = [{"text": "all is well"}, {"text": "no"}, {"text": "peace on earth"}]
DIRECT = Http(proxy="direct", read_timeout=600.0)


class Counted(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: int
    first: str
    sure: bool = True


@dataclass
class CountedToo:
    words: int
    first: str
    others: list[str] = field(default_factory=list)


SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "integer"}, "first": {"type": "string"}},
    "required": ["words", "first"],
    "additionalProperties": False,
}
COUNTS = [3, 1, 3]


def ask(service: ChatService, rows: Any = ROWS, *, options: Any = None, **more: Any) -> list[Any]:
    """The results of a job over `rows`."""
    return ask_and_count(service, rows, options=options, **more)[0]


def ask_and_count(
    service: ChatService, rows: Any = ROWS, *, options: Any = None, **more: Any
) -> tuple[list[Any], Any]:
    """The same, with what the operator has counted."""

    async def job() -> tuple[list[Any], Any]:
        async with serving(service):
            client = Chat(f"{service.url}/v1", "small", **{"prompt": "{text}", "http": DIRECT, **more})
            results = pillarbox.async_map(rows, client, **(options or {}))
            found = [row async for row in results]
            return found, results.statistics()

    return asyncio.run(job())


def failure_of(service: ChatService, *, options: Any = None, **more: Any) -> CallFailed:
    with pytest.raises(CallFailed) as found:
        ask(service, ROWS[:1], options=options, **more)
    return found.value


def replying(*texts: str) -> Callable[[Messages], str]:
    """An `answer` that gives these texts in turn, the last one for ever."""
    left = list(texts)
    return lambda messages: left.pop(0) if len(left) > 1 else left[0]


# -- prompts -------------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_prompt_has_the_fields_of_its_row_in_their_places() -> None:
    service = ChatService(answer=lambda messages: messages[-1]["content"])
    rows = [{"name": "Ida", "n": 3, "tags": ["a", "b"], "day": date(2024, 2, 1), "other": object()}]
    found = ask(service, rows, prompt="{name} has {n} {tags} on {day}, {{so}} {name}", system="Be brief.")
    assert found == ['Ida has 3 ["a", "b"] on 2024-02-01, {so} Ida']
    assert service.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "response_format" not in service.requests[0]


class Mood(str, Enum):
    """A text whose form is not the text."""

    GOOD = "good"


@pytest.mark.contract("A prompt has the text of a value of a class of texts, as of an enumeration.")
def test_the_text_of_an_enumeration_stands_in_a_prompt() -> None:
    service = ChatService(answer=lambda messages: messages[-1]["content"])
    assert ask(service, [{"a": Mood.GOOD}], prompt="{a} {{a}}") == ["good {a}"]


@pytest.mark.contract
def test_a_row_with_a_null_in_the_prompt_gives_none_and_is_not_sent() -> None:
    service = ChatService()
    assert ask(service, [{"text": None}], answer=Counted) == [None]
    assert service.requests == []


def test_a_row_is_a_mapping_an_object_or_the_values_in_the_order_of_the_prompt() -> None:
    @dataclass
    class Row:
        a: str
        b: int

    service = ChatService(answer=lambda messages: messages[-1]["content"])
    rows = [{"b": 1, "a": "x"}, Row("x", 1), ("x", 1)]
    assert ask(service, rows, prompt="{a}-{b}") == ["x-1"] * 3
    lacking = failure_of(service, prompt="{text} {author}")
    assert "the row has no 'author'; needed are: text, author" in str(lacking)


def test_a_record_in_a_prompt_is_json_with_its_names() -> None:
    Row = pytest.importorskip("pyspark.sql").Row
    service = ChatService(answer=lambda messages: messages[-1]["content"])
    found = ask(service, [Row(address=Row(street="Main", no=5), count=2)], prompt="{count} in {address}")
    assert found == ['2 in {"street": "Main", "no": 5}']


# -- answers -------------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("answer", [Counted, CountedToo, SCHEMA], ids=["pydantic", "dataclass", "schema"])
def test_an_answer_is_an_object_of_the_type_that_was_given(answer: Any) -> None:
    found = ask(ChatService(), answer=answer)
    if answer is SCHEMA:
        assert found[0] == {"words": 3, "first": "all"}
    else:
        assert [type(each) for each in found] == [answer] * 3
        assert [each.words for each in found] == COUNTS


@pytest.mark.contract
def test_a_schema_is_sent_as_services_that_guarantee_it_want_it() -> None:
    class Kind(Enum):
        GOOD = "good"
        BAD = "bad"

    class Part(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        name: str = "?"

    class Whole(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        kind: Kind
        size: Literal["S", "L"]
        part: Part | None = None
        parts: list[Part] = pydantic.Field(default_factory=list)

    service = ChatService(answer=lambda messages: '{"kind": "good", "size": "S"}')
    (found,) = ask(service, ROWS[:1], answer=Whole)
    assert found == Whole(kind=Kind.GOOD, size="S")
    asked = service.requests[0]["response_format"]["json_schema"]
    assert (asked["name"], asked["strict"]) == ("Whole", True)
    schema = asked["schema"]
    assert schema["required"] == ["kind", "size", "part", "parts"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["kind"]["enum"] == ["good", "bad"]
    part = schema["properties"]["parts"]["items"]
    assert (part["required"], part["additionalProperties"]) == (["name"], False)
    assert "$ref" not in json.dumps(schema)


@pytest.mark.parametrize(
    ("reply", "is_answer"),
    [
        ('```json\n{"words": 1, "first": "a"}\n```', True),
        ('Sure! {"words": 1, "first": "a"} Anything else?', True),
        ('<think>{"words"? no</think>\n{"words": 1, "first": "a"}', True),
        ('{"words": NaN, "first": "a"}', False),
        ('{"words": 1}', False),
        ("[1, 2]", False),
        ("", False),
    ],
)
def test_json_is_found_in_a_reply_that_has_words_around_it(reply: str, is_answer: bool) -> None:
    for answer in (Counted, CountedToo, SCHEMA):
        chat = Chat("http://host/v1", "m", prompt="{text}", answer=answer)
        if is_answer:
            chat.parse(reply)
        else:
            with pytest.raises(AnswerMismatch):
                chat.parse(reply)


def test_formats_of_dates_hold_in_a_json_schema() -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    chat = Chat("http://host/v1", "m", prompt="{text}", answer=schema)
    assert chat.parse('{"day": "2024-02-01"}') == {"day": "2024-02-01"}
    with pytest.raises(AnswerMismatch, match="day: 'soon' is not a 'date'"):
        chat.parse('{"day": "soon"}')


# -- structured output ---------------------------------------------------------------------------------------


@pytest.mark.contract
# The last is the one of llama-cpp-python.
@pytest.mark.parametrize("refusal", [400, 422, 500])
@pytest.mark.parametrize(
    ("structures", "asked"),
    [
        (("json_schema", "json_object"), ["json_schema"] * 3),
        # The second row looks whether the refusals hold.
        (("json_object",), [*["json_schema", "json_object"] * 2, "json_object"]),
        ((), [*["json_schema", "json_object", "json_object", None] * 2, None]),
    ],
    ids=["json_schema", "json_object", "prompt"],
)
def test_the_strictest_structured_output_that_a_service_has_is_found_out(
    structures: tuple[str, ...], asked: list[str | None], refusal: int
) -> None:
    service = ChatService(structures=structures, refusal=refusal)
    found = ask(service, answer=Counted, options={"capacity": 1})
    assert [each.words for each in found] == COUNTS
    assert service.structures_asked == asked
    # What the service does not guarantee is asked for in the prompt.
    in_prompt = "JSON schema" in service.requests[-1]["messages"][-1]["content"]
    assert in_prompt == ("json_schema" not in structures)


@pytest.mark.contract
def test_a_service_that_ignores_structured_output_is_asked_in_the_prompt() -> None:
    def knows_only_what_it_reads(messages: Messages) -> str:
        asks_for_json = any("JSON" in each["content"] for each in messages)
        return '{"words": 1, "first": "a"}' if asks_for_json else "One word."

    service = ChatService(ignores=True, structures=(), answer=knows_only_what_it_reads)
    found = ask(service, answer=Counted, options={"capacity": 1})
    assert [each.words for each in found] == [1, 1, 1]
    # The first two were asked twice, the others not.
    assert len(service.requests) == 5


def test_a_structure_that_is_given_is_the_only_one_that_is_asked_for() -> None:
    service = ChatService(structures=("json_schema",))
    ask(service, answer=Counted, structure="prompt")
    assert service.structures_asked == [None] * 3
    refused = failure_of(service, answer=Counted, structure="json_object")
    assert isinstance(refused.cause, HttpStatusError)
    assert len(service.requests) == 5


def test_a_request_that_is_refused_for_its_row_fails_with_the_first_error() -> None:
    service = ChatService(structures=())

    class TooLong(ChatService):
        async def respond(self, request: web.Request) -> web.Response:
            asked = await request.json()
            self.requests.append(asked)
            return error(400, f"too long, number {len(self.requests)}")

    service = TooLong()
    refused = failure_of(service, answer=Counted, options={"retry": 3})
    assert "too long, number 1" in str(refused)
    assert (len(service.requests), refused.attempts) == (4, 1)


# -- answers that do not fit ---------------------------------------------------------------------------------


@pytest.mark.contract
def test_an_answer_that_does_not_fit_is_asked_again_with_the_reply_and_the_error() -> None:
    service = ChatService(answer=replying('{"words": "many"}', '{"words": 3, "first": "all"}'))
    (found,), statistics = ask_and_count(service, ROWS[:1], answer=Counted)
    assert found == Counted(words=3, first="all")
    assert (len(service.requests), statistics.calls) == (2, 2)
    question, reply, correction = service.requests[1]["messages"]
    assert question == service.requests[0]["messages"][0]
    assert reply == {"role": "assistant", "content": '{"words": "many"}'}
    assert correction["role"] == "user"
    assert "words: Input should be a valid integer" in correction["content"]
    assert "first: Field required" in correction["content"]


@pytest.mark.contract
@pytest.mark.parametrize(("repairs", "retry", "requests"), [(0, None, 1), (2, None, 3), (1, 2, 3)])
def test_a_row_is_asked_again_for_such_an_answer_so_many_times_and_then_fails(
    repairs: int, retry: int | None, requests: int
) -> None:
    service = ChatService(answer=lambda messages: "{}")
    failed = failure_of(service, answer=Counted, repairs=repairs, options={"retry": retry})
    assert isinstance(failed.cause, AnswerInvalid if repairs else AnswerMismatch)
    assert "words: Field required" in str(failed)
    assert len(service.requests) == requests


@pytest.mark.contract
@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"finish_reason": "length"}, ReplyCut, "cut at the limit of tokens"),
        (
            {"finish_reason": "content_filter"},
            ReplyRefused,
            "does not answer (finish_reason='content_filter')",
        ),
        ({"message": {"content": None, "refusal": "I cannot."}}, ReplyRefused, "I cannot."),
        ({"message": {"content": None}, "finish_reason": "tool_calls"}, ReplyOfOtherKind, "call of a tool"),
    ],
)
def test_a_reply_that_is_cut_or_refused_is_an_error_that_says_so_and_is_not_asked_again(
    change: dict[str, Any], kind: type[Exception], says: str
) -> None:
    service = ChatService(change=lambda reply: {**reply, "choices": [{**reply["choices"][0], **change}]})
    failed = failure_of(service, answer=Counted, options={"retry": 3})
    assert type(failed.cause) is kind
    assert says in str(failed)
    assert len(service.requests) == 1


@pytest.mark.parametrize("body", [{}, {"choices": []}, [], {"choices": [{"message": "x"}]}])
def test_an_answer_that_is_not_a_chat_completion_is_an_error(body: Any) -> None:
    failed = failure_of(ChatService(change=lambda reply: body))
    assert isinstance(failed.cause, AnswerError)
    assert "is not a chat completion" in str(failed)


@pytest.mark.contract
def test_of_answers_of_which_a_fifth_is_spoiled_nearly_all_rows_are_valid_for_a_quarter_more_calls() -> None:
    service = ChatService(spoils=True, seed=25)
    rows = [{"text": f"row {number} of many"} for number in range(2_000)]
    options = {"retry": 5, "errors": "null", "capacity": 64}
    found = ask(service, rows, answer=Counted, options=options)
    valid = sum(each == Counted(words=4, first="row") for each in found)
    assert valid >= 0.999 * len(rows)
    assert len(service.requests) <= 1.25 * len(rows)


# -- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_calls_cost_what_the_table_of_prices_says_and_failed_attempts_too() -> None:
    def counts(reply: dict[str, Any]) -> dict[str, Any]:
        details = {"cached_tokens": 400_000}
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000, "prompt_tokens_details": details}
        return {**reply, "usage": usage}

    service = ChatService(answer=replying("no", '{"words": 1, "first": "a"}'), change=counts)
    prices = {"small": Price(input=2.0, output=8.0, cached_input=0.5), "large": Price(20.0, 80.0)}
    _, statistics = ask_and_count(service, ROWS[:1], answer=Counted, prices=prices)
    assert statistics.cost == pytest.approx(2 * (0.6 * 2.0 + 0.4 * 0.5 + 0.5 * 8.0))
    assert statistics.tokens == 3_000_000
    # A reply says which model it is from, where a proxy has taken another.
    service = ChatService(change=lambda reply: {**counts(reply), "model": "large"})
    _, statistics = ask_and_count(service, ROWS[:1], prices=prices)
    assert statistics.cost == pytest.approx(1.0 * 20.0 + 0.5 * 80.0)


@pytest.mark.contract
@pytest.mark.parametrize(
    "choice", [{}, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}]
)
def test_a_budget_of_cost_holds_without_a_function_of_usage(choice: dict[str, Any]) -> None:
    service = ChatService(change=lambda reply: {**reply, **choice, "usage": {"prompt_tokens": 1_000_000}})
    options = {"budget": Budget(max_cost=3.0), "errors": "column", "capacity": 1}
    found = ask(service, [{"text": "x"}] * 9, prices={"small": Price(1.0, 0.0)}, options=options)
    assert len(service.requests) <= 4
    assert found[-1].error.type == "NotCalled"


def test_a_service_that_counts_no_tokens_is_free() -> None:
    service = ChatService(change=lambda reply: {**reply, "usage": None})
    found, statistics = ask_and_count(service, prices={"small": Price(1.0, 1.0)})
    assert len(found) == 3
    assert statistics.cost == 0.0


# -- requests ------------------------------------------------------------------------------------------------


def test_more_of_the_body_is_sent_and_azure_has_its_address_and_header() -> None:
    service = ChatService(key=("api-key", "key-of-the-test"))
    more: dict[str, Any] = {"api": "azure", "api_version": "2024-10-21", "body": {"temperature": 0}}
    key = Secret.literal("key-of-the-test")

    async def job() -> list[Any]:
        async with serving(service):
            chat = Chat(service.url, "my model", prompt="{text}", key=key, http=DIRECT, **more)
            assert "key-of-the-test" not in repr(chat)
            return [row async for row in pillarbox.async_map(ROWS[:1], chat)]

    assert len(asyncio.run(job())) == 1
    assert service.paths == ["/openai/deployments/my%20model/chat/completions?api-version=2024-10-21"]
    assert service.requests[0]["temperature"] == 0


def test_a_client_that_is_called_by_hand_gives_the_text_and_its_usage() -> None:
    service = ChatService()

    async def job() -> Any:
        async with serving(service):
            chat = Chat(f"{service.url}/v1", "small", prompt="{text}", answer=Counted, http=DIRECT)
            chat = pickle.loads(pickle.dumps(chat))
            async with chat:
                result = await chat(ROWS[0])
            return result, chat.parse(result.value)

    result, answer = asyncio.run(job())
    assert answer == Counted(words=3, first="all")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (11, len(result.value))
    assert (result.usage.model, result.usage.operation) == ("small", "chat")


@pytest.mark.contract("A reply that is parsed twice is two answers.", convicts=["answer_given_out_twice"])
def test_a_reply_that_is_parsed_twice_is_two_answers() -> None:
    service = ChatService()

    async def job() -> list[Any]:
        async with serving(service):
            chat = Chat(f"{service.url}/v1", "small", prompt="{text}", answer=CountedToo, http=DIRECT)
            async with chat:
                text = (await chat(ROWS[0])).value
            return [chat.parse(text) for _ in range(3)]

    first, *others = asyncio.run(job())
    first.others.append("mine")
    assert [each.others for each in others] == [[], []]


REFERS_TO_NOTHING = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}


class Endless(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    next: Endless | None = None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": 1}, "base_url"),
        ({"base_url": "https://me:secret@host/v1"}, "must not hold a user, a password or a query"),
        ({"base_url": "https://host/v1/chat/completions"}, "leave the last part out"),
        ({"model": ""}, "model"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "{text"}, "a brace itself is written as"),
        ({"prompt": "{}"}, "{} must be the name of a column"),
        ({"prompt": "{row.__class__}"}, "{row.__class__} must be the name of a column"),
        ({"prompt": "{a!r} {b:.2f}"}, "{a} must be the name of a column, and nothing else"),
        ({"answer": int}, "answer=<class 'int'>: must be a Pydantic model, a dataclass"),
        ({"answer": {"type": "array"}}, "must be an object with fields"),
        ({"answer": {"type": "objekt"}}, "answer: must be a JSON schema: 'objekt' is not valid"),
        (
            {"answer": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}},
            "'#/$defs/A' names nothing",
        ),
        ({"answer": Endless}, "answer: Endless holds itself"),
        ({"system": ""}, "system"),
        ({"structure": "xml"}, "structure='xml': must be one of"),
        ({"repairs": -1}, "repairs=-1"),
        ({"prices": {"m": 1.0}}, "prices['m']=1.0: must be a pillarbox.clients.Price"),
        ({"prices": {"m": Price(1.0)}}, "has no price of answers; give output too"),
        ({"prices": {"n": Price(1.0, 1.0)}}, "prices: has no price of model='m', but of 'n'"),
        ({"key": "key-of-the-test"}, "key: a key itself would travel with the plan; use Secret.env"),
        ({"api": "tei"}, "api='tei': must be one of"),
        ({"api": "azure"}, "api_version"),
        ({"api_version": "1"}, "is for api='azure'"),
        ({"body": {"messages": []}}, "body: messages is set by the client"),
        ({"body": {"stream": True}}, "body: stream is set by the client"),
        ({"headers": {"Authorization": "Bearer key-of-the-test"}}, "headers['Authorization']: a key itself"),
        ({"http": 5}, "http=5: must be a pillarbox.clients.Http"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as found:
        Chat(**{"base_url": "https://host/v1", "model": "m", "prompt": "{text}", **options})
    assert message in str(found.value)
    assert "key-of-the-test" not in str(found.value)
    assert "secret" not in str(found.value).replace("Secret", "")


@pytest.mark.parametrize(("name", "value"), [("input", -1), ("output", "1"), ("cached_input", float("nan"))])
def test_a_wrong_price_is_named(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        Price(**{"input": 1.0, "output": 1.0, name: value})
