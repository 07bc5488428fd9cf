"""One failure when half of a job is done: what is paid again, and how long it takes until the job gets on.

`python -m fuzz.chaos.bench` kills the one worker of a job, and the driver of another; with the ledger, and
with calls made by hand. It prints medians with the lowest and the highest run, and writes them as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.chaos.job import CONTENDERS
from fuzz.chaos.places import ROOT, Local
from fuzz.chaos.plan import Plan, Planned
from fuzz.chaos.report import NAMES
from fuzz.chaos.run import Outcome, Session

OUT = ROOT / "out" / "chaos" / "bench"
LATENCY = 0.06
HARMED = {"worker": 1, "driver": 2}
"""The victims, and the tasks of the job while each is killed."""


def plan(kind: str, number: int, rows: int) -> Plan:
    """A job whose failure comes when half of it is answered."""
    fault = Planned(kind, 0.5, 0.0)
    return Plan(number, f"bench {number}", "batch", False, rows, HARMED[kind], LATENCY, 0.0, (fault,))


def figures(outcome: Outcome) -> dict[str, float]:
    """Read the figures of one run. Times are seconds."""
    (fault,) = [fault for fault in outcome.fired if fault.kind in HARMED]
    verdict = outcome.verdict
    if verdict.wrong:
        raise SystemExit(f"{outcome.contender}: {verdict.wrong[0]}")
    times = [taken for kind, taken in outcome.recoveries if kind == fault.kind]
    if not times:
        raise SystemExit(f"{outcome.contender}: no call was met when the {fault.kind} was killed")
    finished = sum(at <= fault.at for at in outcome.first_answers)
    return {
        "finished before": finished,
        "of these called again": verdict.repeated,
        "in flight, called again": verdict.in_flight,
        "recovery": times[0],
        "whole job": outcome.seconds,
    }


def main(words: Sequence[str]) -> int:
    """Run `python -m fuzz.chaos.bench` with its arguments; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.chaos.bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(words)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    said: dict[str, dict[str, list[float]]] = {}
    with Local(options.out) as place, Session(place, options.out, lambda _: None) as session:
        for kind in HARMED:
            for contender in CONTENDERS:
                runs = [
                    figures(session.play(plan(kind, number, options.rows), contender))
                    for number in range(1, options.runs + 1)
                ]
                name = f"{kind} killed, {NAMES[contender]}"
                said[name] = {each: [run[each] for run in runs] for each in runs[0]}
                print(name, flush=True)
                for each, values in said[name].items():
                    print(
                        f"  {each:<24} {statistics.median(values):>9.1f}   "
                        f"{min(values):.1f} to {max(values):.1f}",
                        flush=True,
                    )
    (options.out / "bench.json").write_text(json.dumps(said, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
