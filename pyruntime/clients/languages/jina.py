"""Jina's embeddings (`/embeddings`), whose answers are in OpenAI's form. Pure; any thread."""

from __future__ import annotations

from pillarbox.clients.vector_language import VectorLanguage


class JinaVectors(VectorLanguage):
    """The use of vectors is the service's `task`."""

    name = "jina"
    own_ends = ("/embeddings",)
    provider = "jina"
    input_type_field = "task"
    input_types = {"query": "retrieval.query", "document": "retrieval.passage"}  # noqa: RUF012
    truncate_field = "truncate"
    encodings = {"float": {}, "base64": {"embedding_type": "base64"}}  # noqa: RUF012
    own_fields = frozenset({"model", "input", "task", "truncate", "dimensions", "embedding_type"})
