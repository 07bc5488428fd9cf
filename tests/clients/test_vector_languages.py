"""The languages of embeddings: what each must do, against a stand-in that refuses as the services do."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pillarbox import CallFailed, async_map
from pillarbox.clients import Embeddings, Http, Price, Secret, VectorLanguage
from pillarbox.ledger import Ledger
from pillarbox.testing import StandInService, serve
from pillarbox.wire import Kind, read_error
from tests.clients.raw_service import RawRequest, RawService, raw_answer
from tests.clients.test_long_texts import TOKENIZERS

DIRECT = Http(proxy="direct")
TEXTS = ["a pillar box", "is red", "and has a slot"]
ROOTS = {
    "openai": "/v1",
    "cohere": "/cohere/v2",
    "voyage": "/voyage/v1",
    "jina": "/jina/v1",
    "gemini": "/v1",
    "ollama": "",
}
"""The path of each base URL at the stand-in."""
USES: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere": ("CLASSIFICATION".lower(), {"query": "search_query", "document": "search_document"}),
    "voyage": ("query", {"query": "query", "document": "document"}),
    "jina": ("text-matching", {"query": "retrieval.query", "document": "retrieval.passage"}),
    "gemini": ("CLUSTERING", {"query": "RETRIEVAL_QUERY", "document": "RETRIEVAL_DOCUMENT"}),
}
"""A word of each service's own, and its words for the common ones."""

each_language = pytest.mark.parametrize("language", ROOTS)


@pytest.fixture
def service() -> Iterator[StandInService]:
    with serve(key="k") as found:
        yield found


def client_of(service: Any, language: str, **options: Any) -> Embeddings:
    base = service.url.removesuffix("/v1") + ROOTS[language]
    use = {name: options.pop(name) for name in ("input_type", "prefix") if name in options}
    options = {"api": language, "key": Secret.literal("k"), "http": DIRECT, **options}
    return Embeddings(base, "small", **options).with_input(**use)


def vectors(client: Embeddings, texts: Any = TEXTS, **options: Any) -> list[Any]:
    return list(async_map(texts, client, batch=client.batch, **options))


@pytest.mark.contract("In every language vectors come for the right texts, of the length that was asked for.")
@each_language
@pytest.mark.parametrize("backend", ["libcurl", "aiohttp"])
def test_vectors_are_those_of_their_texts(service: StandInService, language: str, backend: Any) -> None:
    http = Http(proxy="direct", backend=backend)
    found = vectors(client_of(service, language, dimensions=16, http=http))
    expected = vectors(Embeddings(service.url, "small", key=Secret.literal("k"), dimensions=16))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert [len(each) for each in vectors(client_of(service, language))] == [256] * 3


@pytest.mark.contract("In every language null, empty and bad texts are not sent, and fail or stay alone.")
@each_language
def test_odd_texts_are_not_sent(service: StandInService, language: str) -> None:
    rows = vectors(client_of(service, language), ["good", None, " ", "also good"], errors="column")
    assert [row.error is None and row.result is not None for row in rows] == [True, False, False, True]
    assert [None if row.error is None else row.error.type for row in rows] == [None, None, "EmptyText", None]
    assert service.statistics().refused == 0 and len(service.requests) == 1


@pytest.mark.contract("A request has as many texts as the service takes, in every language.")
@each_language
def test_requests_have_as_many_texts_as_the_service_takes(service: StandInService, language: str) -> None:
    client = client_of(service, language)
    assert len(vectors(client, [f"text {number}" for number in range(300)])) == 300
    assert service.statistics().answered == len(service.requests) == -(-300 // client.batch.size)


@pytest.mark.contract("The use of vectors is said in each service's own word.")
@pytest.mark.parametrize("language", USES)
def test_the_use_of_vectors_is_told_in_the_services_words(service: StandInService, language: str) -> None:
    own, common = USES[language]
    for said, sent in {**common, own: common.get(own, own)}.items():
        vectors(client_of(service, language, input_type=said))
        assert sent in json.dumps(service.requests[-1].body)


@pytest.mark.contract("A prefix stands in front of each text that is sent, and counts as tokens.")
@each_language
def test_a_prefix_stands_in_front_of_each_text(service: StandInService, language: str) -> None:
    client = client_of(service, language, prefix="query: ")
    vectors(client)
    sent = json.dumps(service.requests[-1].body)
    assert all(f"query: {text}" in sent for text in TEXTS)
    plain = client_of(service, language)
    assert client.tokens_of("soup") > plain.tokens_of("soup")


def test_pieces_of_a_long_text_have_the_prefix_too_and_fit(service: StandInService) -> None:
    tokenizer = TOKENIZERS["tiktoken"]()
    client = client_of(
        service, "openai", prefix="query: ", tokenizer=tokenizer, max_text_tokens=16, long_texts="chunk"
    )
    (vector,) = vectors(client, ["one two three four five " * 9])
    (request,) = service.requests
    texts = request.body["input"]
    assert vector.shape == (256,) and len(texts) > 1
    assert all(text.startswith("query: ") and len(tokenizer.encode(text)) <= 16 for text in texts)


@pytest.mark.parametrize("language", ["cohere", "voyage", "jina", "ollama"])
def test_a_text_that_is_too_long_is_refused_and_not_cut_in_silence(
    service: StandInService, language: str
) -> None:
    texts = ["short", "word " * 600]
    rows = vectors(client_of(service, language), texts, errors="column")
    assert [row.error is None for row in rows] == [True, False]
    assert len(vectors(client_of(service, language, long_texts="truncate"), texts)) == 2


@pytest.mark.parametrize(("language", "counts"), [(name, name != "gemini") for name in ROOTS])
def test_tokens_are_counted_where_the_service_does(
    service: StandInService, language: str, counts: bool
) -> None:
    client = client_of(service, language).with_prices({"small": Price(1_000_000.0)})
    results = async_map(TEXTS, client, batch=client.batch)
    list(results)
    assert (client.tokens > 0, results.statistics().cost > 0) == (counts, counts)


ODD_ANSWERS: dict[str, list[Any]] = {
    "cohere": [
        {"embeddings": {"float": [[1.0, 2.0]] * 5}},
        {"embeddings": {"int8": []}},
        {"embeddings": {"float": [[1.0], [1.0, 2.0], [1.0]]}},
    ],
    "gemini": [{"embeddings": [{"values": [1.0]}] * 5}, {"embeddings": [{}] * 3}, {"embeddings": None}],
    "ollama": [{"embeddings": [[1.0, 2.0]] * 5}, {"embedding": [1.0]}, {"embeddings": [["a"]] * 3}, []],
    "voyage": [{"data": [{"embedding": [1.0], "index": 0}] * 5}, {"data": None}],
    "jina": [{"data": [{"embedding": [1.0], "index": 7}] * 3}, {"data": [{}] * 3}],
    "openai": [{"data": []}],
}


@pytest.mark.contract(
    "In every language an answer without a vector for each text is an error, never a wrong vector."
)
@pytest.mark.parametrize(
    ("language", "answer"), [(name, each) for name, answers in ODD_ANSWERS.items() for each in answers]
)
def test_an_answer_without_a_vector_for_each_text_is_an_error(language: str, answer: Any) -> None:
    def answered(request: RawRequest) -> bytes:
        return raw_answer(json.dumps(answer).encode(), "application/json")

    with RawService(answered) as service:
        rows = vectors(client_of(service, language), errors="column")
    assert {row.error.type for row in rows} == {"AnswerError"}


ERRORS = [
    (
        "cohere",
        404,
        Kind.REFUSED_ALL,
        {"message": "model 'x' not found, make sure the correct model ID was used"},
    ),
    ("cohere", 429, Kind.OVERLOADED, {"message": "You are using a Trial key"}),
    ("cohere", 401, Kind.REFUSED_ALL, {"message": "invalid api token"}),
    ("voyage", 429, Kind.OVERLOADED, {"detail": "rate limit"}),
    ("jina", 402, Kind.OUT_OF_QUOTA, {"detail": "Insufficient account balance"}),
    ("jina", 422, Kind.REFUSED_ROW, {"detail": "Validation error"}),
    ("ollama", 404, Kind.REFUSED_ALL, {"error": 'model "x" not found, try pulling it first'}),
    (
        "gemini",
        404,
        Kind.REFUSED_ALL,
        {"error": {"code": 404, "message": "models/x is not found for v1beta"}},
    ),
]


@pytest.mark.parametrize(("language", "status", "kind", "body"), ERRORS)
def test_errors_are_read_by_the_services_own_words(language: str, status: int, kind: Kind, body: Any) -> None:
    def answered(request: RawRequest) -> bytes:
        return raw_answer(json.dumps(body).encode(), "application/json", status=status)

    with RawService(answered) as service, pytest.raises(CallFailed) as found:
        vectors(client_of(service, language))
    assert read_error(found.value.cause).kind is kind


@pytest.mark.contract("Fields that a service does not know are refused by the stand-in, as by the service.")
@pytest.mark.parametrize("language", [name for name in ROOTS if name not in ("openai", "ollama")])
def test_the_stand_in_refuses_unknown_fields(service: StandInService, language: str) -> None:
    rows = vectors(client_of(service, language, body={"user": "me"}), errors="column")
    assert all(row.error is not None and "user" in row.error.message for row in rows)


def test_the_key_of_a_cache_has_the_api_and_the_use(tmp_path: Path, service: StandInService) -> None:
    told = {name: client_of(service, name).configuration for name in ROOTS}
    assert [each["api"] for each in told.values()] == [*ROOTS]
    assert {"language", "input_type", "prefix"}.isdisjoint(told["openai"])
    assert client_of(service, "jina", input_type="query").configuration["input_type"] == "query"
    ledger = Ledger(str(tmp_path / "cache"), uid="embed", cache=True)
    for calls, language in enumerate(("openai", "ollama", "openai", "ollama")):
        before = service.statistics().requests
        vectors(client_of(service, language), ledger=ledger)
        assert service.statistics().requests - before == (calls < 2)


class Gateway(VectorLanguage):
    name = "gateway"
    path = "/vectors/{model}"
    texts_field = "lines"


@pytest.mark.contract(
    "A language of embeddings of the user's own is a class with what differs from OpenAI's."
)
def test_a_language_of_the_users_own() -> None:
    def answered(request: RawRequest) -> bytes:
        lines = json.loads(request.body)["lines"]
        data = [{"index": place, "embedding": [1.0, 2.0]} for place in range(len(lines))]
        return raw_answer(json.dumps({"data": data}).encode(), "application/json")

    with RawService(answered) as service:
        client = Embeddings(service.url, "small", api=Gateway(), http=DIRECT)
        assert len(vectors(pickle.loads(pickle.dumps(client)))) == 3
        assert service.requests[0].path == "/vectors/small"


@pytest.mark.contract(
    "Prices and the use of texts stay beside each other, in whichever order they are given."
)
def test_prices_and_use_are_kept_together(service: StandInService) -> None:
    prices = {"small": Price(1.0)}
    one = client_of(service, "jina").with_prices(prices).with_input("query", prefix="p: ")
    other = client_of(service, "jina").with_input("query", prefix="p: ").with_prices(prices)
    for client in (one, other, pickle.loads(pickle.dumps(one))):
        assert (client.prices, client.input_type, client.prefix) == (prices, "query", "p: ")
    assert one.with_input().prefix is None


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"api": "latin"}, ValueError, "api='latin': must be one of"),
        ({"api": 7}, TypeError, "api=7: must be one of"),
        (
            {"api": "ollama", "input_type": "query"},
            ValueError,
            "api='ollama' has no field for it; give prefix",
        ),
        ({"input_type": "query"}, ValueError, "api='openai' has no field for it"),
        ({"api": "gemini", "encoding": "base64"}, ValueError, "api='gemini' has no such form"),
        ({"api": "jina", "body": {"task": "x"}}, ValueError, "body: task is set by the client"),
        ({"prefix": ""}, ValueError, "prefix"),
    ],
)
def test_bad_options_are_refused_on_the_driver(options: Any, error: type[Exception], says: str) -> None:
    use = {name: options[name] for name in ("input_type", "prefix") if name in options}
    rest = {name: value for name, value in options.items() if name not in use}
    with pytest.raises(error, match=says):
        Embeddings("https://one", "small", **rest).with_input(**use)
