"""`Embeddings` against a real model behind HTTP, with OpenAI's own client as the oracle."""

from __future__ import annotations

import asyncio
import base64
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import openai
import pyarrow as pa
import pytest

import pillarbox
from pillarbox.clients import Embeddings, Http, Secret
from pillarbox.clients.transport import HttpStatusError
from tests.clients.embedding_service import DIMENSIONS, Service, serving, tokens_of, vector_of

TEXTS = ["love your enemies", "the grass withers", "a time to plant", "ärger & 愛 🙂", 'a "quoted"\nline']
DIRECT = Http(proxy="direct")


def client_of(service: Service, **options: Any) -> Embeddings:
    path = "" if options.get("api", "openai") != "openai" else "/v1"
    return Embeddings(service.url + path, options.pop("model", "e5"), http=DIRECT, **options)


async def embedded(service: Service, texts: Any, **options: Any) -> Any:
    """The result for `texts` of a client of `service`, which is served meanwhile."""
    async with serving(service), client_of(service, **options) as client:
        return await client(texts)


def expected(texts: list[str] = TEXTS) -> Any:
    return np.stack([vector_of(text) for text in texts])


@pytest.mark.contract
def test_vectors_are_those_that_openais_own_client_gets() -> None:
    async def both() -> tuple[Any, Any]:
        async with serving(Service(key=("Authorization", "Bearer key-of-the-test"))) as service:
            client = openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="key-of-the-test")
            async with client:
                answer = await client.embeddings.create(model="e5", input=TEXTS)
            async with client_of(service, key=Secret.literal("key-of-the-test")) as ours:
                return await ours(TEXTS), [item.embedding for item in answer.data]

    block, oracle = asyncio.run(both())
    assert (block.dtype, block.shape) == (np.float32, (len(TEXTS), DIMENSIONS))
    assert np.array_equal(block, np.array(oracle, np.float32))
    assert np.array_equal(block, expected())


@pytest.mark.contract
@pytest.mark.parametrize(
    "service",
    [
        Service(),
        Service(encodings=("float",)),
        Service(encodings=("float",), ignores=True),
        Service(float16=True),
    ],
    ids=["all forms", "refuses all but lists", "ignores all but lists", "has float16"],
)
@pytest.mark.parametrize("encoding", ["auto", "float", "float16", "bytes"])
def test_each_encoding_gives_the_vectors_from_services_that_can_and_that_cannot(
    service: Service, encoding: str
) -> None:
    block = asyncio.run(embedded(service, TEXTS, encoding=encoding))
    assert block.dtype == np.float32
    if service.float16 and encoding == "float16":
        assert np.array_equal(block, expected().astype("<f2").astype(np.float32))
    else:
        assert np.array_equal(block, expected())


def test_an_encoding_that_a_service_refuses_is_asked_for_once() -> None:
    service = Service(encodings=("float",))

    async def twice() -> None:
        async with serving(service), client_of(service) as client:
            await client(TEXTS[:1])
            await client(TEXTS[:1])

    asyncio.run(twice())
    assert [request.get("encoding_format") for request in service.requests] == ["base64", None, None]


def test_a_service_that_does_not_know_the_form_that_was_asked_for_by_name_is_an_error() -> None:
    with pytest.raises(HttpStatusError, match="encoding_format: base64 is not supported"):
        asyncio.run(embedded(Service(encodings=("float",)), TEXTS, encoding="base64"))


@pytest.mark.contract
@pytest.mark.parametrize("encoding", ["auto", "float", "bytes"])
def test_without_msgspec_the_vectors_are_the_same(encoding: str) -> None:
    script = f"""
import asyncio, sys
sys.modules["msgspec"] = None
import numpy as np
from pillarbox.clients import Embeddings
from tests.clients.embedding_service import Service, serving, vector_of

async def main():
    async with serving(Service()) as service:
        async with Embeddings(service.url + "/v1", "e5", encoding={encoding!r}) as client:
            return await client(["love", "hate"])

assert np.array_equal(asyncio.run(main()), [vector_of("love"), vector_of("hate")])
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize("bound", ["auto", "float"])
def test_vectors_that_came_in_another_order_are_put_in_order(bound: str) -> None:
    def reverse(answer: dict[str, Any]) -> dict[str, Any]:
        answer["data"].reverse()
        return answer

    assert np.array_equal(asyncio.run(embedded(Service(change=reverse), TEXTS, encoding=bound)), expected())


def change_data(change: Any) -> Any:
    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        answer["data"] = change(answer["data"])
        return answer

    return changed


@pytest.mark.contract
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_data(lambda data: data[1:]), "has 4 vectors for 5 texts"),
        (change_data(lambda data: [*data, data[0]]), "has 6 vectors for 5 texts"),
        (change_data(lambda data: [*data[:4], data[0]]), "indices are not those of 5 texts"),
        (change_data(lambda data: [*data[:4], {**data[4], "embedding": ""}]), "not of one length"),
        (change_data(lambda data: [*data[:4], {**data[4], "embedding": [1.0]}]), "not of one length"),
        (
            change_data(lambda data: [*data[:4], {**data[4], "embedding": None}]),
            "of embeddings|length",
        ),
        (
            change_data(lambda data: [{**each, "embedding": "AAAA"} for each in data]),
            "not float32",
        ),
        (change_data(lambda data: [{**each, "embedding": "!AAA"} for each in data]), "not one of embeddings"),
        (change_data(lambda data: [{**each, "embedding": [[1.0]]} for each in data]), "embeddings|numbers"),
        (lambda answer: {"answer": "no"}, "not one of embeddings"),
        (lambda answer: [], "not one of embeddings"),
    ],
)
def test_an_answer_without_one_vector_for_each_text_is_an_error(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as found:
        asyncio.run(embedded(Service(change=change), TEXTS))
    assert "/v1/embeddings" in str(found.value)


# -- batches -------------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_batch_larger_than_the_service_allows_goes_in_several_requests() -> None:
    service = Service(max_texts=2)
    block = asyncio.run(embedded(service, TEXTS, max_texts=2))
    assert np.array_equal(block, expected())
    assert service.sizes == [2, 2, 1]


@pytest.mark.contract
def test_requests_are_filled_by_tokens_that_the_service_counts() -> None:
    service = Service()

    async def run() -> Any:
        async with serving(service), client_of(service, max_tokens=40) as client:
            await client(["love your enemies"])
            assert client.tokens == tokens_of("love your enemies")
            return await client(["love your enemies"] * 10)

    block = asyncio.run(run())
    assert block.shape == (10, DIMENSIONS)
    limit = 40 // tokens_of("love your enemies")
    assert service.sizes == [1, *[limit] * (10 // limit), *([10 % limit] if 10 % limit else [])]


def test_one_text_gives_one_vector_and_no_text_no_row() -> None:
    assert np.array_equal(asyncio.run(embedded(Service(), TEXTS[0])), vector_of(TEXTS[0]))
    assert asyncio.run(embedded(Service(), [])).shape == (0, 0)


@pytest.mark.contract
@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS),
        pa.chunked_array([TEXTS[:2], TEXTS[2:]]),
        pa.array(TEXTS, pa.large_string()),
        pa.RecordBatch.from_pydict({"text": TEXTS}),
    ],
    ids=lambda column: type(column).__name__,
)
def test_an_arrow_column_gives_the_same_block(column: Any) -> None:
    assert np.array_equal(asyncio.run(embedded(Service(), column)), expected())


@pytest.mark.contract
def test_a_text_that_is_none_has_none_for_its_result_and_is_not_sent() -> None:
    service = Service()
    first, second, third = asyncio.run(embedded(service, [TEXTS[0], None, TEXTS[1]]))
    assert second is None
    assert np.array_equal(np.stack([first, third]), expected(TEXTS[:2]))
    assert service.sizes == [2]
    assert asyncio.run(embedded(service, [None, None])) == [None, None]


def test_numbers_that_are_not_finite_fail_their_row_only() -> None:
    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        answer["data"][1]["embedding"] = [float("nan"), *[0.0] * (DIMENSIONS - 1)]
        answer["data"][0]["embedding"] = [0.0] * DIMENSIONS
        return answer

    service = Service(change=spoil, encodings=("float",), ignores=True)
    # JSON has no such number; Python's reader takes it, and base64 can hold it.
    with pytest.raises(ValueError, match="not one of embeddings"):
        asyncio.run(embedded(service, TEXTS[:2]))

    def spoil_base64(answer: dict[str, Any]) -> dict[str, Any]:
        bad = np.full(DIMENSIONS, np.nan, np.float32)
        answer["data"][1]["embedding"] = base64.b64encode(bad.tobytes()).decode()
        return answer

    good, bad, other = asyncio.run(embedded(Service(change=spoil_base64), TEXTS[:3]))
    assert isinstance(bad, ValueError)
    assert np.array_equal(np.stack([good, other]), expected([TEXTS[0], TEXTS[2]]))


# -- vectors -------------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_normalized_vectors_have_length_one() -> None:
    block = asyncio.run(embedded(Service(scale=7.0), TEXTS, normalize=True))
    assert np.allclose(np.linalg.norm(block, axis=1), 1.0, atol=1e-6)
    assert np.allclose(block, expected(), atol=1e-3)
    zeros = asyncio.run(embedded(Service(scale=0.0), TEXTS, normalize=True))
    assert not zeros.any()


@pytest.mark.contract
def test_dimensions_are_asked_for_and_checked() -> None:
    block = asyncio.run(embedded(Service(), TEXTS, dimensions=64))
    assert np.array_equal(block, expected()[:, :64])

    def whole(answer: dict[str, Any]) -> dict[str, Any]:
        for item in answer["data"]:
            item["embedding"] = [0.5] * 128
        return answer

    with pytest.raises(ValueError, match="dimensions=64: the service gave vectors of 128"):
        asyncio.run(embedded(Service(change=whole), TEXTS, dimensions=64))


# -- forms of services ---------------------------------------------------------------------------------------


@pytest.mark.contract
def test_azures_address_and_key() -> None:
    service = Service(key=("api-key", "key-of-azure"))
    options = {"api": "azure", "api_version": "2024-10-21", "key": Secret.literal("key-of-azure")}
    block = asyncio.run(embedded(service, TEXTS, model="my deployment", **options))
    assert np.array_equal(block, expected())
    (path,) = service.paths
    assert path == "/openai/deployments/my%20deployment/embeddings?api-version=2024-10-21"


@pytest.mark.contract
def test_teis_own_form() -> None:
    service = Service(max_texts=32)

    async def run() -> Any:
        async with serving(service):
            client = Embeddings(service.url, api="tei", long_texts="truncate", http=DIRECT)
            async with client:
                block = await client(TEXTS * 8)
                assert client.tokens == 8 * sum(map(tokens_of, TEXTS))
                return block

    assert np.array_equal(asyncio.run(run()), expected(TEXTS * 8))
    assert service.sizes == [32, 8]
    assert service.requests[0]["truncate"] is True


def test_fields_of_the_body_and_headers_are_sent() -> None:
    service = Service()
    asyncio.run(
        embedded(
            service,
            TEXTS,
            body={"input_type": "passage", "user": "me"},
            headers={"X-Team": "search", "X-Gateway": Secret.literal("key-of-the-gateway")},
        )
    )
    (request,), (headers,) = service.requests, service.headers
    assert (request["input_type"], request["user"], request["model"]) == ("passage", "me", "e5")
    assert (headers["X-Team"], headers["X-Gateway"]) == ("search", "key-of-the-gateway")


def test_several_addresses_are_taken_by_turns() -> None:
    one, two = Service(), Service()

    async def run() -> None:
        async with serving(one), serving(two):
            urls = [f"{service.url}/v1" for service in (one, two)]
            async with Embeddings(urls, "e5", http=DIRECT) as client:
                for _ in range(4):
                    await client(TEXTS[:1])

    asyncio.run(run())
    assert (one.sizes, two.sizes) == ([1, 1], [1, 1])


# -- with the operator, pickled, closed ----------------------------------------------------------------------


@pytest.mark.contract
def test_the_operator_takes_it_for_a_function_and_fills_its_requests() -> None:
    service = Service()

    async def run() -> Any:
        async with serving(service):
            client = client_of(service, max_texts=4)
            rows = pillarbox.async_map(TEXTS * 4, client, batch=client.batch, capacity=3)
            return [row async for row in rows]

    vectors = asyncio.run(run())
    assert np.array_equal(np.stack(vectors), expected(TEXTS * 4))
    assert service.sizes == [4] * 5


@pytest.mark.contract
def test_a_pickled_client_is_equal_and_works() -> None:
    service = Service()

    async def run() -> Any:
        async with serving(service), client_of(service, normalize=True) as client:
            await client(TEXTS)
            copy = pickle.loads(pickle.dumps(client))
            assert copy == client
            with pytest.raises(RuntimeError, match="is not open on this event loop"):
                await copy(TEXTS)
            async with copy:
                return await copy(TEXTS)

    assert np.allclose(asyncio.run(run()), expected(), atol=1e-3)


def test_a_client_that_was_entered_twice_stays_open_until_the_last_leaves() -> None:
    service = Service()

    async def run() -> None:
        async with serving(service), client_of(service) as client:
            async with client:
                pass
            await client(TEXTS[:1])
        with pytest.raises(RuntimeError, match="not open"):
            await client(TEXTS[:1])

    asyncio.run(run())


# -- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": 1}, "base_url"),
        ({"base_url": []}, "base_url"),
        ({"base_url": "host:80"}, "base_url='host:80': must be an address"),
        ({"base_url": "https://me:secret@host/v1"}, "must not hold a user, a password or a query"),
        ({"base_url": "https://host/v1/embeddings"}, "leave the last part out"),
        ({"model": ""}, "model"),
        ({"key": "key-of-the-test"}, "key: a key itself would travel with the plan; use Secret.env"),
        ({"api": "latin"}, "api='latin': must be one of"),
        ({"api": "azure"}, "api_version"),
        ({"api_version": "1"}, "is for api='azure'"),
        ({"dimensions": 0}, "dimensions=0"),
        ({"max_texts": 1.5}, "max_texts=1.5"),
        ({"encoding": "gzip"}, "encoding='gzip': must be one of"),
        ({"long_texts": "truncate", "max_text_tokens": 100}, "long_texts='truncate': needs tokenizer"),
        ({"long_texts": "error", "tokenizer": "cl100k_base"}, "long_texts='error': needs max_text_tokens"),
        ({"max_text_tokens": 100}, "say what is done with longer texts"),
        ({"tokenizer": 5}, "tokenizer=5: must be the name of a tiktoken encoding"),
        ({"body": {"input": "x"}}, "body: input is set by the client"),
        ({"body": {"x": object()}}, "body: must be JSON values"),
        ({"headers": {"Authorization": "Bearer key-of-the-test"}}, "headers['Authorization']: a key itself"),
        ({"headers": {"X": "a\nb"}}, "headers['X']: must be printable"),
        ({"http": 5}, "http=5: must be a pillarbox.clients.Http"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as found:
        Embeddings(**{"base_url": "https://host/v1", "model": "m", **options})
    assert message in str(found.value)
    assert "key-of-the-test" not in str(found.value)
    assert "secret" not in str(found.value).replace("Secret", "")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (5, "texts: must be a list of texts"),
        ([1], r"texts\[0\]: must be a str or None, not int"),
        (pa.RecordBatch.from_pydict({"a": ["x"], "b": ["y"]}), r"a batch with 2 columns \(a, b\)"),
    ],
)
def test_what_is_not_texts_is_named(texts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        asyncio.run(embedded(Service(), texts))
