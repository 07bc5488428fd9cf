"""The side of a peer: reads jobs, one JSON object a line, does them and answers; `measure` asks.

For the main thread of the peer's process. Plain Python without packages. The first answer to a job, `done`,
comes when the job is over, so that the asking side can read clocks before the answers are checked; the second
one says what was found. What the peer itself prints goes to the log.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from bench import service
from bench.peers.jobs import Job, read_marks

Answers = tuple[Iterable[int] | None, Iterable[int]]
"""Rows and their answers, as they left; rows are None where only the answers leave."""

Collect = Callable[[], Answers | None]
"""Brings the answers of a job that is over, or None if they were thrown away."""


def serve(run: Callable[[Job], Collect], version: str) -> None:
    """Do jobs with `run` until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": version}), file=answers)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        try:
            began, used = time.monotonic(), time.process_time()
            collect = run(job)
            took, used = time.monotonic() - began, time.process_time() - used
            print(json.dumps({"done": True}), file=answers)
            found = {
                "job_seconds": took,
                "driver_cpu": used,
                **read_marks(job.marks),
                **check(job, collect()),
            }
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}".strip().splitlines()
            found = {"error": " ".join(text)[:500]}
        print(json.dumps(found), file=answers)


def check(job: Job, found: Answers | None) -> dict[str, Any]:
    """Count answers that are missing, wrong or there twice, and compare their order with the rows'."""
    if found is None:
        return {}
    rows, answers = found
    answers = list(answers)
    # An answer says which row it is for, so the row beside it must be that one.
    meant = [(answer - 1) // 2 for answer in answers]
    right = [service.answer(row) == answer for row, answer in zip(meant, answers, strict=True)]
    beside = meant if rows is None else list(rows)
    wrong = sum(not (ok and row == other) for ok, row, other in zip(right, beside, meant, strict=True))
    seen = set(beside)
    return {
        "answers": len(answers),
        "wrong": wrong,
        "missing": len(set(range(job.rows)) - seen),
        "twice": len(beside) - len(seen),
        "in_order": beside == list(range(job.rows)),
    }
