"""How a connector reads the options that Spark hands over: texts by name. Confined to who reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

T = TypeVar("T", int, float)

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
