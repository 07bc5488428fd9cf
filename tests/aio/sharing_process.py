"""Processes, each with one task of a job whose tasks share calls. A program for the tests.

Arguments: location, file of calls, and the numbers of the tasks that kill themselves at their call `LAST` and
are then begun again. Each writes `task row` to the file of calls for each call, and the number of right
results to stdout at its end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from pillarbox import Dedupe, Options, async_map
from pillarbox.ledger import Ledger

TASKS, ROWS, DISTINCT = 8, 125, 700
LAST = 50
"""Calls that each task makes however late it is: it has 51 rows or more that no other one has."""


def rows_of(task: int) -> list[str]:
    """The rows of a task: three of ten are in another place of the job too."""
    choose = random.Random(11)
    rows = [f"text {number}" for number in range(DISTINCT)]
    rows += [choose.choice(rows[:DISTINCT]) for _ in range(TASKS * ROWS - DISTINCT)]
    choose.shuffle(rows)
    return rows[task::TASKS]


def run(location: str, calls: str, task: int, last: int) -> None:
    file = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    made = 0

    async def call(row: str) -> str:
        nonlocal made
        made += 1
        number = made
        os.write(file, f"{task} {row}\n".encode())
        await asyncio.sleep(0.002)
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return row.upper()

    ledger = Ledger(location, uid="uid", run="run")
    options = Options(ledger=ledger, dedupe=Dedupe(across_tasks=True), capacity=16)
    rows = rows_of(task)
    results = list(async_map(rows, call, options=options))
    right = sum(result == row.upper() for row, result in zip(rows, results, strict=True))
    # In one step: the processes share the pipe.
    os.write(1, f"{right}\n".encode())


def fork(location: str, calls: str, task: int, last: int) -> int:
    """A task in a process of its own, which needs not import anything again; gives its number."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        run(location, calls, task, last)
        status = 0
    finally:
        os._exit(status)


def main(location: str, calls: str, *killed: str) -> None:
    tasks = {task: fork(location, calls, task, LAST if str(task) in killed else 0) for task in range(TASKS)}
    for task in map(int, killed):
        ended = os.waitstatus_to_exitcode(os.waitpid(tasks[task], 0)[1])
        assert ended == -signal.SIGKILL, f"task {task} was not killed, but ended with {ended}"
        tasks[task] = fork(location, calls, task, 0)
    for process in tasks.values():
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
