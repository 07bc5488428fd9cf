"""Languages of embeddings: what a request for vectors is, and where its answer has them.

A `VectorLanguage` is a description without state: any thread. `Embeddings` speaks the one that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pillarbox.clients.named_languages import language_named
from pillarbox.clients.transport import Response
from pillarbox.clients.vectors import Vectors, decode_bytes, decode_lists, decode_openai

REQUEST_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
"""Vectors hardly shrink: to decompress them would cost more than all the rest of a request."""
BYTES_TYPE = "application/octet-stream"
FALLBACKS: dict[str, tuple[str, ...]] = {
    "auto": ("base64", "float"),
    "base64": ("base64",),
    "float": ("float",),
    "float16": ("float16", "base64", "float"),
    "bytes": ("bytes", "base64", "float"),
}
"""The forms in which vectors are asked for, by `encoding`: the next where a service refuses one."""
MODULES = {
    "openai": "pillarbox.clients.vector_language:VectorLanguage",
    "azure": "pillarbox.clients.vector_language:VectorLanguage",
    "tei": "pillarbox.clients.vector_language:Tei",
    "cohere": "pillarbox.clients.languages.cohere:CohereVectors",
    "voyage": "pillarbox.clients.languages.voyage:VoyageVectors",
    "jina": "pillarbox.clients.languages.jina:JinaVectors",
    "gemini": "pillarbox.clients.languages.gemini_vectors:GeminiVectors",
    "ollama": "pillarbox.clients.languages.ollama:OllamaVectors",
}
"""The class of each API that has a name. Azure's differs in addresses and in the header of the key."""


class Asked(NamedTuple):
    """The part of a request for vectors beside its texts.

    encoding: the form of vectors. dimensions: of each, None for the model's own. input_type: as the user
    said it. truncates: the service is to shorten texts that are too long, and to refuse them otherwise.
    """

    encoding: str = "float"
    dimensions: int | None = None
    input_type: str | None = None
    truncates: bool = False


class VectorLanguage:
    """Description of the API of a service of embeddings, for `Embeddings(api=...)`.

    This one is OpenAI's. A class that derives from it says what differs; its objects have no state.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Embeddings, VectorLanguage
        >>> from pillarbox.testing import serve
        >>> class Gateway(VectorLanguage):
        ...     name = "gateway"
        ...     key_header = "X-Gateway-Key"
        ...     input_type_field = "usage_of_vectors"
        >>> with serve(dimensions=4) as service:
        ...     client = Embeddings(service.url, "m", api=Gateway()).with_input("query")
        ...     (vector,) = async_map(["a pillar box"], client, batch=client.batch)
        ...     service.requests[0].body["usage_of_vectors"]
        'query'

    name: stands in the key of a cache. path, provider, key_header, headers: as in `Language`. max_texts: of a
    request, where the user says nothing. texts_field, dimensions_field, input_type_field, truncate_field:
    names of fields, None for what a service does not know. input_types: its words for "query" and
    "document"; others are sent as they are. default_input_type: where the user says none and the service
    needs one. truncate_values: for texts that are to be refused, and to be
    shortened; None is not sent. encodings: fields that ask for a form of vectors, by its name.
    has_openai_form: answers are in OpenAI's form. own_fields: of a body, those that the client sets. Any
    thread.
    """

    name: str = "openai"
    path: str = "/embeddings"
    own_ends: tuple[str, ...] = ("/embeddings", "/embed")
    provider: str = "openai"
    key_header: str = "bearer"
    headers: Mapping[str, str] = REQUEST_HEADERS
    max_texts: int = 64
    needs_model: bool = True
    default_input_type: str | None = None
    texts_field: str = "input"
    dimensions_field: str = "dimensions"
    input_type_field: str | None = None
    input_types: Mapping[str, str] = {}
    truncate_field: str | None = None
    truncate_values: tuple[Any, Any] = (None, True)
    has_openai_form: bool = True
    encodings: Mapping[str, Mapping[str, Any]] = {
        "float": {},
        "base64": {"encoding_format": "base64"},
        "float16": {"encoding_format": "base64", "embed_dtype": "float16", "endianness": "little"},
        "bytes": {"encoding_format": "bytes_only", "embed_dtype": "float32", "endianness": "little"},
    }
    own_fields: frozenset[str] = frozenset(
        {"model", "input", "inputs", "encoding_format", "embed_dtype", "endianness", "dimensions"}
    )

    def forms(self, encoding: str) -> tuple[str, ...]:
        """The forms in which vectors are requested, the best first; empty for an encoding that it lacks."""
        found = tuple(form for form in FALLBACKS[encoding] if form in self.encodings)
        return found if encoding == "auto" or encoding in self.encodings else ()

    def body(self, model: str, texts: Sequence[str], asked: Asked) -> dict[str, Any]:
        """The body of a request, without the fields of `Embeddings(body=...)`."""
        named = {"model": model} if self.needs_model else {}
        fields: dict[str, Any] = {**named, self.texts_field: texts, **self.encodings[asked.encoding]}
        use = asked.input_type or self.default_input_type
        if use is not None and self.input_type_field is not None:
            fields[self.input_type_field] = self.input_types.get(use, use)
        if self.truncate_field is not None:
            value = self.truncate_values[asked.truncates]
            fields |= {} if value is None else {self.truncate_field: value}
        if asked.dimensions is not None:
            fields[self.dimensions_field] = asked.dimensions
        return fields

    def decode(self, response: Response, texts: int, dtype: Any, encoding: str) -> Vectors:
        """The vectors of an answer, in the order of the texts. dtype: of base64. Raises AnswerError."""
        if encoding == "bytes" and response.headers.get("content-type", "").startswith(BYTES_TYPE):
            return decode_bytes(response.body, texts)
        return decode_openai(response.body, texts, dtype)


class Tei(VectorLanguage):
    """TEI's own form, `/embed`: lists of floats."""

    name = "tei"
    path = "/embed"
    provider = "tei"
    max_texts = 32
    needs_model = False
    texts_field = "inputs"
    truncate_field = "truncate"
    has_openai_form = False
    encodings = {"float": {}}  # noqa: RUF012

    def forms(self, encoding: str) -> tuple[str, ...]:
        """Lists, whatever the user has asked for."""
        return ("float",)

    def decode(self, response: Response, texts: int, dtype: Any, encoding: str) -> Vectors:
        """See `VectorLanguage.decode`."""
        header = response.headers.get("x-compute-tokens", "")
        return decode_lists(response.body, texts, int(header) if header.isdecimal() else None)


def vector_language_of(api: object) -> VectorLanguage:
    """The language of a named API, or the one that is given. Raises TypeError and ValueError."""
    return language_named("api", api, VectorLanguage, MODULES)
