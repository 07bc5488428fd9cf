"""Checks of the judge: plants a defect in a copy of the package, and counts the runs in which it is found.

`python -m fuzz.chaos.planted [NAME...]` plants each defect of `defects.toml`, or those that are named, and
plays runs of the job in which it does harm, with faults as `make chaos` has them. Exits with 1 if one is
found in none of its runs, or, with `--none`, if the package as it is looks wrong in one of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.chaos.alone import judge_alone
from fuzz.chaos.faults import OutliveError
from fuzz.chaos.places import ROOT, Local
from fuzz.chaos.plan import plan_run
from fuzz.chaos.run import HungError, Session
from spec.defects import Seeded, read, with_one
from spec.seeds import commit_seed

DEFECTS = Path(__file__).with_name("defects.toml")
JOBS = {
    "no_fsync": "batch",
    "left_before_durable": "batch",
    "lease_always_granted": "twice",
    "adopted_result_ignored": "repeated",
    "adopted_call_ignored": "state",
}
"""By defect: the kind of job in which it is looked for."""
ALONE = {
    "no_fsync": (-1,),
    "left_before_durable": (-1,),
    "lease_always_granted": (-1, -1),
    "adopted_result_ignored": (-1, -2),
}
"""By defect: the first rows of the processes of `alone.py` in which it is found without Spark: of one task,
of two attempts of one, of two tasks that have all other rows in common."""
OUT = ROOT / "out" / "chaos" / "planted"
RUNS = 10
ROWS = 960
HANDFUL = (2, 3)
"""Faults in a run, from and to."""


def planted(defect: Seeded, folder: Path) -> Path:
    """Make a copy of the package with a defect in `folder`; returns what goes in front of the path.

    Raises DefectError if the files have no such place.
    """
    package = folder / "pillarbox"
    ignored = shutil.ignore_patterns("__pycache__", "*.cpp", "*.pyx", "*.h")
    shutil.copytree(ROOT / "pyruntime", package, ignore=ignored)
    shutil.copytree(ROOT / "kernel", package / "kernel", ignore=ignored)
    for file in defect.copied:
        text = with_one(file, (ROOT / file).read_text(), defect)
        (package / Path(file).relative_to("pyruntime")).write_text(text)
    return folder


def verdicts(
    kinds: Sequence[str],
    package: Path | None,
    folder: Path,
    *,
    seed: int,
    runs: int,
    rows: int = ROWS,
    first_only: bool = False,
) -> list[list[str] | None]:
    """Play runs of jobs of these kinds, in turns, with a package; returns what is wrong with each.

    first_only: up to one that is wrong. None for a run that does not end, of which nobody can judge.
    """
    folder.mkdir(parents=True)
    found: list[list[str] | None] = []
    with (
        Local(folder, package) as place,
        Session(place, folder, lambda line: print(line, flush=True)) as session,
    ):
        for number in range(runs):
            plan = plan_run(
                seed, number, cluster=False, rows=rows, kinds=kinds, handful=HANDFUL, with_full_disk=False
            )
            try:
                wrong = session.play(plan, "ledger").verdict.wrong
            except (HungError, OutliveError) as error:
                print(f"  {plan.kind}, run {number} did not end: {str(error)[:500]}", flush=True)
                session.drop_driver()
                found.append(None)
                continue
            found.append(wrong)
            print(f"  {plan.kind}, run {number}: {wrong[0] if wrong else 'nothing is wrong'}", flush=True)
            if wrong and first_only:
                break
    return found


def verdicts_alone(
    jobs: Sequence[tuple[int, ...]],
    package: Path | None,
    folder: Path,
    *,
    runs: int,
    first_only: bool = False,
) -> list[list[str] | None]:
    """The same without Spark and without faults. jobs: the first rows of the processes of each, in turns."""
    found: list[list[str] | None] = []
    for number in range(runs):
        place = folder / str(number)
        place.mkdir(parents=True)
        wrong = judge_alone(place, package, *jobs[number % len(jobs)]).wrong
        found.append(wrong)
        print(f"  run {number}: {wrong[0] if wrong else 'nothing is wrong'}", flush=True)
        if wrong and first_only:
            break
    return found


def main(words: Sequence[str]) -> int:
    """Run `python -m fuzz.chaos.planted`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.chaos.planted", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(JOBS)}; all if none is given"
    )
    parser.add_argument("--none", action="store_true", help="the same runs with the package as it is")
    parser.add_argument("--seed", type=int, default=commit_seed("planted"))
    parser.add_argument("--runs", type=int, default=RUNS, help="of each defect, at most; with --none in all")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a job")
    parser.add_argument("--first", action="store_true", help="no more runs when it has been found")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--alone", action="store_true", help="without Spark, in seconds")
    options = parser.parse_args(words)
    defects = {defect.name: defect for defect in read(DEFECTS)}
    known = list(ALONE if options.alone else defects)
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no such defect: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    names = options.names or known
    results: dict[str, list[list[str] | None]] = {}
    bad = False
    print(f"seed {options.seed}, into {options.out}", flush=True)
    for name in ["none"] if options.none else names:
        folder: Path = options.out / name
        shutil.rmtree(folder, ignore_errors=True)
        package = None if options.none else planted(defects[name], folder / "package")
        kinds = list(dict.fromkeys(JOBS[each] for each in names)) if options.none else [JOBS[name]]
        print("no defect" if options.none else f"{name}: {defects[name].about}", flush=True)
        if options.alone:
            jobs = list(dict.fromkeys(ALONE[each] for each in names)) if options.none else [ALONE[name]]
            found = verdicts_alone(
                jobs, package, folder / "runs", runs=options.runs, first_only=options.first
            )
        else:
            found = verdicts(
                kinds,
                package,
                folder / "runs",
                seed=options.seed,
                runs=options.runs,
                rows=options.rows,
                first_only=options.first,
            )
        results[name] = found
        wrong = [number for number, each in enumerate(found, 1) if each]
        bad = bad or bool(wrong) == options.none
        first = f", first in run {wrong[0]}" if wrong else ""
        print(f"{name}: wrong in {len(wrong)} of {len(found)} runs{first}", flush=True)
        (options.out / "planted.json").write_text(json.dumps(results, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    # So that whoever ends this early leaves no Spark behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
