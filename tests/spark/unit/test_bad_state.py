"""A committed state with rows that nothing can go on from: the query says which, or puts them aside once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.versions import needs_async_stream

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pillarbox import Errors
from pillarbox.spark import async_map, async_stream, async_udf, failed_rows
from pillarbox.spark.records import from_ipc
from pillarbox.spark.stream import async_stream as module
from pillarbox.spark.stream.bucket_state import StreamPlan
from tests.spark import queries
from tests.spark.streams import note, noted, read_input, rocksdb, write_input

pytestmark = [needs_async_stream]


@pytest.fixture(autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    with rocksdb(spark):
        yield


def schema_of(*, nullable: bool) -> T.StructType:
    inner = T.StructType([T.StructField("a", T.LongType(), nullable)])
    return T.StructType([T.StructField("v", inner), T.StructField("t", T.StringType())])


@pytest.mark.contract(
    "A null that the version before has committed where there may be none ends the query with its row; with "
    "bad_state it is put aside once, and all other rows leave, none called again."
)
def test_a_query_gets_past_a_null_that_the_version_before_has_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, letters = str(tmp_path / "calls"), tmp_path / "letters"
    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(24)]])
    stream = read_input(spark, tmp_path / "in", "id long")

    async def call(row: Any) -> dict[str, Any]:
        note(calls, row.id)
        return {"v": {"a": None if row.id == 3 else row.id}, "t": f"row {row.id}"}

    taken: dict[int, list[Any]] = {}
    replays = [True]

    def sink(df: Any, batch: int) -> None:
        first, again = df.collect(), df.collect()
        assert sorted(first) == sorted(again)
        taken[batch] = first
        if first and replays:
            raise RuntimeError(f"the sink fails once, {replays.pop()}")

    def run(**given: Any) -> None:
        df = async_stream(
            stream, call, schema=schema_of(nullable=False), keep=["id"], max_wait=480.0, **given
        )
        writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "state"))
        query = queries.start(writer.trigger(availableNow=True))
        query.awaitTermination()

    with monkeypatch.context() as patch:
        # A plan without the check: neither when a call ends, nor when the state is read.
        loose = schema_of(nullable=True)
        patch.setattr(
            module, "StreamPlan", lambda **given: StreamPlan(**{**given, "schema": loose, "leaves": ()})
        )
        with pytest.raises(Exception, match="null|Null"):
            run()
    assert sorted(map(int, noted(tmp_path / "calls"))) == list(range(24))
    with pytest.raises(
        Exception,
        match=r"bucket \d+, micro-batch 1: the result, which is to leave, "
        r"\(id=3, v={'a': None}, t='row 3'\): v.a is null, but the schema says NOT NULL\. .*bad_state=",
    ):
        run()
    assert not letters.exists()
    with pytest.raises(Exception, match="the sink fails once"):
        run(errors=Errors(bad_state=letters))
    run(errors=Errors(bad_state=letters))
    assert sorted(row.id for rows in taken.values() for row in rows) == [n for n in range(24) if n != 3]
    assert all(row.v.a == row.id for rows in taken.values() for row in rows)
    assert sorted(map(int, noted(tmp_path / "calls"))) == list(range(24))
    (letter,) = failed_rows(spark.read.parquet(str(letters))).collect()
    assert (letter.batch, letter.part, letter.row) == (1, "leaving", "(id=3, v={'a': None}, t='row 3')")
    assert letter["_error"].type == "StreamStateError"
    assert letter["_error"].message == "v.a is null, but the schema says NOT NULL"
    (raw,) = from_ipc(bytes(letter.raw))
    assert raw.to_pylist() == [{"id": 3, "v": {"a": None}, "t": "row 3"}]


def test_bad_state_is_refused_where_nothing_is_kept_in_a_state(spark: SparkSession) -> None:
    async def fn(row: Any) -> Any:
        return row

    errors = Errors(bad_state="folder")
    for refused in (
        lambda: async_map(spark.range(1), fn, schema="v long", errors=errors),
        lambda: async_map(spark.range(1), [fn, fn], schema="v long", errors=errors),
        lambda: async_udf(fn, "long", errors=errors),
    ):
        with pytest.raises(ValueError, match="bad_state='folder': is for async_stream"):
            refused()
