"""The check kit for connectors: it passes what keeps the contract, and convicts what breaks it."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.testing import source_suite
from pillarbox.testing.source_suite import RULES, ContractBroken, SourceSuite
from tests.testing.unit import faulty_sources as log
from tests.testing.unit import unclean_sources

TestGenerator = source_suite(
    lambda: GeneratorSource(60, splits=3, batch_rows=6, seed=4),
    options={"rows": "60", "splits": "3", "batch_rows": "6", "seed": "4"},
    name="TestGenerator",
)


LONG, SOON = 600.0, 0.5
"""Seconds of waits: for what a right connector does at some time, and for what a wrong one never does."""


def suite_of(make: Callable[..., log.LogSource], folder: Path, timeout: float = LONG) -> SourceSuite:
    """All that the kit can be told of a log on disk."""

    def fresh() -> Path:
        return Path(mkdtemp(dir=folder))

    bounded, followed, lossy, spoilt = fresh(), fresh(), fresh(), fresh()

    def add() -> list[tuple[Any, ...]]:
        end = log.Log(str(followed)).end("east")
        log.Log(str(followed)).append("east", 3)
        return [("east", at, *log.record("east", at).values()) for at in range(end, end + 3)]

    def bad() -> log.LogSource:
        source = make(spoilt)
        log.Log(str(spoilt)).spoil("south", 120)
        return source

    return SourceSuite(
        lambda: make(bounded),
        rows=log.expected(),
        follow=lambda: make(followed, follow=True),
        add=add,
        lost=lambda: make(lossy),
        lose=lambda: log.Log(str(lossy)).trim("north", 3),
        bad=(bad, "n/a"),
        secrets=[log.TOKEN],
        wake_within=timeout,
        timeout=timeout,
    )


WAITS = ("micro_batches", "idle", "blocked_fetch", "new_rows")
"""Checks that take seconds."""
CONVICTED_BY = {
    "PositionOfTheClient": "positions",
    "PageOverTheStop": "micro_batches",
    "EmptyRangeWithoutEnd": "rows",
    "KeyMadeWhenRead": "replay",
    "LossPassedOver": "lost_data",
    "TypesOfEachBatch": "types",
    "WokenForEver": "blocked_fetch",
    "ThreadLeftBehind": "close",
    "SecondRestartFindsAll": "discovery",
    "RangeBehindTheLog": "new_ranges",
    "SecretInSplits": "secrets",
}
RULE_BROKEN = {
    "PositionOfTheClient": "what is there can be read",
    "EmptyRangeWithoutEnd": "rows come, and a split that has an end is finished",
    "WokenForEver": RULES["idle"],
    "SecondRestartFindsAll": "it gives what it was restored with",
}
"""The words of those that break another rule than the one that the check is there for."""


@pytest.mark.contract("A connector that keeps the contract passes every check of the kit for connectors.")
@pytest.mark.parametrize(
    "check", [pytest.param(each, marks=[pytest.mark.slow] if each in WAITS else []) for each in RULES]
)
def test_a_connector_that_keeps_the_contract_passes(check: str, tmp_path: Path) -> None:
    try:
        suite_of(log.made, tmp_path).check(check)
    except unittest.SkipTest:
        assert check == "options"


@pytest.mark.contract("The kit for connectors takes no row for a wrong one because it comes late.")
@pytest.mark.parametrize("check", ["new_rows", "idle", "blocked_fetch"])
def test_rows_that_come_late_are_not_a_fault(
    check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a machine so busy that the next rows come when the kit waits for none any more.
    monkeypatch.setattr(sys.modules[SourceSuite.__module__], "DRAINED_AFTER_S", 0.0)
    suite_of(log.made, tmp_path).check(check)


@pytest.mark.contract(
    "Eleven faults of connectors, planted by somebody who had not read the kit, are convicted by class, "
    "method and rule."
)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, marks=[pytest.mark.slow] if CONVICTED_BY[each] in WAITS else [])
        for each in log.FAULTS
    ],
)
def test_a_fault_of_a_connector_is_convicted_by_class_method_and_rule(fault: str, tmp_path: Path) -> None:
    with pytest.raises(ContractBroken) as found:
        suite_of(log.FAULTS[fault], tmp_path, timeout=SOON).check(CONVICTED_BY[fault])
    assert RULE_BROKEN.get(fault, RULES[CONVICTED_BY[fault]]) in found.value.rule
    assert found.value.rule in str(found.value) and "." in found.value.method


@pytest.mark.contract(
    "The kit for connectors convicts one that takes a row for another: by value, by text, by a hash that "
    "skips nulls, without the signs of zeros, by what is left of a vector in 32 bits.",
)
@pytest.mark.parametrize("fault", unclean_sources.FAULTS)
def test_a_connector_that_takes_one_row_for_another_is_convicted(fault: str) -> None:
    suite = alike_suite(unclean_sources.FAULTS[fault], SOON)

    def check() -> None:
        suite.check("rows")
        suite.check("positions")

    with pytest.raises(ContractBroken, match=r"fetch: "):
        check()


@pytest.mark.contract("A connector whose rows nearly look alike passes the kit for connectors.")
@pytest.mark.parametrize("check", ["rows", "replay", "positions", "checkpoints", "splits", "discovery"])
def test_a_connector_of_rows_that_look_alike_passes(check: str) -> None:
    alike_suite(unclean_sources.Alike, LONG).check(check)


def alike_suite(make: type[unclean_sources.Alike], timeout: float) -> SourceSuite:
    rows = [*unclean_sources.ROWS, *unclean_sources.ROWS]
    return SourceSuite(make, rows=rows, wake_within=timeout, timeout=timeout)
