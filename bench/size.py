"""The size of the package, and its parameters typed `Any`: `python -m bench.size [PATH...]`.

A line of code has something that Python runs on it: blank lines, comments and strings that stand alone, as
docstrings do, are not counted. Without paths the table has the layers of the core and the rings around it, as
`spec/rings.py` has them; the core is all but the rings, without `kernel/`. Below it stands how many names
their `__all__` list. A parameter counts as `Any` if it is that, or that or None; `self` and `cls` never.
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
from spec.imports import modules_in
from spec.rings import FACE, LAYERS, RINGS, part_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pyruntime"
MAX_CORE, MAX_TOGETHER = 15_000, 31_972
"""Lines of code that the core, and all together, should have at most."""
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
    parameters: int = 0
    any: int = 0
    """Parameters that are typed `Any`."""

    @property
    def cells(self) -> list[str]:
        """The cells of a table."""
        share = self.any / self.parameters if self.parameters else 0.0
        return [*map(str, self[:4]), str(self.parameters), f"{share:.1%}"]

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
    kinds: list[str] = []
    for node in ast.walk(ast.parse(source)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):  # type: ignore[attr-defined]
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))  # type: ignore[attr-defined]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds += kinds_of_parameters(node.args)
    are_any = sum(kind in ("Any", "Any | None", "None | Any") for kind in kinds)
    return Size(1, source.count("\n"), len(code), len(comments), len(kinds), are_any)


def kinds_of_parameters(arguments: ast.arguments) -> Iterator[str]:
    """The types of the parameters of a function, "" for one that has none; not those of `self` and `cls`."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for each in [*named, arguments.vararg, arguments.kwarg]:
        if each is not None and (each.annotation is not None or each.arg not in ("self", "cls")):
            yield ast.unparse(each.annotation) if each.annotation is not None else ""


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


def parts() -> dict[str, Size]:
    """The size of each layer of the core and of each ring, without the kernel."""
    found = {name: Size() for name in (*LAYERS, FACE, *RINGS) if name != "kernel"}
    for module, path in modules_in("pyruntime", "pillarbox"):
        if path.suffix == ".py":
            found[part_of(module)] += size_of(path.read_text())
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the table of the given paths, or of the whole package."""
    columns = [Column("part", right=False), *(Column(name) for name in Size._fields)]
    if arguments:
        paths = [Path(each).resolve() for each in arguments]
        sizes = {str(path.relative_to(ROOT)): total([path]) for path in paths}
        sizes["together"] = total(paths)
        print_table(columns, [[name, *size.cells] for name, size in sizes.items()])
        return
    found = parts()
    core = sum((size for name, size in found.items() if name not in RINGS), Size())
    rings = sum((found[name] for name in RINGS), Size())
    rows = [(name, size) for name, size in found.items() if name not in RINGS]
    rows += [("the core", core), *((f"ring {name}", found[name]) for name in RINGS), ("the rings", rings)]
    rows.append(("together", core + rings))
    print_table(columns, [[name, *size.cells] for name, size in rows])
    together = (core + rings).code
    print(f"lines of code: core {core.code:,} of {MAX_CORE:,}, together {together:,} of {MAX_TOGETHER:,}")
    print(f"public names: {len(public_names())}")


if __name__ == "__main__":
    main(sys.argv[1:])
