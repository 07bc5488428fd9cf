"""Options of connectors: declared once, as the fields of a dataclass, and from there parsed and checked.

A field's type and its `Rule` say what is allowed; both an argument and Spark's option of its name are held to
them. What may hold a secret, as an address does, has no rule: so no error shows it. Any thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from inspect import formatannotation
from typing import Any, Literal, TypeVar, overload

T = TypeVar("T", int, float)

ON_DATA_LOSS = ("fail", "ignore")
FLAGS = {"true": True, "false": False}
KINDS: dict[str, tuple[tuple[type, ...], Callable[[str], Any], str]] = {
    "int": ((int,), int, "a whole number"),
    "float": ((int, float), float, "a number"),
    "bool": ((bool,), lambda text: FLAGS[text.lower()], "true or false"),
    "str": ((str,), str, "text"),
}
"""Of each type: what an argument may be, what reads an option, and the words for both."""


@dataclass(frozen=True)
class Rule:
    """What an option may be besides its type: one of some texts, or a number with a bound, in some unit.

    parse: reads an option whose type is none of `KINDS`.
    """

    one_of: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    unit: str = ""
    parse: Callable[[str], Any] | None = None

    def refusal(self, value: Any) -> str | None:
        """What a value of the right type must be that is not allowed; None where it is."""
        if self.one_of:
            return None if value in self.one_of else " or ".join(map(repr, self.one_of))
        # What is no number is neither.
        if self.at_least is not None and not value >= self.at_least:
            return f"at least {self.at_least:g}"
        if self.above is not None and not value > self.above:
            return f"{self.unit} above {self.above:g}"
        return None


def option(default: Any = MISSING, **rule: Any) -> Any:
    """Declare an option as a field of a dataclass: its default, none if it must be given, and its `Rule`."""
    return field(default=default, metadata={"rule": Rule(**rule)})


def check_options(source: Any) -> None:
    """Check the fields of a dataclass. Raises TypeError or ValueError: name, value and what is allowed."""
    for each in fields(source):
        value, rule, (kind, or_none) = getattr(source, each.name), each.metadata.get("rule"), _kind(each)
        if rule is None or kind not in KINDS or (value is None and or_none):
            continue
        types, _, words = KINDS[kind]
        right = isinstance(value, types) and isinstance(value, bool) == (bool in types)
        refusal = rule.refusal(value) if right else words
        if refusal is not None:
            error = ValueError if right else TypeError
            raise error(f"{each.name}={value!r}: must be {refusal}{' or None' * or_none}")


class Options:
    """Options that Spark hands over. Errors name the option, its value and what is allowed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = dict(options)
        self._known: list[str] = []

    @overload
    def text(self, name: str, *, required: Literal[True]) -> str: ...
    @overload
    def text(self, name: str) -> str | None: ...
    def text(self, name: str, *, required: bool = False) -> str | None:
        """The option as it is; None if it was not given. Raises ValueError if it must be."""
        if required:
            self._require(name)
        self._known.append(name)
        return self._left.pop(name, None)

    def _require(self, name: str) -> None:
        if name not in self._left:
            raise ValueError(f"option {name!r} is missing")

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
        """Those that were given, as the fields of the dataclass `kind` say: its arguments.

        Of fields of another type than text, numbers and flags, or those or None, there are no options. Raises
        ValueError for an option that is no field, missing, or not of its type.
        """
        values = {}
        for field in fields(kind):
            # A module without `from __future__ import annotations` has types where others have text.
            text = field.type if isinstance(field.type, str) else formatannotation(field.type)
            type_ = re.sub(r"(?:typing\.)?Optional\[(\w+)\]| \| None", r"\1", text)
            if type_ in KINDS:
                if field.default is field.default_factory is MISSING:
                    self._require(field.name.lower())
                values[field.name] = self._read(field.name.lower(), type_, None)
        self.check_all_read()
        return {name: value for name, value in values.items() if value is not None}


def words(text: str) -> list[str]:
    """What stands between the commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _kind(each: Field[Any]) -> tuple[str, bool]:
    """The type of a field, and whether it may be None instead."""
    # A module without `from __future__ import annotations` has types where others have text.
    text = each.type if isinstance(each.type, str) else formatannotation(each.type)
    kind = re.sub(r"(?:typing\.)?Optional\[(\w+)\]| \| None", r"\1", text)
    return kind, kind != text


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
