"""Run the tests that a change must pass, and name the long suites that it owes.

    python -m spec.touched BASE [--list] [PYTEST...]

Called by `make touched BASE=REV`. The change is the difference between BASE and the working tree. A part of
the project is touched if a file of it has changed, or if it imports a part that is touched, by the imports
in the sources. Of a touched part all tests run, the slow ones too; tests that have changed run themselves,
and those that import a module of tests which has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from .imports import ROOT, imports_of, module_of, modules_in, sources
from .long_runs import WRITTEN

PARTS_BESIDE = ("bench", "examples", "fuzz", "spec")
"""Folders of the project, besides those of the package, that import it."""
LOW_MODULES = (
    *("dataclass_fields", "lacks", "lazy_names", "loop_thread", "providers", "redaction", "secret_shapes"),
    *("thread_start", "user_frames", "validate", "wire", "wire_table"),
)
"""Modules that stand in no package of `pyruntime` and that packages import: parts of their own."""
TOP = "pillarbox"
"""The part of the other modules that stand in no package, the names of `pillarbox` among them."""
TESTS: Mapping[str, tuple[str, ...]] = {
    "aio": ("tests/aio", "tests/limits", "tests/observe"),
    "bench": ("tests/bench", "tests/demo"),
    "dataclass_fields": ("tests/clients", "tests/sources"),
    "examples": ("tests/examples",),
    "fuzz": ("tests/chaos",),
    "kernel": ("tests/kernel", "tests/native"),
    "lacks": ("tests/aio",),
    "lazy_names": ("tests/house",),
    "loop_thread": ("tests/aio", "tests/rpc"),
    "providers": ("tests/aio", "tests/spark/unit"),
    "redaction": ("tests/aio",),
    "secret_shapes": ("tests/aio",),
    "spark": ("tests/spark", "tests/cluster"),
    "spec": ("tests/spec", "tests/house"),
    "thread_start": ("tests/aio",),
    "user_frames": ("tests/aio", "tests/spark/unit"),
    "validate": ("tests/aio",),
    "wire": ("tests/clients",),
    "wire_table": ("tests/clients",),
    TOP: ("tests/house",),
}
"""The tests of parts whose folder is not called as they are."""
EVERYTHING = frozenset({"pyproject.toml", "setup.py", "constraints.txt", "Makefile"})
"""Files whose change all tests may see, besides what `tests/conftest.py` imports."""
CONFTEST = "conftest.py"
BESIDES: Mapping[str, tuple[str, ...]] = {
    ".ci/*": ("tests/house",),
    "docs/*": ("tests/house",),
    "mkdocs.yml": ("tests/house",),
    "README.md": ("tests/house",),
    "CHANGELOG.md": ("tests/house/test_release.py",),
    "MANIFEST.in": ("tests/house/test_packaging.py",),
    "SECURITY.md": ("tests/house/test_packaging.py",),
    "docs/actions.md": ("tests/spark/test_actions.py",),
    "docs/connectors-*.md": ("tests/sources/unit/test_logs.py",),
    "docs/options.*": ("tests/spark/test_signatures.py",),
    "docs/sources.md": ("tests/sources/unit/test_connectors_suite.py",),
    "docs/tables.md": ("tests/spark/test_tables.py",),
    "pyruntime/__init__.py": ("tests/aio", "tests/clients", "tests/ledger", "tests/limits", "tests/observe"),
    "pyruntime/cluster_check.py": ("tests/cluster",),
    "pyruntime/executor_probe.py": ("tests/cluster",),
    "pyruntime/pack.py": ("tests/cluster",),
    "pyruntime/api.py": ("tests/aio", "tests/clients", "tests/ledger", "tests/limits", "tests/observe"),
    "tests/embedding/*": ("tests/house/test_packaging.py",),
    "tests/flaky.toml": ("tests/house",),
    "tests/skips.toml": ("tests/house",),
}
"""Files, and the tests that read or use them besides the tests of their parts."""
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
    "pyruntime/spark/*": ("test-spark-3.5", "test-spark-4.0", "test-spark-4.1"),
    "pyruntime/spark/stream/*": ("chaos",),
    "fuzz/chaos/*": ("chaos",),
    "pyruntime/cluster_check.py": ("test-cluster",),
    "pyruntime/executor_probe.py": ("test-cluster",),
    "pyruntime/pack.py": ("test-cluster",),
    "tests/cluster/*": ("test-cluster",),
    ".ci/spark-3.5.txt": ("test-spark-3.5",),
    ".ci/spark-4.0.txt": ("test-spark-4.0",),
    ".ci/spark-4.1.txt": ("test-spark-4.1",),
    "pyproject.toml": ("test-spark-3.5", "test-freethreaded", "test-slow"),
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
    return second if second in packages or second in LOW_MODULES else TOP


def part_of_file(path: str) -> str | None:
    """Return the part that a file of the project belongs to, None for tests and other files."""
    first, _, rest = path.partition("/")
    if first == "kernel" or (first in PARTS_BESIDE and rest):
        return first
    if first == "pyruntime":
        name = rest.partition("/")[0] if "/" in rest else rest.removesuffix(".py")
        return name if "/" in rest or name in LOW_MODULES else TOP
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
    parts = {part for path in changed if (part := part_of_file(path)) is not None}
    return reached(parts & set(users), users)


def reached(start: Iterable[str], users: Mapping[str, set[str]]) -> set[str]:
    """Return what stands at the start, and what uses it, at whatever distance."""
    waiting, found = [*start], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += users.get(name, ())
    return found


def is_test(path: str) -> bool:
    """Return True for the name of a file of tests."""
    return path.startswith("tests/") and path.rpartition("/")[2].startswith("test_") and path.endswith(".py")


def importing_tests(changed: Iterable[str], root: Path) -> set[str]:
    """Return the tests to run for changes outside of the package: folders and files, "tests" for all.

    Those are a changed test, the tests beside another changed file of `tests`, and what imports one of these
    or a tool that has changed, at whatever distance.
    """
    folders = ("tests", *PARTS_BESIDE)
    modules = [pair for folder in folders for pair in modules_in(folder, folder, root)]
    files = {module: path.relative_to(root).as_posix() for module, path in modules}
    importers: dict[str, set[str]] = {path: set() for path in files.values()}
    for module, file in modules:
        for name in imports_of(module, file):
            used = module_of(name, files)
            if used is not None:
                importers[files[used]].add(files[module])
    for path in changed:
        folder = "/".join(path.split("/")[:2])
        if path.startswith("tests/") and not path.endswith(".py") and folder != path:
            # A program, a configuration: what stands in the same folder starts it.
            importers[path] = {name for name in files.values() if name.startswith(f"{folder}/")}
    found = set()
    for path in reached(changed, importers):
        folder = path.rpartition("/")[0]
        if not path.startswith("tests/"):
            continue
        if is_test(path):
            found.add(path)
        elif path == f"tests/{CONFTEST}" or (folder != "tests" and any((root / folder).rglob("test_*.py"))):
            found.add(folder)
    return found


def selected_tests(changed: Sequence[str], parts: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the folders and files of the tests to run; `["tests"]` for all of them."""
    found = {folder for part in parts for folder in TESTS.get(part, (f"tests/{part}",))}
    found |= importing_tests(changed, root)
    if "tests" in found or not EVERYTHING.isdisjoint(changed):
        return ["tests"]
    for path in changed:
        for pattern, tests in BESIDES.items():
            if fnmatchcase(path, pattern):
                found.update(tests)
    there = {name for name in found if (root / name).exists()}
    # A file within a folder that runs whole would run twice.
    return sorted(name for name in there if not any(name.startswith(f"{other}/") for other in there))


def owed_suites(changed: Iterable[str]) -> list[str]:
    """Return the long suites whose subject has changed."""
    return sorted(
        {
            suite
            for path in set(changed) - set(WRITTEN)
            for pattern, suites in OWED.items()
            if fnmatchcase(path, pattern)
            for suite in suites
        }
    )


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Return the files that differ between a commit and the working tree. Raises ValueError."""
    # A file that has moved is gone where it was.
    listings = (
        ["git", "diff", "--name-only", "--no-renames", "-z", base, "--"],
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
    )
    found: set[str] = set()
    for command in listings:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            raise ValueError(f"BASE={base!r}: must be a commit of this checkout: {listed.stderr.strip()}")
        found.update(listed.stdout.split("\0"))
    return sorted(found - {""})


def execute(command: Sequence[str]) -> int:
    """Run a command in the project's folder; returns its exit status."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main(words: Sequence[str], run: Callable[[Sequence[str]], int] = execute, root: Path = ROOT) -> int:
    """Run the command; returns its exit status, which is that of the tests."""
    parser = argparse.ArgumentParser(prog="python -m spec.touched", description=__doc__)
    parser.add_argument("base", help="the commit from which the change began")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    options, more = parser.parse_known_args(words)
    try:
        changed = changed_files(options.base, root)
    except ValueError as error:
        parser.error(str(error))
    parts = touched_parts(changed, users(root))
    tests = selected_tests(changed, parts, root)
    print(f"== {len(changed)} files differ from {options.base}; parts: {', '.join(sorted(parts)) or 'none'}")
    print(f"== tests: {' '.join(tests) or 'none'}", flush=True)
    code = 0
    if tests and not options.list:
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
        code = run([*command, "--hypothesis-profile", "quick", *more, *tests])
    owed = owed_suites(changed)
    print(
        f"== long suites owed: {', '.join(owed) or 'none'}",
        *(f"make long SUITE={suite}" for suite in owed),
        sep="\n   ",
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
