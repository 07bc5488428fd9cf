"""JSON lines: an object a line, with a schema. See `FileFormat` for who calls it.

Python's own parser reads the lines. Arrow's is two to three times as fast, but ends the process with a
segmentation fault at some lines (`null`, and behind it a column that is an object in one line and a number in
another), takes two objects in one line for two rows, and refuses a block of lines for one bad value.
"""

from __future__ import annotations

import base64
import decimal
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.formats import BadRow, null_where_refused, shown, unfit
from pillarbox.sources.connectors.files.text import TextFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

BLANK = " \t\r"
"""The characters that JSON allows around a value, but for the newline."""


@dataclass(frozen=True)
class JsonFormat(TextFormat):
    """Lines of JSON. A column that a line does not have is null; other columns and empty lines are ignored.

    Values are read as Spark reads them: a number with a fraction is no whole number, text is in quotes, bytes
    are in base64. A time without an offset is UTC.
    """

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that JSON cannot give."""
        super().check_schema(schema)
        for field in schema:
            try:
                _column([], field.type)
            except TypeError as error:
                raise ValueError(f"column {field.name!r} is {field.type}: {error}") from None

    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
        """Return the rows, and those with a line that is no object, or a value of another type."""
        import pyarrow as pa

        # Bytes that are not UTF-8 become halves of surrogate pairs, which Arrow refuses in wanted columns.
        lines = block.decode(errors="surrogateescape").split("\n")
        scan = _scanner(wanted)
        rows = [_object(text, scan) for line in lines if (text := line.strip(BLANK))]
        refused: dict[int, str | None] = {row: None for row, values in enumerate(rows) if values is None}
        columns = []
        for field in wanted:
            values = [None if row is None else row.get(field.name) for row in rows]
            column, without = null_where_refused(values, field.type, partial(_column, kind=field.type))
            columns.append(column)
            for row in without:
                refused.setdefault(row, unfit(field, values[row]))
        bad = list(_bad_rows(block, refused)) if refused else []
        return pa.RecordBatch.from_arrays(columns, schema=wanted), bad

    def file_schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """Not called: lines of JSON have the schema that is given."""
        raise NotImplementedError


def _bad_rows(block: bytes, refused: dict[int, str | None]) -> Iterator[BadRow]:
    """Yield the rows of these numbers with the lines in which they stand; None: the line is no object."""
    at = row = 0
    for line in block.split(b"\n"):
        if line.strip(BLANK.encode()):
            if row in refused:
                yield BadRow(at, row, refused[row] or f"{shown(line)} is not a JSON object", line)
            row += 1
        at += len(line) + 1


Scan = Callable[[str, int], tuple[Any, int]]


def _scanner(wanted: pa.Schema) -> Scan:
    """Return a parser of one value. Numbers keep all their digits where a column of decimals is wanted."""
    exact = "decimal" in wanted.to_string(show_field_metadata=False)
    scan: Scan = json.JSONDecoder(parse_float=decimal.Decimal if exact else None).scan_once  # type: ignore[attr-defined]
    return scan


def _object(text: str, scan: Scan) -> dict[str, Any] | None:
    """Return the object that `text` is; None if it is none."""
    try:
        value, end = scan(text, 0)
    except (ValueError, StopIteration, RecursionError, decimal.InvalidOperation):
        return None
    return value if end == len(text) and type(value) is dict else None


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of JSON as an array.

    Raises ValueError, OverflowError or an error of Arrow for a value that does not fit, TypeError for a type
    that JSON does not have.
    """
    import pyarrow as pa

    is_kind = pa.types
    if is_kind.is_struct(kind):
        _check(values, dict)
        children = [
            _column([None if value is None else value.get(field.name) for value in values], field.type)
            for field in kind
        ]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if is_kind.is_list(kind):
        _check(values, list)
        items = _column([item for value in values for item in value or ()], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), items).cast(kind)
    if is_kind.is_map(kind) and kind.key_type == pa.string():
        _check(values, dict)
        keys = pa.array([key for value in values for key in value or ()], pa.string())
        items = _column([item for value in values if value for item in value.values()], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items).cast(kind)
    if is_kind.is_boolean(kind):
        return pa.array(_check(values, bool), kind)
    if is_kind.is_integer(kind):
        return pa.array(_check(values, int), kind)
    if is_kind.is_floating(kind):
        _check(values, int, float, decimal.Decimal)
        return pa.array([None if value is None else float(value) for value in values], kind)
    if is_kind.is_decimal(kind):
        _check(values, int, decimal.Decimal)
        return pa.array([None if value is None else decimal.Decimal(value) for value in values], kind)
    if is_kind.is_binary(kind):
        _check(values, str)
        return pa.array(
            [None if value is None else base64.b64decode(value, validate=True) for value in values], kind
        )
    text = pa.array(_check(values, str), pa.string())
    if is_kind.is_timestamp(kind):
        return text.cast(kind) if kind.tz is None else _instants(text, kind)
    if is_kind.is_string(kind) or is_kind.is_large_string(kind) or is_kind.is_date(kind):
        return text.cast(kind)
    raise TypeError("JSON does not have such values: name another type, such as string")


def _check(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    """Return `values` if each is None or of one of these types. Raises ValueError."""
    if set(map(type, values)) - {type(None), *kinds}:
        raise ValueError("a value of another type")
    return values


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the items of each value begin, and null for a value that is."""
    import pyarrow as pa

    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*offsets, end], pa.int32())


def _instants(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times with an offset, or in UTC where none has one."""
    import pyarrow as pa

    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return text.cast(pa.timestamp(kind.unit)).cast(kind)
