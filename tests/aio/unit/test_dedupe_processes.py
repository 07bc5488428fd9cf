"""Processes that share calls: as many calls as distinct rows, but for those that a kill has lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.aio.unit.sharing_process import DISTINCT, ROWS, TASKS, rows_of


def start(folder: Path, task: int, last: int = 0) -> subprocess.Popen[str]:
    arguments = [str(folder / "ledger"), str(folder / "calls"), str(task), str(last)]
    program = [sys.executable, "-m", "tests.aio.unit.sharing_process", *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


@pytest.mark.contract
@pytest.mark.parametrize("killed", [(), (2, 5)])
def test_eight_processes_call_distinct_rows_once_but_for_the_calls_of_the_killed(
    tmp_path: Path, killed: tuple[int, ...]
) -> None:
    tasks = [start(tmp_path, task, 60 if task in killed else 0) for task in range(TASKS)]
    for task in killed:
        assert tasks[task].wait(120) == -signal.SIGKILL
        tasks[task].communicate()
        tasks[task] = start(tmp_path, task)
    assert [task.communicate(timeout=120)[0] for task in tasks] == [f"{ROWS}\n"] * TASKS
    callers = defaultdict[str, list[int]](list)
    for line in (tmp_path / "calls").read_text().splitlines():
        caller, _, row = line.partition(" ")
        callers[row].append(int(caller))
    assert set(callers) == {row for task in range(TASKS) for row in rows_of(task)}
    assert len(callers) == DISTINCT
    again = {row: tasks for row, tasks in callers.items() if len(tasks) > 1}
    # Each but the last was one of those that a killed process had begun: 60, and 16 in flight at most.
    assert all({*tasks[:-1]} <= {*killed} and len(tasks) <= 1 + len(killed) for tasks in again.values()), (
        again
    )
    assert len(killed) <= sum(map(len, again.values())) - len(again) <= 76 * len(killed)
