"""Arrays made of buffers are those of Arrow, and the usual job imports no pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.spark.records import array_of, array_of_numpy, flags_of, numpy_of

INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}

VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((kind, st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)) for bits, kind in INTEGERS.items()),
    (pa.float64(), st.floats() | st.integers(-(2**53), 2**53)),
    (pa.float32(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.binary(), st.binary() | st.binary().map(bytearray)),
    (pa.list_(pa.int64()), st.lists(st.integers(0, 9))),
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind, values = draw(st.sampled_from(VALUES))
    return kind, draw(st.lists(st.none() | values, max_size=40))


@pytest.mark.contract(
    "A column of plain values is that which Arrow makes of them, bit for bit and null for null."
)
@given(columns(), st.booleans())
def test_a_column_is_that_which_arrow_makes_of_the_same_values(
    column: tuple[pa.DataType, list[Any]], as_tuple: bool
) -> None:
    kind, values = column
    ours = array_of(tuple(values) if as_tuple else values, kind)
    ours.validate(full=True)
    theirs = pa.array(values, kind)
    assert ours.type == theirs.type and ours.null_count == theirs.null_count
    # As text: NaN is not equal to itself.
    assert str(ours.to_pylist()) == str(theirs.to_pylist())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(
            (kind, edge)
            for bits, kind in INTEGERS.items()
            for edge in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1)
        ),
        (pa.int64(), 2**200),
        (pa.int64(), "1"),
        (pa.float64(), "1.0"),
        (pa.int64(), True),
        (pa.bool_(), 1),
        (pa.string(), b"\xff"),
        (pa.string(), "\ud800"),
        (pa.binary(), 5),
    ],
)
def test_what_arrow_refuses_is_refused_with_its_error(kind: pa.DataType, value: object) -> None:
    with pytest.raises((pa.ArrowException, OverflowError, UnicodeError, TypeError)) as theirs:
        pa.array([value], kind)
    with pytest.raises(type(theirs.value)) as ours:
        array_of([value], kind)
    assert str(ours.value) == str(theirs.value)


@given(st.sampled_from("bhilqBHILQfd?"), st.lists(st.integers(0, 100), max_size=30), st.integers(1, 3))
def test_arrays_of_numpy_go_to_arrow_and_back(code: str, values: list[int], step: int) -> None:
    given_ = np.array(values, code)[::step]
    array = array_of_numpy(given_)
    assert array.equals(pa.array(np.ascontiguousarray(given_)))
    seen = numpy_of(array.slice(1)) if len(array) else numpy_of(array)
    if seen is not None:
        assert seen.tolist() == array.slice(min(1, len(array))).to_pylist()


@given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 20))
def test_flags_are_true_where_the_value_is(values: list[bool | None], start: int) -> None:
    assert flags_of(pa.array(values, pa.bool_()).slice(start)).tolist() == [*map(bool, values[start:])]


SCRIPT = """
import sys
import pyarrow as pa
from pyspark.sql import types as T
from pillarbox.spark.records import array_of, rows_of, sliced, take_rows
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.writer import RowWriter
import pillarbox.spark.worker

columns = [array_of([1, None, 3], pa.int64()), array_of(["a", None, "b"], pa.string())]
(batch,) = sliced([pa.RecordBatch.from_arrays(columns, ["n", "t"])])
rows = rows_of(batch).rows
assert [(row.n, row.t) for row in rows] == [(1, "a"), (None, None), (3, "b")]
assert take_rows(batch, [0, 2]).num_rows == 2

encoder = RowEncoder(T.StructType([
    T.StructField("n", T.LongType()), T.StructField("t", T.StringType()), T.StructField("d", T.DoubleType()),
    T.StructField("v", T.ArrayType(T.FloatType()))]), None)
result = encoder.convert({"n": 1, "t": "x", "d": 0.5, "v": [1.0, 2.0]})
assert encoder.encode([result])[0][3].to_pylist() == [[1.0, 2.0]]
print("pandas" in sys.modules)
"""


@pytest.mark.contract("Rows of plain columns pass through a worker without the import of pandas.")
def test_rows_of_plain_columns_need_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
