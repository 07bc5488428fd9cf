"""Plants each seeded defect in the kernel and runs each layer of checks: which one catches which.

    python -m spec.mutation [--jobs N] [DEFECT...]

Called by `make mutation`, which takes about half an hour. Without names it plants all and writes the table
into `spec/README.md`. Exits with 1 if a defect survives all layers, or if a layer fails with none planted.
The defects are those of `kernel/include/pillarbox_defects.h`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import native
from .variants import ROOT, built

DEFECTS = ROOT / "kernel" / "include" / "pillarbox_defects.h"
README = ROOT / "spec" / "README.md"
BEGIN, END = "<!-- written by make mutation -->", "<!-- end -->"
# A lost wake-up shows as a test that does not end.
SECONDS = 100.0
TEST_SECONDS = 20

MAILBOX = ("the lock-free inbox", "the inbox with a mutex", "the mail", "the mailbox thread's side")
QUEUE = ("the result queue",)
HANDOVER = ("the hand-over",)


@dataclass(frozen=True)
class Seeded:
    """A defect: its name, the part of the kernel that it is in, and what it does."""

    name: str
    part: str
    about: str


@dataclass(frozen=True)
class Layer:
    """A column of the table. `check(defect)` is true if all is well; `parts` are those that it looks at."""

    name: str
    parts: tuple[str, ...]
    check: Callable[[Seeded | None], bool]


def seeded() -> list[Seeded]:
    """All defects, in the order of the header."""
    found = []
    part = ""
    for line in DEFECTS.read_text().splitlines():
        heading = re.fullmatch(r"    /\* (.+?) \*/ \\?", line)
        part = heading[1] if heading else part
        entry = re.match(r"    X\((\w+)\)\s*(?:/\* (.+?) \*/)?", line)
        if entry:
            found.append(Seeded(entry[1], part, entry[2] or ""))
    return found


def ends_well(command: Sequence[str], environment: dict[str, str]) -> bool:
    """Whether a command exits with 0 in time."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def planted(defect: Seeded | None) -> dict[str, str]:
    """The environment that plants it in a build with PILLARBOX_DEFECTS."""
    return {"PILLARBOX_DEFECT": defect.name if defect else ""}


def programs(kind: str) -> list[tuple[str, str]]:
    """The native programs of a kind, for the parts of the kernel: their names and words."""
    return {
        "stress": [
            ("inbox_stress", "lock-free"),
            ("inbox_stress", "mutex"),
            ("queue_stress", ""),
            ("handover_stress", ""),
        ],
        "schedules": [("mailbox_schedules", ""), ("queue_schedules", ""), ("handover_schedules", "")],
    }[kind]


def concerns(program: str, defect: Seeded | None) -> bool:
    """Whether a program uses the part that the defect is in."""
    if defect is None:
        return True
    about = {"queue": QUEUE, "handover": HANDOVER}.get(program.split("_")[0], MAILBOX)
    return defect.part in about


def run_all(
    kind: str, defect: Seeded | None, flags: Sequence[str], environment: dict[str, str], *words: str
) -> bool:
    """Whether all programs of a kind that use the defect's part end well."""
    return all(
        ends_well([str(native.compiled(program, *flags)), *own.split(), *words], environment)
        for program, own in programs(kind)
        if concerns(program, defect)
    )


def schedules(defect: Seeded | None) -> bool:
    """Tries the schedules with two preemptions, and some random ones."""
    flags = ["-DPILLARBOX_SCHED", "-DPILLARBOX_DEFECTS"]
    return run_all("schedules", defect, flags, planted(defect), "all", "2", "1000", "1")


def stress(defect: Seeded | None) -> bool:
    """Lets native threads loose."""
    return run_all("stress", defect, ["-O2", "-DPILLARBOX_DEFECTS"], planted(defect))


def races(defect: Seeded | None) -> bool:
    """The same under ThreadSanitizer. A memory order has to be weakened when it is compiled."""
    flags = ["-fsanitize=thread", f"-DPILLARBOX_DEFECT={defect.name if defect else 'none'}"]
    return run_all("stress", defect, flags, native.SANITIZED)


def tests(*words: str) -> Callable[[Seeded | None], bool]:
    """Runs tests of Python with the build in which defects can be planted."""

    def check(defect: Seeded | None) -> bool:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-o", f"timeout={TEST_SECONDS}", "-o", "faulthandler_timeout=0", *words]
        return ends_well(command, planted(defect) | {"PYTHONPATH": str(built("checked"))})

    return check


EVERYTHING = MAILBOX + QUEUE + HANDOVER
REAL = "what_real_threads_did"
LAYERS = [
    Layer("contract", EVERYTHING, tests("tests/kernel", "-k", "not source and not models")),
    Layer("graph", EVERYTHING, tests("tests/spec/test_conformance.py", "-k", "not tlc")),
    Layer("models", EVERYTHING, tests("tests/kernel/test_kernel_models.py")),
    Layer("histories", EVERYTHING, tests("tests/testing", "-k", REAL)),
    Layer("traces", MAILBOX, tests("tests/spec/test_traces.py", "-k", "behaviour")),
    Layer("schedules", EVERYTHING, schedules),
    Layer("stress", EVERYTHING, stress),
    Layer("races", EVERYTHING, races),
]


def caught(defect: Seeded | None) -> dict[str, bool]:
    """For each layer that looks at the part: whether it finds something wrong."""
    return {
        layer.name: not layer.check(defect)
        for layer in LAYERS
        if defect is None or defect.part in layer.parts
    }


def table(results: dict[Seeded, dict[str, bool]]) -> str:
    """The table of the README: a row for each defect."""
    names = [layer.name for layer in LAYERS]
    lines = [f"| defect | what it does | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for defect, result in results.items():
        cells = ["caught" if result.get(name) else "" if name in result else "-" for name in names]
        lines.append(f"| `{defect.name}` | {defect.about} | {' | '.join(cells)} |")
    counts = [str(sum(result.get(name, False) for result in results.values())) for name in names]
    lines.append(f"| **{len(results)} defects** | caught by | {' | '.join(counts)} |")
    return "\n".join(lines)


def write(text: str) -> None:
    """Puts the table into the README, between its marks."""
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def main() -> int:
    """Plants the defects that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m spec.mutation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="defects at a time")
    parser.add_argument("defects", nargs="*", metavar="DEFECT")
    options = parser.parse_args()
    defects = [defect for defect in seeded() if not options.defects or defect.name in options.defects]
    unknown = set(options.defects) - {defect.name for defect in defects}
    if unknown:
        parser.error(f"no such defect: {', '.join(sorted(unknown))}")
    failing = [name for name, found in caught(None).items() if found]
    if failing:
        print(f"with no defect planted, these fail: {', '.join(failing)}", file=sys.stderr)
        return 1
    results: dict[Seeded, dict[str, bool]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for defect, result in zip(defects, pool.map(caught, defects), strict=True):
            results[defect] = result
            print(
                f"{defect.name}: {', '.join(name for name, found in result.items() if found) or 'SURVIVES'}"
            )
            sys.stdout.flush()
    if not options.defects:
        write(table(results))
    return 0 if all(any(result.values()) for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
