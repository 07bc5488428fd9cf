"""Clients of services that are known by name: their addresses, limits and keys, and prices from a file."""

from __future__ import annotations

import doctest
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Budget, async_map
from pillarbox.clients import Chat, Embeddings, Price, Secret
from pillarbox.testing import serve

CHATS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY", {"language": "openai"}),
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", {"language": "anthropic"}),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta",
        "GEMINI_API_KEY",
        {"language": "gemini"},
    ),
    "vllm": ("http://localhost:8000/v1", None, {}),
    "ollama": ("http://localhost:11434/v1", None, {}),
}
VECTORS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY", {"max_texts": 2_048, "max_tokens": 300_000}),
    "vllm": ("http://localhost:8000/v1", None, {"encoding": "bytes"}),
    "ollama": ("http://localhost:11434/v1", None, {}),
}
CLIENTS = {Chat: (CHATS, {"prompt": "{text}"}), Embeddings: (VECTORS, {})}
LITELLM = {
    "sample_spec": {"input_cost_per_token": 0.0, "mode": "one of: chat, embedding"},
    "small": {
        "input_cost_per_token": 1.5e-07,
        "output_cost_per_token": 6e-07,
        "cache_read_input_token_cost": 7.5e-08,
        "cache_creation_input_token_cost": 1.875e-07,
        "mode": "chat",
    },
    "azure/deployed": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    "vectors": {"input_cost_per_token": 2e-08, "output_cost_per_token": 0.0, "mode": "embedding"},
    "by-the-image": {"input_cost_per_image": 0.1},
}


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(LITELLM))
    return path


@pytest.mark.contract(
    "A preset has the address of its service, its limits, and the name of the key's variable."
)
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (presets, _) in CLIENTS.items() for name in presets]
)
def test_a_preset_knows_its_service(kind: Any, name: str) -> None:
    presets, needed = CLIENTS[kind]
    base_url, variable, known = presets[name]
    client = getattr(kind, name)("small", **needed)
    assert (client.base_url, client.model) == (base_url, "small")
    assert client.key == (None if variable is None else Secret.env(variable))
    assert {option: getattr(client, option) for option in known} == known
    # The same as one that was made by hand.
    options = {**needed, **known, "key": client.key}
    assert client.configuration == kind(base_url, "small", **options).configuration


@pytest.mark.parametrize(("kind", "needed"), [(Chat, {"prompt": "{text}"}), (Embeddings, {})])
def test_the_preset_of_azure_takes_the_resource_and_the_deployment(kind: Any, needed: Any) -> None:
    client = kind.azure("https://name.openai.azure.com", "mine", **needed)
    assert (client.api, client.model, client.key) == ("azure", "mine", Secret.env("AZURE_OPENAI_API_KEY"))
    assert kind.azure("https://name.openai.azure.com", "mine", api_version="1", **needed).api_version == "1"


@pytest.mark.contract("A preset has no key in it: not in its text, nor in what travels.")
def test_the_key_of_a_preset_is_read_where_calls_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-of-no-known-shape-7741"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serve(key=key) as service:
        client = Chat.openai("small", prompt="Good or bad: {text}", base_url=service.url)
        assert key.encode() not in pickle.dumps(client) and key not in repr(client)
        assert list(async_map([{"text": "lovely"}], client)) == ["good"]


def test_what_is_given_comes_before_what_is_known() -> None:
    key = Secret.file("/run/secrets/key")
    client = Embeddings.openai("small", key=key, max_texts=5, base_url="https://proxy/v1")
    assert (client.key, client.max_texts, client.base_url) == (key, 5, "https://proxy/v1")
    with pytest.raises(TypeError, match="did you mean 'key'"):
        Chat.openai("small", prompt="{text}", api_key="k")


@pytest.mark.parametrize("long_texts", ["error", "truncate", "chunk"])
def test_long_texts_are_measured_by_the_tokenizer_of_the_service(long_texts: Any) -> None:
    client = Embeddings.openai("text-embedding-3-small", long_texts=long_texts)
    assert (client.max_text_tokens, client.tokenizer) == (8_192, "cl100k_base")
    assert Embeddings.openai("text-embedding-3-small").tokenizer is None


@pytest.mark.contract("Prices come from a file of the user's in LiteLLM's form, for the model that is asked.")
def test_prices_are_read_from_a_file(prices: Path) -> None:
    expected = Price(input=0.15, output=0.6, cached_input=0.075, cache_write=0.1875)
    assert Price.read(prices, "small") == {"small": expected}
    assert Chat.openai("small", prompt="{text}", prices=str(prices)).prices == {"small": expected}
    azure = Chat.azure("https://name.openai.azure.com", "deployed", prompt="{text}", prices=prices)
    assert azure.prices == {"deployed": Price(1.0, 2.0)}
    with serve() as service:
        client = Embeddings.vllm("vectors", base_url=service.url, prices=prices)
        assert client.prices == {"vectors": Price(0.02)}
        rows = async_map(["one two three"], client, budget=Budget(max_cost=1.0), errors="column")
        assert [row.error for row in rows] == [None] and client.cost > 0
    own = {"small": Price(1.0, 1.0)}
    assert Chat.vllm("small", prompt="{text}", prices=own).prices == own


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("smal", "has no price of model='smal'; did you mean 'small'"),
        ("zzz", "has no price of model='zzz'"),
        ("by-the-image", "has no input_cost_per_token of 'by-the-image'"),
    ],
)
def test_a_model_without_a_price_is_an_error_on_the_driver(prices: Path, model: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Chat.openai(model, prompt="{text}", prices=prices)


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"small": {"input_cost_per_token": "free"}}'])
def test_a_file_of_another_form_is_an_error(prices: Path, content: str) -> None:
    prices.write_text(content)
    with pytest.raises(ValueError, match="prices="):
        Price.read(prices, "small")
    with pytest.raises(FileNotFoundError):
        Price.read(prices.with_name("none.json"), "small")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, (presets, _) in CLIENTS.items() for name in (*presets, "azure")],
)
def test_the_example_of_a_preset_runs(kind: Any, name: str) -> None:
    method = getattr(kind, name)
    test = doctest.DocTestParser().get_doctest(method.__doc__, {}, name, None, 0)
    said = io.StringIO()
    doctest.DocTestRunner(verbose=False).run(test, out=said.write)
    assert test.examples and not said.getvalue(), said.getvalue()
