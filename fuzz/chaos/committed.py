"""The committed rows, as Spark lists the output, and the calls that the ledger has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pillarbox.ledger import Ledger, LedgerError


class Row(NamedTuple):
    """A row of the output."""

    id: int
    answer: int
    call: int


class Departure(NamedTuple):
    """A row with the answer of a call, as it left the function that had it called. at: monotonic seconds."""

    id: int
    call: int
    at: float


def departures(path: Path) -> list[Departure]:
    """Rows that left the tasks of a run, of all attempts, as a `Witness` has written them down."""
    if not path.exists():
        return []
    said = [json.loads(line) for line in path.read_text().splitlines()]
    return [Departure(row, call, line["at"]) for line in said for row, call in line["rows"]]


def committed_rows(output: Path) -> list[list[Row]]:
    """The rows of each committed file, in the file's order; the files of a stream in their commits' order."""
    return [_rows(path) for path in _committed_files(output)]


def committed_batches(output: Path) -> dict[int, list[Row]]:
    """The rows of each micro-batch, sorted, in a sink that has a folder for each."""
    return {
        int(folder.name): sorted(row for path in _committed_files(folder) for row in _rows(path))
        for folder in _batches(output)
    }


def _rows(path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    return [Row(**row) for row in pq.read_table(path, partitioning=None).to_pylist()]


def _batches(output: Path) -> list[Path]:
    return sorted(output.glob("[0-9]*"), key=lambda folder: int(folder.name))


def _committed_files(output: Path) -> Iterator[Path]:
    log = output / "_spark_metadata"
    if not log.is_dir():
        # A batch commits by this file; the files of an attempt that failed have been removed by then.
        if (output / "_SUCCESS").exists():
            yield from sorted(output.glob("part-*.parquet"))
        for folder in _batches(output):
            yield from _committed_files(folder)
        return
    # A file a micro-batch, and from time to time one that has all before it.
    numbers = {
        int(path.name.removesuffix(".compact")): path for path in log.iterdir() if path.name[0].isdigit()
    }
    first = max((number for number, path in numbers.items() if path.suffix == ".compact"), default=-1)
    for number, path in sorted(numbers.items()):
        if number >= first:
            for line in path.read_text().splitlines()[1:]:
                yield Path(unquote(urlsplit(json.loads(line)["path"]).path))


def durable_calls(ledger: Path) -> set[int]:
    """The numbers of the calls whose results a ledger has, by what the service said of itself in each."""
    found: set[int] = set()
    try:
        place = Ledger(str(ledger))
        for scope in place.scopes():
            with_records = place.reader(scope)
            for record in with_records.records():
                if isinstance(record.value, Mapping):
                    found.add(record.value["call"])
            with_records.close()
    except (LedgerError, OSError):
        # It is being written, expired or filled up while this reads it: what was found counts.
        pass
    return found
