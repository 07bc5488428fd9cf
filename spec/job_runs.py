"""Has jobs of `pillarbox.run` run in processes that are killed, and has TLC judge each operator's lives.

A run is a job with one function or two, over rows of a list and watermarks between them: each life but the
last is killed by SIGKILL, stopped, or cancelled, and the next one goes on from the newest checkpoint, perhaps
with another capacity, order or number of readers. `pillarbox.testing.operator_trace` records what the
operators do; the lives of one operator, one behind the other, must be a behaviour of `Operator.tla`.

    python -m spec.job_runs [--runs 50] [--seed 1]    # makes runs and judges them
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pillarbox
from pillarbox import Options, Retry, Step
from pillarbox.job import JsonLinesSink
from pillarbox.sources import WatermarkStrategy
from pillarbox.testing.operator_trace import read_life, record_operators

from .operator_runs import Run, judge

ROWS = (40, 60)
"""Rows of a run, from and to."""
MAX_LIFE_S = 0.25
"""Seconds for which a life lasts from its first call."""
INTERVAL_S = 0.02


def lives_of(seed: int) -> int:
    """The lives of a run before the last one."""
    return random.Random(seed).choice([0, 1, 2, 3])


class _Service:
    """Takes its time for a call, and fails, as the seed says."""

    def __init__(self, dice: random.Random) -> None:
        self._seconds = [dice.choice([0.0, 0.001, 0.01, 0.03]) for _ in range(7)]
        self._failures = [dice.choice([0, 0, 1, 2]) for _ in range(5)]
        self._calls: dict[int, int] = {}

    async def first(self, row: int) -> dict[str, int]:
        """Answer with the number of the row."""
        await self._call(row)
        return {"number": row}

    async def second(self, row: Any) -> dict[str, int]:
        """Answer with the number of the row behind another function."""
        await self._call(row.number)
        return {"number": row.number}

    async def _call(self, row: int) -> None:
        called = self._calls[row] = self._calls.get(row, 0) + 1
        await asyncio.sleep(self._seconds[(row + called) % 7])
        if called <= self._failures[row % 5]:
            raise ConnectionError(row)


def live(seed: int, life: int, folder: Path) -> None:
    """One life of a run, in a process of its own. Prints a line when its first calls may run."""
    record_operators(folder / "traces")
    of_run, dice = random.Random(seed), random.Random(f"{seed} {life}")
    of_run.choice([0])
    service = _Service(of_run)
    rows = range(of_run.randint(*ROWS))
    # Attempts count over lives, and the service fails anew in each of them.
    retry = Retry(20, initial=0.01, maximum=0.02, max_outage=0.0)
    functions: list[Any] = [service.first]
    if of_run.random() < 0.5:
        # What the second one gets comes in the same order in each life.
        functions = [Step(service.first, ordered=True), service.second]
    watermarks = WatermarkStrategy(float, out_of_order=2.0) if of_run.random() < 0.6 else None
    is_last = life == lives_of(seed)
    with pillarbox.run(
        rows,
        functions,
        JsonLinesSink(folder / "out"),
        checkpoints=folder / "checkpoints",
        interval=INTERVAL_S,
        readers=dice.choice([1, 2]),
        urgent=dice.random() < 0.5,
        watermarks=watermarks,
        options=Options(ordered=dice.random() < 0.5, capacity=dice.randint(1, 12), retry=retry),
    ) as job:
        while not job.wait(0.001) and job.statistics().state == "starting":
            pass
        print("running", flush=True)
        if not is_last and dice.random() < 0.3:
            time.sleep(dice.uniform(0.0, MAX_LIFE_S / 2))
            if dice.random() < 0.5:
                job.stop()
            else:
                job.cancel()


def make_run(seed: int, folder: Path) -> list[Run]:
    """Run a job as `seed` says, over all of its lives; returns what each of its operators has done."""
    dice = random.Random(f"kills of {seed}")
    for life in range(lives_of(seed) + 1):
        words = ["--seed", str(seed), "--life", str(life), "--folder", str(folder)]
        with subprocess.Popen(
            [sys.executable, "-m", "spec.job_runs", *words], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if life < lives_of(seed):
                try:
                    process.wait(dice.uniform(0.0, MAX_LIFE_S))
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, signal.SIGKILL)
            if process.wait() not in (0, -signal.SIGKILL):
                raise RuntimeError(f"seed {seed}, life {life}: ended with {process.returncode}")
    lines = [line for file in JsonLinesSink(folder / "out").files() for line in file.read_text().splitlines()]
    written = sorted(json.loads(line)["number"] for line in lines)
    if written != [*range(len(written))] or not written:
        raise RuntimeError(f"seed {seed}: the sink has other rows than each once: {written}")
    operators: dict[int, Run] = {}
    for path in sorted((folder / "traces").glob("*.trace")):
        # A process makes the operators of its one task in their order.
        number = int(path.stem.rsplit("-", 1)[1])
        operators.setdefault(number, []).extend(read_life(path))
    return [run for _, run in sorted(operators.items())]


def make_runs(seeds: Sequence[int], folder: Path) -> dict[str, Run]:
    """The runs of these seeds: of each operator what it did, by the seed and its number in the chain."""
    return {
        f"seed {seed}, function {number}": run
        for seed in seeds
        for number, run in enumerate(make_run(seed, folder / str(seed)), 1)
    }


def main(words: Sequence[str]) -> int:
    """Run `python -m spec.job_runs`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec.job_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="to make")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--life", type=int, help="run this life of the seed's run, in --folder")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args(words)
    if options.life is not None:
        live(options.seed, options.life, options.folder)
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pillarbox-jobs-") as scratch:
        runs = make_runs(range(options.seed, options.seed + options.runs), Path(scratch))
    print(f"{options.runs} jobs made in {time.monotonic() - began:.1f} s")
    return judge(runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
