"""Contract of `bench.size`: what runs is code; blank lines, comments and docstrings are not."""

from __future__ import annotations

import subprocess
import sys

from bench.size import ROOT, size_of

MODULE = '''"""A docstring.

Of three lines."""

import os  # with a reason

# A reason of its own.
LIMIT = 3
"""Documents the constant."""


def path(name):
    """A docstring."""
    return os.path.join(
        "a",
        name,
    )
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    """Of a module, the lines that Python runs are counted, each once, whatever stands on them."""
    assert size_of(MODULE) == (1, 17, 7, 2)


def test_the_command_prints_a_row_for_each_path_and_their_sum() -> None:
    """Given paths, the command prints the size of each and of all."""
    command = [sys.executable, "-m", "bench.size", "bench/size.py", "bench/table.py"]
    lines = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    codes = [int(line.split()[3]) for line in lines[2:]]
    assert [line.split()[0] for line in lines[2:]] == ["bench/size.py", "bench/table.py", "together"]
    assert codes[0] > 0 and codes[0] + codes[1] == codes[2]
