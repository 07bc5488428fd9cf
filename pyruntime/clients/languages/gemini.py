"""Gemini's `generateContent`. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pillarbox.clients.answers import Answer
from pillarbox.clients.images import GIF, HEIC, HEIF, Image
from pillarbox.clients.language import Fields, Language, Messages, in_parts, instructions_apart, merged
from pillarbox.clients.languages.openapi_schema import json_config, openapi_schema, resolution
from pillarbox.clients.structure import Form, forms_by
from pillarbox.clients.usage_fields import under_openai_names


class Gemini(Language):
    """The model stands in the path. A blocked prompt is a refusal, and what was thought is output."""

    name = "gemini"
    path = "/models/{model}:generateContent"
    own_ends = (":generateContent", "/models")
    provider, key_header = "gcp.gemini", "x-goog-api-key"
    own_fields = frozenset({"model", "contents", "systemInstruction", "system_instruction"})
    media_types, url_schemes = (Language.media_types - {GIF}) | {HEIC, HEIF}, ("https", "gs")
    detail_fields: Mapping[str, Fields] = {each: resolution(each) for each in ("low", "high")}
    text_part: Mapping[str, str] = {}
    enough_tokens = "body={'generationConfig': {'maxOutputTokens': 2_000}}"

    def forms(self, answer: Answer) -> list[Form]:
        """See `Language.forms`."""
        older = json_config(responseSchema=openapi_schema(answer.plain_schema))
        weaker = [Form("json_schema", older, ""), Form("json_object", json_config(), "")]
        return forms_by(answer, lambda schema: json_config(responseJsonSchema=schema), weaker)

    def body(self, model: str, messages: Messages, fields: Fields, more: Fields) -> dict[str, Any]:
        """See `Language.body`."""
        system, rest = instructions_apart(messages)
        said = {} if system is None else {"systemInstruction": {"parts": [{"text": system}]}}
        return merged({**said, "contents": in_parts(rest, {"assistant": "model"}), **more}, fields)

    def part(self, image: Image) -> dict[str, Any]:
        """See `Language.part`."""
        inline = {"mimeType": image.type, "data": image.data}
        return {"inlineData": inline} if image.url is None else {"fileData": {"fileUri": image.url}}

    def choice(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Language.choice`."""
        if not reply.get("candidates") and (blocked := reply["promptFeedback"]["blockReason"]):
            refusal = f"the prompt was blocked: {blocked}"
            return {"message": {"content": None, "refusal": refusal}, "finish_reason": blocked}
        candidate = reply["candidates"][0]
        parts = (candidate.get("content") or {}).get("parts") or []
        if len(parts) == 1 and parts[0].keys() == {"text"}:
            return {"message": {"content": parts[0]["text"]}, "finish_reason": candidate.get("finishReason")}
        texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
        message = {
            "content": "".join(texts) if texts else None,
            "reasoning": [part for part in parts if part.get("thought")],
            "tool_calls": [part for part in parts if "functionCall" in part],
        }
        return {"message": message, "finish_reason": candidate.get("finishReason")}

    def usage(self, reply: Mapping[str, Any]) -> object:
        """See `Language.usage`."""
        return under_openai_names(
            reply.get("usageMetadata"),
            asked=("promptTokenCount", "toolUsePromptTokenCount"),
            answered=("candidatesTokenCount", "thoughtsTokenCount"),
            in_all="totalTokenCount",
            kept="cachedContentTokenCount",
        )
