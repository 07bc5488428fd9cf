"""Every mutant in the specifications above the kernel is run, and caught by the property meant for it."""

from __future__ import annotations

import re

import pytest

from spec import tlc
from spec.manifest import read_all


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("Ledger", 13),
        ("StreamState", 27),
        ("Alignment", 11),
        ("SplitFetch", 19),
        ("SplitPerThread", 17),
        ("SplitAssignment", 38),
        ("Yielding", 8),
        ("SeenFiles", 5),
        ("SinkCommit", 8),
    ],
)
def test_every_mutant_is_run_and_caught(module: str, least: int) -> None:
    runs = [run for run in read_all() if run.module == module]
    planted = {dict(run.constants)["Mutant"]: run for run in runs if run.name.startswith("mutant-")}
    text = (tlc.SPEC / f"{module}.tla").read_text()
    assert set(planted) == set(re.findall(r"Mutant [=#] \"([^\"]+)\"", text))
    assert len(planted) >= least
    assert all(run.violates for run in planted.values())
    # Each property is there for a mistake.
    properties = {name for run in runs for name in (*run.invariants, *run.properties)} - {"TypeOK"}
    assert {run.violates for run in planted.values()} == properties


def test_every_mutant_of_a_chain_is_run_and_caught() -> None:
    runs = [run for run in read_all() if run.module == "ChainChecks"]
    mutants = [run for run in runs if run.name.startswith("mutant-")]
    text = (tlc.SPEC / "Chain.tla").read_text()
    # Two are those of the order of a result queue, in `ResultQueueOrder`.
    assert {dict(run.constants)["Mutant"] for run in mutants} == {
        *re.findall(r"Mutant [=#] \"([^\"]+)\"", text),
        "ordered_emits_any",
        "record_passes_watermark",
    }
    properties = {name for run in runs for name in (*run.invariants, *run.properties)} - {"TypeOK"}
    assert {run.violates for run in mutants} == properties
