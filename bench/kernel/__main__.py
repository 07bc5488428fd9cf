"""The kernel beside the best queues of each language, in one table: `make bench-kernel`.

Every scenario is measured chunk by chunk in turn. Where `valgrind` is installed, instructions and misses
of works of one thread are counted as well; on Linux, the system calls of puts and takes. Writes
`out/bench/kernel.json` and the plot `kernel.svg`.
`bench/README.md` says what a unit of work is.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.chunks import Child, ChildFailed, Effort, Figure, counted, figure, machine, write_json
from bench.kernel.peers import programs
from bench.kernel.rows import Scenario, scenarios
from bench.native_program import wake_calls_program
from bench.table import Column, print_table

COLUMNS = (
    Column("", right=False),
    Column("", right=False),
    Column("median"),
    Column("p10"),
    Column("p90"),
    Column("p90/p10"),
    Column("instructions"),
    Column("misses"),
    Column("ours is x as fast"),
    Column("target", right=False),
)


def measured(scenario: Scenario, effort: Effort) -> tuple[dict[str, Figure], dict[str, str]]:
    """The figures of all contenders, one chunk of each at a time, in an order that turns round; and by name,
    the reason why one has none.
    """
    missing = {each.name: each.missing for each in scenario.contenders if each.missing}
    chunks: dict[str, list[float]] = {}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for contender in scenario.contenders:
            if contender.missing:
                continue
            try:
                child = stack.enter_context(Child(contender.command))
                # A compiler that works while the program runs needs time.
                warm_up = effort.warm_up if "java" in contender.command[0] else min(effort.warm_up, 0.3)
                end = time.monotonic() + warm_up
                while time.monotonic() < end:
                    child.chunk(scenario.operations)
            except (ChildFailed, OSError) as error:
                missing[contender.name] = str(error).splitlines()[-1]
                continue
            children[contender.name] = child
            chunks[contender.name] = []
        end = time.monotonic() + effort.seconds
        for number in range(effort.rounds):
            if number >= 10 and time.monotonic() > end:
                break
            names = list(children)
            for name in names if number % 2 == 0 else reversed(names):
                chunks[name].append(children[name].chunk(scenario.operations))
    return {name: figure(values) for name, values in chunks.items()}, missing


def system_calls() -> list[dict[str, Any]]:
    """Calls that wake and that sleep, of 1,000 puts and more; `wake_calls.cpp` has the scenarios."""
    done = subprocess.run([wake_calls_program()], capture_output=True, text=True, check=True)
    found = re.findall(r"^(.+): (\d+) woken, (\d+) slept$", done.stdout, re.MULTILINE)
    return [{"name": name, "woken": int(woken), "slept": int(slept)} for name, woken, slept in found]


def result_of(scenario: Scenario, effort: Effort, count: bool) -> dict[str, Any]:
    """A scenario, measured, as it stands in the JSON file."""
    figures, missing = measured(scenario, effort)
    ours = figures.get(scenario.contenders[0].name)
    contenders: list[dict[str, Any]] = []
    for contender in scenario.contenders:
        told: dict[str, Any] = {"name": contender.name}
        contenders.append(told)
        if contender.name in missing:
            told["missing"] = missing[contender.name]
            continue
        found = figures[contender.name]
        told |= asdict(found) | {"spread": found.spread}
        if ours is not None and contender is not scenario.contenders[0]:
            told["ratio"] = found.median / ours.median
        if count and contender.counted:
            told["instructions"], told["misses"] = counted(contender.command, scenario.operations)
    met = None
    if scenario.target is not None:
        ratios = [told.get("ratio") for told in contenders if told["name"] == scenario.beside]
        met = bool(ratios and ratios[0] is not None and ratios[0] >= scenario.target)
    rest = {"unit": scenario.unit, "beside": scenario.beside, "target": scenario.target, "met": met}
    return {"name": scenario.name, "contenders": contenders, **rest}


def table_of(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The cells of the table."""
    cells = []
    for result in results:
        for number, told in enumerate(result["contenders"]):
            head = [
                result["name"] + (", bytes" if result["unit"] == "bytes" else ", ns") if number == 0 else ""
            ]
            if "missing" in told:
                cells.append([*head, told["name"], *[""] * 7, f"cannot be had: {told['missing']}"])
                continue
            target = ""
            if told["name"] == result["beside"] and result["target"] is not None:
                target = f"{result['target']:g}, {'met' if result['met'] else 'missed'}"
            cells.append(
                [
                    *head,
                    told["name"],
                    *(f"{told[key]:,.1f}" for key in ("median", "lower", "upper")),
                    f"{told['spread']:.2f}",
                    f"{told['instructions']:,.0f}" if "instructions" in told else "",
                    f"{told['misses']:,.2f}" if "misses" in told else "",
                    f"{told['ratio']:.2f}" if "ratio" in told else "",
                    target,
                ]
            )
    return cells


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernel", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("out/bench/kernel.json"))
    parser.add_argument("--rounds", type=int, default=50, help="chunks of each contender")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one scenario, at most")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds, for Java's compiler")
    parser.add_argument("--only", default="", help="only scenarios with these words in their name")
    parser.add_argument("--no-instructions", action="store_true", help="count none")
    parser.add_argument(
        "--reuse", action="store_true", help="measure nothing: the table and the plot of the JSON file"
    )
    options = parser.parse_args(arguments)
    if options.reuse:
        content = json.loads(options.json.read_text())
    else:
        content = {"machine": machine(), "scenarios": []}
        # A part takes the place of what an earlier run has measured of it.
        is_part = options.only and options.json.exists()
        earlier = json.loads(options.json.read_text())["scenarios"] if is_part else []
        effort = Effort(options.rounds, options.seconds, options.warm_up)
        count = not options.no_instructions and shutil.which("valgrind") is not None
        kept = {result["name"]: result for result in earlier}
        for scenario in scenarios(programs()):
            if options.only in scenario.name:
                print(f"{scenario.name} ...", file=sys.stderr)
                content["scenarios"].append(result_of(scenario, effort, count))
            elif scenario.name in kept:
                content["scenarios"].append(kept[scenario.name])
        content["system_calls"] = system_calls() if sys.platform == "linux" else []
        write_json(options.json, content)
    print_table(COLUMNS, table_of([each for each in content["scenarios"] if options.only in each["name"]]))
    print_table(
        [Column("system calls", right=False), Column("that wake"), Column("that sleep")],
        [[each["name"], str(each["woken"]), str(each["slept"])] for each in content.get("system_calls", [])],
    )
    from bench.kernel.plots import plot

    plot(content["scenarios"], options.json.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
