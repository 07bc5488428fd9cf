"""A cache by content: the calls of a second job with a few new rows, and look-ups: `python -m bench.cache`.

A job calls for its rows, and a second one has a part of new ones (`--new`, 5 %): its calls are counted. Then
jobs with the same rows, in another order, are timed, whose results are all found: CPU time of the whole
process, by `process_time`, for all that the operator does for a row. The target is 100,000 rows a second and
core. Medians of `--rounds`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from pillarbox import Ledger, async_map

TARGET = 100_000
"""Look-ups a second and core, at least."""


class Answers:
    """Answers a question, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, row: dict[str, Any]) -> str:
        self.calls += 1
        return f"the answer to {row['text']}, of a few words"


def questions(begin: int, count: int) -> list[dict[str, Any]]:
    """Rows that differ in their text."""
    return [{"id": number, "text": f"question number {number}"} for number in range(begin, begin + count)]


def run(rows: list[dict[str, Any]], ledger: Ledger, ask: Answers) -> float:
    """Seconds of CPU of a job."""
    before = time.process_time()
    for _ in async_map(rows, ask, ledger=ledger, capacity=256):
        pass
    return time.process_time() - before


def main(arguments: list[str]) -> int:
    """Print the table; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--new", type=float, default=0.05, help="the part of new rows in the second job")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    new = round(given.rows * given.new)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, uid="ask", cache=True, inputs=["text"])
        ask = Answers()
        run(questions(0, given.rows), ledger, ask)
        first = ask.calls
        run(questions(new, given.rows), ledger, ask)
        calls = ask.calls - first
        shuffled = questions(new, given.rows)
        rates = []
        for number in range(given.rounds):
            random.Random(number).shuffle(shuffled)
            rates.append(given.rows / run(shuffled, ledger, ask))
        found_all = ask.calls == first + calls
    rate = statistics.median(rates)
    spread = ", ".join(f"{each:,.0f}" for each in sorted(rates))
    print(f"second job, {new:,} of {given.rows:,} rows new: {calls:,} calls ({calls / given.rows:.2%})")
    print(f"rows found, in another order: {rate:,.0f} a second and core ({spread})")
    return 0 if calls == new and found_all and rate >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
