"""Measures programs in turn, chunk by chunk: what disturbs one disturbs the others as well.

Each contender is a child process that does one workload. It says "ready", then reads how many operations
the next chunk has, one number a line, and answers with one number a line: what they took, in nanoseconds or
in bytes. For the thread that measures.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class ChildFailed(RuntimeError):
    """A program that is to be measured ended, or gave an answer that is not a number."""


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
        """Measure one of so many operations: nanoseconds, or bytes. Raises ChildFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{operations}\n")
        except BrokenPipeError:
            raise self._failed("has ended") from None
        answer = self._answer()
        try:
            return int(answer) / operations
        except ValueError:
            raise self._failed(f"answered {answer!r}, which is not a number") from None

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
    """The effort of a measurement."""

    rounds: int = 400
    """Chunks of each contender,"""
    seconds: float = 20.0
    """or fewer, when so many seconds are over."""
    warm_up: float = 0.2
    """Seconds of each contender, before."""


@dataclass(frozen=True)
class Figure:
    """The chunks of one contender, each through its operations: the median, the 10th and the 90th percentile,
    the best.
    """

    median: float
    lower: float
    upper: float
    best: float
    chunks: int

    @property
    def spread(self) -> float:
        """The ratio of the least of the upper tenth to the greatest of the lower tenth."""
        return self.upper / self.lower


def figure(values: Sequence[float]) -> Figure:
    """The figure of the chunks; at least two of them."""
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Figure(tenths[4], tenths[0], tenths[8], min(values), len(values))


def counted(command: Sequence[str], operations: int) -> tuple[float, float]:
    """Instructions, and misses of the first cache of data, of one operation of a child.

    What it does more, under callgrind, for one chunk more. Raises RuntimeError where it does not run there.
    """
    once, twice = (_executed(command, f"{operations}\n" * asked) for asked in (2, 3))
    instructions, misses = ((after - before) / operations for before, after in zip(once, twice, strict=True))
    return instructions, misses


def _executed(command: Sequence[str], questions: str) -> tuple[int, int]:
    valgrind = ["valgrind", "--tool=callgrind", "--cache-sim=yes", f"--callgrind-out-file={os.devnull}"]
    # Python is called by `env`, which valgrind does not follow.
    settings = dict(word.split("=", 1) for word in command[1:2]) if command[0] == "env" else {}
    words = command[2:] if command[0] == "env" else command
    done = subprocess.run(
        [*valgrind, *words],
        cwd=ROOT,
        input=questions,
        env=os.environ | {"PYTHONHASHSEED": "0"} | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    total = re.search(r"Collected : (.*)", done.stderr)
    if done.returncode != 0 or total is None:
        raise RuntimeError(f"{' '.join(words)} does not run under callgrind:\n{done.stderr}")
    # Instructions, reads, writes; misses of the first cache of each, then of the last.
    counts = [int(count) for count in total[1].split()]
    return counts[0], counts[4] + counts[5]


def machine() -> dict[str, Any]:
    """Describe the machine and its load, in threads that wanted to run; prints that, too."""
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
