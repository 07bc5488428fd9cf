"""CrossHair on the contracts of pure functions, within a budget; it finds the defect planted for each."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

pytest.importorskip("crosshair")

from fuzz import contracts
from fuzz.contracts_run import ROOT, CounterexampleError, check_contracts
from spec.defects import seeded, with_one

SECONDS = 1.0
"""Budget of each contract that holds."""
REFUTED_WITHIN = 600.0
"""Budget of one that does not: a second of processor time, however long that takes."""

RETRY = "pyruntime/aio/retry.py"
CONVICTED = {
    "a_pause_is_never_longer_than_the_maximum": "pause_beyond_maximum",
    "a_pause_is_never_longer_than_doubling_makes_it": "first_pause_is_doubled",
    "pauses_do_not_get_shorter": "pauses_shrink",
    "attempts_are_bounded": "one_attempt_too_many",
}
"""By contract, the defect in the code that it must find."""


@pytest.mark.slow
def test_no_contract_is_refuted_within_the_budget() -> None:
    lines = check_contracts("fuzz.contracts", SECONDS)
    assert len(lines) >= len(CONVICTED)
    assert all(
        line.endswith(("holds on every path that there is", f"no counterexample in {SECONDS:g} s"))
        for line in lines
    )


def test_each_contract_has_a_defect_that_it_finds() -> None:
    written = {
        name for name, each in inspect.getmembers(contracts, inspect.isfunction) if "post:" in each.__doc__
    }
    assert written == set(CONVICTED)


@pytest.mark.contract(
    "A contract for CrossHair is refuted by the code with a defect that it is there for.",
    convicts=["pause_beyond_maximum", "first_pause_is_doubled", "pauses_shrink", "one_attempt_too_many"],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if at else []) for at, name in enumerate(CONVICTED)],
)
def test_a_contract_finds_the_defect_that_it_is_there_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (defect,) = (each for each in seeded() if each.name == CONVICTED[name])
    assert {place.file for place in defect.places} == {RETRY}
    (tmp_path / "defective.py").write_text(with_one(RETRY, (ROOT / RETRY).read_text(), defect))
    function = inspect.getsource(getattr(contracts, name))
    (tmp_path / "planted.py").write_text(f'"""A contract."""\nfrom defective import Retry\n\n{function}')
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    with pytest.raises(CounterexampleError, match="false when calling"):
        check_contracts("planted", REFUTED_WITHIN, tmp_path)


def test_a_module_without_contracts_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("def f(x: int) -> int:\n    return x\n")
    with pytest.raises(RuntimeError, match="no contracts in planted"):
        check_contracts("planted", SECONDS, tmp_path)


def test_a_contract_of_which_nothing_was_tried_is_no_success(tmp_path: Path) -> None:
    text = '"""\n    pre: x * x == 7\n    post: True\n    """\n'
    (tmp_path / "planted.py").write_text(f"def f(x: int) -> int:\n    {text}    return x\n")
    with pytest.raises(RuntimeError, match="line 3: nothing was tried, .*precondition"):
        check_contracts("planted", SECONDS, tmp_path)
