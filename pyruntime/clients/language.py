"""Languages of chats: what a request is, and where a reply has its text, its counts and its errors.

A `Language` is a description without state: any thread. `Chat` speaks the one that it is given.
"""

# Why a reply is turned into one of OpenAI's form, and not into a text. Whether a reply is an answer, was cut,
# refused or is of another kind is decided in one place, by one table, whoever has sent it; so a language says
# where things are, and judges none of them. Why counts go by OpenAI's names: likewise.
#
# Why `choice` looks first for a part of text that is alone: nearly all replies are one, and the lists of what
# else there may be would cost as much as the reading of their JSON.
#
# Why the languages of others are modules of their own: a worker loads the one that it speaks.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pillarbox.clients.answers import Answer
from pillarbox.clients.images import DETAILS, IMAGE_TYPES, PDF, Image
from pillarbox.clients.named_languages import language_named
from pillarbox.clients.structure import Form, forms_by

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Fields: TypeAlias = Mapping[str, Any]
"""Messages of a chat, and fields of the body of a request."""

FILE_NAME = "file.pdf"
"""The name of a PDF in a request: services ask for one, and a column has none."""
JSON_BODY = {"Content-Type": "application/json"}
MODULES = {
    "openai": "pillarbox.clients.language:Language",
    "responses": "pillarbox.clients.languages.responses:Responses",
    "anthropic": "pillarbox.clients.languages.anthropic:Anthropic",
    "gemini": "pillarbox.clients.languages.gemini:Gemini",
}
"""The class of each language that has a name."""


class Language:
    """Description of the API of a service of chats, for `Chat(language=...)`.

    This one is OpenAI's chat completions. A class that derives from it says what differs; it needs no other
    code, and its objects have no state.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Chat, Language
        >>> from pillarbox.testing import serve
        >>> class Gateway(Language):
        ...     name = "gateway"
        ...     key_header = "X-Gateway-Key"
        ...     def body(self, model, messages, fields, more):
        ...         return {**super().body(model, messages, fields, more), "user": "nightly"}
        >>> with serve() as service:
        ...     client = Chat(service.url, "small", prompt="Good or bad: {text}", language=Gateway())
        ...     list(async_map([{"text": "a lovely soup"}], client))
        ['good']

    name: stands in the key of a cache, as another language gives other answers. path: of requests, after the
    base URL; `{model}` is the model. provider: the service's name for OpenTelemetry. key_header: the header
    of the key, "bearer" for a bearer token. headers: of each request. own_fields: fields of a body that the
    client sets. enough_tokens: how a user allows a longer reply, for an error. media_types: types of images
    and files that the service takes. url_schemes: of addresses of images. details: values of
    `Images(detail=...)` that it has. detail_fields: fields of the body for those that no part of a message
    says. text_part: fields of a part with `text` beside images. Any thread.
    """

    name: str = "openai"
    path: str = "/chat/completions"
    own_ends: tuple[str, ...] = ("/chat/completions", "/completions")
    provider: str = "openai"
    key_header: str = "bearer"
    headers: Mapping[str, str] = JSON_BODY
    own_fields: frozenset[str] = frozenset({"model", "messages", "response_format", "stream", "n"})
    enough_tokens: str = "body={'max_tokens': 2_000}"
    media_types: frozenset[str] = IMAGE_TYPES | {PDF}
    url_schemes: tuple[str, ...] = ("https", "http")
    details: tuple[str, ...] = DETAILS
    detail_fields: Mapping[str, Fields] = {}
    text_part: Mapping[str, str] = {"type": "text"}

    def forms(self, answer: Answer) -> list[Form]:
        """The ways to request an answer of a type, the strictest first."""
        json_object = {"type": "json_object"}

        def by_schema(schema: dict[str, Any]) -> dict[str, Any]:
            described = {"name": answer.name, "schema": schema, "strict": answer.is_strict}
            return {"response_format": {"type": "json_schema", "json_schema": described}}

        weaker = (
            # Some services obey a schema here, in particular llama.cpp's.
            Form("json_object", {"response_format": {**json_object, "schema": answer.schema}}, ""),
            Form("json_object", {"response_format": json_object}, ""),
        )
        return forms_by(answer, by_schema, weaker)

    def body(self, model: str, messages: Messages, fields: Fields, more: Fields) -> dict[str, Any]:
        """The body of a request.

        messages: with `role` ("system" for the first one at most, "user", "assistant") and `content`, which
        is a text, or for a row with images what `content` gives.
        fields: of the form in which an answer is requested. more: those of `Chat(body=...)`.
        """
        return {"model": model, "messages": messages, **more, **fields}

    def content(self, text: str, images: Sequence[Image]) -> Any:
        """The content of a message with images and files: the parts of these, and then the text.

        The base64 of an image is put in place of `Image.data` where the request is sent.
        """
        return [*map(self.part, images), {**self.text_part, "text": text}]

    def part(self, image: Image) -> dict[str, Any]:
        """The part of a message that is an image or a file."""
        if image.is_file:
            return {"type": "file", "file": {"filename": FILE_NAME, "file_data": image.address}}
        detail = {} if image.detail is None else {"detail": image.detail}
        return {"type": "image_url", "image_url": {"url": image.address, **detail}}

    def headers_of(self, url: str, body: bytes) -> Mapping[str, str]:
        """The headers of one request beside that of the key: `headers`, and a signature where there is one.

        It is called on the thread of the event loop, for each attempt.
        """
        return self.headers

    def choice(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a reply, parsed from JSON, as a choice in OpenAI's form: `message`, `finish_reason`.

        Raises LookupError, TypeError or AttributeError for what is not a reply.
        """
        choice: Mapping[str, Any] = reply["choices"][0]
        return choice

    def usage(self, reply: Mapping[str, Any]) -> object:
        """The object with the counts of tokens under OpenAI's names; None where there are none."""
        return reply.get("usage")


def language_of(language: object) -> Language:
    """The language of a name, or the one that is given. Raises TypeError and ValueError."""
    return language_named("language", language, Language, MODULES)


def instructions_apart(messages: Messages) -> tuple[str | None, Messages]:
    """The text of the system's message, None if there is none, and the messages behind it."""
    if messages[0]["role"] == "system":
        return messages[0]["content"], messages[1:]
    return None, messages


def in_parts(messages: Messages, roles: Mapping[str, str]) -> list[dict[str, Any]]:
    """The messages with parts for contents. roles: those that have another name here, by their name."""
    found = []
    for each in messages:
        role, content = each["role"], each["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        found.append({"role": roles.get(role, role), "parts": parts})
    return found


def merged(body: Fields, fields: Fields) -> dict[str, Any]:
    """A body with more fields. Objects of one name are merged, the later fields in front."""
    found = {**body, **fields}
    if len(found) == len(body) + len(fields):
        return found
    for name in body.keys() & fields.keys():
        given, value = body[name], fields[name]
        if isinstance(given, Mapping) and isinstance(value, Mapping):
            found[name] = {**given, **value}
    return found
