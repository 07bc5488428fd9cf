"""The functions that a row with a ledger runs, and how often they change the file: `python -m bench.record`.

Runs `pillarbox.async_map` in one process, without and with a ledger, over few and over more rows, and counts
the calls of each function of the package, in every thread. A function stands in the table if its calls grow
with the rows. A change of file is a call behind one, in the same thread, of a function of another file.
Compiled code makes no calls that Python reports.

`--beside REF` measures instead the CPU of a row, of all threads, here and in another state of the package, a
commit or the path of a checkout. Each job is a process, rounds are interleaved; the table has the least and
the median of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pillarbox
from bench.chunks import ROOT
from bench.table import Column, print_table
from bench.task.states import beside, here
from pillarbox import Ledger, async_map

FEW, MORE = 500, 2_500
"""Rows of the jobs that are compared."""
CAPACITY = 64
LEAST_SHARE = 0.9
"""Calls a row of a function that runs for each row, at least."""
PACKAGE = Path(next(iter(pillarbox.__path__)))
CPU_ROWS, CPU_JOBS, ROUNDS = 20_000, 3, 7
"""Rows of a job whose CPU is measured, the jobs of a process behind one that warms up, and the rounds."""
SLOW_S = 0.002
KINDS = {
    "numbers, no ledger": {},
    "numbers": {},
    "dicts": {},
    "dicts, by a key": {"key": ["id"]},
    "numbers, answers of 2 ms": {},
}
"""The rows of a job, and what its ledger is given besides."""


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


async def _answer_slowly(row: int) -> dict[str, int]:
    await asyncio.sleep(SLOW_S)
    return {"answer": 2 * row + 1}


async def _answer_dict(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"answer": row["id"], "share": 0.5}


def cpu_of(kind: str, rows: int = CPU_ROWS) -> float:
    """Microseconds of CPU of a row, of all threads of this process: the least of some jobs."""
    is_dicts, fn = kind.startswith("dicts"), _answer_slowly if "answers of" in kind else _answer
    given: Any = (
        [{"id": n, "text": f"text number {n}", "kind": "a"} for n in range(rows)] if is_dicts else range(rows)
    )
    found = []
    for _ in range(1 + CPU_JOBS):
        with tempfile.TemporaryDirectory() as folder:
            more: Any = (
                {}
                if "no ledger" in kind
                else {"ledger": Ledger(folder, uid="walk", run="walk", **KINDS[kind])}
            )
            before = time.process_time()
            made = sum(
                1 for _ in async_map(given, _answer_dict if is_dicts else fn, capacity=CAPACITY, **more)
            )
            found.append((time.process_time() - before) / rows * 1e6)
        if made != rows:
            raise AssertionError(f"{made} rows of {rows} came out")
    return min(found[1:])


def _compare(which: str, rounds: int) -> None:
    """Print the CPU of a row in both states."""
    states = [beside(which, lambda line: print(line, file=sys.stderr)), here()]
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for kind in KINDS:
            for state in states if number % 2 else reversed(states):
                done = subprocess.run(
                    [sys.executable, "-m", "bench.record", "--cpu", kind],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": state.path},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found.setdefault((kind, state.name), []).append(float(done.stdout))
    columns = [Column("rows, us of CPU each", right=False)]
    for state in states:
        columns += [Column(f"{state.name}, least"), Column("median")]
    lines = []
    for kind in KINDS:
        each = [found[kind, state.name] for state in states]
        lines.append([kind, *(f"{of(times):.1f}" for times in each for of in (min, statistics.median))])
    print_table(columns, lines)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.record", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print both walks as JSON")
    parser.add_argument(
        "--beside", metavar="REF", help="measure CPU, here and there: a commit, or ./PATH of a checkout"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of that ({ROUNDS})")
    parser.add_argument("--cpu", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cpu:
        print(cpu_of(options.cpu))
        return 0
    if options.beside:
        _compare(options.beside, options.rounds)
        return 0
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
