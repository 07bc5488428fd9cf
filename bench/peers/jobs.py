"""The jobs that every peer does: rows 0 to n-1 through a simulated service, once each.

Plain Python without packages, since it is imported in the environment of each peer. A job's function notes
when its first call began and when its last one ended, and how many calls were in flight at the most; that is
read by the process that measures. Functions are made anew for each job and may be pickled by value.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import service

Call = Callable[[int], Awaitable[int]]
Stage = Callable[[Any], Awaitable[dict[str, int]]]

WORKLOADS = ("service", "tail", "instant", "turn", "http", "identity")
"""The kinds of calls.

`service`: the log-normal one. `tail`: one call of a hundred takes 100 times the mean. `instant`: answers at
once. `turn`: answers after a turn of the event loop. `http`: a real server on loopback, which answers at
once. `identity`: no call at all, where a peer can do that.
"""


@dataclass(frozen=True)
class Job:
    """One job of one contender."""

    contender: str
    workload: str
    rows: int
    capacity: int
    ordered: bool
    marks: str
    """Path of the file for what the function notes; a suffix is added."""
    reorder: int | None = None
    """Reorder window of contenders that have one; None for their default."""
    keep: bool = True
    """True to collect the answers and check them one by one."""
    url: str = ""
    """Of the server, where the workload has one."""


class NotThereYet(Exception):
    """A version of Pillarbox that cannot do a job yet; the text says why."""


def if_there(make: Callable[[], Any]) -> Any:
    """Make an operator of a list of functions. Raises NotThereYet where a list is refused."""
    try:
        return make()
    except TypeError as error:
        if not str(error).startswith("fn=["):
            raise
        raise NotThereYet("a list of functions is refused") from None


def latency_of(workload: str) -> Callable[[int], float]:
    """Seconds that the service takes for a row."""
    return service.tail_latency if workload == "tail" else service.latency


def _first(marks: str) -> None:
    Path(marks + ".first").write_text(str(time.monotonic_ns()))


def _last(marks: str, most: int) -> None:
    Path(marks + ".last").write_text(json.dumps({"at": time.monotonic_ns(), "most": most}))


def read_marks(marks: str) -> dict[str, Any]:
    """The notes of the function: `seconds` between first call and last answer, `most` calls in flight.

    Empty where not all calls were made in one process.
    """
    try:
        first = int(Path(marks + ".first").read_text())
        last = json.loads(Path(marks + ".last").read_text())
    except FileNotFoundError:
        return {}
    return {"seconds": (last["at"] - first) / 1e9, "most": last["most"]}


def call_for(job: Job) -> Call:
    """The async function of a job, of one row."""
    if job.workload in ("service", "tail"):
        return _service(job)
    return _instant(job) if job.workload == "instant" else _turn(job)


def _service(job: Job) -> Call:
    rows, marks, answer, latency = job.rows, job.marks, service.answer, latency_of(job.workload)
    begun = running = most = done = 0

    async def call(row: int) -> int:
        nonlocal begun, running, most, done
        if not begun:
            _first(marks)
        begun += 1
        running += 1
        if running > most:
            most = running
        await asyncio.sleep(latency(row))
        running -= 1
        done += 1
        if done == rows:
            _last(marks, most)
        return answer(row)

    return call


def _instant(job: Job) -> Call:
    rows, marks = job.rows, job.marks
    done = 0

    async def call(row: int) -> int:
        nonlocal done
        if not done:
            _first(marks)
        done += 1
        if done == rows:
            _last(marks, 1)
        return 2 * row + 1

    return call


def _turn(job: Job) -> Call:
    rows, marks = job.rows, job.marks
    begun = done = 0

    async def call(row: int) -> int:
        nonlocal begun, done
        if not begun:
            _first(marks)
        begun += 1
        await asyncio.sleep(0)
        done += 1
        if done == rows:
            _last(marks, 0)
        return 2 * row + 1

    return call


def record_call_for(job: Job) -> Callable[[Any], Awaitable[int]]:
    """The function of a job for records with a column `id`; one that answers at once has no layer between."""
    if job.workload != "instant":
        call = call_for(job)

        async def call_record(record: Any) -> int:
            return await call(record.id)

        return call_record
    rows, marks = job.rows, job.marks
    done = 0

    async def answer_record(record: Any) -> int:
        nonlocal done
        if not done:
            _first(marks)
        done += 1
        if done == rows:
            _last(marks, 1)
        return 2 * record.id + 1  # type: ignore[no-any-return]

    return answer_record


def stages_for(job: Job) -> tuple[Stage, Stage]:
    """Two functions for a job, the second for what the first gives; both wait for the service, or neither."""
    rows, marks, latency = job.rows, job.marks, latency_of(job.workload)
    at_once = job.workload == "instant"
    begun = done = 0

    async def first(record: Any) -> dict[str, int]:
        nonlocal begun
        if not begun:
            _first(marks)
        begun += 1
        if not at_once:
            await asyncio.sleep(latency(record.id))
        return {"id": record.id, "half": 2 * record.id}

    async def second(record: Any) -> dict[str, int]:
        nonlocal done
        if not at_once:
            await asyncio.sleep(latency(record.half + 1))
        done += 1
        if done == rows:
            _last(marks, 0)
        return {"id": record.id, "answer": record.half + 1}

    return first, second


def batch_call_for(job: Job) -> Callable[[list[Any]], Awaitable[list[int]]]:
    """The function of an `instant` job for lists of records with a column `id`."""
    rows, marks = job.rows, job.marks
    done = 0

    async def answer_records(records: list[Any]) -> list[int]:
        nonlocal done
        if not done:
            _first(marks)
        done += len(records)
        if done == rows:
            _last(marks, 1)
        return [2 * record.id + 1 for record in records]

    return answer_records


def blocking_call_for(job: Job) -> Callable[[int], int]:
    """The function of a job that blocks its thread. Any thread."""
    rows, marks, answer, latency = job.rows, job.marks, service.answer, latency_of(job.workload)
    at_once = job.workload == "instant"
    # Drawing a number is one step for all threads.
    begun, done = itertools.count(), itertools.count(1)

    def call(row: int) -> int:
        if next(begun) == 0:
            _first(marks)
        if not at_once:
            time.sleep(latency(row))
        if next(done) == rows:
            _last(marks, 0)
        return answer(row)

    return call
