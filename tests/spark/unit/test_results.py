"""Results are converted when they come, one by one, and encoded when they leave, a chunk at a time."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import math
import pickle
import uuid
import zoneinfo
from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T

from pillarbox import ErrorInfo
from pillarbox.aio.errors import Failed
from pillarbox.spark.results import EncodedRow, ResultError, RowEncoder, ValueEncoder
from tests.search import examples

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
UTC = datetime.timezone.utc
LATE = datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.timezone(-datetime.timedelta(hours=5)))
"""In UTC this is in the year 10000."""
FAILED = Failed(ErrorInfo("ValueError", "no", 1, 0.0, None))


def struct(**columns: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


VECTOR = T.ArrayType(T.FloatType())
TYPES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "decimal(4,2)": T.DecimalType(4, 2),
    "interval": T.DayTimeIntervalType(),
    **({"time": T.TimeType()} if hasattr(T, "TimeType") else {}),
    "map": T.MapType(T.StringType(), T.LongType()),
    "struct": struct(a=T.LongType(), v=VECTOR),
    "structs": T.ArrayType(struct(a=T.IntegerType(), b=VECTOR)),
    "vectors": T.ArrayType(VECTOR),
}
TYPES |= {
    f"{name}s": T.ArrayType(TYPES[name])
    for name in ("boolean", "int", "long", "float", "double", "string", "date", "timestamp")
}


def value(kind: str, result: Any) -> Any:
    """The value of one result of a type, as Arrow reads it."""
    encoder = ValueEncoder(TYPES[kind], BERLIN)
    (found,), _ = encoder.encode([encoder.convert(result)])
    return found.to_pylist()[0]


class Colour(enum.Enum):
    """A member is its value."""

    RED = "red"
    THREE = 3


IDENTITY = uuid.UUID(int=7)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("kind", "result", "expected"),
    [
        ("string", Colour.RED, "red"),
        ("long", Colour.THREE, 3),
        ("string", IDENTITY, str(IDENTITY)),
        ("binary", IDENTITY, IDENTITY.bytes),
        ("string", pd.NA, None),
        ("double", pd.NA, None),
        ("timestamp", pd.NaT, None),
        ("timestamp", np.datetime64("NaT", "us"), None),
        ("double", np.float32(0.5), 0.5),
        ("boolean", np.bool_(True), True),
        ("long", 4.0, 4),
        ("long", decimal.Decimal("4.00"), 4),
        ("long", pa.scalar(4), 4),
        ("string", np.str_("x"), "x"),
        ("double", np.array(1.5), 1.5),
        (
            "timestamp",
            pd.Timestamp("2026-07-01 12:00:00.123456789"),
            datetime.datetime(2026, 7, 1, 10, 0, 0, 123456, tzinfo=UTC),
        ),
        (
            "timestamp",
            np.datetime64("2026-07-01T12:00:00.5"),
            datetime.datetime(2026, 7, 1, 10, 0, 0, 500000, tzinfo=UTC),
        ),
        ("date", np.datetime64("2026-07-01"), datetime.date(2026, 7, 1)),
        ("interval", pd.Timedelta(hours=2), datetime.timedelta(hours=2)),
        ("strings", ["a", Colour.RED, pd.NA, IDENTITY], ["a", "red", None, str(IDENTITY)]),
        ("strings", np.array(["a", "b"]), ["a", "b"]),
        ("strings", pd.Series(["a", "b"]), ["a", "b"]),
        ("doubles", [0.5, pd.NA, np.float32(1.5)], [0.5, None, 1.5]),
        ("floats", pd.Series([0.5, 1.5]), [0.5, 1.5]),
        ("doubles", pd.array([0.5, None], dtype="Float64"), [0.5, None]),
        ("floats", {0.5}, [0.5]),
        ("floats", array.array("f", [0.5, 1.5]), [0.5, 1.5]),
        ("floats", pa.array([0.5, None]), [0.5, None]),
        ("floats", pa.chunked_array([[0.5], [1.5]]), [0.5, 1.5]),
        ("floats", pa.scalar([0.5, 1.5]), [0.5, 1.5]),
        ("floats", np.array([0.5, 1.5], np.float16), [0.5, 1.5]),
        ("floats", np.array([0.5, 1.5], ">f8"), [0.5, 1.5]),
        ("floats", np.array([3, 4]), [3.0, 4.0]),
        ("ints", np.array([3.0, 4.0]), [3, 4]),
        ("ints", np.array([3, 4], np.int64), [3, 4]),
        ("ints", list(range(100)), list(range(100))),
        ("floats", np.arange(6.0)[::2], [0.0, 2.0, 4.0]),
        ("booleans", np.array([True, False]), [True, False]),
        ("vectors", np.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
        ("vectors", [pa.array([0.5]), array.array("d", [1.5]), None], [[0.5], [1.5], None]),
        ("timestamps", np.array(["2026-07"], "M8[ns]"), [datetime.datetime(2026, 6, 30, 22, 0, 0, 0, UTC)]),
        ("map", {Colour.RED: Colour.THREE}, [("red", 3)]),
        ("struct", {"v": np.array([0.5])}, {"a": None, "v": [0.5]}),
        ("struct", (1, list(range(40))), {"a": 1, "v": [*map(float, range(40))]}),
    ],
)  # fmt: skip
def test_values_of_other_libraries_are_taken(kind: str, result: Any, expected: Any) -> None:
    assert value(kind, result) == expected


@pytest.mark.parametrize(
    ("kind", "result", "message"),
    [
        ("long", 1.5, "1.5 is not a whole number"),
        ("long", math.nan, "cannot convert float NaN to integer"),
        ("long", True, "Expected integer, got bool"),
        ("long", Colour.RED, "Could not convert 'red'"),
        ("longs", [1, 1.5], "1.5 is not a whole number"),
        ("ints", np.array([0.5]), "truncated"),
        ("ints", np.array([2**40]), "not in range"),
        ("floats", "1.5", "an array must be a list, not str"),
        ("floats", {"a": 1.5}, "an array must be a list, not dict"),
        ("floats", 1.5, "an array must be a list, not float"),
        ("floats", np.array(["1.5"]), "Could not convert '1.5'"),
        ("floats", np.eye(2), "an array of 2 dimensions: must have one"),
        ("floats", pa.array(["1.5"]), "an array of string: must be of numbers, as float"),
        ("strings", "abc", "an array must be a list, not str"),
        ("timestamp", LATE, "date value out of range"),
        ("timestamp", np.datetime64("12000-01-01"), "12000-01-01 is not in the years 1 to 9999"),
        ("timestamp_ntz", np.datetime64("12000-01-01"), "12000-01-01 is not in the years 1 to 9999"),
        ("timestamp", "2026-07-01", "'2026-07-01': must be a datetime, not str"),
        ("timestamp_ntz", LATE, "has a time zone, a timestamp_ntz has none"),
        ("string", 7, "Expected bytes, got a 'int' object"),
        ("string", b"x", "b'x' is not a string but bytes"),
        ("decimal(4,2)", decimal.Decimal("100.00"), "precision"),
        ("decimal(4,2)", decimal.Decimal("0.001"), "data loss"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_with_its_column(kind: str, result: Any, message: str) -> None:
    with pytest.raises(ResultError, match=r"does not fit the schema .*: column result \(") as caught:
        value(kind, result)
    assert message in str(caught.value)


@pytest.mark.contract
@pytest.mark.parametrize("number", [1719830000, 1.5, True, decimal.Decimal(5), np.int64(5)])
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("timestamp", "datetime"),
        ("timestamp_ntz", "datetime"),
        ("date", "date"),
        ("interval", "timedelta"),
        *([("time", "time")] if hasattr(T, "TimeType") else []),
        ("timestamps", "datetime"),
    ],
)
def test_no_number_is_taken_for_a_time(kind: str, wanted: str, number: Any) -> None:
    with pytest.raises(ResultError, match=f"must be a {wanted}, not "):
        value(kind, [number] if kind == "timestamps" else number)


def test_elements_that_must_be_there_are() -> None:
    kind = T.ArrayType(T.DoubleType(), containsNull=False)
    for result in ([None], [0.5] * 40 + [None], pa.array([0.5, None]), pd.array([None], dtype="Float64")):
        with pytest.raises(ResultError, match="null, but the schema says that elements are not"):
            ValueEncoder(kind, None).convert(result)


PAIR = struct(a=T.LongType(), b=T.StringType())


class FieldsOfPydantic:
    """An object with what those of Pydantic 2 have."""

    __pydantic_fields__ = {"a": None, "b": None}  # noqa: RUF012
    __pydantic_extra__ = None
    a, b = 1, "x"


class FieldsOfMsgspec:
    """An object with what those of msgspec have."""

    __struct_fields__ = ("b", "a")
    a, b = 1, "x"


def objects() -> dict[str, Any]:
    attrs = pytest.importorskip("attrs")
    return {
        "attrs": attrs.make_class("Made", ["a", "b"])(1, "x"),
        "attrs with slots": attrs.make_class("Slotted", ["b"], slots=True)("x"),
        "pydantic": FieldsOfPydantic(),
        "msgspec": FieldsOfMsgspec(),
        "row": Row(b="x", a=1),
    }


@pytest.mark.parametrize("name", ["attrs", "attrs with slots", "pydantic", "msgspec", "row"])
def test_rows_of_other_libraries_are_read_by_name(name: str) -> None:
    encoder = RowEncoder(PAIR, None)
    arrays, _ = encoder.encode([encoder.convert(objects()[name])])
    assert [column.to_pylist() for column in arrays] == [[None if "slots" in name else 1], ["x"]]


def test_rows_of_pydantic_are_read_by_name() -> None:
    pydantic = pytest.importorskip("pydantic")
    Inner = pydantic.create_model("Inner", n=(int, ...))
    Model = pydantic.create_model("Model", a=(int, ...), b=(Inner, ...))
    schema = struct(a=T.LongType(), b=struct(n=T.LongType()))
    encoder = RowEncoder(schema, None)
    arrays, _ = encoder.encode([encoder.convert([Model(a=1, b={"n": 2}), Model(a=3, b={"n": 4})])])
    assert [column.to_pylist() for column in arrays] == [[1, 3], [{"n": 2}, {"n": 4}]]
    Loose = pydantic.create_model("Loose", __config__={"extra": "allow"}, a=(int, ...))
    with pytest.raises(ResultError, match="unknown columns c; the schema has a, b"):
        encoder.convert(Loose(a=1, c=2))


# -- chunks ---------------------------------------------------------------------------------------

VECTORS: dict[str, Any] = {
    "list": lambda values: list(values),
    "tuple": tuple,
    "float64": lambda values: np.array(values, np.float64),
    "float32": lambda values: np.array(values, np.float32),
    "float16": lambda values: np.array(values, np.float16),
    "array": lambda values: array.array("f", values),
    "arrow": lambda values: pa.array(values, pa.float32()),
    "arrow of doubles": lambda values: pa.array(values, pa.float64()),
    "null": lambda values: None,
}


@pytest.mark.contract
@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*VECTORS, "failed"]),
            st.lists(st.floats(-1000, 1000, width=16), max_size=3) | st.just([0.5] * 20),
        ),
        max_size=8,
    )
)
def test_a_chunk_of_vectors_of_any_forms_is_as_each_alone(drawn: list[tuple[str, list[float]]]) -> None:
    kind = T.ArrayType(T.FloatType())
    encoder = ValueEncoder(kind, None)
    results = [
        FAILED if form == "failed" else encoder.convert(VECTORS[form](values)) for form, values in drawn
    ]
    (found,), counts = encoder.encode(results)
    assert counts is None
    assert found.type == pa.list_(pa.field("element", pa.float32()))
    found.validate(full=True)
    assert found.to_pylist() == [None if form in ("null", "failed") else values for form, values in drawn]


@pytest.mark.contract
def test_a_matrix_stays_one_block() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    encoder = ValueEncoder(T.ArrayType(T.FloatType()), None)
    rows = encoder.rows_of(matrix)
    assert rows is not None
    assert [encoder.convert(row) for row in rows] == rows
    (found,), _ = encoder.encode(rows)
    assert found.to_pylist() == matrix.tolist()
    assert found.values.buffers()[1].address == matrix.ctypes.data
    (part,), _ = encoder.encode([rows[2], rows[3], encoder.convert([0.5]), FAILED, rows[0], rows[1]])
    assert part.to_pylist() == [*matrix.tolist()[2:], [0.5], None, *matrix.tolist()[:2]]


@pytest.mark.contract
@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(st.floats(width=32) | st.none(), min_size=17, max_size=24), min_size=1, max_size=6),
    st.sampled_from([T.FloatType(), T.DoubleType()]),
)
def test_long_lists_of_floats_of_a_batch_are_one_block_as_each_alone(
    drawn: list[list[float | None]], element: T.DataType
) -> None:
    kind = T.ArrayType(element)
    for encoder, results in (
        (ValueEncoder(kind, None), [*drawn]),
        (RowEncoder(struct(v=kind), None), [(each,) for each in drawn]),
    ):
        alone, _ = encoder.encode([encoder.convert(result) for result in results])
        rows = encoder.convert_all(results)
        assert {type(row) for row in rows} == {EncodedRow}
        assert len({id(row.block) for row in rows}) == 1
        together, counts = encoder.encode(rows)
        assert counts is None
        assert repr(together[0].to_pylist()) == repr(alone[0].to_pylist())


@pytest.mark.parametrize(
    "odd",
    [
        *([0.5] * 3, [1] * 20, [True] * 20, [0.5] * 19 + ["x"], [1e300] * 20, None),
        *(np.zeros(20), np.zeros((2, 10)), np.array(0.5)),
    ],
)
def test_lists_beside_one_of_another_kind_are_converted_as_each_alone(odd: Any) -> None:
    encoder = ValueEncoder(T.ArrayType(T.FloatType()), None)
    results = [[0.25] * 20, odd]

    def outcome(convert: Any) -> Any:
        try:
            return repr(encoder.encode(convert())[0][0].to_pylist())
        except ResultError as error:
            return str(error)

    assert outcome(lambda: encoder.convert_all(results)) == outcome(lambda: [*map(encoder.convert, results)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_arrays_of_a_batch_are_one_block_as_each_alone(dtype: str) -> None:
    encoder = RowEncoder(struct(v=VECTOR), None)
    results = [(np.arange(length, dtype=dtype),) for length in (20, 0, 3)]
    alone, _ = encoder.encode([encoder.convert(result) for result in results])
    rows = encoder.convert_all(results)
    assert {type(row) for row in rows} == {EncodedRow}
    results[0][0][:] = 7
    together, _ = encoder.encode(rows)
    assert together[0].to_pylist() == [[*map(float, range(length))] for length in (20, 0, 3)]
    assert together[0].type == alone[0].type


def test_a_null_in_a_list_of_a_batch_is_refused_where_elements_must_be_there() -> None:
    encoder = ValueEncoder(T.ArrayType(T.FloatType(), containsNull=False), None)
    with pytest.raises(ResultError, match="null"):
        encoder.convert_all([[0.25] * 20, [0.5] * 19 + [None]])


def test_a_row_of_a_matrix_travels_without_the_others() -> None:
    encoder = ValueEncoder(T.ArrayType(T.FloatType()), None)
    rows = encoder.rows_of(np.zeros((1000, 100), np.float32))
    assert rows is not None
    data = pickle.dumps(rows[500])
    assert len(data) < 2000
    back = pickle.loads(data)
    assert isinstance(back, EncodedRow)
    assert back.block[0][back.index].as_py() == [0.0] * 100


@pytest.mark.parametrize(
    ("kind", "block", "kept"),
    [
        ("double", np.array([0.5, 1.5]), True),
        ("long", np.array([0.5, 1.5]), False),
        ("boolean", np.array([2, 3]), False),
        ("string", np.array([2, 3]), False),
        ("string", pa.array(["a", "b"]), True),
        ("double", pa.array(["1", "2"]), False),
        ("double", pa.array([0.5, None]), True),
        ("double", pd.Series([0.5, 1.5]), True),
        ("floats", pa.array([[0.5], None]), True),
        ("floats", pa.array([["0.5"]]), False),
        ("floats", np.array([["0.5"]]), False),
        ("ints", np.eye(2), False),
        ("timestamp", np.array(["2026-07-01"], "M8[us]"), False),
        ("floats", [[0.5]], False),
    ],
)
def test_only_a_block_of_near_types_is_kept(kind: str, block: Any, kept: bool) -> None:
    encoder = ValueEncoder(TYPES[kind], BERLIN)
    rows = encoder.rows_of(block)
    assert (rows is not None) == kept
    if rows is not None:
        (found,), _ = encoder.encode(rows)
        each = [item.tolist() if hasattr(item, "tolist") else item for item in block]
        assert found.to_pylist() == [item.as_py() if hasattr(item, "as_py") else item for item in each]


# -- whatever is converted can be encoded ---------------------------------------------------------

ODD: list[Any] = [None, True, 1, -1, 2**31, 2**63, 0.5, 2.0, math.nan, math.inf, 1e300]
ODD += ["x", "é", "\ud800", b"x", "2026-01-01", Colour.RED]
ODD += [decimal.Decimal(text) for text in ("1.25", "NaN", "1e30", "0E+9")]
ODD += [datetime.date.max, datetime.datetime.min, datetime.datetime.max, datetime.timedelta.max]
ODD += [LATE, datetime.datetime(2026, 7, 1, tzinfo=BERLIN), datetime.time(1)]
ODD += [
    pd.NA,
    pd.NaT,
    np.int8(3),
    np.float64(0.5),
    np.array([1, 2]),
    np.array([0.5]),
    pa.array([1]),
    {},
    [],
    (),
]
ANY = st.recursive(
    st.sampled_from(ODD),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@pytest.mark.contract
@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(sorted(TYPES)), st.lists(ANY, min_size=1, max_size=5))
def test_what_was_converted_is_encoded_without_an_error_and_as_alone(kind: str, results: list[Any]) -> None:
    encoder = ValueEncoder(TYPES[kind], BERLIN)
    fitting = []
    for result in results:
        try:
            fitting.append(encoder.convert(result))
        except ResultError:
            continue
    (found,), _ = encoder.encode(fitting)
    found.validate(full=True)
    alone = [encoder.encode([result])[0][0].to_pylist()[0] for result in fitting]
    assert repr(found.to_pylist()) == repr(alone)
    assert all(encoder.convert(result) is not None or result is None for result in fitting)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(ANY | st.fixed_dictionaries({"a": st.integers(), "b": st.text()}), max_size=5))
def test_rows_that_were_converted_are_encoded_without_an_error(results: list[Any]) -> None:
    encoder = RowEncoder(PAIR, BERLIN)
    fitting: list[Any] = []
    for result in results:
        try:
            fitting.append(encoder.convert(result))
        except ResultError:
            fitting.append(FAILED)
    arrays, counts = encoder.encode(fitting)
    rows = sum(counts) if counts is not None else len(fitting)
    assert [len(column) for column in arrays] == [rows, rows]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(ANY | st.integers() | st.none() | st.fixed_dictionaries({"a": st.integers()}), max_size=5),
    st.sampled_from(["long", "pair", "value"]),
)
def test_the_results_of_a_batch_are_converted_as_each_alone(results: list[Any], schema: str) -> None:
    encoder = {
        "long": lambda: RowEncoder(struct(a=T.LongType()), BERLIN),
        "pair": lambda: RowEncoder(PAIR, BERLIN),
        "value": lambda: ValueEncoder(T.LongType(), BERLIN),
    }[schema]()

    def outcome(convert: Any) -> str:
        try:
            return repr(convert())
        except ResultError as error:
            return str(error)

    alone = outcome(lambda: [encoder.convert(result) for result in results])
    assert outcome(lambda: encoder.convert_all(results)) == alone
