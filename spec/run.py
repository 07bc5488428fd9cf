"""Runs the configurations of the manifests, and compares what TLC finds with what they say.

    python -m spec.run [--quick] [--jobs N] [--update] [NAME...]

Called by `make spec` and by the tests. Exits with 1 if anything differs. A NAME may be a pattern: `mutant-*`.
`--update` writes the measured numbers of states into the manifests, for runs that are right otherwise.
`manifest.py` says what a manifest holds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from . import tlc
from .manifest import Run, read_all, update_states


def execute(run: Run) -> tlc.Outcome:
    """Runs TLC on one configuration. Raises TlcError if TLC does not get as far as an answer."""
    return tlc.run(
        run.module,
        run.config(),
        workers=run.workers,
        brief=run.quick,
        coverage=run.exit == tlc.PASSED,
        folder=run.file.parent,
    )


def violated_name(run: Run, outcome: tlc.Outcome) -> str | None:
    """The name of the violated property: TLC's own word, or the only temporal property there is."""
    if outcome.violated is None and outcome.code == tlc.TEMPORAL and len(run.properties) == 1:
        return run.properties[0]
    return outcome.violated


def differences(run: Run, outcome: tlc.Outcome) -> list[str]:
    """The differences from the manifest, in words; an empty list if there are none."""
    found: list[str] = []
    if outcome.code != run.exit:
        found.append(f"exit code {outcome.code}, not {run.exit}")
    violated = violated_name(run, outcome)
    if violated != (run.violates or None):
        found.append(f"violates {violated or 'nothing named'}, not {run.violates or 'nothing'}")
    if outcome.distinct != run.states:
        found.append(f"{outcome.distinct} distinct states, not {run.states}")
    if outcome.code == tlc.PASSED:
        never = {name for name, steps in outcome.actions.items() if steps == 0}
        found += [f"action {name} never fires" for name in sorted(never - set(run.never))]
        found += [f"action {name} fires, and is listed as never" for name in sorted(set(run.never) - never)]
        if not outcome.actions:
            found.append("TLC reported no action")
    return found


def report(run: Run, outcome: tlc.Outcome | None, found: list[str]) -> str:
    """One line for the table, and one for each difference."""
    result = "error"
    if outcome is not None:
        result = f"{outcome.verdict} {violated_name(run, outcome) or ''}".strip()
    states = f"{outcome.distinct:>9,}" if outcome is not None and outcome.distinct is not None else " " * 9
    seconds = f"{outcome.seconds:7.1f} s" if outcome is not None else " " * 9
    line = f"{'DIFFERS' if found else 'ok':<8}{run.name:<40}{states} states {seconds}  {result}"
    return "\n".join([line, *(f"          {text}" for text in found)])


def judge(run: Run) -> tuple[Run, tlc.Outcome | None, list[str]]:
    """Runs one configuration and compares."""
    try:
        outcome = execute(run)
    except tlc.TlcError as error:
        return run, None, str(error).splitlines()
    return run, outcome, differences(run, outcome)


def chosen(runs: Iterable[Run], names: list[str], quick: bool) -> list[Run]:
    """The runs that the command line asks for. Raises SystemExit if a name means none."""
    runs = list(runs)
    for name in names:
        if not any(fnmatch(run.name, name) for run in runs):
            raise SystemExit(f"no run is called {name!r}; there are: {', '.join(run.name for run in runs)}")
    return [
        run
        for run in runs
        if (not names or any(fnmatch(run.name, name) for name in names)) and (run.quick or not quick)
    ]


def print_now(line: str) -> None:
    """Prints a line and leaves none behind in a buffer."""
    print(line, flush=True)


def main(
    words: list[str] | None = None,
    folder: Path = tlc.SPEC,
    say: Callable[[str], None] = print_now,
) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m spec.run", description="Check the specification with TLC."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a run of a manifest, or a pattern; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="only the quick set, as in `make test-all`")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at the same time (default 2)")
    parser.add_argument(
        "--update", action="store_true", help="write the numbers of states into the manifests"
    )
    options = parser.parse_args(words)
    runs = chosen(read_all(folder), options.names, options.quick)
    begin = time.monotonic()
    tlc.jar()
    wrong = 0
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for run, outcome, found in pool.map(judge, runs):
            only_states = outcome is not None and all("distinct states" in text for text in found)
            if (
                options.update
                and found
                and only_states
                and outcome is not None
                and outcome.distinct is not None
            ):
                update_states(run, outcome.distinct)
                say(report(run, outcome, []) + "  (states written)")
                continue
            wrong += bool(found)
            say(report(run, outcome, found))
    say(f"{len(runs)} runs in {time.monotonic() - begin:.0f} s, {wrong} of them not as the manifest says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
