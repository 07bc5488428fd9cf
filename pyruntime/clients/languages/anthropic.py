"""Anthropic's Messages (`/messages`). Pure; any thread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pillarbox.clients.answers import Answer
from pillarbox.clients.images import Image
from pillarbox.clients.language import JSON_BODY, Fields, Language, Messages, instructions_apart, merged
from pillarbox.clients.structure import Form, forms_by
from pillarbox.clients.usage_fields import under_openai_names

MAX_TOKENS = 4_096
"""Tokens of a reply where the user says nothing: the service wants a number, and all its models take this."""
TOOL = "give_answer"
KEPT, WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"
ASKED = ("input_tokens", KEPT, WRITTEN)
"""Counts of the input: what is read from the cache, or written to it, stands beside the rest."""
CACHED = {"cache_control": {"type": "ephemeral"}}


class Anthropic(Language):
    """The instructions are cached: they are the same for all rows."""

    name = "anthropic"
    path = "/messages"
    own_ends = ("/messages",)
    provider = "anthropic"
    key_header = "x-api-key"
    headers: Mapping[str, str] = {**JSON_BODY, "anthropic-version": "2023-06-01"}
    own_fields = frozenset({"model", "messages", "system", "stream"})
    url_schemes, details = ("https",), ()

    def forms(self, answer: Answer) -> list[Form]:
        """See `Language.forms`."""

        def by_schema(schema: dict[str, Any]) -> dict[str, Any]:
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

        tool = {"name": TOOL, "description": f"Give the {answer.name}.", "input_schema": answer.schema}
        asked = {"tools": [tool], "tool_choice": {"type": "tool", "name": TOOL}}
        *schemas, prompt = forms_by(answer, by_schema)
        return [*schemas, Form("tool", asked, ""), prompt]

    def body(self, model: str, messages: Messages, fields: Fields, more: Fields) -> dict[str, Any]:
        """See `Language.body`."""
        system, rest = instructions_apart(messages)
        said = {} if system is None else {"system": [{"type": "text", "text": system, **CACHED}]}
        return merged({"model": model, "max_tokens": MAX_TOKENS, **said, "messages": rest, **more}, fields)

    def part(self, image: Image) -> dict[str, Any]:
        """See `Language.part`."""
        source = {"type": "base64", "media_type": image.type, "data": image.data}
        if image.url is not None:
            source = {"type": "url", "url": image.url}
        return {"type": "document" if image.is_file else "image", "source": source}

    def choice(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Language.choice`."""
        blocks = reply["content"]
        if len(blocks) == 1 and blocks[0]["type"] == "text" and type(text := blocks[0].get("text")) is str:
            return {"message": {"content": text}, "finish_reason": reply.get("stop_reason")}
        tools = [block for block in blocks if block["type"] == "tool_use"]
        content = [block for block in blocks if block["type"] != "tool_use"]
        answers = [json.dumps(tool["input"], ensure_ascii=False) for tool in tools if tool["name"] == TOOL]
        message = {"content": answers[0] if answers else content or None, "tool_calls": tools}
        return {"message": message, "finish_reason": reply.get("stop_reason")}

    def usage(self, reply: Mapping[str, Any]) -> object:
        """See `Language.usage`."""
        counts, answered = reply.get("usage"), ("output_tokens",)
        return under_openai_names(counts, asked=ASKED, answered=answered, kept=KEPT, written=WRITTEN)
