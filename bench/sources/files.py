"""Files: `FileSource` in Spark against Spark's own readers, and without Spark against pyarrow.

Behind all reads in Spark stands the same Python function (`mapInArrow`), on one core: one that does
nothing, and one that multiplies a column and leaves the text away. Beside Parquet stand as many rows of a
data source in Python that reads nothing: what any costs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from bench.sources.alone import fetched
from bench.sources.by_hand import COLUMNS, HandConstant
from bench.sources.measure import Effort, Figure, Say, Way, acknowledgements, must_be, rates, rounds
from bench.sources.session import count_and_sum, identity
from pillarbox.sources.connectors.files import FileSource
from pillarbox.spark import register_source

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string())])
DDL = "id long, x double, text string"
ROWS = {"parquet": 2_000_000, "json": 500_000}
CONSTANT = "constant batches"
ROWS_AT_ONCE = 50_000
"""Rows of a constant batch; those of `FileSource` are two megabytes, too."""


def light(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A Python function that does a little: one column times two."""
    for batch in batches:
        twice = pc.multiply(batch.column(1), 2.0)
        yield pa.RecordBatch.from_arrays([batch.column(0), twice], names=["id", "x"])


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "identity": (identity, DDL),
    "light": (light, "id long, x double"),
}


def table(rows: int) -> pa.Table:
    """Rows with a number, a fraction and a short text; always the same."""
    ids = np.arange(rows, dtype=np.int64)
    text = pc.binary_join_element_wise("row", pa.array(ids * 7919 % 100_003).cast(pa.string()), "-")
    return pa.table([pa.array(ids), pa.array(ids * 0.37 % 1.0), text], schema=SCHEMA)


def write(folder: Path, kind: str, rows: int) -> Path:
    """One file of a format in a folder of its own."""
    folder = folder / kind
    folder.mkdir(parents=True)
    path = folder / f"part.{kind}"
    made = table(rows)
    if kind == "parquet":
        pyarrow.parquet.write_table(made, path, row_group_size=250_000)
    else:
        with path.open("w") as file:
            for batch in made.to_batches(max_chunksize=50_000):
                file.writelines(
                    f'{{"id":{row["id"]},"x":{row["x"]!r},"text":"{row["text"]}"}}\n'
                    for row in batch.to_pylist()
                )
    return folder


def read_bare(kind: str, folder: Path) -> Iterator[pa.RecordBatch]:
    """The batches of the file as pyarrow gives them, in the calling thread."""
    path = folder / f"part.{kind}"
    if kind == "parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(65_536, use_threads=False)
    else:
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=2 * 2**20)
        parse = pyarrow.json.ParseOptions(explicit_schema=SCHEMA)
        yield from pyarrow.json.read_json(path, options, parse).to_batches()


def measure(
    spark: SparkSession, folder: Path, effort: Effort, say: Say, rows_of: Mapping[str, int] = ROWS
) -> list[Figure]:
    """All formats, one after the other. rows_of: by format, the rows at full size."""
    files = register_source(spark, FileSource, "files")
    figures: list[Figure] = []
    for kind, full in rows_of.items():
        rows = effort.of(full)
        place = write(folder, kind, rows)
        figures += _in_spark(spark, files, kind, place, rows, effort, say)
        figures += alone(kind, place, rows, effort, say)
    return figures


def _in_spark(
    spark: SparkSession, files: str, kind: str, place: Path, rows: int, effort: Effort, say: Say
) -> list[Figure]:
    expected = (rows, rows * (rows - 1) // 2)

    def ours() -> DataFrame:
        return spark.read.format(files).schema(DDL).options(path=str(place), format=kind).load()

    def theirs() -> DataFrame:
        return spark.read.format(kind).schema(DDL).load(str(place))

    def constant() -> DataFrame:
        options = {"columns": ",".join(SCHEMA.names), "rows": rows, "at_once": ROWS_AT_ONCE}
        return spark.read.format("hand_constant").options(**options).load()

    reads = [(f"Spark's {kind}", theirs, expected), (f"files, {kind}", ours, expected)]
    if kind == "parquet":
        spark.dataSource.register(HandConstant)
        reads.append((CONSTANT, constant, (rows, rows * COLUMNS["id"][1])))
    ways, against = [], {}
    for what, (function, ddl) in FUNCTIONS.items():
        for by, read, answer in reads:
            name = f"{by}, {what}"
            ways.append(Way(name, partial(_run, read, function, ddl, answer, name)))
            if by != reads[0][0]:
                against[name] = f"{reads[0][0]}, {what}"
    runs = rounds(ways, effort, say)
    return [*rates("files", runs, rows, against), *acknowledgements("files", runs, 1, "a query")]


def _run(
    read: Callable[[], DataFrame], function: Callable[..., Any], ddl: str, answer: tuple[int, int], name: str
) -> None:
    must_be(answer, count_and_sum(read().mapInArrow(function, ddl), "id"), name)


def alone(kind: str, place: Path, rows: int, effort: Effort, say: Say) -> list[Figure]:
    """Without Spark, in this thread and the reader's own."""

    def bare() -> None:
        must_be(rows, sum(batch.num_rows for batch in read_bare(kind, place)), "pyarrow")

    def ours() -> None:
        source = FileSource(str(place), kind, SCHEMA)
        found = (each.records for each in fetched(source))
        must_be(rows, sum(batch.num_rows for batch in found if isinstance(batch, pa.RecordBatch)), "ours")

    ways = [Way(f"pyarrow, {kind}", bare), Way(f"FileSource alone, {kind}", ours)]
    return rates("files", rounds(ways, effort, say), rows, {ways[1].name: ways[0].name})
