"""The page of contracts is what its command writes, and no contract ends in silence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spec import contracts
from spec.contracts import Contract, ContractError
from spec.defects import seeded
from spec.manifest import read_all

TEST = """
import pytest

@pytest.mark.contract
def test_a_row_is_called_once() -> None: ...

@pytest.mark.parametrize("one", [1])
@pytest.mark.contract("A mail that waits cannot be put again.", convicts=["claim_twice"])
async def test_twice(one: int) -> None: ...

def test_of_something_inside() -> None: ...
"""


def tree(root: Path, tests: str = TEST) -> Path:
    """A project with one file of tests."""
    for folder in ("tests/aio", "docs"):
        (root / folder).mkdir(parents=True)
    (root / "tests/aio/test_one.py").write_text(tests)
    (root / "spec").mkdir()
    (root / contracts.ENDED).write_text("# Contracts that have ended\n")
    return root


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


@pytest.mark.contract("The page of contracts is what the tests say, and no line of it goes in silence.")
def test_the_page_is_what_the_command_writes_and_no_contract_has_ended_in_silence() -> None:
    assert contracts.check() == []


def test_a_contract_is_a_marker_and_its_sentence_the_name_of_the_test(tmp_path: Path) -> None:
    assert contracts.read(tree(tmp_path)) == [
        Contract("A row is called once.", "tests/aio/test_one.py::test_a_row_is_called_once"),
        Contract(
            "A mail that waits cannot be put again.", "tests/aio/test_one.py::test_twice", ("claim_twice",)
        ),
    ]


def test_a_line_that_goes_is_missed_until_the_register_of_ended_contracts_has_it(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / contracts.PAGE).write_text(contracts.page(contracts.read(root), []))
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "Hold two contracts")
    now = {"A mail that waits cannot be put again."}
    assert contracts.ever(root) == now | {"A row is called once."}
    (root / contracts.PAGE).write_text(contracts.page(contracts.read(root)[1:], []))
    git(root, "commit", "-qam", "Drop one")
    assert contracts.sentences((root / contracts.PAGE).read_text()) == now
    assert contracts.ended(contracts.ever(root), now, "# Contracts that have ended") == [
        "A row is called once."
    ]
    register = "- A row is\n  called once. It is called twice now."
    assert contracts.ended(contracts.ever(root), now, register) == []


@pytest.mark.contract("Every contract below Spark has a fast test, or names the server that it is about.")
def test_a_contract_without_a_fast_test_is_missed_until_it_names_what_it_needs(tmp_path: Path) -> None:
    root = tree(tmp_path, TEST.replace("mark.contract\n", "mark.contract(needs='Redis, which counts')\n"))
    (redis, other) = contracts.read(root)
    assert redis.needs == "Redis, which counts"
    assert contracts.slow_only([redis, other], {other.test}) == []
    assert contracts.slow_only([redis, other], {redis.test}) == [
        f"{redis.test} needs nothing, for it is fast: {redis.sentence}",
        f"{other.test} has no part in make test-fast: {other.sentence}",
    ]
    over_spark = Contract("A job ends.", "tests/spark/test_one.py::test_a_job_ends")
    assert contracts.slow_only([over_spark], set()) == []


def test_the_fast_tests_are_those_that_pytest_collects(tmp_path: Path) -> None:
    for section in contracts.BELOW_SPARK:
        (tmp_path / "tests" / section).mkdir(parents=True)
    (tmp_path / "tests/aio/test_one.py").write_text(
        TEST + "@pytest.mark.slow\ndef test_all_day() -> None: ...\n"
        "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow), 2])\n"
        "def test_each(n: int) -> None: ...\n"
    )
    named = [f"test_{name}" for name in ("a_row_is_called_once", "twice", "of_something_inside", "each")]
    assert contracts.fast_tests(tmp_path) == {f"tests/aio/test_one.py::{name}" for name in named}


def test_outside_of_a_checkout_there_is_nothing_to_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert contracts.ever(tmp_path) == set()


@pytest.mark.parametrize(
    ("decorator", "error"),
    [
        ('@pytest.mark.contract("no full stop")', "one line that ends with a full stop"),
        ('@pytest.mark.contract("A.", "B.")', "all optional"),
        ('@pytest.mark.contract(by="a")', "all optional"),
        ("@pytest.mark.contract(SENTENCE)", "literal values"),
        ('@pytest.mark.contract("A row is called once.")', "hold the same"),
    ],
)
def test_a_marker_that_says_nothing_sensible_is_named(tmp_path: Path, decorator: str, error: str) -> None:
    root = tree(tmp_path, f"{TEST}\n{decorator}\ndef test_other() -> None: ...\n")
    with pytest.raises(ContractError, match=error):
        contracts.read(root)


def test_a_defect_that_nobody_plants_and_one_that_nobody_convicts_are_named() -> None:
    names = [defect.name for defect in seeded()]
    held = Contract("A row is called once.", "tests/aio/test_one.py::test_a", tuple(names))
    contracts.accused([held], seeded(), read_all())
    with pytest.raises(ContractError, match="no contract convicts: " + names[3]):
        contracts.accused(
            [Contract(held.sentence, held.test, (*names[:3], *names[4:]))], seeded(), read_all()
        )
    with pytest.raises(ContractError, match="nobody plants: unheard_of"):
        contracts.accused([Contract(held.sentence, held.test, (*names, "unheard_of"))], seeded(), read_all())


def test_what_a_property_says_stands_above_it_or_is_its_name() -> None:
    assert contracts.in_words("Ledger", "OneResult").startswith("Whichever attempts emit a key")
    assert contracts.in_words("Mailbox", "TakenInOrder") == "Taken in order."
