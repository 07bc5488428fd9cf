"""The judge's checks on real processes without Spark: nothing is wrong, or the planted defect is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.chaos.alone import ROWS, judge_alone
from fuzz.chaos.planted import ALONE, DEFECTS, planted
from spec.defects import read


@pytest.mark.parametrize("first", dict.fromkeys(ALONE.values()), ids=["one", "attempts", "equal keys"])
def test_nothing_is_wrong_with_the_operator_as_it_is(first: tuple[int, ...], tmp_path: Path) -> None:
    verdict = judge_alone(tmp_path, None, *first)
    assert verdict.wrong == []
    assert verdict.departed == len(first) * (ROWS + 1)
    assert verdict.not_timed == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_fsync", "whose results were on no disk"),
        ("left_before_durable", "before their results were on the disk"),
        ("lease_always_granted", "was called twice at a time"),
        ("adopted_result_ignored", "left with the answers of several calls"),
    ],
)
def test_a_planted_defect_is_found_within_ten_runs(name: str, said: str, tmp_path: Path) -> None:
    (defect,) = [each for each in read(DEFECTS) if each.name == name]
    package = planted(defect, tmp_path / "package")
    for number in range(10):
        runs = tmp_path / f"runs-{number}"
        runs.mkdir()
        if any(said in each for each in judge_alone(runs, package, *ALONE[name]).wrong):
            return
    pytest.fail(f"{name} was not found in ten runs")
