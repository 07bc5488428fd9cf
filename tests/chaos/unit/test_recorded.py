"""The recorded runs of async operators in killed workers of Spark are behaviours of the specification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.chaos.run import Outcome, Session
from pillarbox.testing.operator_trace import read_life
from spec.operator_runs import are_behaviours, rows_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.spark, pytest.mark.slow]

LIVES = 20
"""Operators of which something is asked, at least; each attempt of a task has one."""


@pytest.mark.contract
def test_what_operators_do_in_workers_that_are_killed_is_a_behaviour_of_the_specification(
    local: Session, harmed: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver and its workers are started below, and inherit it.
    monkeypatch.setenv("PILLARBOX_TRACE", str(tmp_path))
    for kind in ("batch", "repeated", "shuffled"):
        outcome = harmed(local, kind, "worker", "writing worker", "worker")
        assert any(fault.kind == "worker" for fault in outcome.fired)
        assert outcome.verdict.wrong == []
    lives = [life for path in sorted(tmp_path.glob("*.trace")) if rows_of(life := read_life(path)) > 50]
    assert len(lives) >= LIVES
    assert any(life[-1].name != "close" for life in lives), "some were cut off by a kill"
    assert are_behaviours(*lives)
