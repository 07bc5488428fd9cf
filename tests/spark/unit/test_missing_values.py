"""Every form of a missing value, in every place of a result: a null, and never a number."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pillarbox import Batch, Errors, Options
from pillarbox.ledger import Ledger
from pillarbox.loop_thread import LoopThread
from pillarbox.spark import async_map, async_stream, async_udf, failed_rows, register_source
from pillarbox.spark.border import forbidden_null
from pillarbox.spark.records import from_ipc, rows_of
from pillarbox.spark.results import ResultError, RowEncoder
from pillarbox.spark.schema import arrow_field
from pillarbox.spark.stream.row_digests import digests_of, row_digests
from pillarbox.spark.writer import RowWriter
from pillarbox.testing.identity import identity
from tests.spark import queries
from tests.spark.streams import END_TIMEOUT_S, Collected, read_input, rocksdb, write_input
from tests.spark.strict_types import as_arrow, is_wrong, loose, strict_kinds
from tests.spark.unit import missing, missing_source
from tests.spark.unit.missing import KINDS, MISSING, REFUSED, UTC, encoded
from tests.versions import needs_async_stream


@pytest.mark.contract(
    "Each form of a missing value of Python, NumPy, pandas or Arrow is a null, a NaN where it is a float, or "
    "the error of its row, in each place of a result.",
    convicts=["masks_of_numpy_ignored", "texts_of_pandas_taken_for_numbers"],
)
@pytest.mark.parametrize(("form", "place"), missing.cells(), ids=lambda name: name.replace(" ", "_"))
def test_every_form_of_a_missing_value_in_every_place(form: str, place: str) -> None:
    for kind in missing.cells()[form, place]:
        assert (kind, missing.found(form, place, kind)) == (kind, missing.answer(form, place, kind))


@pytest.fixture(scope="module")
def numbers(session: SparkSession) -> DataFrame:
    """A row for each form and kind, with nulls and NaN of its own."""
    rows = [missing.given(number) for number in range(len(missing.SINGLE_CELLS))]
    return session.createDataFrame(rows, missing.INPUT).coalesce(1)


def check_results(rows: Sequence[Any]) -> None:
    """rows: with `number`, `_error`, and the columns of results."""
    assert sorted(row.number for row in rows) == [*range(len(missing.SINGLE_CELLS))]
    for row in rows:
        answers = {REFUSED} if row["_error"] is not None else missing.shown_row(row, row.number)
        assert (missing.SINGLE_CELLS[row.number], answers) == (
            missing.SINGLE_CELLS[row.number],
            missing.due(row.number),
        )


def test_every_form_of_a_missing_value_through_async_map_a_ledger_and_dead_letters(
    numbers: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "schema": missing.RESULTS,
        "keep": "*",
        "ledger": Ledger(str(tmp_path / "ledger"), uid="uid", run="run", retry_errors=False),
    }
    letters, closed = str(tmp_path / "letters"), tmp_path / "closed"
    give = partial(missing.give_unless, str(closed))
    errors = Errors("column", dead_letter=letters)
    check_results(async_map(numbers, give, errors=errors, **options).collect())
    closed.touch()
    # What was kept is found again, and nothing is called.
    check_results(async_map(numbers, give, errors="column", **options).collect())
    refused = [number for number in range(len(missing.SINGLE_CELLS)) if missing.due(number) == {REFUSED}]
    put_aside = failed_rows(spark.read.parquet(letters)).collect()
    assert Counter(identity(tuple(row)[:4]) for row in put_aside) == Counter(
        identity(missing.given(number)) for number in refused
    )


def test_every_form_of_a_missing_value_through_async_udf(numbers: DataFrame) -> None:
    call = async_udf(missing.RESULTS, errors="column")(missing.give_number)
    found = numbers.select("number", call("number").alias("r"))
    check_results(found.selectExpr("number", "r.result.*", "r._error").collect())


@needs_async_stream
def test_every_form_of_a_missing_value_through_the_state_of_a_stream() -> None:
    from pillarbox.spark.stream.bucket_state import IDENTITY, BucketState, decode, encode
    from pillarbox.spark.stream.held_calls import HeldCalls

    given = [missing.given(number) for number in range(len(missing.SINGLE_CELLS))]
    kinds = (pa.int32(), pa.float64(), pa.string(), pa.list_(pa.float64()))
    columns = [pa.array(each, kind) for each, kind in zip(zip(*given, strict=True), kinds, strict=True)]
    names = ["number", "x", "text", "list"]
    batch = pa.RecordBatch.from_arrays(columns, names)
    digests = digests_of(row_digests(columns, len(given)))
    rows = BucketState().with_rows(batch, 1, np.zeros(len(given), np.int64), digests)
    assert rows is not None
    wanted = rows.column(IDENTITY).to_pylist()
    thread = LoopThread("test-loop")
    calls = HeldCalls(
        missing.give,
        Options(ordered=False, errors="column"),
        RowWriter([], missing.RESULTS, None, errors="column"),
        loop_thread=thread,
        convert=RowEncoder(missing.RESULTS, None),
    )
    try:
        calls.open(0, 1, [])
        calls.begin(0, 1, rows)
        calls.wait(0, wanted, len(wanted), time.monotonic() + END_TIMEOUT_S)
        known = calls.read(0, 1, wanted).beside(rows, names)
    finally:
        calls.close()
        assert thread.close(END_TIMEOUT_S)
    state = BucketState().after(rows, known, ordered=True)
    (found_state, bad) = decode(encode(state, "output"), [*zip(names, kinds, strict=True)], "output")
    assert not bad
    leaving = found_state.leaving
    found = [row for blob in leaving for each in from_ipc(blob) for row in rows_of(each).rows]
    check_results(found)
    assert Counter(identity(tuple(row)[:4]) for row in found) == Counter(map(identity, given))


@pytest.mark.slow
@needs_async_stream
def test_every_form_of_a_missing_value_through_async_stream(spark: SparkSession, tmp_path: Path) -> None:
    rows = [missing.given(number) for number in range(len(missing.SINGLE_CELLS))]
    with rocksdb(spark):
        write_input(spark, tmp_path / "in", missing.INPUT, [rows])
        stream = read_input(spark, tmp_path / "in", missing.INPUT)
        sink = Collected()
        out = async_stream(
            stream, missing.give, schema=missing.RESULTS, keep="*", errors="column", max_wait=END_TIMEOUT_S
        )
        writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c"))
        query = queries.start(writer.trigger(availableNow=True))
        assert query.awaitTermination(END_TIMEOUT_S)
        assert query.exception() is None
    check_results(sink.rows)
    assert Counter(identity(tuple(row)[:4]) for row in sink.rows) == Counter(map(identity, rows))


@pytest.mark.parametrize("kind", missing.IN_BATCHES)
def test_every_collection_with_a_missing_value_as_the_results_of_a_batch_on_spark(
    spark: SparkSession, kind: str
) -> None:
    forms = [*missing.COLLECTIONS]
    fn = partial(missing.give_batch, kind)
    df = async_map(
        spark.range(0, 3 * len(forms), 1, 1).where(_has(kind)),
        fn,
        schema=T.StructType().add("r", missing.KINDS[kind][0]),
        keep=["id"],
        batch=Batch(3, linger=END_TIMEOUT_S),
        errors="column",
        ordered=True,
    )
    found = {row.id: REFUSED if row["_error"] is not None else missing.shown(row.r) for row in df.collect()}
    for number, form in enumerate(forms):
        if (right := missing.answer(form, "as the results of a batch", kind)) != missing.NONE:
            assert (form, found[3 * number + 1]) == (form, right)


def _has(kind: str) -> str:
    """A condition for the rows of collections that a kind can have."""
    of_kind = [
        str(number)
        for number, form in enumerate(missing.COLLECTIONS)
        if kind in missing.OF_KINDS.get(form, missing.KINDS)
    ]
    return f"id div 3 IN ({', '.join(of_kind)})"


def test_every_form_of_a_missing_value_through_a_source(spark: SparkSession) -> None:
    name = register_source(spark, missing_source.Missing(), "missing_values")
    found = spark.read.format(name).load().toArrow()
    expected = pa.Table.from_batches([missing_source.batch()]).cast(found.schema)
    assert Counter(map(identity, found.to_pylist())) == Counter(map(identity, expected.to_pylist()))


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
    if form.startswith(("NaT of NumPy", "None in")):
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
    spark, _ = KINDS[kind]
    expected = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    given = COLLECTIONS[form](values, missing)
    assert encoded(T.ArrayType(spark), given) == expected
    assert encoded(T.StructType().add("f", T.ArrayType(spark)), {"f": given}) == {"f": expected}
    assert encoded(T.ArrayType(T.ArrayType(spark)), [given]) == [expected]
    # The results of a batch, as one column.
    encoder = RowEncoder(T.StructType().add("f", spark), UTC)
    rows = encoder.rows_of(given)
    (array,), _ = encoder.encode(encoder.convert_all([*given] if rows is None else rows))
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
    assert encoder.convert(good) in ("a", ("a",))
    with pytest.raises(ResultError, match="decode"):
        encoder.convert(bad)
