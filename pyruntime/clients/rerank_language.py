"""Languages of rerankers: what a request is, and where an answer has the scores.

A `RerankLanguage` is a description without state: any thread. `Rerank` speaks the one that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pillarbox.clients.usage_fields import tokens_in
from pillarbox.validate import check_choice


class RerankLanguage:
    """Description of the API of a reranker, for `Rerank(api=...)`.

    This one is Jina's, which vLLM speaks too. A class that derives from it says what differs.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Rerank, RerankLanguage
        >>> from pillarbox.testing import serve
        >>> class Gateway(RerankLanguage):
        ...     name = "gateway"
        ...     def body(self, model, query, documents):
        ...         return {**super().body(model, query, documents), "top_n": len(documents)}
        >>> with serve() as service:
        ...     client = Rerank(service.url, "small", api=Gateway())
        ...     [scores] = async_map([{"query": "soup", "documents": ["a soup", "a box"]}], client)
        >>> len(scores)
        2

    name: stands in the key of a cache. path, provider, key_header, headers: as in `Language`. max_documents:
    of a request. documents_field: of the body. results_field: of the answer, None where it is the answer
    itself. score_field: of a result. own_fields: of a body, those that the client sets. Any thread.
    """

    name: str = "vllm"
    path: str = "/rerank"
    provider: str = "vllm"
    key_header: str = "bearer"
    headers: Mapping[str, str] = {"Content-Type": "application/json"}
    max_documents: int = 1_000
    needs_model: bool = True
    documents_field: str = "documents"
    results_field: str | None = "results"
    score_field: str = "relevance_score"
    own_fields: frozenset[str] = frozenset({"model", "query", "documents", "texts", "top_n", "top_k"})

    def body(self, model: str, query: str, documents: Sequence[str]) -> dict[str, Any]:
        """The body of a request, without the fields of `Rerank(body=...)`."""
        named = {"model": model} if self.needs_model else {}
        return {**named, "query": query, self.documents_field: documents}

    def scores(self, answer: Any) -> list[tuple[int, float]]:
        """The place of each document, and its score. Raises LookupError or TypeError for another answer."""
        results = answer if self.results_field is None else answer[self.results_field]
        return [(each["index"], each[self.score_field]) for each in results]

    def tokens(self, answer: Any) -> int | None:
        """Tokens that the service counted; None where it did not."""
        asked, _, in_all = tokens_in(answer.get("usage") if isinstance(answer, dict) else None)
        return in_all or asked


class _Jina(RerankLanguage):
    name = provider = "jina"

    def body(self, model: str, query: str, documents: Sequence[str]) -> dict[str, Any]:
        return {**super().body(model, query, documents), "return_documents": False}


class _Cohere(RerankLanguage):
    """Bills searches, and no tokens."""

    name = provider = "cohere"


class _Voyage(RerankLanguage):
    name = provider = "voyage"
    results_field = "data"


class _Tei(RerankLanguage):
    name = provider = "tei"
    max_documents = 32
    needs_model = False
    documents_field = "texts"
    results_field = None
    score_field = "score"


LANGUAGES = {each.name: each for each in (RerankLanguage, _Jina, _Cohere, _Voyage, _Tei)}


def rerank_language_of(api: object) -> RerankLanguage:
    """The language of a named API, or the one that is given. Raises TypeError and ValueError."""
    if isinstance(api, RerankLanguage):
        return api
    return LANGUAGES[check_choice("api", api, tuple(LANGUAGES))]()
