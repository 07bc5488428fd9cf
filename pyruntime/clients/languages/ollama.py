"""Ollama's own embeddings (`/api/embed`). Pure; any thread."""

from __future__ import annotations

from typing import Any

from pillarbox.clients.transport import Response
from pillarbox.clients.usage_fields import count_in
from pillarbox.clients.vector_language import VectorLanguage
from pillarbox.clients.vectors import Vectors, decode_found


class OllamaVectors(VectorLanguage):
    """Texts that are too long are refused, unless they are to be truncated: unasked they would be."""

    name = "ollama"
    path = "/api/embed"
    own_ends = ("/api/embed", "/embed")
    provider = "ollama"
    truncate_field = "truncate"
    truncate_values = (False, True)
    has_openai_form = False
    encodings = {"float": {}}  # noqa: RUF012
    own_fields = frozenset({"model", "input", "truncate", "dimensions"})

    def decode(self, response: Response, texts: int, dtype: Any, encoding: str) -> Vectors:
        """See `VectorLanguage.decode`."""
        return decode_found(response.body, texts, _found)


def _found(answer: Any) -> tuple[Any, int | None]:
    return answer["embeddings"], count_in(answer, "prompt_eval_count")
