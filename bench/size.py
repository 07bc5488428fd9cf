"""The size of the package: lines of code, comments, files, public names: `python -m bench.size [PATH...]`.

A line of code has something that Python runs on it: blank lines, comments and strings that stand alone, as
docstrings do, are not counted. Without paths the table has a row for each package of `pyruntime`, and below
it stands how many names their `__all__` list.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.table import Column, print_table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pyruntime"
CLIENTS = "clients"
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """The size of one file, or of several. A plain value."""

    files: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    """Lines that hold a comment, beside code or alone."""

    def __add__(self, other: tuple[int, ...]) -> Size:  # type: ignore[override]
        return Size(*(one + another for one, another in zip(self, other, strict=True)))


def size_of(source: str) -> Size:
    """Count the lines of one module. Raises SyntaxError for what is not Python."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type is tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):  # type: ignore[attr-defined]
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))  # type: ignore[attr-defined]
    return Size(1, source.count("\n"), len(code), len(comments))


def modules(path: Path) -> Iterator[Path]:
    """The Python files of a folder and of the folders in it, or the file itself."""
    yield from sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.suffix == ".py" else []


def total(paths: Iterable[Path]) -> Size:
    """The size of all files of some files and folders."""
    return sum((size_of(each.read_text()) for path in paths for each in modules(path)), Size())


def public_names() -> set[str]:
    """The names that any `__all__` of the package lists."""
    names: set[str] = set()
    for path in modules(PACKAGE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names.update(ast.literal_eval(node.value))
    return names


def main(arguments: Sequence[str]) -> None:
    """Print the table of the given paths, or of the whole package."""
    paths = [Path(each).resolve() for each in arguments] or sorted(PACKAGE.glob("[!_]*[!d]"))
    rows = [(str(path.relative_to(ROOT)), total([path])) for path in paths]
    columns = [Column("folder", right=False), *(Column(name) for name in Size._fields)]
    rows.append(("together", total(paths if arguments else [PACKAGE])))
    if not arguments:
        # What an operator and its sources need is one size, what speaks with services another.
        rest = [path for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and path.name != CLIENTS]
        rows.append((f"without {CLIENTS}", total(rest)))
    print_table(columns, [[name, *map(str, size)] for name, size in rows])
    if not arguments:
        print(f"public names: {len(public_names())}")


if __name__ == "__main__":
    main(sys.argv[1:])
