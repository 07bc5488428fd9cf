"""Every mutant in the specification of streams is run, and caught by the property that is there for it."""

from __future__ import annotations

import re

from spec import tlc
from spec.manifest import read_all


def test_every_mutant_of_the_stream_is_run_and_caught() -> None:
    runs = [run for run in read_all() if run.module == "Stream"]
    planted = {dict(run.constants)["Mutant"]: run for run in runs if run.name.startswith("mutant-")}
    text = (tlc.SPEC / "Stream.tla").read_text()
    assert set(planted) == set(re.findall(r"Mutant [=#] \"([^\"]+)\"", text))
    assert len(planted) >= 12
    assert all(run.violates for run in planted.values())
    # Each property is there for a mistake.
    properties = {name for run in runs for name in (*run.invariants, *run.properties)} - {"TypeOK"}
    assert {run.violates for run in planted.values()} == properties
