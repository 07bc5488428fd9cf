"""How a connector reads the options that Spark hands over, and checks those that several have.

`Options` is confined to who reads them; the functions may be called by any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, overload

T = TypeVar("T", int, float)

ON_DATA_LOSS = ("fail", "ignore")
FLAGS = {"true": True, "false": False}
KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (lambda text: FLAGS[text.lower()], "true or false"),
    "str": (str, "text"),
}


class Options:
    """Options, each read once. Errors name the option, its value and what is allowed, but no secret."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = dict(options)
        self._known: list[str] = []

    @overload
    def text(self, name: str, *, required: Literal[True]) -> str: ...
    @overload
    def text(self, name: str) -> str | None: ...
    def text(self, name: str, *, required: bool = False) -> str | None:
        """The option as it is; None if it was not given. Raises ValueError if it must be."""
        self._known.append(name)
        found = self._left.pop(name, None)
        if found is None and required:
            raise ValueError(f"option {name!r} is missing")
        return found

    def words(self, name: str) -> list[str] | None:
        """What stands between the commas; None if it was not given."""
        found = self.text(name)
        return None if found is None else [word.strip() for word in found.split(",") if word.strip()]

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises ValueError for anything else."""
        found: bool = self._read(name, "bool", default)
        return found

    def number(self, name: str, kind: Callable[[Any], T], default: T) -> T:
        """A number of this kind. Raises ValueError for anything else."""
        found: T = self._read(name, "int" if kind is int else "float", default)
        return found

    def arguments(self, kind: type) -> dict[str, Any]:
        """Those that were given, as the annotations of the dataclass `kind` say: its arguments.

        Raises ValueError for one that is no field, or not of its type.
        """
        kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(kind)}
        values = {name: self._read(name, type_, None) for name, type_ in kinds.items() if type_ in KINDS}
        self.check_all_read()
        return {name: value for name, value in values.items() if value is not None}

    def _read(self, name: str, kind: str, default: Any) -> Any:
        found = self.text(name)
        if found is None:
            return default
        read, allowed = KINDS[kind]
        try:
            return read(found)
        except (ValueError, KeyError):
            raise ValueError(f"option {name!r} is {found!r}: must be {allowed}") from None

    def check_all_read(self) -> None:
        """Raise ValueError if there is an option that nobody has asked for."""
        if self._left:
            raise ValueError(f"option {min(self._left)!r} is unknown; there are {', '.join(self._known)}")


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """`value` if it is a whole number, of at least `least`. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        allowed = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name}={value!r}: must be a whole number{allowed}")
    return value


def check_on_data_loss(value: str) -> str:
    """`value` if it says what to do about rows that are gone before they are read. Raises ValueError."""
    if value not in ON_DATA_LOSS:
        raise ValueError(f"on_data_loss={value!r}: must be 'fail' or 'ignore'")
    return value


def password_from(password_env: str) -> str:
    """What the environment variable of this name holds now. Raises ValueError if there is none."""
    if password_env not in os.environ:
        raise ValueError(f"password_env={password_env!r}: there is no such environment variable")
    return os.environ[password_env]
