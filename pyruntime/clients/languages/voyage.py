"""Voyage's embeddings (`/embeddings`), whose answers are in OpenAI's form. Pure; any thread."""

from __future__ import annotations

from pillarbox.clients.vector_language import VectorLanguage


class VoyageVectors(VectorLanguage):
    """Texts that are too long are refused, unless they are to be truncated: unasked they would be."""

    name = "voyage"
    own_ends = ("/embeddings",)
    provider = "voyage"
    max_texts = 128
    dimensions_field = "output_dimension"
    input_type_field = "input_type"
    truncate_field = "truncation"
    truncate_values = (False, True)
    encodings = {"float": {}, "base64": {"encoding_format": "base64"}}  # noqa: RUF012
    own_fields = frozenset(
        {"model", "input", "input_type", "truncation", "output_dimension", "output_dtype", "encoding_format"}
    )
