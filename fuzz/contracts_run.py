"""Runs CrossHair on a module of contracts, each within a time budget, and says what that showed.

CrossHair looks for arguments that break a contract, by symbolic execution. That it found none in time is no
proof, and is not called one. Called by the fuzzer and by the tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNTRIED = "Unable to meet precondition"
LINE = re.compile(r"^(?P<file>.*?):(?P<line>\d+): (?P<kind>\w+): (?P<what>.*)$")


class CounterexampleError(AssertionError):
    """CrossHair found arguments that break a contract."""


def check_contracts(module: str, seconds: float, folder: Path = ROOT) -> list[str]:
    """Check every contract of the module, which can be imported from `folder`; a line about each.

    seconds: for each contract. Raises CounterexampleError, or RuntimeError if CrossHair does not work.
    """
    command = [sys.executable, "-m", "crosshair", "check", "--analysis_kind=PEP316", "--report_all"]
    command += [f"--per_condition_timeout={seconds}", module]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"CrossHair ended with {done.returncode}: {done.stderr.strip()}")
    found = [match for line in done.stdout.splitlines() if (match := LINE.match(line))]
    errors = [f"line {match['line']}: {match['what']}" for match in found if match["kind"] == "error"]
    if done.returncode or errors:
        raise CounterexampleError("\n".join(errors) or done.stdout)
    untried = [
        f"line {match['line']}: nothing was tried, {match['what']}"
        for match in found
        if UNTRIED in match["what"]
    ]
    if untried:
        raise RuntimeError("\n".join(untried))
    if not found:
        raise RuntimeError(f"CrossHair found no contracts in {module}: {done.stdout} {done.stderr}")
    return [f"line {match['line']}: {_said(match['what'], seconds)}" for match in found]


def _said(what: str, seconds: float) -> str:
    if what.startswith("Confirmed"):
        return "holds on every path that there is"
    return f"no counterexample in {seconds:g} s"
