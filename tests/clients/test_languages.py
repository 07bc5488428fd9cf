"""The languages of chats: what each of them must do, whatever its requests and replies look like.

Against a service that gives the replies of a table, and against the stand-in, which refuses what the real
services refuse.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import pillarbox
from pillarbox import CallFailed, async_map
from pillarbox.clients import Chat, Http, Language, Price, Secret
from pillarbox.clients.chat import ReplyCut, ReplyOfOtherKind, ReplyRefused
from pillarbox.ledger import Ledger
from pillarbox.testing import StandInService, serve
from pillarbox.wire import Kind, read_error
from tests.clients.raw_service import RawRequest, RawService, raw_answer
from tests.clients.spoken import SPOKEN, Counts, Spoken

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")

DIRECT = Http(proxy="direct", read_timeout=600.0)
ROW = {"text": "a lovely soup"}
MILLION = 1_000_000
MAX_LINES = 60
"""Lines of the description of a language, without empty ones."""
FOLDER = Path(__file__).resolve().parents[2] / "pyruntime" / "clients" / "languages"

each_language = pytest.mark.parametrize("language", SPOKEN)


class Review(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    mood: Literal["good", "bad"]
    stars: int | None = pydantic.Field(None, ge=0, le=5)
    topics: list[str] = pydantic.Field([], max_length=9)


def replying(*replies: Any) -> Callable[[RawRequest], bytes]:
    """An answer for each request in order, the last one for ever; with a status in front or not."""
    left = [each if isinstance(each, tuple) else (200, each) for each in replies]

    def answer(request: RawRequest) -> bytes:
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return raw_answer(json.dumps(body).encode(), "application/json", status=status)

    return answer


def chat(url: str, language: Any, **options: Any) -> Chat:
    base = {"prompt": "Good or bad: {text}", "http": DIRECT, "language": language}
    return Chat(f"{url}/v1", "small", **{**base, **options})


def asked(service: RawService, spoken: Spoken, place: int = -1) -> tuple[str | None, list[tuple[str, str]]]:
    return spoken.asked(json.loads(service.requests[place].body))


def failure(language: str, reply: Any, **options: Any) -> tuple[BaseException, RawService]:
    with RawService(replying(reply)) as service, pytest.raises(CallFailed) as found:
        list(async_map([ROW], chat(service.url, language), **options))
    return found.value.cause, service


# -- requests and replies ------------------------------------------------------------------------------------


@pytest.mark.contract(
    "In every language a row's prompt is sent after the system's text, with key and headers.",
    convicts=["thoughts_are_text"],
)
@each_language
def test_a_question_is_asked_with_its_key_and_answered(language: str) -> None:
    spoken = SPOKEN[language]
    for reason in spoken.good:
        with RawService(replying(spoken.reply("good", reason, None))) as service:
            client = chat(
                service.url, language, system="Be brief.", key=Secret.literal("k"), body=spoken.more
            )
            assert list(async_map([ROW], client)) == ["good"]
            (request,) = service.requests
        assert request.path == spoken.path
        assert asked(service, spoken) == ("Be brief.", [("user", "Good or bad: a lovely soup")])
        assert request.headers[spoken.key_header] == spoken.key_value
        assert spoken.needs.items() <= request.headers.items()
        body = json.loads(request.body)
        assert {name: body[name] for name in spoken.more} == spoken.more


@pytest.mark.contract(
    "In every language a reply that is cut, refused, or of another kind fails after one call.",
    convicts=["thoughts_alone_are_text"],
)
@each_language
def test_a_reply_that_is_not_an_answer_is_final_and_told_as_what_it_is(language: str) -> None:
    spoken = SPOKEN[language]
    cut, service = failure(language, spoken.reply("half a", spoken.cut, None), retry=3)
    assert isinstance(cut, ReplyCut) and spoken.cut in str(cut)
    assert len(service.requests) == 1
    refused, service = failure(language, spoken.reply("", spoken.refused, None), retry=3)
    assert isinstance(refused, ReplyRefused) and len(service.requests) == 1
    for says, reply in spoken.others.items():
        failed, service = failure(language, reply, retry=3)
        assert isinstance(failed, ReplyRefused | ReplyOfOtherKind) and says in str(failed), reply
        assert len(service.requests) == 1


LONE = {
    "openai": lambda text: {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]},
    "responses": lambda text: {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
    },
    "anthropic": lambda text: {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"},
    "gemini": lambda text: {
        "candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}],
    },
}
"""Replies of one text, and nothing beside it."""


@pytest.mark.contract(
    "In every language a reply of one text alone is that text, and one without a text is refused."
)
@each_language
def test_a_reply_of_one_text_is_that_text(language: str) -> None:
    with RawService(replying(LONE[language]("good é"))) as service:
        assert list(async_map([ROW], chat(service.url, language))) == ["good é"]
    failed, _ = failure(language, LONE[language](None))
    assert "text" in str(failed) or "is not a chat completion" in str(failed)


@each_language
def test_a_reason_that_is_not_known_to_be_good_is_a_failed_attempt(language: str) -> None:
    spoken = SPOKEN[language]
    with RawService(
        replying(spoken.reply("half a", "next_years_word", None), spoken.reply("good", spoken.good[0], None))
    ) as service:
        assert list(async_map([ROW], chat(service.url, language), retry=2)) == ["good"]


@each_language
@pytest.mark.parametrize(
    "reply", [{}, [], "x", {"output": 7}, {"content": 7}, {"choices": []}, {"candidates": []}]
)
def test_what_is_not_a_reply_is_told_as_such(language: str, reply: Any) -> None:
    failed, _ = failure(language, reply)
    assert "is not a chat completion" in str(failed) or "has no text" in str(failed)


@pytest.mark.contract(
    "In every language the errors of the service are read for what they are.",
    convicts=["proxy_key_is_of_the_row", "proxy_model_is_of_the_row"],
)
@pytest.mark.parametrize(
    ("language", "status", "kind", "body"),
    [(name, *error) for name, spoken in SPOKEN.items() for error in spoken.errors],
)
def test_errors_are_read_by_the_services_own_words(language: str, status: int, kind: str, body: Any) -> None:
    failed, _ = failure(language, (status, body))
    assert read_error(failed).kind is Kind[kind]
    if kind == "OVERLOADED" and "retryDelay" in json.dumps(body):
        assert read_error(failed).retry_after == 0.01


# -- answers of a type ---------------------------------------------------------------------------------------


@pytest.mark.contract("In every language an answer that does not fit is asked for again, with what is wrong.")
@each_language
def test_an_answer_that_does_not_fit_is_repaired(language: str) -> None:
    spoken = SPOKEN[language]
    bad, good = '{"mood": "odd"}', '{"mood": "good", "stars": 4, "topics": []}'
    replies = [spoken.reply(each, spoken.good[0], None) for each in (bad, good)]
    with RawService(replying(*replies)) as service:
        client = chat(service.url, language, answer=Review, repairs=1)
        (review,) = async_map([ROW], client)
    assert review.mood == "good" and review.stars == 4
    _, said = asked(service, spoken)
    assert [role for role, _ in said] == ["user", "assistant", "user"]
    assert said[1][1] == bad and "mood" in said[2][1]


STAND_IN_MODELS = {"openai": ["small"], "responses": ["small"]}
STAND_IN_MODELS |= {"anthropic": ["small", "claude-3-small"], "gemini": ["small", "gemini-1-small"]}


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandInService]:
    with serve() as service:
        yield service


@pytest.mark.contract("In every language answers of a type come from services with and without schemas.")
@pytest.mark.parametrize(
    ("language", "model"), [(name, model) for name, models in STAND_IN_MODELS.items() for model in models]
)
@pytest.mark.parametrize("structure", ["auto", "json_schema", "json_object", "tool", "prompt"])
def test_answers_of_a_type_pass_a_service_that_refuses_what_the_real_one_refuses(
    stand_in: StandInService, language: str, model: str, structure: Any
) -> None:
    options = {"prompt": "Judge: {text}", "answer": Review, "language": language, "structure": structure}

    def client() -> Chat:
        return Chat(stand_in.url, model, http=DIRECT, system="Be brief.", **options)

    if structure == ("json_object" if language == "anthropic" else "tool"):
        with pytest.raises(
            ValueError, match=f"structure='{structure}': language='{language}' has no such form"
        ):
            client()
        return
    (found,) = async_map([ROW], client(), errors="column")
    if structure == "json_schema" and model == "claude-3-small":
        assert found.error is not None
    else:
        assert found.result == Review(mood="good", stars=None, topics=["lovely", "soup"])


@pytest.mark.contract("The stand-in refuses what the real service of a language refuses.")
@pytest.mark.parametrize(
    ("language", "body", "says"),
    [
        ("responses", {"max_tokens": 5}, "Unknown parameter: 'max_tokens'"),
        ("responses", {"response_format": {"type": "json_object"}}, "Unknown parameter: 'response_format'"),
        ("anthropic", {"max_completion_tokens": 5}, "max_completion_tokens: Extra inputs are not permitted"),
        ("anthropic", {"max_tokens": None}, "max_tokens: Field required"),
        ("anthropic", {"n": 1}, "n: Extra inputs are not permitted"),
        ("gemini", {"temperature": 0}, "Unknown name"),
        ("gemini", {"generationConfig": {"max_tokens": 5}}, "Unknown name"),
    ],
)
def test_the_stand_in_refuses_fields_of_other_languages(
    stand_in: StandInService, language: str, body: Any, says: str
) -> None:
    client = Chat(stand_in.url, "small", prompt="{text}", language=language, body=body, http=DIRECT)
    (found,) = async_map([ROW], client, errors="column")
    assert found.error is not None and says in found.error.message


@pytest.mark.contract(
    "The stand-in takes Gemini's fields by both of their names, as the real service does.",
    convicts=["snake_case_refused"],
)
def test_the_stand_in_takes_geminis_fields_by_both_names(stand_in: StandInService) -> None:
    for config in ({"maxOutputTokens": 9, "topP": 1}, {"max_output_tokens": 9, "top_p": 1}):
        body = {"generationConfig": config}
        client = Chat(
            stand_in.url, "m", prompt="Good or bad: {text}", language="gemini", body=body, http=DIRECT
        )
        assert list(async_map([ROW], client)) == ["good"]


def test_the_stand_in_refuses_wrong_roles_and_missing_headers(stand_in: StandInService) -> None:
    class NoVersion(type(SPOKEN_CLASSES["anthropic"])):  # type: ignore[misc]
        headers = Language.headers

    class SystemRole(type(SPOKEN_CLASSES["anthropic"])):  # type: ignore[misc]
        def body(self, model: str, messages: Any, fields: Any, more: Any) -> dict[str, Any]:
            return {"model": model, "max_tokens": 5, "messages": messages}

    for language, says in (
        (NoVersion(), "anthropic-version: header is required"),
        (SystemRole(), "Unexpected role"),
    ):
        client = Chat(stand_in.url, "small", prompt="{text}", system="x", language=language, http=DIRECT)
        (found,) = async_map([ROW], client, errors="column")
        assert found.error is not None and says in found.error.message


# -- cost ----------------------------------------------------------------------------------------------------

PRICE = Price(input=1.0, output=10.0, cached_input=0.1, cache_write=1.25)


@pytest.mark.contract(
    "In every language tokens cost what they cost, cached ones and written ones too.",
    convicts=["cache_reads_not_counted", "cached_tokens_of_plain_counts", "written_tokens_of_plain_counts"],
)
@each_language
def test_usage_is_counted_with_what_was_cached(language: str) -> None:
    spoken = SPOKEN[language]
    counts = Counts(MILLION, 2 * MILLION, 4 * MILLION, MILLION)
    with RawService(replying(spoken.reply("good", spoken.good[0], counts))) as service:
        client = chat(service.url, language, prices={"small": PRICE})
        results = async_map([ROW], client)
        assert list(results) == ["good"]
        statistics = results.statistics()
    # Others than Anthropic do not say what they put into their caches.
    written = 4 * (1.25 if language == "anthropic" else 1.0)
    assert statistics.cost == pytest.approx(1.0 + 0.2 + written + 10.0)
    assert statistics.tokens == 8 * MILLION


@each_language
def test_a_service_that_does_not_count_ends_a_job_with_a_bound_on_the_cost(language: str) -> None:
    spoken = SPOKEN[language]
    with RawService(replying(spoken.reply("good", spoken.good[0], None))) as service:
        client = chat(service.url, language, prices={"small": PRICE})
        with pytest.raises(pillarbox.PillarboxError, match="does not count its tokens"):
            list(async_map([ROW] * 3, client, budget=pillarbox.Budget(max_cost=1.0), errors="column"))


@pytest.mark.parametrize("count", [-1, "7", 0.5, float(2**60), True])
def test_a_part_of_a_count_that_cannot_be_read_makes_the_sum_unknown(count: Any) -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": count, "output_tokens": 1}
    found: Any = SPOKEN_CLASSES["anthropic"].usage({"usage": usage})
    assert found["prompt_tokens"] is None and found["completion_tokens"] == 1


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.contract("In every language a wrong key ends the job, and no error or log line has the key.")
@each_language
def test_a_key_is_in_no_error_and_no_plan(language: str, caplog: pytest.LogCaptureFixture) -> None:
    key = "a-key-of-no-known-shape-5512"
    with serve(key="another") as service:
        client = Chat(
            service.url, "small", prompt="{text}", language=language, key=Secret.literal(key), http=DIRECT
        )
        with pytest.raises(CallFailed) as found:
            list(async_map([ROW], client))
    assert read_error(found.value.cause).kind is Kind.REFUSED_ALL
    assert key not in f"{found.value!s}{found.value.cause!r}{caplog.text}{client!r}"
    quoting = failure(language, (400, {"error": {"message": f"bad key {key}"}}))[0]
    assert key not in str(quoting)


@pytest.mark.parametrize("header", ["x-goog-api-key", "X-Api-Key"])
def test_a_key_among_the_headers_is_refused(header: str) -> None:
    with pytest.raises(ValueError, match="a key itself would travel with the plan"):
        Chat("https://one/v1", "small", prompt="{text}", headers={header: "k"})


@pytest.mark.contract(
    "The language of a chat is part of the key of a cache; what is kept for OpenAI's stays."
)
def test_the_language_is_part_of_the_key_but_for_openai(tmp_path: Path, stand_in: StandInService) -> None:
    configurations = {name: chat("https://one", name, answer=Review).configuration for name in SPOKEN}
    assert len({json.dumps(each, sort_keys=True) for each in configurations.values()}) == len(SPOKEN)
    assert "language" not in configurations["openai"]
    assert {name: each.get("language", "openai") for name, each in configurations.items()} == dict(
        zip(SPOKEN, SPOKEN, strict=True)
    )
    ledger = Ledger(str(tmp_path / "cache"), uid="ask", cache=True)
    for calls, language in enumerate(("openai", "anthropic", "openai", "anthropic")):
        before = stand_in.statistics().requests
        client = Chat(stand_in.url, "small", prompt="Of a key: {text}", language=language, http=DIRECT)
        assert list(async_map([ROW], client, ledger=ledger)) == ["a lovely soup"]
        assert stand_in.statistics().requests - before == (calls < 2)


def test_the_key_of_an_answer_in_openais_language_is_the_one_of_earlier_versions() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    client = Chat("https://one/v1", "small", prompt="Judge: {text}", answer=schema, system="Be brief.")
    described = {"name": "answer", "schema": schema, "strict": False}
    assert client.configuration == {
        "client": "Chat",
        "model": "small",
        "prompt": "Judge: {text}",
        "system": "Be brief.",
        "api": "openai",
        "api_version": None,
        "body": {},
        "headers": {},
        "asked": [[json.dumps({"type": "json_schema", "json_schema": described}), ""]],
    }
    prompted = Chat("https://one/v1", "small", prompt="{text}", answer=schema, structure="prompt")
    assert prompted.configuration["asked"][0][0] == "null"


# -- descriptions --------------------------------------------------------------------------------------------

SPOKEN_CLASSES = {name: chat("https://one", name)._made.language for name in SPOKEN}


@pytest.mark.contract("The description of a language has at most 60 lines.")
def test_a_language_is_a_description_of_sixty_lines() -> None:
    lines = {
        path.name: sum(bool(line.strip()) for line in path.read_text().splitlines())
        for path in FOLDER.glob("*.py")
    }
    assert {"anthropic.py", "gemini.py", "responses.py"} <= lines.keys()
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_every_language_is_in_the_suite() -> None:
    names = ", ".join(map(repr, SPOKEN))
    with pytest.raises(ValueError, match=f"must be one of {names}$"):
        chat("https://one", "latin")


class Gateway(Language):
    name = "gateway"
    path = "/ask/{model}"
    key_header = "X-Gateway"

    def body(self, model: str, messages: Any, fields: Any, more: Any) -> dict[str, Any]:
        return {"question": messages[-1]["content"], **more, **fields}

    def choice(self, reply: Any) -> Any:
        return {"message": {"content": reply["said"]}, "finish_reason": None}


@pytest.mark.contract("A language of the user's own is a class with what differs from OpenAI's.")
def test_a_language_of_the_users_own() -> None:
    with RawService(replying({"said": "good"})) as service:
        client = chat(service.url, Gateway(), key=Secret.literal("k"))
        client = pickle.loads(pickle.dumps(client))
        assert list(async_map([ROW], client)) == ["good"]
    (request,) = service.requests
    assert request.path == "/v1/ask/small" and request.headers["x-gateway"] == "k"
    assert json.loads(request.body) == {"question": "Good or bad: a lovely soup"}
    assert client.configuration["language"] == "gateway"


class Signed(Language):
    name = "signed"

    def headers_of(self, url: str, body: bytes) -> Any:
        return {**self.headers, "X-Signature": f"{url} {len(body)}"}


@pytest.mark.contract("A language may sign each request, of which it has the address and the body.")
def test_a_language_may_sign_each_request() -> None:
    spoken = SPOKEN["openai"]
    with RawService(replying((503, {}), spoken.reply("good", "stop", None))) as service:
        assert list(async_map([ROW], chat(service.url, Signed()), retry=2)) == ["good"]
        found = [(each.headers["x-signature"], len(each.body)) for each in service.requests]
        assert found == [(f"{service.url}/v1/chat/completions {size}", size) for _, size in found]
        assert len(found) == 2


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"language": "latin"}, ValueError, "language='latin': must be one of 'openai'"),
        ({"language": 7}, TypeError, "language=7: must be one of"),
        (
            {"language": "gemini", "api": "azure", "api_version": "1"},
            ValueError,
            "language='gemini': leave out",
        ),
        ({"language": "anthropic", "body": {"system": "x"}}, ValueError, "body: system is set by the client"),
        ({"language": "gemini", "body": {"contents": []}}, ValueError, "body: contents is set by the client"),
    ],
)
def test_bad_languages_are_refused_on_the_driver(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Chat("https://one/v1", "small", **{"prompt": "{text}", **options})


def test_an_address_with_the_end_of_the_language_is_refused() -> None:
    with pytest.raises(ValueError, match="leave the last part out"):
        Chat("https://api.anthropic.com/v1/messages", "small", prompt="{text}", language="anthropic")
