"""The check kit for connectors: it passes what keeps the contract, and convicts what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.testing import ContractBroken, SourceSuite, source_suite
from tests.testing import faulty_sources as log

TestGenerator = source_suite(
    lambda: GeneratorSource(60, splits=3, batch_rows=6, seed=4),
    options={"rows": "60", "splits": "3", "batch_rows": "6", "seed": "4"},
    name="TestGenerator",
)


def suite_of(make: Callable[..., log.LogSource], folder: Path) -> SourceSuite:
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
        timeout=10.0,
    )


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_connector_that_keeps_the_contract_passes(tmp_path: Path) -> None:
    suite_of(log.made, tmp_path).check_all()


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", log.FAULTS)
def test_a_fault_chosen_by_somebody_else_is_convicted_by_class_method_and_rule(
    fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractBroken) as found:
        suite_of(log.FAULTS[fault], tmp_path).check_all()
    assert found.value.rule in str(found.value) and "." in found.value.method
