"""Clients of services that are known by name: their addresses, languages, limits and keys.

Methods that `Chat` and `Embeddings` inherit; any thread. The options of the client stay open: what is given
comes before what is known.
"""

# Why no prices and no list of models. Both change by the week, and a price that is wrong is worse than none:
# prices come from a file of the user's. Why a key is the name of a variable: see `pillarbox.clients.secret`.

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pillarbox.aio.service_addresses import Endpoints
from pillarbox.clients.late_address import LateAddress
from pillarbox.clients.prices import Price
from pillarbox.clients.secret import Secret

T = TypeVar("T")
C = TypeVar("C", bound="ChatPresets")
E = TypeVar("E", bound="EmbeddingPresets")

Address = str | Sequence[str] | Endpoints | LateAddress
Prices = Mapping[str, Price] | str | os.PathLike[str] | None

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com/v1"
GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta"
VLLM_URL = "http://localhost:8000/v1"
OLLAMA_URL = "http://localhost:11434/v1"
AZURE_VERSION = "2024-10-21"
"""The newest version of Azure's interface that is not a preview."""

OPENAI_LIMITS = {"max_texts": 2_048, "max_tokens": 300_000}
"""Of a request for vectors."""
OPENAI_TEXTS = {"max_text_tokens": 8_192, "tokenizer": "cl100k_base"}
"""Tokens of one text, and what counts them: of all models for vectors since text-embedding-ada-002."""


class ChatPresets:
    """Chats of services that are known by name. Inherited by `Chat`."""

    @classmethod
    def openai(
        cls: type[C], model: str, *, base_url: Address = OPENAI_URL, prices: Prices = None, **options: Any
    ) -> C:
        """Return a chat with a model of OpenAI, with the key in OPENAI_API_KEY.

            >>> from pillarbox.clients import Chat
            >>> client = Chat.openai("gpt-5-mini", prompt="Good or bad: {text}", language="responses")
            >>> client.base_url, client.key
            ('https://api.openai.com/v1', Secret.env('OPENAI_API_KEY'))

        prices: a table, or the path of a file as `Price.read` takes it. options: those of `Chat`. Raises what
        `Chat` and `Price.read` raise.
        """
        return _chat(cls, base_url, model, prices, options, "openai", "OPENAI_API_KEY")

    @classmethod
    def anthropic(
        cls: type[C], model: str, *, base_url: Address = ANTHROPIC_URL, prices: Prices = None, **options: Any
    ) -> C:
        """Return a chat with a model of Anthropic, with the key in ANTHROPIC_API_KEY.

            >>> from pillarbox.clients import Chat
            >>> client = Chat.anthropic("claude-sonnet-4-5", prompt="Good or bad: {text}")
            >>> client.language, client.key
            ('anthropic', Secret.env('ANTHROPIC_API_KEY'))

        prices, options: as for `openai`.
        """
        return _chat(
            cls, base_url, model, prices, options, "anthropic", "ANTHROPIC_API_KEY", language="anthropic"
        )

    @classmethod
    def gemini(
        cls: type[C], model: str, *, base_url: Address = GEMINI_URL, prices: Prices = None, **options: Any
    ) -> C:
        """Return a chat with a model of Gemini, with the key in GEMINI_API_KEY.

            >>> from pillarbox.clients import Chat
            >>> client = Chat.gemini("gemini-2.5-flash", prompt="Good or bad: {text}")
            >>> client.language, client.key
            ('gemini', Secret.env('GEMINI_API_KEY'))

        prices, options: as for `openai`.
        """
        return _chat(cls, base_url, model, prices, options, "gemini", "GEMINI_API_KEY", language="gemini")

    @classmethod
    def azure(
        cls: type[C], base_url: Address, deployment: str, *, prices: Prices = None, **options: Any
    ) -> C:
        """Return a chat with a deployment of Azure OpenAI, with the key in AZURE_OPENAI_API_KEY.

            >>> from pillarbox.clients import Chat
            >>> client = Chat.azure("https://name.openai.azure.com", "mine", prompt="Good or bad: {text}")
            >>> client.api, client.key
            ('azure', Secret.env('AZURE_OPENAI_API_KEY'))

        base_url: of the resource. prices, options: as for `openai`.
        """
        azure = {"api": "azure", "api_version": AZURE_VERSION}
        return _chat(cls, base_url, deployment, prices, options, "azure", "AZURE_OPENAI_API_KEY", **azure)

    @classmethod
    def vllm(
        cls: type[C], model: str, *, base_url: Address = VLLM_URL, prices: Prices = None, **options: Any
    ) -> C:
        """Return a chat with a model behind vLLM, without a key.

            >>> from pillarbox import async_map
            >>> from pillarbox.clients import Chat
            >>> from pillarbox.testing import serve
            >>> with serve() as service:
            ...     client = Chat.vllm("Qwen/Qwen3-8B", prompt="Good or bad: {text}", base_url=service.url)
            ...     list(async_map([{"text": "a lovely soup"}], client))
            ['good']

        prices, options: as for `openai`.
        """
        return _chat(cls, base_url, model, prices, options, "hosted_vllm", None)

    @classmethod
    def ollama(
        cls: type[C], model: str, *, base_url: Address = OLLAMA_URL, prices: Prices = None, **options: Any
    ) -> C:
        """Return a chat with a model behind Ollama, without a key.

            >>> from pillarbox.clients import Chat
            >>> client = Chat.ollama("qwen3", prompt="Good or bad: {text}")
            >>> client.base_url, client.key
            ('http://localhost:11434/v1', None)

        prices, options: as for `openai`.
        """
        return _chat(cls, base_url, model, prices, options, "ollama", None)


class EmbeddingPresets:
    """Embeddings of services that are known by name. Inherited by `Embeddings`."""

    @classmethod
    def openai(
        cls: type[E], model: str, *, base_url: Address = OPENAI_URL, prices: Prices = None, **options: Any
    ) -> E:
        """Return embeddings of OpenAI, with its limits of a request and the key in OPENAI_API_KEY.

            >>> from pillarbox.clients import Embeddings
            >>> client = Embeddings.openai("text-embedding-3-small")
            >>> client.batch.size, client.max_tokens, client.key
            (2048, 300000, Secret.env('OPENAI_API_KEY'))

        With `long_texts` other than "send", texts are counted by the service's tokenizer, up to its limit.
        prices: a table, or the path of a file as `Price.read` takes it. options: those of `Embeddings`.
        Raises what `Embeddings` and `Price.read` raise.
        """
        known = {**OPENAI_LIMITS, **_long_texts(options)}
        return _embeddings(cls, base_url, model, prices, options, "openai", "OPENAI_API_KEY", **known)

    @classmethod
    def azure(
        cls: type[E], base_url: Address, deployment: str, *, prices: Prices = None, **options: Any
    ) -> E:
        """Return embeddings of a deployment of Azure OpenAI, with the key in AZURE_OPENAI_API_KEY.

            >>> from pillarbox.clients import Embeddings
            >>> client = Embeddings.azure("https://name.openai.azure.com", "mine", long_texts="chunk")
            >>> client.api, client.max_text_tokens
            ('azure', 8192)

        base_url: of the resource. prices, options: as for `openai`.
        """
        known = {"api": "azure", "api_version": AZURE_VERSION, **OPENAI_LIMITS, **_long_texts(options)}
        return _embeddings(
            cls, base_url, deployment, prices, options, "azure", "AZURE_OPENAI_API_KEY", **known
        )

    @classmethod
    def vllm(
        cls: type[E], model: str, *, base_url: Address = VLLM_URL, prices: Prices = None, **options: Any
    ) -> E:
        """Return embeddings of a model behind vLLM, without a key; vectors are raw bytes, if it knows them.

            >>> from pillarbox import async_map
            >>> from pillarbox.clients import Embeddings
            >>> from pillarbox.testing import serve
            >>> with serve(dimensions=4) as service:
            ...     client = Embeddings.vllm("BAAI/bge-m3", base_url=service.url)
            ...     (vector,) = async_map(["a pillar box"], client, batch=client.batch)
            >>> vector.shape
            (4,)

        prices, options: as for `openai`.
        """
        return _embeddings(cls, base_url, model, prices, options, "hosted_vllm", None, encoding="bytes")

    @classmethod
    def ollama(
        cls: type[E], model: str, *, base_url: Address = OLLAMA_URL, prices: Prices = None, **options: Any
    ) -> E:
        """Return embeddings of a model behind Ollama, without a key.

            >>> from pillarbox.clients import Embeddings
            >>> Embeddings.ollama("bge-m3").base_url
            'http://localhost:11434/v1'

        prices, options: as for `openai`.
        """
        return _embeddings(cls, base_url, model, prices, options, "ollama", None)


def _long_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {} if options.get("long_texts", "send") == "send" else OPENAI_TEXTS


def _chat(
    cls: type[T],
    base_url: Address,
    model: str,
    prices: Prices,
    options: Mapping[str, Any],
    provider: str,
    variable: str | None,
    **known: Any,
) -> T:
    make: Any = cls
    key = None if variable is None else Secret.env(variable)
    priced = {"prices": _prices_of(prices, model, provider)}
    client: T = make(base_url, model, **{"key": key, **priced, **known, **options})
    return client


def _embeddings(
    cls: type[T],
    base_url: Address,
    model: str,
    prices: Prices,
    options: Mapping[str, Any],
    provider: str,
    variable: str | None,
    **known: Any,
) -> T:
    make: Any = cls
    key = None if variable is None else Secret.env(variable)
    client = make(base_url, model, **{"key": key, **known, **options})
    found: T = client if prices is None else client.with_prices(_prices_of(prices, model, provider))
    return found


def _prices_of(prices: Prices, model: str, provider: str) -> Mapping[str, Price]:
    if isinstance(prices, str | os.PathLike):
        return Price.read(prices, model, provider)
    return {} if prices is None else prices
