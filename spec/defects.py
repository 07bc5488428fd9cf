"""Defects that builds for tests plant in the kernel, to see which check catches which.

    python -m spec.defects [NAME...]      shows what each of them changes

What is shipped knows none. A file of `spec/defects` holds those of one part of the kernel. A defect says what
it does, and for one place or more what is right there, a text that the source file has once, whatever its
white space, and what is wrong. If only a piece of that text is replaced, it stands between « and ».

    part = "the mail"
    file = "kernel/include/pillarbox_mail.h"

    [claim_twice]
    about = "a mail that waits can be put again"
    right = "if («queued.load(std::memory_order_acquire)») return false;"
    wrong = "false"
    [[claim_twice.and]]
    right = ...

A build for tests has all that are in headers: each place becomes a choice, and the environment variable
PILLARBOX_DEFECT, read when the kernel is loaded, says which one is wrong. So one build serves all. Statements
become an `if`, anything else a conditional expression: `wrong` must fit there. Places may lie in each other,
but not overlap.

A defect may be in any other file of the package too, Python or Cython. `variants.with_defect` makes a copy of
the package in which it is planted: `wrong` stands there as it is, so its second line and those after it have
their indentation.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .manifest import tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "spec" / "defects"
KEYS = {"about", "right", "wrong", "file", "and"}
# Files of FOLDER, in the order of the table of `spec/README.md`.
PARTS = (
    "lock_free_inbox", "oracle", "mail", "mailbox", "queue", "handover", "deadlines", "waits", "c_interface",
    "collector", "modules", "processor", "task", "chain", "operator", "runners", "scheduler", "per_key",
    "hedging", "ledger_session", "claims", "holder", "cache", "results", "rows", "stream", "fetchers",
    "parquet", "endpoints", "clients", "tokens", "coordinator", "slots", "facts", "learned_limits", "breaker",
    "adaptive", "job", "frames", "models",
)  # fmt: skip


class DefectError(Exception):
    """A defect that cannot be planted, or is not written as it must be."""


@dataclass(frozen=True)
class Place:
    """The change of a defect in one place: `file` is relative to the project."""

    file: str
    right: str
    wrong: str

    def span(self, text: str) -> tuple[int, int]:
        """The begin and end of the piece that is replaced. DefectError unless the file's text has it once."""
        before, opened, rest = self.right.partition("«")
        inside, _, after = rest.partition("»")
        if not opened:
            before, inside = "", self.right
        found = list(re.finditer(f"{spaced(before)}({spaced(inside)}){spaced(after)}", text))
        if len(found) != 1:
            raise DefectError(f"{self.file} must have this once, not {len(found)} times:\n{self.right}")
        return found[0].span(1)


def spaced(text: str) -> str:
    """A pattern for a text with any white space where it has some."""
    return "".join(r"\s+" if part.isspace() else re.escape(part) for part in re.split(r"(\s+)", text))


@dataclass(frozen=True)
class Seeded:
    """A defect: its name, the part of the kernel that it is in, what it does, and where."""

    name: str
    part: str
    about: str
    places: tuple[Place, ...]

    @property
    def in_headers(self) -> bool:
        """True if a place of it is in a header, so that a build for tests can have it."""
        return any(place.file.endswith(".h") for place in self.places)

    @property
    def copied(self) -> tuple[str, ...]:
        """The files that it changes and that are not headers: it needs a copy of the package."""
        return tuple(dict.fromkeys(place.file for place in self.places if not place.file.endswith(".h")))


def seeded() -> list[Seeded]:
    """All defects, in the order of the table. DefectError for one that is not written as it must be."""
    found = [defect for part in PARTS for defect in read(FOLDER / f"{part}.toml")]
    names = [defect.name for defect in found]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DefectError(f"named twice: {', '.join(twice)}")
    return found


def read(file: Path) -> list[Seeded]:
    """The defects of a file."""
    content: dict[str, Any] = tomllib.loads(file.read_text())
    part, usual = content.pop("part"), content.pop("file")
    found = []
    for name, entry in content.items():
        changes = [entry, *entry.get("and", ())]
        complete = all({"right", "wrong"} <= set(change) <= KEYS for change in changes)
        if not complete or not entry.get("about"):
            raise DefectError(f"{file.name}: {name} must have about, right, wrong, and may have file, and")
        places = tuple(
            Place(change.get("file", usual), change["right"].strip(), change["wrong"].strip())
            for change in changes
        )
        found.append(Seeded(name, part, entry["about"], places))
    return found


@dataclass
class Span:
    """A piece of a text, the places that replace it, by defect, and the pieces in it."""

    start: int
    end: int
    wrong: dict[str, str]
    inside: list[Span]

    def add(self, name: str, start: int, end: int, wrong: str) -> None:
        """Adds a place within this piece. DefectError if it overlaps with another one."""
        for span in self.inside:
            if (start, end) == (span.start, span.end):
                span.wrong[name] = wrong
                return
            if span.start <= start and end <= span.end:
                span.add(name, start, end, wrong)
                return
        within = [span for span in self.inside if start <= span.start and span.end <= end]
        others = [span for span in self.inside if span not in within]
        for span in others:
            if start < span.end and span.start < end:
                raise DefectError(f"{name} overlaps with {', '.join(span.wrong)}")
        self.inside = [*others, Span(start, end, {name: wrong}, within)]
        self.inside.sort(key=lambda span: span.start)

    def rendered(self, text: str, choose: Callable[[str, dict[str, str]], str]) -> str:
        """The piece, with what `choose` makes of the right text and the wrong ones for each piece in it."""
        said, end = "", self.start
        for span in self.inside:
            said += text[end : span.start] + choose(span.rendered(text, choose), span.wrong)
            end = span.end
        return said + text[end : self.end]


def spans(file: str, text: str, defects: Iterable[Seeded]) -> Span:
    """The text of a file, and where defects change it."""
    whole = Span(0, len(text), {}, [])
    for defect in defects:
        for place in defect.places:
            if place.file == file:
                whole.add(defect.name, *place.span(text), place.wrong)
    return whole


def choice(right: str, wrong: dict[str, str]) -> str:
    """Both forms in C++: which one it is, the environment says when the kernel is loaded."""
    if right.rstrip().endswith((";", "}")):
        said = f"{{ {right} }}"
        for name, form in wrong.items():
            said = f"if (PILLARBOX_PLANTED({name})) {{ {form} }} else {said}"
        return f"{{ {said} }}"
    for name, form in wrong.items():
        right = f"(PILLARBOX_PLANTED({name}) ? ({form}) : ({right}))"
    return right


def plantable(file: str, text: str, defects: Iterable[Seeded]) -> str:
    """The text of a header with all these defects in it, to be chosen from."""
    found = spans(file, text, defects)
    if not found.inside:
        return text
    said = found.rendered(text, choice)
    return said.replace("#pragma once\n", '#pragma once\n\n#include "pillarbox_defects.h"\n', 1)


def names_header(defects: Iterable[Seeded]) -> str:
    """The header that `pillarbox_defects.h` reads the names from."""
    names = " ".join(f"X({defect.name})" for defect in defects if defect.in_headers)
    return f"#define PILLARBOX_DEFECT_LIST(X) {names}\n"


def with_one(file: str, text: str, defect: Seeded) -> str:
    """The text of a file with one defect."""
    return spans(file, text, [defect]).rendered(text, lambda right, wrong: wrong[defect.name])


def difference(defect: Seeded) -> str:
    """The change as a unified diff."""
    said = ""
    for file in dict.fromkeys(place.file for place in defect.places):
        text = (ROOT / file).read_text()
        lines = text.splitlines(True), with_one(file, text, defect).splitlines(True)
        said += "".join(difflib.unified_diff(*lines, file, f"{file} with {defect.name}"))
    return said


def main(names: list[str]) -> int:
    """Shows the defects that are named, or all."""
    defects = [defect for defect in seeded() if not names or defect.name in names]
    unknown = set(names) - {defect.name for defect in defects}
    if unknown:
        print(f"no such defect: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for defect in defects:
        print(f"{defect.name}: {defect.about}\n{difference(defect)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
