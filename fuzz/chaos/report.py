"""The results of a session: a line of JSON for each run, a table, a plot. Uses matplotlib without a display.

`python -m fuzz.chaos.report RUNS.jsonl... --picture PATH` makes table and plot of sessions that were written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fuzz.chaos.check import Verdict
from fuzz.chaos.faults import JOB_END, Fired
from fuzz.chaos.plan import Plan
from fuzz.chaos.run import Outcome

SHOWN = 5
"""Numbers of calls, of one run and one allowance, in a table."""
COLOURS = {"ledger": "#1f6f8b", "gather": "#c4c8ce"}
NAMES = {"ledger": "async_map with a ledger", "gather": "mapInArrow with gather"}


def json_line(outcome: Outcome) -> str:
    """All about a run, but what is known of single calls."""
    said = asdict(outcome)
    del said["first_answers"]
    for fault in said["fired"]:
        del fault["durable"], fault["pids"]
    return json.dumps(said)


def read_runs(path: Path) -> list[Outcome]:
    """Read back the lines of `json_line`, without the faults that were planned."""
    outcomes = []
    for line in path.read_text().splitlines():
        said = json.loads(line)
        said["plan"] = Plan(**{**said["plan"], "faults": ()})
        said["verdict"] = Verdict(**said["verdict"])
        said["fired"] = [Fired(**fault) for fault in said["fired"]]
        said["recoveries"] = [(kind, taken) for kind, taken in said["recoveries"]]
        outcomes.append(Outcome(**said, first_answers=[]))
    return outcomes


def faults_of(outcomes: Sequence[Outcome]) -> int:
    """Faults that happened; that a job was ended by them is not counted once more."""
    return sum(fault.kind != JOB_END for outcome in outcomes for fault in outcome.fired)


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures of one contender."""
    verdicts = [outcome.verdict for outcome in outcomes]
    harming = sum(fault.harms for outcome in outcomes for fault in outcome.fired)
    times = [taken for outcome in outcomes for _, taken in outcome.recoveries]
    repeated = sum(verdict.repeated for verdict in verdicts)
    answered = sum(verdict.answered for verdict in verdicts)
    return {
        "runs": len(outcomes),
        "faults": faults_of(outcomes),
        "that end calls": harming,
        "rows lost": sum(verdict.lost for verdict in verdicts),
        "rows doubled": sum(verdict.doubled for verdict in verdicts),
        "rows seen to leave": sum(verdict.departed for verdict in verdicts),
        "  when they were durable is unknown": sum(verdict.not_timed for verdict in verdicts),
        "calls answered": answered,
        "of these in a loss window": sum(verdict.at_stake for verdict in verdicts),
        "calls in flight lost": sum(verdict.in_flight for verdict in verdicts),
        "finished calls repeated": repeated,
        "  within the loss window": sum(verdict.in_window for verdict in verdicts),
        "  by two attempts at a time": sum(verdict.concurrent for verdict in verdicts),
        "given up, for no reason": sum(verdict.given_up for verdict in verdicts),
        "repeated of answered, %": 100 * repeated / answered if answered else 0.0,
        "repeated for a fault": repeated / harming if harming else 0.0,
        "oldest finished call lost, s": max((verdict.oldest for verdict in verdicts), default=0.0),
        "recovery, median, s": statistics.median(times) if times else 0.0,
        "recovery, longest, s": max(times, default=0.0),
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """The figures of all contenders, side by side."""
    contenders = list(dict.fromkeys(outcome.contender for outcome in outcomes))
    columns = {
        each: summary([outcome for outcome in outcomes if outcome.contender == each]) for each in contenders
    }
    lines = [f"{'':<32}" + "".join(f"{NAMES[each]:>26}" for each in contenders)]
    for name in next(iter(columns.values()), {}):
        values = [columns[each][name] for each in contenders]
        lines.append(
            f"{name:<32}"
            + "".join(f"{value:>26,.2f}" if isinstance(value, float) else f"{value:>26,}" for value in values)
        )
    kinds = Counter(fault.kind for outcome in outcomes for fault in outcome.fired)
    lines.append("faults: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    return "\n".join([*lines, *excused(outcomes)])


def excused(outcomes: Sequence[Outcome]) -> list[str]:
    """The calls of runs with the ledger that would be wrong without an allowance, by allowance, a line each.

    Of each run the first `SHOWN` numbers; the line of the run in `runs.jsonl` has all.
    """
    found: dict[str, list[tuple[Outcome, list[int]]]] = {}
    for outcome in outcomes:
        if outcome.contender == "ledger":
            for allowance, calls in outcome.verdict.excused.items():
                found.setdefault(allowance, []).append((outcome, calls))
    lines = ["calls that are excused, by allowance:"] if found else ["no call is excused"]
    for allowance, uses in sorted(found.items()):
        count = sum(len(calls) for _, calls in uses)
        which = "; ".join(
            f"{outcome.place} run {outcome.plan.number}: {', '.join(map(str, calls[:SHOWN]))}"
            + (", ..." if len(calls) > SHOWN else "")
            for outcome, calls in uses
        )
        lines.append(f"  {allowance:<30}{count:>6}   {which}")
    return lines


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Calls repeated and time to recover for each fault, rows of the output that were wrong."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    contenders = list(dict.fromkeys(outcome.contender for outcome in outcomes))
    figures = {
        each: summary([outcome for outcome in outcomes if outcome.contender == each]) for each in contenders
    }
    names = [NAMES[each] for each in contenders]
    colours = [COLOURS[each] for each in contenders]
    figure, (repeated, recovery, rows) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    bars = repeated.bar(names, [figures[each]["repeated for a fault"] for each in contenders], color=colours)
    repeated.bar_label(bars, fmt="%.1f")
    repeated.set_title("finished calls repeated,\nfor each fault that ends calls", fontsize=9)
    times = [
        [taken for outcome in outcomes if outcome.contender == each for _, taken in outcome.recoveries]
        for each in contenders
    ]
    for place, (each, taken) in enumerate(zip(contenders, times, strict=True)):
        if taken:
            # Spread a little, so that equal ones are seen.
            places = [place + 0.3 * (number / len(taken) - 0.5) for number in range(len(taken))]
            recovery.scatter(places, taken, s=12, color=COLOURS[each], edgecolor="#333333", linewidth=0.3)
            recovery.hlines(statistics.median(taken), place - 0.3, place + 0.3, color="#333333", linewidth=1)
    recovery.set_xticks(range(len(contenders)), names)
    # A driver takes a hundred times as long as a worker.
    recovery.set_yscale("log")
    recovery.set_title("seconds from a fault\nto the task's next new answer", fontsize=9)
    wrong = [figures[each]["rows lost"] + figures[each]["rows doubled"] for each in contenders]
    rows.bar_label(rows.bar(names, wrong, color=colours), fmt="%d")
    rows.set_ylim(0, max(1, *wrong) * 1.2)
    rows.yaxis.set_visible(False)
    rows.set_title("rows lost or doubled\nin the committed output", fontsize=9)
    for axes in (repeated, recovery, rows):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=7)
    # The same picture is the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main(words: Sequence[str]) -> int:
    """Run `python -m fuzz.chaos.report` with its arguments; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.chaos.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--picture", type=Path, help="where the plot goes, as SVG or PNG")
    options = parser.parse_args(words)
    outcomes = [outcome for path in options.runs for outcome in read_runs(path)]
    print(table(outcomes))
    if options.picture is not None:
        plot(outcomes, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
