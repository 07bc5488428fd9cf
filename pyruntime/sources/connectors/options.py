"""How a connector reads the options that Spark hands over, and checks those that several have.

`Options` is confined to who reads them; the functions may be called by any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

T = TypeVar("T", int, float)

ON_DATA_LOSS = ("fail", "ignore")
FLAGS = {"true": True, "false": False}


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
        found = self.text(name)
        if found is None:
            return default
        if found.lower() not in FLAGS:
            raise ValueError(f"option {name!r} is {found!r}: must be true or false")
        return FLAGS[found.lower()]

    def number(self, name: str, kind: Callable[[Any], T], default: T) -> T:
        """A number of this kind. Raises ValueError for anything else."""
        found = self.text(name)
        if found is None:
            return default
        try:
            return kind(found)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"option {name!r} is {found!r}: must be {what}") from None

    def check_all_read(self) -> None:
        """Raise ValueError if there is an option that nobody has asked for."""
        if self._left:
            raise ValueError(f"option {min(self._left)!r} is unknown; there are {', '.join(self._known)}")


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
