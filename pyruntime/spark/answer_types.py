"""Spark's types for JSON schemas, and readers of their values, for the answers of clients.

Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from pyspark.sql import types as T

from pillarbox.clients.answers import moment

_OF_VALUES: dict[type, T.DataType] = {
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    str: T.StringType(),
}
_OF_NAMES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "string": T.StringType(),
}
_FORMATS: dict[str, T.DataType] = {"date": T.DateType(), "date-time": T.TimestampType()}
"""Formats of strings that have a type of their own. A time of day has one from Spark 4.1 on only."""


def spark_type(schema: object, path: str = "answer") -> T.DataType:
    """The type of a JSON schema without references: nullable throughout, enums as their values.

    path: the place of the schema, for errors. Raises ValueError for what has no type: a union of several, a
    schema that allows anything.
    """
    if not isinstance(schema, Mapping):
        raise _no_type(path, schema, "must say what it is")
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        kinds = [each for each in choices if not (isinstance(each, Mapping) and each.get("type") == "null")]
        if len(kinds) != 1:
            raise _no_type(path, schema, "is one of several types")
        return spark_type(kinds[0], path)
    if "enum" in schema or "const" in schema:
        return _type_of_values(schema, path)
    kind = schema.get("type")
    if isinstance(kind, list):
        names = [each for each in kind if each != "null"]
        if len(names) != 1:
            raise _no_type(path, schema, "is one of several types")
        kind = names[0]
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), _OF_NAMES["string"])
    if kind == "array":
        return T.ArrayType(_element_type(schema, path))
    if kind == "object":
        return _type_of_object(schema, path)
    if kind not in _OF_NAMES:
        raise _no_type(path, schema, "must say what it is")
    return _OF_NAMES[kind]


def _type_of_values(schema: Mapping[str, Any], path: str) -> T.DataType:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1 or not kinds <= _OF_VALUES.keys():
        raise _no_type(path, schema, "has values of several types")
    return _OF_VALUES[kinds.pop()]


def _element_type(schema: Mapping[str, Any], path: str) -> T.DataType:
    places = schema.get("prefixItems")
    if places:
        types = [spark_type(each, f"{path}[{place}]") for place, each in enumerate(places)]
        if any(each != types[0] for each in types):
            raise _no_type(path, schema, "has elements of several types")
        return types[0]
    return spark_type(schema.get("items"), f"{path}[]")


def _type_of_object(schema: Mapping[str, Any], path: str) -> T.DataType:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not properties:
        if not isinstance(others, Mapping):
            raise _no_type(path, schema, "is an object of any fields")
        return T.MapType(T.StringType(), spark_type(others, f"{path}{{}}"))
    return T.StructType(
        [T.StructField(name, spark_type(each, f"{path}.{name}")) for name, each in properties.items()]
    )


def _no_type(path: str, schema: object, why: str) -> ValueError:
    shown = json.dumps(schema, default=str)[:200]
    return ValueError(
        f"{path}: {why}, which Spark has no type for ({shown}); give it one type, or make it a string"
    )


def value_reader(kind: T.DataType) -> Callable[[Any], Any]:
    """A function that gives the value of Spark for one of JSON: dates and timestamps of their texts.

    Fields that a record lacks are null, those that the type lacks are left out. It raises ValueError.
    """
    if isinstance(kind, T.DateType):
        return lambda value: None if value is None else date.fromisoformat(value)
    if isinstance(kind, T.TimestampType):
        return lambda value: None if value is None else moment(value)
    if isinstance(kind, T.ArrayType):
        element = value_reader(kind.elementType)
        return lambda values: None if values is None else [element(each) for each in values]
    if isinstance(kind, T.MapType):
        item = value_reader(kind.valueType)
        return lambda values: None if values is None else {name: item(each) for name, each in values.items()}
    if isinstance(kind, T.StructType):
        fields = [(field.name, value_reader(field.dataType)) for field in kind.fields]
        return lambda record: (
            None if record is None else {name: read(record.get(name)) for name, read in fields}
        )
    return lambda value: value
