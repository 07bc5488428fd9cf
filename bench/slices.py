"""CPU of slices within a row group of Parquet beside one read of all: `python -m bench.slices [--rows N]`.

One row group, read as a whole, in 100 slices by the source of files, without and with an offset index, and in
slices that are each decoded from the front of the group, as Arrow alone reads them. The thread's CPU time;
medians of interleaved rounds. The slices are read last to first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from bench.table import Column, print_table
from pillarbox.sources.connectors.files import FileSource, read_split
from pillarbox.testing import SourceHarness

SLICES = 100


def plain(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": np.arange(rows),
            "text": [f"text number {at} of many" for at in range(rows)],
            "x": np.random.default_rng(1).random(rows),
        }
    )


def vectors(rows: int) -> pa.Table:
    """The plain columns, and one of vectors of eight floats."""
    floats = pa.array(np.random.default_rng(2).random(8 * rows, np.float32))
    return plain(rows).append_column(
        "vector", pa.ListArray.from_arrays(np.arange(0, 8 * rows + 1, 8, np.int32), floats)
    )


def maps(rows: int) -> pa.Table:
    """A column of maps of no to four of 1,000 names to numbers."""
    ends = np.cumsum(np.random.default_rng(3).integers(0, 5, rows), dtype=np.int32)
    names = pa.array([f"name {at % 1000}" for at in range(ends[-1])])
    numbers = np.random.default_rng(4).random(ends[-1])
    return pa.table({"map": pa.MapArray.from_arrays(np.insert(ends, 0, 0), names, pa.array(numbers))})


def structs(rows: int) -> pa.Table:
    """A column of structs of the plain columns and a struct of two numbers."""
    given = [each.combine_chunks() for each in plain(rows).columns]
    place = pa.StructArray.from_arrays([given[2], given[2]], ["lat", "lon"])
    return pa.table({"struct": pa.StructArray.from_arrays([*given, place], ["id", "text", "x", "place"])})


TABLES: dict[str, Callable[[int], pa.Table]] = {
    "plain": plain,
    "vectors": vectors,
    "maps": maps,
    "structs": structs,
}


def written(path: Path, table: pa.Table, *, index: bool) -> FileSource:
    """A source of one file of one row group."""
    pq.write_table(table, path, row_group_size=table.num_rows, write_page_index=index)
    return FileSource(str(path), settle=0.0)


def by_source(source: FileSource, edges: list[tuple[int, int]]) -> int:
    """Read these slices; gives the rows."""
    with SourceHarness(source) as harness:
        (split,) = harness.discover()
    found = 0
    for start, stop in edges:
        found += sum(
            batch.num_rows for batch, _ in read_split(source, None, split.starting_at(start).up_to(stop))
        )
    return found


def from_front(path: Path, edges: list[tuple[int, int]]) -> int:
    """Read these slices, each from the front of the row group to its end; gives the rows."""
    found = 0
    for start, stop in edges:
        at = 0
        for batch in pq.ParquetFile(path).iter_batches(use_threads=False):
            found += max(0, min(stop, at + batch.num_rows) - max(start, at))
            at += batch.num_rows
            if at >= stop:
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of slices within a row group of Parquet")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--columns", choices=TABLES, default="plain")
    given = parser.parse_args()
    rows, step = given.rows, given.rows // SLICES
    edges = [(start, start + step) for start in range(0, rows, step)][::-1]
    with tempfile.TemporaryDirectory() as folder:
        table = TABLES[given.columns](rows)
        without = written(Path(folder) / "plain.parquet", table, index=False)
        indexed = written(Path(folder) / "indexed.parquet", table, index=True)
        ways: dict[str, Callable[[], int]] = {
            "whole": lambda: by_source(without, [(0, rows)]),
            f"{SLICES} slices": lambda: by_source(without, edges),
            f"{SLICES} slices, offset index": lambda: by_source(indexed, edges),
            f"{SLICES} slices, each from the front": lambda: from_front(
                Path(folder) / "plain.parquet", edges
            ),
        }
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, way in ways.items():
                began = time.thread_time()
                assert way() == rows
                spent[name].append(time.thread_time() - began)
    whole = statistics.median(spent["whole"])
    columns = [Column("read", right=False), Column("CPU s"), Column("x whole")]
    figures = {name: statistics.median(times) for name, times in spent.items()}
    print_table(columns, [[name, f"{each:.3f}", f"{each / whole:.1f}"] for name, each in figures.items()])


if __name__ == "__main__":
    main()
