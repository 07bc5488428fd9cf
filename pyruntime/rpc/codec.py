"""`Codec`: messages between processes are frozen dataclasses or named tuples, and this is their JSON.

A message is a list: the name of its class, then its fields. What comes is checked by the types of the fields,
here and nowhere else, so that a class says all that is true of a message. Thread-safe, without state.
"""

# A message is checked once, on its way in, by the types that its class declares; code behind that trusts it.
# Checks where a field is used would stand in as many places as there are fields, and one that is forgotten
# lets a NaN or a negative count into sums. msgspec and pydantic do the same as this and more, but are not
# dependencies, and each worker would import them for a dozen small classes.

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

Convert = Callable[[Any], Any]

Count = Annotated[int, "from 0 on", lambda value: value >= 0]
Amount = Annotated[float, "finite and from 0 on", lambda value: 0.0 <= value < math.inf]
Positive = Annotated[float, "finite and more than 0", lambda value: 0.0 < value < math.inf]


class Codec:
    """Writes messages of these classes, and reads them.

    Fields may be bool, int, float (infinity is written as a text), str, Any (what JSON can hold), `Count`,
    `Amount`, `Positive`, another such class, tuples and mappings from str of these, each of these or None.
    Raises TypeError for a field of another type.
    """

    def __init__(self, *classes: type) -> None:
        self._kinds = {each.__name__: _fields_of(each) for each in classes}

    def to_json(self, message: Any) -> list[Any]:
        """The message as what JSON can hold. Raises KeyError for one of another class."""
        kind = type(message).__name__
        return [kind, *self._kinds[kind][0](message)]

    def from_json(self, written: Any) -> Any:
        """Read what `to_json` has written. Raises ValueError, which names the field, for what it has not."""
        kind, *fields = written if isinstance(written, list) and written else [None]
        if not isinstance(kind, str) or kind not in self._kinds:
            raise ValueError(f"{written!r:.200} is not one of the messages {', '.join(self._kinds)}")
        return self._kinds[kind][1](fields)


def _fields_of(kind: type) -> tuple[Convert, Convert]:
    """The two ways between an object of `kind` and the list of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    fields = [(name, *_ways(hint, f"{kind.__name__}.{name}")) for name, hint in hints.items()]

    def write(value: Any) -> Any:
        return [way(getattr(value, name)) for name, way, _ in fields]

    def read(written: Any) -> Any:
        if not isinstance(written, list) or len(written) != len(fields):
            raise ValueError(f"{kind.__name__}={written!r:.200}: must be a list of {len(fields)} fields")
        return kind(*(way(value) for (_, _, way), value in zip(fields, written, strict=True)))

    # JSON takes a tuple for a list: most messages are written as they are.
    is_plain = issubclass(kind, tuple) and all(way is _same for _, way, _ in fields)
    return _same if is_plain else write, read


def _ways(hint: Any, name: str) -> tuple[Convert, Convert]:
    """The two ways between a value of the type `hint` and JSON. name: of the field, for errors."""
    origin, args = get_origin(hint), get_args(hint)

    def refuse(value: Any, allowed: object) -> ValueError:
        return ValueError(f"{name}={value!r:.200}: must be {allowed}")

    if hint is Any:
        return _same, _same
    if hint is float:

        def read_float(value: Any) -> float:
            if type(value) in (int, float) or value in ("inf", "-inf"):
                with contextlib.suppress(OverflowError):
                    number = float(value)
                    if not math.isnan(number):
                        return number
            raise refuse(value, "a number")

        return lambda value: str(value) if math.isinf(value) else value, read_float
    if hint in (bool, int, str):

        def read_exactly(value: Any) -> Any:
            if type(value) is not hint:
                raise refuse(value, f"of type {hint.__name__}")
            return value

        return _same, read_exactly
    if origin is Annotated:
        base, allowed, holds = args
        _, read = _ways(base, name)

        def read_checked(value: Any) -> Any:
            found = read(value)
            if not holds(found):
                raise refuse(value, allowed)
            return found

        return _same, read_checked
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        write, read = _ways(args[0], name)
        write_value = _same if write is _same else lambda value: None if value is None else write(value)
        return write_value, lambda value: None if value is None else read(value)
    if origin is tuple:
        ways = [_ways(each, name) for each in args if each is not Ellipsis]
        endless = args[-1] is Ellipsis

        def each_of(values: Any) -> Any:
            return ways * len(values) if endless else ways

        def read_tuple(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, list) or not (endless or len(value) == len(ways)):
                raise refuse(value, "a list" if endless else f"a list of {len(ways)}")
            return tuple(way[1](part) for way, part in zip(each_of(value), value, strict=True))

        def write_tuple(value: Any) -> list[Any]:
            return [way[0](part) for way, part in zip(each_of(value), value, strict=True)]

        return _same if all(way[0] is _same for way in ways) else write_tuple, read_tuple
    if origin in (dict, Mapping) and args[0] is str:
        write, read = _ways(args[1], name)

        def read_mapping(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise refuse(value, "an object")
            return {key: read(part) for key, part in value.items()}

        return lambda value: {key: write(part) for key, part in value.items()}, read_mapping
    if isinstance(hint, type) and getattr(hint, "__annotations__", None):
        return _fields_of(hint)
    raise TypeError(f"{name}: a field of type {hint} cannot be written")


def _same(value: Any) -> Any:
    return value
