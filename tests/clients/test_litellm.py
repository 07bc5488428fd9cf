"""Every language that a LiteLLM proxy serves, by the clients, in front of the stand-in service.

`make test-litellm` makes the proxy's environment and runs these. The proxy translates: what a client sends in
one language reaches the service in that of the model. So each of the three languages is tried before each
kind of model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pillarbox import Budget, CallFailed, PillarboxError, async_map
from pillarbox.clients import Chat, Embeddings, Http, Price, Rerank, Secret
from pillarbox.testing import StandInService, serve
from pillarbox.wire import Kind, read_error
from tests.servers.model_servers import KEY, LiteLLMProxy

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")
pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {"http": Http(proxy="direct", read_timeout=60.0), "key": Secret.literal(KEY)}
ROWS = [{"text": "the soup was cold"}, {"text": "lovely"}]
CHATS = ("gpt", "claude", "gemini")
VECTORS = ("openai-vectors", "cohere-vectors", "voyage-vectors", "jina-vectors")
RANKS = ("cohere-ranks", "jina-ranks", "tei-ranks")
PATHS = {"openai": "/v1", "responses": "/v1", "anthropic": "/v1", "gemini": "/v1beta"}
"""Of the proxy, by the language of a client."""


class Review(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    mood: str


def models(service: str) -> dict[str, tuple[str, str]]:
    """The models of the proxy: LiteLLM's name, and the address as LiteLLM takes it."""
    return {
        "gpt": ("openai/gpt", f"{service}/v1"),
        "claude": ("anthropic/claude-sonnet-4-5", service),
        "gemini": ("gemini/gemini-2.5-flash", f"{service}/v1beta/models/gemini-2.5-flash"),
        "openai-vectors": ("openai/text-embedding-3-small", f"{service}/v1"),
        "cohere-vectors": ("cohere/embed-v4.0", f"{service}/cohere/v2/embed"),
        "voyage-vectors": ("voyage/voyage-3", f"{service}/voyage/v1/embeddings"),
        "jina-vectors": ("jina_ai/jina-embeddings-v3", f"{service}/jina/v1"),
        "cohere-ranks": ("cohere/rerank-v3.5", f"{service}/cohere/v2/rerank"),
        "jina-ranks": ("jina_ai/jina-reranker-v2", f"{service}/jina/v1/rerank"),
        "tei-ranks": ("huggingface/bge", f"{service}/tei"),
    }


@pytest.fixture(scope="module")
def service() -> Iterator[StandInService]:
    with serve() as service:
        yield service


@pytest.fixture(scope="module")
def proxy(service: StandInService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    behind = service.url.removesuffix("/v1")
    proxy = LiteLLMProxy(tmp_path_factory.mktemp("litellm"), behind, models(behind))
    yield proxy.url.removesuffix("/v1")
    proxy.close()


def chat(proxy: str, language: str, model: str, **options: Any) -> Chat:
    prompt = "Good or bad, in one word: {text}"
    return Chat(f"{proxy}{PATHS[language]}", model, prompt=prompt, language=language, **OPTIONS, **options)


@pytest.mark.contract(
    "In each language a LiteLLM proxy serves models of three services, and tokens are counted as these do.",
    needs="the proxy LiteLLM",
)
@pytest.mark.parametrize("model", CHATS)
@pytest.mark.parametrize("language", PATHS)
def test_each_language_reaches_each_kind_of_model(
    proxy: str, service: StandInService, language: str, model: str
) -> None:
    before = service.statistics()
    results = async_map(ROWS, chat(proxy, language, model, prices={model: Price(1.0, 2.0)}))
    assert list(results) == ["bad", "good"]
    now, counted = service.statistics(), results.statistics()
    assert counted.calls == now.requests - before.requests == len(ROWS)
    assert counted.tokens == now.tokens - before.tokens > 0
    assert 1e-6 * counted.tokens < counted.cost < 2e-6 * counted.tokens


@pytest.mark.contract(
    "Without prices a call costs what a LiteLLM proxy states, and one of which it states nothing is unknown.",
    needs="the proxy LiteLLM",
)
@pytest.mark.parametrize("language", PATHS)
def test_a_call_costs_what_the_proxy_states(proxy: str, language: str) -> None:
    # In Gemini's language it states nothing of other models.
    for model in ("gemini",) if language == "gemini" else ("claude", "gemini"):
        results = async_map(ROWS, chat(proxy, language, model), budget=Budget(max_cost=1.0), errors="null")
        assert list(results) == ["bad", "good"]
        assert 1e-8 < results.statistics().cost < 1e-2
    with pytest.raises(PillarboxError, match="has no price of 'gpt'"):
        list(async_map(ROWS, chat(proxy, language, "gpt"), budget=Budget(max_cost=1.0), errors="null"))


def test_vectors_and_scores_cost_what_the_proxy_states(proxy: str) -> None:
    vectors = Embeddings(f"{proxy}/v1", "openai-vectors", **OPTIONS)
    results = async_map(["a time to plant"], vectors, batch=vectors.batch)
    assert len(list(results)) == 1 and results.statistics().cost > 0.0
    ranks = async_map(
        [{"query": "soup", "documents": ["soup"]}],
        Rerank(f"{proxy}/v1", "cohere-ranks", api="cohere", **OPTIONS),
    )
    assert len(list(ranks)) == 1 and ranks.statistics().cost > 0.0


@pytest.mark.parametrize("model", CHATS)
@pytest.mark.parametrize("language", PATHS)
def test_answers_of_a_type_pass_the_translation(proxy: str, language: str, model: str) -> None:
    found = list(async_map(ROWS, chat(proxy, language, model, answer=Review)))
    assert found == [Review(mood="bad"), Review(mood="good")]


@pytest.mark.parametrize("model", VECTORS)
def test_vectors_of_each_service_are_those_that_it_gives(proxy: str, model: str) -> None:
    client = Embeddings(f"{proxy}/v1", model, **OPTIONS)
    texts = ["love your enemies", "a time to plant"]
    results = async_map(texts, client, batch=client.batch)
    found = list(results)
    assert len(found) == 2 and all(vector.dtype == np.float32 for vector in found)
    assert not np.array_equal(*found) and results.statistics().tokens > 0


@pytest.mark.parametrize("api", ["cohere", "vllm"])
@pytest.mark.parametrize("model", RANKS)
def test_scores_of_each_reranker_are_in_the_order_of_the_list(proxy: str, model: str, api: Any) -> None:
    client = Rerank(f"{proxy}/v1", model, api=api, **OPTIONS)
    row = {"query": "warm soup", "documents": ["a pillar box", None, "soup"]}
    (scores,) = async_map([row], client)
    assert scores[1] is None and scores[2] > scores[0]


@pytest.mark.contract(
    "Behind a LiteLLM proxy failures of the service are tried again in each language.",
    needs="the proxy LiteLLM",
)
def test_failures_of_the_service_behind_are_tried_again_in_each_language(tmp_path: Path) -> None:
    rows = [{"text": f"lovely {number}"} for number in range(20)]
    with serve(status_500=0.25, seed=45) as service:
        behind = service.url.removesuffix("/v1")
        proxy = LiteLLMProxy(tmp_path, behind, models(behind))
        try:
            for language in PATHS:
                for model in CHATS:
                    refused = service.statistics().refused
                    client = chat(proxy.url.removesuffix("/v1"), language, model)
                    found = list(async_map(rows, client, retry=10, capacity=4))
                    assert (language, model, found) == (language, model, ["good"] * len(rows))
                    assert service.statistics().refused > refused
        finally:
            proxy.close()


@pytest.mark.contract(
    "A model that a LiteLLM proxy lacks, and a key that is not its own, are refusals of all rows.",
    needs="the proxy LiteLLM",
)
@pytest.mark.parametrize("language", PATHS)
def test_a_model_that_the_proxy_lacks_and_a_wrong_key_are_refusals_of_all_rows(
    proxy: str, language: str
) -> None:
    for options, model in (({}, "none"), ({"key": Secret.literal("sk-wrong")}, "gpt")):
        base = {"prompt": "{text}", "language": language, **OPTIONS, **options}
        with pytest.raises(CallFailed) as failed:
            list(async_map(ROWS, Chat(f"{proxy}{PATHS[language]}", model, **base), retry=5))
        assert failed.value.attempts == 1
        assert read_error(failed.value.cause).kind is Kind.REFUSED_ALL


def test_the_version_that_the_pages_name_is_the_one_that_is_tried() -> None:
    (version,) = re.findall(
        r"^litellm==(\S+)$", (ROOT / "tests/servers/requirements/litellm.txt").read_text(), re.MULTILINE
    )
    assert f"LiteLLM {version}" in (ROOT / "docs" / "questions.md").read_text()
