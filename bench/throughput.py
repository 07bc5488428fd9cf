"""Rows a second and CPU time a row of every contender, in one run, interleaved: `python -m bench.throughput`.

One job for all: the rows 0..n-1 through the simulated service, one subtask, `capacity` calls in flight.
The ceiling is capacity / mean latency over the same rows; a contender's share is its rate through the
ceiling. A run is timed from outside, from the call to the last answer; for Spark that is the whole job in a
warm session, less what a job of one row takes that calls nothing. All answers of every run are checked. With
`--check` the exit code is 1 when Pillarbox misses a target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import service
from bench.contenders import LOCAL, WINDOW_FACTORS, Contender, operator
from bench.cpu import cpu_time
from bench.table import Column, print_table

TARGETS = {False: 0.94, True: 0.92}
"""The least share of the ceiling that Pillarbox must reach, by `ordered`."""

WARM_UP_ROWS = 2_000
WARM_UP_RUNS = 3
EMPTY_RUNS = 9


@dataclass
class Measured:
    """The runs of one contender: seconds, microseconds of CPU time a row by kind of process, and how many
    cores the rest of the machine kept busy meanwhile.
    """

    name: str
    ordered: bool
    spark: bool
    ours: bool
    rows: int
    ceiling: float
    seconds: list[float] = field(default_factory=list)
    idle: float = 0.0
    """Seconds of a job of one row without a call, which are taken off."""
    own: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    jvm: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Rows a second, the median run."""
        return self.rows / (statistics.median(self.seconds) - self.idle)

    @property
    def share(self) -> float:
        """Share of the ceiling, the median run."""
        return self.rate / self.ceiling

    @property
    def shares(self) -> list[float]:
        """Share of the ceiling of each run."""
        return [self.rows / (seconds - self.idle) / self.ceiling for seconds in self.seconds]

    @property
    def python_cpu(self) -> float:
        """Microseconds a row of the Python process or processes that do the work, the median run."""
        return statistics.median(self.workers if self.spark else self.own)

    @property
    def jvm_cpu(self) -> float:
        """Microseconds a row of the JVM, the median run; 0 without Spark."""
        return statistics.median(self.jvm) if self.spark else 0.0

    @property
    def others_cores(self) -> float:
        """Cores that were busy with something else, the median run; 0 is best."""
        return max(0.0, statistics.median(self.others))

    @property
    def target(self) -> float | None:
        """The share that must be reached, if any."""
        return TARGETS[self.ordered] if self.ours else None

    @property
    def passed(self) -> bool:
        """True if the target, if there is one, is reached."""
        return self.target is None or self.share >= self.target


def check_answers(contender: Contender, rows: int, answers: list[int]) -> None:
    """Raise AssertionError unless there is one right answer for each row, in order where that is promised."""
    expected = [service.answer(row) for row in range(rows)]
    if (answers if contender.ordered else sorted(answers)) != expected:
        raise AssertionError(f"{contender.name}: wrong answers ({len(answers)} for {rows} rows)")


def measure(contender: Contender, measured: Measured, rows: int, capacity: int) -> None:
    """Run a contender once and add what it took."""
    before = cpu_time()
    began = time.perf_counter()
    answers = contender.run(rows, capacity)
    seconds = time.perf_counter() - began
    used = cpu_time() - before
    check_answers(contender, rows, answers)
    measured.seconds.append(seconds)
    measured.own.append(used.own / rows * 1e6)
    measured.jvm.append(used.jvm / rows * 1e6)
    measured.workers.append(used.workers / rows * 1e6)
    measured.others.append(used.others / seconds)


def run_all(
    contenders: list[Contender],
    rows: int,
    capacity: int,
    repeat: int,
    say: Callable[[str], None],
) -> list[Measured]:
    """Run each contender `repeat` times, one after the other, round by round."""
    ceiling = service.ceiling(rows, capacity)
    results = [Measured(c.name, c.ordered, c.spark, c.ours, rows, ceiling) for c in contenders]
    for contender in contenders * WARM_UP_RUNS:
        check_answers(contender, WARM_UP_ROWS, contender.run(WARM_UP_ROWS, capacity))
    for round_ in range(repeat):
        for contender, measured in zip(contenders, results, strict=True):
            measure(contender, measured, rows, capacity)
            rate = rows / measured.seconds[-1]
            say(f"round {round_ + 1}: {contender.name}: {rate:,.0f} rows/s, {rate / ceiling:.1%}")
    return results


def windows(rows: int, capacity: int, repeat: int, say: Callable[[str], None]) -> list[Measured]:
    """The ordered operator with reorder windows of several sizes."""
    sizes = [Contender(f"window {n} x", operator(True, n), ordered=True) for n in WINDOW_FACTORS]
    return run_all(sizes, rows, capacity, repeat, say)


def show(results: list[Measured], capacity: int) -> None:
    """Print the table of all contenders."""
    rows = results[0].rows
    print(
        f"\n{rows:,} rows, {capacity} calls in flight, one subtask. Ceiling: {results[0].ceiling:,.0f} "
        f"rows/s (nominal {service.nominal_ceiling(capacity):,.0f}). Median of {len(results[0].seconds)}."
    )
    columns = [
        Column("contender", right=False),
        Column("order"),
        Column("rows/s"),
        Column("share"),
        Column("lowest"),
        Column("highest"),
        Column("Python us/row"),
        Column("JVM us/row"),
        Column("others"),
        Column("target"),
    ]
    print_table(columns, [_cells(measured) for measured in results])


def _cells(measured: Measured) -> list[str]:
    target = ""
    if measured.target is not None:
        target = f"{measured.target:.0%} {'reached' if measured.passed else 'MISSED'}"
    return [
        ("Spark: " if measured.spark else "") + measured.name,
        "in order" if measured.ordered else "as finished",
        f"{measured.rate:,.0f}",
        f"{measured.share:.1%}",
        f"{min(measured.shares):.1%}",
        f"{max(measured.shares):.1%}",
        f"{measured.python_cpu:.1f}",
        f"{measured.jvm_cpu:.1f}" if measured.spark else "",
        f"{measured.others_cores:.1f}",
        target,
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--capacity", type=int, default=256, help="calls in flight")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contender")
    parser.add_argument("--only", default="", help="contenders whose names contain this text")
    parser.add_argument("--no-spark", action="store_true", help="only the contenders without Spark")
    parser.add_argument("--windows", action="store_true", help="also compare reorder windows")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    for name in ("rows", "capacity", "repeat"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    contenders = [contender for contender in LOCAL if options.only in contender.name]
    spark, without_calls = None, None
    if not options.no_spark:
        from bench.spark_contenders import (
            seconds_without_calls,
            session,
            spark_contenders,
        )

        spark = session()
        contenders += [contender for contender in spark_contenders(spark) if options.only in contender.name]
    if not contenders:
        parser.error(f"--only {options.only!r}: no contender has such a name")
    try:
        results = run_all(contenders, options.rows, options.capacity, options.repeat, say)
        if spark is not None:
            without_calls = seconds_without_calls(spark, 1, EMPTY_RUNS)
            for measured in results:
                measured.idle = without_calls if measured.spark else 0.0
    finally:
        if spark is not None:
            spark.stop()
    sizes = windows(options.rows, options.capacity, options.repeat, say) if options.windows else []
    show(results, options.capacity)
    if without_calls is not None:
        print(f"Spark takes {without_calls:.2f} s for a job of one row without a call, which is taken off.")
    if sizes:
        show(sizes, options.capacity)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "rows": options.rows,
            "capacity": options.capacity,
            "repeat": options.repeat,
            "mean_latency": service.MEAN,
            "sigma": service.SIGMA,
            "ceiling": results[0].ceiling,
            "nominal_ceiling": service.nominal_ceiling(options.capacity),
            "spark_seconds_without_calls": without_calls,
            "contenders": [asdict(measured) for measured in results],
            "windows": [asdict(measured) for measured in sizes],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    missed = [measured.name for measured in results if not measured.passed]
    if missed:
        say(f"below the target: {', '.join(missed)}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
