"""OpenAI's Responses (`/responses`). Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pillarbox.clients.answers import Answer
from pillarbox.clients.images import Image
from pillarbox.clients.language import FILE_NAME, Fields, Language, Messages, instructions_apart, merged
from pillarbox.clients.structure import Form, forms_by

NO_FIELDS: Fields = {}


class Responses(Language):
    """Requests are not stored, unless the user's body says so: `previous_response_id` needs that."""

    name = "responses"
    path = "/responses"
    own_ends = ("/responses",)
    own_fields = frozenset({"model", "input", "instructions", "stream", "background"})
    text_part: Mapping[str, str] = {"type": "input_text"}
    enough_tokens = "body={'max_output_tokens': 2_000}"

    def forms(self, answer: Answer) -> list[Form]:
        """See `Language.forms`."""

        def by_schema(schema: dict[str, Any]) -> dict[str, Any]:
            described = {"name": answer.name, "schema": schema, "strict": answer.is_strict}
            return {"text": {"format": {"type": "json_schema", **described}}}

        return forms_by(
            answer, by_schema, [Form("json_object", {"text": {"format": {"type": "json_object"}}}, "")]
        )

    def body(self, model: str, messages: Messages, fields: Fields, more: Fields) -> dict[str, Any]:
        """See `Language.body`."""
        system, rest = instructions_apart(messages)
        said = {} if system is None else {"instructions": system}
        return merged({"model": model, **said, "input": rest, "store": False, **more}, fields)

    def part(self, image: Image) -> dict[str, Any]:
        """See `Language.part`."""
        if image.is_file:
            return {"type": "input_file", "filename": FILE_NAME, "file_data": image.address}
        detail = {} if image.detail is None else {"detail": image.detail}
        return {"type": "input_image", "image_url": image.address, **detail}

    def choice(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Language.choice`."""
        items = reply["output"]
        reason = (reply.get("incomplete_details") or NO_FIELDS).get("reason") or reply.get("status")
        if len(items) == 1 and items[0]["type"] == "message" and len(items[0]["content"]) == 1:
            part = items[0]["content"][0]
            if part["type"] == "output_text" and type(text := part.get("text")) is str:
                return {"message": {"content": text}, "finish_reason": reason}
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        message = {
            "content": [{**part, "type": "text"} if part["type"] == "output_text" else part for part in parts]
            or None,
            "tool_calls": [item for item in items if item["type"].endswith("_call")],
            "reasoning": [item for item in items if item["type"] == "reasoning"],
        }
        return {"message": message, "finish_reason": reason}
