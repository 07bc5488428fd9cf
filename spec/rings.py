"""The table of the layers: the parts of the package, what each imports, the core and the rings around it.

The tests of the house hold the sources to it, `docs/picture.py` draws what is imported, and
`python -m bench.size` counts. Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .imports import ROOT, imports_of, module_of, sources

FACE = "pillarbox"
FACES = frozenset({"", "spark"})
"""Packages whose `__init__` gives names of rings, each when it is first used. They are above all others."""


class Ring(NamedTuple):
    """A ring around the core, which can be deleted without harm to the rest.

    modules: the names of its modules and packages, without `pillarbox.`. doors: those that other rings may
    import. needs: the rings that it imports; it goes with them.
    """

    about: str
    modules: tuple[str, ...]
    doors: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()


LAYERS: Mapping[str, frozenset[str]] = {
    "kernel": frozenset(),
    "secret_shapes": frozenset(),
    "user_frames": frozenset(),
    "redaction": frozenset({"secret_shapes", "user_frames"}),
    "dataclass_fields": frozenset(),
    "lazy_names": frozenset(),
    "validate": frozenset(),
    "thread_start": frozenset(),
    "providers": frozenset(),
    "wire_table": frozenset(),
    "wire": frozenset({"wire_table"}),
    "lacks": frozenset({"wire"}),
    "loop_thread": frozenset({"lacks", "thread_start"}),
    "mailbox": frozenset({"kernel"}),
    "task": frozenset({"kernel", "mailbox", "providers", "validate"}),
    "ledger": frozenset({"kernel", "providers", "redaction", "thread_start", "validate"}),
    "aio": frozenset(
        {
            *("kernel", "lacks", "ledger", "loop_thread", "mailbox", "providers", "redaction", "task"),
            *("thread_start", "user_frames", "validate", "wire"),
        }
    ),
    "spark": frozenset(
        {
            *("aio", "kernel", "lacks", "ledger", "loop_thread", "providers", "redaction", "task"),
            *("thread_start", "user_frames", "validate"),
        }
    ),
    "policies": frozenset({"aio"}),
    "api": frozenset(
        {"aio", "kernel", "ledger", "loop_thread", "providers", "spark", "thread_start", "validate"}
    ),
}
"""The core: by package, or by module that stands in none, the others that it imports."""

RINGS: Mapping[str, Ring] = {
    "batches": Ring(
        "calls with a batch of rows each",
        ("aio.batches",),
        doors=("aio.batches.batch_execution", "aio.batches.batch_scheduler"),
    ),
    "capacity": Ring(
        "the number of calls in flight, found by what the service does",
        ("aio.concurrency", "aio.policies.stuck"),
        doors=("aio.concurrency",),
    ),
    "chains": Ring("several functions in one task", ("aio.chained",), doors=("aio.chained",)),
    "checkpoints": Ring(
        "the states of operators, taken, restored, and as bytes",
        ("aio.operator_snapshots", "aio.snapshots"),
        doors=("aio.snapshots",),
        needs=frozenset({"chains"}),
    ),
    "clients": Ring(
        "clients of services: HTTP, embeddings, chats, lookups, and their columns on Spark",
        ("clients", "spark.answer_types", "spark.client_columns", "spark.token_columns"),
        doors=(
            *("clients", "clients.secret", "clients.texts", "clients.tokenizer_loading"),
            *("clients.transport", "clients.vectors", "spark.client_columns", "spark.token_columns"),
        ),
        needs=frozenset({"services"}),
    ),
    "cluster": Ring(
        "the doctor's checks of the executors of a cluster",
        ("cluster_check", "executor_probe"),
        needs=frozenset({"observe", "rpc", "tools"}),
    ),
    "collectors": Ring("functions that bring their results by a collector", ("aio.collector_runner",)),
    "costs": Ring("what calls use and cost, added up", ("aio.policies.cost",)),
    "dead_letters": Ring(
        "rows that failed for good, put aside in files",
        ("aio.dead_letter_files", "spark.dead_letters"),
        doors=("aio.dead_letter_files", "spark.dead_letters"),
    ),
    "dedupe": Ring("equal rows that share a call, of one task or of all", ("aio.dedupe",)),
    "estimates": Ring(
        "the cost of a job, from a sample of its rows", ("spark.cost_estimate",), needs=frozenset({"rpc"})
    ),
    "frames": Ring(
        "tables of pandas, Polars, Arrow, DuckDB and datasets in place of DataFrames",
        ("file_jobs", "frames", "spark.local_frame", "tasks"),
        needs=frozenset({"clients", "observe"}),
    ),
    "hedges": Ring(
        "further calls of rows whose call is slow",
        ("aio.hedging", "aio.policies.hedge"),
        doors=("aio.hedging",),
    ),
    "hedged_batches": Ring(
        "further calls of batches whose call is slow",
        ("aio.batches.batch_hedging",),
        needs=frozenset({"batches", "hedges"}),
    ),
    "job": Ring(
        "jobs in one process without Spark: checkpoints, sinks with two phases",
        ("job",),
        needs=frozenset({"chains", "checkpoints", "dead_letters", "sources"}),
    ),
    "keys": Ring("the order of rows by key", ("aio.policies.per_key",)),
    "legacy": Ring(
        "adapters for sources of earlier interfaces", ("sources.legacy",), needs=frozenset({"sources"})
    ),
    "limits": Ring(
        "limits that the tasks of several processes share",
        (
            *("aio.limits.coordinator", "aio.limits.fact_link", "aio.limits.facts", "aio.limits.lease"),
            *("aio.limits.messages", "aio.limits.outcomes", "aio.limits.quota"),
            *("aio.limits.slot_lease", "aio.limits.slots", "aio.policies.slots"),
        ),
        needs=frozenset({"capacity", "rpc", "services"}),
    ),
    "models": Ring(
        "models in worker processes, and servers beside them", ("models",), needs=frozenset({"clients"})
    ),
    "objects": Ring("ledgers in object stores, and the job that holds a run there", ("ledger.objects",)),
    "observe": Ring(
        "exporters, the report, live progress",
        ("aio.gen_ai", "aio.observe", "spark.progress", "spark.progress_channel"),
        doors=("spark.progress",),
        needs=frozenset({"rpc"}),
    ),
    "outages": Ring(
        "the breaker of a service that is overloaded or away, and the pace at which its calls come back",
        ("aio.policies.breaker", "aio.policies.outage", "aio.policies.pace"),
        doors=("aio.policies.pace",),
    ),
    "rpc": Ring(
        "authenticated connections between processes, and what goes over them",
        ("rpc",),
        doors=("rpc.agreement", "rpc.codec", "rpc.connection", "rpc.server", "rpc.totals_json"),
    ),
    "services": Ring(
        "what is known of services: the limits that answers name, and addresses, of which some may rest",
        (
            *("aio.endpoint_counts", "aio.endpoint_facts", "aio.endpoint_health", "aio.endpoint_limits"),
            *("aio.endpoint_pool", "aio.endpoints", "aio.known_service", "aio.limits.headers"),
            *("aio.limits.learned", "aio.limits.used_up", "aio.policies.endpoints", "aio.policies.returns"),
            "aio.policies.service_limits",
        ),
        doors=(
            *("aio.endpoint_facts", "aio.endpoint_limits", "aio.endpoint_pool", "aio.endpoints"),
            *("aio.limits.headers", "aio.limits.learned"),
        ),
        needs=frozenset({"outages"}),
    ),
    "shown_errors": Ring(
        "errors of workers as scripts and notebooks show them: the sentence, and the user's frames",
        ("spark.shown_errors",),
        doors=("spark.shown_errors",),
    ),
    "sources": Ring(
        "sources, their connectors, and Spark's data source for them",
        ("sources", "spark.data_source", "spark.micro_batches"),
        doors=(
            *("sources", "sources.enumerating", "sources.enumerator", "sources.event_time"),
            *("sources.fetching", "sources.reader"),
            *("sources.simple", "sources.source", "sources.split", "sources.split_coordinator"),
        ),
        needs=frozenset({"shown_errors", "timers"}),
    ),
    "streams": Ring("calls that outlast a micro-batch", ("spark.stream",), needs=frozenset({"dead_letters"})),
    "testing": Ring(
        "harnesses, models, suites, a stand-in service",
        ("testing",),
        needs=frozenset({"batches", "chains", "hedges", "sources"}),
    ),
    "time_budgets": Ring("budgets of time, from whose end on no call begins", ("aio.policies.time_budget",)),
    "timers": Ring("timers of operators", ("task.alarm", "task.timers"), doors=("task.alarm",)),
    "tools": Ring(
        "the command line: doctor, pack, java-home, ledger",
        ("__main__", "doctor", "java_home", "ledger.cli", "pack"),
        doors=("doctor",),
        needs=frozenset({"upkeep"}),
    ),
    "waits": Ring(
        "what an operator waits for, and code that blocks its loop, said in the log",
        ("aio.idle_reasons", "aio.loop_watcher", "aio.waits"),
    ),
    "upkeep": Ring(
        "expiry and compaction of ledgers, and caches, which delete what is too old or too much",
        ("aio.cache_pin", "ledger.maintenance", "ledger.upkeep"),
        doors=("ledger.maintenance", "ledger.upkeep"),
    ),
}
"""The rings around the core. Each may import all of the core."""

LOOKUP = re.compile(r"pillarbox(?:\.\w+)+:\w+")
"""The name of what a ring provides, as `pillarbox.providers` has names: an arrow that no import shows."""


@cache
def _parts() -> dict[str, str]:
    """By the name of a module or package: its layer or its ring."""
    return {
        **{layer: layer for layer in LAYERS},
        **{m: name for name, ring in RINGS.items() for m in ring.modules},
    }


def part_of(module: str) -> str:
    """The layer or the ring of a module: "aio" of `pillarbox.aio.retry`. `FACE` of a face.

    Raises ValueError for a module that the table lacks.
    """
    name = module.removeprefix("pillarbox").removeprefix(".")
    if name in FACES:
        return FACE
    while name and name not in _parts():
        name = name.rpartition(".")[0]
    if not name:
        raise ValueError(f"{module}: belongs to no layer and no ring: give it a place in spec/rings.py")
    return _parts()[name]


def files_of(ring: str, package: Path) -> list[Path]:
    """The files and folders of a ring below `package`, the folder that is imported as `pillarbox`."""
    found = []
    for name in RINGS[ring].modules:
        path = package.joinpath(*name.split("."))
        found.append(path if path.is_dir() else path.with_suffix(".py"))
    return found


def with_dependents(ring: str) -> set[str]:
    """The ring, and those that need it."""
    found = {ring}
    while more := {name for name, each in RINGS.items() if each.needs & found} - found:
        found |= more
    return found


def violation(module: str, imported: str) -> str | None:
    """The rule that an import of one module of the package by another breaks; None if it is allowed."""
    user, used = part_of(module), part_of(imported)
    if user in (used, FACE):
        return None
    if used == FACE:
        return f"{module} imports {imported}, which is above all"
    if used in LAYERS:
        allowed = user in RINGS or used in LAYERS[user]
        return None if allowed else f"{module} imports {imported}, which is not below it"
    if user in LAYERS:
        return f"{module}, of the core, imports {imported}, of the ring {used!r}"
    if used not in RINGS[user].needs:
        return f"{module}, of the ring {user!r}, imports {imported}, of the ring {used!r}"
    if imported.removeprefix("pillarbox.") not in RINGS[used].doors:
        return f"{module} imports {imported}, which is not a door of the ring {used!r}"
    return None


# -- what is imported ------------------------------------------------------------------------------


def file_imports(root: Path = ROOT) -> dict[str, set[str]]:
    """By module: the modules of the package that it imports, wherever the import stands, types included."""
    files = [*sources(root)]
    arrows: dict[str, set[str]] = {module: set() for module, _ in files}
    for module, path in files:
        named = {module_of(name, arrows) for name in imports_of(module, path)}
        arrows[module].update(name for name in named if name not in (None, module))
    return arrows


def part_imports(arrows: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """By part: the other parts that its modules import."""
    found: dict[str, set[str]] = {}
    for module, imported in arrows.items():
        own = found.setdefault(part_of(module), set())
        own.update(part_of(name) for name in imported)
    return {part: imported - {part} for part, imported in found.items()}


def lookups(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Modules, and the names that they look up by `pillarbox.providers`."""
    for module, path in sources(root):
        for match in LOOKUP.finditer(path.read_text()):
            yield module, match[0]


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of modules of which each imports each other, over some steps: the strongly connected ones."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        # Tarjan's algorithm. No chain of imports is as long as Python's stack.
        number[module] = lowest[module] = len(number)
        open_.append(module)
        for other in arrows.get(module, ()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in open_:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            circle = open_[open_.index(module) :]
            del open_[open_.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in arrows:
        if module not in number:
            visit(module)
    return sorted(found)
