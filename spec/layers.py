"""The layers of checks that planted defects are tried by, and how long one of their commands may take.

A layer has *steps*: tests of Python, or a native program. `run` runs a step with a defect planted and says
how it has ended, and by what. No clock decides what is late: `Pace` runs each step without a defect first, on
the same machine, and a step with one may take `MAX_TIMES_AS_LONG` times as long.

Called by `spec.mutation` and `spec.contracts`, from several threads.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from . import graph, native
from .defects import Seeded
from .variants import ROOT, with_defect

# What a check says of a defect.
UNNOTICED, CAUGHT, TIMED_OUT = "", "caught", "time-out"
MAX_TIMES_AS_LONG = 10.0
"""The time that a step may take, in times of what it takes without a defect: a machine's load changes."""
MAX_WAIT_S = 40.0
"""Seconds that a check may take besides: many wait for half a minute for what a defect keeps from coming."""
MAX_UNPLANTED_S = 1800.0
"""The end of a step without a defect, which has nothing to be compared with."""
# What a test says that has run out of time: pytest-timeout, and the end of a test that it cannot interrupt.
LATE = re.compile(r"\+ Timeout \+|from pytest-timeout|(?m:^Timeout \(\d)")
# The first test that has failed, in pytest's summary.
FAILED = re.compile(r"(?m)^(?:FAILED|ERROR) (tests/[\w/]+\.py(?:::\w+)*(?:\[.*?\](?= - |$))?)")
# A part of a test and what it took, with --durations.
TOOK = re.compile(r"(?m)^(\d+\.\d+)s (?:setup|call|teardown) +(tests/.+?) *$")
# The first scenario that has failed, of a program that tries schedules.
SCENARIO = re.compile(r"(?m)^(\S+) \d+ schedules: (?!ok)")
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
NO_SUCH_TEST = int(pytest.ExitCode.USAGE_ERROR)
# The variable that has the name of the defect for tests; PILLARBOX_DEFECT has those in headers only.
NAMED = "PILLARBOX_PLANTED"

MAILBOX = ("the lock-free inbox", "the inbox with a mutex", "the mail", "the mailbox thread's side")
QUEUE = ("the result queue",)
HANDOVER = ("the hand-over",)
DEADLINES = ("the deadlines and their slots",)
WAITS = ("the waits",)
INTERFACE = ("the C interface",)
MODULES = ("the Cython modules",)
EVERYTHING = MAILBOX + QUEUE + HANDOVER
# The tests that `make test-fast` has of a folder.
FAST = "not spark and not server and not slow"

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Once(Generic[Key, Value]):
    """A function that is called once for each key, whichever threads ask: the others wait for its answer."""

    def __init__(self, function: Callable[[Key], Value]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._answers: dict[Key, Future[Value]] = {}

    def __call__(self, key: Key) -> Value:
        """Give the answer for a key, or raise what the function has raised."""
        with self._lock:
            asked_before = key in self._answers
            answer = self._answers.setdefault(key, Future())
        if not asked_before:
            try:
                answer.set_result(self._function(key))
            except BaseException as error:
                answer.set_exception(error)
        return answer.result()

    def put(self, key: Key, value: Value) -> None:
        """Give an answer that is known already."""
        answer: Future[Value] = Future()
        answer.set_result(value)
        with self._lock:
            self._answers[key] = answer


class UnplantedError(Exception):
    """A step fails although nothing is planted, so that it says nothing of defects."""


class GoneError(Exception):
    """A step names a test that there is not."""


@dataclass(frozen=True)
class Ended:
    """An outcome, and what it is owed to: a test, or a program with its words, as in `Step.by`."""

    said: str
    by: str = ""
    words: str = ""
    """All that was printed."""


@dataclass(frozen=True)
class Limits:
    """Seconds that the whole of a step may take, and any one test in it."""

    whole: float
    test: float


@dataclass(frozen=True)
class Step:
    """A command of a layer: tests of Python with pytest's words, or a native program with its own."""

    words: tuple[str, ...]
    program: str = ""
    flags: tuple[str, ...] = ()

    @property
    def by(self) -> str:
        """The step as a record has it."""
        return " ".join(filter(None, (self.program, *self.words)))

    def command(self, limits: Limits) -> list[str]:
        """The command line; the program is built if need be."""
        if self.program:
            return [str(built((self.program, self.flags))), *self.words]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-p", "spec.searches", "-o", "faulthandler_timeout=0"]
        return [*command, "-o", f"timeout={limits.test:.0f}", "-x", *self.words]

    def environment(self, defect: Seeded | None) -> dict[str, str]:
        """The environment that plants a defect in a build that can have it, or none."""
        name = defect.name if defect else ""
        own = native.plant(name if defect and defect.in_headers else "") | {NAMED: name}
        if self.program:
            return own | (native.SANITIZED if "-fsanitize=thread" in self.flags else {})
        return own | {"PYTHONPATH": str(with_defect(defect))}


built: Once[tuple[str, tuple[str, ...]], Path] = Once(
    lambda asked: native.compiled(asked[0], *asked[1], planted=True)
)


def run(step: Step, defect: Seeded | None, limits: Limits) -> Ended:
    """Runs a step to its end, or to that of its time.

    RuntimeError if it ends in another way than a check does, GoneError if it names a test that there is not.
    """
    command = step.command(limits)
    environment = os.environ | step.environment(defect)
    # Each process would compile, and rewrite the assertions of, all that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # In a session of its own: what a test has started must not go on when the time is over.
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as running:
        try:
            said, _ = running.communicate(timeout=limits.whole)
        except subprocess.TimeoutExpired:
            return Ended(TIMED_OUT, step.by)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    if running.returncode == 0 or (running.returncode == NO_TESTS and not step.program):
        return Ended(UNNOTICED, words=said)
    if running.returncode == NO_SUCH_TEST and not step.program and "not found: " in said:
        raise GoneError(step.by)
    # Killed by a signal, a failed test or check, or a sanitizer's report; anything else is an accident.
    if running.returncode > 0 and running.returncode not in (1, native.REPORTED):
        raise RuntimeError(f"{' '.join(command)} exits with {running.returncode}:\n{said[-3000:]}")
    if step.program:
        scenario = SCENARIO.search(said)
        by = f"{step.by} {scenario[1]}" if scenario and scenario[1] not in step.words else step.by
    else:
        failed = FAILED.search(said)
        by = failed[1] if failed else step.by
    return Ended(TIMED_OUT if LATE.search(said) else CAUGHT, by, said)


class Pace:
    """Seconds that steps take here with no defect planted, and so the limits of those with one.

    Each step is timed when its limits are first asked for; `time_tests` times many tests in one go.
    """

    def __init__(self) -> None:
        self._limits = Once(self._measured)

    @cached_property
    def start_s(self) -> float:
        """The seconds that pytest takes before its first test."""
        begin = time.monotonic()
        run(Step(("--collect-only", "tests/kernel/test_deadlines.py")), None, UNLIMITED)
        return time.monotonic() - begin

    def limits(self, step: Step) -> Limits:
        """The limits of a step. UnplantedError if it fails."""
        return self._limits(step)

    def _measured(self, step: Step) -> Limits:
        timed = () if step.program else TIMED
        for chances in (1, 0):
            begin = time.monotonic()
            ended = run(Step((*step.words, *timed), step.program, step.flags), None, UNLIMITED)
            took = time.monotonic() - begin
            if ended.said and not chances:
                raise UnplantedError(f"{step.by}: {ended.by or ended.said}")
            if not ended.said:
                break
        if step.program:
            return Limits(MAX_WAIT_S + MAX_TIMES_AS_LONG * took, 0.0)
        slowest = max(durations(ended.words).values(), default=0.0)
        test = MAX_WAIT_S + MAX_TIMES_AS_LONG * (self.start_s + slowest)
        return Limits(max(test, MAX_TIMES_AS_LONG * took) + MAX_TIMES_AS_LONG * self.start_s, test)

    def time_tests(self, tests: Sequence[str]) -> None:
        """Times many tests in one process, each as a step of its own; one that fails is left for `limits`."""
        ended = run(Step((*tests, *TIMED, "--maxfail=0")), None, UNLIMITED)
        took = durations(ended.words)
        failed = set(FAILED.findall(ended.words))
        for test in tests:
            own = {name for name in took if name == test or name.startswith(f"{test}[")}
            if own and not own & failed:
                limit = MAX_WAIT_S + MAX_TIMES_AS_LONG * (self.start_s + max(took[name] for name in own))
                whole = limit + MAX_TIMES_AS_LONG * (self.start_s + sum(took[name] for name in own))
                self._limits.put(Step((test,)), Limits(whole, limit))


TIMED = ("--durations=0", "--durations-min=0")
UNLIMITED = Limits(MAX_UNPLANTED_S, MAX_UNPLANTED_S)


def durations(said: str) -> dict[str, float]:
    """By test: the seconds that it took, as pytest says with --durations."""
    found: dict[str, float] = {}
    for seconds, name in TOOK.findall(said):
        found[name] = found.get(name, 0.0) + float(seconds)
    return found


@dataclass(frozen=True)
class Layer:
    """A column of the table. `steps` gives what it runs for a defect; `parts` are those that it looks at."""

    name: str
    parts: tuple[str, ...]
    steps: Callable[[Seeded], Sequence[Step]]
    flags: tuple[str, ...] = ()
    prepare: Callable[[], object] = tuple

    def step(self, by: str) -> Step:
        """The step that a record names; the words of a test's name are not taken apart."""
        if by.startswith("tests/"):
            return Step((by,))
        program, *words = by.split()
        return Step(tuple(words), program, self.flags)

    def has(self, test: str, defect: Seeded) -> bool:
        """True if the layer runs this test, or its file, for the defect's part."""
        return defect.part in self.parts and any(
            test == place or test.startswith((f"{place}/", f"{place}::"))
            for step in self.steps(defect)
            for place in step.words
            if place.startswith("tests/")
        )

    def check(self, defect: Seeded, pace: Pace) -> Ended:
        """Runs the steps until one notices the defect. UnplantedError if one fails without."""
        prepared(self.prepare)
        ended = Ended(UNNOTICED)
        for step in self.steps(defect):
            ended = run(step, defect, pace.limits(step))
            if ended.said:
                break
        return ended


prepared: Once[Callable[[], object], object] = Once(lambda prepare: prepare())


def load_graphs() -> None:
    """Makes the graphs, without which their layer would skip everything, and catch nothing."""
    for name in graph.SOURCES:
        graph.load(name)


# ---- what the layers run


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
        "restored_rows", "wait_snapshots", "operator_properties", "ledger_leaving", "lease_lost",
        "ledger_replays", "retry", "bytes", "limits_apart", "outcomes", "order_and_limits", "single_flight",
        "close", "slots",
    ),
    "the runners": of_calls(
        "slots", "restored_rows", "batches", "blocking", "batches_failures", "batches_timeouts", "deadlines",
        "breaker", "close", "collectors", "collector_bills", "order_and_limits", "batches_properties",
        "limits_apart", "call_threads",
    ),
    "the scheduler": of_calls(
        "restored_rows", "wait_snapshots", "retry", "retry_budget", "outcomes", "retry_operator",
        "deadlines", "budgets", "failures", "results_with_usage", "exhausted_process", "thread_start",
        "policies", "limits_apart", "time_budgets",
    ),
    "rows by key": of_calls("per_key", "key_and_time_policies"),
    "the hedges": of_calls("hedging", "hedged_batches", "hedged_usage", "hedge_policy", "policies_alone"),
    "the ledger session": (
        *of_calls("ledger_leaving", "ledger_replays", "ledger_failures", "ledger_identity", "wait_snapshots"),
        *of_calls("ledger_properties", "lease_lost", "ledger_owner", "time_budgets"),
        *in_folder("ledger", "writer", "ledger", "ledger_folders", "lease", "shared", "several_inputs"),
        *in_folder("ledger", "publish"),
    ),
    "the fetchers": in_folder(
        "sources", "fetching", "fetch_ends", "fetch_looking", "fetch_orders", "fetch_resumed"
    ),
    "slices of Parquet": in_folder("sources", "parquet_slices", "parquet_leaves"),
    "the coordinator": in_folder(
        "limits", "coordinator", "coordinator_restart", "coordinator_writes", "told_limits"
    ),
    "the slots that tasks share": in_folder(
        "limits", "slots", "found_slots", "hanging_slots", "slots_killed"
    ),
    "the findings of tasks": in_folder("limits", "endpoint_facts", "facts_of_processes"),
    "limits that are learned": (
        *of_calls("policies_alone"), *in_folder("limits", "learned_limits", "limit_headers"),
    ),
    "the breaker": of_calls("breaker_alone", "breaker"),
    "the capacity that is found": ("tests/limits/test_adaptive.py",),
    "jobs": in_folder("job", "run", "kafka_sink"),
    "the endpoints of a service": (
        *of_calls("endpoint_health", "endpoint_policy", "endpoints", "endpoint_quotas"),
        *in_folder("clients", "rests", "endpoints", "quotas_of_addresses"),
    ),
    "the clients": in_folder(
        "clients",
        "chat", "cached_tokens", "rests", "languages", "rerank", "images", "images_by_content",
        "forms_of_vectors", "number_lists", "stated_costs",
    ),
    "the models": in_folder(
        "models", "local_embeddings", "kinds", "device", "notes", "served", "served_launch"
    ),
    "tables without Spark": (
        *in_folder("spark", "local_frames", "large_columns"),
        *in_folder("clients", "file_jobs"),
    ),
    "the tokens": (
        *in_folder("clients", "chunks", "tokenizers", "long_texts", "packed_tokenizers"),
        *in_folder("spark", "token_columns"),
    ),
    "the claims": (*of_calls("dedupe_across_tasks"), *in_folder("ledger", "claims")),
    "the holder of a run": in_folder("ledger", "run_holder", "conditional", "one_job"),
    "the cache": (*of_calls("cache", "cache_pin"), *in_folder("ledger", "cache_upkeep")),
    # Without Spark.
    "the buckets of streams": in_folder(
        "spark",
        "bucket_state", "held_calls", "call_process", "bucket_processor", "clock", "stream_order",
        "row_digests", "stream_identity",
    ),
    "results on Spark": in_folder(
        "spark", "missing_values", "results", "disconnect", "source_rows", "texts", "pipeline_refusals",
        "unprofiled_planning",
    ),
    "the identity of rows": (
        *in_folder("spark", "ledger_keys", "skipped_rows"),
        *in_folder("ledger", "keys"),
        *of_calls("equal_rows", "ledger_properties", "ledger_identity", "ledger_owner"),
    ),
}  # fmt: skip

STRESS = (
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
    ("waits_clock", ""),
)
# Words of the programs that try schedules: two preemptions, then stale reads, and some random ones of each.
SCHEDULES = ("all 2 1000 1", "weak 1 2 1000 1")
OPTIMIZED, SCHEDULED, RACES = ("-O2",), ("-DPILLARBOX_SCHED",), ("-fsanitize=thread",)


def concerns(program: str, defect: Seeded) -> bool:
    """True if a program uses the part that the defect is in."""
    about = {
        "queue": QUEUE,
        "handover": HANDOVER,
        "deadlines": DEADLINES,
        "waits": WAITS,
        "slab": MAILBOX + INTERFACE,
        "capi": INTERFACE,
    }
    return defect.part in about.get(program.split("_")[0], MAILBOX)


def programs(wanted: Iterable[tuple[str, str]], flags: tuple[str, ...]) -> Callable[[Seeded], Sequence[Step]]:
    """The native programs, by their names and words, that use the defect's part."""
    known = tuple(wanted)
    return lambda defect: [
        Step(tuple(words.split()), name, flags) for name, words in known if concerns(name, defect)
    ]


def tests(*words: str) -> Callable[[Seeded], Sequence[Step]]:
    """Tests of Python, the same for each defect."""
    return lambda defect: [Step(words)]


def above(defect: Seeded) -> Sequence[Step]:
    """The fast tests of the defect's part."""
    return [Step((*ABOVE[defect.part], "-m", FAST, "--hypothesis-profile", "quick"))]


REAL = "what_real_threads_did"
# Parts whose steps the recorder of the async operator sees.
RECORDED = ("the operator", "the runners", "the scheduler", "the ledger session")
# The tests of the C interface and of native programs are among them: a build for tests has the same table.
CONTRACT = ("tests/kernel", "-k", "not source and not models")
LAYERS = [
    Layer("contract", EVERYTHING + DEADLINES + WAITS + INTERFACE + MODULES, tests(*CONTRACT)),
    Layer("graph", EVERYTHING, tests("tests/spec/test_conformance.py", "-k", "not tlc"), prepare=load_graphs),
    Layer("models", EVERYTHING + DEADLINES + MODULES, tests("tests/kernel/unit/test_kernel_models.py")),
    Layer("histories", EVERYTHING, tests("tests/testing", "-k", REAL)),
    Layer("traces", MAILBOX, tests("tests/spec/unit/test_traces.py", "-k", "behaviour and model")),
    Layer(
        "schedules",
        EVERYTHING,
        programs(
            (
                (f"{about}_schedules", words)
                for words in SCHEDULES
                for about in ("mailbox", "queue", "handover")
            ),
            SCHEDULED,
        ),
        SCHEDULED,
    ),
    Layer("stress", EVERYTHING + DEADLINES + WAITS + INTERFACE, programs(STRESS, OPTIMIZED), OPTIMIZED),
    Layer("races", EVERYTHING + INTERFACE, programs((*native.EDGES, *STRESS), RACES), RACES),
    Layer("fast tests", tuple(ABOVE), above),
    Layer("recorded runs", RECORDED, tests("tests/spec/unit/test_operator_traces.py", "-k", "behaviour")),
]
