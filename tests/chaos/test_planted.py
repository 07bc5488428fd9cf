"""The judge finds each defect that is planted for it, within ten runs of the defect's job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.chaos.planted import DEFECTS, JOBS, RUNS, planted, verdicts
from spec.defects import read
from spec.seeds import commit_seed
from tests.versions import needs_async_stream

pytestmark = [pytest.mark.timeout(1200), pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_async_stream) if kind == "state" else name
        for name, kind in JOBS.items()
    ],
)
def test_a_planted_defect_is_found_within_ten_runs_of_its_job(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    (defect,) = [each for each in read(DEFECTS) if each.name == name]
    seed = commit_seed(f"planted {name}")
    print(f"seed {seed}")
    package = planted(defect, tmp_path / "package")
    found = verdicts([JOBS[name]], package, tmp_path / "runs", seed=seed, runs=RUNS, first_only=True)
    assert found[-1], f"{RUNS} runs of {JOBS[name]} looked well with {defect.about}"
