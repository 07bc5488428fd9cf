"""Plants each seeded defect in the kernel and runs each layer of checks: which one catches which.

    python -m spec.mutation [--jobs N] [--seed N] [--layers NAME,...] [--missing] [DEFECT...]

Called by `make mutation`, which takes over an hour on two cores. What it finds of a defect goes at once into
the tables of `spec/README.md`: which layer catches which defect, and how many there are of each source file.
These tables are the record: `--missing` tries what they do not answer. A defect that only makes a check run
out of time counts apart from those that are caught: a machine with too much to do looks the same.
Exits with 1 if a defect survives all layers, or if a layer fails with none planted. `spec/defects.py` says
how defects are written and planted.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import contracts, graph, native
from .defects import Seeded, seeded
from .variants import ROOT, with_defect

README = ROOT / "spec" / "README.md"
BEGIN, END = "<!-- written by make mutation -->", "<!-- end -->"
# What a check says of a defect.
UNNOTICED, CAUGHT, TIMED_OUT = "", "caught", "time-out"
# What else a cell of the table says: the layer does not look at the defect's part, or is still to try it.
NOT_LOOKING, NOT_TRIED = "-", "?"
# What a test says that has run out of time.
LATE = re.compile(r"\+ Timeout \+|from pytest-timeout")
# The first test that has failed, in pytest's summary.
FAILED = re.compile(r"(?m)^(?:FAILED|ERROR) (\S+)")
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
# The variable that has the name of the defect for `outcome`; PILLARBOX_DEFECT has those in headers only.
NAMED = "PILLARBOX_PLANTED"
# A lost wake-up shows as a test that does not end.
TIMEOUT_S = 150.0
TEST_TIMEOUT_S = 40

MAILBOX = ("the lock-free inbox", "the inbox with a mutex", "the mail", "the mailbox thread's side")
QUEUE = ("the result queue",)
HANDOVER = ("the hand-over",)
DEADLINES = ("the deadlines and their slots",)
INTERFACE = ("the C interface",)
MODULES = ("the Cython modules",)
# The tests that `make test-fast` has of a folder.
FAST = "not spark and not server and not slow"


def in_folder(folder: str, *names: str) -> tuple[str, ...]:
    """Files of a folder of tests, or of its `unit`. All of them together take longer than a layer may."""
    places = (ROOT / "tests" / folder, ROOT / "tests" / folder / "unit")
    paths = [place / f"test_{name}.py" for name in names for place in places]
    found = tuple(path.relative_to(ROOT).as_posix() for path in paths if path.exists())
    if len(found) != len(names):
        raise FileNotFoundError(f"tests/{folder}: not each of {', '.join(names)} is there once")
    return found


def of_calls(*names: str) -> tuple[str, ...]:
    """Files of `tests/aio`."""
    return in_folder("aio", *names)


# Parts outside the kernel, and the tests of each, in the order in which they are run.
ABOVE = {
    "the processor": ("tests/mailbox", "tests/task/unit/test_stream_task.py"),
    "the task": ("tests/task",),
    "the chain": ("tests/task", *of_calls("wait_snapshots")),
    "the collector": of_calls("collectors"),
    "the operator": of_calls(
        "restored_rows", "wait_snapshots", "operator_properties", "ledger_session", "ledger_replays", "retry",
        "bytes", "limits_apart", "outcomes", "order_and_limits", "single_flight", "close",
    ),
    "the runners": of_calls(
        "restored_rows", "batches", "blocking", "batches_failures", "batches_timeouts", "deadlines",
        "breaker", "close", "collectors", "order_and_limits", "batches_properties",
    ),
    "the scheduler": of_calls(
        "restored_rows", "wait_snapshots", "retry", "retry_budget", "outcomes", "retry_operator",
        "deadlines", "budgets", "failures", "results_with_usage",
    ),
    "the ledger session": (
        *of_calls("ledger_session", "ledger_replays", "ledger_failures", "ledger_identity", "wait_snapshots"),
        *of_calls("ledger_properties"),
        *in_folder("ledger", "writer", "ledger", "lease", "shared"),
    ),
    "the claims": (*of_calls("dedupe_across_tasks"), *in_folder("ledger", "claims")),
    "the cache": (*of_calls("cache", "cache_pin"), *in_folder("ledger", "cache_upkeep")),
    # Without Spark.
    "the buckets of streams": in_folder(
        "spark",
        "bucket_state", "held_calls", "call_process", "bucket_processor", "clock", "stream_order",
    ),
}  # fmt: skip


# By defect and layer: how the check has ended.
Results = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Layer:
    """A column of the table. `check(defect)` says how it ends; `parts` are those that it looks at."""

    name: str
    parts: tuple[str, ...]
    check: Callable[[Seeded | None], str]
    by_part: bool = False
    """True if what it runs depends on the part; `check` then takes a defect that changes nothing for none."""


def outcome(command: Sequence[str], environment: dict[str, str], timeout_s: float = TIMEOUT_S) -> str:
    """Run a command: UNNOTICED if it exits with 0, else TIMED_OUT or CAUGHT. RuntimeError for neither."""
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
            said, _ = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    name = environment.get(NAMED, environment.get("PILLARBOX_DEFECT"))
    if running.returncode != 0 and name == "":
        print(said[-3000:], file=sys.stderr)
    if running.returncode == NO_TESTS and name:
        # The tests that convict the defect are not among those of the layer.
        return UNNOTICED
    # Killed by a signal, a failed test or check, or a sanitizer's report; anything else is an accident.
    if running.returncode > 0 and running.returncode not in (1, native.REPORTED):
        raise RuntimeError(f"{' '.join(command)} exits with {running.returncode}:\n{said[-3000:]}")
    if running.returncode == 0:
        return UNNOTICED
    if name and (failed := FAILED.search(said)):
        print(f"{name}: {failed[1]} fails", flush=True)
    return TIMED_OUT if LATE.search(said) else CAUGHT


def planted(defect: Seeded | None) -> dict[str, str]:
    """The environment that plants it in a build that can have it."""
    name = defect.name if defect else ""
    return native.plant(name if defect and defect.in_headers else "") | {NAMED: name}


def programs(kind: str) -> list[tuple[str, str]]:
    """The native programs of a kind, for the parts of the kernel: their names and words."""
    return {
        "stress": [
            ("inbox_stress", "lock-free"),
            ("inbox_stress", "mutex"),
            ("mailbox_storm", "lock-free 4"),
            ("mailbox_storm", "mutex 4"),
            ("wake_calls", ""),
            ("queue_stress", ""),
            ("queue_sweep", ""),
            ("handover_stress", ""),
            ("slab_places", ""),
            ("capi_stress", "lock-free"),
            ("deadlines_memory", ""),
        ],
        "orders": list(native.EDGES),
        "schedules": [("mailbox_schedules", ""), ("queue_schedules", ""), ("handover_schedules", "")],
    }[kind]


def concerns(program: str, defect: Seeded | None) -> bool:
    """True if a program uses the part that the defect is in."""
    if defect is None:
        return True
    about = {
        "queue": QUEUE,
        "handover": HANDOVER,
        "deadlines": DEADLINES,
        "slab": MAILBOX + INTERFACE,
        "capi": INTERFACE,
    }
    return defect.part in about.get(program.split("_")[0], MAILBOX)


def run_all(
    kind: str, defect: Seeded | None, flags: Sequence[str], environment: dict[str, str], *words: str
) -> str:
    """Run the programs of a kind that use the defect's part: the first outcome that is not a success."""
    return first(
        outcome([str(native.compiled(program, *flags, planted=True)), *own.split(), *words], environment)
        for program, own in programs(kind)
        if concerns(program, defect)
    )


def first(outcomes: Iterable[str]) -> str:
    """The first of these that is not UNNOTICED, after which no more is tried."""
    return next(filter(None, outcomes), UNNOTICED)


def schedules(defect: Seeded | None) -> str:
    """Tries the schedules with two preemptions, then those with stale reads, and some random ones of each."""
    return first(
        run_all("schedules", defect, ["-DPILLARBOX_SCHED"], planted(defect), *words)
        for words in (("all", "2", "1000", "1"), ("weak", "1", "2", "1000", "1"))
    )


def stress(defect: Seeded | None) -> str:
    """Lets native threads loose."""
    return run_all("stress", defect, ["-O2"], planted(defect))


def races(defect: Seeded | None) -> str:
    """The same under ThreadSanitizer."""
    environment = native.SANITIZED | planted(defect)
    return first(run_all(kind, defect, ["-fsanitize=thread"], environment) for kind in ("orders", "stress"))


def tests(*words: str) -> Callable[[Seeded | None], str]:
    """Runs tests of Python with the build in which defects can be planted: first those that convict it."""

    def check(defect: Seeded | None) -> str:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-o", f"timeout={TEST_TIMEOUT_S}", "-o", "faulthandler_timeout=0"]
        environment = planted(defect) | {"PYTHONPATH": str(with_defect(defect))}
        places = [word for word in words if word.startswith("tests/")]
        asked: list[Sequence[str]] = [words]
        if (own := convicting(defect, places)) and own != places:
            asked.insert(0, [*own, *words[len(places) :]])
        return first(outcome([*command, *each], environment) for each in asked)

    return check


def convicting(defect: Seeded | None, places: Sequence[str]) -> list[str]:
    """The tests in these files and folders that are to notice the defect, as their contracts say."""
    found = contracts.convictions().get(defect.name, []) if defect is not None else []
    return [
        test
        for test in found
        if any(test == place or test.startswith((f"{place}/", f"{place}::")) for place in places)
    ]


def above(defect: Seeded | None) -> str:
    """Runs the fast tests of the defect's part."""
    assert defect is not None
    return tests(*ABOVE[defect.part], "-m", FAST, "--hypothesis-profile", "quick")(defect)


EVERYTHING = MAILBOX + QUEUE + HANDOVER
REAL = "what_real_threads_did"
# Parts whose steps the recorder of the async operator sees.
RECORDED = ("the operator", "the runners", "the scheduler", "the ledger session")
# The tests of the C interface and of native programs are among them: a build for tests has the same table.
CONTRACT = ("tests/kernel", "-k", "not source and not models")
LAYERS = [
    Layer("contract", EVERYTHING + DEADLINES + INTERFACE + MODULES, tests(*CONTRACT)),
    Layer("graph", EVERYTHING, tests("tests/spec/test_conformance.py", "-k", "not tlc")),
    Layer("models", EVERYTHING + DEADLINES + MODULES, tests("tests/kernel/unit/test_kernel_models.py")),
    Layer("histories", EVERYTHING, tests("tests/testing", "-k", REAL)),
    Layer("traces", MAILBOX, tests("tests/spec/unit/test_traces.py", "-k", "behaviour and model")),
    Layer("schedules", EVERYTHING, schedules),
    Layer("stress", EVERYTHING + DEADLINES + INTERFACE, stress),
    Layer("races", EVERYTHING + INTERFACE, races),
    Layer("fast tests", tuple(ABOVE), above, by_part=True),
    Layer("recorded runs", RECORDED, tests("tests/spec/unit/test_operator_traces.py", "-k", "behaviour")),
]


def tried(defect: Seeded, layers: Sequence[Layer], known: Results | None = None) -> dict[str, str]:
    """For each of these layers that looks at the part, and whose answer is not known: how its check ends."""
    return {layer.name: layer.check(defect) for layer in to_try(defect, layers, known or {})}


def failing(layers: Iterable[Layer], parts: Iterable[str]) -> list[str]:
    """Those of the layers that fail for one of these parts although nothing is planted."""
    nothing = [Seeded("", part, "nothing", ()) for part in sorted(parts)]
    found = []
    for layer in layers:
        looked_at = [each for each in nothing if each.part in layer.parts] if layer.by_part else [None]
        found += [
            f"{layer.name}, {each.part}" if each else layer.name for each in looked_at if layer.check(each)
        ]
    return found


def to_try(defect: Seeded, layers: Sequence[Layer], known: Results) -> list[Layer]:
    """Those of the layers that look at the defect's part, and whose answer is not known."""
    answered = known.get(defect.name, {})
    return [layer for layer in layers if defect.part in layer.parts and layer.name not in answered]


def recorded(text: str) -> dict[str, dict[str, str]]:
    """By defect and layer: what a text with the tables says of those that there are."""
    known = {f"`{defect.name}`": defect.name for defect in seeded()}
    layers = {layer.name for layer in LAYERS}
    names: list[str] = []
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        row = [cell.strip() for cell in line.split("|")[1:-1]]
        if row[:1] == ["defect"]:
            names = row[2:]
        elif len(row) == len(names) + 2 and row[0] in known:
            cells = zip(names, row[2:], strict=True)
            answers = {
                name: cell for name, cell in cells if name in layers and cell not in (NOT_LOOKING, NOT_TRIED)
            }
            if answers:
                found[known[row[0]]] = answers
    return found


def remembered() -> dict[str, dict[str, str]]:
    """The results of earlier runs, from the README."""
    return recorded(README.read_text().split(BEGIN)[1].split(END)[0])


def remember(defect: Seeded, result: dict[str, str]) -> None:
    """Adds to what the README has."""
    found = remembered()
    found[defect.name] = found.get(defect.name, {}) | result
    write(f"{table(found)}\n\n{coverage(found)}")


def verdict(result: Mapping[str, str]) -> str:
    """The verdict of all layers on a defect: CAUGHT by one of them, or TIMED_OUT at best, or UNNOTICED."""
    return next((each for each in (CAUGHT, TIMED_OUT) if each in result.values()), UNNOTICED)


def table(results: Results) -> str:
    """The tables of the README, of the kernel and of what is above it: a row for each tried defect."""
    of_kernel = [layer for layer in LAYERS if not set(layer.parts) & set(ABOVE)]
    return "\n\n".join(
        table_of(results, layers, [defect for defect in seeded() if (defect.part in ABOVE) == is_above])
        for is_above, layers in (
            (False, of_kernel),
            (True, [each for each in LAYERS if each not in of_kernel]),
        )
    )


def table_of(results: Results, layers: Sequence[Layer], defects: Sequence[Seeded]) -> str:
    """One of the tables, with these columns. `recorded` reads it."""
    names = [layer.name for layer in layers]
    lines = [f"| defect | what it does | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    tried_ones = [defect for defect in defects if defect.name in results]
    for defect in tried_ones:
        result = results[defect.name]
        open_ = {layer.name: NOT_TRIED for layer in to_try(defect, layers, results)}
        cells = [result.get(name, open_.get(name, NOT_LOOKING)) for name in names]
        lines.append(f"| `{defect.name}` | {defect.about} | {' | '.join(cells)} |")
    counts = []
    for name in names:
        found = [results[defect.name][name] for defect in tried_ones if name in results[defect.name]]
        late = found.count(TIMED_OUT)
        counts.append(f"{found.count(CAUGHT)} of {len(found)}" + (f", time-out {late}" if late else ""))
    lines.append(
        f"| **{len(tried_ones)} of {len(defects)} defects** | caught, of those tried | {' | '.join(counts)} |"
    )
    return "\n".join(lines)


def coverage(results: Results) -> str:
    """The table of source files: how many defects there are in each, and what became of them.

    A defect in several files counts in each, and as not tried while a layer is still to look that
    may notice it. Below the table: the files of the kernel, and of the folders in ABOVE, that have none.
    """
    files: dict[str, list[str]] = {}
    for defect in seeded():
        said = verdict(results.get(defect.name, {}))
        if said != CAUGHT and to_try(defect, LAYERS, results):
            said = NOT_TRIED
        for file in {place.file for place in defect.places}:
            files.setdefault(file, []).append(said)
    lines = ["| source file | defects | caught | time-out only | unnoticed | not tried |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for file, found in sorted(files.items()):
        counts = [found.count(each) for each in (CAUGHT, TIMED_OUT, UNNOTICED, NOT_TRIED)]
        lines.append(f"| `{file}` | {len(found)} | {' | '.join(map(str, counts))} |")
    without = [f"`{file}`" for file in sources() if file not in files]
    return "\n".join([*lines, "", f"Without a planted defect: {', '.join(without) or 'none'}."])


def sources() -> list[str]:
    """The kernel's files, and those of the folders in ABOVE."""
    folders = {f"pyruntime/{Path(tested).parts[1]}" for part in ABOVE.values() for tested in part}
    patterns = ["kernel/include/*.h", "kernel/*.pyx", *(f"{folder}/*.py" for folder in sorted(folders))]
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py"]


def write(text: str) -> None:
    """Puts the tables into the README, between their marks."""
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
    parser.add_argument("--missing", action="store_true", help="only what the README's tables do not answer")
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
    known = remembered() if options.missing else {}
    defects = [defect for defect in defects if to_try(defect, layers, known)]
    layers = [layer for layer in layers if any(layer in to_try(one, layers, known) for one in defects)]
    if any(layer.name == "graph" for layer in layers):
        for name in graph.SOURCES:
            graph.load(name)  # without them the layer would skip everything, and catch nothing
    if fails := failing(layers, {defect.part for defect in defects}):
        print(f"with no defect planted, these fail: {'; '.join(fails)}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        for defect, result in zip(
            defects, pool.map(lambda one: tried(one, layers, known), defects), strict=True
        ):
            remember(defect, result)
            by = [name if found == CAUGHT else f"{name} ({found})" for name, found in result.items() if found]
            print(f"{defect.name}: {', '.join(by) or 'SURVIVES'}", flush=True)
    results = remembered()
    if left := [defect for defect in seeded() if to_try(defect, LAYERS, results)]:
        print(f"--missing tries {len(left)} more defects, which not every layer has tried")
    surviving = [defect.name for defect in defects if not verdict(results[defect.name])]
    late = [defect.name for defect in defects if verdict(results[defect.name]) == TIMED_OUT]
    print(f"{len(defects)} defects, {len(surviving)} survive {' '.join(surviving)}".rstrip())
    if late:
        print(f"{len(late)} only make a check run out of time: {' '.join(late)}")
    return 1 if surviving else 0


if __name__ == "__main__":
    sys.exit(main())
