"""Gemini's `batchEmbedContents`. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pillarbox.clients.transport import Response
from pillarbox.clients.usage_fields import count_in
from pillarbox.clients.vector_language import Asked, VectorLanguage
from pillarbox.clients.vectors import Vectors, decode_found


class GeminiVectors(VectorLanguage):
    """Each text is a request of its own in the body. The service counts no tokens."""

    name = "gemini"
    path = "/models/{model}:batchEmbedContents"
    own_ends = (":batchEmbedContents", "/models")
    provider = "gcp.gemini"
    key_header = "x-goog-api-key"
    max_texts = 100
    input_type_field = "taskType"
    input_types = {"query": "RETRIEVAL_QUERY", "document": "RETRIEVAL_DOCUMENT"}  # noqa: RUF012
    has_openai_form = False
    encodings = {"float": {}}  # noqa: RUF012
    own_fields = frozenset({"model", "requests"})

    def body(self, model: str, texts: Sequence[str], asked: Asked) -> dict[str, Any]:
        """See `VectorLanguage.body`."""
        same: dict[str, Any] = {"model": f"models/{model}"}
        if asked.input_type is not None:
            same["taskType"] = self.input_types.get(asked.input_type, asked.input_type)
        if asked.dimensions is not None:
            same["outputDimensionality"] = asked.dimensions
        return {"requests": [{**same, "content": {"parts": [{"text": text}]}} for text in texts]}

    def decode(self, response: Response, texts: int, dtype: Any, encoding: str) -> Vectors:
        """See `VectorLanguage.decode`."""
        return decode_found(response.body, texts, _found)


def _found(answer: Any) -> tuple[Any, int | None]:
    tokens = count_in(answer.get("usageMetadata"), "promptTokenCount")
    return [each["values"] for each in answer["embeddings"]], tokens
