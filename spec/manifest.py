"""Reads the manifests: what each TLC run is given, and what it must find.

Called by `spec.run`, `spec.graph` and the tests. A manifest is a file `manifest*.toml` in this folder.

    [like.NAME]            what several runs have in common, by the same keys as a run
    [[run]]
    name = "..."           unique among all manifests
    like = "NAME"          takes the keys of [like.NAME]; the run's own come on top (`constants` key by key)
    module = "Mailbox"     Mailbox.tla
    set = "quick"          or "full": the quick ones run in `make test-all`, all of them in `make spec`
    workers = 1            threads of TLC; a run that violates something needs 1, to be the same each time
    specification = "Spec"
    invariants = ["..."]   properties = ["..."]   constraints = ["..."]   view, symmetry = "..."
    deadlock = false       whether a state without a next step is a mistake
    constants = {N = 3}    a number, a boolean, a string; what begins with "= " or "<- " is TLA+: "= {a, b}"
    exit = 0               TLC's exit code: 0, 10 (assumption), 11 (deadlock), 12 (safety), 13 (a property)
    violates = "..."       the property by name, if the exit code is 12 or 13; a temporal one must be alone
    states = 123           distinct states
    never = ["..."]        actions that this run excludes on purpose; every other must fire
    about = "..."          what it shows, in words
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from .tlc import CODES, SPEC

# Python 3.10 has no tomllib; pytest brings its twin there.
tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


class ManifestError(Exception):
    """A manifest says something that it cannot mean."""


@dataclass(frozen=True)
class Run:
    """One configuration and what it must find; the module's docstring explains the fields."""

    name: str
    module: str
    file: Path
    set: str = "full"
    workers: int = 1
    specification: str = "Spec"
    invariants: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    view: str = ""
    symmetry: str = ""
    deadlock: bool = False
    constants: tuple[tuple[str, Any], ...] = ()
    exit: int = 0
    violates: str = ""
    states: int = 0
    never: tuple[str, ...] = ()
    about: str = ""

    @property
    def quick(self) -> bool:
        """True if it is in the quick set."""
        return self.set == "quick"

    def config(self) -> str:
        """The text of TLC's configuration file."""
        lines = [f"SPECIFICATION {self.specification}", f"CHECK_DEADLOCK {str(self.deadlock).upper()}"]
        lines += [f"INVARIANT {name}" for name in self.invariants]
        lines += [f"PROPERTY {name}" for name in self.properties]
        lines += [f"CONSTRAINT {name}" for name in self.constraints]
        lines += [f"VIEW {self.view}"] if self.view else []
        lines += [f"SYMMETRY {self.symmetry}"] if self.symmetry else []
        lines += [f"CONSTANT {name} {as_tla(value)}" for name, value in self.constants]
        return "\n".join(lines) + "\n"


def as_tla(value: object) -> str:
    """A constant's right side, with its sign: `= 3`, `= "x"`, `<- Definition`."""
    if isinstance(value, bool):
        return f"= {str(value).upper()}"
    if isinstance(value, int):
        return f"= {value}"
    if isinstance(value, str):
        return value if value.startswith(("= ", "<- ")) else f'= "{value}"'
    raise ManifestError(f"a constant is a number, a boolean or a string, not {value!r}")


def manifests(folder: Path = SPEC) -> list[Path]:
    """The files that are manifests."""
    return sorted(folder.glob("manifest*.toml"))


def read_all(folder: Path = SPEC) -> list[Run]:
    """The runs of all manifests. Raises ManifestError if one makes no sense, or a name comes twice."""
    runs: dict[str, Run] = {}
    for file in manifests(folder):
        for run in read_one(file):
            if run.name in runs:
                raise ManifestError(
                    f"the run {run.name} stands in {runs[run.name].file.name} and in {file.name}"
                )
            runs[run.name] = run
    return list(runs.values())


def read_one(file: Path) -> Iterator[Run]:
    """The runs of one manifest."""
    content = tomllib.loads(file.read_text())
    common: dict[str, dict[str, Any]] = content.get("like", {})
    known = {field.name for field in fields(Run)} - {"file"}
    for own in content.get("run", []):
        name = own.get("name", "(without a name)")
        base = own.pop("like", None)
        if base is not None and base not in common:
            raise ManifestError(f"{file.name}: run {name}: there is no [like.{base}]")
        shared = common[base] if base else {}
        keys = {**shared, **own, "constants": {**shared.get("constants", {}), **own.get("constants", {})}}
        if set(keys) - known:
            raise ManifestError(f"{file.name}: run {name}: unknown {sorted(set(keys) - known)}")
        keys["constants"] = list(keys["constants"].items())
        words: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
        run = Run(file=file, **words)
        check(run)
        yield run


def check(run: Run) -> None:
    """Raises ManifestError if the run's expectations cannot be compared with what TLC says."""
    where = f"{run.file.name}: run {run.name}"
    if run.set not in ("quick", "full"):
        raise ManifestError(f"{where}: set must be quick or full, not {run.set!r}")
    if run.exit not in CODES:
        raise ManifestError(f"{where}: exit must be one of {sorted(CODES)}, not {run.exit}")
    if bool(run.violates) != (run.exit in (12, 13)):
        raise ManifestError(f"{where}: the exit codes 12 and 13, and only they, come with `violates`")
    if run.exit != 0 and run.workers != 1:
        raise ManifestError(f"{where}: a run that finds a mistake needs workers = 1")
    if run.exit == 13 and run.properties != (run.violates,):
        raise ManifestError(
            f"{where}: TLC does not name a temporal property: {run.violates} must be the only one"
        )
    if run.exit == 12 and run.violates not in run.invariants:
        raise ManifestError(f"{where}: {run.violates} is not one of its invariants")


def update_states(run: Run, states: int) -> None:
    """Writes the number of states of one run into its manifest."""
    blocks = re.split(r"(?m)^(?=\[)", run.file.read_text())
    for place, block in enumerate(blocks):
        if block.startswith("[[run]]") and re.search(rf'(?m)^name = "{re.escape(run.name)}"$', block):
            line = f"states = {states}"
            replaced, count = re.subn(r"(?m)^states = .*$", line, block)
            blocks[place] = replaced if count else re.sub(r"(?m)^(name = .*)$", rf"\1\n{line}", block)
    run.file.write_text("".join(blocks))
