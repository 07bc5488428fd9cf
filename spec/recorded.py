"""Records events of several processes in one file, and has TLC go along runs that were made of them.

What the records of streams (`spec.stream_trace`) and of sources (`spec.source_trace`) have in common. An
event is a line of JSON, appended in one write. A module `NameTrace.tla` reads its runs, as `Runs`, from a
module `NameTraceData`, says `<<"accepted", run>>` at the end of each, and, if it `Shows`,
`<<"through", run, step>>` after each step.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import tlc
from .trace import run_on, tuple_of

CONFIG = """\
SPECIFICATION TraceSpec
CHECK_DEADLOCK FALSE
CONSTANTS
    Shows = {shows}
"""

Event = dict[str, Any]


def append(path: str | Path, what: str, **words: Any) -> None:
    """Add an event, in one write. Any process and thread."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, (json.dumps({"what": what, **words}) + "\n").encode())
    finally:
        os.close(file)


def read_events(path: str | Path) -> list[Event]:
    """The events of a file; a last line that a killed process has not finished is none."""
    lines = Path(path).read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def accepted_of(module: str, runs: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Check the runs by the trace module of `module` with TLC: True for each that it accepts."""
    accepted = set(_numbers_said("accepted", _check(module, runs, shows=False)))
    return [(number,) in accepted for number in range(1, len(runs) + 1)]


def refused_steps(module: str, runs: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Of each run the place of the first step that TLC refuses, that behind the last for its end; or None."""
    outcome = _check(module, runs, shows=True)
    through: dict[Any, Any] = dict.fromkeys(range(1, len(runs) + 1), 0)
    through |= {said[0]: said[1] for said in sorted(_numbers_said("through", outcome))}
    through |= dict.fromkeys(run for (run,) in _numbers_said("accepted", outcome))
    return [*through.values()]


def _check(module: str, runs: Sequence[Mapping[str, Any]], *, shows: bool) -> tlc.Outcome:
    trace = f"{module}Trace"
    lines = [f"---- MODULE {trace}Data ----", "EXTENDS Integers"]
    lines += [f"Run{number} == {tla(run)}" for number, run in enumerate(runs, 1)]
    lines.append(f"Runs == <<{', '.join(f'Run{number}' for number in range(1, len(runs) + 1))}>>")
    data = "\n".join([*lines, "===="]) + "\n"
    outcome = run_on(trace, (module, trace), data, CONFIG.format(shows=tla(shows)))
    if outcome.code != tlc.PASSED:
        raise tlc.TlcError(f"{trace}: {outcome.verdict}\n{outcome.output[-2000:]}")
    return outcome


def _numbers_said(word: str, outcome: tlc.Outcome) -> list[tuple[int, ...]]:
    found = re.findall(rf'<<"{word}", ([\d, ]+)>>', outcome.output)
    return [tuple(map(int, each.split(","))) for each in found]


def tla(value: Any) -> str:
    """A value in TLA+: tuples for sequences, records for mappings."""
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case Mapping():
            return "[" + ", ".join(f"{name} |-> {tla(each)}" for name, each in value.items()) + "]"
        case set():
            return "{" + ", ".join(map(tla, sorted(value))) + "}"
        case _:
            return tuple_of(map(tla, value))
