"""Plants each seeded defect in the kernel and runs each layer of checks: which one catches which.

    python -m spec.mutation [--jobs N] [--seed N] [--layers NAME,...] [DEFECT...]

Called by `make mutation`, which takes about three quarters of an hour on two cores. What it finds is added
to `out/mutation.json`, and the table in `spec/README.md` is written from that when every defect is in it.
Exits with 1 if a defect survives all layers, or if a layer fails with none planted. The defects are those of
`kernel/include/pillarbox_defects.h`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from . import native
from .variants import ROOT, built

DEFECTS = ROOT / "kernel" / "include" / "pillarbox_defects.h"
README = ROOT / "spec" / "README.md"
RESULTS = ROOT / "out" / "mutation.json"
BEGIN, END = "<!-- written by make mutation -->", "<!-- end -->"
# A lost wake-up shows as a test that does not end.
SECONDS = 150.0
TEST_SECONDS = 40

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
    """Whether a command exits with 0 in time. RuntimeError if how it ends says nothing of the kernel."""
    # In a session of its own: what a test has started must not go on when the time is over.
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            said, _ = running.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    if running.returncode != 0 and environment.get("PILLARBOX_DEFECT") == "":
        print(said[-3000:], file=sys.stderr)
    # Killed by a signal, a failed test or check, or a sanitizer's report; anything else is an accident.
    if running.returncode > 0 and running.returncode not in (1, native.REPORTED):
        raise RuntimeError(f"{' '.join(command)} exits with {running.returncode}:\n{said[-3000:]}")
    return running.returncode == 0


def planted(defect: Seeded | None) -> dict[str, str]:
    """The environment that plants it in a build with PILLARBOX_DEFECTS."""
    return {"PILLARBOX_DEFECT": defect.name if defect else ""}


def programs(kind: str) -> list[tuple[str, str]]:
    """The native programs of a kind, for the parts of the kernel: their names and words."""
    return {
        "stress": [
            ("inbox_stress", "lock-free"),
            ("inbox_stress", "mutex"),
            ("mailbox_storm", "lock-free 4"),
            ("mailbox_storm", "mutex 4"),
            ("queue_stress", ""),
            ("queue_sweep", ""),
            ("handover_stress", ""),
            ("slab_places", ""),
        ],
        "orders": list(native.EDGES),
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
    weakens = defect is not None and defect.name.startswith("weak_")
    flag = f"-DPILLARBOX_DEFECT={defect.name}" if defect and weakens else "-DPILLARBOX_DEFECTS"
    environment = native.SANITIZED | planted(defect)
    return all(
        run_all(kind, defect, ["-fsanitize=thread", flag], environment) for kind in ("orders", "stress")
    )


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


def caught(defect: Seeded | None, layers: Sequence[Layer]) -> dict[str, bool]:
    """For each of these layers that looks at the part: whether it finds something wrong."""
    return {
        layer.name: not layer.check(defect)
        for layer in layers
        if defect is None or defect.part in layer.parts
    }


def remembered() -> dict[str, dict[str, bool]]:
    """By defect and layer: what earlier runs have found."""
    found: dict[str, dict[str, bool]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def remember(defect: Seeded, result: dict[str, bool]) -> None:
    """Adds to what was found."""
    found = remembered()
    found[defect.name] = found.get(defect.name, {}) | result
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1))


def table(results: dict[str, dict[str, bool]]) -> str:
    """The table of the README: a row for each defect that was tried."""
    names = [layer.name for layer in LAYERS]
    lines = [f"| defect | what it does | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for defect in seeded():
        if defect.name not in results:
            continue
        result = results[defect.name]
        cells = ["caught" if result.get(name) else "" if name in result else "-" for name in names]
        lines.append(f"| `{defect.name}` | {defect.about} | {' | '.join(cells)} |")
    counts = [
        f"{sum(result.get(name, False) for result in results.values())} of "
        f"{sum(name in result for result in results.values())}"
        for name in names
    ]
    lines.append(
        f"| **{len(results)} of {len(seeded())} defects** | caught, of those tried | {' | '.join(counts)} |"
    )
    return "\n".join(lines)


def write(text: str) -> None:
    """Puts the table into the README, between its marks."""
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def main() -> int:
    """Plants the defects that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m spec.mutation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="defects at a time")
    parser.add_argument(
        "--layers", type=lambda words: words.split(","), metavar="NAME,...", help="all if not given"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="in a random order, the same for the same N")
    parser.add_argument("defects", nargs="*", metavar="DEFECT")
    options = parser.parse_args()
    layers = [layer for layer in LAYERS if options.layers is None or layer.name in options.layers]
    defects = [defect for defect in seeded() if not options.defects or defect.name in options.defects]
    unknown = set(options.defects) - {defect.name for defect in defects}
    unknown |= set(options.layers or ()) - {layer.name for layer in layers}
    if unknown:
        parser.error(f"neither a defect nor a layer: {', '.join(sorted(unknown))}")
    if options.seed is not None:
        random.Random(options.seed).shuffle(defects)
    failing = [name for name, found in caught(None, layers).items() if found]
    if failing:
        print(f"with no defect planted, these fail: {', '.join(failing)}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        for defect, result in zip(defects, pool.map(lambda one: caught(one, layers), defects), strict=True):
            remember(defect, result)
            by = [name for name, found in result.items() if found]
            print(f"{defect.name}: {', '.join(by) or 'SURVIVES'}", flush=True)
    results = remembered()
    if all(defect.name in results for defect in seeded()):
        write(table(results))
    surviving = [defect.name for defect in defects if not any(results[defect.name].values())]
    print(f"{len(defects)} defects, {len(surviving)} survive {' '.join(surviving)}".rstrip())
    return 1 if surviving else 0


if __name__ == "__main__":
    sys.exit(main())
