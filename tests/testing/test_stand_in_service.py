"""The stand-in service: real HTTP on loopback, values made of the text by rules, faults by choice."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Outcome, Retry, async_map
from pillarbox.testing import StandInService, serve
from tests.search import examples

# A proxy of the environment must not come between us and loopback.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Refused(Exception):
    """Raised for an answer with an error: its status, its headers, and the message and code in its body."""

    def __init__(self, error: urllib.error.HTTPError) -> None:
        described = json.load(error)["error"]
        super().__init__(error.code, described["message"])
        self.status, self.headers, self.code = error.code, error.headers, described["code"]


def get(url: str, body: Any = None, **headers: str) -> Any:
    content = None if body is None else json.dumps(body).encode()
    try:
        with opener.open(urllib.request.Request(url, content, headers), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(error) from None


def call(service: StandInService, path: str, body: Any = None, **headers: str) -> Any:
    return get(f"{service.url}{path}", body, **headers)


def status_of(service: StandInService, path: str, body: Any = None, **headers: str) -> int:
    try:
        call(service, path, body, **headers)
    except Refused as refused:
        return int(refused.status)
    return 200


def vectors(service: StandInService, *texts: str, **more: Any) -> list[list[float]]:
    found = call(service, "/embeddings", {"model": "m", "input": texts, **more})
    assert [each["index"] for each in found["data"]] == [*range(len(texts))]
    return [each["embedding"] for each in found["data"]]


def answer(service: StandInService, question: str, schema: dict[str, Any] | None = None) -> Any:
    described = {"name": "asked", "schema": schema, "strict": True}
    form = {} if schema is None else {"response_format": {"type": "json_schema", "json_schema": described}}
    messages = [{"role": "user", "content": question}]
    (choice,) = call(service, "/chat/completions", {"model": "m", "messages": messages, **form})["choices"]
    text = choice["message"]["content"]
    return text if schema is None else json.loads(text)


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def service() -> Any:
    with serve() as started:
        yield started


@pytest.mark.contract("The stand-in service gives near vectors for texts that share words, alike each time.")
def test_texts_that_share_words_have_near_vectors(service: StandInService) -> None:
    love, loving, plant, again = vectors(
        service, "love your enemies", "loving an enemy", "a time to plant", "love your enemies"
    )
    assert love == again
    assert len(love) == 256
    assert math.isclose(likeness(love, love), 1.0, rel_tol=1e-5)
    assert likeness(love, loving) > 0.2 > likeness(love, plant)
    with serve(dimensions=16) as other:
        assert len(vectors(other, "love")[0]) == 16
        assert vectors(other, "love your enemies", dimensions=256)[0] == love


def test_vectors_are_the_same_in_every_process() -> None:
    # By the hash of no process, and of no version.
    code = (
        "from pillarbox.testing.stand_in_values import embed; print([round(x, 6) for x in embed('ab cd', 4)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {"[-0.316228, 0.632456, -0.632456, -0.316228]"}


@pytest.mark.parametrize("texts", [["x", "", "y"], "", [], [1.5], None, ["x"] * 2049])
def test_input_that_is_no_text_is_refused(service: StandInService, texts: Any) -> None:
    assert status_of(service, "/embeddings", {"model": "m", "input": texts}) == 400


def test_a_text_without_words_has_a_vector_too(service: StandInService) -> None:
    for vector in vectors(service, " ", "…", "\ud800"):
        assert math.isclose(likeness(vector, vector), 1.0, rel_tol=1e-5)


REVIEW = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "mixed", "bad"]},
        "stars": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}]},
        "when": {"type": "string", "format": "date"},
        "city": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "dishes": {"type": "array", "items": {"$ref": "#/$defs/Dish"}},
    },
    "required": ["mood", "stars", "when", "city", "dishes"],
    "additionalProperties": False,
    "$defs": {
        "Dish": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "price": {"type": "number"}},
            "required": ["name", "price"],
        }
    },
}


@pytest.mark.contract(
    "The stand-in service answers a question with what the text says, in the schema asked for."
)
def test_an_answer_takes_what_the_question_says(service: StandInService) -> None:
    bad = answer(service, "Judge this: the soup was cold on 2025-11-03, city: York, 2 stars", REVIEW)
    assert bad == {
        "mood": "bad",
        "stars": 2,
        "when": "2025-11-03",
        "city": "York",
        "dishes": [{"name": "the soup was cold on 2025-11-03, city: York, 2 stars", "price": 2.0}],
    }
    good = answer(service, "Judge this: lovely; a table", REVIEW)
    assert (good["mood"], good["stars"], good["city"]) == ("good", None, None)
    assert [dish["name"] for dish in good["dishes"]] == ["lovely", "a table"]
    assert answer(service, "Good or bad, in one word: the soup was cold") == "bad"
    assert answer(service, "Red, green or blue: I like blue") == "blue"
    assert answer(service, "Summarise: It rained. We went home.") == "It rained."


DEFINITIONS = {"Named": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """JSON schemas as services are asked for them, and as Pydantic writes them."""
    whole = st.integers(-50, 50)
    numbers = st.tuples(st.sampled_from(["integer", "number"]), whole, whole).map(
        lambda drawn: {"type": drawn[0], "minimum": min(drawn[1:]), "maximum": max(drawn[1:])}
    )
    texts = st.tuples(st.integers(0, 5), st.integers(0, 20)).map(
        lambda drawn: {"type": "string", "minLength": drawn[0], "maxLength": drawn[0] + drawn[1]}
    )
    plain = st.one_of(
        st.sampled_from([{"type": each} for each in ("string", "integer", "number", "boolean", "null")]),
        st.sampled_from(
            [{"type": "string", "format": each} for each in ("date", "date-time", "time", "uuid")]
        ),
        st.sampled_from(
            [{"exclusiveMinimum": 3, "type": "integer"}, {"exclusiveMaximum": 0, "type": "number"}]
        ),
        st.sampled_from([{"multipleOf": 5, "type": "integer"}, {"type": ["string", "null"]}]),
        st.lists(st.text(min_size=1), min_size=1, unique=True).map(lambda values: {"enum": values}),
        st.sampled_from([{"const": "fixed"}, {"$ref": "#/$defs/Named"}]),
        numbers,
        texts,
    )
    if not depth:
        return plain
    inner = schemas(depth - 1)
    names = st.text("abc_", min_size=1, max_size=3)
    return st.one_of(
        plain,
        st.dictionaries(names, inner, min_size=1, max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": [*fields],
                "additionalProperties": False,
            }
        ),
        st.tuples(inner, st.integers(0, 3), st.integers(0, 3)).map(
            lambda drawn: {
                "type": "array",
                "items": drawn[0],
                "minItems": drawn[1],
                "maxItems": drawn[1] + drawn[2],
            }
        ),
        inner.map(lambda value: {"type": "object", "additionalProperties": value}),
        inner.map(lambda value: {"anyOf": [value, {"type": "null"}]}),
        inner.map(lambda value: {"allOf": [value]}),
    )


@pytest.mark.contract("The stand-in service's answers satisfy the JSON schema that a request asks for.")
@settings(max_examples=examples(300), deadline=None)
@given(schema=schemas(), question=st.text(max_size=60))
def test_answers_satisfy_the_schema(service: StandInService, schema: dict[str, Any], question: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")
    asked = {"type": "object", "properties": {"answer": schema}, "required": ["answer"], "$defs": DEFINITIONS}
    found = answer(service, question, asked)
    jsonschema.validate(found, asked, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "pattern": "^[0-9]{9}$"}, "pattern"),
        ({"$ref": "#/$defs/Missing"}, "#/$defs/Missing"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "minimum"),
    ],
)
def test_a_schema_that_it_cannot_satisfy_is_refused(
    service: StandInService, schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=re.escape(said)) as refused:
        answer(service, "no digits here", {"type": "object", "properties": {"x": schema}})
    assert refused.value.status == 400


def test_a_text_of_the_question_that_matches_a_pattern_is_the_answer(service: StandInService) -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}}}
    assert answer(service, "Find the code: order AB12 came", schema) == {"code": "AB12"}


def test_a_reply_longer_than_its_limit_is_cut_and_says_so(service: StandInService) -> None:
    messages = [{"role": "user", "content": "Repeat: one two three four"}]
    found = call(service, "/chat/completions", {"model": "m", "messages": messages, "max_tokens": 2})
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["choices"][0]["message"]["content"] == "one two"
    assert found["usage"] == {"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8}


@pytest.mark.contract("The clients of Pillarbox and OpenAI's own take the stand-in service for a real one.")
def test_clients_take_it_for_a_service(service: StandInService) -> None:
    pytest.importorskip("aiohttp", reason="the package aiohttp is not installed")
    numpy = pytest.importorskip("numpy", reason="the package numpy is not installed")
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    httpx = pytest.importorskip("httpx", reason="the package httpx is not installed")
    from pillarbox.clients import Chat, Embeddings, Http, HttpLookup

    direct = Http(proxy="direct")
    expected = vectors(service, "a pillar box", "is red")
    ours = Embeddings(service.url, "m", http=direct)
    found = [*async_map(["a pillar box", "is red"], ours, batch=ours.batch)]
    numpy.testing.assert_allclose(found, expected, rtol=1e-6)
    with openai.OpenAI(
        base_url=service.url, api_key="k", http_client=httpx.Client(trust_env=False)
    ) as theirs:
        data = theirs.embeddings.create(model="m", input=["a pillar box", "is red"]).data
        numpy.testing.assert_allclose([each.embedding for each in data], expected, rtol=1e-6)
        reply = theirs.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Say: hello"}]
        )
        assert reply.choices[0].message.content == "hello"
    schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    for structure in ("auto", "json_schema", "json_object", "prompt"):
        chat = Chat(
            service.url, "m", prompt="Judge this: {text}", answer=schema, structure=structure, http=direct
        )
        rows = [{"text": "the soup was cold"}, {"text": "lovely"}]
        assert [*async_map(rows, chat)] == [{"mood": "bad"}, {"mood": "good"}]
    planes = [{"tailnum": "N14228"}, {"tailnum": "?"}]
    plane = HttpLookup(service.url + "/planes/{tailnum}", take="seats", http=direct)
    owner = HttpLookup(service.url + "/planes/{tailnum}/owner", parse="text", http=direct)
    several = HttpLookup(service.url + "/planes", method="POST", body=["tailnum"], http=direct)
    assert [*async_map(planes, plane)] == [149, None]
    assert [*async_map(planes[:1], owner)] == ["Zoë, Øre"]
    assert [found["seats"] for found in async_map(planes[:1], several)] == [149]


def test_it_counts_what_was_paid_for_twice() -> None:
    with serve() as service:
        vectors(service, "a", "b")
        vectors(service, "b c", "b")
        assert status_of(service, "/nothing") == 404
        found = service.statistics()
        assert (found.requests, found.answered, found.inputs, found.repeated_inputs) == (3, 2, 4, 1)
        assert found.tokens == 5
        assert call(service, "/statistics") == vars(found)
        assert [each.body["input"] for each in service.requests if each.body] == [["a", "b"], ["b c", "b"]]


def test_a_key_is_asked_for() -> None:
    with serve(key="sesame") as service:
        body = {"model": "m", "input": "x"}
        assert status_of(service, "/embeddings", body) == 401
        assert status_of(service, "/embeddings", body, Authorization="Bearer sesam") == 401
        assert status_of(service, "/embeddings", body, Authorization="Bearer sesame") == 200


@pytest.mark.contract(
    "The faults of the stand-in service are alike each time, and a request sent again may pass."
)
def test_faults_are_alike_each_time_and_pass() -> None:
    def blocking(number: int) -> int:
        return len(vectors(service, f"text {number}"))

    failed = []
    for capacity in (1, 16):
        with serve(status_500=0.2, cut=0.1) as service:
            outcomes: list[Outcome] = [*async_map(range(200), blocking, errors="column", capacity=capacity)]
            failed.append([number for number, each in enumerate(outcomes) if each.error is not None])
            assert service.statistics().refused == len(failed[-1])
    assert failed[0] == failed[1]
    assert 35 <= len(failed[0]) <= 85
    with serve(status_500=0.2, cut=0.1) as service:
        retry = Retry(attempts=20, initial=0.001, maximum=0.001)
        assert [*async_map(range(200), blocking, retry=retry, capacity=16)] == [1] * 200
    with serve(status_500=0.2, cut=0.1, seed=1) as service:
        other = [*async_map(range(200), blocking, errors="column", capacity=16)]
        assert [number for number, each in enumerate(other) if each.error is not None] != failed[0]


def test_requests_beyond_the_rate_are_refused_with_a_time() -> None:
    with serve(rate_429=0.5) as service:
        assert status_of(service, "/models") == 200
        with pytest.raises(Refused) as refused:
            call(service, "/models")
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        assert refused.value.headers["Retry-After"] == "2"
        assert service.statistics().refused == 1


def test_a_request_that_hangs_ends_when_the_service_does() -> None:
    with serve(hang=1.0) as service:
        ended: list[BaseException] = []

        def ask() -> None:
            try:
                call(service, "/models")
            except OSError as error:
                ended.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        while not service.statistics().refused:
            pass
        assert asking.is_alive()
    asking.join()
    assert len(ended) == 1


def test_each_answer_takes_as_long_as_it_says() -> None:
    with serve(slow=3600.0) as service:
        asking = threading.Thread(target=lambda: status_of(service, "/models"))
        asking.start()
        while not service.statistics().requests:
            pass
        assert asking.is_alive()
        assert service.statistics().answered == 0
    asking.join()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"status_500": 1.5}, "status_500"),
        ({"status_500": 0.6, "cut": 0.6}, "together at most 1"),
        ({"hang": -0.1}, "hang=-0.1"),
        ({"rate_429": 0}, "rate_429=0"),
        ({"slow": -1}, "slow=-1"),
        ({"dimensions": 0}, "dimensions=0"),
        ({"port": 70_000}, "port=70000"),
        ({"key": ""}, "key=''"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("'", ".")):
        serve(**arguments)


def test_unknown_paths_and_bodies_are_answered_with_what_is_known(service: StandInService) -> None:
    assert status_of(service, "/nothing") == 404
    assert status_of(service, "/embeddings") == 404
    assert status_of(service, "/embeddings", [1]) == 400
    assert status_of(service, "/chat/completions", {"messages": []}) == 400
    assert status_of(service, "/chat/completions", {"messages": [{}], "stream": True}) == 400


def test_a_port_that_is_taken_is_an_error(service: StandInService) -> None:
    with pytest.raises(OSError, match="in use"):
        serve(port=int(service.url.removesuffix("/v1").rpartition(":")[2]))


def test_it_ends_with_its_block_and_says_so() -> None:
    with serve() as service:
        vectors(service, "x")
    service.close()
    assert repr(service).endswith("closed>")
    with pytest.raises(urllib.error.URLError):
        vectors(service, "x")


@pytest.mark.contract(
    "`python -m pillarbox.testing.openai --port 0` prints its base URL, and serves until Ctrl-C."
)
def test_the_command_prints_its_address_and_serves_until_it_is_ended() -> None:
    command = [sys.executable, "-W", "error", "-m", "pillarbox.testing.openai", "--port", "0"]
    with subprocess.Popen(
        [*command, "--status-500", "1.0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with pytest.raises(Refused, match="500"):
            get(f"{url}/models")
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate()
    assert (process.returncode, said, complained) == (0, "", "")


def test_a_script_that_never_closes_it_ends_all_the_same() -> None:
    code = "from pillarbox.testing import serve; service = serve(); print(service.url)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("http://127.0.0.1:")


def test_the_command_names_a_bad_argument() -> None:
    command = [sys.executable, "-m", "pillarbox.testing.openai", "--port", "0", "--cut", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "cut" in done.stderr
    assert len(done.stderr.splitlines()) == 1
