"""JSON lines: an object a line, with a schema. See `FileFormat` for who calls it.

Two parsers read the lines. Arrow's is four times as fast as Python's, but it writes through a wild pointer
where a `null` stands in the place of an object, which ends the process or not; knows no lines, so that two
objects in one are two rows; and refuses a block of lines for one bad value. So a block goes to Arrow where
its columns are flat, each line begins with `{` and ends with `}`, and no `n` follows a `}`: a newline in such
a block cannot stand within an object, and no `null` between two. What Arrow refuses, or gives other rows of
than there are lines, goes to Python, as does what the two read differently. Which parser has read a line
makes no difference to its row.
"""

from __future__ import annotations

import base64
import decimal
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import compute
from pyarrow import json as arrow_json

from pillarbox.sources.connectors.files.formats import BadRow, null_where_refused, shown, unfit
from pillarbox.sources.connectors.files.text import TextFormat, line_starts

BLANK = " \t\r"
"""The characters that JSON allows around a value, but for the newline."""
NOT_FOR_ARROW = [
    # Ends the process.
    re.compile(rb"\}[ \t\r]*n"),
    # Ends the block.
    re.compile(rb"\0"),
    # A whole number is never below zero by its sign alone; Python knows `Infinity`, and no `-NaN`.
    re.compile(rb"-0[\s,}\]]"),
    re.compile(rb"NaN[\s,}\]]"),
    re.compile(rb"Inf(?:inity)?[\s,}\]]"),
]
# Python's parser has ends where Arrow's has none: the depth of its stack, and 4,300 digits of a whole number.
MAX_BRACKETS, MAX_DIGITS = 300, 4000
LONG_NUMBER = re.compile(rb"\d{%d}" % MAX_DIGITS)


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
        batch = _by_arrow(block.replace(b"\r\n", b"\n"), wanted)
        return _by_python(block, wanted) if batch is None else (batch, [])


# -- Arrow's parser ----------------------------------------------------------------------------------


def _by_arrow(block: bytes, wanted: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows as Arrow's parser has them; None where it may not or cannot read them."""
    kinds = [_arrow_kind(field.type) for field in wanted]
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if None in kinds or not _is_for_arrow(block, lines):
        return None
    try:
        # Arrow does not look whether text is UTF-8.
        block.decode()
        table = arrow_json.read_json(
            pa.BufferReader(block),
            arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            arrow_json.ParseOptions(
                explicit_schema=pa.schema(zip(wanted.names, kinds, strict=True)),
                unexpected_field_behavior="ignore",
            ),
        )
        (batch,) = table.combine_chunks().to_batches()
        columns = [_cast(column, field.type) for column, field in zip(batch.columns, wanted, strict=True)]
    except (pa.ArrowException, ValueError):
        return None
    # Too large a number may be infinite here, and is refused there.
    numbers = [column for column in columns if pa.types.is_floating(column.type)]
    if batch.num_rows != lines or any(compute.any(compute.is_inf(column)).as_py() for column in numbers):
        return None
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _is_for_arrow(block: bytes, lines: int) -> bool:
    """Return True for lines that Arrow reads as Python does, or refuses."""
    are_objects = block.startswith(b"{") and block.endswith((b"}", b"}\n"))
    if not are_objects or block.count(b"}\n{") != lines - 1:
        return False
    long = [line for line in block.split(b"\n") if len(line) > MAX_BRACKETS]
    parts = [part for line in long if len(line) > MAX_DIGITS for part in line.split(b",")]
    return not (
        any(pattern.search(block) for pattern in NOT_FOR_ARROW)
        or any(line.count(b"[") + line.count(b"{") > MAX_BRACKETS for line in long)
        or any(len(part) > MAX_DIGITS and LONG_NUMBER.search(part) for part in parts)
    )


def _arrow_kind(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which Arrow parses a column, and from which it is cast; None where it cannot."""
    is_kind = pa.types
    if is_kind.is_boolean(kind) or is_kind.is_integer(kind):
        return kind
    if is_kind.is_floating(kind):
        # Rounded twice, as Python's numbers are.
        return pa.float64()
    is_text = is_kind.is_string(kind) or is_kind.is_large_string(kind)
    return pa.string() if is_text or is_kind.is_date(kind) or is_kind.is_timestamp(kind) else None


# -- Python's parser ---------------------------------------------------------------------------------

Scan = Callable[[str, int], tuple[Any, int]]


def _by_python(block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
    # Bytes that are not UTF-8 become halves of surrogate pairs, which Arrow refuses in wanted columns.
    lines = block.decode(errors="surrogateescape").split("\n")
    # Numbers keep all their digits where a column of decimals is wanted.
    exact = "decimal" in wanted.to_string(show_field_metadata=False)
    scan: Scan = json.JSONDecoder(parse_float=decimal.Decimal if exact else None).scan_once  # type: ignore[attr-defined]
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


def _bad_rows(block: bytes, refused: dict[int, str | None]) -> Iterator[BadRow]:
    """Yield the rows of these numbers with the lines in which they stand; None: the line is no object."""
    lines = zip(line_starts(block), block.split(b"\n"), strict=False)
    for row, (at, line) in enumerate((at, line) for at, line in lines if line.strip(BLANK.encode())):
        if row in refused:
            yield BadRow(at, row, refused[row] or f"{shown(line)} is not a JSON object", line)


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
        return _cast(
            pa.array([None if value is None else float(value) for value in values], pa.float64()), kind
        )
    if is_kind.is_decimal(kind):
        _check(values, int, decimal.Decimal)
        return pa.array([None if value is None else decimal.Decimal(value) for value in values], kind)
    _check(values, str)
    if is_kind.is_binary(kind):
        decode = partial(base64.b64decode, validate=True)
        return pa.array([None if value is None else decode(value) for value in values], kind)
    if _arrow_kind(kind) is None:
        raise TypeError("JSON does not have such values: name another type, such as string")
    return _cast(pa.array(values, pa.string()), kind)


def _check(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    """Return `values` if each is None or of one of these types. Raises ValueError."""
    if set(map(type, values)) - {type(None), *kinds}:
        raise ValueError("a value of another type")
    return values


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the items of each value begin, and null for a value that is."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*offsets, end], pa.int32())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as `kind`. Text without an offset is a time in UTC, where none has one."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind):
            raise
        return column.cast(pa.timestamp(kind.unit)).cast(kind)
