"""Types with NOT NULL at random depths, and values in which any part may be missing, or not be text."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st
from pyspark.sql import types as T

HALF = "cut \ud83d"
"""Half a character, which has no form in UTF-8: as a text of Python, and in bytes as Arrow has them."""

LEAVES: list[tuple[T.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (T.LongType(), pa.int64(), st.integers(-5, 5)),
    (T.StringType(), pa.string(), st.sampled_from(["", "a", "\U0001f600", HALF])),
    (T.BooleanType(), pa.bool_(), st.booleans()),
    (T.DateType(), pa.date32(), st.just(datetime.date(2024, 2, 29))),
    (T.DecimalType(5, 2), pa.decimal128(5, 2), st.just(decimal.Decimal("1.50"))),
    (T.BinaryType(), pa.binary(), st.sampled_from([b"", b"\xff"])),
]


@st.composite
def strict_kinds(draw: st.DrawFn, depth: int = 3) -> tuple[T.DataType, Any]:
    """A type, and values of it in which any part is missing."""
    form = draw(st.sampled_from(["leaf", "list", "struct", "map"] if depth else ["leaf"]))
    if form == "leaf":
        kind, _, values = draw(st.sampled_from(LEAVES))
        return kind, values
    nullable = draw(st.booleans())
    kind, values = draw(strict_kinds(depth - 1))
    some = values | values | values | st.none()
    if form == "list":
        return T.ArrayType(kind, nullable), st.lists(some, max_size=20)
    if form == "struct":
        fields = [T.StructField("f", kind, nullable), T.StructField("n", T.LongType(), True)]
        return T.StructType(fields), st.fixed_dictionaries({"f": some, "n": st.integers(0, 3) | st.none()})
    return T.MapType(T.StringType(), kind, nullable), st.dictionaries(
        st.sampled_from("abc"), some, max_size=3
    )


def is_wrong(value: Any, kind: T.DataType, nullable: bool) -> bool:
    """Return True if a value has a null where its type allows none, or half a character."""
    if value is None:
        return not nullable
    if isinstance(kind, T.ArrayType):
        return any(is_wrong(each, kind.elementType, kind.containsNull) for each in value)
    if isinstance(kind, T.MapType):
        return any(is_wrong(each, kind.valueType, kind.valueContainsNull) for each in value.values())
    if isinstance(kind, T.StructType):
        return any(is_wrong(value[each.name], each.dataType, each.nullable) for each in kind.fields)
    return bool(value == HALF)


def loose(kind: T.DataType, text: pa.DataType | None = None) -> pa.DataType:
    """The type of Arrow, which allows nulls everywhere. text: in the place of text."""
    if isinstance(kind, T.ArrayType):
        return pa.list_(loose(kind.elementType, text))
    if isinstance(kind, T.MapType):
        return pa.map_(pa.string(), loose(kind.valueType, text))
    if isinstance(kind, T.StructType):
        return pa.struct([(each.name, loose(each.dataType, text)) for each in kind.fields])
    found = next(arrow for spark, arrow, _ in LEAVES if spark == kind)
    return text if text is not None and pa.types.is_string(found) else found


def as_arrow(values: list[Any], kind: T.DataType) -> pa.Array:
    """The array of values, in which half a character is what it is in bytes."""
    given = pa.array([_in_bytes(value, kind) for value in values], loose(kind, pa.binary()))
    return given.cast(options=pc.CastOptions(loose(kind), allow_invalid_utf8=True))


def _in_bytes(value: Any, kind: T.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, T.ArrayType):
        return [_in_bytes(each, kind.elementType) for each in value]
    if isinstance(kind, T.MapType):
        return {name: _in_bytes(each, kind.valueType) for name, each in value.items()}
    if isinstance(kind, T.StructType):
        return {each.name: _in_bytes(value[each.name], each.dataType) for each in kind.fields}
    return value.encode("utf-8", "surrogatepass") if isinstance(kind, T.StringType) else value
