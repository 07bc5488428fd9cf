"""CrossHair on the contracts of the pure functions, within a budget; wrong contracts are refuted in it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("crosshair")

from fuzz.contracts import attempt_and_slot, handle_of
from fuzz.contracts_run import CounterexampleError, check_contracts
from pillarbox.kernel import OrderedQueue

# For each contract.
SECONDS = 1.0
REFUTED_WITHIN = 10.0

WRONG = {
    "an urgent mail always comes first": '''
def chosen(streak: int) -> int | None:
    """
    pre: 0 <= streak <= 64
    post: __return__ == 1
    """
    return choose((Letter(0, False, False), Letter(0, True, False)), 0, streak, 64)
''',
    "a priority sorts": '''
def chosen(first: int, second: int) -> int | None:
    """
    pre: first >= 0 and second >= 0
    post: __return__ == 0 or second > first
    post: __return__ == 1 or first >= second
    """
    return choose((Letter(first, False, False), Letter(second, False, False)), 0, 0, 64)
''',
    "one attempt too many": '''
def follows(attempts: int, attempt: int) -> bool:
    """
    pre: 1 <= attempts and 1 <= attempt
    post: __return__ == (attempt <= attempts)
    """
    return Retry(attempts).applies(attempt, ValueError())
''',
}
HEAD = '"""A planted wrong contract."""\nfrom fuzz.contracts import Letter, Retry, choose\n'


@pytest.mark.slow
def test_no_contract_is_refuted_within_the_budget() -> None:
    lines = check_contracts("fuzz.contracts", SECONDS)
    assert len(lines) >= 12
    assert all(
        line.endswith(("holds on every path that there is", f"no counterexample in {SECONDS:g} s"))
        for line in lines
    )


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_contract_is_refuted_within_the_budget(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]), prepend=":")
    (tmp_path / "planted.py").write_text(HEAD + WRONG[wrong])
    with pytest.raises(CounterexampleError, match="false when calling"):
        check_contracts("planted", REFUTED_WITHIN, tmp_path)


def test_a_module_without_contracts_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("def f(x: int) -> int:\n    return x\n")
    with pytest.raises(RuntimeError, match="no contracts in planted"):
        check_contracts("planted", SECONDS, tmp_path)


def test_the_kernels_handles_are_made_as_the_contracts_say() -> None:
    queue = OrderedQueue(3)
    handles = [queue.put("a"), queue.put("b")]
    handles.append(queue.renew(handles[0]))
    assert [attempt_and_slot(handle)[0] for handle in handles] == [1, 2, 3]
    slots = [attempt_and_slot(handle)[1] for handle in handles]
    assert slots[0] == slots[2] != slots[1] and set(slots) <= {0, 1, 2}
    assert [handle_of(*attempt_and_slot(handle)) for handle in handles] == handles
