"""Contract of `bench.size`: what runs is code; blank lines, comments and docstrings are not."""

from __future__ import annotations

import subprocess
import sys

from bench.size import PACKAGE, ROOT, modules, parts, size_of

MODULE = '''"""A docstring.

Of three lines."""

import os  # with a reason

# A reason of its own.
LIMIT = 3
"""Documents the constant."""


def path(self, name: Any = None, *rest, sep: Any | None = None, **more: dict[str, Any]):
    """A docstring."""
    return os.path.join(
        "a",
        name,
    )
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    """Of a module, the lines that Python runs are counted, each once, whatever stands on them."""
    assert size_of(MODULE)[:4] == (1, 17, 7, 2)


def test_parameters_typed_any_are_counted() -> None:
    """Of the parameters without `self`, those are counted whose type is `Any`, or that or None."""
    size = size_of(MODULE)
    assert (size.parameters, size.any) == (4, 2)


def test_the_core_and_the_rings_are_the_whole_package() -> None:
    """The rows of the layers and the rings hold each file of `pyruntime` once, and none is empty."""
    found = parts()
    assert sum(size.files for size in found.values()) == len([*modules(PACKAGE)])
    assert all(size.code > 0 for size in found.values())


def test_the_command_prints_a_row_for_each_path_and_their_sum() -> None:
    """Given paths, the command prints the size of each and of all."""
    command = [sys.executable, "-m", "bench.size", "bench/size.py", "bench/table.py"]
    lines = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    codes = [int(line.split()[3]) for line in lines[2:]]
    assert [line.split()[0] for line in lines[2:]] == ["bench/size.py", "bench/table.py", "together"]
    assert codes[0] > 0 and codes[0] + codes[1] == codes[2]
