"""Measures programs in turn, chunk by chunk: what disturbs one disturbs the others as well.

Each contender is a child process that does one workload. It says "ready", then reads how many operations
the next chunk has, one number a line, and answers with one number a line: what they took, in nanoseconds or
in bytes. For the thread that measures.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.table import Column, print_table

ROOT = Path(__file__).resolve().parents[1]


class ChildFailed(RuntimeError):
    """A program that is to be measured ended, or gave an answer that is no number."""


class Child:
    """A program that is asked for chunks. Use it as a context manager: leaving ends it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def __enter__(self) -> Child:
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
        )
        try:
            if self._answer() != "ready":
                raise self._failed("did not say that it is ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._end()

    def chunk(self, operations: int) -> float:
        """What one of so many operations took: nanoseconds, or bytes. Raises ChildFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{operations}\n")
        except BrokenPipeError:
            raise self._failed("has ended") from None
        answer = self._answer()
        try:
            return int(answer) / operations
        except ValueError:
            raise self._failed(f"answered {answer!r}, which is no number") from None

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def _failed(self, how: str) -> ChildFailed:
        self._said.seek(0)
        return ChildFailed(f"{' '.join(self._command)} {how}\n{self._said.read()}".rstrip())

    def _end(self) -> None:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()  # the end of the questions
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._said.close()


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int = 400
    """Chunks of each contender,"""
    seconds: float = 20.0
    """or fewer, when so many seconds are over."""
    warm_up: float = 0.2
    """Seconds of each contender, before."""


@dataclass(frozen=True)
class Figure:
    """The chunks of one contender, each through its operations: the median, the quartiles and the best."""

    median: float
    lower: float
    upper: float
    best: float
    chunks: int


def figure(values: Sequence[float]) -> Figure:
    """What is told of the chunks; at least two of them."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Figure(median, lower, upper, min(values), len(values))


def in_turn(commands: Sequence[Sequence[str]], operations: int, effort: Effort) -> list[Figure]:
    """Measures programs against each other, one chunk of each at a time, in an order that turns round."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(command)) for command in commands]
        for child in children:
            end = time.monotonic() + effort.warm_up
            while time.monotonic() < end:
                child.chunk(operations)
        measured: list[list[float]] = [[] for _ in children]
        end = time.monotonic() + effort.seconds
        for number in range(effort.rounds):
            if number >= 3 and time.monotonic() > end:
                break
            order = range(len(children)) if number % 2 == 0 else reversed(range(len(children)))
            for index in order:
                measured[index].append(children[index].chunk(operations))
    return [figure(values) for values in measured]


@dataclass(frozen=True)
class Row:
    """One comparison: the command lines of both sides, and how many times as fast ours must be."""

    name: str
    ours: Sequence[str]
    theirs: Sequence[str]
    operations: int
    """Of one chunk."""
    target: float | None
    """None: for comparison only."""


@dataclass(frozen=True)
class Compared:
    """A row with its figures, in nanoseconds of one operation."""

    name: str
    ours: Figure
    theirs: Figure
    target: float | None

    @property
    def ratio(self) -> float:
        """How many times as fast ours is, by medians."""
        return self.theirs.median / self.ours.median

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        return None if self.target is None else self.ratio >= self.target


def compared(rows: Iterable[Row], effort: Effort) -> list[Compared]:
    """Measures the rows, one after the other."""
    results = []
    for row in rows:
        ours, theirs = in_turn([row.ours, row.theirs], row.operations, effort)
        results.append(Compared(row.name, ours, theirs, row.target))
    return results


def verdict(met: bool | None) -> str:
    """The word of a table for a target."""
    return {None: "", True: "met", False: "missed"}[met]


def print_compared(results: Sequence[Compared], theirs: str) -> None:
    """The table for the terminal; `theirs` is what the other side is called."""
    columns = [
        Column("", right=False),
        Column("ours, ns"),
        Column(f"{theirs}, ns"),
        Column("best of each, ns"),
    ]
    columns += [Column("ratio"), Column("target"), Column("", right=False)]
    print_table(
        columns,
        [
            [
                result.name,
                f"{result.ours.median:,.1f}",
                f"{result.theirs.median:,.1f}",
                f"{result.ours.best:,.1f} / {result.theirs.best:,.1f}",
                f"{result.ratio:.2f}",
                "" if result.target is None else f"{result.target:g}",
                verdict(result.met),
            ]
            for result in results
        ],
    )


def as_json(results: Iterable[Compared]) -> list[dict[str, Any]]:
    """The rows for a file."""
    return [asdict(result) | {"ratio": result.ratio, "met": result.met} for result in results]


def machine() -> dict[str, Any]:
    """What the figures are measured on, and its load, in threads that wanted to run; prints that, too."""
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load {load:.1f}; the figures are rough where others run")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} on {platform.machine()}",
        "processors": os.cpu_count(),
        "load": load,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes figures, and makes the folder for them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"the figures: {path}")
