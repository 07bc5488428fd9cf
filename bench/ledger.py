"""The cost of a ledger where nothing fails, and the calls that it spares: `python -m bench.ledger`.

The job is that of `bench.throughput`: rows through the simulated service, one subtask. It is done without a
ledger, with one on the local disk (or on `--at`), and once more over what is kept there by then, in
rounds that are interleaved. Throughput is to fall by less than 5 % (the median of the rounds' ratios).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import service
from bench.contenders import Contender
from bench.spark_contenders import _call_record, seconds_without_calls, session
from bench.table import Column, print_table
from bench.throughput import EMPTY_RUNS, WARM_UP_ROWS, Measured, check_answers, measure
from pillarbox import Ledger, async_map
from pillarbox import spark as over_spark

TARGET = 0.05


class Ledgers:
    """The ledger of each round, new with each, and deleted when the next one begins."""

    def __init__(self, at: Path) -> None:
        self._at = at
        self._number = 0

    def renew(self) -> None:
        """A ledger with nothing in it."""
        self.close()
        self._number += 1

    def close(self) -> None:
        """Delete the present one."""
        shutil.rmtree(self._at / str(self._number), ignore_errors=True)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the operator that concern it."""
        return {"ledger": Ledger(str(self._at / str(self._number)), uid="bench", run="bench")}


def contenders(ledgers: Ledgers, spark: Any) -> list[Contender]:
    """Each way without a ledger, with an empty one, and with one that has every answer."""

    def local(kept: bool, rows: int, capacity: int) -> list[int]:
        more = ledgers.options if kept else {}
        return list(async_map(range(rows), service.call, capacity=capacity, **more))

    def over(key: list[str] | None, kept: bool, rows: int, capacity: int) -> list[int]:
        more = {**ledgers.options, "key": key} if kept else {}
        df = spark.range(0, rows, 1, 1)
        out = over_spark.async_map(df, _call_record, schema="answer long", capacity=capacity, **more)
        return [int(row) for row in out.toArrow().column("answer").to_pylist()]

    ways = {
        "pillarbox.async_map": local,
        "spark.async_map": lambda *given: over(None, *given),
        "spark.async_map, key": lambda *given: over(["id"], *given),
    }
    found = []
    for name, run in ways.items():

        def plain(rows: int, capacity: int, run: Any = run) -> list[int]:
            return run(False, rows, capacity)

        def first(rows: int, capacity: int, run: Any = run) -> list[int]:
            ledgers.renew()
            return run(True, rows, capacity)

        def again(rows: int, capacity: int, run: Any = run) -> list[int]:
            return run(True, rows, capacity)

        for what, fn in (("", plain), (", ledger", first), (", all found", again)):
            found.append(Contender(name + what, fn, ordered=True, spark=run is not local))
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code: 1 with `--check` when the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--capacity", type=int, default=256, help="calls in flight")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--at", type=Path, help="a folder for the ledgers; a temporary one by default")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the target is missed")
    options = parser.parse_args(arguments)
    ceiling = service.ceiling(options.rows, options.capacity)
    with tempfile.TemporaryDirectory(dir=options.at) as folder:
        ledgers = Ledgers(Path(folder))
        spark = session()
        try:
            some = contenders(ledgers, spark)
            for contender in some:
                check_answers(contender, WARM_UP_ROWS, contender.run(WARM_UP_ROWS, options.capacity))
            results = [Measured(each.name, True, each.spark, False, options.rows, ceiling) for each in some]
            for _ in range(options.repeat):
                for contender, measured in zip(some, results, strict=True):
                    measure(contender, measured, options.rows, options.capacity)
            idle = seconds_without_calls(spark, 1, EMPTY_RUNS)
        finally:
            spark.stop()
    for measured in results:
        measured.idle = idle if measured.spark else 0.0
    return 1 if not show(results, options.capacity) and options.check else 0


def show(results: list[Measured], capacity: int) -> bool:
    """Print the table; whether the target is reached everywhere."""
    print(
        f"\n{results[0].rows:,} rows, {capacity} calls in flight, one subtask, in order. "
        f"Medians of {len(results[0].seconds)} interleaved rounds; costs are ratios within rounds."
    )
    columns = [Column("job", right=False), Column("rows/s"), Column("share"), Column("Python us/row")]
    columns += [Column("cost"), Column("lowest"), Column("highest"), Column("target")]
    lines, reached = [], True
    for number, measured in enumerate(results):
        line = [
            ("Spark: " if measured.spark else "") + measured.name,
            f"{measured.rate:,.0f}",
            f"{measured.share:.1%}",
            f"{measured.python_cpu:.1f}",
        ]
        if number % 3 == 1:
            plain = results[number - 1]
            costs = [1 - own / other for own, other in zip(measured.shares, plain.shares, strict=True)]
            cost = statistics.median(costs)
            reached = reached and cost < TARGET
            verdict = "reached" if cost < TARGET else "MISSED"
            line += [f"{cost:.1%}", f"{min(costs):.1%}", f"{max(costs):.1%}", f"below {TARGET:.0%} {verdict}"]
        lines.append(line + [""] * (len(columns) - len(line)))
    print_table(columns, lines)
    return reached


if __name__ == "__main__":
    sys.exit(main())
