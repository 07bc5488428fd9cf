"""Every form of a missing value, in every place of a result: a null, and never a number."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pillarbox.spark.border import forbidden_null
from pillarbox.spark.results import ResultError, RowEncoder, ValueEncoder
from pillarbox.spark.schema import arrow_field
from tests.spark.strict_types import as_arrow, is_wrong, loose, strict_kinds

UTC = datetime.timezone.utc
MISSING: dict[str, Any] = {
    "None": None,
    "NA of pandas": pd.NA,
    "NaT of pandas": pd.NaT,
    "masked of NumPy": np.ma.masked,
    "masked array of no dimension": np.ma.array(1.5, mask=True),
    "NaT of NumPy": np.datetime64("NaT", "us"),
    "null of Arrow": pa.scalar(None),
    "typed null of Arrow": pa.scalar(None, pa.float64()),
}
ONE = {
    "double": (T.DoubleType(), 1.5),
    "long": (T.LongType(), 7),
    "boolean": (T.BooleanType(), True),
    "string": (T.StringType(), "x"),
    "decimal": (T.DecimalType(4, 1), 1),
    "timestamp": (T.TimestampType(), datetime.datetime(2024, 1, 1, tzinfo=UTC)),
    "date": (T.DateType(), datetime.date(2024, 1, 1)),
}
COLLECTIONS: dict[str, Any] = {
    "masked array": lambda values, missing: np.ma.array(values, mask=missing),
    "masked array of objects": lambda values, missing: np.ma.array(values, mask=missing, dtype=object),
    "masked array in the other byte order": lambda values, missing: np.ma.array(
        np.array(values).astype(np.array(values).dtype.newbyteorder("S")), mask=missing
    ),
    "array of pandas": lambda values, missing: pd.array(
        [None if gone else value for value, gone in zip(values, missing, strict=True)],
        dtype={bool: "boolean", int: "Int64", float: "Float64"}[type(values[0])],
    ),
    "Series of pandas": lambda values, missing: pd.Series(COLLECTIONS["array of pandas"](values, missing)),
    "Index of pandas": lambda values, missing: pd.Index(COLLECTIONS["array of pandas"](values, missing)),
    "Series of Arrow in pandas": lambda values, missing: pd.Series(
        [None if gone else value for value, gone in zip(values, missing, strict=True)],
        dtype=pd.ArrowDtype({bool: pa.bool_(), int: pa.int64(), float: pa.float64()}[type(values[0])]),
    ),
    "objects with NA": lambda values, missing: np.array(
        [pd.NA if gone else value for value, gone in zip(values, missing, strict=True)], object
    ),
    "array of Arrow": lambda values, missing: pa.array(
        [None if gone else value for value, gone in zip(values, missing, strict=True)]
    ),
}


def placed(place: str, kind: T.DataType, value: Any) -> Any:
    """The null or value that is found where a result has `value` at a place."""
    inner = T.ArrayType(kind)
    if place == "alone":
        return encoded(kind, value)
    if place == "in a list":
        return encoded(inner, [value])[0]
    if place == "in a struct":
        return encoded(T.StructType().add("f", kind), {"f": value})["f"]
    if place == "in a map":
        ((_, found),) = encoded(T.MapType(T.StringType(), kind), {"k": value})
        return found
    if place == "in a list of lists":
        return encoded(T.ArrayType(inner), [[value]])[0][0]
    encoder = RowEncoder(T.StructType().add("n", T.LongType()).add("f", kind), UTC)
    arrays, _ = encoder.encode([encoder.convert({"n": 1, "f": value})])
    return arrays[1].to_pylist()[0]


def encoded(kind: T.DataType, value: Any) -> Any:
    encoder = ValueEncoder(kind, UTC)
    (array,), _ = encoder.encode([encoder.convert(value)])
    (found,) = array.to_pylist()
    return found


PLACES = ["alone", "in a row", "in a list", "in a struct", "in a map", "in a list of lists"]


@pytest.mark.contract("A missing value of NumPy, pandas or Arrow is a null in each place of a result.")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", MISSING)
@pytest.mark.parametrize("kind", ONE)
def test_a_missing_value_is_null_wherever_it_is(form: str, place: str, kind: str) -> None:
    spark, there = ONE[kind]
    assert placed(place, spark, there) is not None
    assert placed(place, spark, MISSING[form]) is None


@pytest.mark.parametrize("form", [name for name in MISSING if "Arrow" not in name])
@pytest.mark.parametrize(
    "kind",
    [
        T.ArrayType(T.FloatType()),
        T.ArrayType(T.StringType()),
        T.StructType().add("a", T.LongType()),
        T.MapType(T.StringType(), T.LongType()),
    ],
    ids=str,
)
def test_a_missing_collection_is_null(form: str, kind: T.DataType) -> None:
    if form == "NaT of NumPy":
        with pytest.raises(ResultError):
            encoded(kind, MISSING[form])
    else:
        assert encoded(kind, MISSING[form]) is None


NUMBERS = st.sampled_from(
    [("double", [1.5, -0.5, 2.0]), ("long", [1, -2, 3]), ("boolean", [True, False, True])]
)


@pytest.mark.contract(
    "What a collection says by a mask is missing is null, alone, nested and in a block.",
    convicts=["masks_of_numpy_ignored"],
)
@pytest.mark.parametrize("form", COLLECTIONS)
@given(NUMBERS, st.lists(st.booleans(), min_size=3, max_size=3))
def test_what_a_mask_says_is_missing_is_null(form: str, numbers: Any, missing: list[bool]) -> None:
    kind, values = numbers
    spark, _ = ONE[kind]
    expected = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    given = COLLECTIONS[form](values, missing)
    assert encoded(T.ArrayType(spark), given) == expected
    assert encoded(T.StructType().add("f", T.ArrayType(spark)), {"f": given}) == {"f": expected}
    assert encoded(T.ArrayType(T.ArrayType(spark)), [given]) == [expected]
    # The results of a batch, as one column.
    encoder = RowEncoder(T.StructType().add("f", spark), UTC)
    rows = encoder.rows_of(given)
    rows = encoder.convert_all([*given]) if rows is None else rows
    (array,), _ = encoder.encode(rows)
    assert array.to_pylist() == expected


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=3))
def test_a_masked_matrix_of_results_has_nulls(mask: list[list[bool]]) -> None:
    matrix = np.ma.array([[1.5, 2.5]] * len(mask), mask=mask)
    expected = [
        [None if gone else value for value, gone in zip((1.5, 2.5), row, strict=True)] for row in mask
    ]
    encoder = RowEncoder(T.StructType().add("f", T.ArrayType(T.DoubleType())), UTC)
    rows = encoder.rows_of(matrix)
    rows = encoder.convert_all([*matrix]) if rows is None else rows
    (array,), _ = encoder.encode(rows)
    assert array.to_pylist() == expected


def test_where_no_null_may_be_a_masked_value_is_refused() -> None:
    kind = T.ArrayType(T.DoubleType(), containsNull=False)
    with pytest.raises(ResultError, match="null, but the schema says"):
        encoded(kind, np.ma.array([1.5, 2.5], mask=[True, False]))
    assert encoded(kind, np.ma.array([1.5, 2.5])) == [1.5, 2.5]


@pytest.mark.contract("A map that has a key twice is refused.")
@pytest.mark.parametrize("pairs", [[("a", 1), ("a", 2)], [("a", 1), ("b", 2), ("a", 1)], ((1, 1), (True, 2))])
def test_a_map_with_a_key_twice_is_refused(pairs: Any) -> None:
    key = T.StringType() if isinstance(pairs, list) else T.LongType()
    with pytest.raises(ResultError, match="stands twice in a map|Expected integer"):
        encoded(T.MapType(key, T.LongType()), pairs)
    assert encoded(T.MapType(T.StringType(), T.LongType()), [("a", 1), ("b", 2)]) == [("a", 1), ("b", 2)]


@pytest.mark.skipif(not hasattr(T, "TimeType"), reason="needs PySpark 4.1")
def test_a_time_of_day_with_a_zone_is_refused() -> None:
    noon = datetime.time(12, 0)
    assert encoded(T.TimeType(), noon) == noon
    with pytest.raises(ResultError, match="has a time zone, a time has none: give a time without one"):
        encoded(T.TimeType(), noon.replace(tzinfo=UTC))


@pytest.mark.contract(
    "A null where the schema says NOT NULL is the error of its row, alone or in a block.",
    convicts=["nulls_inside_pass", "nulls_of_blocks_pass"],
)
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (T.LongType(), None),
        (T.StructType([T.StructField("f", T.LongType(), False)]), {"f": None}),
        (T.ArrayType(T.StringType(), False), ["a", None]),
        (T.MapType(T.StringType(), T.LongType(), False), {"a": None}),
        (T.ArrayType(T.StructType([T.StructField("f", T.LongType(), False)])), [{"f": 1}, {"f": None}]),
    ],
    ids=str,
)
def test_a_null_that_the_schema_does_not_allow_is_refused(kind: T.DataType, wrong: Any) -> None:
    encoder = RowEncoder(T.StructType([T.StructField("v", kind, False)]), UTC)
    with pytest.raises(ResultError, match="is null, but the schema says NOT NULL"):
        encoder.convert({"v": wrong})
    assert encoder.rows_of(pa.table({"v": pa.array([wrong], loose(kind))})) is None


@given(strict_kinds(), st.booleans(), st.data())
def test_a_null_that_the_schema_does_not_allow_is_refused_at_any_depth(
    typed: Any, nullable: bool, data: Any
) -> None:
    kind, values = typed
    schema = T.StructType([T.StructField("v", kind, nullable)])
    encoder = RowEncoder(schema, UTC)
    given = data.draw(st.lists(values | st.none(), min_size=1, max_size=4))
    right = []
    for each in given:
        if is_wrong(each, kind, nullable):
            with pytest.raises(
                ResultError, match="NOT NULL|null, but the schema says|surrogates not allowed"
            ):
                encoder.convert({"v": each})
        else:
            right.append(encoder.convert({"v": each}))
    if right:
        (array,), _ = encoder.encode(right)
        assert forbidden_null(array, arrow_field(schema["v"])) is None
    # As one block of Arrow, which says nothing of what may be null.
    block = pa.table({"v": as_arrow(given, kind)})
    rows = encoder.rows_of(block)
    for result, each in zip(block.to_pylist() if rows is None else rows, given, strict=True):
        if is_wrong(each, kind, nullable):
            with pytest.raises(ResultError):
                encoder.convert(result)
        else:
            (array,), _ = encoder.encode([encoder.convert(result)])
            assert len(array) == 1


@pytest.mark.contract("Text of a block that is not UTF-8 does not reach Spark.")
def test_a_block_whose_text_is_not_utf_8_is_looked_at_row_by_row() -> None:
    offsets, data = np.array([0, 1, 2], np.int32), b"a\xff"
    wrong = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(data))
    encoder = RowEncoder(T.StructType().add("v", T.StringType()), UTC)
    good, bad = encoder.rows_of(wrong) or [None, None]
    assert encoder.convert(good) == ("a",)
    with pytest.raises(ResultError, match="decode"):
        encoder.convert(bad)
