"""The option `source` names a source that is allowed, and imports nothing else, whoever writes the SQL."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pillarbox.spark import register_source
from pillarbox.spark.data_source import CONNECTORS, AllowedSources, PillarboxSource, Read
from tests.spark.unit import source_logs
from tests.spark.unit.source_logs import LogSource

cloudpickle.register_pickle_by_value(source_logs)

MARKS = """
import os
os.environ["PILLARBOX_TEST_MARK"] = "imported"
from pillarbox.sources.connectors.generator import GeneratorSource
class Marked(GeneratorSource):
    class Inner(GeneratorSource):
        pass
class NoSource:
    pass
"""


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that marks this process when it is imported."""
    monkeypatch.setenv("PILLARBOX_TEST_MARK", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "package_that_marks").mkdir()
    for name in ("package_that_marks/__init__.py", "package_that_marks/module.py"):
        (tmp_path / name).write_text(MARKS)
    yield "package_that_marks"
    for name in [name for name in sys.modules if name.startswith("package_that_marks")]:
        del sys.modules[name]


def imported() -> bool:
    return bool(os.environ["PILLARBOX_TEST_MARK"]) or any("that_marks" in name for name in sys.modules)


@pytest.mark.contract("No module is imported for an option `source` that nobody has allowed.")
def test_nothing_outside_of_the_allow_list_is_imported_and_the_error_says_what_is_allowed(marks: str) -> None:
    allowed = AllowedSources(["files", f"{marks}.module:Marked"])
    for given in (None, allowed, AllowedSources([LogSource])):
        for name in (
            f"{marks}:Marked",
            f"{marks}.module:Other",
            f"{marks}:",
            "os:system",
            ":",
            f" {marks}:Marked",
        ):
            members: dict[str, Any] = {} if given is None else {"registered": given}
            source = type("Registered", (PillarboxSource,), members)({"source": name})
            with pytest.raises(ValueError, match="^option 'source' is ") as error:
                source.schema()
            there = CONNECTORS if given is None else given._found
            assert f"option 'source' is {name!r}: must be one of {', '.join(there)}. " in str(error.value)
    assert not imported()


def test_what_is_allowed_is_imported_when_it_is_asked_for_and_not_before(marks: str) -> None:
    names = [f"{marks}:Marked", f"{marks}.module:Marked.Inner", f"{marks}:NoSource", f"{marks}.gone:Marked"]
    allowed = pickle.loads(pickle.dumps(AllowedSources(names)))
    assert not imported()
    for name, kind in zip(names[:2], ("Marked", "Inner"), strict=True):
        assert type(Read.of(allowed, {"source": name}).source).__name__ == kind
    for name, text in zip(names[2:], ("is not a class derived from", "No module named"), strict=True):
        with pytest.raises(ValueError, match=text):
            Read.of(allowed, {"source": name})
    with pytest.raises(
        ValueError, match="option 'source' is missing: must be one of package_that_marks:Marked"
    ):
        Read.of(allowed, {})


def test_an_allow_list_that_is_none_is_refused_when_it_is_registered(spark: SparkSession) -> None:
    for given, kind in (
        ([], ValueError),
        (["shop"], ValueError),
        (["a:b;c"], ValueError),
        ([int], TypeError),
    ):
        with pytest.raises(kind, match=r"^source=\["):
            register_source(spark, given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source='files': must be a Source"):
        register_source(spark, "files")


@pytest.mark.contract
def test_sql_reads_the_sources_that_were_registered_for_it_and_no_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    source_logs.append(tmp_path / "log", "a", range(3))
    name = register_source(spark, ["generator", LogSource], "allowing")

    def read(source: str, **options: str) -> int:
        said = ", ".join(f"{key} '{value}'" for key, value in {"source": source, **options}.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW allowed USING {name} OPTIONS ({said})")
        return int(spark.sql("SELECT count(*) AS rows FROM allowed").collect()[0].rows)

    assert read("generator", rows="7") == 7
    assert read("tests.spark.unit.source_logs:LogSource", folder=str(tmp_path / "log"), bounded="true") == 3
    for other in ("antigravity:X", "files"):
        with pytest.raises(
            PySparkException, match=f"option 'source' is '{other}': must be one of generator, tests"
        ):
            read(other, path=str(tmp_path))
