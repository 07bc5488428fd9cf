"""The table of `bench.kernel`: who is measured in turn is compared with ours, and who is missing is told."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.chunks import Child, Effort, counted
from bench.kernel import __main__ as command
from bench.kernel.peers import Program
from bench.kernel.rows import Contender, Scenario, scenarios
from bench.native_program import native_program

BRIEF = Effort(rounds=3, seconds=1.0, warm_up=0.0)
PYTHON = ("env", f"PYTHONPATH={Path(__file__).resolve().parents[2]}", sys.executable, "-m")
MISSING = Program(missing="there is no such thing here")


def says(*lines: str) -> tuple[str, ...]:
    """A child that gives these answers, whatever it is asked."""
    script = f"for line in {list(lines)!r}: print(line, flush=True)\nimport sys; sys.stdin.read()"
    return (sys.executable, "-c", script)


def told(target: float | None) -> dict[str, Any]:
    contenders = (
        Contender("ours", says("ready", *["200"] * 3)),
        Contender("theirs", says("ready", "400", "500", "600")),
        Contender("fails", says("no")),
        Contender("absent", (), "no registry has it"),
    )
    return command.result_of(Scenario("row", contenders, 100, "theirs", target), BRIEF, count=False)


@pytest.mark.parametrize(("target", "met"), [(2.5, True), (2.6, False), (None, None)])
def test_a_ratio_says_how_many_times_as_fast_ours_is_and_a_target_is_met_or_missed(
    target: float | None, met: bool | None
) -> None:
    result = told(target)
    assert [each.get("ratio") for each in result["contenders"]] == [None, 2.5, None, None]
    assert result["met"] is met


def test_who_fails_or_cannot_be_had_stands_in_the_table_with_the_reason() -> None:
    cells = command.table_of([told(None)])
    assert [row[1] for row in cells] == ["ours", "theirs", "fails", "absent"]
    assert "did not say that it is ready" in cells[2][-1] or "no" in cells[2][-1]
    assert cells[3][-1] == "cannot be had: no registry has it"


def test_the_table_and_the_plot_are_made_of_the_figures_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the plots need matplotlib")
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({"scenarios": [told(2.5)]}))
    assert command.main(["--reuse", "--json", str(path)]) == 0
    assert "2.5, met" in capsys.readouterr().out
    assert path.with_suffix(".svg").stat().st_size > 1000


def found() -> dict[str, Program]:
    known = dict.fromkeys(
        ("native", "moodycamel", "java", "rust", "python", "python queues", "free python", "pyflink"), MISSING
    )
    return known | {
        "native": Program((str(native_program()),)),
        "python": Program(PYTHON),
        "free python": Program(PYTHON),
    }


def test_every_scenario_has_a_name_of_its_own_and_a_peer_for_its_target() -> None:
    all_of_them = list(scenarios(found()))
    names = [scenario.name for scenario in all_of_them]
    assert len(set(names)) == len(names)
    for scenario in all_of_them:
        assert scenario.contenders[0].name.startswith("Pillarbox")
        assert scenario.target is None or scenario.beside in [each.name for each in scenario.contenders]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["native", "Python"])
def test_every_contender_that_is_here_does_its_work(part: str) -> None:
    for scenario in scenarios(found()):
        for contender in scenario.contenders:
            if scenario.name.startswith(part) and not contender.missing:
                with Child(contender.command) as child:
                    assert child.chunk(scenario.operations) is not None


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")
def test_instructions_are_those_of_one_operation() -> None:
    instructions, misses = counted([str(native_program()), "single", "lock-free", "0"], 1_000)
    assert 20 < instructions < 1_000
    # A difference of two runs, which do not miss the same lines at their start.
    assert -0.1 < misses < 10
