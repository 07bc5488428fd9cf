"""The package as a user meets it: light to import, one version, every public name described."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import pillarbox

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    *("pyspark", "pyarrow", "pandas", "numpy", "rich", "aiohttp", "IPython"),
    *("redis", "uvloop", "prometheus_client", "opentelemetry", "jinja2"),
)


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.contract
def test_importing_pillarbox_imports_no_heavy_package() -> None:
    loaded = modules_after("import pillarbox")
    assert "pillarbox" in loaded
    assert loaded & set(HEAVY) == set()


def test_importing_pillarbox_imports_what_is_used_when_it_is_used() -> None:
    script = "import pillarbox, sys; print(sum(name.startswith('pillarbox') for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 40
    assert all(getattr(pillarbox, name) is not None for name in pillarbox.__all__)
    with pytest.raises(AttributeError, match="'pillarbox' has no attribute 'asinc_map'"):
        _ = pillarbox.asinc_map  # type: ignore[attr-defined]


def test_importing_pillarbox_spark_imports_neither_the_progress_bar_nor_a_client() -> None:
    pytest.importorskip("pyspark")
    loaded = modules_after("from pillarbox.spark import async_map, async_udf, called_once")
    assert {"pyspark", "pyarrow"} <= loaded
    assert loaded & ({*HEAVY} - {"pyspark", "pyarrow", "pandas", "numpy"}) == set()


def test_importing_pillarbox_spark_does_not_import_what_makes_calls_dearer() -> None:
    pytest.importorskip("pyspark")
    names = "async_map, async_udf, called_once"
    script = f"from pillarbox.spark import {names}\nimport sys\nprint('pillarbox.aio.current' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


def test_the_processes_of_a_source_import_nothing_of_the_operator() -> None:
    pytest.importorskip("pyspark")
    script = "import pillarbox.spark.data_source, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    # A stream has a new process with each query, which waits for all that it imports.
    assert "pillarbox.sources.enumerating" in loaded
    operator = ("aio.scheduler", "aio.options", "api", "ledger", "spark.operator_plan", "spark.async_udf")
    assert loaded & {f"pillarbox.{name}" for name in operator} == set()


def test_a_name_of_pillarbox_spark_stays_when_its_module_of_the_same_name_is_imported() -> None:
    pytest.importorskip("pyspark")
    script = """
import pillarbox.spark.async_udf, pillarbox.spark, sys
from pillarbox.spark import async_udf
assert async_udf is pillarbox.spark.async_udf is sys.modules["pillarbox.spark.async_udf"].async_udf
assert all(getattr(pillarbox.spark, name) is not None for name in pillarbox.spark.__all__)
import pillarbox.spark.dataframe
assert pillarbox.spark.dataframe is sys.modules["pillarbox.spark.dataframe"]
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


@pytest.mark.contract
def test_a_client_needs_the_packages_of_its_own_extra_alone() -> None:
    for name in ("Chat", "HttpLookup"):
        assert modules_after(f"from pillarbox.clients import {name}") & set(HEAVY) == set()
    clients = importlib.import_module("pillarbox.clients")
    assert all(getattr(clients, name) is not None for name in clients.__all__)
    with pytest.raises(AttributeError, match=r"'pillarbox.clients' has no attribute 'Chatt'"):
        _ = clients.Chatt


WITHOUT_LOCKS = """
import asyncio, os, random, sys, threading
# The standard library looks for these in its own way.

class WithoutLocks:
    def find_spec(self, name, path=None, target=None):
        if name == "fcntl":
            raise ModuleNotFoundError("No module named 'fcntl'", name=name)

sys.modules.pop("fcntl", None)
sys.meta_path.insert(0, WithoutLocks())
del os.register_at_fork
from pillarbox import Ledger, async_map

async def double(n):
    return 2 * n

print(list(async_map([1, 2], double)))
print(Ledger("s3://bucket/folder").location)
try:
    async_map([1, 2], double, ledger=Ledger(sys.argv[1], uid="double", run="1"))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.contract
def test_pillarbox_works_without_locks_of_files_and_a_ledger_in_a_folder_says_that_it_needs_them(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "[2, 4]",
        "s3://bucket/folder",
        "LedgerError a ledger in a local folder needs locks of files (fcntl), which this operating system "
        "has not: give it the URL of an object store, such as s3://bucket/folder",
    ], done.stderr


def test_there_is_one_version() -> None:
    written = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert written is not None
    assert pillarbox.__version__ == written[1] == metadata.version("pillarbox")


def packages() -> list[str]:
    """The packages that export names. `pillarbox.spark` needs PySpark."""
    roots = ((ROOT / "pyruntime", "pillarbox"), (ROOT / "kernel", "pillarbox.kernel"))
    return [
        ".".join([prefix, *path.parent.relative_to(folder).parts])
        for folder, prefix in roots
        for path in sorted(folder.rglob("__init__.py"))
        if "__all__ = " in path.read_text()
    ]


def public_names() -> list[tuple[str, str]]:
    pytest.importorskip("pyspark")
    return [(package, name) for package in packages() for name in importlib.import_module(package).__all__]


FACE = """
Adaptive AskAgain Batch Budget Buffer CallFailed CallTimeout Collector Coordinator
Dedupe Endpoints ErrorInfo Errors Hedge Ledger Limit NothingSucceeded Options Outcome PillarboxError
QuotaUsedUp Rate Redact Result Retry RetryBudget Shared Step Timeout TooManyFailures Usage __version__
async_map async_stream async_udf
current_call run
"""
"""The names of `pillarbox`. Why these and no others: docs/decisions/public-names.md."""
MAX_KEYWORDS = 14
OPTIONS = {field.name for field in dataclasses.fields(pillarbox.Options)}


def test_the_face_has_these_names() -> None:
    assert sorted(pillarbox.__all__) == sorted(FACE.split())


def test_the_other_packages_export_what_the_decision_lists() -> None:
    page = (ROOT / "docs" / "decisions" / "public-names.md").read_text()
    rows = re.findall(r"^\| `(pillarbox\.[\w.]+)` \| (.+) \|$", page, re.MULTILINE)
    listed = {(package, name) for package, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {
        (package, name)
        for package, name in public_names()
        if package not in ("pillarbox", "pillarbox.kernel")
    }


def test_a_function_over_dataframes_is_the_same_object_in_both_packages() -> None:
    spark = pytest.importorskip("pillarbox.spark")
    for name in ("async_map", "async_udf", "async_stream"):
        assert getattr(pillarbox, name) is getattr(spark, name)


def test_no_function_of_the_face_takes_more_keywords_than_one_can_survey() -> None:
    for package, name in public_names():
        value = getattr(importlib.import_module(package), name)
        # What a user reads and does not make, has as many fields as it has counts.
        is_made_by_users = not (inspect.isclass(value) and issubclass(value, tuple | Exception))
        if callable(value) and is_made_by_users and not value.__module__.startswith("pillarbox.kernel"):
            # Beside the two that every call gives, such as rows and function, and the options, which are the
            # same everywhere.
            own = inspect.signature(value).parameters.keys() - OPTIONS
            assert len(own) <= 2 + MAX_KEYWORDS, name


def undescribed(name: str, value: Any) -> list[str]:
    """The public functions, classes and methods at `value` that have no docstring of their own."""
    if inspect.isclass(value):
        found = [] if value.__doc__ else [name]
        for attribute, member in vars(value).items():
            function = getattr(member, "__func__", member)
            described = inspect.isfunction(function) or isinstance(member, property)
            if not attribute.startswith("_") and described and not inspect.getdoc(getattr(value, attribute)):
                found.append(f"{name}.{attribute}")
        return found
    return [name] if inspect.isroutine(value) and not inspect.getdoc(value) else []


@pytest.mark.contract
def test_every_public_name_is_described() -> None:
    names = public_names()
    assert len(names) > 30
    assert [
        line
        for package, name in names
        for line in undescribed(f"{package}.{name}", getattr(importlib.import_module(package), name))
    ] == []


def test_a_name_without_description_is_found() -> None:
    class Planted:
        def method(self) -> None: ...

        @property
        def value(self) -> int:
            return 1

        @classmethod
        def build(cls) -> None:
            """Have a description."""

    assert undescribed("planted", Planted) == ["planted", "planted.method", "planted.value"]


@pytest.mark.parametrize("module", ["pillarbox.clients.answers", "pillarbox.sources.source"])
def test_a_field_without_a_default_stays_so_behind_a_pickle(module: str) -> None:
    script = (
        f"import dataclasses, pickle, {module}\n"
        "print(pickle.loads(pickle.dumps(dataclasses.MISSING)) is dataclasses.MISSING)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True"]
