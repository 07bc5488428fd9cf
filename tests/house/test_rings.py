"""Each ring around the core can be deleted, and so can all of them: what is left imports, and works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import pillarbox
from spec.imports import imports_of, module_of, modules_in
from spec.rings import FACE, RINGS, file_imports, files_of, part_of, with_dependents

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sysconfig.get_path("purelib")
CASES = [*([ring] for ring in RINGS), [*RINGS]]
WORDS = {
    "Batch(": "batches",
    "Dedupe(": "dedupe",
    "Step(": "chains",
    "Collector": "collectors",
    "dead_letter": "dead_letters",
    "Hedge(": "hedges",
    "Adaptive(": "capacity",
    '"auto"': "capacity",
    "Endpoints(": "services",
    "learn=True": "services",
    "max_cost": "costs",
    "usage": "costs",
    "per_key": "keys",
    "max_seconds": "time_budgets",
    "until=": "time_budgets",
}
"""Words of tests that use an option, and the ring that does what the option asks for."""
# Tests of the core by public names, of those that take a second or two.
FAST_TESTS = ("aio/test_budgets.py", "aio/test_floor.py", "aio/test_order_and_limits.py", "aio/test_rows.py")

IMPORT_ALL = """
import importlib, json, sys
left, gone = json.loads(sys.argv[1])
for name in left:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.startswith("pillarbox"):
            raise
for name in gone:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is there")
print(len(left))
"""
CALL_AND_KEEP = """
import sys
from pillarbox import Errors, Ledger, Rate, Retry, async_map
kept = Ledger(sys.argv[1], uid="call", run="one")
tries = []
async def call(row):
    tries.append(row)
    if row == 2:
        raise ValueError("never")
    if tries.count(row) < 2:
        raise ConnectionError("once")
    return row * 10
for _ in range(2):
    rows = async_map(
        range(4), call, retry=Retry(3, initial=0.01), rate=Rate(1000), errors=Errors("column"), ledger=kept
    )
    print([row.result for row in rows])
print(sorted(tries))
"""
CALL_ON_SPARK = """
import sys
from pyspark.sql import SparkSession
from pillarbox import Ledger, Rate, async_map, async_udf
def call_of():
    async def call(row):
        return row.id * 10
    async def double(n):
        return n * 2
    return call, double
call, double = call_of()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
kept = Ledger(sys.argv[1], uid="call", run="one")
rows = async_map(
    spark.range(4), call, schema="n long", retry=3, rate=Rate(1000), errors="column", ledger=kept
)
print(sorted(row.n for row in rows.collect()))
column = async_udf(double, "long")
print(sorted(row.m for row in spark.range(3).select(column("id").alias("m")).collect()))
spark.stop()
"""


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return file_imports()


def removed(rings: Iterable[str]) -> set[str]:
    """The rings, and those that cannot be without them."""
    return set().union(*map(with_dependents, rings))


def copy_without(rings: Iterable[str], folder: Path) -> Path:
    """A folder in which `pillarbox` lacks these rings: links to the files of this one, compiled and built."""
    gone = {path for ring in rings for path in files_of(ring, ROOT / "pyruntime")}
    package = folder / "pillarbox"
    for path, names, files in os.walk(ROOT / "pyruntime"):
        here = Path(path)
        names[:] = [name for name in names if here / name not in gone and name != "__pycache__"]
        copy = package / here.relative_to(ROOT / "pyruntime")
        copy.mkdir(parents=True)
        for name in [*files, "__pycache__"]:
            if here / name not in gone and (here / name).exists():
                (copy / name).symlink_to(here / name)
    (package / "kernel").symlink_to(ROOT / "kernel", target_is_directory=True)
    return folder


def run_in(copy: Path, words: Sequence[str], timeout: float = 120.0) -> str:
    """The output of a Python that has the copy, and not the Pillarbox that `site` would find."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT), PACKAGES])}
    # So do Spark's workers.
    python = copy / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -B "$@"\n')
    python.chmod(0o755)
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = str(python)
    done = subprocess.run(
        [str(python), *words], capture_output=True, text=True, timeout=timeout, env=environment, cwd=copy
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.contract("Each ring around the core can be deleted: what is left can be imported.")
@pytest.mark.parametrize("rings", CASES, ids="+".join)
def test_without_a_ring_all_else_imports(
    rings: list[str], arrows: dict[str, set[str]], tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    without = removed(rings)
    copy = copy_without(without, tmp_path)
    gone = sorted(module for module in arrows if part_of(module) in without)
    left = sorted(
        module
        for module in arrows.keys() - set(gone)
        if (part_of(module) != FACE and not module.startswith("pillarbox.kernel")) or module == "pillarbox"
    )
    assert gone
    said = run_in(copy, ["-c", IMPORT_ALL, json.dumps([[*left, "pillarbox.spark"], gone])])
    assert int(said) == len(left) + 1


@pytest.mark.contract("Without any ring the core calls with retries, a rate, errors as data and a ledger.")
def test_without_any_ring_the_core_works(tmp_path: Path) -> None:
    copy = copy_without(RINGS, tmp_path / "copy")
    said = run_in(copy, ["-c", CALL_AND_KEEP, str(tmp_path / "ledger")]).splitlines()
    # What is kept is called no more, and what failed is tried again.
    assert said == ["[0, 10, None, 30]"] * 2 + [str([0, 0, 1, 1, *[2] * 6, 3, 3])]


def test_what_needs_a_ring_that_is_not_there_names_it(tmp_path: Path) -> None:
    copy = copy_without({"limits"}, tmp_path)
    script = (
        "from pillarbox.providers import LOCAL_COORDINATOR, provided\n"
        "try:\n    provided(LOCAL_COORDINATOR, 'max_calls=5')\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    module = "pillarbox.aio.limits.coordinator"
    said = run_in(copy, ["-c", script])
    assert said == f"max_calls=5: needs {module}, which is not installed; install all of Pillarbox\n"


@pytest.mark.parametrize("ring", ["observe", "timers", "checkpoints", "services", "outages", "waits"])
def test_without_what_no_option_asks_for_calls_are_made_all_the_same(ring: str, tmp_path: Path) -> None:
    copy = copy_without(removed({ring}), tmp_path)
    script = (
        "from pillarbox import Result, Usage, async_map\n"
        "async def call(row):\n    return Result(row * 10, Usage(input_tokens=7, operation='chat'))\n"
        "print(list(async_map([1, 2], call)))\n"
    )
    assert run_in(copy, ["-W", "error", "-c", script]) == "[10, 20]\n"


@pytest.mark.contract("Without the ring that counts costs, results go on without them, and the log says so.")
def test_without_the_ring_that_counts_costs_results_go_on_alone(tmp_path: Path) -> None:
    copy = copy_without({"costs"}, tmp_path)
    script = (
        "import logging\n"
        "from pillarbox import Batch, Result, Usage, async_map\n"
        "logging.basicConfig(format='%(message)s', force=True, stream=__import__('sys').stdout)\n"
        "class Billed(Exception):\n    usage = Usage(0.5)\n"
        "async def call(row):\n"
        "    if row == 3:\n        raise Billed\n"
        "    return Result(row * 10, 0.25)\n"
        "async def calls(rows):\n    return Result([row * 10 for row in rows], 0.25)\n"
        "done = async_map([1, 2, 3], call, errors='null')\n"
        "print([*done], done.statistics().cost)\n"
        "print([*async_map([1, 2], calls, batch=Batch(2))])\n"
    )
    lines = run_in(copy, ["-W", "error", "-c", script]).splitlines()
    said = [line for line in lines if not line.startswith("a row failed")]
    missing = "usage: needs pillarbox.aio.policies.cost, which is not installed; install all of Pillarbox"
    told = f"the cost of calls is not counted: {missing}"
    assert said == [told, "[10, 20, None] 0.0", told, "[10, 20]"]


@pytest.mark.contract("An option whose ring is not installed is refused where it is given, by its name.")
@pytest.mark.parametrize(
    ("ring", "given", "named"),
    [
        ("batches", "pillarbox.Batch(2)", "batch: needs pillarbox.aio.batches.batch_scheduler"),
        ("capacity", "pillarbox.Adaptive()", "capacity: needs pillarbox.aio.concurrency"),
        ("capacity", "pillarbox.Options(capacity='auto')", "capacity: needs pillarbox.aio.concurrency"),
        ("chains", "pillarbox.async_map([1], [str, str])", "fn=[...]: needs pillarbox.aio.chained"),
        (
            "collectors",
            "list(pillarbox.async_map([1], start))",
            "fn=<function start>: a Collector: needs pillarbox.aio.collector_runner",
        ),
        ("dedupe", "pillarbox.Dedupe()", "dedupe: needs pillarbox.aio.dedupe.equal_calls"),
        ("costs", "pillarbox.Budget(max_cost=1.0)", "budget: needs pillarbox.aio.policies.cost"),
        (
            "hedges",
            "pillarbox.Options(hedge=pillarbox.Hedge())",
            "hedge: needs pillarbox.aio.policies.hedge",
        ),
        (
            "keys",
            "pillarbox.Options(per_key=pillarbox.Limit(str))",
            "per_key: needs pillarbox.aio.policies.per_key",
        ),
        (
            "limits",
            "pillarbox.Options(capacity=pillarbox.Shared(5))",
            "capacity: needs pillarbox.aio.policies.slots",
        ),
        (
            "objects",
            "pillarbox.Ledger('s3://bucket/calls')",
            "location='s3://bucket/calls': needs pillarbox.ledger.objects.object_folder",
        ),
        (
            "services",
            "pillarbox.Options(endpoints=pillarbox.Endpoints('http://one'))",
            "endpoints: needs pillarbox.aio.policies.endpoints",
        ),
        ("services", "pillarbox.Rate(learn=True)", "learn: needs pillarbox.aio.limits.learned"),
        (
            "time_budgets",
            "pillarbox.Options(budget=pillarbox.Budget(max_seconds=5.0))",
            "budget: needs pillarbox.aio.policies.time_budget",
        ),
        ("upkeep", "pillarbox.ledger.Cache()", "cache: needs pillarbox.ledger.upkeep"),
    ],
)
def test_an_option_of_a_ring_that_is_not_there_is_refused(
    ring: str, given: str, named: str, tmp_path: Path
) -> None:
    copy = copy_without({ring}, tmp_path)
    script = (
        "import pillarbox, pillarbox.ledger\n"
        "def start(row, collector: pillarbox.Collector): ...\n"
        f"try:\n    {given}\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    said = run_in(copy, ["-c", script])
    said = re.sub(r" at 0x\w+", "", said)
    assert said == f"{named}, which is not installed; install all of Pillarbox\n"


@pytest.mark.slow
@pytest.mark.spark
def test_without_any_ring_the_core_runs_on_spark(tmp_path: Path) -> None:
    copy = copy_without(RINGS, tmp_path / "copy")
    said = run_in(copy, ["-c", CALL_ON_SPARK, str(tmp_path / "ledger")], timeout=300.0)
    assert said.splitlines() == ["[0, 10, 20, 30]", "[0, 2, 4]"]


@pytest.mark.slow
@pytest.mark.parametrize("rings", CASES, ids="+".join)
def test_without_a_ring_tests_of_the_core_pass(rings: list[str], tmp_path: Path) -> None:
    without = removed(rings)
    modules = dict(modules_in("tests", "tests"))
    files = {name: f"tests.{name.removesuffix('.py').replace('/', '.')}" for name in FAST_TESTS}
    chosen = [str(ROOT / "tests" / name) for name in files if not needs(files[name], without, modules)]
    assert chosen
    copy = copy_without(without, tmp_path)
    options = f"-q -p no:cacheprovider -p no:xdist --hypothesis-profile quick --rootdir {ROOT}"
    words = ["-m", "pytest", *options.split(), "-c", str(ROOT / "pyproject.toml")]
    said = run_in(copy, [*words, "-m", "not slow and not server", *chosen], timeout=600.0)
    assert " passed" in said


def needs(test: str, rings: set[str], modules: dict[str, Path]) -> bool:
    """True if tests use an option of these rings, or import one of their modules, by others too."""
    source = modules[test].read_text()
    if any(word in source and ring in rings for word, ring in WORDS.items()):
        return True
    waiting, seen = [test], {test}
    while waiting:
        module = waiting.pop()
        for name in imports_of(module, modules[module]):
            if name.removeprefix("pillarbox.") in pillarbox.__all__:
                # Of whatever module gives it.
                name = getattr(getattr(pillarbox, name.removeprefix("pillarbox.")), "__module__", name)
            gone = [f"pillarbox.{each}." for ring in rings for each in RINGS[ring].modules]
            if f"{name}.".startswith(tuple(gone)):
                return True
            used = module_of(name, modules)
            if used is not None and used not in seen:
                seen.add(used)
                waiting.append(used)
    return False
