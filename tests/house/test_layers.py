"""The dependency rule: imports point down only, and no ring is imported by the core.

Read from the sources, imports within functions and for types included, so it holds for code no test runs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spec.imports import cython_imports, imports_of, module_of, python_imports, sources
from spec.rings import (
    FACE,
    LAYERS,
    RINGS,
    circles,
    file_imports,
    files_of,
    lookups,
    part_imports,
    part_of,
    violation,
    with_dependents,
)

ROOT = Path(__file__).resolve().parents[2]

# Other people's packages that only some of ours may import.
RESERVED: dict[str, set[str]] = {
    "pyspark": {
        *(FACE, "spark", "api", "clients", "cluster", "dead_letters", "estimates", "frames", "observe"),
        *("shown_errors", "sources", "streams"),
    },
    # The doctor looks at a ledger's place, as a process of its own.
    "pyarrow": {
        *("spark", "ledger", "clients", "cluster", "estimates", "frames", "job", "legacy", "objects"),
        *("dead_letters", "sources", "streams", "tools", "upkeep"),
    },
    "pandas": {"spark", "streams"},
    "asyncio": {
        *("job", "upkeep"),
        *("api", "loop_thread", "wire", "mailbox", "task", "aio", "ledger", "spark"),
        *("batches", "capacity", "clients", "dedupe", "hedged_batches", "hedges", "keys", "limits"),
        *("models", "observe", "rpc", "services", "sources", "streams", "time_budgets", "waits"),
        "testing",
    },
}
# What the core looks up by its name when it is needed, if the ring is there.
LOOKUPS = {
    ("pillarbox.providers", name)
    for name in (
        "pillarbox.aio.batches.batch_hedging:HedgingBatchScheduler",
        "pillarbox.aio.batches.batch_runner:batch_runner",
        "pillarbox.aio.batches.batch_scheduler:BatchScheduler",
        "pillarbox.aio.cache_pin:CachePin",
        "pillarbox.aio.chained:places_of",
        "pillarbox.aio.chained:resolve_chain",
        "pillarbox.aio.concurrency:AdaptiveController",
        "pillarbox.aio.hedging:HedgingScheduler",
        "pillarbox.aio.idle_reasons:IdleReporter",
        "pillarbox.aio.known_service:KnownService",
        "pillarbox.aio.limits.learned:LearnedLimits",
        "pillarbox.aio.policies.stuck:StuckCalls",
        "pillarbox.aio.collector_runner:collector_runner",
        "pillarbox.aio.dead_letter_files:DeadLetterFiles",
        "pillarbox.aio.dedupe.claimed_calls:HeldClaims",
        "pillarbox.aio.dedupe.claims:check_claims",
        "pillarbox.aio.dedupe.claims:check_place",
        "pillarbox.aio.dedupe.equal_calls:equal_calls",
        "pillarbox.aio.gen_ai:GenAiMeter",
        "pillarbox.aio.limits.coordinator:local_coordinator",
        "pillarbox.aio.loop_watcher:LoopWatcher",
        "pillarbox.aio.operator_snapshots:OperatorSnapshots",
        "pillarbox.aio.policies.breaker:CircuitBreaker",
        "pillarbox.aio.policies.cost:CostPolicy",
        "pillarbox.file_jobs:main",
        "pillarbox.ledger.maintenance:expire_batches",
        "pillarbox.ledger.objects.holding:own_job",
        "pillarbox.ledger.objects.holding:planned_job",
        "pillarbox.ledger.objects.object_folder:ObjectFolder",
        "pillarbox.ledger.upkeep:begin_execution",
        "pillarbox.spark.dead_letters:dead_letter_of",
        "pillarbox.spark.local_frame:local_frame",
        "pillarbox.spark.shown_errors:show_errors_in_words",
        "pillarbox.task.timers:ProcessingTimeService",
    )
} | {
    # The policies that options bring, as their declarations say.
    ("pillarbox.aio.options", f"pillarbox.aio.policies.{name}")
    for name in (
        *("endpoints:EndpointPolicy", "hedge:HedgePolicy", "per_key:KeyPolicy", "slots:SlotPolicy"),
        "time_budget:TimeBudgetPolicy",
    )
}


def violations(module: str, imported: set[str]) -> list[str]:
    """The rules that the imports of one module break, of ours and of other people's packages."""
    modules = {name for name, _ in sources()} | {module}
    found = []
    for name in sorted(imported):
        top = name.split(".")[0]
        if top == "pillarbox":
            used = module_of(name, modules)
            found.append(violation(module, used or name))
        elif top in RESERVED and part_of(module) not in RESERVED[top]:
            found.append(f"{module} imports {name}")
    return [line for line in found if line is not None]


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return file_imports()


@pytest.mark.contract
def test_imports_point_down_only(arrows: dict[str, set[str]]) -> None:
    assert len(arrows) > 200
    assert [v for module in arrows for name in arrows[module] if (v := violation(module, name))] == []


def test_other_peoples_packages_are_imported_where_they_may_be() -> None:
    found = []
    for module, path in sources():
        tops = {name.split(".")[0] for name in imports_of(module, path)}
        found += [(module, top) for top in tops & RESERVED.keys() if part_of(module) not in RESERVED[top]]
    assert found == []


def test_the_table_allows_what_is_imported_and_nothing_else(arrows: dict[str, set[str]]) -> None:
    imported = part_imports(arrows)
    assert {layer: imported[layer] for layer in LAYERS} == LAYERS
    needs = {name: imported[name] & RINGS.keys() for name in RINGS}
    assert needs == {name: ring.needs for name, ring in RINGS.items()}
    doors = {f"pillarbox.{door}" for ring in RINGS.values() for door in ring.doors}
    used = {
        name
        for module in arrows
        for name in arrows[module]
        if part_of(module) not in (part_of(name), FACE) and part_of(name) in RINGS
    }
    assert used == doors


@pytest.mark.contract("No module imports one that imports it, at whatever distance, not even for its types.")
def test_no_circle_of_imports(arrows: dict[str, set[str]]) -> None:
    assert circles(arrows) == []


def test_a_circle_is_found_whatever_its_length() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert circles(arrows) == [["a", "b", "c"], ["f", "g"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_ring_is_looked_up_by_name_only_where_the_list_says() -> None:
    found = {(module, name) for module, name in lookups()}
    assert {each for each in found if part_of(each[0]) != part_of(each[1].partition(":")[0])} == LOOKUPS


def test_each_module_has_its_place_and_each_place_its_modules(arrows: dict[str, set[str]]) -> None:
    assert {part_of(module) for module in arrows} == {FACE, *LAYERS, *RINGS}
    for ring in RINGS:
        assert [path for path in files_of(ring, ROOT / "pyruntime") if not path.exists()] == []
        assert with_dependents(ring) <= RINGS.keys()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pillarbox.mailbox.processor", "from pillarbox.aio.retry import Retry"),
        ("pillarbox.mailbox.processor", "from ..aio.retry import Retry"),
        ("pillarbox.aio.async_wait", "def late():\n    import pillarbox.spark.worker"),
        ("pillarbox.aio.async_wait", "if TYPE_CHECKING:\n    from pillarbox.spark.worker import Worker"),
        ("pillarbox.aio.async_wait", "from pillarbox import async_map"),
        ("pillarbox.aio.async_wait", "from pillarbox import spark"),
        ("pillarbox.aio.async_wait", "import pyspark.sql.types"),
        ("pillarbox.spark.worker", "from pillarbox.clients.chat import Chat"),
        ("pillarbox.spark.worker", "from pillarbox.spark.progress import Progress"),
        ("pillarbox.sources.source", "from pillarbox.testing import FakeClock"),
        ("pillarbox.testing.harness", "from pillarbox.sources.connectors.files import FileSource"),
        ("pillarbox.kernel.errors", "import asyncio"),
        ("pillarbox.kernel.errors", "from pillarbox.mailbox import MailboxExecutor"),
        ("pillarbox.kernel.errors", "import pyarrow as pa"),
    ],
)
def test_an_arrow_that_points_up_is_found(module: str, source: str) -> None:
    assert len(violations(module, {*python_imports(source, module, False)})) == 1


@pytest.mark.parametrize(
    "source", ["cimport pillarbox.aio", "    from pillarbox.mailbox cimport x", "import os, asyncio"]
)
def test_an_arrow_that_points_up_is_found_in_cython(source: str) -> None:
    module = "pillarbox.kernel.mailbox"
    assert len(violations(module, {*cython_imports(source, module)})) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pillarbox.spark.worker", "from pillarbox.kernel import Mail\nfrom pillarbox.aio import retry"),
        ("pillarbox.spark.worker", "import pyspark"),
        ("pillarbox.spark.stream.buckets", "from pillarbox.spark.worker import Worker"),
        ("pillarbox.sources.legacy", "from pillarbox.sources.split import Split"),
        ("pillarbox.spark", "from pillarbox.spark.progress import Progress"),
    ],
)
def test_an_arrow_that_points_down_is_allowed(module: str, source: str) -> None:
    assert violations(module, {*python_imports(source, module, False)}) == []


def test_a_module_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pillarbox.fresh: belongs to no layer and no ring"):
        part_of("pillarbox.fresh")


def test_the_picture_of_the_layers_is_drawn_from_what_is_imported(arrows: dict[str, set[str]]) -> None:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec is not None and spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    drawn = (ROOT / "docs" / "pictures" / "layers.svg").read_text()
    assert drawn == picture.layers(), "python docs/picture.py draws it anew"
    assert all(f">{name}</text>" in drawn for name in (FACE, *LAYERS, *RINGS))
    # An arrow more in the sources is one more in the picture, unless others say it already.
    more = {**arrows, "pillarbox.testing.harness": {*arrows["pillarbox.testing.harness"], "pillarbox.doctor"}}
    assert picture.layers(more).count("<line") == drawn.count("<line") + 1
