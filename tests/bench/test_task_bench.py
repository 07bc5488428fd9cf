"""The task beside the state before: both states do each work in turn, and the table tells it right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("psutil", reason="psutil is not installed")

from bench.chunks import ROOT, Child, ChildFailed
from bench.task import __main__ as command
from bench.task import states
from bench.task.__main__ import Effort, Line, Target, cells_of, last_hundredth, line_of
from bench.task.states import State, StateFailed, here, linked


def silent(text: str) -> None:
    """Say nothing."""


def package_of(state: State) -> Path:
    script = "import pillarbox, pillarbox.kernel.mailbox; print(pillarbox.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": state.path, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


@pytest.mark.slow
def test_the_command_measures_this_state_beside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first work of each part.
    firsts = {work.part: work for work in reversed(command.CHUNKED)}
    monkeypatch.setattr(command, "CHUNKED", list(firsts.values()))
    words = ["--beside", str(ROOT), "--rounds", "1", "--size", "0.002", "--no-instructions"]
    parts = ["loop", "partition", "throughput", "chain", "checkpoint"]
    assert command.main([*words, "--out", str(tmp_path), "--only", *parts]) == 0
    lines = json.loads((tmp_path / "task.json").read_text())["lines"]
    assert len(lines) == 3 + 4 + 4
    for line in lines:
        if "a chain" not in line["name"] or not line["note"]:
            assert line["before"] > 0 and line["now"] > 0 and line["ratio"] > 0, line
    table = capsys.readouterr().out
    assert all(line["name"] in table for line in lines)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_command_measures_the_worker_of_spark_beside_itself(tmp_path: Path) -> None:
    words = ["--beside", str(ROOT), "--rounds", "1", "--size", "0.002", "--out", str(tmp_path)]
    assert command.main([*words, "--only", "spark-worker"]) == 0
    lines = json.loads((tmp_path / "task.json").read_text())["lines"]
    assert lines
    # What a tiny job costs above another one may be less than nothing.
    for line in lines:
        if "a chain" not in line["name"] or not line["note"]:
            assert None not in (line["before"], line["now"]), line


def test_a_state_is_the_package_of_its_checkout() -> None:
    package = package_of(here())
    assert package.resolve() == ROOT / "pyruntime" / "__init__.py"
    assert package.is_relative_to(states.FOLDER)


def test_a_commit_is_unpacked_and_built_once(tmp_path: Path) -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("no repository here")
    built: list[str] = []

    def build(commit: str, checkout: Path) -> None:
        built.append(commit)
        for each in (ROOT / "kernel").glob("*.so"):
            (checkout / "kernel" / each.name).symlink_to(each)

    state = states.beside("HEAD", silent, tmp_path, build)
    assert states.beside("HEAD", silent, tmp_path, build) == state
    assert len(built) == 1
    assert package_of(state).resolve() == tmp_path / built[0][:12] / "checkout" / "pyruntime" / "__init__.py"


def test_what_is_no_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(StateFailed, match="no-such-commit"):
        states.beside("no-such-commit", silent)
    with pytest.raises(StateFailed, match="run `make build` there"):
        linked(tmp_path)


def test_links_to_what_a_checkout_has_no_more_go(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    checkout = tmp_path / "checkout"
    for name in ("kernel/mailbox.so", "pyruntime/old.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    (checkout / "kernel/mailbox.so").rename(checkout / "kernel/mailbox.abi.so")
    assert {link.name for link in (linked(checkout, beside) / "pillarbox").iterdir()} == {"kernel", "old.py"}
    (checkout / "pyruntime/old.py").rename(checkout / "pyruntime/new.py")
    assert {link.name for link in (linked(checkout, beside) / "pillarbox").iterdir()} == {"kernel", "new.py"}


def test_a_ratio_is_that_of_medians_and_its_spread_is_of_chunks_side_by_side() -> None:
    line = line_of("work", "us", [[2.0, 4.0, 8.0], [1.0, 4.0, 16.0]])
    assert (line.before, line.now, line.ratio) == (4.0, 4.0, 1.0)
    assert line.spread == pytest.approx((0.6, 1.8))


def test_a_state_that_cannot_do_a_work_has_no_figure() -> None:
    line = line_of("work", "us", [[], [2.0]], target=Target(1.05), note="before: not there yet")
    assert (line.before, line.now, line.ratio) == (None, 2.0, None)
    assert cells_of(line)[-1] == "at most 1.05 x, not measured; before: not there yet"


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target(1.05), True),
        (Target(1.03), False),
        (Target(0.98, at_least=True), True),
        (Target(1.05, at_least=True), False),
        (Target(60, of_ratio=False), True),
        (Target(51, of_ratio=False), False),
    ],
)
def test_a_target_is_of_the_ratio_or_of_the_figure_now(target: Target, met: bool) -> None:
    assert target.is_met(Line("line", "MB", 50.0, 52.0, 1.04)) is met


def test_a_missed_target_is_told_and_ends_the_command_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(*_: Any) -> list[Line]:
        return [line_of("work", "us", [[1.0, 1.0], [1.2, 1.2]], target=Target(1.05))]

    monkeypatch.setattr(command, "measure", lines)
    words = ["--beside", str(ROOT), "--out", str(tmp_path), "--only", "loop"]
    assert command.main(words) == 0
    assert command.main([*words, "--check"]) == 1
    assert "at most 1.05 x, MISSED" in capsys.readouterr().out


class Fakes:
    """Sessions whose jobs take what is said, by state and contender; what is not said fails."""

    def __init__(self, *told: dict[str, float]) -> None:
        self.told = told

    def peers(self, which: int) -> int:
        return which

    def rounds(self, jobs: dict[str, Any], rounds: int, *_: Any) -> Any:
        values = {
            name: [[told[name]] * rounds if name in told else [] for told in self.told] for name in jobs
        }
        failed = {
            name: ["" if name in told else "not there yet, no list" for told in self.told] for name in jobs
        }
        return values, failed


def test_memory_is_told_above_that_of_the_identity_job_of_the_same_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def memory(which: int, rows: int, limit: float, say: Any, names: list[str]) -> Any:
        samples = {name: [(0.0, 100.0 + 10 * at + which)] for at, name in enumerate(names)}
        return samples, {}

    monkeypatch.setattr(command.costs, "memory", memory)
    identity, *above = command.memory_lines(Fakes(), Effort(), silent)  # type: ignore[arg-type]
    assert (identity.before, identity.now) == (100.0, 101.0)
    assert [(line.before, line.now) for line in above] == [(10.0, 10.0), (20.0, 20.0)]
    assert all(line.target is not None and line.target.is_met(line) for line in above)


def test_cpu_is_told_above_that_of_the_identity_job_of_the_same_state() -> None:
    costs = dict.fromkeys(command.costs.OWN, 3.0) | {"identity": 0.5}
    dearer = dict.fromkeys(command.costs.OWN, 4.0) | {"identity": 1.0}
    identity, first, *_ = command.worker_lines(Fakes(costs, dearer), Effort(), silent)  # type: ignore[arg-type]
    assert (identity.before, identity.now) == (0.5, 1.0)
    assert (first.before, first.now, first.ratio) == (2.5, 3.0, 1.2)


def test_a_chain_is_compared_with_two_operators_of_the_same_state() -> None:
    sessions: Any = Fakes({"in turn": 100.0}, {"in turn": 110.0, "chain": 220.0})
    turn, chain, *_ = command.spark_chain_lines(sessions, Effort(), silent)
    assert (turn.before, turn.now, turn.ratio) == (100.0, 110.0, pytest.approx(1.1))
    assert (chain.before, chain.now, chain.ratio) == (None, 220.0, 2.0)
    assert chain.note == "before: not there yet, no list"
    assert chain.target is not None and chain.target.is_met(chain)


def test_99_percent_do_not_exceed_the_last_hundredth() -> None:
    assert last_hundredth([float(value) for value in range(101)]) == 99.0
    assert last_hundredth([3.0]) == 3.0


def test_a_work_says_how_long_it_took_and_an_unknown_one_is_refused() -> None:
    with Child((sys.executable, "-m", "bench.task.works", "checkpoint", "3")) as child:
        assert child.chunk(2) > 0
    with pytest.raises(ChildFailed), Child((sys.executable, "-m", "bench.task.works", "nothing")):
        pass
