"""Columns that stand in the names of folders, `name=value`, as Hive and Spark write them. Any thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pillarbox.sources.connectors.files.listing import root_of

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
"""What such a folder says for null."""
WHOLE = re.compile(r"-?\d{1,18}")
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


def columns_in(path: str, given: str) -> dict[str, str | None]:
    """The values by name in the folders of a file, of those below the path or pattern that was `given`."""
    above = given if path.startswith(given) else root_of(given)
    found: dict[str, str | None] = {}
    for folder in path[len(above) :].split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found


def kind_of(values: Iterable[str | None]) -> pa.DataType:
    """What a column with these values is: int64, date32, or else string, as Spark takes them."""
    import pyarrow as pa

    said = [value for value in values if value is not None]
    if said and all(map(WHOLE.fullmatch, said)):
        return pa.int64()
    if said and all(map(DATE.fullmatch, said)):
        return pa.date32()
    return pa.string()


def scalars(values: Mapping[str, str | None], wanted: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of the columns that are wanted, as these are to be. Raises ValueError for what cannot be."""
    import pyarrow as pa

    found = {}
    for name in values.keys() & set(wanted.names):
        kind = wanted.field(name).type
        try:
            found[name] = pa.scalar(values[name], pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(
                f"its folder says {name}={values[name]}, which cannot be read as {kind}: {error}"
            ) from None
    return found


def without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """The columns of `schema` but these."""
    import pyarrow as pa

    left_out = set(names)
    return pa.schema([field for field in schema if field.name not in left_out])
