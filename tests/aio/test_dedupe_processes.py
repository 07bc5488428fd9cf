"""Processes that share calls: as many calls as distinct rows, but for those that a kill has lost."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.aio.sharing_process import DISTINCT, LAST, ROWS, TASKS, rows_of


@pytest.mark.contract
@pytest.mark.parametrize("killed", [pytest.param((), marks=pytest.mark.slow), (2, 5)])
def test_eight_processes_call_distinct_rows_once_but_for_the_calls_of_the_killed(
    tmp_path: Path, killed: tuple[int, ...]
) -> None:
    words = [str(tmp_path / "ledger"), str(tmp_path / "calls"), *map(str, killed)]
    program = [sys.executable, "-m", "tests.aio.sharing_process", *words]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == [str(ROWS)] * TASKS
    callers = defaultdict[str, list[int]](list)
    for line in (tmp_path / "calls").read_text().splitlines():
        caller, _, row = line.partition(" ")
        callers[row].append(int(caller))
    assert set(callers) == {row for task in range(TASKS) for row in rows_of(task)}
    assert len(callers) == DISTINCT
    again = {row: tasks for row, tasks in callers.items() if len(tasks) > 1}
    # Each but the last was one of those that a killed process had begun: `LAST`, and 16 in flight at most.
    assert all({*tasks[:-1]} <= {*killed} and len(tasks) <= 1 + len(killed) for tasks in again.values()), (
        again
    )
    assert len(killed) <= sum(map(len, again.values())) - len(again) <= (LAST + 16) * len(killed)
