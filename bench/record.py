"""The functions that a row with a ledger runs, and how often they change the file: `python -m bench.record`.

Runs `pillarbox.async_map` in one process, without and with a ledger, over few and over more rows, and counts
the calls of each function of the package, in every thread. A function stands in the table if its calls grow
with the rows. A change of file is a call behind one, in the same thread, of a function of another file.
Compiled code makes no calls that Python reports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pillarbox
from bench.table import Column, print_table
from pillarbox import Ledger, async_map

FEW, MORE = 500, 2_500
"""Rows of the jobs that are compared."""
CAPACITY = 64
LEAST_SHARE = 0.9
"""Calls a row of a function that runs for each row, at least."""
PACKAGE = Path(next(iter(pillarbox.__path__)))


class Walk(NamedTuple):
    """The functions of a row, `file:function` with their calls a row, and changes of file a row."""

    functions: dict[str, float]
    changes: float

    @property
    def files(self) -> int:
        """The files of its functions."""
        return len({name.partition(":")[0] for name in self.functions})


class Calls:
    """Counts the calls of functions of the package, in all threads that begin while it is on."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.changes = 0
        self._names: dict[Any, str | None] = {}
        self._files: dict[int, str] = {}

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call: a function for `threading.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = _name_of(code.co_filename, code.co_firstlineno, code.co_name)
        name = self._names[code]
        if name is None:
            return
        self.functions[name] += 1
        file, thread = code.co_filename, threading.get_ident()
        self.changes += self._files.get(thread, file) != file
        self._files[thread] = file


def _name_of(file: str, line: int, function: str) -> str | None:
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return None
    return f"{path.relative_to(PACKAGE).as_posix()}:{line} {function}"


async def _answer(row: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"answer": 2 * row + 1}


def _job(rows: int, has_ledger: bool) -> Calls:
    calls = Calls()
    with tempfile.TemporaryDirectory() as folder:
        more: Any = {"ledger": Ledger(folder, uid="walk", run="walk")} if has_ledger else {}
        threading.setprofile(calls.note)
        sys.setprofile(calls.note)
        try:
            made = sum(1 for _ in async_map(range(rows), _answer, capacity=CAPACITY, **more))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if made != rows:
        raise AssertionError(f"{made} rows of {rows} came out")
    return calls


def walk(has_ledger: bool) -> Walk:
    """The walk of a row. The process has no other threads that run the package."""
    _job(FEW, has_ledger)
    few, more = _job(FEW, has_ledger), _job(MORE, has_ledger)
    rows = MORE - FEW
    grown = {name: (calls - few.functions[name]) / rows for name, calls in more.functions.items()}
    functions = {name: calls for name, calls in grown.items() if calls >= LEAST_SHARE}
    return Walk(functions, (more.changes - few.changes) / rows)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.record", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print both walks as JSON")
    options = parser.parse_args(arguments)
    walks = {name: walk(name != "plain") for name in ("plain", "with a ledger")}
    if options.json:
        print(json.dumps({name: [*each] for name, each in walks.items()}))
        return 0
    for name, found in walks.items():
        columns = [Column(f"function, {name}", right=False), Column("calls a row")]
        print_table(columns, [[each, f"{calls:.1f}"] for each, calls in found.functions.items()])
        print(f"{len(found.functions)} functions in {found.files} files, {found.changes:.1f} changes of file")
    return 0


if __name__ == "__main__":
    sys.exit(main())
