"""Recorded runs of jobs, killed and restored, are behaviours of the specification; wrong ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from spec.job_runs import make_run, make_runs
from spec.operator_runs import Run, accepted_by_tlc

FIRST_SEED, RUNS, FEW_RUNS = 1, 50, 5


@pytest.mark.contract(
    "What the functions of a job do over kills, stops and restarts is a behaviour of the specification."
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [FEW_RUNS, pytest.param(RUNS, marks=pytest.mark.slow)])
def test_what_the_functions_of_a_job_do_is_a_behaviour_of_the_specification(
    count: int, tmp_path: Path
) -> None:
    runs = make_runs(range(FIRST_SEED, FIRST_SEED + count), tmp_path)
    accepted, _ = accepted_by_tlc([*runs.values()])
    assert [name for name, through in zip(runs, accepted, strict=True) if not through] == []
    assert any(step.name == "restore" for run in runs.values() for step in run)


def with_restored_row_lost(run: Run) -> Run:
    """The run as if a restore had forgotten a row that its snapshot has."""
    changed = []
    for step in run:
        if step.name == "restore" and step.words[1]:
            finished, entries = step.words
            step = step._replace(words=(finished, entries[1:]))
        changed.append(step)
    return changed


def with_row_emitted_twice(run: Run) -> Run:
    """The run as if its first row that left had left once more."""
    at = next(place for place, step in enumerate(run) if step.name == "emit")
    return [*run[: at + 1], run[at], *run[at + 1 :]]


@pytest.mark.timeout(600)
def test_a_job_that_loses_or_doubles_a_row_is_refused(tmp_path: Path) -> None:
    runs = (
        run
        for seed in range(FIRST_SEED, FIRST_SEED + RUNS)
        for run in make_run(seed, tmp_path / str(seed))
        if any(step.name == "restore" and step.words[1] for step in run)
    )
    run = next(runs)
    accepted, _ = accepted_by_tlc([run, with_restored_row_lost(run), with_row_emitted_twice(run)])
    assert accepted == [True, False, False]
