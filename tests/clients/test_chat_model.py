"""`Chat` asks a real model: SmolLM2 with 135 million parameters, behind the server of llama-cpp-python."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import pillarbox
from pillarbox.clients import Chat, Http, Secret
from tests.servers.model_servers import KEY, LiteLLMProxy, ModelServer

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

TOWNS = [{"town": town} for town in ("Paris", "Tokyo", "Cairo", "Lima", "Oslo", "Rome")]


PROMPT = "In which country is {town}, and is it a small or a large town?"


class Town(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    country: str
    size: Literal["small", "large"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    server = ModelServer(tmp_path_factory.mktemp("model"))
    yield server
    server.close()


def chat_of(model: ModelServer, **more: Any) -> Chat:
    http = Http(proxy="direct", read_timeout=None, total_timeout=None)
    body = {"temperature": 0, "max_tokens": 64, "seed": 1}
    return Chat(model.url, "smollm2", **{"http": http, "body": body, **more})


@pytest.mark.contract(needs="a language model")
def test_a_small_model_answers_questions_in_text(model: ModelServer) -> None:
    chat = chat_of(model, prompt="What is the capital of {country}? Answer with its name.")
    results = pillarbox.async_map([{"country": "France"}, {"country": "Japan"}], chat, capacity=2)
    found = list(results)
    assert "Paris" in found[0] and "Tokyo" in found[1]
    statistics = results.statistics()
    assert statistics is not None and statistics.tokens > 20


@pytest.mark.contract(needs="a language model")
@pytest.mark.parametrize("structure", ["auto", "json_object"])
def test_a_small_model_gives_answers_of_a_type_for_each_row(model: ModelServer, structure: Any) -> None:
    chat = chat_of(
        model,
        prompt=PROMPT,
        answer=Town,
        structure=structure,
        repairs=4,
    )
    assert_towns(chat)


@pytest.mark.contract(needs="a language model")
def test_a_small_model_behind_a_litellm_proxy_does_too(model: ModelServer, tmp_path: Path) -> None:
    proxy = LiteLLMProxy(tmp_path, model.url, "smollm2")
    try:
        chat = chat_of(model, prompt=PROMPT, answer=Town, repairs=4)
        assert_towns(dataclasses.replace(chat, base_url=proxy.url, key=Secret.literal(KEY)))
    finally:
        proxy.close()


def assert_towns(chat: Chat) -> None:
    results = pillarbox.async_map(TOWNS, chat, capacity=2, errors="column")
    found = [outcome.result for outcome in results]
    assert all(isinstance(each, Town) for each in found), found
    assert found[0].country == "France"
    statistics = results.statistics()
    assert statistics is not None and statistics.calls <= 2 * len(TOWNS)
