"""No test is decided by the clock of the machine: a busy one takes ten times the time of a quiet one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLOCKS = frozenset(
    {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"}
)
"""Functions of the module `time` that measure. `time.time()` is a date to most tests."""
ALLOWED = frozenset[str]()
"""Files and lines of code that may, each with its reason beside it."""


def reads_clock(node: ast.AST, names: set[str]) -> bool:
    """True if an expression asks a clock, or one of the names that were given its time."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in CLOCKS:
            return True
        if isinstance(each, ast.Name) and each.id in names:
            return True
    return False


def timed_names(function: ast.AST) -> set[str]:
    """The names in a function that are times of a clock, or made of them."""
    names: set[str] = set()
    assigned = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    for _ in assigned:
        before = len(names)
        for each in assigned:
            if reads_clock(each.value, names):
                names.update(target.id for target in each.targets if isinstance(target, ast.Name))
        if len(names) == before:
            break
    return names


def has_upper_bound(test: ast.AST, names: set[str]) -> bool:
    """True if an expression asks for less than some time: more may be asked of a machine that is slow."""
    for compare in (each for each in ast.walk(test) if isinstance(each, ast.Compare)):
        left = compare.left
        for operator, right in zip(compare.ops, compare.comparators, strict=True):
            if isinstance(operator, ast.Lt | ast.LtE) and reads_clock(left, names):
                return True
            if isinstance(operator, ast.Gt | ast.GtE) and reads_clock(right, names):
                return True
            left = right
    return False


def decided_by_clock(source: str) -> Iterator[int]:
    """The lines of a file at which the time that something took decides, or a timer does something."""
    tree = ast.parse(source)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions or [tree]:
        names = timed_names(function)
        for each in ast.walk(function):
            if isinstance(each, ast.Assert | ast.While) and has_upper_bound(each.test, names):
                yield each.lineno
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and ast.unparse(each.func) in ("threading.Timer", "Timer"):
            yield each.lineno


@pytest.mark.contract("No test is decided by the time that something takes.")
def test_no_clock_of_the_machine_decides_a_test() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in sorted(set(decided_by_clock(path.read_text())))
    ]
    assert [place for place in found if place.partition(":")[0] not in ALLOWED] == []


@pytest.mark.parametrize(
    "body",
    [
        "assert time.monotonic() - began < 10",
        "began = time.monotonic()\n    took = time.monotonic() - began\n    assert 1 < took < 2",
        "until = time.monotonic() + 5\n    while time.monotonic() < until:\n        look()",
        "began = time.perf_counter()\n    f()\n    assert 3.0 > time.perf_counter() - began",
        "threading.Timer(0.2, f).start()",
    ],
)
def test_a_test_that_a_clock_decides_is_found(body: str) -> None:
    assert list(decided_by_clock(f"def test():\n    {body}\n"))


@pytest.mark.parametrize(
    "body", ["assert time.monotonic() - began >= 1.0", "assert clock.monotonic == 3", "assert len(found) < 3"]
)
def test_a_lower_bound_and_other_comparisons_are_none(body: str) -> None:
    assert not list(decided_by_clock(f"def test():\n    {body}\n"))
