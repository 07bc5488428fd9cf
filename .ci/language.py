"""Check the language of the code: docstrings, names of constants, phrases; run by `make lint`.

A docstring begins with an imperative or a noun phrase, a constant's name says what it bounds and in which
unit, and a sentence says "is not a column" rather than "is no column". Prints each line that does not, and
ends with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUESTION = re.compile(r"\s*(What|Who|How|Where|Which|When|Whose|Why|Whether)\b")
CYTHON_DOCSTRING = re.compile(r'^ *r?"""(.*)', re.MULTILINE)
BARE_CONSTANTS = {
    *("PATIENCE", "GRACE", "AGAIN", "BEAT", "SILENCE", "LOOK", "KEEP", "FOREVER"),
    *("MOST", "LEAST", "LONGEST", "SHORTEST"),
}
"""Names that say neither what is bounded nor in which unit."""
PHRASE = re.compile(
    r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|matter\b|one\b)\w+"
)


def constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names assigned at the top level and in classes, each with its line."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield node.lineno, target.id


def docstrings(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """The strings that stand alone, in Cython those that begin a line, each with its line."""
    if suffix == ".pyx":
        for match in CYTHON_DOCSTRING.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[1]
        return
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value


def complaints(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """The lines of one file that break a rule, each with the rule."""
    if suffix in (".py", ".pyx"):
        for line, docstring in docstrings(text, suffix):
            if question := QUESTION.match(docstring):
                yield line, f"a docstring begins with {question[1]!r}: use an imperative or a noun phrase"
    if suffix == ".py":
        for line, name in constants(ast.parse(text)):
            if name.lstrip("_") in BARE_CONSTANTS:
                yield line, f"{name}: say what it bounds and in which unit, as in HEARTBEAT_INTERVAL_S"
    for match in PHRASE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, f"{match[0]!r}: write 'is not a ...'"


def files() -> list[Path]:
    """The files that are checked: all that git knows of, but for contracts, whose wording is kept."""
    names = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.py",
            "*.pyx",
            "*.h",
            "*.md",
            "*.tla",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    skipped = {
        "docs/contracts.md",
        "spec/ended_contracts.md",
        ".ci/language.py",
        "tests/house/test_language.py",
    }
    return [ROOT / name for name in names if name not in skipped and (ROOT / name).is_file()]


def main() -> int:
    """Print the complaints; 1 if there are any."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {complaint}"
        for path in files()
        for line, complaint in complaints(path.read_text(), path.suffix)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
