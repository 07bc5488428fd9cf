"""The examples in the docstrings of public names: each name has one, and it runs."""

from __future__ import annotations

import doctest
import io
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.house.public_names import PACKAGES, exported, found, in_reference, public_names

NAMES = public_names()
PARSER = doctest.DocTestParser()
SESSION = {"spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass"}
"""Settings that an example changes, of a session that other tests have too."""


def example(name: str) -> doctest.DocTest:
    # As in a script: functions of `__main__` travel to Spark's workers by value.
    return PARSER.get_doctest(NAMES[name].__doc__ or "", {"__name__": "__main__"}, name, None, 0)


def needs_spark(name: str) -> bool:
    return any("spark." in each.source for each in example(name).examples)


@pytest.fixture
def names_of_session(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    name = request.node.callspec.params["name"]
    if not needs_spark(name):
        yield {}
        return
    spark = request.getfixturevalue("spark")
    before = {setting: spark.conf.get(setting, None) for setting in SESSION}
    yield {"spark": spark}
    for setting, value in before.items():
        if value is None:
            spark.conf.unset(setting)
        else:
            spark.conf.set(setting, value)


def test_every_public_name_has_an_example() -> None:
    assert len(NAMES) >= 110
    assert [name for name in NAMES if not example(name).examples] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.spark] * needs_spark(name)) for name in NAMES]
)
# A row that fails where `errors` is not "fail" is said in the log, once.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_example_of_a_public_name_runs(
    name: str, names_of_session: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test, said = example(name), io.StringIO()
    test.globs.update(names_of_session)
    # An example may set a variable.
    with mock.patch.dict(os.environ):
        doctest.DocTestRunner(verbose=False).run(test, out=said.write)
    assert not said.getvalue(), said.getvalue()


def test_the_reference_has_each_name_that_a_package_exports_but_those_of_the_kernel() -> None:
    described = {id(found(name)) for name in in_reference()}
    packages = [package for package in PACKAGES if package != "pillarbox.kernel"]
    missing = [name for package in packages for name in exported(package) if id(found(name)) not in described]
    assert missing == []


def test_the_reference_begins_with_async_map() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md").read_text()
    assert page.index("::: ") == page.index("::: pillarbox.async_map\n")
