"""Forms of structured output: schemas without bounds."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")

from pillarbox.clients.answers import Answer
from pillarbox.clients.language import Language


def plain_of(fields: dict[str, Any], **more: Any) -> Any:
    return Answer({"type": "object", "properties": fields, **more}).plain_schema


def test_a_plain_schema_has_no_bounds_and_keeps_all_else() -> None:
    fields = {
        "n": {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 3, "description": "how many"},
        "day": {"type": ["string", "null"], "format": "date", "default": None},
        "tags": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"type": "string", "maxLength": 5, "enum": ["a", "b"]},
        },
        "kind": {"const": "x"},
        "one": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    }
    plain = plain_of(fields, required=["n"], additionalProperties=False, examples=[{}])
    assert plain == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "how many"},
            "day": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            "kind": {"enum": ["x"]},
            "one": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["n"],
        "additionalProperties": False,
    }


def test_fields_whose_names_are_words_of_schemas_stay() -> None:
    names = ("minimum", "default", "format", "enum", "not", "properties")
    fields = {name: {"type": "integer", "minimum": 1} for name in names}
    assert plain_of(fields)["properties"] == {name: {"type": "integer"} for name in names}


def test_values_of_an_enum_are_not_taken_for_schemas() -> None:
    fields = {"a": {"enum": [{"minimum": 1}, "default"]}}
    assert plain_of(fields)["properties"] == fields


def test_a_schema_without_bounds_has_one_form_by_schema() -> None:
    kinds = {
        bounds: [
            form.kind
            for form in Language().forms(
                Answer({"type": "object", "properties": {"a": {"type": "integer", **bound}}})
            )
        ]
        for bounds, bound in ((False, {}), (True, {"minimum": 0}))
    }
    weaker = ["json_object", "json_object", "prompt"]
    assert kinds == {False: ["json_schema", *weaker], True: ["json_schema", "json_schema", *weaker]}
