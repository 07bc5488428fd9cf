"""The task model beside another state of the package, in one run: `python -m bench.task --beside REF`.

REF is a commit, or the path of another checkout whose kernel is built. Both states do the same works in turn,
chunk by chunk, first one and then the other first, in processes of their own; the table has the medians,
the ratio of the medians, and the middle 80 % of the ratios of chunks that lie side by side. `bench/README.md`
says what the lines are. `--only` takes parts; `--size 0.01 --rounds 2` is for a look.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.chunks import Child, ChildFailed, counted, machine, write_json
from bench.peers import costs
from bench.peers.process import PeerFailed, Peers
from bench.table import Column, print_table
from bench.task.states import State, StateFailed, beside, here

LIMIT_S = 600.0
"""Seconds that one job in Spark may take."""
WARM_UP_ROWS = 2_000
COUNTED_ROWS = 2_000
CAPACITY = 256
Values = list[list[float]]
"""Of the state before and of the one now, chunk by chunk."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A bound: at least or at most so much of a figure, which is the ratio or what is measured now."""

    bound: float
    at_least: bool = False
    of_ratio: bool = True

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}{' x' if self.of_ratio else ''}"

    def is_met(self, line: Line) -> bool | None:
        """None if the figure is missing."""
        figure = line.ratio if self.of_ratio else line.now
        if figure is None:
            return None
        return figure >= self.bound if self.at_least else figure <= self.bound


@dataclass
class Line:
    """A line of the table. before, now: the figures of the states, None where there is none."""

    name: str
    unit: str
    before: float | None
    now: float | None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    """The first and the last tenth of the ratios of chunks side by side."""
    instructions: tuple[float, float] | None = None
    """Of an operation, before and now."""
    target: Target | None = None
    note: str = ""


Figure = Callable[[Sequence[float]], float]


def line_of(name: str, unit: str, values: Values, *, figure: Figure = statistics.median, **more: Any) -> Line:
    """The line of values that belong together chunk by chunk; a state without any has no figure."""
    before, now = values
    if not before or not now:
        return Line(name, unit, figure(before) if before else None, figure(now) if now else None, **more)
    ratios = [each / other for each, other in zip(now, before, strict=True) if other]
    tenths = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios
    spread = (tenths[0], tenths[-1]) if ratios else None
    base = figure(before)
    return Line(name, unit, base, figure(now), figure(now) / base if base else None, spread, **more)


def last_hundredth(values: Sequence[float]) -> float:
    """The value that 99 % of the values do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


@dataclass(frozen=True)
class Effort:
    """An amount of work. rounds: chunks of each state in Spark. size: 1 for figures that can be told."""

    rounds: int = 10
    size: float = 1.0
    instructions: bool = True

    def rows(self, full: int, least: int = 20) -> int:
        """So many rows at this size."""
        return max(least, round(full * self.size))


@dataclass(frozen=True)
class Chunked:
    """A work of `bench.task.works`, and how it is told: `scale` makes `unit` of nanoseconds an operation."""

    part: str
    name: str
    words: str
    operations: int
    rounds: int
    """For each round in Spark."""
    unit: str = "us"
    target: Target | None = None
    counted: bool = False

    def told(self, nanoseconds: float) -> float:
        """The value in `unit`."""
        return {"us": nanoseconds / 1e3, "ms": nanoseconds / 1e6, "rows/s": 1e9 / nanoseconds}[self.unit]


NOT_SLOWER = Target(0.98, at_least=True)
NOT_DEARER = Target(1.05)
ORDERS = {"ordered": "in order", "unordered": "as finished"}

CHUNKED = [
    *[
        Chunked(
            "loop", f"loop thread, {name}, {ORDERS[order]}", f"loop {kind} {order}", 20_000, 4, counted=True
        )
        for kind, name, orders in (
            ("row", "coroutine at once", ORDERS),
            ("batch", "Batch(64)", ORDERS),
            ("guarded", "time-out and retry", ["ordered"]),
            ("turn", "a turn of the loop", ["ordered"]),
        )
        for order in orders
    ],
    *[
        Chunked(
            "partition", f"worker's side, {name}, {ORDERS[order]}", f"partition {kind} {order}", 50_000, 2
        )
        for kind, name in (("row", "a row"), ("batch", "Batch(64)"))
        for order in ORDERS
    ],
    *[
        Chunked(
            "throughput",
            f"service, {capacity:,} in flight, {ORDERS[order]}",
            f"serving {capacity} {order}",
            rows,
            1,
            "rows/s",
            NOT_SLOWER,
        )
        for capacity, rows in ((256, 10_000), (1_000, 30_000))
        for order in ORDERS
    ],
]


class Pair:
    """The processes of both states that do one work, as a context manager; `failed` says why one does not."""

    def __init__(self, states: Sequence[State], words: str) -> None:
        self.commands = [
            ("env", f"PYTHONPATH={state.path}", sys.executable, "-m", "bench.task.works", *words.split())
            for state in states
        ]
        self.failed = ["", ""]
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
        self._children: list[Child | None] = []
        for number, command in enumerate(self.commands):
            try:
                self._children.append(self._stack.enter_context(Child(command)))
            except ChildFailed as error:
                self._children.append(None)
                self.failed[number] = str(error).splitlines()[-1]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def chunks(self, operations: int, rounds: int) -> Values:
        """Nanoseconds of an operation, chunk by chunk; the first chunk of each is not told."""
        values: Values = [[], []]
        for number in range(rounds + 1):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                child = self._children[which]
                if child is not None:
                    value = child.chunk(operations)
                    if number:
                        values[which].append(value)
        return values


def chunked_lines(part: str, states: Sequence[State], effort: Effort, say: Say) -> Iterator[Line]:
    """The lines of a part whose works are those of `bench.task.works`."""
    count = effort.instructions and shutil.which("valgrind") is not None
    for work in CHUNKED:
        if work.part != part:
            continue
        say(work.name)
        with Pair(states, work.words) as pair:
            values = pair.chunks(effort.rows(work.operations), max(1, effort.rounds * work.rounds))
        told = [[work.told(value) for value in chunks] for chunks in values]
        line = line_of(work.name, work.unit, told, target=work.target, note=_why(pair.failed))
        if count and work.counted and not any(pair.failed):
            rows = effort.rows(COUNTED_ROWS)
            before, now = (counted(command, rows)[0] for command in pair.commands)
            line.instructions = before, now
        yield line


def checkpoint_lines(states: Sequence[State], effort: Effort, say: Say) -> Iterator[Line]:
    """The phase of a checkpoint on the mailbox thread: the median, and 99 % of them."""
    for entries, bounds in ((1_000, (1.5, 5.0)), (8_000, (15.0, None))):
        say(f"checkpoint, {entries:,} rows held")
        with Pair(states, f"checkpoint {entries}") as pair:
            values = pair.chunks(1, max(2, effort.rows(40, 1) * effort.rounds))
        told = [[value / 1e6 for value in chunks] for chunks in values]
        for what, figure, bound in (
            ("median", statistics.median, bounds[0]),
            ("99 %", last_hundredth, bounds[1]),
        ):
            target = None if bound is None else Target(bound, of_ratio=False)
            name = f"checkpoint, {entries:,} rows held, {what}"
            yield line_of(name, "ms", told, figure=figure, target=target, note=_why(pair.failed))


def chain_lines(states: Sequence[State], effort: Effort, say: Say) -> Iterator[Line]:
    """Two functions without Spark: in turn, and a chain beside that."""
    for each, unit, rows, bound in (
        ("service", "rows/s", 5_000, Target(1.5, at_least=True)),
        ("nothing", "us", 20_000, None),
    ):
        work = Chunked("chain", "", "", rows, 1, unit)
        said = f"two functions, {'a service of 20 ms' if each == 'service' else 'at once'}, without Spark"
        say(said)
        with Pair(states, f"stages turn {each}") as in_turn, Pair(states, f"stages chain {each}") as chain:
            turn: Values = [[], []]
            both: Values = [[], []]
            for _ in range(max(1, effort.rounds // 2)):
                # Two chunks of each, so that both states are first once.
                for values, pair in ((turn, in_turn), (both, chain)):
                    for kept, new in zip(values, pair.chunks(effort.rows(rows), 2), strict=True):
                        kept += [work.told(value) for value in new]
        yield line_of(f"{said}: one job after the other", unit, turn)
        yield _beside_in_turn(f"{said}: a chain", unit, turn, both, bound, _why(chain.failed))


def _beside_in_turn(
    name: str, unit: str, turn: Values, chain: Values, target: Target | None, note: str
) -> Line:
    """The line of a chain, whose ratio is to the two in turn of the same state."""
    line = line_of(f"{name} (ratio: to that, now)", unit, [turn[1], chain[1]] if chain[1] else [[], []])
    line.before = statistics.median(chain[0]) if chain[0] else None
    line.target, line.note = target, note
    return line


def _why(failed: Sequence[str]) -> str:
    words = [f"{name}: {why}" for name, why in zip(("before", "now"), failed, strict=True) if why]
    return "; ".join(words).replace("bench.peers.jobs.NotThereYet: ", "not there yet, ")


class Sessions:
    """A session of Spark for each state, as a context manager; each does the jobs of `bench.peers`."""

    def __init__(self, states: Sequence[State], logs: Path) -> None:
        self._peers = [
            Peers(lambda _: Path(sys.executable), logs / name, state.path)
            for name, state in zip(("before", "now"), states, strict=True)
        ]

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *error: object) -> None:
        for peers in self._peers:
            peers.__exit__(None, None, None)

    def peers(self, which: int) -> Peers:
        """Those of a state."""
        return self._peers[which]

    def rounds(
        self, jobs: Mapping[str, dict[str, Any]], rounds: int, measure: Callable[..., float], say: Say
    ) -> tuple[dict[str, Values], dict[str, list[str]]]:
        """Figures that `measure` tells of each job, by name, and the reason for each that is missing.

        One round before is not told.

        measure: is given the process of a state, a job and seconds, as `costs.worker_cpu` is.
        """
        values: dict[str, Values] = {name: [[], []] for name in jobs}
        failed = {name: ["", ""] for name in jobs}
        for number in range(rounds + 1):
            for name, job in jobs.items():
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    if failed[name][which]:
                        continue
                    asked = job if number else job | {"rows": min(WARM_UP_ROWS, job["rows"])}
                    try:
                        value = measure(self._peers[which].get("spark_ours"), asked, LIMIT_S)
                    except PeerFailed as error:
                        failed[name][which] = str(error).replace("NotThereYet: ", "not there yet, ")
                        continue
                    if number:
                        values[name][which].append(value)
            say(f"round {number} of {rounds}")
        return values, failed


def job(contender: str, workload: str, rows: int, capacity: int, order: str, keep: bool) -> dict[str, Any]:
    """A job for `bench.peers.run_spark_ours`."""
    return {
        "contender": contender,
        "workload": workload,
        "rows": rows,
        "capacity": capacity,
        "ordered": order == "ordered",
        "keep": keep,
    }


def rate(process: Any, asked: dict[str, Any], limit: float) -> float:
    """Rows a second from the first call to the last answer. Raises PeerFailed for answers that are wrong."""
    done = process.run(asked, limit)
    wrong = {key: done[key] for key in ("wrong", "missing", "twice") if done.get(key)}
    if wrong or (asked["ordered"] and not done.get("in_order", True)):
        raise PeerFailed(f"its answers are not right: {wrong or 'not in order'}")
    return float(asked["rows"] / done["seconds"])


def spark_throughput_lines(sessions: Sessions, effort: Effort, say: Say) -> Iterator[Line]:
    """Rows a second through the service, with Spark."""
    jobs = {
        f"Spark, service, {capacity:,} in flight, {name}": job(
            "async_map", "service", effort.rows(rows), capacity, order, True
        )
        for capacity, rows in ((256, 10_000), (1_000, 30_000))
        for order, name in ORDERS.items()
    }
    values, failed = sessions.rounds(jobs, effort.rounds, rate, say)
    for name in jobs:
        yield line_of(name, "rows/s", values[name], target=NOT_SLOWER, note=_why(failed[name]))


def worker_lines(sessions: Sessions, effort: Effort, say: Say) -> Iterator[Line]:
    """CPU of Spark's worker above that of the identity job of the same round."""
    rows = effort.rows(200_000)
    names = [name for name in costs.OWN if "turn" not in name]
    jobs = {name: costs.OWN[name] | {"rows": rows} for name in names}
    values, failed = sessions.rounds(jobs, effort.rounds, costs.worker_cpu, say)
    base = values["identity"]
    yield line_of("Spark's worker: identity", "us", base)
    for name in names[1:]:
        above: Values = [
            [each - other for each, other in zip(chunks, bases, strict=False)]
            for chunks, bases in zip(values[name], base, strict=True)
        ]
        yield line_of(
            f"Spark's worker: {name}, above identity", "us", above, target=NOT_DEARER, note=_why(failed[name])
        )


def spark_chain_lines(sessions: Sessions, effort: Effort, say: Say) -> Iterator[Line]:
    """Two functions in Spark: two operators, and a chain beside them; and their CPU."""
    for workload, unit, rows, measure, bound in (
        ("service", "rows/s", 5_000, rate, Target(1.5, at_least=True)),
        ("instant", "us", 100_000, costs.worker_cpu, None),
    ):
        for order, said in ORDERS.items():
            keep = workload == "service"
            jobs = {
                name: job(name, workload, effort.rows(rows), CAPACITY, order, keep)
                for name in ("in turn", "chain")
            }
            values, failed = sessions.rounds(jobs, effort.rounds, measure, say)
            what = f"Spark, two functions, {'a service of 20 ms' if keep else 'at once, CPU'}, {said}"
            turn, chain = values["in turn"], values["chain"]
            yield line_of(f"{what}: two async_map", unit, turn, note=_why(failed["in turn"]))
            yield _beside_in_turn(f"{what}: a chain", unit, turn, chain, bound, _why(failed["chain"]))


def memory_lines(sessions: Sessions, effort: Effort, say: Say) -> Iterator[Line]:
    """The most memory of the worker over a million rows, above that of the identity job."""
    rows = effort.rows(1_000_000)
    names = ["identity", "async_map, as finished", "async_map, in order"]
    peaks: dict[str, Values] = {name: [[], []] for name in names}
    why: dict[str, list[str]] = {name: ["", ""] for name in names}
    for which in (0, 1):
        samples, failed = costs.memory(sessions.peers(which), rows, LIMIT_S, say, names)
        for name in names:
            why[name][which] = failed.get(name, "")
            if samples.get(name) and samples.get("identity"):
                least = costs.peak(samples["identity"]) if name != "identity" else 0.0
                peaks[name][which].append(costs.peak(samples[name]) - least)
    yield line_of(f"memory, {rows:,} rows: identity", "MB", peaks["identity"], note=_why(why["identity"]))
    for name in names[1:]:
        yield line_of(
            f"memory, {rows:,} rows: {name}, above identity",
            "MB",
            peaks[name],
            target=Target(60.0, of_ratio=False),
            note=_why(why[name]),
        )


def walk_lines(states: Sequence[State], effort: Effort, say: Say) -> Iterator[Line]:
    """Files whose code runs for a row."""
    found: Values = []
    for state in states:
        say("files of a row")
        with Child(
            ("env", f"PYTHONPATH={state.path}", sys.executable, "-m", "bench.task.works", "files")
        ) as child:
            found.append([child.chunk(1)])
    yield line_of("files that a row passes", "files", found, target=Target(16, of_ratio=False))


WITHOUT_SPARK: dict[str, Callable[[Sequence[State], Effort, Say], Iterator[Line]]] = {
    "loop": partial(chunked_lines, "loop"),
    "partition": partial(chunked_lines, "partition"),
    "throughput": partial(chunked_lines, "throughput"),
    "chain": chain_lines,
    "checkpoint": checkpoint_lines,
    "files": walk_lines,
}
WITH_SPARK: dict[str, Callable[[Sessions, Effort, Say], Iterator[Line]]] = {
    "spark-worker": worker_lines,
    "spark-throughput": spark_throughput_lines,
    "spark-chain": spark_chain_lines,
    "spark-memory": memory_lines,
}
PARTS = (*WITHOUT_SPARK, *WITH_SPARK)


def measure(states: Sequence[State], part: str, effort: Effort, logs: Path, say: Say) -> list[Line]:
    """The lines of a part. states: the one before, and the one now."""
    say(f"part {part}")
    if part in WITHOUT_SPARK:
        return list(WITHOUT_SPARK[part](states, effort, say))
    with Sessions(states, logs) as sessions:
        return list(WITH_SPARK[part](sessions, effort, say))


COLUMNS = (
    Column("", right=False),
    Column("unit", right=False),
    Column("before"),
    Column("now"),
    Column("ratio"),
    Column("10 to 90 %"),
    Column("instructions before"),
    Column("now"),
    Column("target", right=False),
)


def cells_of(line: Line) -> list[str]:
    """A line of the table."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"

    target = ""
    if line.target is not None:
        words = {True: "met", False: "MISSED", None: "not measured"}
        target = f"{line.target}, {words[line.target.is_met(line)]}"
    return [
        line.name,
        line.unit,
        number(line.before),
        number(line.now),
        "" if line.ratio is None else f"{line.ratio:.3f}",
        "" if line.spread is None else f"{line.spread[0]:.2f} to {line.spread[1]:.2f}",
        *(("", "") if line.instructions is None else map(number, line.instructions)),
        "; ".join(filter(None, [target, line.note])),
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.task", description=__doc__)
    parser.add_argument("--beside", metavar="REF", required=True, help="a commit, or ./PATH of a checkout")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, help="chunks of each state in Spark")
    parser.add_argument("--size", type=float, default=Effort.size, help="of the chunks, beside the usual one")
    parser.add_argument("--no-instructions", action="store_true", help="count none")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="for task.json and logs")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not options.size > 0:
        parser.error(f"--rounds {options.rounds} --size {options.size}: must be at least 1, and above 0")

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    try:
        states = beside(options.beside, say), here()
    except StateFailed as error:
        parser.error(str(error))
    measured_on = machine()
    effort = Effort(options.rounds, options.size, not options.no_instructions)
    lines: list[Line] = []
    try:
        for part in options.only:
            found = measure(states, part, effort, options.out / "task_logs", say)
            lines += found
            print_table(COLUMNS, [cells_of(line) for line in found])
    finally:
        # What was measured before an interruption stays.
        write_json(
            options.out / "task.json",
            {
                "machine": measured_on,
                "beside": options.beside,
                "effort": asdict(effort),
                "lines": [asdict(line) for line in lines],
            },
        )
    missed = any(line.target is not None and line.target.is_met(line) is False for line in lines)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
