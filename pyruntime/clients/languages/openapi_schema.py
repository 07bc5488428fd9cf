"""Schemas of answers in the words of OpenAPI 3.0, which some services know alone. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORDS = ("type", "description", "title", "enum", "items", "properties", "required", "anyOf")
"""Keywords that mean the same in OpenAPI 3.0 and in JSON Schema."""
NULL = {"type": "null"}


def openapi_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without references, in OpenAPI's words: it takes what the given one takes, and more."""
    found = {word: schema[word] for word in WORDS if word in schema}
    kinds = found.get("type")
    if isinstance(kinds, list):
        found["anyOf"] = [{**schema, "type": kind, "enum": _enum_of(kind, schema)} for kind in kinds]
        found = {"anyOf": found["anyOf"]}
    alternatives = found.get("anyOf")
    if alternatives is not None:
        others = [openapi_schema(each) for each in alternatives if each.get("type") != "null"]
        if len(others) < len(alternatives):
            found["nullable"] = True
        # Of one that is left the words stand in the schema itself.
        del found["anyOf"]
        found |= others[0] if len(others) == 1 else {"anyOf": others}
    if "properties" in found:
        found["properties"] = {name: openapi_schema(each) for name, each in found["properties"].items()}
    if isinstance(found.get("items"), Mapping):
        found["items"] = openapi_schema(found["items"])
    if not found.get("enum") or not all(isinstance(each, str) for each in found["enum"]):
        # Of texts alone.
        found.pop("enum", None)
    elif "type" not in found:
        found["type"] = "string"
    return found


def _enum_of(kind: str, schema: Mapping[str, Any]) -> list[Any]:
    return [each for each in schema.get("enum", ()) if isinstance(each, str)] if kind == "string" else []


def resolution(detail: str) -> dict[str, Any]:
    """The fields of a request that say how closely the model looks at all of its images."""
    return {"generationConfig": {"mediaResolution": f"MEDIA_RESOLUTION_{detail.upper()}"}}


def json_config(**schema: Any) -> dict[str, Any]:
    """The field of a request to Gemini that asks for JSON, of a schema where there is one."""
    return {"generationConfig": {"responseMimeType": "application/json", **schema}}
