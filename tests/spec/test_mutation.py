"""The checks that are asked of a planted defect, their order, and the record of what they have found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spec import layers, mutation
from spec.defects import Seeded, seeded
from spec.layers import CAUGHT, LAYERS, TIMED_OUT, UNNOTICED, Ended, Layer, Limits, Pace, Step

Answer = Callable[[Step, Seeded], str]


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A README with the marks, and no table yet; nor has anything been noticed."""
    path = tmp_path / "README.md"
    path.write_text(f"before\n{mutation.BEGIN}\n{mutation.END}\nbehind\n")
    monkeypatch.setattr(mutation, "README", path)
    monkeypatch.setattr(mutation, "NOTICED", tmp_path / "noticed.json")
    return path


class Asked:
    """Stands in for `layers.run`: notes each step with a defect, and answers with `answer`."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.answer: Answer = lambda step, defect: CAUGHT
        self.gone: set[str] = set()

    def run(self, step: Step, defect: Seeded | None, limits: Limits) -> Ended:
        if step.by in self.gone:
            raise layers.GoneError(step.by)
        if defect is None:
            return Ended(UNNOTICED)
        self.steps.append((defect.name, step.by))
        said = self.answer(step, defect)
        return Ended(said, f"the first of {step.by}" if said else "")


@pytest.fixture
def asked(readme: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """No step is run; no contract names a test unless `accused` says so."""
    asked = Asked()
    monkeypatch.setattr(layers, "run", asked.run)
    monkeypatch.setattr(layers, "load_graphs", lambda: None)
    monkeypatch.setattr(mutation, "accusers", lambda defect: [])
    return asked


def accused(monkeypatch: pytest.MonkeyPatch, *tests: str) -> None:
    monkeypatch.setattr(mutation, "accusers", lambda defect: list(tests))


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mutation", "--jobs", "1", *words])
    return mutation.main()


def looking(defect: Seeded) -> list[str]:
    return [layer.name for layer in LAYERS if defect.part in layer.parts]


BY_NAME = {defect.name: defect for defect in seeded()}


def layer_of(name: str) -> Layer:
    return next(layer for layer in LAYERS if layer.name == name)


def steps(name: str, defect: Seeded) -> list[str]:
    return [step.by for step in layer_of(name).steps(defect)]


CLAIM = BY_NAME["claim_twice"]
TEST = "tests/kernel/test_mail.py::test_one"


def known(result: dict[str, str], defect: Seeded = CLAIM) -> None:
    mutation.remember(defect, mutation.Found(result))


def test_the_table_of_planted_defects_is_read_as_it_was_written() -> None:
    kinds = [UNNOTICED, CAUGHT, TIMED_OUT]
    defects = seeded()[::3]
    results = {
        defect.name: {name: kinds[(row + column) % 3] for column, name in enumerate(looking(defect))}
        for row, defect in enumerate(defects)
    }
    del results[defects[0].name][looking(defects[0])[1]]
    assert mutation.recorded(f"{mutation.table(results)}\n\n{mutation.coverage(results)}") == results


def test_the_first_pass_asks_the_tests_whose_contracts_convict_the_defect_and_nothing_else(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    accused(monkeypatch, TEST, "tests/kernel/test_threads.py::test_two")
    known({"schedules": CAUGHT})
    assert run(monkeypatch, CLAIM.name) == 0
    assert [by for _, by in asked.steps] == [TEST, "tests/kernel/test_threads.py::test_two"]
    assert mutation.remembered() == {CLAIM.name: {"schedules": CAUGHT, "contract": CAUGHT}}
    assert mutation.read_noticed() == {}


def test_a_test_that_does_not_notice_what_its_contract_says_fails_the_run_though_a_layer_does(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accused(monkeypatch, TEST)
    known({"schedules": CAUGHT})
    asked.answer = lambda step, defect: UNNOTICED if step.by == TEST else CAUGHT
    assert run(monkeypatch, CLAIM.name) == 1
    assert f"{TEST} does not notice claim_twice" in capsys.readouterr().out
    assert mutation.remembered()[CLAIM.name] == {"schedules": CAUGHT}


def test_where_no_contract_names_a_test_the_layer_and_what_noticed_it_there_are_asked_alone(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    known({"contract": TIMED_OUT, "schedules": CAUGHT})
    mutation.write_noticed({CLAIM.name: ("schedules", "mailbox_schedules all 2 1000 1 lock-free/put-again")})
    assert run(monkeypatch, CLAIM.name) == 0
    assert asked.steps == [(CLAIM.name, "mailbox_schedules all 2 1000 1 lock-free/put-again")]


@pytest.mark.parametrize("kind", ["gone", "unnoticed", "late"])
def test_a_defect_that_is_not_noticed_as_before_is_tried_by_the_layers_that_caught_it_and_then_by_others(
    kind: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "mailbox_schedules all 2 1000 1 lock-free/put-again"
    known({"contract": UNNOTICED, "schedules": CAUGHT, "races": CAUGHT})
    mutation.write_noticed({CLAIM.name: ("schedules", old)})
    asked.gone = {old} if kind == "gone" else set()
    found_by = steps("stress", CLAIM)[0]
    late_or_not = TIMED_OUT if kind == "late" else UNNOTICED
    asked.answer = lambda step, defect: (
        CAUGHT
        if step.by == found_by and step.flags == ("-O2",)
        else late_or_not
        if step.by == old
        else UNNOTICED
    )
    assert run(monkeypatch, CLAIM.name) == 0
    tried = [by for _, by in asked.steps if by != old]
    before = [*steps("schedules", CLAIM), *steps("races", CLAIM)]
    assert tried == [
        *before,
        *(by for name in ("contract", "graph", "models", "histories", "traces") for by in steps(name, CLAIM)),
        found_by,
    ]
    assert mutation.remembered()[CLAIM.name]["schedules"] == UNNOTICED
    assert mutation.read_noticed() == {CLAIM.name: ("stress", f"the first of {found_by}")}


def test_a_defect_survives_only_if_no_layer_notices_it(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known({"schedules": CAUGHT})
    asked.answer = lambda step, defect: UNNOTICED
    assert run(monkeypatch, CLAIM.name) == 1
    assert "1 defects, 1 survive claim_twice" in capsys.readouterr().out
    assert mutation.remembered()[CLAIM.name] == dict.fromkeys(looking(CLAIM), UNNOTICED)


def test_a_defect_that_only_makes_checks_run_out_of_time_counts_apart(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accused(monkeypatch, TEST)
    known({"schedules": CAUGHT})
    asked.answer = lambda step, defect: TIMED_OUT if step.by == TEST else UNNOTICED
    assert run(monkeypatch, CLAIM.name) == 0
    said = capsys.readouterr().out
    assert "1 only make a check run out of time: claim_twice" in said
    assert "1 defects, 0 survive" in said


def test_a_defect_without_a_record_is_tried_by_every_layer(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    accused(monkeypatch, TEST)
    assert run(monkeypatch, CLAIM.name) == 0
    assert [by for _, by in asked.steps] == [TEST, *(steps(name, CLAIM)[0] for name in looking(CLAIM))]
    assert mutation.remembered()[CLAIM.name] == dict.fromkeys(looking(CLAIM), CAUGHT)
    assert mutation.read_noticed() == {}


def test_all_layers_are_asked_on_demand_or_some(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    accused(monkeypatch, TEST)
    known({"schedules": CAUGHT})
    assert run(monkeypatch, "--all-layers", CLAIM.name) == 0
    assert [by for _, by in asked.steps] == [steps(name, CLAIM)[0] for name in looking(CLAIM)]
    asked.steps.clear()
    assert run(monkeypatch, "--layers", "races,graph", CLAIM.name) == 0
    assert [by for _, by in asked.steps] == [steps(name, CLAIM)[0] for name in ("graph", "races")]


def test_a_check_that_fails_with_nothing_planted_ends_the_run(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accused(monkeypatch, TEST)
    known({"schedules": CAUGHT})
    monkeypatch.setattr(layers, "run", lambda step, defect, limits: Ended(CAUGHT, TEST))
    assert run(monkeypatch, CLAIM.name) == 1
    assert f"with no defect planted, this fails: {TEST}" in capsys.readouterr().err


def test_missing_tries_what_the_table_does_not_answer(
    readme: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    defects = [defect for defect in seeded() if defect.part in layers.MAILBOX][:4]
    names = [defect.name for defect in defects]
    first, second = names[:2]
    all_of_them = looking(defects[1])
    assert run(monkeypatch, "--all-layers", first, second) == 0
    asked.steps.clear()
    results = mutation.remembered()
    del results[second][all_of_them[-1]]
    mutation.write(mutation.table(results))
    assert run(monkeypatch, "--missing", *names) == 0
    assert asked.steps == [
        (second, steps(all_of_them[-1], defects[1])[0]),
        *((defect.name, steps(name, defect)[0]) for defect in defects[2:] for name in looking(defect)),
    ]
    assert {name: sorted(answers) for name, answers in mutation.remembered().items()} == {
        defect.name: sorted(looking(defect)) for defect in defects
    }
    assert readme.read_text().startswith("before\n")
    assert readme.read_text().endswith("\nbehind\n")


def test_what_was_found_before_a_run_breaks_off_is_recorded(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [defect.name for defect in seeded() if defect.part in layers.MAILBOX][:2]

    def breaks_off(step: Step, defect: Seeded) -> str:
        if defect.name == second:
            raise RuntimeError("no compiler")
        return CAUGHT

    asked.answer = breaks_off
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


def test_what_noticed_a_defect_is_of_a_layer_that_looks_at_it_and_caught_it() -> None:
    record, noticed = mutation.remembered(), mutation.read_noticed()
    assert len(noticed) >= 40
    for name, (layer, by) in noticed.items():
        assert layer in looking(BY_NAME[name])
        assert record[name][layer] == CAUGHT
        assert layer_of(layer).has(by, BY_NAME[name]) or by.split()[0] in {
            step.program for step in layer_of(layer).steps(BY_NAME[name])
        }


def test_every_defect_has_something_that_the_first_pass_asks() -> None:
    noticed = mutation.read_noticed()
    assert [each.name for each in seeded() if not mutation.accusers(each) and each.name not in noticed] == []


def test_what_noticed_is_read_as_it_was_written_in_the_order_of_the_defects(readme: Path) -> None:
    names = [defect.name for defect in seeded()][:3]
    mutation.write_noticed({name: ("contract", f'{TEST}["{name}"]') for name in reversed(names)})
    assert mutation.read_noticed() == {name: ("contract", f'{TEST}["{name}"]') for name in names}
    lines = mutation.NOTICED.read_text().splitlines()
    assert [line.split('"')[1] for line in lines[1:-1]] == names


# ---- steps and their limits


def test_a_step_may_take_a_multiple_of_what_it_takes_without_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = """\
0.25s call     tests/a.py::test_b[1]
0.75s setup    tests/a.py::test_b[1]
2.00s call     tests/a.py::test_d[e f]
"""
    monkeypatch.setattr(layers, "run", lambda step, defect, limits: Ended(UNNOTICED, words=said))
    pace = Pace()
    pace.start_s = 3.0
    pace.time_tests(["tests/a.py::test_b"])
    assert pace.limits(Step(("tests/a.py::test_b",))) == Limits(
        layers.MAX_WAIT_S + 2 * layers.MAX_TIMES_AS_LONG * (3.0 + 1.0),
        layers.MAX_WAIT_S + layers.MAX_TIMES_AS_LONG * (3.0 + 1.0),
    )
    whole = pace.limits(Step(("tests/a.py", "-k", "not slow")))
    assert whole.test == layers.MAX_WAIT_S + layers.MAX_TIMES_AS_LONG * (3.0 + 2.0)
    assert whole.whole >= whole.test + layers.MAX_TIMES_AS_LONG * 3.0


def test_a_test_that_fails_among_others_with_nothing_planted_is_tried_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = """\
0.01s call     tests/a.py::test_b
0.02s call     tests/a.py::test_c
FAILED tests/a.py::test_b - AssertionError
"""
    alone: list[str] = []

    def run(step: Step, defect: Seeded | None, limits: Limits) -> Ended:
        if "tests/a.py::test_c" in step.words:
            return Ended(CAUGHT, "tests/a.py::test_b", said)
        alone.append(step.words[0])
        return Ended(CAUGHT if len(alone) == 1 else UNNOTICED, words=said)

    monkeypatch.setattr(layers, "run", run)
    pace = Pace()
    pace.start_s = 3.0
    pace.time_tests(["tests/a.py::test_b", "tests/a.py::test_c"])
    pace.limits(Step(("tests/a.py::test_c",)))
    assert alone == []
    pace.limits(Step(("tests/a.py::test_b",)))
    assert alone == ["tests/a.py::test_b"] * 2


def test_a_question_is_answered_once_whoever_asks_again() -> None:
    asked: list[int] = []

    def answer(key: int) -> int:
        asked.append(key)
        if key < 0:
            raise ValueError("less than nothing")
        return 2 * key

    once = layers.Once(answer)
    assert [once(1), once(1), once(2)] == [2, 2, 4]
    for _ in range(2):
        with pytest.raises(ValueError, match="less than nothing"):
            once(-1)
    once.put(3, 7)
    assert once(3) == 7
    assert asked == [1, 2, -1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", UNNOTICED),
        ("raise ValueError", CAUGHT),
        ("os.abort()", CAUGHT),
        ("os.kill(os.getpid(), signal.SIGKILL)", CAUGHT),
        ("signal.pause()", TIMED_OUT),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); signal.pause()", TIMED_OUT),
    ],
)
def test_what_only_runs_out_of_time_is_not_caught(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_step.py"
    file.write_text(f"import os\nimport signal\n\n\ndef test_it():\n    {body}\n")
    monkeypatch.setattr(layers, "with_defect", lambda defect: tmp_path)
    words = (str(file), "-c", "/dev/null", "--noconftest")
    # What heeds no signal is ended with its process.
    limits = Limits(1.0, 60.0) if "SIG_BLOCK" in body else Limits(60.0, 1.0)
    assert layers.run(Step(words), None, limits).said == said


def test_a_step_that_names_a_test_that_there_is_not_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "with_defect", lambda defect: tmp_path)
    with pytest.raises(layers.GoneError):
        layers.run(Step(("tests/spec/test_mutation.py::test_nothing",)), None, Limits(60.0, 60.0))
    with pytest.raises(layers.GoneError):
        layers.run(Step(("tests/spec/test_nothing.py::test_it",)), None, Limits(60.0, 60.0))


@pytest.mark.parametrize(
    ("said", "by"),
    [
        (
            "FAILED tests/a/test_b.py::test_c[x - y] - AssertionError: no\n",
            "tests/a/test_b.py::test_c[x - y]",
        ),
        ("FAILED tests/a/test_b.py::test_c\n", "tests/a/test_b.py::test_c"),
        ("ERROR tests/a/test_b.py::test_c[1] - OSError\n", "tests/a/test_b.py::test_c[1]"),
    ],
)
def test_the_test_that_failed_is_named_with_its_parameters(said: str, by: str) -> None:
    found = layers.FAILED.search(said)
    assert found is not None and found[1] == by


def test_the_end_of_a_test_that_nothing_interrupts_is_no_catch() -> None:
    assert layers.LATE.search("Timeout (0:01:40)!\nThread 0x00007f (most recent call first):\n")
    assert layers.LATE.search("E   Failed: Timeout (>1.0s) from pytest-timeout.\n")
    assert not layers.LATE.search("FAILED tests/a.py::test_b - TimeoutError\n")
