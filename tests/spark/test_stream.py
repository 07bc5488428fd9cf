"""`async_stream` over a real stream: slow calls leave later, once, in order where asked."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch, Errors, Options, Retry
from pillarbox.ledger import Ledger
from pillarbox.spark import async_stream, failed_rows
from tests.spark import queries
from tests.spark.streams import (
    END_TIMEOUT_S,
    Collected,
    note,
    noted,
    read_input,
    rocksdb,
    until,
    write_input,
)
from tests.versions import needs_async_stream

pytestmark = [needs_async_stream]


@pytest.fixture(autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    with rocksdb(spark):
        yield


def start(df: Any, sink: Any, tmp_path: Path, **trigger: Any) -> Any:
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    return queries.start(writer.trigger(**trigger) if trigger else writer)


@pytest.mark.contract
def test_slow_calls_leave_later_and_hold_no_micro_batch_and_are_made_once_whichever_worker_has_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    calls, gate = str(tmp_path / "calls"), tmp_path / "open"

    async def call(row: Any) -> dict[str, int]:
        note(calls, row.id)
        while row.id < 24 and not gate.exists():
            await asyncio.sleep(0.02)
        return {"double": 2 * row.id}

    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(40)], [(n,) for n in range(40, 60)]])
    stream = read_input(spark, tmp_path / "in", "id long")
    sink = Collected()
    out = async_stream(stream, call, schema="double long", keep=["id"], max_wait=1.0, ordered=False)
    query = start(out, sink, tmp_path)
    try:
        # Several micro-batches without input, as the 24 calls go on.
        until(lambda: len([each for each in query.recentProgress if each.numInputRows <= 1]) >= 4, query)
        until(lambda: sorted(row.id for row in sink.rows) == list(range(24, 60)), query)
        gate.touch()
        until(lambda: len(sink.rows) == 60, query)
    finally:
        query.stop()
    assert sorted(map(tuple, sink.rows)) == [(n, 2 * n) for n in range(60)]
    assert sorted(map(int, noted(Path(calls)))) == list(range(60))


@pytest.mark.contract
def test_rows_of_a_stream_go_to_their_function_as_arrow_and_come_back_as_a_block(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def embed(batch: pa.RecordBatch) -> Any:
        assert batch.schema.names == ["id", "text"]
        assert batch["text"].to_pylist() == [f"t{n}" for n in batch["id"].to_pylist()]
        return np.repeat(batch["id"].to_numpy()[:, None], 3, axis=1).astype(np.float32)

    columns = "id long, text string"
    parts = [[(n, f"t{n}") for n in range(start, start + 50)] for start in (0, 50)]
    write_input(spark, tmp_path / "in", columns, parts)
    sink = Collected()
    batch = Batch(16, arrow=True)
    stream = read_input(spark, tmp_path / "in", columns)
    out = async_stream(stream, embed, schema="vector array<float>", keep=["id"], batch=batch)
    query = start(out, sink, tmp_path, availableNow=True)
    query.awaitTermination(END_TIMEOUT_S)
    assert {row.id: row.vector for row in sink.rows} == {n: [float(n)] * 3 for n in range(100)}


@pytest.mark.slow
@pytest.mark.contract
def test_rows_of_a_key_leave_in_their_order_and_those_of_others_do_not_wait_and_available_now_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    gate = tmp_path / "open"

    async def call(row: Any) -> int:
        # The first of each third key is slow, and has others of its key behind it in both files.
        while row.n < 6 and row.name in ("a", "d") and not gate.exists():
            await asyncio.sleep(0.02)
        return int(row.n)

    rows = [("abcdef"[n % 6], n) for n in range(60)]
    write_input(spark, tmp_path / "in", "name string, n int", [rows[:30], rows[30:]])
    stream = read_input(spark, tmp_path / "in", "name string, n int")
    sink = Collected()
    query = start(
        async_stream(stream, call, schema="result int", keep=["name"], key="name", max_wait=0.2),
        sink,
        tmp_path,
        availableNow=True,
    )
    # Rows of other keys do not wait for the slow ones.
    until(lambda: len(sink.rows) == 40, query)
    gate.touch()
    assert query.awaitTermination(END_TIMEOUT_S)
    assert query.exception() is None
    for name in "abcdef":
        assert [row.result for row in sink.rows if row.name == name] == [
            n for each, n in rows if each == name
        ]
    assert len(sink.rows) == 60


def test_retries_and_errors_are_those_of_the_operator_and_failed_rows_are_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def call(row: Any) -> Any:
        note(str(tmp_path / "calls"), row.id)
        if row.id == 6:
            return "a result that does not fit"
        if row.id == 3 or (row.id == 5 and noted(tmp_path / "calls").count("5") < 2):
            raise ConnectionError("no answer")
        return int(row.id)

    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(8)]])
    sink = Collected()
    out = async_stream(
        read_input(spark, tmp_path / "in", "id long"),
        call,
        schema="result long",
        keep="*",
        errors=Errors("column", dead_letter=str(tmp_path / "letters")),
        retry=Retry(attempts=2, initial=0.01),
        max_wait=5.0,
    )
    query = start(out, sink, tmp_path, availableNow=True)
    assert query.awaitTermination(END_TIMEOUT_S)
    assert query.exception() is None
    bad = sorted([row for row in sink.rows if row["_error"] is not None], key=lambda row: row.id)
    assert [(row.id, row.result, row["_error"].type, row["_error"].attempts) for row in bad] == [
        (3, None, "ConnectionError", 2),
        (6, None, "ResultError", 2),
    ]
    assert sorted(row.result for row in sink.rows if row["_error"] is None) == [0, 1, 2, 4, 5, 7]
    letters = failed_rows(spark.read.parquet(str(tmp_path / "letters"))).collect()
    assert sorted((row.id, row["_error"].type) for row in letters) == [
        (3, "ConnectionError"),
        (6, "ResultError"),
    ]


def test_a_row_that_fails_ends_the_query_with_its_error_and_stays_to_be_called_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    healed = tmp_path / "healed"

    async def call(row: Any) -> int:
        if row.id == 2 and not healed.exists():
            raise LookupError("there is no such thing")
        return int(row.id)

    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(4)]])
    stream = read_input(spark, tmp_path / "in", "id long")
    sink = Collected()
    query = start(async_stream(stream, call, schema="id long"), sink, tmp_path, availableNow=True)
    with pytest.raises(Exception, match=r"LookupError: there is no such thing"):
        query.awaitTermination(END_TIMEOUT_S)
    assert sink.rows == []
    healed.touch()
    query = start(async_stream(stream, call, schema="id long"), sink, tmp_path, availableNow=True)
    assert query.awaitTermination(END_TIMEOUT_S)
    assert sorted(row.id for row in sink.rows) == [0, 1, 2, 3]


@pytest.mark.contract
def test_rows_of_every_kind_of_column_wait_and_leave_as_they_came_in_every_time_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def call(row: Any) -> int:
        await asyncio.sleep(2.0 if row.id == 0 else 0.0)
        return int(row.id)

    rows = [[(n, datetime.datetime(2026, 11, 21, n + 1), {"n": n}, [(n,)])] for n in range(4)]
    kinds = "id long, at timestamp, map map<string, long>, list array<struct<n: long>>"
    zone = "spark.sql.session.timeZone"
    before = spark.conf.get(zone)
    spark.conf.set(zone, "America/New_York")
    try:
        write_input(spark, tmp_path / "in", kinds, rows)
        # Never null, by its plan; one bucket, in which rows come to others that wait.
        stream = read_input(spark, tmp_path / "in", kinds).withColumn("one", F.lit(1))
        names = ["id", "at", "map", "list", "one"]
        out = async_stream(stream, call, schema="result long", keep=names, key="one", max_wait=0.1)
        sink = Collected()
        query = start(out, sink, tmp_path, availableNow=True)
        assert query.awaitTermination(END_TIMEOUT_S)
        expected = spark.read.parquet(str(tmp_path / "in")).selectExpr("*", "1 AS one", "id AS result")
        assert sink.rows == expected.orderBy("id").collect()
    finally:
        spark.conf.set(zone, before)


def test_a_variant_is_a_column_as_any_other(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        return int(row.v.toPython()["n"]) + 1

    write_input(spark, tmp_path / "in", "id long", [[(1,), (2,)]])
    stream = read_input(spark, tmp_path / "in", "id long")
    stream = stream.withColumn("v", F.parse_json(F.format_string('{"n": %d}', "id")))
    sink = Collected()
    out = async_stream(stream, call, schema="result long", keep=["id"], max_wait=10.0)
    query = start(out, sink, tmp_path, availableNow=True)
    assert query.awaitTermination(END_TIMEOUT_S)
    assert sorted(map(tuple, sink.rows)) == [(1, 2), (2, 3)]


@pytest.mark.slow
@pytest.mark.contract
def test_a_ledger_has_what_was_called_and_a_new_checkpoint_under_the_same_run_calls_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def call(row: Any) -> dict[str, str]:
        note(str(tmp_path / "calls"), row.id)
        return {"text": f"row {row.id}"}

    rows = [(1, "a"), (2, "a"), (2, "a"), (3, "b")]
    # The rows of a key may come in another order: each has the answer of its own.
    for checkpoint, read in (("first", rows), ("second", rows[::-1])):
        write_input(spark, tmp_path / f"in {checkpoint}", "id long, name string", [read])
        stream = read_input(spark, tmp_path / f"in {checkpoint}", "id long, name string")
        sink = Collected()
        out = async_stream(
            stream,
            call,
            schema="text string",
            keep=["id"],
            key="name",
            ledger=Ledger(str(tmp_path / "ledger"), uid="text-v1", run="nightly"),
            max_wait=10.0,
        )
        query = start(out, sink, tmp_path / checkpoint, availableNow=True)
        assert query.awaitTermination(END_TIMEOUT_S)
        assert query.exception() is None
        assert sorted((row.id, row.text) for row in sink.rows) == [(n, f"row {n}") for n in (1, 2, 2, 3)]
        assert sorted(noted(tmp_path / "calls")) == ["1", "2", "2", "3"]


@pytest.mark.slow
def test_event_time_is_carried_and_a_watermark_behind_counts_rows_that_left_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    noon = datetime.datetime(2026, 11, 21, 12, 0)

    async def call(row: Any) -> int:
        await asyncio.sleep(2.0 if row.n == 0 else 0.0)
        return 1

    files = [
        [(n, noon + datetime.timedelta(minutes=n)) for n in range(3)],
        [(9, noon + datetime.timedelta(hours=5))],
    ]
    write_input(spark, tmp_path / "in", "n int, at timestamp", files)
    out = async_stream(
        read_input(spark, tmp_path / "in", "n int, at timestamp"),
        call,
        schema="one int",
        keep=["at"],
        max_wait=0.2,
        ordered=False,
    )
    counted = out.withWatermark("at", "10 hours").groupBy(F.window("at", "1 hour")).count()
    sink = Collected()
    writer = counted.writeStream.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    query = queries.start(writer)
    assert query.awaitTermination(END_TIMEOUT_S)
    assert query.exception() is None
    last = {row.window.start.hour: row["count"] for row in sink.rows}
    assert sorted(last.values()) == [1, 3]


async def same(row: Any) -> Any:
    return row.id


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": "other"}, r"key='other': 'other' is not a column of the DataFrame .columns: id, name"),
        ({"key": []}, r"key=\[\]: must name a column"),
        ({"key": 3}, r"key=3: must be a column name"),
        ({"max_wait": 0}, r"max_wait=0: must be a finite number of seconds above 0"),
        ({"max_wait": None}, r"max_wait=None: must be a number of seconds"),
        ({"keep": ["other"]}, r"keep=\['other'\]: 'other' is not a column"),
        ({"capacity": 0}, r"capacity=0: must be at least 1"),
        ({"ledger": Ledger("calls")}, r"uid=None: with a ledger"),
        ({"schema": "id long", "keep": ["id"]}, r"stand more than once"),
    ],
)
def test_a_bad_argument_is_refused_on_the_driver(
    spark: SparkSession, given: dict[str, Any], said: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS id", "string(value) AS name")
    arguments: dict[str, Any] = {"schema": "result long", **given}
    with pytest.raises((TypeError, ValueError), match=said):
        async_stream(stream, same, **arguments)


def test_rows_of_a_stream_with_lists_are_not_compared_as_a_whole(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("array(value) AS ids")
    with pytest.raises(ValueError, match="column 'ids' is array<bigint>, .* dedupe=lambda row"):
        async_stream(stream, same, schema="result long", options=Options(dedupe=True))


def test_a_dataframe_that_is_no_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="df: is not a stream, .* use async_map"):
        async_stream(spark.range(3), same, schema="id long")
    stream = spark.readStream.format("rate").load().withColumnRenamed("value", "__pillarbox_key")
    with pytest.raises(ValueError, match="df: a column may not be called '__pillarbox_key'"):
        async_stream(stream, same, schema="id long")
    with pytest.raises(TypeError, match="df=3: must be a Spark DataFrame"):
        async_stream(3, same, schema="id long")  # type: ignore[arg-type]


def test_a_session_with_another_state_store_is_refused_with_what_to_set(spark: SparkSession) -> None:
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    with pytest.raises(
        ValueError, match=r"providerClass=.*: call pillarbox\.spark\.stream_settings\(spark\) first"
    ):
        async_stream(spark.readStream.format("rate").load(), same, schema="id long")
