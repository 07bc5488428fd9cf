"""The calls of a stream between micro-batches: who gets their results, when they are made again.

Real processes, without Spark.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pillarbox.spark.stream import share
from pillarbox.spark.stream.end import TICKS, is_drained

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A worker process that is told what to do."""

    def __init__(self, gate: Path, *words: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_process", str(gate), *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def ask(self, line: str) -> list[str]:
        self.tell(line)
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().split()[1:]

    def close(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "open"


@pytest.fixture
def process(gate: Path) -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def start(*words: str) -> Process:
            made = Process(gate, *words)
            stack.callback(made.close)
            return made

        yield start


@pytest.mark.contract
def test_the_replay_of_a_micro_batch_has_the_results_that_the_failed_one_emitted(
    process: Callable[[], Process], gate: Path
) -> None:
    here = process()
    owner, numbers = here.ask("call -1,-2")
    # A micro-batch has committed both as pending; the next one emits both, and fails.
    here.tell(f"open {owner} -1,-2 {numbers}")
    gate.touch()
    assert here.ask("wait 60") == ["-2", "-4"]
    here.tell("leave")
    here.tell(f"open {owner} -1,-2 {numbers}")
    assert here.ask("wait 60") == ["-2", "-4"]
    assert sorted(here.ask("calls")) == ["-1", "-2"]


def test_a_failure_between_two_micro_batches_fails_the_next_one_and_is_then_forgotten(
    process: Callable[[], Process],
) -> None:
    here = process()
    here.ask("call 666")
    while not (raised := here.ask("task")):
        pass
    assert raised == ["CallFailed"]
    assert here.ask("task") == []


@pytest.mark.contract
def test_a_call_is_adopted_by_its_ticket_and_no_other(process: Callable[[], Process], gate: Path) -> None:
    here = process()
    owner, numbers = here.ask("call -1,-2,5")
    first, second, _ = numbers.split(",")
    assert here.ask("wait 0.1") == []
    # The state names them in another order, and one that is not there; the third row has left.
    here.tell(f"open {owner} -2,-1,-3 {second},{first},999")
    assert here.ask("wait 0.1") == []
    gate.touch()
    assert here.ask("wait 60") == ["-4", "-2", "-6"]
    assert sorted(here.ask("calls")) == ["-1", "-2", "-3"]


def taken_apart(here: Process) -> tuple[str, list[str]]:
    """Calls four rows in one batch that fails; its first half runs, its second half waits."""
    owner, numbers = here.ask("call -1,2,3,668")
    while len(here.ask("calls")) < 6:
        pass
    assert here.ask("calls") == ["-1", "2", "3", "668", "-1", "2"]
    return owner, numbers.split(",")


def test_rows_are_adopted_while_their_batch_is_taken_apart(
    process: Callable[..., Process], gate: Path
) -> None:
    here = process("4")
    owner, (first, second, third, last) = taken_apart(here)
    here.tell(f"open {owner} 668,3,2,-1 {last},{third},{second},{first}")
    assert here.ask("wait 0.1") == []
    gate.touch()
    assert here.ask("wait 60") == ["1336", "6", "4", "-2"]
    assert here.ask("calls")[6:] == ["3", "668", "3", "668"]


@pytest.mark.contract(
    "A row of a stream that nobody waits for is not called again, also when its batch is being taken apart."
)
def test_a_row_that_nobody_waits_for_leaves_the_batch_that_is_taken_apart(
    process: Callable[..., Process], gate: Path
) -> None:
    here = process("4")
    owner, (first, second, third, _) = taken_apart(here)
    here.tell(f"open {owner} -1,2,3 {first},{second},{third}")
    assert here.ask("wait 0.1") == []
    gate.touch()
    assert here.ask("wait 60") == ["-2", "4", "6"]
    assert here.ask("calls")[6:] == ["3"]


def test_a_call_that_another_process_makes_is_not_made_again(
    process: Callable[[], Process], gate: Path
) -> None:
    one, other = process(), process()
    owner, numbers = one.ask("call -1,-2")
    assert one.ask("wait 0.1") == []
    other.tell(f"open {owner} -1,-2 {numbers}")
    assert other.ask("wait 0.5") == []
    gate.touch()
    assert other.ask("wait 60") == ["-2", "-4"]
    assert other.ask("calls") == []
    assert sorted(one.ask("calls")) == ["-1", "-2"]


@pytest.mark.contract
def test_a_call_whose_process_is_killed_is_made_again_at_once(
    process: Callable[[], Process], gate: Path
) -> None:
    one, other = process(), process()
    owner, numbers = one.ask("call -1")
    other.tell(f"open {owner} -1 {numbers}")
    assert other.ask("wait 0.5") == []
    assert other.ask("calls") == []
    one.close()
    gate.touch()
    assert other.ask("wait 60") == ["-2"]
    assert other.ask("calls") == ["-1"]


def test_a_call_of_a_process_that_nobody_knows_is_made_again(process: Callable[[], Process]) -> None:
    here = process()
    here.tell(f"open {'ab' * 16} 3 1")
    assert here.ask("wait 60") == ["6"]


def test_sockets_are_in_a_folder_that_only_its_user_may_enter(tmp_path: Path) -> None:
    place = share.folder(str(tmp_path))
    assert place is not None
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    os.chmod(place, 0o750)
    assert share.folder(str(tmp_path)) is None


def progress(
    rows: int, start: str, end: str, name: str = "transformWithStateInPandasExec"
) -> dict[str, object]:
    return {
        "sources": [
            {"description": "FileStreamSource", "startOffset": start, "endOffset": end},
            {
                "description": f"RatePerMicroBatchStream[startTimestamp={TICKS}, x=1]",
                "startOffset": "1",
                "endOffset": "2",
            },
        ],
        "stateOperators": [{"operatorName": name, "numRowsTotal": rows}],
    }


def test_a_stream_is_drained_when_no_source_but_the_clock_has_moved_and_no_state_is_left() -> None:
    assert is_drained(progress(0, "3", "3"))
    assert not is_drained(progress(1, "3", "3"))
    assert not is_drained(progress(0, "3", "4"))
    assert not is_drained(progress(0, "3", "3", "stateStoreSave"))
