"""Plants each seeded defect in the kernel and in what is above it, and says which checks notice.

    python -m spec.mutation [--jobs N] [--seed N] [DEFECT...]      the first pass, a part of `make mutation`
    python -m spec.mutation --all-layers [DEFECT...]               every layer: hours
    python -m spec.mutation --layers NAME,... [DEFECT...]          some layers
    python -m spec.mutation --missing [DEFECT...]                  what the tables do not answer

The first pass asks of each defect only what noticed it before. The tests of Python whose contracts say that
they convict it must each do so. Where none of these does, `spec/noticed.json` has the layer and, in it, the
test or the scenario that did. A defect that is not noticed so any more is tried by whole layers, first by
those that caught it, until one does, before it counts as surviving. One that is in no record yet is tried by
all.

What is found of a defect goes at once into the tables of `spec/README.md`: which layer catches which defect,
and how many there are of each source file. A defect that only makes a check run out of time counts apart from
those that are caught: a machine with too much to do looks the same. Exits with 1 if a defect survives, if a
test does not notice what its contract says it does, or if a check fails with nothing planted.
`spec/layers.py` has the layers and their limits of time, `spec/defects.py` says how defects are planted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from . import contracts, layers
from .defects import Seeded, seeded
from .layers import ABOVE, CAUGHT, LAYERS, TIMED_OUT, UNNOTICED, GoneError, Layer, Pace, Step, UnplantedError
from .variants import ROOT

README = ROOT / "spec" / "README.md"
NOTICED = ROOT / "spec" / "noticed.json"
BEGIN, END = "<!-- written by make mutation -->", "<!-- end -->"
# What else a cell of the table says: the layer does not look at the defect's part, or is still to try it.
NOT_LOOKING, NOT_TRIED = "-", "?"
# Sections of contracts that plant their defects themselves: native programs, models, CrossHair.
PLANT_THEMSELVES = ("native", "spec", "testing")

# By defect and layer: how the check has ended.
Results = Mapping[str, Mapping[str, str]]


@dataclass
class Found:
    """The findings of a run about one defect: by layer, tests that do not convict it, those that are late."""

    result: dict[str, str] = field(default_factory=dict)
    spared: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    by: tuple[str, str] | None = None
    """The layer, and the test or program in it, to be asked first another time."""

    @property
    def verdict(self) -> str:
        """CAUGHT, or TIMED_OUT at best, or UNNOTICED."""
        return verdict(self.result) or (TIMED_OUT if self.late else UNNOTICED)


def accusers(defect: Seeded) -> list[str]:
    """The tests of Python that are to notice a defect planted in a build, as their contracts say."""
    found = contracts.convictions().get(defect.name, [])
    return [test for test in found if Path(test).parts[1] not in PLANT_THEMSELVES]


def first_pass(defect: Seeded, pace: Pace, known: Results, noticed: Mapping[str, tuple[str, str]]) -> Found:
    """Asks what noticed the defect before, then layers until one does; all if nothing is known of it."""
    found = convicted(defect, pace)
    if defect.name not in known:
        return every_layer(defect, LAYERS, pace, {}, found)
    if verdict(found.result) != CAUGHT and defect.name in noticed:
        ask(found, defect, *noticed[defect.name], pace)
    if verdict(found.result) != CAUGHT:
        for layer in in_order(defect, known[defect.name]):
            try_layer(found, defect, layer, pace)
            if found.result[layer.name] == CAUGHT:
                break
    return found


def in_order(defect: Seeded, before: Mapping[str, str]) -> list[Layer]:
    """The layers that look at a defect: those first that caught it, of these the one with schedules.

    It finds the same each time, however busy the machine is, and a scenario of it takes a second.
    """
    looking = [layer for layer in LAYERS if defect.part in layer.parts]
    return sorted(looking, key=lambda layer: (before.get(layer.name) != CAUGHT, layer.name != "schedules"))


def convicted(defect: Seeded, pace: Pace) -> Found:
    """Runs each test that is to notice the defect: a contract says that it does."""
    found = Found()
    for test in accusers(defect):
        step = Step((test,))
        ended = layers.run(step, defect, pace.limits(step))
        if not ended.said:
            found.spared.append(test)
        elif ended.said == TIMED_OUT:
            found.late.append(test)
        else:
            found.result |= {layer.name: CAUGHT for layer in LAYERS if layer.has(test, defect)}
    return found


def ask(found: Found, defect: Seeded, name: str, by: str, pace: Pace) -> None:
    """Runs what a record names; a test that is gone, or fails without the defect too, says nothing."""
    layer = next((each for each in LAYERS if each.name == name and defect.part in each.parts), None)
    if layer is None:
        return
    step = layer.step(by)
    try:
        ended = layers.run(step, defect, pace.limits(step))
    except (GoneError, UnplantedError):
        return
    if ended.said == CAUGHT:
        found.result[name] = CAUGHT
        found.by = (name, by)
    elif ended.said == TIMED_OUT:
        found.late.append(by)


def try_layer(found: Found, defect: Seeded, layer: Layer, pace: Pace) -> None:
    """Runs a layer whole."""
    ended = layer.check(defect, pace)
    found.result[layer.name] = ended.said
    # A test that convicts it as its contract says needs no other record.
    is_asked_first = not accusers(defect) or bool(found.late or found.spared)
    if ended.said == CAUGHT and found.by is None and is_asked_first:
        found.by = (layer.name, ended.by)


def every_layer(
    defect: Seeded, wanted: Sequence[Layer], pace: Pace, known: Results, found: Found | None = None
) -> Found:
    """For each of these layers that looks at the part, and whose answer is not known: how its check ends."""
    found = found or Found()
    for layer in to_try(defect, wanted, known):
        try_layer(found, defect, layer, pace)
    return found


def to_try(defect: Seeded, wanted: Sequence[Layer], known: Results) -> list[Layer]:
    """Those of the layers that look at the defect's part, and whose answer is not known."""
    answered = known.get(defect.name, {})
    return [layer for layer in wanted if defect.part in layer.parts and layer.name not in answered]


def time_accusers(defects: Sequence[Seeded], pace: Pace, pool: ThreadPoolExecutor, jobs: int) -> None:
    """Times the tests that are to convict these, many in a process."""
    files: dict[str, list[str]] = {}
    for test in sorted({test for defect in defects for test in accusers(defect)}):
        files.setdefault(test.split("::")[0], []).append(test)
    shares: list[list[str]] = [[] for _ in range(jobs)]
    for tests in sorted(files.values(), key=len, reverse=True):
        min(shares, key=len).extend(tests)
    for _ in pool.map(pace.time_tests, filter(None, shares)):
        pass


def read_noticed() -> dict[str, tuple[str, str]]:
    """By defect: the layer, and the test or program in it, that noticed it where no contract names one."""
    if not NOTICED.exists():
        return {}
    content: dict[str, dict[str, str]] = json.loads(NOTICED.read_text())
    return {name: (entry["layer"], entry["by"]) for name, entry in content.items()}


def write_noticed(noticed: Mapping[str, tuple[str, str]]) -> None:
    """Keeps the entries of the defects that there are, in their order, a line for each."""
    entries = [(each.name, *noticed[each.name]) for each in seeded() if each.name in noticed]
    lines = [f'  "{name}": {json.dumps({"layer": layer, "by": by})}' for name, layer, by in entries]
    NOTICED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def recorded(text: str) -> dict[str, dict[str, str]]:
    """By defect and layer: what a text with the tables says of those that there are."""
    known = {f"`{defect.name}`": defect.name for defect in seeded()}
    layers = {layer.name for layer in LAYERS}
    names: list[str] = []
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        row = [cell.strip() for cell in line.split("|")[1:-1]]
        if row[:1] == ["defect"]:
            names = row[2:]
        elif len(row) == len(names) + 2 and row[0] in known:
            cells = zip(names, row[2:], strict=True)
            answers = {
                name: cell for name, cell in cells if name in layers and cell not in (NOT_LOOKING, NOT_TRIED)
            }
            if answers:
                found[known[row[0]]] = answers
    return found


def remembered() -> dict[str, dict[str, str]]:
    """The results of earlier runs, from the README."""
    return recorded(README.read_text().split(BEGIN)[1].split(END)[0])


def remember(defect: Seeded, found: Found) -> None:
    """Adds to what the README has, and notes by what the defect was noticed if no contract's test did."""
    results = remembered()
    results[defect.name] = results.get(defect.name, {}) | found.result
    write(f"{table(results)}\n\n{coverage(results)}")
    if found.by is not None:
        noticed = read_noticed()
        if noticed.get(defect.name) != found.by:
            write_noticed(noticed | {defect.name: found.by})


def verdict(result: Mapping[str, str]) -> str:
    """The verdict of all layers on a defect: CAUGHT by one of them, or TIMED_OUT at best, or UNNOTICED."""
    return next((each for each in (CAUGHT, TIMED_OUT) if each in result.values()), UNNOTICED)


def table(results: Results) -> str:
    """The tables of the README, of the kernel and of what is above it: a row for each tried defect."""
    of_kernel = [layer for layer in LAYERS if not set(layer.parts) & set(ABOVE)]
    return "\n\n".join(
        table_of(results, layers, [defect for defect in seeded() if (defect.part in ABOVE) == is_above])
        for is_above, layers in (
            (False, of_kernel),
            (True, [each for each in LAYERS if each not in of_kernel]),
        )
    )


def table_of(results: Results, layers: Sequence[Layer], defects: Sequence[Seeded]) -> str:
    """One of the tables, with these columns. `recorded` reads it."""
    names = [layer.name for layer in layers]
    lines = [f"| defect | what it does | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    tried_ones = [defect for defect in defects if defect.name in results]
    for defect in tried_ones:
        result = results[defect.name]
        open_ = {layer.name: NOT_TRIED for layer in to_try(defect, layers, results)}
        cells = [result.get(name, open_.get(name, NOT_LOOKING)) for name in names]
        lines.append(f"| `{defect.name}` | {defect.about} | {' | '.join(cells)} |")
    counts = []
    for name in names:
        found = [results[defect.name][name] for defect in tried_ones if name in results[defect.name]]
        late = found.count(TIMED_OUT)
        counts.append(f"{found.count(CAUGHT)} of {len(found)}" + (f", time-out {late}" if late else ""))
    lines.append(
        f"| **{len(tried_ones)} of {len(defects)} defects** | caught, of those tried | {' | '.join(counts)} |"
    )
    return "\n".join(lines)


def coverage(results: Results) -> str:
    """The table of source files: how many defects there are in each, and what became of them.

    A defect in several files counts in each, and as not tried while a layer is still to look that
    may notice it. Below the table: the files of the kernel, and of the folders in ABOVE, that have none.
    """
    files: dict[str, list[str]] = {}
    for defect in seeded():
        said = verdict(results.get(defect.name, {}))
        if said != CAUGHT and to_try(defect, LAYERS, results):
            said = NOT_TRIED
        for file in {place.file for place in defect.places}:
            files.setdefault(file, []).append(said)
    lines = ["| source file | defects | caught | time-out only | unnoticed | not tried |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for file, found in sorted(files.items()):
        counts = [found.count(each) for each in (CAUGHT, TIMED_OUT, UNNOTICED, NOT_TRIED)]
        lines.append(f"| `{file}` | {len(found)} | {' | '.join(map(str, counts))} |")
    without = [f"`{file}`" for file in sources() if file not in files]
    return "\n".join([*lines, "", f"Without a planted defect: {', '.join(without) or 'none'}."])


def sources() -> list[str]:
    """The kernel's files, and those of the folders in ABOVE."""
    folders = {f"pyruntime/{Path(tested).parts[1]}" for part in ABOVE.values() for tested in part}
    patterns = ["kernel/include/*.h", "kernel/*.pyx", *(f"{folder}/*.py" for folder in sorted(folders))]
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py"]


def write(text: str) -> None:
    """Puts the tables into the README, between their marks."""
    before, rest = README.read_text().split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def chosen(options: argparse.Namespace, known: Results) -> Callable[[Seeded, Pace], Found]:
    """The check that is made of each defect."""
    if not (options.all_layers or options.missing or options.layers):
        noticed = read_noticed()
        return lambda defect, pace: first_pass(defect, pace, known, noticed)
    wanted = wanted_layers(options)
    answered = known if options.missing else {}
    return lambda defect, pace: every_layer(defect, wanted, pace, answered)


def wanted_layers(options: argparse.Namespace) -> list[Layer]:
    """The layers that are asked for, all if none is named."""
    return [layer for layer in LAYERS if options.layers is None or layer.name in options.layers]


def found_of(
    defects: Sequence[Seeded], check: Callable[[Seeded, Pace], Found], jobs: int, *, accused: bool
) -> Iterator[tuple[Seeded, Found]]:
    """The findings of `check`, each as it ends. With `accused` the tests of contracts are timed before."""
    pace = Pace()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            if accused:
                time_accusers(defects, pace, pool, jobs)
            asked = {pool.submit(check, defect, pace): defect for defect in defects}
            for done in as_completed(asked):
                yield asked[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def said_of(defect: Seeded, found: Found) -> str:
    """The line that tells what a run has found of a defect."""
    by = [name if said == CAUGHT else f"{name} ({said})" for name, said in found.result.items() if said]
    by += [f"{test} (time-out)" for test in found.late]
    spared = [f"NOT NOTICED by {test}" for test in found.spared]
    return f"{defect.name}: {', '.join([*by, *spared]) if found.verdict else 'SURVIVES'}"


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m spec.mutation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="defects at a time")
    parser.add_argument("--all-layers", action="store_true", help="each layer, whatever noticed it before")
    parser.add_argument(
        "--layers", type=lambda each: each.split(","), metavar="NAME,...", help="these layers"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="in a random order, the same for the same N")
    parser.add_argument("--missing", action="store_true", help="only what the README's tables do not answer")
    parser.add_argument("defects", nargs="*", metavar="DEFECT")
    options = parser.parse_args(words)
    unknown = set(options.defects) - {defect.name for defect in seeded()}
    unknown |= set(options.layers or ()) - {layer.name for layer in LAYERS}
    if unknown:
        parser.error(f"neither a defect nor a layer: {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    """Plants the defects that are named, or all."""
    options = options_of()
    begin = time.monotonic()
    known = remembered()
    defects = [defect for defect in seeded() if not options.defects or defect.name in options.defects]
    if options.seed is not None:
        random.Random(options.seed).shuffle(defects)
    whole = options.all_layers or options.missing or bool(options.layers)
    if whole:
        wanted, answered = wanted_layers(options), known if options.missing else {}
        defects = [defect for defect in defects if to_try(defect, wanted, answered)]
    check = chosen(options, known)
    results: dict[str, Found] = {}
    try:
        for defect, found in found_of(defects, check, options.jobs, accused=not whole):
            remember(defect, found)
            results[defect.name] = found
            print(said_of(defect, found), flush=True)
    except UnplantedError as error:
        print(f"with no defect planted, this fails: {error}", file=sys.stderr)
        return 1
    return closing(results, time.monotonic() - begin, whole=whole)


def closing(results: Mapping[str, Found], seconds: float, *, whole: bool) -> int:
    """Prints the last lines of a run; returns its exit status."""
    known = remembered()
    if left := [defect for defect in seeded() if to_try(defect, LAYERS, known)]:
        print(f"--missing tries {len(left)} more defects, which not every layer has tried")
    # What another layer caught before counts where some layers only were asked for.
    verdicts = {
        name: verdict(known[name]) if whole and not found.late else found.verdict
        for name, found in results.items()
    }
    surviving = [name for name, said in verdicts.items() if said == UNNOTICED]
    late = [name for name, said in verdicts.items() if said == TIMED_OUT]
    spared = [(test, name) for name, found in results.items() for test in found.spared]
    for test, name in spared:
        print(f"{test} does not notice {name}")
    if late:
        print(f"{len(late)} only make a check run out of time: {' '.join(late)}")
    print(
        f"{len(results)} defects, {len(surviving)} survive {' '.join(surviving)}".rstrip()
        + f" ({seconds:.0f} s)"
    )
    return 1 if surviving or spared else 0


if __name__ == "__main__":
    sys.exit(main())
