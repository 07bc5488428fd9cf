"""Fields of a row, by their names, and the texts that a client sends for them. Pure; any thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from string import Formatter
from typing import Any
from uuid import UUID

from pillarbox.validate import check_text

SCALARS = (str, int, float, Decimal, date, time, UUID)
"""Types of a row that is a value, not a record."""


def values_by_name(row: tuple[Any, ...], names: Sequence[str]) -> dict[str, Any]:
    """The fields `names` of a row: of a mapping, of an object's attributes, or of the values in their order.

    row: the arguments of a call. Raises ValueError for a row that lacks a field.
    """
    if not names:
        return {}
    if len(row) == 1:
        record = row[0]
        if _has_items(record):
            return {name: _item(record, name, names) for name in names}
        # A tuple without names is the values, as several arguments are; `count` is not a name of it.
        if isinstance(record, tuple | list) and not (
            hasattr(record, "_fields") or (hasattr(record, names[0]) and not hasattr(list, names[0]))
        ):
            row = tuple(record)
        elif record is not None and not isinstance(record, SCALARS):
            return {name: _attribute(record, name, names) for name in names}
    if len(row) != len(names):
        raise ValueError(f"{len(row)} values where {len(names)} are needed: {', '.join(names)}")
    return dict(zip(names, row, strict=True))


def _has_items(record: Any) -> bool:
    """True for mappings and for rows: an attribute of these may be their own, as `count` of a tuple is."""
    if isinstance(record, Mapping):
        return True
    has_names = not isinstance(record, tuple) or hasattr(record, "__fields__") or hasattr(record, "_fields")
    return has_names and callable(getattr(type(record), "asDict", None))


def _item(record: Any, name: str, names: Sequence[str]) -> Any:
    try:
        return record[name]
    except (KeyError, ValueError):
        raise ValueError(f"the row has no {name!r}; needed are: {', '.join(names)}") from None


def _attribute(record: Any, name: str, names: Sequence[str]) -> Any:
    try:
        return getattr(record, name)
    except AttributeError:
        raise ValueError(f"the row has no {name!r}; needed are: {', '.join(names)}") from None


def text_of(name: str, value: Any) -> str:
    """The text of a scalar, in an address or a prompt. Raises TypeError that names the field for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, SCALARS):
        return str(value)
    raise TypeError(f"{name}: a {type(value).__name__} has no form in an address; make it a str")


def json_of(value: Any, **options: Any) -> str:
    """The JSON of a value, records as objects. Raises TypeError and ValueError for what has no form in it."""
    return json.dumps(_plain(value), default=_form, ensure_ascii=False, **options)


def _plain(value: Any) -> Any:
    """The value with dicts for records, which JSON would take for the tuples that they are."""
    if callable(getattr(type(value), "asDict", None)):
        value = value.asDict()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _form(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


class Prompt:
    """A text with names of fields in braces. Raises TypeError and ValueError that name the argument `prompt`.

    `names` are the fields, each once, in the order in which they first stand.
    """

    def __init__(self, text: Any) -> None:
        check_text("prompt", text)
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"prompt={text!r}: {error}; a brace itself is written as {{{{ or }}}}") from None
        for _, name, form, conversion in pieces:
            # Attributes and items of values are nobody's business but the row's.
            if name is not None and (not name.isidentifier() or form or conversion):
                raise ValueError(
                    f"prompt={text!r}: {{{name}}} must be the name of a column, and nothing else; a brace "
                    "itself is written as {{ or }}"
                )
        self.names = tuple(dict.fromkeys(name for _, name, _, _ in pieces if name is not None))
        self._pieces = [(literal, name) for literal, name, _, _ in pieces]

    def filled(self, values: Mapping[str, Any]) -> str:
        """The text of a row: strings and numbers as they are, lists and records as JSON. Raises TypeError."""
        parts = []
        for literal, name in self._pieces:
            parts.append(literal)
            if name is not None:
                parts.append(_prompted(name, values[name]))
        return "".join(parts)


def _prompted(name: str, value: Any) -> str:
    if isinstance(value, SCALARS):
        return text_of(name, value)
    try:
        return json_of(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}; make it a str") from None
