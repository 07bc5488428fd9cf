"""Cohere's embeddings, version 2 (`/embed`). Pure; any thread."""

from __future__ import annotations

from typing import Any

from pillarbox.clients.transport import Response
from pillarbox.clients.usage_fields import count_in
from pillarbox.clients.vector_language import VectorLanguage
from pillarbox.clients.vectors import Vectors, decode_found


class CohereVectors(VectorLanguage):
    """Models tell documents from queries: a text is one of the first where the user says neither."""

    name = "cohere"
    path = "/embed"
    own_ends = ("/embed",)
    provider = "cohere"
    max_texts = 96
    texts_field = "texts"
    dimensions_field = "output_dimension"
    input_type_field = "input_type"
    input_types = {"query": "search_query", "document": "search_document"}  # noqa: RUF012
    default_input_type = "document"
    truncate_field = "truncate"
    truncate_values = ("NONE", "END")
    has_openai_form = False
    encodings = {"float": {"embedding_types": ["float"]}}  # noqa: RUF012
    own_fields = frozenset(
        {
            "model",
            "texts",
            "inputs",
            "images",
            "input_type",
            "embedding_types",
            "output_dimension",
            "truncate",
        }
    )

    def decode(self, response: Response, texts: int, dtype: Any, encoding: str) -> Vectors:
        """See `VectorLanguage.decode`."""
        return decode_found(response.body, texts, _found)


def _found(answer: Any) -> tuple[Any, int | None]:
    billed = (answer.get("meta") or {}).get("billed_units")
    return answer["embeddings"]["float"], count_in(billed, "input_tokens")
