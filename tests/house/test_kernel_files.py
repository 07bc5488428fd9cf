"""The page of the kernel says of each of its files whether it is specified, and the code says the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ROOT / "kernel"
ACTION = re.compile(r"spec: (\w+)!")
# Uses a mailbox as specified, and is not specified itself.
USERS = {"include/pillarbox_http.h"}


def rows() -> list[tuple[set[str], set[str]]]:
    """The files and the modules of TLA+ of each row of the table."""
    page = (ROOT / "docs" / "kernel.md").read_text().partition("## What is specified")[2]
    cells = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    return [
        (set(re.findall(r"`([\w./]+)`", files)), set(re.findall(r"`(\w+)`", tla))) for files, tla in cells
    ]


def test_each_file_of_the_kernel_stands_in_one_row() -> None:
    stand = sorted(name for files, _ in rows() for name in files)
    there = [*KERNEL.glob("*.pyx"), *KERNEL.glob("include/*.h")]
    assert stand == sorted(path.relative_to(KERNEL).as_posix() for path in there)


def test_the_modules_of_a_row_are_those_that_its_files_name() -> None:
    assert any(modules for _, modules in rows()) and not all(modules for _, modules in rows())
    for files, modules in rows():
        named = {name for file in files - USERS for name in ACTION.findall((KERNEL / file).read_text())}
        assert named == modules
        assert all((ROOT / "spec" / f"{module}.tla").exists() for module in modules)


def test_what_is_specified_includes_nothing_that_is_not() -> None:
    specified = {file for files, modules in rows() if modules for file in files}
    helpers = {"include/pillarbox_atomic.h", "include/pillarbox_monitor.h", "include/pillarbox_counts.h"}
    for file in specified:
        included = re.findall(r'#include "(pillarbox\w*\.h)"', (KERNEL / file).read_text())
        assert {f"include/{name}" for name in included} <= specified | helpers, file
