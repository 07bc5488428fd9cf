"""Names of a package that are imported from its modules at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


def at_first_use(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. modules: the names that each of its modules gives.

    A module that begins with a dot stands beside the package. A name that is also that of a module of the
    package stands for what the module gives of that name. Type checkers do not know such names: the package
    imports them under `TYPE_CHECKING` too. Any thread.
    """
    homes = {name: module for module, names in modules.items() for name in names}
    if any(name == module for name, module in homes.items()):
        sys.modules[package].__class__ = _named_above_modules(homes)

    def resolve(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve


def _named_above_modules(homes: Mapping[str, str]) -> type[ModuleType]:
    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            # An import gives a package each of its modules; such a name would then be the module's.
            if not (isinstance(value, ModuleType) and homes.get(name) == name):
                super().__setattr__(name, value)

    return Package
