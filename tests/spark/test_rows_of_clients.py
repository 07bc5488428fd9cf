"""A client gives one row for each row: a list is a value, which neither vanishes nor doubles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

import pillarbox
from pillarbox import Ledger
from pillarbox.clients import Http, HttpLookup
from pillarbox.spark import async_map, async_stream, async_udf, called_once, embed_text, lookup

DIRECT = Http(proxy="direct")
VALUES = {"one": 1, "none": [], "two": [1, 2], "null": None, "text": ["a"], "deep": [[1], []]}


class Values(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = json.dumps({"v": VALUES[self.path[1:]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *about: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Values) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{{k}}"
        server.shutdown()


@pytest.fixture
def keys(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(key,) for key in VALUES], "k string").coalesce(1)


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


@pytest.mark.contract
def test_a_list_that_a_client_gives_is_the_value_of_its_row_in_a_column_of_lists(
    keys: DataFrame, url: str
) -> None:
    client = HttpLookup(url, take="v", http=DIRECT)
    rows = async_map(keys.where("k in ('none', 'two', 'null')"), client, schema="v array<int>", keep=["k"])
    assert found(rows) == [("none", []), ("two", [1, 2]), ("null", None)]


@pytest.mark.contract
def test_a_list_that_a_client_gives_for_another_column_is_the_error_of_its_row(
    keys: DataFrame, url: str
) -> None:
    client = HttpLookup(url, take="v", http=DIRECT)
    rows = async_map(keys, client, schema="v int", keep=["k"], errors="column").collect()
    assert [row.k for row in rows] == [*VALUES]
    assert [row.v for row in rows] == [1] + [None] * 5
    errors = {row.k: row._error.type for row in rows if row._error is not None}
    assert errors == dict.fromkeys(["none", "two", "text", "deep"], "ResultError")


@pytest.mark.contract
def test_a_list_that_a_client_gives_for_several_columns_is_refused_in_words(
    keys: DataFrame, url: str
) -> None:
    client = HttpLookup(url, take="v", http=DIRECT)
    rows = async_map(keys, client, schema="v int, w int", keep=["k"], errors="column").collect()
    assert [row.k for row in rows] == [*VALUES]
    told = {row.k: row._error.message for row in rows if row._error is not None}
    assert "a client gives one row for each row, and a list of 2 is none" in told["two"]
    assert "a list of 0 is none" in told["none"]


@pytest.mark.contract
def test_a_client_gives_the_same_rows_as_lookup_and_as_a_column_and_out_of_a_ledger(
    keys: DataFrame, url: str, tmp_path: Any
) -> None:
    client = HttpLookup(url, take="v", http=DIRECT)
    some = keys.where("k in ('none', 'two', 'null')")
    expected = [("none", []), ("two", [1, 2]), ("null", None)]
    whole = HttpLookup(url, http=DIRECT)
    assert found(lookup(some, client=whole, schema="v array<int>", keep=["k"])) == expected
    column = async_udf(client, "array<int>")
    assert found(some.select("k", column("k").alias("v"))) == expected
    ledger = Ledger(str(tmp_path), uid="lookup", run="1")
    for _ in range(2):
        assert found(async_map(some, client, schema="v array<int>", keep=["k"], ledger=ledger)) == expected


@pytest.mark.contract
def test_the_function_behind_a_client_gets_its_list_as_one_row(keys: DataFrame, url: str) -> None:
    async def count(values: Any) -> tuple[int]:
        return (len(values) if isinstance(values, list) else -1,)

    client = HttpLookup(url, take="v", http=DIRECT)
    rows = async_map(keys, [client, count], schema="n int", keep=["k"])
    assert found(rows) == [("one", -1), ("none", 0), ("two", 2), ("null", -1), ("text", 1), ("deep", 2)]
    without_spark = pillarbox.async_map([{"k": key} for key in VALUES], [client, count])
    assert [*without_spark] == [(n,) for _, n in found(rows)]


@pytest.mark.contract
def test_a_function_around_a_client_gives_several_rows_or_none(keys: DataFrame, url: str) -> None:
    client = HttpLookup(url, take="v", http=DIRECT)

    async def spread(row: Any) -> Any:
        async with client:
            return await client(row)

    rows = async_map(keys.where("k in ('one', 'none', 'two')"), spread, schema="v int", keep=["k"])
    assert found(rows) == [("one", 1), ("two", 1), ("two", 2)]


@pytest.mark.contract
def test_a_frame_of_pandas_where_only_sparks_can_be_is_refused_in_words_and_not_printed_whole() -> None:
    async def call(row: Any) -> Any:
        raise AssertionError

    frame: Any = pd.DataFrame({"text": ["a long text"] * 1000})
    for make in (
        lambda: async_stream(frame, call, schema="v int"),
        lambda: called_once(frame).__enter__(),
    ):
        with pytest.raises(
            TypeError, match="must be a Spark DataFrame, such as spark.createDataFrame"
        ) as found:
            make()
        assert len(str(found.value)) < 400
    column: Any = frame["text"]
    for other in (
        lambda: lookup(column, client=call, schema="v int"),
        lambda: embed_text(column, "text", into="v", client=call),
    ):
        with pytest.raises(TypeError, match="must be a Spark DataFrame, or a table of pandas") as found:
            other()
        assert len(str(found.value)) < 400
    with pytest.raises(TypeError, match="must be a Column or the name of one, not Series") as found:
        async_udf(call, "int")(frame["text"])
    assert len(str(found.value)) < 500
