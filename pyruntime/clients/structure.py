"""Forms of structured output: how a service is asked for an answer of a type.

Values and pure functions: any thread.
"""

# Services refuse the fields of structured output, know one of its kinds, refuse a schema that says more than
# theirs, or ignore it all without a word. So requests try the forms, the strictest first:
# `pillarbox.clients.forms` says when.

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pillarbox.clients.answers import Answer

STRUCTURES = ("auto", "json_schema", "json_object", "tool", "prompt")

ASK_FOR_SCHEMA_TEXT = "Answer with one JSON object that fits this JSON schema, and with nothing else:\n"


class Form(NamedTuple):
    """One way to ask for an answer of a type.

    kind: "json_schema", "json_object", "tool" or "prompt". fields: of the request's body, beside the others.
    instruction: what the prompt says besides, or nothing.
    """

    kind: str
    fields: dict[str, Any]
    instruction: str

    def extended(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """`messages`, of which the last is the question, with the instruction."""
        if not self.instruction:
            return messages
        *before, question = messages
        return [*before, {**question, "content": f"{question['content']}\n\n{self.instruction}"}]


def forms_by(
    answer: Answer, by_schema: Callable[[dict[str, Any]], dict[str, Any]], weaker: Sequence[Form] = ()
) -> list[Form]:
    """The forms of a service, the strictest first: by a schema, by a plainer one, `weaker`, by the prompt.

    by_schema: gives the fields of a request for a schema. In `weaker`, and where a schema says less than the
    answer's own, the prompt says the rest.
    """
    instruction = ASK_FOR_SCHEMA_TEXT + json.dumps(answer.schema, ensure_ascii=False)
    forms = [Form("json_schema", by_schema(answer.schema), "")]
    if answer.plain_schema != answer.schema:
        # What the service does not hold to stands in the prompt.
        forms.append(Form("json_schema", by_schema(answer.plain_schema), instruction))
    weaker = [form._replace(instruction=instruction) for form in weaker]
    return [*forms, *weaker, Form("prompt", {}, instruction)]


def forms_of(forms: Sequence[Form], structure: str, language: str) -> list[Form]:
    """The forms of a language that `structure`, one of `STRUCTURES`, stands for. Raises ValueError."""
    found = [form for form in forms if structure in ("auto", form.kind)]
    if not found:
        kinds = ", ".join(map(repr, dict.fromkeys(form.kind for form in forms)))
        raise ValueError(f"structure={structure!r}: language={language!r} has no such form, but {kinds}")
    return found
