"""The languages of models beside OpenAI's chat completions, as the stand-in service answers them.

Pure; any thread. Each function takes a request and gives the body of its answer, or raises `Refused` for what
the real service refuses: fields that it does not know, a missing `max_tokens`, headers, roles.
"""

# Written from the published references. A stub that takes what the real one refuses would let a client be
# wrong until its first day in production.

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from pillarbox.testing.stand_in_images import (
    IMAGE_TOKENS,
    Content,
    anthropic_content,
    gemini_content,
    responses_content,
)
from pillarbox.testing.stand_in_values import SchemaRefused, count_tokens, reply


class Refused(Exception):
    """Raised by what answers a request: the status, message and code of an error object.

    body: of the answer, where the error has not OpenAI's form.
    """

    def __init__(self, status: HTTPStatus, message: str, code: str | None = None, body: Any = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        described = {"message": message, "type": "invalid_request_error", "code": code}
        self.body = {"error": described} if body is None else body


class Answered(NamedTuple):
    """An answer: its body, what was asked, for the books, and the tokens of both."""

    body: Any
    asked: bytes
    tokens: int


class _Said(NamedTuple):
    text: str
    asked: int
    answered: int
    is_cut: bool


def _say(messages: list[dict[str, Any]], schema: Any, as_json: bool, most: float) -> _Said:
    """The text of a reply to messages in OpenAI's form. Raises SchemaRefused."""
    images = images_in(messages)
    text = answer_of(messages, schema, as_json)
    asked, said = sum(count_tokens(str(each["content"])) for each in messages), count_tokens(text)
    asked += IMAGE_TOKENS * len(images)
    if said > most:
        return _Said(" ".join(text.split()[: int(most)]), asked, int(most), True)
    return _Said(text, asked, said, False)


def images_in(messages: list[dict[str, Any]]) -> list[str]:
    """The descriptions of all images of messages: a question about images is answered with them."""
    return [image for each in messages for image in each.get("images", ())]


def answer_of(messages: list[dict[str, Any]], schema: Any, as_json: bool) -> str:
    """The text of a reply: what it says of images where no JSON is asked for. Raises SchemaRefused."""
    images = images_in(messages)
    wants_json = as_json or schema is not None or any('"properties"' in each["content"] for each in messages)
    return " ".join(images) if images and not wants_json else reply(messages, schema, as_json)


def message_of(role: str, content: Content) -> dict[str, Any]:
    """A message in OpenAI's form, with descriptions in place of images."""
    images = {"images": [*content.images]} if content.images else {}
    return {"role": role, "content": content.text, **images}


Refuse = Callable[..., Refused]


def _no_others(body: Mapping[str, Any], known: str, refuse: Refuse, said: str) -> None:
    for name in body:
        if name not in known.split():
            raise refuse(said.format(name=name))


def _messages(
    given: object, roles: tuple[str, ...], read: Callable[[object, Refuse], Content], refuse: Refuse
) -> list[Any]:
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise refuse("messages: at least one message is required")
    found = []
    for place, each in enumerate(given):
        _no_others(
            each, "role content type", refuse, f"messages.{place}.{{name}}: Extra inputs are not permitted"
        )
        if each.get("role") not in roles:
            raise refuse(f"messages: Unexpected role {each.get('role')!r}; allowed are {', '.join(roles)}")
        found.append(message_of(each["role"], read(each.get("content"), refuse)))
    if found[0]["role"] == "assistant":
        raise refuse('messages: first message must use the "user" role')
    return found


def _every_object(schema: Any, is_right: Callable[[Mapping[str, Any]], bool]) -> bool:
    if isinstance(schema, list):
        return all(_every_object(each, is_right) for each in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" and not is_right(schema):
        return False
    return all(_every_object(each, is_right) for each in schema.values())


def _has_word(schema: Any, words: frozenset[str]) -> str | None:
    """One of these keywords in a schema; names of properties are none."""
    if isinstance(schema, list):
        return next((found for each in schema if (found := _has_word(each, words))), None)
    if not isinstance(schema, Mapping):
        return None
    for word, value in schema.items():
        if word in words:
            return str(word)
        below: Any = value
        if word == "properties" and isinstance(value, Mapping):
            below = [*value.values()]
        if word not in ("enum", "required") and (found := _has_word(below, words)):
            return found
    return None


# -- OpenAI's Responses --------------------------------------------------------------------------------------

RESPONSES_FIELDS = """background conversation include input instructions max_output_tokens max_tool_calls
metadata model parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention
reasoning safety_identifier service_tier store stream stream_options temperature text
tool_choice tools top_logprobs top_p truncation user"""


def responses(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """OpenAI's Responses."""

    def refuse(message: str, code: str | None = None) -> Refused:
        return Refused(HTTPStatus.BAD_REQUEST, message, code)

    _no_others(body, RESPONSES_FIELDS, refuse, "Unknown parameter: '{name}'.")
    if not isinstance(body.get("model"), str):
        raise refuse("Missing required parameter: 'model'.")
    given = body.get("input")
    given = [{"role": "user", "content": given}] if isinstance(given, str) else given
    roles = ("user", "assistant", "system", "developer")
    messages = _messages(given, roles, responses_content, refuse)
    if "instructions" in body:
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    form = (body.get("text") or {}).get("format") or {"type": "text"}
    kind, schema = form.get("type"), form.get("schema")
    if kind not in ("text", "json_object", "json_schema"):
        raise refuse(f"Invalid value: 'text.format.type' {kind!r}")
    if kind == "json_schema" and not (isinstance(form.get("name"), str) and isinstance(schema, dict)):
        raise refuse("Missing required parameter: 'text.format.name' or 'text.format.schema'.")

    def is_strict(part: Mapping[str, Any]) -> bool:
        return part.get("additionalProperties") is False and set(part.get("required", ())) == set(
            part.get("properties", ())
        )

    if form.get("strict") and not _every_object(schema, is_strict):
        raise refuse("Invalid schema for response_format: 'additionalProperties' is required to be false")
    if kind == "json_object" and "json" not in json.dumps(messages).lower():
        raise refuse("'text.format' of type 'json_object' needs the word 'json' in the input")
    try:
        said = _say(messages, schema, kind != "text", body.get("max_output_tokens") or float("inf"))
    except SchemaRefused as refused:
        raise refuse(f"Invalid schema for 'text.format': {refused}") from None
    part = {"type": "output_text", "text": said.text, "annotations": []}
    status = "incomplete" if said.is_cut else "completed"
    item = {"type": "message", "role": "assistant", "status": status, "content": [part], "id": "msg_0"}
    asked = json.dumps(messages, sort_keys=True).encode()
    answer = {
        "id": f"resp_{zlib.crc32(asked):08x}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if said.is_cut else None,
        "model": body["model"],
        "output": [{"type": "reasoning", "id": "rs_0", "summary": []}, item],
        "usage": {
            "input_tokens": said.asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said.answered,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": said.asked + said.answered,
        },
    }
    return Answered(answer, asked, said.asked + said.answered)


# -- Anthropic's Messages ------------------------------------------------------------------------------------

ANTHROPIC_FIELDS = """cache_control container context_management inference_geo max_tokens mcp_servers messages
metadata model output_config service_tier stop_sequences stream system temperature thinking
tool_choice tools top_k top_p"""
BOUNDS = frozenset(
    ("minimum", "maximum", "multipleOf", "minLength", "maxLength", "maxItems", "exclusiveMinimum", "default")
)


def anthropic_error(status: HTTPStatus, kind: str, message: str) -> Refused:
    """An error in Anthropic's form."""
    return Refused(status, message, body={"type": "error", "error": {"type": kind, "message": message}})


def anthropic(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Anthropic's Messages. A model whose name begins with "claude-3" has no structured output of its own."""

    def refuse(message: str) -> Refused:
        return anthropic_error(HTTPStatus.BAD_REQUEST, "invalid_request_error", message)

    if "anthropic-version" not in headers:
        raise refuse("anthropic-version: header is required")
    _no_others(body, ANTHROPIC_FIELDS, refuse, "{name}: Extra inputs are not permitted")
    for name, kind in (("model", str), ("max_tokens", int), ("messages", list)):
        if not isinstance(body.get(name), kind):
            raise refuse(f"{name}: Field required")
    if body["max_tokens"] < 1:
        raise refuse("max_tokens: Input should be greater than or equal to 1")
    messages = _messages(body["messages"], ("user", "assistant"), anthropic_content, refuse)
    system, kept = body.get("system"), 0
    if system is not None:
        blocks: Any = [{"type": "text", "text": system}] if isinstance(system, str) else system
        for block in blocks:
            _no_others(
                block,
                "type text cache_control citations",
                refuse,
                "system.{name}: Extra inputs are not permitted",
            )
            if block.get("type") != "text" or not block.get("text", "").strip():
                raise refuse("system: text content blocks must be non-empty")
            if block.get("cache_control", {"type": "ephemeral"}).get("type") != "ephemeral":
                raise refuse("system.cache_control.type: Input should be 'ephemeral'")
            kept += count_tokens(block["text"]) if "cache_control" in block else 0
        text = "".join(block["text"] for block in blocks)
        messages.insert(0, {"role": "system", "content": text})
    schema = _anthropic_schema(body, refuse)
    tool = (body.get("tool_choice") or {}).get("name")
    if tool is not None:
        tools = {each.get("name"): each for each in body.get("tools") or ()}
        if tool not in tools or tools[tool].get("input_schema", {}).get("type") != "object":
            raise refuse(f"tool_choice: Tool '{tool}' not found in provided tools")
        schema = tools[tool]["input_schema"]
    try:
        said = _say(messages, schema, schema is not None, body["max_tokens"])
    except SchemaRefused as refused:
        raise refuse(f"output_config.format.schema: {refused}") from None
    block = {"type": "text", "text": said.text}
    if tool is not None and not said.is_cut:
        block = {"type": "tool_use", "id": "toolu_0", "name": tool, "input": json.loads(said.text)}
    reason = "max_tokens" if said.is_cut else "end_turn" if tool is None else "tool_use"
    asked = json.dumps(messages, sort_keys=True).encode()
    answer = {
        "id": f"msg_{zlib.crc32(asked):08x}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [block],
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": said.asked - kept,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": kept,
            "output_tokens": said.answered,
        },
    }
    return Answered(answer, asked, said.asked + said.answered)


def _anthropic_schema(body: Mapping[str, Any], refuse: Refuse) -> Any:
    config = body.get("output_config") or {}
    _no_others(config, "effort format", refuse, "output_config.{name}: Extra inputs are not permitted")
    form = config.get("format")
    if form is None:
        return None
    if body["model"].startswith("claude-3"):
        raise refuse(f"output_config.format: '{body['model']}' does not support output format")
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise refuse("output_config.format.type: Input should be 'json_schema'")
    if not _every_object(form["schema"], lambda part: part.get("additionalProperties") is False):
        raise refuse(
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be set to false"
        )
    bound = _has_word(form["schema"], BOUNDS)
    if bound:
        raise refuse(f"output_config.format.schema: property '{bound}' is not supported")
    return form["schema"]


# -- Gemini's generateContent --------------------------------------------------------------------------------

GEMINI_FIELDS = """cachedContent contents generationConfig labels model safetySettings store systemInstruction
toolConfig tools"""
GEMINI_CONFIG = """candidateCount enableEnhancedCivicAnswers frequencyPenalty logprobs maxOutputTokens
mediaResolution presencePenalty responseJsonSchema responseLogprobs responseMimeType
responseModalities responseSchema seed speechConfig stopSequences temperature thinkingConfig
topK topP"""
OPENAPI_WORDS = """anyOf default description enum example format items maxItems maxLength maxProperties
maximum minItems minLength minProperties minimum nullable pattern properties propertyOrdering required title
type"""


def gemini_error(status: HTTPStatus, word: str, message: str, reason: str | None = None) -> Refused:
    """An error in Google's form."""
    error: dict[str, Any] = {"code": status.value, "message": message, "status": word}
    if reason is not None:
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        error["details"] = [{"@type": kind, "reason": reason, "domain": "googleapis.com"}]
    return Refused(status, message, body={"error": error})


def gemini(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Gemini's `generateContent`. A model whose name begins with "gemini-1" knows `responseSchema` alone."""

    def refuse(message: str) -> Refused:
        return gemini_error(HTTPStatus.BAD_REQUEST, "INVALID_ARGUMENT", message)

    unknown = 'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
    body = _camel_case(body)
    _no_others(body, GEMINI_FIELDS, refuse, unknown)
    config = _camel_case(body.get("generationConfig") or {})
    _no_others(config, GEMINI_CONFIG, refuse, unknown)
    if not body.get("contents"):
        raise refuse("* GenerateContentRequest.contents: contents is not specified")
    messages = []
    for each in body["contents"]:
        _no_others(each, "role parts", refuse, unknown)
        if each.get("role", "user") not in ("user", "model"):
            raise refuse("Please use a valid role: user, model.")
        role = "assistant" if each.get("role") == "model" else "user"
        messages.append(message_of(role, gemini_content(each, refuse)))
    if "systemInstruction" in body:
        system = gemini_content(body["systemInstruction"], refuse)
        messages.insert(0, {"role": "system", "content": system.text})
    schema = _gemini_schema(config, model, refuse)
    as_json = config.get("responseMimeType") == "application/json"
    try:
        said = _say(messages, schema, as_json, config.get("maxOutputTokens") or float("inf"))
    except SchemaRefused as refused:
        raise refuse(f"generation_config.response_schema: {refused}") from None
    content = {"role": "model", "parts": [{"text": said.text}]}
    asked = json.dumps(messages, sort_keys=True).encode()
    answer = {
        "candidates": [
            {"content": content, "finishReason": "MAX_TOKENS" if said.is_cut else "STOP", "index": 0}
        ],
        "usageMetadata": {
            "promptTokenCount": said.asked,
            "candidatesTokenCount": said.answered,
            "totalTokenCount": said.asked + said.answered,
        },
        "modelVersion": model,
        "responseId": f"{zlib.crc32(asked):08x}",
    }
    return Answered(answer, asked, said.asked + said.answered)


def _camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by the names of JSON. Google's services take those of its protocol buffers too, with `_`."""
    return {re.sub("_([a-z])", lambda found: found[1].upper(), name): of for name, of in fields.items()}


def _gemini_schema(config: Mapping[str, Any], model: str, refuse: Refuse) -> Any:
    named = [name for name in ("responseSchema", "responseJsonSchema") if name in config]
    if not named:
        return None
    if len(named) > 1 or config.get("responseMimeType") != "application/json":
        raise refuse("a response schema needs response_mime_type: 'application/json', and no second one")
    schema = config[named[0]]
    if named == ["responseJsonSchema"]:
        if model.startswith("gemini-1"):
            raise refuse("responseJsonSchema is not supported by this model")
        return schema
    _check_openapi(schema, refuse)
    return _with_null(schema)


def _check_openapi(schema: Any, refuse: Refuse) -> None:
    for word in schema:
        if word not in OPENAPI_WORDS.split():
            raise refuse(
                f"Unknown name \"{word}\" at 'generation_config.response_schema': Cannot find field."
            )
    if not isinstance(schema.get("type", ""), str) or schema.get("type") == "null":
        raise refuse("Proto field is not repeating: generation_config.response_schema.type")
    if not all(isinstance(each, str) for each in schema.get("enum", ())):
        raise refuse("generation_config.response_schema.enum: only allowed for STRING type")
    if schema.get("type") == "object" and not schema.get("properties"):
        raise refuse("generation_config.response_schema.properties: should be non-empty for OBJECT type")
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for part in [*below, *([schema["items"]] if "items" in schema else [])]:
        _check_openapi(part, refuse)


def _with_null(schema: Any) -> Any:
    """The schema in words of JSON Schema."""
    found = {word: value for word, value in schema.items() if word != "nullable"}
    for word in ("properties",):
        if word in found:
            found[word] = {name: _with_null(each) for name, each in found[word].items()}
    if "items" in found:
        found["items"] = _with_null(found["items"])
    if "anyOf" in found:
        found["anyOf"] = [_with_null(each) for each in found["anyOf"]]
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


LANGUAGES: Mapping[str, Callable[[dict[str, Any], Mapping[str, str], str], Answered]] = {
    "/responses": responses,
    "/messages": anthropic,
    ":generateContent": gemini,
}
"""By the end of a path."""


def key_refused(path: str) -> Refused:
    """The error for a wrong key."""
    if path.endswith("/messages"):
        return anthropic_error(HTTPStatus.UNAUTHORIZED, "authentication_error", "invalid x-api-key")
    if path.endswith((":generateContent", ":batchEmbedContents")):
        message = "API key not valid. Please pass a valid API key."
        return gemini_error(HTTPStatus.BAD_REQUEST, "INVALID_ARGUMENT", message, "API_KEY_INVALID")
    return Refused(HTTPStatus.UNAUTHORIZED, "Incorrect API key provided", "invalid_api_key")


KEY_HEADERS = {
    "/messages": "x-api-key",
    ":generateContent": "x-goog-api-key",
    ":batchEmbedContents": "x-goog-api-key",
}
"""The header of the key, by the end of a path; others take a bearer token or Azure's."""
