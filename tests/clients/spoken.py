"""The languages of chats as they are on the wire, for the suite that all of them pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Reply = dict[str, Any]


class Counts(NamedTuple):
    """Tokens of a reply. fresh, kept, written: of the input, which has no others."""

    fresh: int
    kept: int
    written: int
    answered: int


class Spoken(NamedTuple):
    """One language.

    reply: a reply with a text, a reason and counts (None for a service that does not count). cut, refused:
    reasons. others: replies of another kind, by what their error says. errors: bodies of errors, with status
    and the name of the kind as which they are read. key_header, key_value: of the key "k". needs: headers of
    each request. asked: the system's text, and the pairs of role and text, of a body. more: fields of the
    user's.
    """

    path: str
    key_header: str
    key_value: str
    reply: Callable[[str, str | None, Counts | None], Reply]
    good: tuple[str | None, ...]
    cut: str
    refused: str
    others: Mapping[str, Reply]
    errors: tuple[tuple[int, str, Any], ...]
    asked: Callable[[dict[str, Any]], tuple[str | None, list[tuple[str, str]]]]
    more: dict[str, Any]
    needs: Mapping[str, str] = {}


def _openai_usage(counts: Counts | None) -> Any:
    if counts is None:
        return None
    asked = counts.fresh + counts.kept + counts.written
    details = {"cached_tokens": counts.kept}
    return {"prompt_tokens": asked, "completion_tokens": counts.answered, "prompt_tokens_details": details}


def _openai(text: str, reason: str | None, counts: Counts | None) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"choices": [choice], "model": "small", "usage": _openai_usage(counts)}


def _messages_of(body: dict[str, Any]) -> tuple[str | None, list[tuple[str, str]]]:
    said = [(each["role"], each["content"]) for each in body["messages"]]
    return (said[0][1], said[1:]) if said[0][0] == "system" else (None, said)


def _tool_choice(**message: Any) -> Reply:
    choice = {"message": {"content": None, **message}, "finish_reason": "tool_calls"}
    return {"choices": [choice]}


OPENAI = Spoken(
    path="/v1/chat/completions",
    key_header="authorization",
    key_value="Bearer k",
    reply=_openai,
    good=("stop", None),
    cut="length",
    refused="content_filter",
    others={"the call of a tool": _tool_choice(tool_calls=[{"id": "1"}])},
    errors=(
        (429, "OVERLOADED", {"error": {"message": "slow", "code": "rate_limit_exceeded"}}),
        (429, "OUT_OF_QUOTA", {"error": {"message": "no", "code": "insufficient_quota"}}),
        (
            404,
            "REFUSED_ALL",
            {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}},
        ),
        (401, "REFUSED_ALL", {"error": {"message": "no", "code": "invalid_api_key"}}),
        # Of a LiteLLM proxy: a model that it lacks, a key that is not its own.
        (
            400,
            "REFUSED_ALL",
            {"error": {"message": "/responses: Invalid model name passed in model=m.", "code": "400"}},
        ),
        (
            400,
            "REFUSED_ALL",
            {"error": {"message": "No connected db.", "type": "no_db_connection", "code": "400"}},
        ),
        (400, "REFUSED_ROW", {"error": {"message": "long", "code": "context_length_exceeded"}}),
        (200, "OVERLOADED", {"error": {"message": "slow", "code": 429}}),
    ),
    asked=_messages_of,
    more={"temperature": 0},
)


def _responses(text: str, reason: str | None, counts: Counts | None) -> Reply:
    ended = reason in ("completed", None)
    usage = None
    if counts is not None:
        asked = counts.fresh + counts.kept + counts.written
        details = {"cached_tokens": counts.kept}
        usage = {"input_tokens": asked, "output_tokens": counts.answered, "input_tokens_details": details}
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "object": "response",
        "status": "completed" if ended else "incomplete",
        "error": None,
        "incomplete_details": None if ended else {"reason": reason},
        "model": "small",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [part]},
        ],
        "usage": usage,
    }


def _output(*items: Any) -> Reply:
    return {"status": "completed", "error": None, "output": [*items]}


RESPONSES = Spoken(
    path="/v1/responses",
    key_header="authorization",
    key_value="Bearer k",
    reply=_responses,
    good=("completed",),
    cut="max_output_tokens",
    refused="content_filter",
    others={
        "the call of a tool": _output({"type": "function_call", "name": "f", "arguments": "{}"}),
        "reasoning alone": _output({"type": "reasoning", "summary": []}),
        "does not answer": _output({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}),
        "parts of other kinds": _output({"type": "message", "content": [{"type": "output_text"}]}),
    },
    errors=(
        *OPENAI.errors,
        (
            200,
            "FAILED",
            {"status": "failed", "output": [], "error": {"code": "server_error", "message": "no"}},
        ),
        (200, "OVERLOADED", {"output": [], "error": {"code": "rate_limit_exceeded", "message": "slow"}}),
    ),
    asked=lambda body: (
        body.get("instructions"),
        [(each["role"], each["content"]) for each in body["input"]],
    ),
    more={"previous_response_id": "resp_1", "store": True},
)


def _anthropic(text: str, reason: str | None, counts: Counts | None) -> Reply:
    usage = None
    if counts is not None:
        usage = {
            "input_tokens": counts.fresh,
            "cache_read_input_tokens": counts.kept,
            "cache_creation_input_tokens": counts.written or None,
            "output_tokens": counts.answered,
        }
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": text}]
    return {"type": "message", "model": "small", "content": content, "stop_reason": reason, "usage": usage}


def _blocks(reason: str, *blocks: Any) -> Reply:
    return {"type": "message", "content": [*blocks], "stop_reason": reason}


def _anthropic_error(kind: str, message: str = "no") -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _asked_of_anthropic(body: dict[str, Any]) -> tuple[str | None, list[tuple[str, str]]]:
    blocks = body.get("system")
    if blocks is not None:
        assert [each["cache_control"] for each in blocks] == [{"type": "ephemeral"}]
    assert body["max_tokens"] > 0
    system = None if blocks is None else "".join(each["text"] for each in blocks)
    return system, [(each["role"], each["content"]) for each in body["messages"]]


ANTHROPIC = Spoken(
    path="/v1/messages",
    key_header="x-api-key",
    key_value="k",
    needs={"anthropic-version": "2023-06-01"},
    reply=_anthropic,
    good=("end_turn", "stop_sequence"),
    cut="max_tokens",
    refused="refusal",
    others={
        "the call of a tool": _blocks("tool_use", {"type": "tool_use", "name": "mine", "input": {}}),
        "reasoning alone": _blocks("end_turn", {"type": "thinking", "thinking": "Hm."}),
        "parts of other kinds": _blocks("end_turn", {"type": "text"}),
    },
    errors=(
        (429, "OVERLOADED", _anthropic_error("rate_limit_error")),
        (529, "OVERLOADED", _anthropic_error("overloaded_error", "Overloaded")),
        (200, "OVERLOADED", _anthropic_error("overloaded_error", "Overloaded")),
        (400, "OUT_OF_QUOTA", _anthropic_error("invalid_request_error", "Your credit balance is too low.")),
        (402, "OUT_OF_QUOTA", _anthropic_error("billing_error")),
        (401, "REFUSED_ALL", _anthropic_error("authentication_error", "invalid x-api-key")),
        (404, "REFUSED_ALL", _anthropic_error("not_found_error", "model: claude-next")),
        (413, "REFUSED_SIZE", _anthropic_error("request_too_large")),
        (400, "REFUSED_ROW", _anthropic_error("invalid_request_error", "prompt is too long: 9 tokens > 8")),
        (500, "FAILED", _anthropic_error("api_error")),
    ),
    asked=_asked_of_anthropic,
    more={"max_tokens": 9, "thinking": {"type": "disabled"}},
)


def _gemini(text: str, reason: str | None, counts: Counts | None) -> Reply:
    parts = [{"text": "Hm.", "thought": True}, {"text": text[:1]}, {"text": text[1:]}]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}
    reply: Reply = {"candidates": [candidate], "modelVersion": "small"}
    if counts is not None:
        # What was thought is counted apart.
        reply["usageMetadata"] = {
            "promptTokenCount": counts.fresh + counts.kept + counts.written,
            "cachedContentTokenCount": counts.kept,
            "candidatesTokenCount": counts.answered - 1,
            "thoughtsTokenCount": 1,
        }
    return reply


def _candidate(reason: str, *parts: Any) -> Reply:
    return {"candidates": [{"content": {"role": "model", "parts": [*parts]}, "finishReason": reason}]}


def _google_error(code: int, status: str, message: str = "no", *details: Any) -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": [*details]}}


def _asked_of_gemini(body: dict[str, Any]) -> tuple[str | None, list[tuple[str, str]]]:
    system = body.get("systemInstruction")
    names = {"model": "assistant", "user": "user"}
    said = [
        (names[each["role"]], "".join(part["text"] for part in each["parts"])) for each in body["contents"]
    ]
    return None if system is None else system["parts"][0]["text"], said


GEMINI = Spoken(
    path="/v1/models/small:generateContent",
    key_header="x-goog-api-key",
    key_value="k",
    reply=_gemini,
    good=("STOP",),
    cut="MAX_TOKENS",
    refused="SAFETY",
    others={
        "the call of a tool": _candidate("STOP", {"functionCall": {"name": "f", "args": {}}}),
        "reasoning alone": _candidate("STOP", {"text": "Hm.", "thought": True}),
        "the prompt was blocked: OTHER": {"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {}},
        "finish_reason='RECITATION'": {"candidates": [{"finishReason": "RECITATION", "index": 0}]},
    },
    errors=(
        (429, "OVERLOADED", _google_error(429, "RESOURCE_EXHAUSTED", "quota", {"retryDelay": "0.01s"})),
        (503, "OVERLOADED", _google_error(503, "UNAVAILABLE", "The model is overloaded.")),
        (400, "REFUSED_ALL", _google_error(400, "INVALID_ARGUMENT", "no", {"reason": "API_KEY_INVALID"})),
        (403, "REFUSED_ALL", _google_error(403, "PERMISSION_DENIED")),
        (404, "REFUSED_ALL", _google_error(404, "NOT_FOUND", "models/x is not found for API version v1")),
        (400, "REFUSED_ROW", _google_error(400, "INVALID_ARGUMENT", "token count exceeds the maximum")),
        (500, "FAILED", _google_error(500, "INTERNAL")),
    ),
    asked=_asked_of_gemini,
    more={"generationConfig": {"temperature": 0}},
)

SPOKEN = {"openai": OPENAI, "responses": RESPONSES, "anthropic": ANTHROPIC, "gemini": GEMINI}
