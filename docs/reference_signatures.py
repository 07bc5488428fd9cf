"""Completes the reference for its readers: an extension of Griffe, which `mkdocs build` loads.

Signatures show the defaults that a call has: those of `Options` in place of `UNSET`, the value of a constant
in place of its name, each option in place of `**more`. A function shows one signature, and not its overloads.
Descriptions of arguments become a list, and examples blocks of code.
"""

from __future__ import annotations

import ast
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
    """The options that a signature shows where `**more` is written."""
    listed = [name for name in OPTIONS if name in signature.parameters]
    if not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        # `suggesting_options` has listed those that the function takes.
        return listed
    rare = ("buffer", "dedupe", "latency", "where", "policies")
    return [name for name in OPTIONS if name not in rare and name not in listed]


class ReferenceSignatures(Extension):
    """Completes each function and class of `pillarbox` once the package is read."""

    def on_function(self, *, func: Function, **more: Any) -> None:
        """Show the defaults of a function, and its docstring as Markdown."""
        func.overloads = None
        _take_embedded_signature(func)
        self._finish(func, func.path)

    def on_class(self, *, cls: Class, **more: Any) -> None:
        """Show how a class is called, and its docstring as Markdown."""
        made, initialized = cls.members.get("__new__"), cls.members.get("__init__")
        if isinstance(initialized, Function) and _is_of_object(initialized):
            # Of Cython, which has none of its own: such a class is not made by a call.
            cls.del_member("__init__")
        elif isinstance(made, Function) and initialized is None and not _is_of_object(made):
            cls.set_member("__init__", Function("__init__", parameters=made.parameters))
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


def _take_embedded_signature(func: Function) -> None:
    """Take the arguments of a function in Cython from the first line of its docstring, where they stand."""
    if func.docstring is None or not func.docstring.value.startswith(f"{func.name}("):
        return
    line, _, func.docstring.value = func.docstring.value.partition("\n")
    tree = ast.parse(f"def {line}: ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    defaults = [None] * (len(tree.args.args) - len(tree.args.defaults)) + tree.args.defaults
    func.parameters = Parameters(
        *(
            Parameter(
                each.arg,
                kind=ParameterKind.positional_or_keyword,
                annotation=None if each.annotation is None else ast.unparse(each.annotation),
                default=None if default is None else ast.unparse(default),
            )
            for each, default in zip(tree.args.args, defaults, strict=True)
        )
    )


def _is_of_object(func: Function) -> bool:
    """True for what each class has from `object`, as an inspection of a compiled class finds it."""
    return [each.name for each in func.parameters if each.name not in ("self", "cls")] == ["args", "kwargs"]


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
