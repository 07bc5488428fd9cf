"""The command: runs with faults until there were enough of them, and what came of it.

`python -m fuzz.chaos --seed N --faults 200` runs the jobs locally and on a cluster, half of the faults each,
and the first runs of each once more with calls made by hand. Exits with 1 if anything was found that must
not be; the folder of such a run is kept.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.chaos.faults import FAULTS, OutliveError
from fuzz.chaos.job import KINDS
from fuzz.chaos.places import ROOT, Cluster, Local
from fuzz.chaos.plan import plan_run
from fuzz.chaos.report import faults_of, json_line, plot, table
from fuzz.chaos.run import HungError, Outcome, Session
from spec.seeds import commit_seed

OUT = ROOT / "out" / "chaos"


def main(words: Sequence[str]) -> int:
    """Run `python -m fuzz.chaos` with its arguments; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=commit_seed("chaos"))
    parser.add_argument("--faults", type=int, default=200, help="how many, at least")
    parser.add_argument("--job", action="append", choices=KINDS, help="only jobs of this kind")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only faults of this kind")
    parser.add_argument("--place", action="append", choices=["local", "cluster"], help="only there")
    parser.add_argument("--rows", type=int, default=2400, help="of a job")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--compare", type=int, default=6, help="runs by hand, on each place")
    parser.add_argument("--only-by-hand", action="store_true", help="no runs with the ledger")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--picture", type=Path, help="where the plot goes as well, as SVG or PNG")
    options = parser.parse_args(words)
    places = options.place or ["local", "cluster"]
    folder: Path = options.out / f"seed-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    outcomes: list[Outcome] = []
    trouble: list[str] = []
    print(f"seed {options.seed}, into {folder}", flush=True)
    for place in places:
        try:
            _harm(place, folder, options, len(places), outcomes, trouble)
        except (HungError, OutliveError) as error:
            trouble.append(f"{place}: {error}")
    if outcomes:
        print(table(outcomes))
        for path in filter(None, (folder / "chaos.svg", options.picture)):
            plot(outcomes, path)
        print(f"\n{folder / 'chaos.svg'}, {folder / 'runs.jsonl'}")
    for found in trouble:
        print(f"\nWRONG: {found}")
    print(f"\nseed {options.seed}: {'something is wrong' if trouble else 'nothing is wrong'}")
    return 1 if trouble else 0


def _faults(outcomes: Sequence[Outcome], by_hand: bool) -> int:
    """Those that count: of the runs with the ledger, if there are any."""
    return faults_of([each for each in outcomes if by_hand or each.contender == "ledger"])


def _harm(
    place: str,
    folder: Path,
    options: argparse.Namespace,
    places: int,
    outcomes: list[Outcome],
    trouble: list[str],
) -> None:
    """The runs on one place."""
    here = folder / place
    here.mkdir(parents=True)
    spark = Cluster(here) if place == "cluster" else Local(here)
    began = len(outcomes)
    with spark, Session(spark, here, lambda line: print(line, flush=True)) as session:
        number = options.first
        while _faults(outcomes[began:], options.only_by_hand) * places < options.faults:
            plan = plan_run(
                options.seed,
                number,
                cluster=place == "cluster",
                rows=options.rows,
                kinds=options.job or KINDS,
                faults=options.fault,
            )
            contenders = [] if options.only_by_hand else ["ledger"]
            if number - options.first < options.compare or options.only_by_hand:
                contenders.append("gather")
            for contender in contenders:
                print(
                    f"{place}, run {number}, {plan.kind}, {contender}, "
                    f"{'ordered' if plan.ordered else 'unordered'}",
                    flush=True,
                )
                outcome = session.play(plan, contender)
                outcomes.append(outcome)
                with open(folder / "runs.jsonl", "a") as file:
                    file.write(json_line(outcome) + "\n")
                verdict = outcome.verdict
                print(
                    f"  {outcome.seconds:.1f} s, {outcome.starts} starts, {verdict.answered} calls answered, "
                    f"{verdict.in_window} of the loss window repeated, {verdict.concurrent} at a time, "
                    f"{verdict.paid_again} otherwise, {verdict.in_flight} ended in flight",
                    flush=True,
                )
                for found in verdict.wrong:
                    print(f"  WRONG: {found}", flush=True)
                trouble += [f"{place}, run {number}, {contender}: {found}" for found in verdict.wrong]
            number += 1


if __name__ == "__main__":
    # So that whoever ends this early leaves no Spark and no mounted disk behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
