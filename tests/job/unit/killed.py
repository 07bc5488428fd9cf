"""A job that tests kill: it notes each call in a file, and writes into JSON lines or into Kafka. A script."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pillarbox import Options, run
from pillarbox.job import JsonLinesSink, KafkaSink, Sink
from pillarbox.sources import Source
from pillarbox.testing.operator_trace import record_operators

INTERVAL_S = 0.03


class Ask:
    """A slow function that notes in a file, a line each, that a call begins and that it has ended."""

    def __init__(self, path: Path, life: int) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._life = life
        self._dice = random.Random(life)

    def note(self, event: str, number: int) -> None:
        """Write a line, in one write: a kill leaves it whole, or not there."""
        os.write(self._file, f"{json.dumps([self._life, event, number])}\n".encode())

    async def __call__(self, row: Any) -> dict[str, Any]:
        """Answer for the number of a row."""
        number = int(row if isinstance(row, int) else row.value)
        self.note("begin", number)
        await asyncio.sleep(self._dice.choice([0.0, 0.001, 0.01, 0.05]))
        self.note("end", number)
        return {"value": str(number)}


def parts(words: Sequence[str]) -> tuple[Source[Any, Any] | range, Sink]:
    """The source and the sink: of files, or of a Kafka at `words[0]`, topics `words[1]` to `words[2]`."""
    if len(words) == 2:
        return range(int(words[0])), JsonLinesSink(words[1])
    from pillarbox.sources.connectors.kafka import KafkaSource

    kafka = {"bootstrap.servers": words[0], "log_level": 0}
    source = KafkaSource(kafka, words[1], bounded=True)
    return source, KafkaSink(kafka, words[2], transactional_id=words[2])


def main() -> None:
    """Run the job to its end."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--life", required=True, type=int)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("words", nargs="+")
    given = parser.parse_args()
    if given.trace is not None:
        record_operators(given.trace)
    dice = random.Random(given.life)
    source, sink = parts(given.words)
    ask = Ask(given.folder / "calls", given.life)
    job = run(
        source,
        ask,
        sink,
        checkpoints=given.folder / "checkpoints",
        interval=INTERVAL_S,
        readers=dice.choice([1, 2]),
        urgent=dice.random() < 0.5,
        options=Options(ordered=dice.random() < 0.5, capacity=dice.choice([4, 16, 40])),
    )
    for _ in itertools.count():
        if job.statistics().state != "starting" or job.wait(0.001):
            break
    ask.note("restored", job.statistics().restored or 0)
    job.wait()
    print("finished")


if __name__ == "__main__":
    sys.exit(main())
