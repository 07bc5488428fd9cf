"""Replies of models: their text, or why there is none.

Pure; any thread.
"""

# A reply is believed where it is known to be whole. Services end replies for reasons that their own engine
# has words for, and a gateway that loses its service in the middle sends what has come so far with "error".
# Half a text looks like a text, so a reason that is not known to be good is a failed attempt.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pillarbox.aio.errors import shorten
from pillarbox.aio.usage import Usage
from pillarbox.clients.openai_api import ErrorAnswer
from pillarbox.wire import Kind, kind_of_finish

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
"""Fields of a message for what the model has thought."""
REASONING_PARTS = frozenset({"reasoning", "thinking", "redacted_thinking"})
"""Types of parts of a message for the same."""
MEDIA_FIELDS = ("audio", "images")
"""Fields of a message for what is not text."""
TOOL_FIELDS = ("tool_calls", "function_call")
"""Fields of a message for calls of tools."""


class NoReply(ValueError):
    """The base of errors for a reply that is not an answer. It has been paid for: `usage`."""

    kind: ClassVar[Kind]

    def __init__(self, message: str, usage: Usage) -> None:
        super().__init__(message, usage)
        self.usage = usage

    def __str__(self) -> str:
        return str(self.args[0])


class ReplyCut(NoReply):
    """Raised for a reply that ended at a limit of tokens. It has been paid for: `usage`."""

    kind = Kind.CUT


class ReplyRefused(ReplyCut):
    """Raised where the model, or the service's filter, does not answer. It has been paid for: `usage`."""

    kind = Kind.REFUSED_ROW


class ReplyOfOtherKind(NoReply):
    """Raised for a reply without text: the call of a tool, or reasoning alone. It was paid for: `usage`."""

    kind = Kind.OTHER_KIND


class ReplyFailed(NoReply):
    """Raised for a reply that ended for a reason that is not known to be good. Another one may be whole."""

    kind = Kind.FAILED


class ErrorInReply(ErrorAnswer):
    """An error object came beside the choices of a reply, or inside of one. It has been paid for: `usage`."""

    usage: Usage | None = None


_NOT_WHOLE = Kind.REFUSED_ROW, Kind.CUT, Kind.FAILED
"""Kinds of ends of a reply whose text may be a part."""


def text_of(choice: Mapping[str, Any], usage: Usage, enough_tokens: str) -> str | None:
    """The text of a choice, parsed from JSON; None for a message that holds nothing at all.

    enough_tokens: what a user gives for a longer reply.
    Raises the errors of this module, and LookupError, TypeError or AttributeError for what is not a choice.
    """
    message, reason = choice["message"], choice.get("finish_reason")
    text: str | None = message.get("content")
    kinds: dict[str, Any] = {}
    if type(text) is not str:
        text, kinds = _joined(text)
    kind, refusal = kind_of_finish(reason), message.get("refusal") or kinds.get("refusal")
    if text and not refusal and kind not in _NOT_WHOLE and not text.isspace():
        return text
    kinds |= {name: None for name in MEDIA_FIELDS if message.get(name)}
    said = f"finish_reason={shorten(reason)}"
    if refusal or kind is Kind.REFUSED_ROW:
        told = f": {shorten(refusal)}" if refusal else ""
        raise ReplyRefused(f"the model does not answer ({said}){told}", usage)
    if kind is Kind.CUT:
        raise ReplyCut(
            f"the reply was cut at the limit of tokens ({said}); give it more, as in {enough_tokens}, or a "
            "shorter prompt",
            usage,
        )
    if kind is Kind.FAILED:
        raise ReplyFailed(
            f"the reply ended for a reason that is not known to be good ({said}), so that it may be a part",
            usage,
        )
    calls_tool = kind is Kind.OTHER_KIND or any(message.get(name) for name in TOOL_FIELDS)
    if calls_tool:
        raise ReplyOfOtherKind(
            f"the reply is the call of a tool, and no text ({said}): leave the tools out of body, or give "
            "body={'tool_choice': 'none'}",
            usage,
        )
    if any(message.get(name) for name in REASONING_FIELDS) or kinds.keys() & REASONING_PARTS:
        raise ReplyOfOtherKind(
            f"the reply is reasoning alone, and no text ({said}): ask for less of it, as in "
            "body={'reasoning_effort': 'low'}, or give it more tokens; where a service takes all that a "
            "model says for reasoning, start it without its parser of reasoning",
            usage,
        )
    if text is None and kinds:
        raise ReplyOfOtherKind(
            f"the reply has no text, but parts of other kinds ({', '.join(sorted(kinds))}): ask for text, as "
            "in body={'modalities': ['text']}",
            usage,
        )
    return text


def _joined(content: object) -> tuple[str | None, dict[str, Any]]:
    """The text of a message's content, and one part of each other kind by the kind's name."""
    if content is None or isinstance(content, str):
        return content, {}
    if not isinstance(content, list):
        raise TypeError("content")
    if len(content) == 1 and type(part := content[0]) is dict and part.get("type", "text") == "text":
        # As nearly all are.
        text = part.get("text")
        if type(text) is str:
            return text, {}
    texts: list[str] = []
    kinds: dict[str, Any] = {}
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part.get("text"), str) and part.get("type", "text") not in REASONING_PARTS:
            texts.append(part["text"])
        else:
            kind = str(part["type"])
            kinds[kind] = part.get(kind)
    return "".join(texts) if texts else None, kinds
