"""Forms of structured output: how a service is asked for an answer of a type.

Values and pure functions: any thread.
"""

# Services that speak OpenAI's language refuse `response_format`, know one of its kinds, refuse a schema that
# says more than theirs, or ignore it all without a word. So requests try the forms, the strictest first:
# `pillarbox.clients.forms` says when.

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pillarbox.clients.answers import Answer

STRUCTURES = ("auto", "json_schema", "json_object", "prompt")

ASK_FOR_SCHEMA_TEXT = "Answer with one JSON object that fits this JSON schema, and with nothing else:\n"


class Form(NamedTuple):
    """One way to ask for an answer of a type.

    kind: "json_schema", "json_object" or "prompt". response_format: of the request, or None. instruction:
    what the prompt says besides, or nothing.
    """

    kind: str
    response_format: dict[str, Any] | None
    instruction: str

    def extended(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """`messages`, of which the last is the question, with the instruction."""
        if not self.instruction:
            return messages
        *before, question = messages
        return [*before, {**question, "content": f"{question['content']}\n\n{self.instruction}"}]


def forms_of(answer: Answer, structure: str) -> list[Form]:
    """The forms that `structure`, one of `STRUCTURES`, stands for, the strictest first."""
    instruction = ASK_FOR_SCHEMA_TEXT + json.dumps(answer.schema, ensure_ascii=False)

    def by_schema(schema: dict[str, Any], said: str) -> Form:
        described = {"name": answer.name, "schema": schema, "strict": answer.is_strict}
        return Form("json_schema", {"type": "json_schema", "json_schema": described}, said)

    schemas = [by_schema(answer.schema, "")]
    if answer.plain_schema != answer.schema:
        # What the service does not hold to stands in the prompt.
        schemas.append(by_schema(answer.plain_schema, instruction))
    json_object = {"type": "json_object"}
    forms = [
        *schemas,
        # Some services obey a schema here, in particular llama.cpp's.
        Form("json_object", {**json_object, "schema": answer.schema}, instruction),
        Form("json_object", json_object, instruction),
        Form("prompt", None, instruction),
    ]
    return [form for form in forms if structure in ("auto", form.kind)]
