"""Results that a ledger keeps give the same columns as the results themselves."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import zoneinfo
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark.sql")

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T

from pillarbox.ledger.values import decode, encode
from pillarbox.spark.ledger_plan import ResultCodec, check_keepable
from pillarbox.spark.results import ResultError, RowEncoder, ValueEncoder
from tests.search import examples

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
UTC = datetime.timezone.utc


class Pair(NamedTuple):
    """A row with names."""

    a: int
    b: Any


@dataclasses.dataclass
class Thing:
    """A row of another kind."""

    a: int
    b: Any


class Colour(enum.IntEnum):
    """An int with a name."""

    RED = 3


def struct(**columns: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


def through(kept: Any) -> Any:
    """As a ledger gives it back."""
    encoded = encode(kept)
    return decode(encoded.json, encoded.floats, encoded.blobs)


def kept(schema: T.StructType, result: Any) -> Any:
    """A converted result as a ledger gives it back."""
    return through(ResultCodec(schema, BERLIN)(RowEncoder(schema, BERLIN).convert(result)))


def columns(schema: T.StructType, result: Any) -> tuple[list[list[Any]], list[int] | None]:
    encoder = RowEncoder(schema, BERLIN)
    arrays, counts = encoder.encode([encoder.convert(result)])
    return [array.to_pylist() for array in arrays], counts or [1]


PAIR = struct(a=T.LongType(), b=T.StringType())


@pytest.mark.parametrize(
    "result",
    [
        {"a": 1, "b": "x"},
        {"b": "x"},
        OrderedDict(b="x", a=1),
        (1, "é"),
        Row(b="x", a=1),
        Pair(1, None),
        Thing(1, "x"),
        {"a": Colour.RED, "b": np.str_("x")},
        {"a": np.int64(7), "b": None},
        [],
        [{"a": 1}, Pair(2, "y"), (3, "z")],
    ],
)
def test_rows_of_every_form_are_kept(result: Any) -> None:
    assert columns(PAIR, kept(PAIR, result)) == columns(PAIR, result)


WIDE = struct(
    at=T.TimestampType(),
    local=T.TimestampNTZType(),
    day=T.DateType(),
    price=T.DecimalType(10, 2),
    raw=T.BinaryType(),
    vector=T.ArrayType(T.FloatType()),
    texts=T.ArrayType(T.StringType()),
    inner=struct(a=T.LongType(), b=T.ArrayType(PAIR)),
    marks=T.MapType(T.StringType(), T.IntegerType()),
)


@pytest.mark.contract
@pytest.mark.parametrize(
    "values",
    [
        {"at": datetime.datetime(2026, 7, 1, 12, tzinfo=BERLIN)},
        {"at": datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)},
        {"at": datetime.datetime(2026, 10, 25, 2, 30, fold=1)},
        {"at": pd.Timestamp("2026-07-01T12:00:00.123456", tz="UTC")},
        {"local": datetime.datetime(2026, 7, 1, 12, 0, 0, 5)},
        {"day": datetime.date(2026, 1, 1)},
        # 23 hours in New York are the next day elsewhere.
        {"day": datetime.datetime(2026, 1, 1, 23, tzinfo=zoneinfo.ZoneInfo("America/New_York"))},
        {"day": datetime.datetime(2026, 1, 1, 23, tzinfo=datetime.timezone(-datetime.timedelta(hours=5)))},
        {"price": decimal.Decimal("12.30")},
        {"raw": b"\x00\xff"},
        {"raw": bytearray(b"ab")},
        {"vector": [0.5, 1e300, math.inf, -0.0]},
        {"vector": np.array([0.25, 0.5], np.float32)},
        {"vector": [0.5, None, 1]},
        {"vector": (0.5, 1.0)},
        {"texts": ["a", None, "é"]},
        {"texts": np.array(["a", "b"])},
        {"inner": {"a": 1, "b": [Pair(1, "x"), Thing(2, "y"), None]}},
        {"inner": Row(a=1, b=[])},
        {"marks": {"a": 1, "b": None}},
        {"marks": OrderedDict(a=1)},
    ],
)
def test_values_of_every_type_are_kept(values: dict[str, Any]) -> None:
    def typed(found: Any) -> str:
        return repr(found)

    assert typed(columns(WIDE, kept(WIDE, values))) == typed(columns(WIDE, values))
    (name, value), *_ = values.items()
    kind = WIDE[name].dataType

    def array(result: Any) -> str:
        encoder = ValueEncoder(kind, BERLIN)
        (found,), _ = encoder.encode([encoder.convert(result)])
        return typed(found.to_pylist())

    assert array(
        through(ResultCodec(kind, BERLIN, is_row=False)(ValueEncoder(kind, BERLIN).convert(value)))
    ) == array(value)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("schema", "result"),
    [
        (struct(a=T.LongType()), "text"),
        (struct(a=T.LongType()), 2**63),
        (struct(a=T.IntegerType()), 2**31),
        (struct(a=T.ByteType()), -129),
        (struct(a=T.StringType()), 7),
        (struct(a=T.StringType()), "\ud800"),
        (struct(a=T.StringType()), b"x"),
        (struct(a=T.ArrayType(T.FloatType())), ["x"]),
        (struct(a=T.ArrayType(T.LongType())), {"a": [2**63]}),
        (PAIR, {"a": 1, "c": 2}),
        (PAIR, (1,)),
        (PAIR, None),
        (PAIR, [{"a": 1}, {"a": "x"}]),
        (T.StructType([T.StructField("a", T.LongType(), False)]), {"a": None}),
    ],
)
def test_what_does_not_fit_its_schema_is_refused_before_it_is_kept(schema: T.StructType, result: Any) -> None:
    with pytest.raises(ResultError):
        RowEncoder(schema, BERLIN).convert(result)


LEAVES: dict[str, tuple[T.DataType, st.SearchStrategy[Any]]] = {
    "long": (T.LongType(), st.integers(-(2**63), 2**63 - 1)),
    "short": (T.ShortType(), st.integers(-40_000, 40_000)),
    "double": (T.DoubleType(), st.floats()),
    "text": (T.StringType(), st.text()),
    "raw": (T.BinaryType(), st.binary()),
    "flag": (T.BooleanType(), st.booleans()),
    "day": (T.DateType(), st.dates(datetime.date(1900, 1, 1))),
    "at": (T.TimestampType(), st.datetimes(datetime.datetime(1950, 1, 1), timezones=st.just(UTC))),
    "list": (T.ArrayType(T.DoubleType()), st.lists(st.floats(), max_size=12)),
    "texts": (T.ArrayType(T.StringType()), st.lists(st.none() | st.text(), max_size=3)),
    "map": (T.MapType(T.StringType(), T.LongType()), st.dictionaries(st.text(), st.integers(0, 9))),
}


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_row_is_kept_as_it_was_or_does_not_fit(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=4, unique=True))
    schema = struct(**{name: LEAVES[name][0] for name in names})
    row = data.draw(st.fixed_dictionaries({name: st.none() | LEAVES[name][1] for name in names}))
    made: Any = data.draw(st.sampled_from([row, tuple(row.values()), Row(**row), [row, row]]))
    try:
        expected = columns(schema, made)
    except ResultError:
        return
    assert repr(columns(schema, kept(schema, made))) == repr(expected)


def test_a_user_defined_type_is_refused_on_the_driver() -> None:
    class Point(T.UserDefinedType):
        @classmethod
        def sqlType(cls) -> T.DataType:
            return T.DoubleType()

    with pytest.raises(ValueError, match="a ledger keeps no user-defined types"):
        check_keepable(struct(points=T.ArrayType(Point())))
    check_keepable(WIDE)


VECTORS = struct(vector=T.ArrayType(T.FloatType()))


@pytest.mark.contract
@pytest.mark.parametrize(
    "block",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
        pa.array([[0.25, 1.0], [0.5, None], [2.0, 3.0]], pa.list_(pa.float32())),
        pa.array([[0.25], [], [2.0, 3.0]], pa.list_(pa.float32())),
        pa.array([[0.25, 1.0], None, [2.0, 3.0]], pa.list_(pa.float32())),
        pa.array([[9.0, 9.0], [0.25, 1.0], [0.5, 2.0], [2.0, 3.0]], pa.list_(pa.float32())).slice(1),
        pa.array([[], [], []], pa.list_(pa.float32())),
    ],
)
def test_rows_of_a_block_are_kept_without_a_loss(block: Any) -> None:
    encoder = RowEncoder(VECTORS, None)
    rows: Any = encoder.rows_of(block)
    codec = ResultCodec(VECTORS, None)
    back = [encoder.convert(through(codec(row))) for row in rows]
    (expected,), _ = encoder.encode(rows)
    (array,), _ = encoder.encode(back)
    assert array.equals(expected)


def test_a_vector_of_a_block_is_kept_in_its_bytes_and_no_more() -> None:
    encoder = RowEncoder(VECTORS, None)
    rows: Any = encoder.rows_of(np.ones((3, 1024), np.float32))
    encoded = encode(ResultCodec(VECTORS, None)(rows[1]))
    assert [len(each) for each in encoded.blobs] == [4096] and not encoded.floats
