"""The judge's checks on the operator without Spark: processes that make calls and nothing else, in seconds.

`judge_alone` starts the service and one process or two, without any fault, and judges what it sees with the
checks that `make chaos` has. So a test can show in seconds that a defect is found, or that nothing is wrong.
`python -m fuzz.chaos.alone JOB` is such a process; JOB is a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.chaos import check
from fuzz.chaos.committed import departures
from fuzz.chaos.durable import DurableLog
from fuzz.chaos.job import Caller
from fuzz.chaos.places import SYNCED, environment
from fuzz.chaos.server import Server
from pillarbox import Options, Timeout, async_map
from pillarbox.ledger import Ledger

ROWS = 200
LATENCY = 0.02
CAPACITY = 16
LOSS_WINDOW = 0.4
ATTEMPT_TIMEOUT_S = 30.0
"""Seconds that a job waits for an answer: nothing is late here, whatever else the machine does."""
LIMIT = 120.0


@dataclass(frozen=True)
class Alone:
    """The job of a process. first: the id of the first row, before those from 0 on."""

    rows: int
    first: int
    ledger: str
    departed: str
    url: str


class Row(NamedTuple):
    """A row of the input."""

    id: int


class _Named(Caller):
    """Adds to each result the id of its row."""

    async def __call__(self, row: Any) -> dict[str, int]:
        return {"id": row.id, **await super().__call__(row)}


def run(job: Alone) -> None:
    """Make the calls of a job; write down each row as it leaves."""
    options = Options(
        ordered=False,
        capacity=CAPACITY,
        timeout=Timeout(attempt=ATTEMPT_TIMEOUT_S),
        ledger=Ledger(job.ledger, loss_window=LOSS_WINDOW, uid="alone", run="alone", key=["id"]),
    )
    rows = [Row(job.first), *(Row(number) for number in range(job.rows))]
    log = os.open(job.departed, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    for result in async_map(rows, _Named(job.url), options=options):
        line = {"at": time.monotonic(), "rows": [[result["id"], result["call"]]]}
        os.write(log, json.dumps(line).encode() + b"\n")
    os.close(log)


def judge_alone(folder: Path, package: Path | None, *first: int, rows: int = ROWS) -> check.Verdict:
    """Run a process for each of `first`, at a time, and judge what was seen.

    Those with the same first row are attempts of one task, others are tasks whose rows have equal keys.
    Raises RuntimeError if one fails.
    """
    ledger, departed = folder / "ledger", folder / "departed.log"
    surroundings = environment(folder, package)
    log = DurableLog(folder / SYNCED, ledger)
    with Server(folder, 1, latency=LATENCY, badness=0.0) as server:
        job = Alone(rows, 0, str(ledger), str(departed), server.url)
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "fuzz.chaos.alone", json.dumps(asdict(replace(job, first=each)))],
                env=surroundings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for each in first
        ]
        # All begin when the last of them can.
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in running:
            _, said = process.communicate(timeout=LIMIT)
            if process.returncode:
                raise RuntimeError(said)
        server.log.read()
        calls = server.log.calls
    log.read()
    verdict = check.Verdict()
    check.check_calls(
        verdict, calls.values(), [], LOSS_WINDOW, ATTEMPT_TIMEOUT_S, equal_keys=len(set(first)) > 1
    )
    check.check_given_up(verdict, calls.values(), [], LOSS_WINDOW, ATTEMPT_TIMEOUT_S)
    check.check_departures(
        verdict, departures(departed), log.durable(), written=log.written(), copied=log.copied()
    )
    return verdict


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    run(Alone(**json.loads(sys.argv[1])))
