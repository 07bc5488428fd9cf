"""The benchmark's children: they do their work and say what it took, and what they say is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.chunks import Child, ChildFailed, figure
from bench.native_program import native_program
from bench.serve import shuffled

PYTHON = (sys.executable, "-m", "bench.python_chunks")
MAIL_WORKS = [
    "single",
    "batch",
    "producers 1",
    "producers 2",
    "chains 64",
    "thereandback 50",
    "past 10",
    "among 10",
]
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
@pytest.mark.parametrize("order", ["ordered", "ordered-owner", "unordered", "unordered-owner"])
@pytest.mark.parametrize("work", QUEUE_WORKS)
def test_a_native_workload_with_a_queue_says_how_long_it_took(work: str, order: str) -> None:
    with Child(native(work.format(order))) as child:
        assert all(child.chunk(1_000) > 0 for _ in range(3))


@pytest.mark.parametrize(
    "work", ["among lock-free 10", "past lock-free 10", *(work.format("unordered") for work in QUEUE_WORKS)]
)
def test_a_python_workload_says_how_long_it_took(work: str) -> None:
    with Child([*PYTHON, *work.split()]) as child:
        assert child.chunk(1_000) > 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("command", ["native", "python"])
def test_bytes_of_waiting_mails_are_at_least_what_a_link_and_a_function_take(command: str) -> None:
    words = native("bytes lock-free") if command == "native" else [*PYTHON, "bytes", "lock-free"]
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


def test_a_figure_tells_the_median_the_tenths_and_the_best_of_one_operation() -> None:
    told = figure([float(value) for value in range(1, 12)])
    assert (told.median, told.lower, told.upper, told.best, told.chunks) == (6.0, 2.0, 10.0, 1.0, 11)
    assert told.spread == 5.0


def test_the_random_order_has_every_number_once_and_is_always_the_same() -> None:
    order = shuffled(1_000)
    assert sorted(order) == list(range(1_000))
    assert order != sorted(order)
    assert order == shuffled(1_000)
