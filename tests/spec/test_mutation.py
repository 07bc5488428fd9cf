"""The record of planted defects, in `spec/README.md`: read as it is written, and `--missing` goes by it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spec import mutation
from spec.defects import Seeded, seeded
from spec.mutation import CAUGHT, LAYERS, TIMED_OUT, UNNOTICED, Layer


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A README with the marks, and no table yet."""
    path = tmp_path / "README.md"
    path.write_text(f"before\n{mutation.BEGIN}\n{mutation.END}\nbehind\n")
    monkeypatch.setattr(mutation, "README", path)
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The layers, each without its check: what is tried is listed, and found by the first layer."""
    tried: list[tuple[str, str]] = []

    def stub(number: int, layer: Layer) -> Layer:
        def check(defect: Seeded | None) -> str:
            if defect is None:
                return UNNOTICED
            tried.append((defect.name, layer.name))
            return UNNOTICED if number else CAUGHT

        return Layer(layer.name, layer.parts, check)

    monkeypatch.setattr(mutation, "LAYERS", [stub(*each) for each in enumerate(LAYERS)])
    monkeypatch.setattr(mutation.graph, "load", lambda name: None)
    return tried


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mutation", "--jobs", "1", *words])
    return mutation.main()


def looking(defect: Seeded) -> list[str]:
    return [layer.name for layer in LAYERS if defect.part in layer.parts]


def test_the_table_of_planted_defects_is_read_as_it_was_written() -> None:
    kinds = [UNNOTICED, CAUGHT, TIMED_OUT]
    defects = seeded()[::3]
    results = {
        defect.name: {name: kinds[(row + column) % 3] for column, name in enumerate(looking(defect))}
        for row, defect in enumerate(defects)
    }
    del results[defects[0].name][looking(defects[0])[1]]
    assert mutation.recorded(f"{mutation.table(results)}\n\n{mutation.coverage(results)}") == results


def test_missing_tries_what_the_table_does_not_answer(
    readme: Path, asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    defects = [defect for defect in seeded() if defect.part in mutation.MAILBOX][:4]
    names = [defect.name for defect in defects]
    first, second = names[:2]
    layers = looking(defects[1])
    assert run(monkeypatch, first, second) == 0
    asked.clear()
    known = mutation.remembered()
    del known[second][layers[-1]]
    mutation.write(mutation.table(known))
    assert run(monkeypatch, "--missing", *names) == 0
    assert asked == [
        (second, layers[-1]),
        *((defect.name, name) for defect in defects[2:] for name in looking(defect)),
    ]
    assert {name: sorted(answers) for name, answers in mutation.remembered().items()} == {
        defect.name: sorted(looking(defect)) for defect in defects
    }
    assert readme.read_text().startswith("before\n")
    assert readme.read_text().endswith("\nbehind\n")


def test_what_was_found_before_a_run_breaks_off_is_recorded(
    readme: Path, asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [defect.name for defect in seeded() if defect.part in mutation.MAILBOX][:2]
    tried = mutation.tried

    def breaks_off(defect: Seeded | None, *others: object) -> dict[str, str]:
        if defect is not None and defect.name == second:
            raise RuntimeError("no compiler")
        return tried(defect, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(mutation, "tried", breaks_off)
    with pytest.raises(RuntimeError, match="no compiler"):
        run(monkeypatch, first, second)
    assert list(mutation.remembered()) == [first]


def test_no_defect_of_the_record_survives() -> None:
    record = mutation.remembered()
    assert record
    surviving = [
        defect.name
        for defect in seeded()
        if not mutation.to_try(defect, LAYERS, record) and mutation.verdict(record[defect.name]) != CAUGHT
    ]
    assert not surviving


def test_the_tests_that_convict_a_defect_come_first_if_the_layer_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: list[list[str]] = []

    def noted(command: list[str], environment: dict[str, str]) -> str:
        run.append(command[command.index("faulthandler_timeout=0") + 1 :])
        return UNNOTICED

    monkeypatch.setattr(mutation, "outcome", noted)
    monkeypatch.setattr(mutation, "with_defect", lambda defect: "lib")
    found = {"claim_twice": ["tests/kernel/test_a.py::test_one", "tests/kernel_b/test_b.py::test_two"]}
    monkeypatch.setattr(mutation.contracts, "convictions", lambda: found)
    defect = next(each for each in seeded() if each.name == "claim_twice")
    assert mutation.tests("tests/kernel", "-k", "not slow")(defect) == UNNOTICED
    assert run == [["tests/kernel/test_a.py::test_one", "-k", "not slow"], ["tests/kernel", "-k", "not slow"]]
    run.clear()
    mutation.tests("tests/kernel/test_a.py::test_one")(defect)
    mutation.tests("tests/kernel/test_a.py::test")(defect)
    mutation.tests("tests/kernel")(None)
    assert run == [["tests/kernel/test_a.py::test_one"], ["tests/kernel/test_a.py::test"], ["tests/kernel"]]
