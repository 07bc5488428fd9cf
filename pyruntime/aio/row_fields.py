"""The fields of rows and results with names: of dicts, named tuples, dataclasses and the like. Any thread."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

PLAIN_ROWS = frozenset({bool, bytes, float, int, str, tuple, type(None)})
"""Types of rows without names."""


def as_fields(result: Any) -> Any:
    """A result in the form in which a ledger keeps it for the next function: rows with names as dicts."""
    if type(result) is list:
        return [as_fields(each) for each in result]
    if type(result) in PLAIN_ROWS or type(result) is dict:
        return result
    fields = fields_of_row(result)
    return result if fields is None else fields


def fields_of_row(row: Any) -> dict[str, Any] | None:
    """The values of a row by their names; None for one without."""
    if isinstance(row, Mapping):
        return dict(row) if all(type(name) is str for name in row) else None
    if isinstance(row, tuple):
        fields = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
        return None if fields is None else dict(zip(fields, row, strict=True))
    if getattr(type(row), "__is_view__", False):
        return dict(zip(row.__names__, row, strict=True))
    names = field_names(row)
    if names is None:
        return None
    # Pydantic has what was given beyond its fields, where that is allowed, apart.
    extra = getattr(row, "__pydantic_extra__", None) or {}
    return {**{name: getattr(row, name) for name in names}, **extra}


def field_names(row: Any) -> tuple[str, ...] | None:
    """The names of the fields of an object that is a row; None for any other. Any thread.

    Known are objects of dataclasses, attrs, Pydantic and msgspec.
    """
    kind: Any = type(row)
    return _field_names(kind)


@functools.lru_cache(maxsize=256)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return tuple(attribute.name for attribute in attributes)
    # In Pydantic 1 that of the fields has the name that Spark's rows have for it.
    for name in ("__pydantic_fields__", "__fields__"):
        fields = getattr(kind, name, None)
        if isinstance(fields, dict):
            return tuple(fields)
    fields = getattr(kind, "__struct_fields__", None)
    return fields if isinstance(fields, tuple) else None
