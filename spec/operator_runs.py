"""Has the async operator run as a seed says, records it, and has TLC judge the record against `Operator.tla`.

A run is a row of lives: each but the last is killed, or stopped, and the next one is restored from the last
snapshot, perhaps into another window. Time is virtual. `pillarbox.testing.operator_trace` records, and TLC
judges many runs at once.

    python -m spec.operator_runs [--runs 200] [--seed 1]    # makes runs and judges them
    python -m spec.operator_runs FOLDER...                  # judges lives that were recorded, each file alone
"""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import errno
import logging
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

from pillarbox import AskAgain, Batch, Budget, Buffer, Dedupe, Hedge, Limit, Options, Retry, Timeout
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.kernel import Collector
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import Idleness, Watermark
from pillarbox.testing.clocks import VirtualTimeLoop
from pillarbox.testing.operator_trace import SavedMark, SavedRow, TraceStep, read_life, recording
from pillarbox.testing.test_io import ReplayedInput, RestingOutput

from . import tlc
from .trace import run_on, tuple_of

TOLERANCE_MS = 2
"""Milliseconds by which a timer may be early, times being rounded."""
MODULES = ("ResultQueueOrder", "Operator", "OperatorTrace")
CONFIG = f"""\
SPECIFICATION TraceSpec
CHECK_DEADLOCK FALSE
CONSTANTS
    Tolerance = {TOLERANCE_MS}
    Mutant = "none"
"""
UNALIGNED = CheckpointOptions(aligned=False)
RUNS_AT_ONCE = 50
"""Runs that one process of TLC judges: what it reads takes memory."""

ROWS = (51, 80)
"""Rows of a run, from and to."""

Run = list[TraceStep]


class _Service:
    """Takes its time for a call, by row and attempt, and fails as the seed says, or asks for another call."""

    def __init__(self, dice: random.Random) -> None:
        self._repeats = dice.choice([0, 0, 1, 2])
        self._full = dice.choice([0, 0, 5, 7])
        self._seconds = [dice.choice([0.0, 0.1, 0.5, 1.0, 2.0, 5.0]) for _ in range(7)]
        self._failures = [dice.choice([0, 0, 0, 1, 2, 9]) for _ in range(5)]
        self._calls: Counter[int] = Counter()

    def _next(self, row: int) -> tuple[float, bool]:
        self._calls[row] += 1
        called = self._calls[row]
        return self._seconds[(row + called) % 7], called <= self._failures[row % 5]

    def _error(self, row: int) -> Exception:
        if self._full and (row + self._calls[row]) % self._full == 0:
            return OSError(errno.EMFILE, "Too many open files")
        if self._repeats and row % 3 == 0:
            return AskAgain(f"row {row}", self._repeats)
        if (row + self._calls[row]) % 6 == 5:
            return RemoteDisconnected(f"row {row}")
        return ConnectionError(row)

    async def one(self, row: int) -> str:
        seconds, fails = self._next(row)
        if seconds:
            await asyncio.sleep(seconds)
        if fails:
            raise self._error(row)
        return f"answer {row}"

    async def many(self, rows: list[int]) -> list[Any]:
        said = [self._next(row) for row in rows]
        await asyncio.sleep(max(seconds for seconds, _ in said))
        if said[0][1]:
            error = self._error(rows[0])
            raise error if isinstance(error, OSError) and error.errno == errno.EMFILE else ValueError(rows[0])
        return [self._error(row) if fails else row for row, (_, fails) in zip(rows, said, strict=True)]

    def collected(self, row: int, collector: Collector[Any]) -> None:
        seconds, fails = self._next(row)
        loop = asyncio.get_running_loop()
        if fails:
            loop.call_later(seconds, collector.fail, self._error(row))
        else:
            loop.call_later(seconds, collector.complete, row)
        if row % 11 == 0:
            # A second completion comes late.
            loop.call_later(seconds + 0.1, collector.complete, None)


def make_run(seed: int, folder: Path) -> Run:
    """Run the operator as `seed` says, over all of its lives, and return what was recorded into `folder`."""
    before = random.getstate()
    # Pauses between attempts are drawn from the module's own generator.
    random.seed(seed)
    try:
        return _make_run(random.Random(seed), folder)
    finally:
        random.setstate(before)


def _make_run(dice: random.Random, folder: Path) -> Run:
    elements: list[int | Watermark | Idleness] = []
    marks = dice.choice([0.0, 0.1, 0.4])
    for row in range(dice.randint(*ROWS)):
        while dice.random() < marks:
            elements.append(Watermark(float(row)) if dice.random() < 0.8 else Idleness(dice.random() < 0.5))
        elements.append(row)
    service = _Service(dice)
    kind = dice.choice(["one", "one", "many", "collected"])
    options: dict[str, Any] = {"ordered": dice.random() < 0.5, "errors": "column"}
    if dice.random() < 0.7:
        options["retry"] = Retry(
            dice.randint(2, 4),
            initial=dice.choice([0.3, 1.0]),
            maximum=2.0,
            max_outage=dice.choice([0.0, 30.0]),
        )
    timeout = dice.choice([1.5, 4.0, 7.0]) if dice.random() < 0.4 else None
    attempt_timeout = dice.choice([0.7, 1.5]) if dice.random() < 0.3 else None
    options["timeout"] = Timeout(timeout, attempt=attempt_timeout)
    if dice.random() < 0.2:
        options["dedupe"] = Dedupe(_third, memo=dice.choice([0, 5]))
    if dice.random() < 0.1:
        options["budget"] = Budget(max_calls=dice.randint(20, 60))
    if dice.random() < 0.2:
        options["per_key"] = Limit(_third, at_once=dice.randint(1, 2))
    if kind == "many":
        options["batch"] = Batch(dice.randint(1, 6), linger=dice.choice([0.0, 0.2]))
    if kind == "one" and dice.random() < 0.4:
        # For the model a row with its hedges is one call.
        after: float | str = dice.choice([0.05, 0.6]) if dice.random() < 0.7 else "p50"
        options["hedge"] = Hedge(after, dice.choice([0.1, 1.0]), calls=dice.randint(2, 3), idempotent=True)
    lives = dice.choice([0, 1, 2, 3])
    stops = lives and dice.random() < 0.3
    snapshot: TaskSnapshot | None = None
    for life in range(lives + 1):
        is_last = life == lives
        window = dice.randint(1, 64)
        snapshots_at = [] if is_last and dice.random() < 0.5 else [dice.uniform(0.0, 8.0) for _ in range(3)]
        ended, snapshot = _live(
            elements,
            getattr(service, kind),
            snapshot,
            Options(capacity=dice.randint(1, window), buffer=Buffer(window), **options),
            dice,
            snapshots_at,
            None if is_last else dice.uniform(0.5, 12.0),
            stops=bool(stops) and life == lives - 1,
            folder=folder,
        )
        if ended:
            break
        if snapshot is not None and dice.random() < 0.5:
            # As another process has it.
            codec = SnapshotCodec()
            snapshot = codec.decode(codec.encode(snapshot))
    return [step for path in sorted(folder.glob("*.trace")) for step in read_life(path)]


def _third(row: int) -> int:
    return row // 3


def _live(
    elements: Sequence[int | Watermark | Idleness],
    fn: Callable[..., Any],
    snapshot: TaskSnapshot | None,
    options: Options,
    dice: random.Random,
    snapshots_at: Sequence[float],
    killed_at: float | None,
    *,
    stops: bool,
    folder: Path,
) -> tuple[bool, TaskSnapshot | None]:
    """One life; whether it came to its end, and its last snapshot."""
    loop = VirtualTimeLoop()
    latest = [snapshot]
    number = 0 if snapshot is None else snapshot.barrier.id

    def take(task: StreamTask) -> None:
        nonlocal number
        number += 1

        def taken(future: Any) -> None:
            if future.exception() is None:
                latest[0] = future.result()

        task.trigger_checkpoint_async(number, UNALIGNED).add_done_callback(taken)

    async def main() -> bool:
        operator = AsyncWaitOperator(fn, options, loop=loop, context=contextvars.copy_context(), uid="wait")
        output = RestingOutput(loop, dice.randint(1, 4))
        task = StreamTask(
            ReplayedInput(elements, dice.randint(1, 9)), [operator], output, latency_interval=None
        )
        if snapshot is not None:
            task.restore(snapshot)
        for at in snapshots_at:
            loop.call_later(at, take, task)
        running = asyncio.ensure_future(task.run_async())
        await asyncio.wait([running], timeout=killed_at)
        if running.done():
            running.result()
            return True
        if stops:
            task.cancel()
            await asyncio.wait([running])
            running.exception()
        return False

    async def wind_up() -> None:
        left = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    try:
        with recording(folder):
            ended = loop.run_until_complete(main())
        # Where a process is killed nothing more is done, and so nothing of this is recorded.
        state = latest[0]
        loop.run_until_complete(wind_up())
        return ended, state
    finally:
        loop.close()


# -- the judge ---------------------------------------------------------------------------------


def are_behaviours(*runs: Run) -> bool:
    """Return True if TLC accepts each of the runs."""
    return all(accepted_by_tlc(runs)[0])


def accepted_by_tlc(runs: Sequence[Run]) -> tuple[list[bool], float]:
    """Check the runs with TLC: True for each that it accepts, and the seconds that it took."""
    accepted: list[bool] = []
    seconds = 0.0
    for first in range(0, len(runs), RUNS_AT_ONCE):
        some = runs[first : first + RUNS_AT_ONCE]
        outcome = run_on("OperatorTrace", MODULES, data_module(some), CONFIG)
        if outcome.code != tlc.PASSED:
            raise tlc.TlcError(f"OperatorTrace: {outcome.verdict}\n{outcome.output[-2000:]}")
        through = {int(number) for number in re.findall(r'<<"accepted", (\d+)>>', outcome.output)}
        accepted += [number in through for number in range(1, len(some) + 1)]
        seconds += outcome.seconds
    return accepted, seconds


def data_module(runs: Sequence[Run]) -> str:
    """The module that TLC reads: each run, step by step."""
    lines = ["---- MODULE OperatorTraceData ----", "EXTENDS Integers"]
    for number, run in enumerate(runs, 1):
        lines.append(f"Run{number} == {tuple_of(map(_step, run))}")
    lines.append(f"Runs == {tuple_of(f'Run{number}' for number in range(1, len(runs) + 1))}")
    return "\n".join([*lines, "===="]) + "\n"


def _step(step: TraceStep) -> str:
    return tuple_of([f'"{step.name}"', str(step.at), *map(_word, step.words)])


def _word(word: Any) -> str:
    if isinstance(word, str):
        return f'"{word}"'
    return str(word) if isinstance(word, int) else tuple_of(map(_entry, word))


def _entry(entry: SavedRow | SavedMark) -> str:
    if isinstance(entry, SavedMark):
        elements = tuple_of(f'<<"{kind}", "{value}">>' for kind, value in entry.elements)
        return f'[pos |-> 0, kind |-> "mark", elements |-> {elements}]'
    return (
        f'[pos |-> {entry.id}, label |-> {entry.label}, kind |-> "{entry.kind}", '
        f"attempts |-> {entry.attempts}, repeats |-> {entry.repeats}, spent |-> {entry.spent}, "
        f"pause |-> {entry.pause}]"
    )


def rows_of(run: Run) -> int:
    """The rows that came in, those that came again after a restart included."""
    return sum(step.name == "admit" for step in run)


def judge(runs: dict[str, Run], say: Callable[[str], object] = print) -> int:
    """Has the runs judged, and says what came of it; 1 if one is refused."""
    accepted, seconds = accepted_by_tlc(list(runs.values()))
    refused = [name for name, through in zip(runs, accepted, strict=True) if not through]
    for name in refused:
        say(f"{name}: refused")
    names = Counter(step.name for run in runs.values() for step in run)
    restored = sum(any(step.name == "restore" for step in run) for run in runs.values())
    say(", ".join(f"{name} {count}" for name, count in sorted(names.items())))
    say(
        f"{len(runs) - len(refused)} of {len(runs)} runs accepted; {sum(map(rows_of, runs.values()))} rows, "
        f"{sum(names.values())} steps, {restored} runs with a restore; {seconds:.1f} s of TLC"
    )
    return 1 if refused else 0


def main(words: Sequence[str]) -> int:
    """Run `python -m spec.operator_runs`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec.operator_runs", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="lives that were recorded")
    parser.add_argument("--runs", type=int, default=200, help="to make")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--rows", type=int, default=0, help="judge only lives of more rows")
    options = parser.parse_args(words)
    if options.folders:
        found = sorted(path for folder in options.folders for path in folder.rglob("*.trace"))
        lives = {str(path): read_life(path) for path in found}
        return judge({name: life for name, life in lives.items() if rows_of(life) > options.rows})
    # Rows fail on purpose.
    logging.getLogger("pillarbox").setLevel(logging.CRITICAL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pillarbox-runs-") as scratch:
        seeds = range(options.seed, options.seed + options.runs)
        runs = {f"seed {seed}": make_run(seed, Path(scratch, str(seed))) for seed in seeds}
    print(f"{len(runs)} runs made in {time.monotonic() - began:.1f} s")
    return judge(runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
