"""The key of a cache, option by option: it changes exactly where the bytes of a client's requests do.

Each option of each client is changed in turn. For the same rows the test has the bytes that reach the
service, and whether a job over the same folder asks again for what is kept.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest

from pillarbox import async_map
from pillarbox.clients import Chat, Embeddings, Http, HttpLookup, Images, Language, Price, Secret
from pillarbox.ledger import Ledger
from tests.clients.pictures import png
from tests.clients.raw_service import RawRequest, RawService, raw_answer
from tests.clients.test_long_texts import TOKENIZERS

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")

KEPT = "kept"
"""The text of a row that each job has; a request that holds it asks for it anew."""
LONG = "in the beginning God created the heaven and the earth, and the earth was without form, and void"
TEXTS = [KEPT, "another", LONG, "cut \ud83d", "the last"]

TRANSPORT_HEADERS = {
    "host": "the address",
    "authorization": "a key",
    "api-key": "a key",
    "content-length": "said by the body",
    "connection": "of the backend",
    "proxy-connection": "of the backend",
    "user-agent": "of the backend",
    "accept": "of the backend",
    "accept-encoding": "of the backend",
}
"""Headers that are not compared, with the reason."""


def answer(request: RawRequest) -> bytes:
    """The answer of a service that knows all three clients; the same for the same text."""
    asked = json.loads(request.body) if request.body else {}
    if "chat/completions" in request.path:
        content = json.dumps({"mood": "good", "score": 1, "why": None})
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 5}
        return raw_answer(json.dumps({"choices": [choice], "usage": usage}).encode())
    if ":generateContent" in request.path:
        part = {"text": json.dumps({"mood": "good", "score": 1, "why": None})}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        return raw_answer(json.dumps({"candidates": [candidate]}).encode())
    if request.path.endswith("/messages"):
        block = {"type": "text", "text": json.dumps({"mood": "good", "score": 1, "why": None})}
        return raw_answer(json.dumps({"content": [block], "stop_reason": "end_turn"}).encode())
    if "batchEmbed" in request.path:
        texts = [each["content"]["parts"][0]["text"] for each in asked["requests"]]
        return raw_answer(
            json.dumps({"embeddings": [{"values": [1.0, float(len(each))]} for each in texts]}).encode()
        )
    if "embed" in request.path:
        texts = asked.get("input", asked.get("inputs"))
        vectors = [[float(len(text)), 1.0, 2.0][: asked.get("dimensions", 3)] for text in texts]
        if "inputs" in asked:
            return raw_answer(json.dumps(vectors).encode())
        data = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        return raw_answer(json.dumps({"data": data, "usage": {"prompt_tokens": len(texts)}}).encode())
    return raw_answer(json.dumps({"v": urlsplit(request.path).path}).encode(), "application/json")


class Case(NamedTuple):
    """A change of one option. base: what both clients have. why: the reason of an exception from the rule."""

    option: str
    change: dict[str, Any]
    base: dict[str, Any] = {}  # noqa: RUF012
    why: str = ""


def mood(**fields: Any) -> Any:
    """A class of answers, always of the same name."""
    given = {"mood": (Literal["good", "bad"], ...), "score": (int, ...), **fields}
    return pydantic.create_model("Mood", **given)


def described(text: str) -> Any:
    return mood(score=(int, pydantic.Field(description=text)))


def checked() -> Any:
    """The class with a validator in Python, which no schema tells."""
    checks = {"even": pydantic.field_validator("score")(lambda score: score)}
    return pydantic.create_model(
        "Mood", mood=(Literal["good", "bad"], ...), score=(int, ...), __validators__=checks
    )


def written_as_text() -> Any:
    """The class with a field that is written, and so becomes a column, as another type."""
    return mood(score=(Annotated[int, pydantic.PlainSerializer(str, return_type=str)], ...))


@dataclasses.dataclass
class Mood:
    mood: Literal["good", "bad"]
    score: int


class Reversed(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    score: int
    mood: Literal["good", "bad"]


class Color(str, enum.Enum):
    RED = "red"


SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["mood", "score"],
}
ORDERED_ANEW = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
AZURE = {"api": "azure", "api_version": "2026-01-01"}
CUT = {"max_text_tokens": 12, "long_texts": "chunk", "tokenizer": "tiktoken"}
ADDRESS = "the address of a service is not what it is asked"
EXACT = "vectors are the same, however their texts are grouped and in whichever exact form they come"
VALUE = "the value that is made of the answer is another one"

EMBEDDINGS = [
    Case("base_url", {"base_url": "http://localhost:{port}/v1"}),
    Case("base_url", {"base_url": "http://127.0.0.1:{port}/v2"}, why=ADDRESS),
    Case("model", {"model": "large"}),
    Case("model", {"model": "large"}, AZURE),
    Case("model", {"model": "large"}, {"api": "tei"}, why="TEI is not told the model, and so only we are"),
    Case("key", {"key": Secret.literal("k1")}),
    Case("api", {"api": "tei"}),
    Case("api", AZURE),
    Case("api_version", {"api_version": "2026-02-01"}, AZURE),
    Case("dimensions", {"dimensions": 2}),
    Case("normalize", {"normalize": True}, why=VALUE),
    Case("encoding", {"encoding": "base64"}),
    Case("encoding", {"encoding": "float"}, why=EXACT),
    Case("encoding", {"encoding": "bytes"}, why=EXACT),
    Case("encoding", {"encoding": "float16"}),
    Case("max_texts", {"max_texts": 1}, why=EXACT),
    Case("max_tokens", {"max_tokens": 8}, why=EXACT),
    Case("max_text_tokens", {"max_text_tokens": 9}, CUT),
    Case("long_texts", {"long_texts": "truncate"}, CUT),
    Case("long_texts", {"long_texts": "error"}, CUT),
    Case("long_texts", {"long_texts": "truncate"}, {"api": "tei"}),
    Case("tokenizer", {"tokenizer": "tokenizers"}, CUT),
    Case("tokenizer", {"tokenizer": "tiktoken"}),
    Case("tokenizer", {"tokenizer": "tiktoken"}, {"api": "tei", "long_texts": "truncate"}),
    Case("api", {"api": "jina"}),
    Case("api", {"api": "gemini"}),
    Case("input_type", {"input_type": "query"}, {"api": "jina"}),
    Case("prefix", {"prefix": "query: "}),
    Case("prefix", {"prefix": "query: "}, {**CUT, "max_text_tokens": 18}),
    Case("body", {"body": {"input_type": "passage"}}),
    Case("body", {"body": {"a": 1, "b": 2}}, {"body": {"b": 2, "a": 1}}),
    Case("body", {"body": {"a": [{"b": 1, "c": 2}]}}, {"body": {"a": [{"c": 2, "b": 1}]}}),
    Case("body", {"body": {"a": {"b": 1, "c": 2}}}, {"body": {"a": [["b", 1], ["c", 2]]}}),
    Case("body", {"body": {"a": Color.RED}}, {"body": {"a": "red"}}),
    Case("body", {"body": {"a": (1, 2)}}, {"body": {"a": [1, 2]}}),
    Case("body", {"body": {"a": 1.0}}, {"body": {"a": 1}}),
    Case("headers", {"headers": {"X-Task": "passage"}}),
]
CHAT = [
    Case("base_url", {"base_url": "http://localhost:{port}/v1"}),
    Case("base_url", {"base_url": "http://127.0.0.1:{port}/v2"}, why=ADDRESS),
    Case("model", {"model": "large"}),
    Case("prompt", {"prompt": "Judge: {text}"}),
    Case("images", {"images": ["photo"]}),
    Case("images", {"images": ["photo"]}, {"images": ["photo", "scan"]}),
    Case("images", {"images": ["scan", "photo"]}, {"images": ["photo", "scan"]}),
    Case("images", {"images": Images("photo", max_bytes=2_000, tokens=7)}, {"images": "photo"}),
    Case("answer", {"answer": mood()}),
    Case("answer", {"answer": described("from 0 to 9")}, {"answer": described("from 1 to 5")}),
    Case("answer", {"answer": Reversed}, {"answer": mood()}),
    Case("answer", {"answer": mood(mood=(Literal["good", "bad", "mixed"], ...))}, {"answer": mood()}),
    Case("answer", {"answer": mood(mood=(Literal["bad", "good"], ...))}, {"answer": mood()}),
    Case("answer", {"answer": mood(why=(str | None, None))}, {"answer": mood()}),
    Case("answer", {"answer": mood(score=(int | None, ...))}, {"answer": mood()}),
    Case("answer", {"answer": mood(score=(float, ...))}, {"answer": mood()}),
    Case("answer", {"answer": pydantic.create_model("Verdict", __base__=mood())}, {"answer": mood()}),
    Case("answer", {"answer": checked()}, {"answer": mood()}),
    Case("answer", {"answer": written_as_text()}, {"answer": mood()}),
    Case("answer", {"answer": Mood}, {"answer": mood()}),
    Case("answer", {"answer": ORDERED_ANEW}, {"answer": SCHEMA}),
    Case("answer", {"answer": {**SCHEMA, "title": "Mood"}}, {"answer": SCHEMA}),
    Case("answer", {"answer": described("anew")}, {"answer": mood(), "structure": "json_object"}),
    Case("answer", {"answer": described("anew")}, {"answer": mood(), "structure": "prompt"}),
    Case("system", {"system": "Be brief."}),
    Case("structure", {"structure": "prompt"}),
    Case("structure", {"structure": "json_schema"}, {"answer": mood()}),
    Case("structure", {"structure": "json_object"}, {"answer": mood()}),
    Case("structure", {"structure": "prompt"}, {"answer": mood()}),
    Case("repairs", {"repairs": 5}, {"answer": mood()}),
    Case("prices", {"prices": {"small": Price(1.0, 1.0)}}),
    Case("key", {"key": Secret.literal("k1")}),
    Case("api", AZURE),
    Case("api_version", {"api_version": "2026-02-01"}, AZURE),
    Case("language", {"language": "responses"}),
    Case("language", {"language": "anthropic"}),
    Case("language", {"language": "gemini"}),
    Case("language", {"language": Language()}, {"language": "openai"}),
    Case("answer", {"answer": described("anew")}, {"answer": mood(), "language": "gemini"}),
    Case("structure", {"structure": "tool"}, {"answer": mood(), "language": "anthropic"}),
    Case("body", {"body": {"temperature": 0}}),
    Case("body", {"body": {"top_p": 1, "seed": 7}}, {"body": {"seed": 7, "top_p": 1}}),
    Case("headers", {"headers": {"X-Task": "mood"}}),
]


def of_row(row: dict[str, Any]) -> Any:
    return row["text"]


def in_upper_case(content: bytes) -> str:
    return content.decode().upper()


POST = {"method": "POST", "body": ["text", "lang"]}
LOOKUP = [
    Case("url", {"url": "http://127.0.0.1:{port}/other/{text}"}),
    Case("url", {"url": "http://localhost:{port}/{text}"}, why="the address of a lookup is what it asks"),
    Case("method", {"method": "POST"}),
    Case("body", {"body": ["text"]}, POST),
    Case("body", {"body": ["lang", "text"]}, POST),
    Case("body", {"body": of_row}, POST),
    Case("parse", {"parse": "text"}, why=VALUE),
    Case("parse", {"parse": "bytes"}, why=VALUE),
    Case("parse", {"parse": in_upper_case}, why=VALUE),
    Case("take", {"take": "v"}, why=VALUE),
    Case("statuses", {"statuses": {409: "result"}}, why=VALUE),
    Case("statuses", {"statuses": {404: "null"}}),
    Case("params", {"params": {"units": "si"}}),
    Case("params", {"params": {"a": "1", "b": "2"}}, {"params": {"b": "2", "a": "1"}}),
    Case("params", {"params": {"key": Secret.literal("k1")}}, {"params": {"key": Secret.literal("k1")}}),
    Case("key", {"key": Secret.literal("k1")}),
    Case("headers", {"headers": {"Accept-Language": "de"}}),
]
HTTP = [
    Case("connections", {"connections": 3}),
    Case("connect_timeout", {"connect_timeout": 9.0}),
    Case("read_timeout", {"read_timeout": 500.0}),
    Case("total_timeout", {"total_timeout": 500.0}),
    Case("proxy", {"proxy": "http://127.0.0.1:{port}"}),
    Case("verify", {"verify": False}),
    Case("ca_file", {"ca_file": __file__}),
    Case("http2", {"http2": True}),
    Case("backend", {"backend": "aiohttp"}),
    Case("surrogates", {"surrogates": "replace"}),
    Case("max_answer_bytes", {"max_answer_bytes": 100_000}),
]
DIRECT = Http(proxy="direct", backend="libcurl")


def embeddings(port: int, **options: Any) -> Embeddings:
    if "tokenizer" in options:
        options["tokenizer"] = TOKENIZERS[options["tokenizer"]]()
    use = {name: options.pop(name) for name in ("input_type", "prefix") if name in options}
    base = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "small", "http": DIRECT}
    return Embeddings(**{**base, **options}).with_input(**use)


def chat(port: int, **options: Any) -> Chat:
    base = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "small", "prompt": "{text}", "http": DIRECT}
    return Chat(**{**base, **options})


def lookup(port: int, **options: Any) -> HttpLookup:
    return HttpLookup(**{"url": f"http://127.0.0.1:{port}/{{text}}", "http": DIRECT, **options})


CLIENTS: dict[str, tuple[Callable[..., Any], list[Case]]] = {
    "Embeddings": (embeddings, EMBEDDINGS),
    "Chat": (chat, CHAT),
    "HttpLookup": (lookup, LOOKUP),
}


def with_port(options: dict[str, Any], port: int) -> dict[str, Any]:
    return {
        name: value.replace("{port}", str(port)) if isinstance(value, str) else value
        for name, value in options.items()
    }


def sent(service: RawService, client: Any, ledger: Ledger | None = None) -> list[RawRequest]:
    """The requests of a job, without what only says where and how they go."""
    service.requests.clear()
    if isinstance(client, Embeddings):
        rows: list[Any] = TEXTS
        options: dict[str, Any] = {"batch": client.batch}
    else:
        images = {"photo": png(1), "scan": png(2)}
        rows, options = [{"text": text, "lang": "en", **images} for text in TEXTS], {}
    list(async_map(rows, client, ledger=ledger, errors="column", **options))
    return sorted(
        request._replace(
            path=urlsplit(request.path)._replace(scheme="", netloc="").geturl(),
            headers={name: value for name, value in request.headers.items() if name not in TRANSPORT_HEADERS},
        )
        for request in service.requests
    )


def changes(service: RawService, ledger: Ledger, client: Any, changed: Any) -> tuple[bool, bool]:
    """Tell if the bytes of requests change from a client to another, and if the key of a cache does."""
    bytes_change = sent(service, client) != sent(service, changed)
    sent(service, client, ledger)
    assert not asks_for_kept(sent(service, client, ledger))
    return bytes_change, asks_for_kept(sent(service, changed, ledger))


def asks_for_kept(requests: list[RawRequest]) -> bool:
    return any(KEPT in request.path or KEPT.encode() in request.body for request in requests)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "cache"), uid="ask", cache=True)


OF_CLIENTS = [
    pytest.param(name, case, id=f"{name}-{case.option}-{place}")
    for name, (_, cases) in CLIENTS.items()
    for place, case in enumerate(cases)
]


@pytest.mark.contract
@pytest.mark.parametrize(("name", "case"), OF_CLIENTS)
def test_the_key_of_a_cache_changes_exactly_where_the_bytes_that_are_sent_do(
    ledger: Ledger, name: str, case: Case
) -> None:
    make, _ = CLIENTS[name]
    with RawService(answer) as service:
        base, change = with_port(case.base, service.port), with_port(case.change, service.port)
        found = changes(service, ledger, make(service.port, **base), make(service.port, **{**base, **change}))
    bytes_change, key_changes = found
    # An exception is one, and has its reason.
    assert (bytes_change != key_changes) is bool(case.why), case


@pytest.mark.contract
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("case", HTTP, ids=[case.option for case in HTTP])
def test_of_the_options_of_a_transport_those_are_in_the_key_that_change_what_is_sent(
    ledger: Ledger, name: str, case: Case
) -> None:
    make, _ = CLIENTS[name]
    with RawService(answer) as service:
        change = with_port(case.change, service.port)
        changed = dataclasses.replace(DIRECT, **change)
        found = changes(service, ledger, make(service.port), make(service.port, http=changed))
    assert found == ((True, True) if case.option == "surrogates" else (False, False))


def test_each_option_of_each_client_is_changed_in_turn() -> None:
    for kind, (_, cases) in zip((Embeddings, Chat, HttpLookup), CLIENTS.values(), strict=True):
        options = {each.name for each in dataclasses.fields(kind) if each.init}
        assert ({case.option for case in cases} | {"http"}) - {"input_type", "prefix"} == options
    assert {case.option for case in HTTP} == {each.name for each in dataclasses.fields(Http)}


def frame_rows() -> list[Any]:
    frame = pd.DataFrame({"name": ["a", "b"], "size": ["x", "y"]}, index=[7, 7])
    return [row for _, row in frame.iterrows()]


def records() -> list[Any]:
    return [*np.array([("a", "x"), ("b", "y")], dtype=[("name", "U1"), ("size", "U1")])]


ROWS = {
    "rows of a frame": frame_rows,
    "records of NumPy": records,
    "tuples": lambda: [("a", "x"), ("b", "y")],
    "dicts": lambda: [{"name": "a", "size": "x"}, {"name": "b", "size": "y"}],
}


@pytest.mark.contract
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_cache_knows_a_row_by_the_fields_that_a_client_reads_whatever_the_row_is(
    ledger: Ledger, rows: Callable[[], list[Any]]
) -> None:
    with RawService(answer) as service:
        client = HttpLookup(service.url + "/{name}/{size}", take="v", http=DIRECT)
        for _ in range(2):
            assert list(async_map(rows(), client, ledger=ledger)) == ["/a/x", "/b/y"]
        assert len(service.requests) == 2
        # The same fields in a row of another kind are the same question.
        assert list(async_map(ROWS["dicts"](), client, ledger=ledger)) == ["/a/x", "/b/y"]
        assert len(service.requests) == 2


def test_fields_are_known_by_the_values_that_are_sent(ledger: Ledger) -> None:
    day = np.datetime64("2026-01-05")
    rows = [{"count": each} for each in (0.1, np.float32(0.1), np.float64(0.1), day, day.item(), pd.NA, None)]
    with RawService(answer) as service:
        client = HttpLookup(service.url + "/{count}", take="v", http=DIRECT)
        found = list(async_map(rows, client, ledger=ledger))
        assert found == ["/0.1"] * 3 + ["/2026-01-05"] * 2 + [None] * 2
        assert len(service.requests) == 2
        # What 32 bits are as a double is another number.
        assert list(async_map([{"count": float(np.float32(0.1))}], client, ledger=ledger)) == [
            "/0.10000000149011612"
        ]


def test_a_row_that_lacks_a_field_fails_alone(ledger: Ledger) -> None:
    with RawService(answer) as service:
        client = HttpLookup(service.url + "/{name}", take="v", http=DIRECT)
        rows = [{"name": "a"}, {"size": "x"}, {"name": "b"}]
        found = list(async_map(rows, client, ledger=ledger, errors="column"))
    assert [each.result for each in found] == ["/a", None, "/b"]
    assert "the row has no 'name'" in found[1].error.message
