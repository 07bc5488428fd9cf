"""Run the tests that a change must pass, and name the long suites that it owes.

    python -m spec.touched BASE [--list] [PYTEST...]

Called by `make touched BASE=REV`. The change is the difference between BASE and the working tree. A part of
the project is touched if a file of it has changed, or if it imports a part that is touched, by the imports
in the sources. Of a touched part all tests run, the slow ones too; tests that have changed run themselves.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from .imports import ROOT, imports_of, modules_in, sources

PARTS_BESIDE = ("bench", "examples", "fuzz", "spec")
"""Folders of the project, besides those of the package, that import it."""
TOP = "pillarbox"
"""The part of the modules that stand in no package of `pyruntime`."""
TESTS: Mapping[str, tuple[str, ...]] = {
    "aio": ("tests/aio", "tests/limits", "tests/observe"),
    "bench": ("tests/bench", "tests/demo"),
    "examples": ("tests/examples",),
    "fuzz": ("tests/chaos",),
    "kernel": ("tests/kernel", "tests/native", "tests/embedding"),
    "spec": ("tests/spec", "tests/house"),
    TOP: ("tests/house",),
}
"""The tests of parts whose folder is not called as they are."""
EVERYTHING = (
    *("pyproject.toml", "setup.py", "constraints.txt", "Makefile"),
    *("tests/conftest.py", "tests/distribution.py", "tests/search.py", "tests/waiting.py", "tests/servers/*"),
)
"""Files whose change all tests may see."""
OTHERS: Mapping[str, tuple[str, ...]] = {
    ".ci/*": ("tests/house",),
    "docs/*": ("tests/house",),
    "mkdocs.yml": ("tests/house",),
    "README.md": ("tests/house",),
    "CHANGELOG.md": ("tests/house/test_contracts.py",),
}
"""Files outside of all parts, and the tests that read them."""
OWED: Mapping[str, tuple[str, ...]] = {
    "kernel/*": ("sanitize", "mutation", "test-freethreaded"),
    "tests/native/*": ("sanitize",),
    "spec/*": ("spec",),
    "spec/defects*": ("mutation",),
    "spec/mutation.py": ("mutation",),
    "spec/layers.py": ("mutation",),
    "spec/searches.py": ("mutation",),
    "spec/noticed.json": ("mutation",),
    "spec/variants.py": ("mutation",),
    "spec/orders*": ("mutation",),
    "pyruntime/ledger/*": ("chaos",),
    "pyruntime/sources/*": ("chaos",),
    "pyruntime/spark/*": ("test-oldest",),
    "pyruntime/spark/stream/*": ("chaos",),
    "fuzz/chaos/*": ("chaos",),
    "constraints-oldest.txt": ("test-oldest",),
    "pyproject.toml": ("test-oldest", "test-freethreaded", "test-slow"),
    "setup.py": ("sanitize", "test-freethreaded"),
    "tests/conftest.py": ("test-slow",),
    "tests/distribution.py": ("test-slow",),
}
"""Files, and the long suites whose subject they are."""


def part_of_module(module: str, packages: Iterable[str]) -> str | None:
    """Return the part that an imported module belongs to, None for other people's."""
    first, _, rest = module.partition(".")
    if first in PARTS_BESIDE:
        return first
    if first != TOP:
        return None
    second = rest.partition(".")[0]
    return second if second in packages else TOP


def part_of_file(path: str) -> str | None:
    """Return the part that a file of the project belongs to, None for tests and other files."""
    first, _, rest = path.partition("/")
    if first == "kernel" or (first in PARTS_BESIDE and rest):
        return first
    if first == "pyruntime":
        return rest.partition("/")[0] if "/" in rest else TOP
    return None


def users(root: Path = ROOT) -> dict[str, set[str]]:
    """Return for each part those that import it."""
    files = [*sources(root), *(pair for folder in PARTS_BESIDE for pair in modules_in(folder, folder, root))]
    parts = {path: part_of_file(path.relative_to(root).as_posix()) for _, path in files}
    packages = {part for part in parts.values() if part is not None}
    found: dict[str, set[str]] = {part: set() for part in packages}
    for module, path in files:
        user = parts[path]
        for name in imports_of(module, path):
            used = part_of_module(name, packages)
            if used is not None and user is not None and used != user and used in found:
                found[used].add(user)
    return found


def touched_parts(changed: Iterable[str], users: Mapping[str, set[str]]) -> set[str]:
    """Return the parts that have changed, and those that import one of them, at whatever distance."""
    waiting = [part for path in changed if (part := part_of_file(path)) is not None and part in users]
    found: set[str] = set()
    while waiting:
        part = waiting.pop()
        if part not in found:
            found.add(part)
            # The modules at the top are a door to all: a test of the house is no reason to run everything.
            if part != TOP:
                waiting += users[part]
    return found


def selected_tests(changed: Sequence[str], parts: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the folders and files of the tests to run; `["tests"]` for all of them."""
    if any(fnmatchcase(path, pattern) for path in changed for pattern in EVERYTHING):
        return ["tests"]
    found = {folder for part in parts for folder in TESTS.get(part, (f"tests/{part}",))}
    for path in changed:
        if path.startswith("tests/") and (root / path).exists():
            is_test = path.rpartition("/")[2].startswith("test_")
            found.add(path if is_test else path.rpartition("/")[0])
        for pattern, tests in OTHERS.items():
            if fnmatchcase(path, pattern):
                found.update(tests)
    there = {name for name in found if (root / name).exists() and name != "tests"}
    # A file within a folder that runs whole would run twice.
    return sorted(name for name in there if not any(name.startswith(f"{other}/") for other in there))


def owed_suites(changed: Iterable[str]) -> list[str]:
    """Return the long suites whose subject has changed."""
    return sorted(
        {
            suite
            for path in changed
            for pattern, suites in OWED.items()
            if fnmatchcase(path, pattern)
            for suite in suites
        }
    )


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Return the files that differ between a commit and the working tree. Raises ValueError."""
    listings = (["git", "diff", "--name-only", base], ["git", "ls-files", "--others", "--exclude-standard"])
    found: set[str] = set()
    for command in listings:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            raise ValueError(f"BASE={base!r}: must be a commit of this checkout: {listed.stderr.strip()}")
        found.update(listed.stdout.split("\n"))
    return sorted(found - {""})


def main(words: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m spec.touched", description=__doc__)
    parser.add_argument("base", help="the commit from which the change began")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    options, more = parser.parse_known_args(words)
    try:
        changed = changed_files(options.base)
    except ValueError as error:
        parser.error(str(error))
    parts = touched_parts(changed, users())
    tests = selected_tests(changed, parts)
    print(f"== {len(changed)} files differ from {options.base}; parts: {', '.join(sorted(parts)) or 'none'}")
    print(f"== tests: {' '.join(tests) or 'none'}", flush=True)
    code = 0
    if tests and not options.list:
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
        command += ["--hypothesis-profile", "quick", *more, *tests]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    owed = owed_suites(changed)
    print(
        f"== long suites owed: {', '.join(owed) or 'none'}",
        *(f"make long SUITE={suite}" for suite in owed),
        sep="\n   ",
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
