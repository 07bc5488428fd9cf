"""The kernel against itself: `python -m bench.kernel_rows`.

Backends, growth with what waits, bytes, and instructions. Prints tables and writes
`out/bench/kernel_rows.json`. What a unit of work is stands in `bench/README.md`.
Instructions are counted where `valgrind` is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import chunks
from bench.chunks import ROOT, Child, Effort, Row, in_turn
from bench.native_program import native_program
from bench.table import Column, print_table

WAITING = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
FLAT = 2.0
"""The dearest operation may cost so many times the cheapest, whatever waits."""
BYTES = {"native mail": 48, "Python mail": 96}
"""At most."""
MANY_MAILS = 1_000_000

PYTHON = (sys.executable, "-m", "bench.python_chunks")


def backend_rows(program: str) -> Iterator[Row]:
    """Native mails: the lock-free inbox against the one with a mutex."""
    works = {
        "native mails, 1 producer": (["producers", "1"], 2.0),
        "native mails, 2 producers": (["producers", "2"], 2.0),
        "put, take and run, one thread": (["single"], None),
        "put 1,000, batch, run, one thread": (["batch"], None),
    }
    for name, ((work, *number), target) in works.items():
        ours, theirs = ([program, work, backend, *number] for backend in ("lock-free", "mutex"))
        yield Row(name, ours, theirs, 10_000, target)


def growth(program: str, effort: Effort, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """What an operation costs while so many others wait."""
    works = {
        "mail put behind those that wait, oldest taken": ("among", "lock-free"),
        "mail of higher priority put and taken past them": ("past", "lock-free"),
        "ordered queue: complete, emit, put": ("steady", "ordered"),
        "unordered queue: complete, emit, put": ("steady", "unordered"),
    }
    rows = []
    for side, command, operations in (("native", [program], 5_000), ("Python", [*PYTHON], 2_000)):
        for name, words in works.items():
            # Few enough that a mailbox which looks at all that wait would end, too.
            size = 200 if words[0] == "past" else operations
            figures = in_turn([[*command, *words, str(waiting)] for waiting in sizes], size, effort)
            medians = [each.median for each in figures]
            factor = max(medians) / min(medians)
            rows.append(
                {
                    "name": f"{name}, {side}",
                    "ns": dict(zip(map(str, sizes), medians, strict=True)),
                    "growth": factor,
                    "target": FLAT,
                    "met": factor <= FLAT,
                }
            )
    return rows


def bytes_of_mails(program: str, mails: int) -> list[dict[str, Any]]:
    """Resident memory of a mail that waits, judged in whole bytes: the allocators' own pages are in it."""
    rows = []
    commands = {
        "native mail": [program, "bytes", "lock-free"],
        "Python mail": [*PYTHON, "bytes", "lock-free"],
    }
    for name, command in commands.items():
        with Child(command) as child:
            measured = statistics.median(child.chunk(mails) for _ in range(3))
        rows.append(
            {"name": name, "bytes": measured, "target": BYTES[name], "met": round(measured) <= BYTES[name]}
        )
    return rows


def counted(program: str) -> Iterator[tuple[str, list[str], int]]:
    """What instructions are counted of: the name, the command, how many operations."""
    for backend in ("lock-free", "mutex"):
        yield f"native: put, take and run, {backend}", [program, "single", backend], 10_000
        yield f"native: put 1,000, batch, run, {backend}", [program, "batch", backend], 10_000
    yield "native: past 10,000 others", [program, "past", "lock-free", "10000"], 100
    yield "native: ordered queue, in order", [program, "steady", "ordered", "1000"], 10_000
    yield "native: ordered queue, random completion", [program, "rounds", "ordered", "0"], 10_000
    yield "native: unordered queue, random, watermarks", [program, "rounds", "unordered", "10"], 10_000
    yield "Python: put and take", [*PYTHON, "among", "lock-free", "10"], 10_000
    yield "Python: ordered queue, random completion", [*PYTHON, "rounds", "ordered", "0"], 10_000
    yield "Python: unordered queue, random, watermarks", [*PYTHON, "rounds", "unordered", "10"], 10_000


def instructions(command: Sequence[str], operations: int) -> float:
    """Instructions of one operation: what a program executes more, under callgrind, for one chunk more."""
    once, twice = (_executed(command, f"{operations}\n" * asked) for asked in (2, 3))
    return (twice - once) / operations


def _executed(command: Sequence[str], questions: str) -> int:
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
    done = subprocess.run(
        [*valgrind, *command],
        cwd=ROOT,
        input=questions,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    total = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or total is None:
        raise RuntimeError(f"{' '.join(command)} does not run under callgrind:\n{done.stderr}")
    return int(total[1])


def print_growth(rows: Sequence[dict[str, Any]], sizes: Sequence[int]) -> None:
    """The table of `growth`."""
    columns = [Column("waiting; ns of one operation", right=False), *(Column(f"{size:,}") for size in sizes)]
    columns += [Column("growth"), Column("target"), Column("", right=False)]
    print_table(
        columns,
        [
            [
                row["name"],
                *(f"{ns:,.1f}" for ns in row["ns"].values()),
                f"{row['growth']:.1f}",
                f"{row['target']:g}",
                chunks.verdict(row["met"]),
            ]
            for row in rows
        ],
    )


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernel_rows", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("out/bench/kernel_rows.json"))
    parser.add_argument("--rounds", type=int, default=400, help="chunks of each contender")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one row, at most")
    parser.add_argument("--most", type=int, default=WAITING[-1], help="mails or records that wait, at most")
    options = parser.parse_args(arguments)
    effort = Effort(options.rounds, options.seconds)
    sizes = [size for size in WAITING if size <= options.most]
    program = str(native_program())
    content: dict[str, Any] = {"machine": chunks.machine()}

    print("Native mails, by backend")
    backends = chunks.compared(backend_rows(program), effort)
    chunks.print_compared(backends, "mutex")
    content["backends"] = chunks.as_json(backends)

    content["growth"] = growth(program, effort, sizes)
    print_growth(content["growth"], sizes)

    content["bytes"] = bytes_of_mails(program, min(MANY_MAILS, options.most))
    columns = [Column("bytes of one that waits", right=False), Column("bytes"), Column("at most")]
    print_table(
        [*columns, Column("", right=False)],
        [
            [row["name"], f"{row['bytes']:.1f}", str(row["target"]), chunks.verdict(row["met"])]
            for row in content["bytes"]
        ],
    )

    if shutil.which("valgrind"):
        content["instructions"] = {
            name: instructions(command, operations) for name, command, operations in counted(program)
        }
        print_table(
            [Column("instructions of one operation", right=False), Column("")],
            [[name, f"{count:,.1f}"] for name, count in content["instructions"].items()],
        )
    else:
        print("instructions are not counted: there is no valgrind here")
    chunks.write_json(options.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
