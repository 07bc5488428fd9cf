"""`Codec`: messages between processes are frozen dataclasses or named tuples, and this is their JSON.

A message is a list: the name of its class, then its fields. What comes is checked by the types of the fields,
here and nowhere else, so that a class says all that is true of a message. Thread-safe, without state.
"""

# A message is checked once, on its way in, by the types that its class declares; code behind that trusts it.
# Checks where a field is used would stand in as many places as there are fields, and one that is forgotten
# lets a NaN or a negative count into sums. msgspec and pydantic do the same as this and more, but are not
# dependencies, and each worker would import them for a dozen small classes.

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

Read = Callable[[Any], Any]


class Codec:
    """Writes messages of these classes, and reads them.

    Fields may be bool, int, float (finite), str, `Count` and `Amount` of `pillarbox.validate` and others that
    are `Annotated` so, another such class, tuples and mappings from str of these, each of these or None.
    Raises TypeError for a field of another type.
    """

    def __init__(self, *classes: type) -> None:
        self._fields = {each.__name__: list(get_type_hints(each)) for each in classes}
        self._readers = {each.__name__: _reader_of(each, each.__name__) for each in classes}

    def to_json(self, message: object) -> list[Any]:
        """The message as what JSON can hold. Raises KeyError for one of another class."""
        # JSON takes tuples, named ones too, for lists.
        kind = type(message).__name__
        return [kind, *(getattr(message, name) for name in self._fields[kind])]

    def from_json(self, written: object) -> Any:
        """Read what `to_json` has written. Raises ValueError, which names the field, for what it has not."""
        kind, *fields = written if isinstance(written, list) and written else [None]
        if not isinstance(kind, str) or kind not in self._readers:
            raise ValueError(f"{written!r:.200} is not one of the messages {', '.join(self._readers)}")
        return self._readers[kind](fields)


def _reader_of(hint: Any, name: str) -> Read:
    """Make a value of the type `hint` of what JSON gives. name: of the field, for errors."""
    origin, args = get_origin(hint), get_args(hint)

    def refuse(value: object, allowed: object) -> ValueError:
        return ValueError(f"{name}={value!r:.200}: must be {allowed}")

    def read_float(value: Any) -> float:
        # An integer may be too large for a float.
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= sys.float_info.max:
            raise refuse(value, "a finite number")
        return float(value)

    def read_exactly(value: Any) -> Any:
        if type(value) is not hint:
            raise refuse(value, f"of type {hint.__name__}")
        return value

    if hint is float:
        return read_float
    if hint in (bool, int, str):
        return read_exactly
    if origin is Annotated:
        read_base = _reader_of(args[0], name)

        def read_checked(value: object) -> Any:
            found = read_base(value)
            if not args[2](found):
                raise refuse(value, args[1])
            return found

        return read_checked
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        read = _reader_of(args[0], name)
        return lambda value: None if value is None else read(value)
    if origin is tuple and args[-1] is Ellipsis:
        read_each = _reader_of(args[0], name)

        def read_list(value: object) -> tuple[Any, ...]:
            if not isinstance(value, list):
                raise refuse(value, "a list")
            return tuple(map(read_each, value))

        return read_list
    if origin in (dict, Mapping) and args[0] is str:
        read_value = _reader_of(args[1], name)

        def read_mapping(value: object) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise refuse(value, "an object")
            return {key: read_value(part) for key, part in value.items()}

        return read_mapping
    if origin is tuple:
        readers = [_reader_of(each, name) for each in args]
    elif isinstance(hint, type) and hasattr(hint, "__annotations__"):
        hints = get_type_hints(hint, include_extras=True)
        readers = [_reader_of(each, f"{hint.__name__}.{field}") for field, each in hints.items()]
    else:
        raise TypeError(f"{name}: a field of type {hint} cannot be written")

    def read_fields(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise refuse(value, f"a list of {len(readers)} fields")
        parts = [read(part) for read, part in zip(readers, value, strict=True)]
        return tuple(parts) if origin is tuple else hint(*parts)

    return read_fields
