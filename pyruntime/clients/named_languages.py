"""Languages of services by their names; the module of each is imported where it is spoken. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from pillarbox.validate import check_choice

L = TypeVar("L")


def language_named(option: str, given: object, kind: type[L], classes: Mapping[str, str]) -> L:
    """Return the language that is given, or one of the class of its name. Raises TypeError and ValueError.

    option: the argument, for errors. kind: the class of languages. classes: by name, as `module:class`.
    """
    if isinstance(given, kind):
        return given
    module, _, name = classes[check_choice(option, given, tuple(classes))].partition(":")
    found: L = getattr(import_module(module), name)()
    return found
