"""Writes what functions and pages say of options from `pillarbox.aio.options`, its one source.

    python docs/options.py            writes it
    python docs/options.py check      exits with 1 and names the files where something else is written

In Python files, a comment "# From `Options`:" or "# From `Options`, but ordered, where:" stands before the
fields of a TypedDict, or before the keywords of a function, and a line "Options:" at the end of its docstring
before the descriptions of the same options. In Markdown, "<!-- options -->" stands before the tables.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pillarbox.aio.options import (
    UNSET,
    Budget,
    Buffer,
    Dedupe,
    Errors,
    Limit,
    Options,
    RowOptionNames,
    Timeout,
)

ROOT = Path(__file__).resolve().parents[1]
NAMED = RowOptionNames.__annotations__
RARE = tuple([name for name in inspect.signature(Options).parameters if name not in NAMED])
"""Options without a keyword of their own: they are given as `options=Options(buffer=...)`."""
VALUES = (Timeout, Errors, Budget, Buffer, Dedupe, Limit)

_COMMENT = re.compile(r"^( +)# From `Options`(?:, but ([\w, ]+))?:$")
_PARAMETERS = {each.name: each for each in inspect.signature(Options).parameters.values()}
_TYPES = {name: str(each.annotation).replace("'", '"') for name, each in _PARAMETERS.items()}


def descriptions(kind: type = Options) -> dict[str, list[str]]:
    """The lines that describe each option in the docstring of a class, without its name."""
    parameters = inspect.signature(kind).parameters
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        name, colon, text = line.partition(": ")
        if colon and name in parameters:
            current = found[name] = [text]
        elif line.startswith(" ") and current is not None:
            current.append(line.strip())
        else:
            current = None
    return found


def _without(but: str | None) -> list[str]:
    left_out = {*RARE, *((but or "").split(", "))}
    return [name for name in _PARAMETERS if name not in left_out]


def written(text: str) -> str:
    """The text of a Python file with the present options."""
    return "\n".join(_lines(text.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    names: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        yield line
        comment = _COMMENT.match(line)
        if comment is not None:
            indent, names = comment[1], _without(comment[2])
            if lines[place].lstrip().startswith("**"):
                # A function has them as keywords of any name.
                continue
            yield from (f"{indent}{name}: {_TYPES[name]}" for name in names)
            while any(lines[place].startswith(f"{indent}{name}: ") for name in _PARAMETERS):
                place += 1
        elif line.strip() == "Options:" and names:
            indent = line[: line.index("O")]
            told = descriptions()
            for name in names:
                yield f"{indent}{name}: {told[name][0]}"
                yield from (f"{indent}    {more}" for more in told[name][1:])
            while lines[place].strip() != '"""':
                place += 1


def tables() -> str:
    """The tables of all options and of their values for Markdown."""
    return "\n\n".join([_table(Options), *(f"### `{kind.__name__}`\n\n{_table(kind)}" for kind in VALUES)])


def _table(kind: type) -> str:
    told = descriptions(kind)
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, parameter in inspect.signature(kind).parameters.items():
        shown = f"`options=Options({name}=...)`" if kind is Options and name in RARE else f"`{name}`"
        is_given = parameter.default is UNSET or parameter.default is parameter.empty
        default = "" if is_given else f"`{parameter.default!r}`"
        rows.append(f"| {shown} | {default} | {' '.join(told[name])} |")
    return "\n".join(rows)


def pages() -> dict[Path, str]:
    """The text that each file should have that says something of options."""
    found = {}
    for path in sorted((ROOT / "pyruntime").rglob("*.py")):
        text = path.read_text()
        if "# From `Options`" in text:
            found[path] = written(text)
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text()
        if "<!-- options -->" in text:
            before, _, rest = text.partition("<!-- options -->\n")
            after = rest.partition("<!-- end of options -->")[2]
            found[path] = f"{before}<!-- options -->\n{tables()}\n<!-- end of options -->{after}"
    return found


if __name__ == "__main__":
    others = {path: text for path, text in pages().items() if text != path.read_text()}
    for path, text in others.items():
        if sys.argv[1:] == ["check"]:
            print(f"{path.relative_to(ROOT)}: run `make options`")
        else:
            path.write_text(text)
    sys.exit(bool(others) and sys.argv[1:] == ["check"])
