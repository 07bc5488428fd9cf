"""Weakens each memory order of the kernel's headers by one step, and says which layer of checks convicts it.

    python -m spec.orders [NAME...]     tries all of them, or some; part of `make mutation`
    python -m spec.orders write         writes the table of `spec/README.md`

`spec/orders.toml` has an entry for each order that is stronger than relaxed: by what each weaker form is
found, or why it cannot be. Two layers find them: the scheduler with stale reads, which tries what C++ allows,
and ThreadSanitizer, where two threads pass plain data on. Exits with 1 if a form is not convicted where its
entry says so, if one that is explained is convicted by anything, or if the headers as they are fail.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import native
from .defects import DefectError, Place, Seeded
from .headers import SHIPPED
from .manifest import tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "spec" / "orders.toml"
README = ROOT / "spec" / "README.md"
BEGIN, END = "<!-- written by python -m spec.orders write -->", "<!-- end of the orders -->"

WEAKER = {
    "acquire": ("relaxed",),
    "release": ("relaxed",),
    "acq_rel": ("acquire", "release"),
    "seq_cst": ("acq_rel",),
}
"""The forms of an order that are one step weaker. `consume` is not used: compilers take it for `acquire`."""
ORDER = re.compile(r"std::memory_order_(?!relaxed)(\w+)")
OPERATION = re.compile(r"[.>](?:load|store|exchange|compare_exchange_\w+|fetch_(?:add|sub|and|or|xor))\(")

SCHEDULED = ("-O2", "-DPILLARBOX_SCHED")
RACES = ("-fsanitize=thread",)
# Preemptions, operations that do not see the newest store, random schedules, their seed.
SCHEDULES = ("1", "2", "2000", "1")
PROGRAMS = ("mailbox_schedules", "queue_schedules")


@dataclass(frozen=True)
class Order:
    """An operation of a header and its order; by weaker form where it is convicted, or why it cannot be."""

    name: str
    place: Place
    order: str
    convicts: dict[str, str]
    explained: dict[str, str]

    def weakened(self) -> list[Seeded]:
        """The weaker forms as defects to be planted: `park_relaxed`."""
        return [
            Seeded(
                f"{self.name}_{form}",
                "memory orders",
                f"memory order: {self.order} becomes {form}",
                (Place(self.place.file, self.place.right, self.place.wrong.replace("*", form)),),
            )
            for form in WEAKER[self.order]
        ]


def read(file: Path = TABLE) -> list[Order]:
    """The entries of the table. DefectError for one that does not say what each weaker form does."""
    content: dict[str, dict[str, Any]] = tomllib.loads(file.read_text())
    found = []
    for name, entry in content.items():
        right = entry["right"].strip()
        operation = right.partition("«")[2].partition("»")[0] or right
        orders = ORDER.findall(operation)
        if len(orders) != 1 or orders[0] not in WEAKER:
            raise DefectError(f"{name}: the operation must have one order that is not relaxed: {operation}")
        place = Place(entry["file"], right, ORDER.sub("std::memory_order_*", operation))
        order = Order(name, place, orders[0], entry.get("convicts", {}), entry.get("explained", {}))
        said = sorted([*order.convicts, *order.explained])
        if said != sorted(WEAKER[order.order]):
            expected = ", ".join(WEAKER[order.order])
            raise DefectError(f"{name}: {order.order} must say once what {expected} does, not {said}")
        found.append(order)
    return found


def code(text: str) -> str:
    """A header's text without its comments, each as long as before."""
    return re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)


def unnamed(folder: Path = SHIPPED, orders: list[Order] | None = None) -> list[str]:
    """Orders of the headers, as `FILE:LINE: ORDER`, that no entry of the table is about, or more than one is.

    An operation that names no order counts: it is sequentially consistent.
    """
    orders = read() if orders is None else orders
    found = []
    for path in sorted(folder.glob("*.h")):
        text = code(path.read_text())
        spans = [order.place.span(text) for order in orders if Path(order.place.file).name == path.name]
        places = [(match.start(), match[1]) for match in ORDER.finditer(text)]
        places += [
            (match.start(), "none, which is seq_cst")
            for match in OPERATION.finditer(text)
            if "memory_order" not in text[match.end() : closing(text, match.end())]
        ]
        for place, order in places:
            if sum(start <= place < end for start, end in spans) != 1:
                found.append(f"{path.name}:{text.count(chr(10), 0, place) + 1}: {order}")
    return found


def closing(text: str, start: int) -> int:
    """The place of the bracket that closes the one before `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise DefectError("a bracket is not closed")


def weakened() -> list[Seeded]:
    """Every weaker form of every order."""
    return [form for order in read() for form in order.weakened()]


def tried(program: str, word: str, form: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a scenario or an edge, with a form of an order or with the headers as they are.

    For an empty word, all scenarios of the program.
    """
    environment = native.plant(form)
    if program in PROGRAMS:
        built = native.compiled(program, *SCHEDULED, seeded=weakened())
        return native.run(built, "weak", *SCHEDULES, *word.split(), environment=environment)
    return native.run(native.compiled(program, *RACES, seeded=weakened()), word, environment=environment)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The line that convicts in a run, or nothing. RuntimeError if it ended otherwise."""
    if done.returncode == 0:
        return ""
    if done.returncode == native.REPORTED:
        return "ThreadSanitizer: a data race"
    found = re.search(r"^(\S+ \d+ schedules: (?!ok).*)$", done.stdout, re.MULTILINE)
    if done.returncode == 1 and found is not None:
        return found[1]
    raise RuntimeError(f"{done.args} exits with {done.returncode}:\n{done.stdout}{done.stderr}")


def try_order(order: Order) -> bool:
    """Tries the weaker forms of an order and prints what came out. False if the table says otherwise."""
    well = True
    for form, where in order.convicts.items():
        program, word = where.split()
        found = said(tried(program, word, f"{order.name}_{form}"))
        print(f"{order.name}, {order.order} -> {form}: {program}: {found or 'SURVIVED ' + word}", flush=True)
        well = well and bool(found)
    for form in order.explained:
        runs = [said(tried(program, "", f"{order.name}_{form}")) for program in PROGRAMS]
        runs += [said(tried(program, edge, f"{order.name}_{form}")) for program, edge in native.EDGES]
        found = next(filter(None, runs), "")
        print(f"{order.name}, {order.order} -> {form}: {found or 'explained, found by none'}", flush=True)
        well = well and not found
    return well


def table() -> str:
    """The table of `spec/README.md`."""
    lines = ["| order | operation | weakened to | convicted by, or why it cannot be |", "|---|---|---|---|"]
    for order in read():
        right = order.place.right
        operation = " ".join((right.partition("«")[2].partition("»")[0] or right).split())
        operation = operation.replace("std::memory_order_", "").replace("|", "\\|").replace("( ", "(")
        header = Path(order.place.file).name.removeprefix("pillarbox_")
        for form in WEAKER[order.order]:
            by = f"`{order.convicts[form]}`" if form in order.convicts else order.explained[form]
            lines.append(f"| `{order.name}` | {header}: `{operation}` | {form} | {by} |")
    return "\n".join(lines)


def write() -> None:
    """Puts the table into the README, between its marks."""
    text = README.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


def main(names: list[str]) -> int:
    """Tries the orders that are named, or all, after the headers as they are."""
    if names == ["write"]:
        write()
        return 0
    orders = read()
    unknown = set(names) - {order.name for order in orders}
    if unknown:
        print(f"no such order: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    wrong = unnamed()
    print("\n".join(f"not in {TABLE.name}, or twice: {one}" for one in wrong), end="\n" if wrong else "")
    for program, word in [*((program, "") for program in PROGRAMS), *native.EDGES]:
        found = said(tried(program, word))
        if found:
            wrong.append(f"{program} {word}")
            print(f"the headers as they are: {program} {word}: {found}")
    wrong += [order.name for order in orders if (not names or order.name in names) and not try_order(order)]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
