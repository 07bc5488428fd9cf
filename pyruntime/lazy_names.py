"""Names of a package that are imported from its modules at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def at_first_use(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. modules: the names that each of its modules gives.

    Type checkers do not know such names: the package imports them under `TYPE_CHECKING` too. Any thread.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def resolve(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve
