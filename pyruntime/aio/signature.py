"""Shows the options in the signature and the help of functions that take them by name. Import time only."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from pillarbox.aio.options import Options

F = TypeVar("F", bound=Callable[..., Any])


def with_options(*, but: Collection[str] = ()) -> Callable[[F], F]:
    """Have `inspect.signature` and `help` of a function list the options that its `**options` stand for.

    but: options that the function does not take. The function is not wrapped, so a call costs nothing more.
    Type checkers and editors that read no signatures see the options by the function's own annotation,
    `**options: Unpack[OptionNames]`.
    """

    def decorate(fn: F) -> F:
        given = inspect.signature(fn)
        named = [each for each in given.parameters.values() if each.kind is not each.VAR_KEYWORD]
        taken = {each.name for each in named}
        options = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
            )
            for field in dataclasses.fields(Options)
            if field.name not in taken and field.name not in but
        ]
        fn.__signature__ = given.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
        described = _descriptions()
        if fn.__doc__ and described:
            lines = [line for each in options for line in described.get(each.name, [])]
            fn.__doc__ = f"{inspect.cleandoc(fn.__doc__)}\n\nOptions:\n" + "\n".join(lines)
        return fn

    return decorate


def _descriptions() -> dict[str, list[str]]:
    """The lines of the docstring of `Options` that describe each option, by its name."""
    names = {field.name for field in dataclasses.fields(Options)}
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in inspect.cleandoc(Options.__doc__ or "").splitlines():
        name = line.partition(":")[0]
        if name in names:
            current = found[name] = []
        elif not line.startswith(" "):
            current = None
        if current is not None:
            current.append(line)
    return found
