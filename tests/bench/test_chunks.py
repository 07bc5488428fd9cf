"""The benchmark's children: they do their work and say what it took, and what they say is read."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench import kernel_rows
from bench.chunks import Child, ChildFailed, Compared, Effort, Row, as_json, compared, figure, in_turn
from bench.native_program import native_program
from bench.serve import shuffled

BRIEF = Effort(rounds=3, seconds=1.0, warm_up=0.0)
MAIL_WORKS = ["single", "batch", "producers 1", "producers 2", "past 10", "among 10"]
QUEUE_WORKS = ["steady {} 10", "rounds {} 0", "rounds {} 10"]


def says(*lines: str) -> list[str]:
    """A child that gives these answers, whatever it is asked."""
    script = f"for line in {list(lines)!r}: print(line, flush=True)\nimport sys; sys.stdin.read()"
    return [sys.executable, "-c", script]


def native(words: str) -> list[str]:
    return [str(native_program()), *words.split()]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["lock-free", "mutex"])
@pytest.mark.parametrize("work", MAIL_WORKS)
def test_a_native_workload_with_mails_says_how_long_it_took(work: str, backend: str) -> None:
    name, *number = work.split()
    with Child(native(" ".join([name, backend, *number]))) as child:
        assert all(child.chunk(1_000) > 0 for _ in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ordered", "unordered"])
@pytest.mark.parametrize("work", QUEUE_WORKS)
def test_a_native_workload_with_a_queue_says_how_long_it_took(work: str, order: str) -> None:
    with Child(native(work.format(order))) as child:
        assert all(child.chunk(1_000) > 0 for _ in range(3))


@pytest.mark.parametrize(
    "work", ["among lock-free 10", "past mutex 10", *(work.format("unordered") for work in QUEUE_WORKS)]
)
def test_a_python_workload_says_how_long_it_took(work: str) -> None:
    with Child([*kernel_rows.PYTHON, *work.split()]) as child:
        assert child.chunk(1_000) > 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("command", ["native", "python"])
def test_bytes_of_waiting_mails_are_at_least_what_a_link_and_a_function_take(command: str) -> None:
    words = native("bytes lock-free") if command == "native" else [*kernel_rows.PYTHON, "bytes", "lock-free"]
    with Child(words) as child:
        assert 16 <= child.chunk(100_000) < 1_000


def test_an_unknown_workload_is_refused_with_the_list_of_all() -> None:
    with (
        pytest.raises(ChildFailed, match=r"did not say that it is ready\nchunks single"),
        Child(native("none")),
    ):
        pass


def test_an_answer_that_is_no_number_names_the_program() -> None:
    with Child(says("ready", "twelve")) as child, pytest.raises(ChildFailed, match="answered 'twelve'"):
        child.chunk(1)


def test_a_figure_tells_median_quartiles_and_best_of_one_operation() -> None:
    (told,) = in_turn([says("ready", "300", "100", "200")], 100, BRIEF)
    assert (told.median, told.lower, told.upper, told.best, told.chunks) == (2.0, 1.5, 2.5, 1.0, 3)


def test_a_ratio_says_how_many_times_as_fast_ours_is_and_a_target_is_met_or_missed() -> None:
    ours, theirs = says("ready", *["200"] * 3), says("ready", *["500"] * 3)
    rows = [Row("row", ours, theirs, 100, target) for target in (2.5, 2.6, None)]
    results = compared(rows, BRIEF)
    assert [result.met for result in results] == [True, False, None]
    assert [row["ratio"] for row in as_json(results)] == [2.5] * 3


def test_a_row_without_a_target_is_neither_met_nor_missed() -> None:
    each = figure([1.0, 1.0])
    assert Compared("row", each, each, None).met is None


def test_the_random_order_has_every_number_once_and_is_always_the_same() -> None:
    order = shuffled(1_000)
    assert sorted(order) == list(range(1_000))
    assert order != sorted(order)
    assert order == shuffled(1_000)


@pytest.mark.slow
def test_the_rows_of_the_kernel_are_written_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)  # without counting instructions
    path = tmp_path / "rows.json"
    assert kernel_rows.main(["--json", str(path), "--rounds=3", "--seconds=0.1", "--most=10"]) == 0
    rows = json.loads(path.read_text())
    assert len(rows["backends"]) == 4
    assert all(row["growth"] == 1.0 and row["met"] for row in rows["growth"])
    assert {row["name"] for row in rows["bytes"]} == set(kernel_rows.BYTES)
    assert "instructions" not in rows


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")
def test_instructions_are_those_of_one_operation() -> None:
    counted = kernel_rows.instructions(native("single lock-free"), 1_000)
    assert 20 < counted < 1_000
