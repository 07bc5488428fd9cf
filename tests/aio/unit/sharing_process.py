"""A process with one task of a job whose tasks share calls. A program for the tests.

Arguments: location, file of calls, number of the task, call at which it kills itself (0 for none). Writes
`task row` to the file of calls for each call, and the number of right results to stdout at its end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from pillarbox import Dedupe, Options, async_map
from pillarbox.ledger import Ledger

TASKS, ROWS, DISTINCT = 8, 250, 1400


def rows_of(task: int) -> list[str]:
    """The rows of a task: three of ten are in another place of the job too."""
    choose = random.Random(11)
    rows = [f"text {number}" for number in range(DISTINCT)]
    rows += [choose.choice(rows[:DISTINCT]) for _ in range(TASKS * ROWS - DISTINCT)]
    choose.shuffle(rows)
    return rows[task::TASKS]


def main(location: str, calls: str, task: int, last: int) -> None:
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
    print(sum(result == row.upper() for row, result in zip(rows, results, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
