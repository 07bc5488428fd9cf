"""Completes the reference for its readers: an extension of Griffe, which `mkdocs build` loads.

Signatures show the defaults that a call has: those of `Options` in place of `UNSET`, the value of a constant
in place of its name, each option in place of `**more`. A function shows one signature, and not its overloads.
Descriptions of arguments become a list, and examples blocks of code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from griffe import Class, Extension, Function, Parameter, ParameterKind, Parameters

from pillarbox.aio.options import UNSET, Options

ARGUMENTS = re.compile(r"([A-Za-z_]+(?:, [A-Za-z_]+)*): ")
EXAMPLE = "    >>> "
SHOWN = (bool, int, float, str, tuple, type(None))
"""Types of defaults that a signature shows as a value."""
OPTIONS: Mapping[str, inspect.Parameter] = inspect.signature(Options).parameters


def markdown(docstring: str) -> str:
    """The docstring with its arguments as a list and its examples as blocks of code."""
    return "\n".join(_lines(docstring.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    in_code = in_list = False
    for at, line in enumerate(lines):
        if not in_code and line.startswith(EXAMPLE):
            in_code = True
            yield "```pycon"
        if in_code:
            ends = not line or at + 1 == len(lines)
            if line:
                yield line[4:]
            if ends and not (line == "" and lines[at + 1 : at + 2] and lines[at + 1].startswith(EXAMPLE)):
                in_code = False
                yield "```"
                yield ""
            elif not line:
                yield ""
            continue
        argument = ARGUMENTS.match(line)
        # A sentence may have a colon too: arguments are named in the signature or begin a paragraph's line.
        if argument and not line.endswith(":"):
            if not in_list:
                yield ""
            in_list = True
            names = ", ".join(f"`{name}`" for name in argument[1].split(", "))
            yield f"- {names}: {line[argument.end() :]}"
        elif line.startswith("    ") and in_list:
            yield line
        else:
            if in_list and line:
                yield ""
            in_list = in_list and not line
            in_list = False
            yield line


def _value(parameter: inspect.Parameter | None) -> str | None:
    """The default as a signature shows it; None to leave what is written."""
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    default = parameter.default
    if default is UNSET:
        option = OPTIONS.get(parameter.name)
        if option is None or option.default is UNSET:
            return "..."
        default = option.default
    return repr(default) if isinstance(default, SHOWN) else None


def _complete(parameters: Parameters, signature: inspect.Signature) -> None:
    for each in list(parameters):
        if each.kind is ParameterKind.var_keyword and "OptionNames" in str(each.annotation):
            del parameters[each.name]
            for name in _option_names(signature):
                if name not in [known.name for known in parameters]:
                    shown = Parameter(
                        name, kind=ParameterKind.keyword_only, default=repr(OPTIONS[name].default)
                    )
                    shown.annotation = str(OPTIONS[name].annotation).replace("'", '"')
                    parameters.add(shown)
            continue
        value = _value(signature.parameters.get(each.name))
        if value is not None:
            each.default = value


def _option_names(signature: inspect.Signature) -> list[str]:
    rare = ("buffer", "dedupe", "latency", "where")
    return [name for name in OPTIONS if name not in rare and name not in signature.parameters]


class ReferenceSignatures(Extension):
    """Completes each function and class of `pillarbox` once the package is read."""

    def on_function(self, *, func: Function, **more: Any) -> None:
        """Show the defaults of a function, and its docstring as Markdown."""
        func.overloads = None
        self._finish(func, func.path)

    def on_class(self, *, cls: Class, **more: Any) -> None:
        """Show the docstring of a class as Markdown."""
        if cls.docstring is not None:
            cls.docstring.value = markdown(inspect.cleandoc(cls.docstring.value))

    def _finish(self, func: Function, path: str) -> None:
        if func.docstring is not None:
            func.docstring.value = markdown(inspect.cleandoc(func.docstring.value))
        found = _runtime(path.removesuffix(".__init__"))
        if found is None:
            return
        try:
            signature = inspect.signature(found)
        except (TypeError, ValueError):
            # Of a class in Cython no signature is known; the stub has the defaults.
            return
        _complete(func.parameters, signature)


def _runtime(path: str) -> Any:
    """The object of a path below `pillarbox`; None where there is none at run time."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            found = getattr(found, name, None)
        return found
    return None
