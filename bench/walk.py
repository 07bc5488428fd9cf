"""The files whose code runs for a row, Spark to output, or for a split: `python -m bench.walk row|split`.

Runs `async_map` over Arrow batches in one process and counts the calls of each function of the package, in
every thread: a short job for what is done once, one with a few and one with more batches, and one with a few
that takes as long as the one with more. A file stands in the table if the calls of one of its functions grow:
with the rows, with the batches, or only with time, which is not counted. Compiled code, that of the kernel,
makes no calls that Python tells of.

A split walks from discovery in the driver to its rows in a task, which asks for one at a time over the
driver's channel; both are in this process here. The threads that it passes are counted too.

The function of an operator runs here as it does in a worker, but between lists instead of sockets; `--spark`
has Spark's worker run it, and gives the same files (`tests/bench/test_walk.py`). A process walks once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as T

import pillarbox.kernel
from bench.table import Column, print_table
from pillarbox.spark import async_map

Batches = Iterator[pa.RecordBatch]
OfPartition = Callable[[Batches], Batches]
Calls = dict[str, int]
"""Calls by function, `file:function`, in the order of the first of each."""
Said = Callable[[Calls, float], None]
"""Is told the calls of a job and its seconds."""
Found = dict[str, tuple[str, int]]
"""For each file, or thread, what its functions run for and how often they were called."""

BATCH_ROWS = 50
"""Few, so that what runs by time is rare beside what runs for batches."""
FEW, MORE = 8, 136
"""Batches of the jobs that are compared."""
CAPACITY = 6
"""Calls in flight: few, so that a chunk of results is not larger than a batch."""
LEAST_BEATS = 3
EACH = ("row", "batch", "time")
"""For what a function may run, the closest first."""
IDS = T.StructType().add("id", T.LongType(), nullable=False)
ANSWERS = T.StructType().add("answer", T.LongType())

PACKAGES = {
    **dict.fromkeys(pillarbox.__path__, ""),
    **dict.fromkeys(pillarbox.kernel.__path__, "kernel/"),
}
"""The folders of the package, and the prefixes of their files in the table."""


class CapturedFrame:
    """The part of a DataFrame that an operator uses, without a session; keeps what goes to `mapInArrow`."""

    isStreaming = False
    sparkSession = None

    def __init__(self, schema: T.StructType) -> None:
        self.schema = schema
        self.columns = schema.names
        self.function: Any = None
        self.output: Any = None

    def mapInArrow(self, function: Any, schema: Any) -> CapturedFrame:
        """Keep the function and the schema of its results."""
        self.function, self.output = function, schema
        return self


def captured(make: Callable[[Any], Any], schema: T.StructType = IDS) -> CapturedFrame:
    """The function that the operator of `make`, on a DataFrame of this schema, gives to Spark."""
    frame = CapturedFrame(schema)
    make(frame)
    return frame


def function_of_partition(make: Callable[[Any], Any], schema: T.StructType = IDS) -> OfPartition:
    """The function that a worker calls with the batches of a partition, pickled and back as there."""
    sent = cloudpickle.dumps(captured(make, schema).function)  # type: ignore[no-untyped-call]
    arrived: OfPartition = cloudpickle.loads(sent)
    return arrived


def id_batches(rows: int, batch_rows: int) -> list[pa.RecordBatch]:
    """A partition of the ids from 0 on."""
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(range(start, min(start + batch_rows, rows)), pa.int64())], ["id"]
        )
        for start in range(0, rows, batch_rows)
    ]


def asked(pause_s: float, df: Any) -> Any:
    """The job that a row walks through: calls wait for a turn of the event loop, the first for `pause_s`."""

    async def answer(record: Any) -> int:
        await asyncio.sleep(0 if record.id else pause_s)
        return 2 * record.id + 1  # type: ignore[no-any-return]

    return async_map(df, answer, schema=ANSWERS, keep="*", capacity=CAPACITY)


_calls: dict[tuple[CodeType, str], int] = {}
"""By code and thread, of this process; one thread reads them while no job runs."""


def _note(frame: FrameType, event: str, _: Any) -> None:
    if event == "call":
        key = frame.f_code, threading.current_thread().name
        _calls[key] = _calls.get(key, 0) + 1


def watched(function: OfPartition, said: Said, batches: Batches) -> Batches:
    """The results of `function`, and the calls that they took, for `said`.

    In this thread, and in those that begin after the first use of this in the process.
    """
    threading.setprofile(_note)
    _calls.clear()
    began = time.monotonic()
    sys.setprofile(_note)
    try:
        yield from function(batches)
    finally:
        sys.setprofile(None)
    said(_by_function(), time.monotonic() - began)


def _by_function() -> Calls:
    return _counted(lambda function, _: function)


def _by_thread() -> Calls:
    # Several of a kind have numbers.
    return _counted(lambda function, thread: f"{re.sub('[-0-9]+$', '', thread)}:{function}")


def _counted(named: Callable[[str, str], str]) -> Calls:
    found: Calls = {}
    for (code, thread), calls in list(_calls.items()):
        for folder, prefix in PACKAGES.items():
            if code.co_filename.startswith(folder):
                file = prefix + Path(code.co_filename).relative_to(folder).as_posix()
                name = named(f"{file}:{code.co_firstlineno} {code.co_name}", thread)
                found[name] = found.get(name, 0) + calls
                break
    return found


Run = Callable[[float, int], tuple[Calls, float]]
"""Does a job of so many batches, whose first call waits for so many seconds; its calls and its seconds."""


def without_spark(pause_s: float, batches: int) -> tuple[Calls, float]:
    """A job as a worker of Spark does it, in this process."""
    told: list[tuple[Calls, float]] = []
    function = function_of_partition(partial(asked, pause_s))
    rows = batches * BATCH_ROWS
    given = iter(id_batches(rows, BATCH_ROWS))
    results = watched(function, lambda calls, seconds: told.append((calls, seconds)), given)
    _check(sum(batch.num_rows for batch in results), rows)
    return told[0]


def _check(made: int, rows: int) -> None:
    if made != rows:
        raise AssertionError(f"{made} rows of {rows} came out")


@contextmanager
def splits_of_a_read() -> Iterator[Callable[[Callable[[], Calls]], Run]]:
    """Makes a run of batch reads, from discovery to their rows; one split is one batch.

    What counts the calls is given: by function or by thread.
    """
    from pillarbox.sources.connectors.generator import GeneratorSource
    from pillarbox.spark.data_source import BatchReader, Read

    def read(pause_s: float, splits: int) -> int:
        source = GeneratorSource(rows=splits * BATCH_ROWS, splits=splits, batch_rows=BATCH_ROWS)
        reader = BatchReader(Read.of(source, {"partitions": "1"}, source.arrow_schema()))
        (partition,) = reader.partitions()
        rows = 0
        for batch in reader.read(partition):
            if not rows:
                time.sleep(pause_s)
            rows += batch.num_rows
        return rows

    def run(counted: Callable[[], Calls], pause_s: float, splits: int) -> tuple[Calls, float]:
        threading.setprofile(_note)
        _calls.clear()
        began = time.monotonic()
        sys.setprofile(_note)
        try:
            _check(read(pause_s, splits), splits * BATCH_ROWS)
        finally:
            sys.setprofile(None)
        return counted(), time.monotonic() - began

    yield lambda counted: partial(run, counted)


@contextmanager
def in_spark() -> Iterator[Run]:
    """Does jobs in a worker of Spark, which is the same for all of them."""
    from bench.spark_contenders import BATCH_ROWS as BATCH_ROWS_SETTING
    from bench.spark_contenders import session

    spark = session()
    spark.conf.set(BATCH_ROWS_SETTING, str(BATCH_ROWS))

    def run(pause_s: float, batches: int) -> tuple[Calls, float]:
        frame = captured(partial(asked, pause_s))
        rows = batches * BATCH_ROWS
        with tempfile.NamedTemporaryFile() as file:
            job = partial(watched, frame.function, partial(_write, file.name))
            made = spark.range(0, rows, 1, 1).mapInArrow(lambda given: job(given), frame.output).toArrow()
            _check(made.num_rows, rows)
            calls, seconds = json.loads(Path(file.name).read_text())
        return calls, seconds

    try:
        yield run
    finally:
        spark.stop()


def _write(path: str, calls: Calls, seconds: float) -> None:
    Path(path).write_text(json.dumps([calls, seconds]))


def walk(run: Run) -> Found:
    """The files of a row, in the order of their first calls; see `files_of`."""
    run(0.0, 1)
    few, _ = run(0.0, FEW)
    more, seconds = run(0.0, MORE)
    waiting, _ = run(seconds, FEW)
    return files_of(few, more, waiting)


def files_of(few: Calls, more: Calls, waiting: Calls) -> Found:
    """For each file with calls that grow: "row", "batch" or "time", and these calls of the longer job.

    waiting: of the job with few batches that takes as long as the one with more.
    """
    batches = MORE - FEW
    found: Found = {}
    for name, calls in more.items():
        grown = calls - few.get(name, 0)
        by_time = waiting.get(name, 0) - few.get(name, 0)
        each = "row" if grown >= 0.9 * batches * BATCH_ROWS else "batch"
        # A chunk of results may be larger than a batch, but hardly: what waits has a bound below it.
        if grown < 0.9 * batches or by_time > grown / 2:
            each = "time"
            # What a job does once it may do in one way or another.
            if min(grown, by_time) < LEAST_BEATS:
                continue
        file = name.partition(":")[0]
        other, before = found.get(file, (each, 0))
        found[file] = (min(each, other, key=EACH.index), before + calls)
    return found


def passed(found: Found) -> set[str]:
    """The files that count: those that run for rows or batches."""
    return {name for name, (each, _) in found.items() if each != "time"}


def walk_of_a_split() -> tuple[Found, Found]:
    """The files of a split, and its threads."""
    with splits_of_a_read() as run:
        return walk(run(_by_function)), walk(run(_by_thread))


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("path", choices=["row", "split"], help="what walks")
    parser.add_argument("--spark", action="store_true", help="in a worker of Spark (a row)")
    parser.add_argument("--json", action="store_true", help="print the files as JSON")
    options = parser.parse_args(arguments)
    threads: Found = {}
    if options.path == "split":
        found, threads = walk_of_a_split()
    else:
        with in_spark() if options.spark else nullcontext(without_spark) as run:
            found = walk(run)
    if options.json:
        print(json.dumps([found, threads] if threads else found))
        return 0
    units = {"row": "a row", "batch": "a split" if threads else "a batch", "time": "(by time)"}
    for title, table in (("file", found), ("thread", threads)):
        if table:
            columns = [Column(title, right=False), Column("runs for", right=False), Column("calls")]
            print_table(columns, [[name, units[each], f"{calls:,}"] for name, (each, calls) in table.items()])
            print(f"{len(passed(table))} {title}s, without those by time")
    print(f"{MORE} {'splits' if threads else 'batches'} of {BATCH_ROWS:,} rows")
    return 0


if __name__ == "__main__":
    # The module by its name, which is what a worker of Spark imports.
    from bench.walk import main as command

    sys.exit(command())
