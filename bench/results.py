"""The cost of results of many kinds on their way out of a task: `python -m bench.results`.

Two tables of CPU time a row of this process, medians. The first has the conversion alone: results of a
column `array<float>` are converted one by one, as they come, and encoded 2,048 at a time, as they leave; a
batch gives them all at once. It stands beside the plain conversion of as many float32 arrays of NumPy, which
`pa.array` takes by their buffers. The second has whole tasks, over batches in memory, with a function that
returns at once. `--kind` and `--rows` run one kind once, as under callgrind, which counts instructions and
does not mind what else the machine does.
"""

from __future__ import annotations

import argparse
import array
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from bench.table import Column, print_table
from pillarbox import Batch, Options
from pillarbox.spark.async_udf import UdfTask
from pillarbox.spark.dataframe import MapTask
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.results import ValueEncoder

WIDTH = 1024
ROWS = 8192
BATCH = 2048
PLAIN = "plain: float32 by buffers"
BATCHES = ("list of a batch", "matrix of a batch")
CAPACITY = 256
VECTOR = T.ArrayType(T.FloatType())
ELEMENT = pa.list_(pa.field("element", pa.float32()))
NUMBERS = (np.arange(WIDTH, dtype=np.float64) / 7).astype(np.float32)

VECTORS: dict[str, Callable[[], Any]] = {
    "float32 of NumPy": lambda: NUMBERS.copy(),
    "float64 of NumPy": lambda: NUMBERS.astype(np.float64),
    "float16 of NumPy": lambda: NUMBERS.astype(np.float16),
    "array('f')": lambda: array.array("f", NUMBERS.tobytes()),
    "array of Arrow": lambda: pa.array(NUMBERS),
    "list of floats": lambda: NUMBERS.tolist(),
}
SIMPLE: dict[str, tuple[T.DataType, Any]] = {
    "number": (T.LongType(), 7),
    "text": (T.StringType(), "an answer"),
    "row, as a dict": (
        T.StructType().add("id", T.LongType()).add("answer", T.LongType()),
        {"id": 1, "answer": 2},
    ),
    "row, as a tuple": (T.StructType().add("id", T.LongType()).add("answer", T.LongType()), (1, 2)),
}


def batches(rows: int) -> Iterator[pa.Array]:
    """The input: numbers."""
    for start in range(0, rows, BATCH):
        yield pa.array(np.arange(start, min(start + BATCH, rows)))


def run_column(kind: T.DataType, fn: Any, rows: int, capacity: int = CAPACITY, **options: Any) -> None:
    """A task of `async_udf`."""
    plan = OperatorPlan(fn, "bench", Options(capacity=capacity, **options), "UTC", spread=True)
    task = UdfTask(plan, kind, has_where=False, skip_null=False)
    assert sum(map(len, task.run(batches(rows)))) == rows


def run_rows(schema: T.StructType, fn: Any, rows: int) -> None:
    """A task of `async_map`."""
    plan = OperatorPlan(fn, "bench", Options(capacity=CAPACITY), "UTC")
    task = MapTask([plan], schema, [], "fail", skips=False)
    inputs = (pa.RecordBatch.from_arrays([column], ["id"]) for column in batches(rows))
    assert sum(batch.num_rows for batch in task.run(inputs)) == rows


def job(kind: str, rows: int) -> Callable[[], None]:
    """A job whose function returns results of a kind, which are made now."""
    if kind in SIMPLE:
        returns, value = SIMPLE[kind]

        async def give(row: Any) -> Any:
            return value

        if isinstance(returns, T.StructType):
            schema = returns
            return lambda: run_rows(schema, give, rows)
        return lambda: run_column(returns, give, rows)
    if kind in VECTORS:
        made = [VECTORS[kind]() for _ in range(16)]

        async def vector(row: int) -> Any:
            return made[row % 16]

        return lambda: run_column(VECTOR, vector, rows)
    matrix = np.tile(NUMBERS, (BATCH, 1))

    async def embed(places: list[int]) -> Any:
        return matrix[: len(places)] if kind == "matrix of a batch" else list(matrix[: len(places)])

    # A window as large as that of single calls would be most of the job.
    return lambda: run_column(VECTOR, embed, rows, 2, batch=Batch(BATCH))


def cpu(work: Callable[[], object], rows: int) -> float:
    """Microseconds of CPU time a row."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / rows * 1e6


def conversion(kind: str) -> Callable[[], object]:
    """The conversion of a chunk of results of a kind, which are made now."""
    encoder = ValueEncoder(VECTOR, None)
    if kind == PLAIN:
        chunk = [NUMBERS.copy() for _ in range(BATCH)]
        return lambda: pa.array(chunk, ELEMENT)
    if kind == "matrix of a batch":
        matrix = np.tile(NUMBERS, (BATCH, 1))
        return lambda: encoder.encode([encoder.convert(row) for row in encoder.rows_of(matrix) or ()])
    results = [VECTORS[kind]() for _ in range(BATCH)]
    return lambda: encoder.encode([encoder.convert(result) for result in results])


def medians(
    works: dict[str, tuple[Callable[[], Callable[[], object]], int]], repeat: int
) -> dict[str, float]:
    """CPU time a row of each kind of work, medians of interleaved runs. works: maker and rows of each."""
    measured: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeat + 1):
        for name, (make, rows) in works.items():
            microseconds = cpu(make(), rows)
            # The first turn has imported and allocated.
            if turn:
                measured[name].append(microseconds)
    return {name: statistics.median(runs) for name, runs in measured.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.results", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kind", help="run this kind only, once, and print nothing")
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parser.parse_args()
    if given.kind is not None:
        job(given.kind, given.rows)()
        return
    kinds = [PLAIN, *VECTORS, "matrix of a batch"]
    alone = medians({kind: (partial(conversion, kind), BATCH) for kind in kinds}, given.repeat)
    columns = [Column("conversion", right=False), Column("CPU us/row"), Column("of the plain one")]
    print_table(columns, [[kind, f"{us:.2f}", f"{us / alone[PLAIN]:.1f} x"] for kind, us in alone.items()])
    print()
    kinds = [*SIMPLE, *VECTORS, *BATCHES]
    tasks = medians({kind: (partial(job, kind, given.rows), given.rows) for kind in kinds}, given.repeat)
    columns = [Column("task", right=False), Column("CPU us/row")]
    print_table(columns, [[kind, f"{us:.2f}"] for kind, us in tasks.items()])


if __name__ == "__main__":
    main()
