"""Answers of a model as values: their JSON schema, which the model is asked for, and their validation.

`Answer` is made of what the user gives: a Pydantic model, a dataclass, or a JSON schema. Confined to nothing;
any thread.
"""

# Pydantic validates models and dataclasses alike, and writes the JSON schema of both; `jsonschema` validates
# by a schema that is given as one. To make a Pydantic model of a given schema would take the parts alone that
# somebody has thought of. Both are imported where they are used: a worker without questions needs neither.
#
# References are put in where they stand: services differ in the ones that they follow, and in what may stand
# beside one. A recursive model has no end then, and no type in Spark either, so it is refused.

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from typing import Any, get_args

from pillarbox.aio.errors import MESSAGE_CHARACTERS, cut, shorten
from pillarbox.aio.usage import Usage
from pillarbox.clients.fields import HalfCharacter, whole_json
from pillarbox.clients.transport import MissingExtra
from pillarbox.dataclass_fields import MISSING  # noqa: F401

MAX_SAID = 5
"""Mistakes of one answer that its error names: a model mends few at a time."""
MAX_NAME_CHARACTERS = 64
"""Characters of a schema's name that services take."""
KEYWORDS_OF_SCHEMAS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
"""Keywords of JSON Schema whose value has a schema for each name."""
KEYWORDS_OF_VALUES = frozenset({"enum", "required"})
"""Keywords whose value is not a schema, and that stay in a plain one."""
BOUNDS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"),
        *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        *("minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas"),
        *("unevaluatedItems", "unevaluatedProperties", "not", "if", "then", "else"),
        *("default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$schema", "$id", "$comment", "$anchor"),
    )
)
"""Keywords that many services refuse. Without them a schema takes all that it took, and more."""


class AnswerMismatch(ValueError):
    """Raised for a text that is not an answer of the schema; it says what is wrong.

    is_json: the text is JSON at least. usage: what the reply cost, where one has just come.
    """

    usage: Usage | None = None

    def __init__(self, message: str, is_json: bool = True) -> None:
        super().__init__(message, is_json)
        self.is_json = is_json

    def __str__(self) -> str:
        return str(self.args[0])


class Answer:
    """The type of answers, as `Chat(answer=...)` takes it.

    name: of the schema. schema: the JSON schema that the model is asked for. is_strict: whether each object
    in it has a fixed set of fields, all required, which services need in order to guarantee it. plain_schema:
    the same without bounds, defaults and what else many services refuse; `parse` checks them all the same.
    written: the JSON schema of what `plain` gives.
    Raises TypeError and ValueError that name the argument `answer`, and MissingExtra.
    """

    def __init__(self, answer: object) -> None:
        self.given = answer
        if isinstance(answer, Mapping):
            self._adapter: Any = None
            self._validator = _validator(answer)
            self.name = _name(answer.get("title"))
            self.schema = self.written = _inlined(dict(answer))
        elif isinstance(answer, type) and (
            dataclasses.is_dataclass(answer) or hasattr(answer, "model_json_schema")
        ):
            self._adapter, asked, written = _described(answer)
            self.name = _name(answer.__name__)
            self.schema, self.written = _strict(_inlined(asked)), _inlined(written)
        else:
            raise TypeError(
                f"answer={shorten(answer)}: must be a Pydantic model, a dataclass, a JSON schema (dict), or "
                "None for text"
            )
        if self.schema.get("type") != "object" or not self.schema.get("properties"):
            raise ValueError(f"answer={shorten(answer)}: must be an object with fields, as services need it")
        self.is_strict = _is_strict(self.schema)
        self.plain_schema: dict[str, Any] = _plain(self.schema)

    def parse(self, text: str) -> Any:
        """The answer in `text`: an object of the class that was given, or a dict. Raises AnswerMismatch."""
        text = _json_in(text)
        if self._adapter is not None:
            return self._parsed_by_pydantic(text)
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise AnswerMismatch(f"the answer is not JSON: {error}", is_json=False) from None
        mistakes = [
            _mistake(error.absolute_path, error.message) for error in self._validator.iter_errors(value)
        ]
        if mistakes:
            raise AnswerMismatch(_said(mistakes))
        try:
            return whole_json("the answer", value)
        except HalfCharacter as error:
            raise AnswerMismatch(str(error)) from None

    def _parsed_by_pydantic(self, text: str) -> Any:
        try:
            # Without the options of `validate_json`, which are the adapter's own.
            return self._adapter.validator.validate_json(text)
        except ValueError as error:
            # Its own text quotes the values, and has addresses of its documentation.
            mistakes = error.errors(include_url=False, include_input=False)  # type: ignore[attr-defined]
            found = [f"{'.'.join(map(str, each['loc'])) or 'the answer'}: {each['msg']}" for each in mistakes]
            is_json = all(each["type"] != "json_invalid" for each in mistakes)
            raise AnswerMismatch(_said(found), is_json) from None

    def plain(self, value: object) -> Any:
        """The values of JSON for what `parse` gave: dicts, lists, strings, numbers, booleans and None."""
        if self._adapter is None:
            return value
        # By the names of the fields, whatever the model says, for the type of the column has these.
        return self._adapter.dump_python(value, mode="json", by_alias=False)


def _described(answer: type) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The validator of a class, and the JSON schemas of what it takes and of what it writes."""
    try:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError
    except ModuleNotFoundError:
        raise MissingExtra("answers of a class need Pydantic: pip install 'pillarbox[chat]'") from None
    try:
        adapter: Any = TypeAdapter(answer)
        _forget_functions(answer, set())
        written = adapter.json_schema(mode="serialization", by_alias=False)
        return adapter, adapter.json_schema(), written
    except (PydanticUserError, NameError) as error:
        raise TypeError(f"answer={answer.__name__}: {error}") from None


def _forget_functions(kind: Any, known: set[int]) -> None:
    """Have models that were defined in a function forget the variables of the function.

    Pydantic keeps these for names that are not defined yet. They would travel with the class to the workers:
    a session of Spark among them, which does not pickle.
    """
    # What stands in annotations may have no hash.
    if id(kind) in known:
        return
    known.add(id(kind))
    if getattr(kind, "__pydantic_complete__", False) and hasattr(kind, "model_fields"):
        kind.__pydantic_parent_namespace__ = None
        for field in kind.model_fields.values():
            _forget_functions(field.annotation, known)
    for part in get_args(kind):
        _forget_functions(part, known)


def _validator(schema: Mapping[str, Any]) -> Any:
    try:
        import jsonschema
    except ModuleNotFoundError:
        raise MissingExtra(
            "answers of a JSON schema need jsonschema: pip install 'pillarbox[chat]'"
        ) from None
    try:
        json.dumps(schema, allow_nan=False)
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (TypeError, ValueError, jsonschema.SchemaError) as error:
        message = getattr(error, "message", str(error))
        raise ValueError(f"answer: must be a JSON schema: {message}") from None
    # Its own checker knows some formats only where other packages are installed, and all or none must hold.
    formats = jsonschema.FormatChecker(formats=())
    for name, read in (("date", date.fromisoformat), ("date-time", moment), ("time", time.fromisoformat)):
        formats.checks(name, raises=ValueError)(
            lambda text, read=read: not isinstance(text, str) or read(text)
        )
    return kind(schema, format_checker=formats)


def moment(text: str) -> datetime:
    """The datetime of an ISO 8601 text. Raises ValueError."""
    # Python 3.10 does not know the letter for UTC.
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)


# -- schemas -------------------------------------------------------------------------------------------------


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with what its references name in their places. Raises ValueError for a recursive one."""
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}

    def inline(part: object, inside: tuple[str, ...], *, is_map: bool = False) -> Any:
        if isinstance(part, list):
            return [inline(each, inside) for each in part]
        if not isinstance(part, Mapping):
            return part
        name = None if is_map else part.get("$ref")
        if name is not None:
            key = str(name).rpartition("/")[2]
            if key in inside:
                raise ValueError(f"answer: {key} holds itself; an answer must have an end")
            if key not in definitions:
                raise ValueError(f"answer: the reference {name!r} names nothing in the schema's $defs")
            rest = {word: value for word, value in part.items() if word != "$ref"}
            return inline({**definitions[key], **rest}, (*inside, key))
        return {
            word: inline(value, inside, is_map=not is_map and word in KEYWORDS_OF_SCHEMAS)
            for word, value in part.items()
            if is_map or word not in ("$defs", "definitions")
        }

    found: dict[str, Any] = inline(schema, ())
    return found


def _strict(schema: object) -> Any:
    """A schema of which each object has all its fields and no others, as services that guarantee it want.

    A field with a default is asked for too; what it may be, null or not, stays.
    """
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {word: _strict(value) for word, value in schema.items() if word != "default"}
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and schema.get("type") == "object":
        found["properties"] = {name: _strict(value) for name, value in properties.items()}
        found["required"] = list(properties)
        found.setdefault("additionalProperties", False)
    return found


def _plain(schema: object) -> Any:
    """A schema in the words that nearly all services know, which takes what the given one takes, and more."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for word, value in schema.items():
        if word in BOUNDS:
            continue
        if word == "const":
            found["enum"] = [value]
        elif word in KEYWORDS_OF_VALUES:
            found[word] = value
        elif word in KEYWORDS_OF_SCHEMAS and isinstance(value, Mapping):
            found[word] = {name: _plain(each) for name, each in value.items()}
        else:
            # Of several that fit, one is enough.
            found["anyOf" if word == "oneOf" and "anyOf" not in schema else word] = _plain(value)
    return found


def _is_strict(schema: object) -> bool:
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        names = set(schema.get("properties", {}))
        if schema.get("additionalProperties", True) is not False or set(schema.get("required", ())) != names:
            return False
    return all(map(_is_strict, schema.values()))


def _name(title: object) -> str:
    return re.sub(r"\W", "_", str(title or "answer"), flags=re.ASCII)[:MAX_NAME_CHARACTERS]


# -- texts ---------------------------------------------------------------------------------------------------


def _json_in(text: str) -> str:
    """The JSON object in a reply, which some models put between marks, or words of their own."""
    if text[:1] == "{" and text[-1:] == "}":
        return text
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        return text
    # What a model has thought aloud, in front of its answer.
    text = text.rpartition("</think>")[2]
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else text


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number of JSON")


def _mistake(path: Iterable[Any], message: str) -> str:
    place = ".".join(map(str, path)) or "the answer"
    return f"{place}: {cut(message, MESSAGE_CHARACTERS)}"


def _said(mistakes: list[str]) -> str:
    more = f"; and {len(mistakes) - MAX_SAID} more" if len(mistakes) > MAX_SAID else ""
    return "; ".join(mistakes[:MAX_SAID]) + more
