"""`count_tokens` and `split_text` as columns of Spark, in SQL, and end to end with `embed_text`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox.clients import Embeddings
from pillarbox.clients.tokenizer_loading import TokenizerUnavailable
from pillarbox.spark import count_tokens, embed_text, split_text, text_splitter, token_counter
from pillarbox.testing import serve
from tests.clients.kinds_of_tokenizers import WORDS, byte_pairs

TEXT = " ".join(WORDS)
SCHEMA = "id int, text string"


@pytest.fixture(scope="module")
def rows() -> list[tuple[int, str | None]]:
    return [(1, TEXT), (2, None), (3, ""), (4, " \n"), (5, "愛は寛容です。" * 9)]


@pytest.mark.parametrize("kind", ["estimate", "cl100k_base", "GPT-2"])
def test_columns_of_spark_are_those_of_arrow(
    spark: SparkSession, rows: list[tuple[int, str | None]], kind: str
) -> None:
    tokenizer: Any = byte_pairs() if kind == "GPT-2" else kind
    df = spark.createDataFrame(rows, SCHEMA).repartition(2).orderBy("id")
    made = df.select(
        count_tokens("text", tokenizer).alias("tokens"),
        split_text(F.col("text"), 16, 4, tokenizer=tokenizer).alias("chunks"),
        split_text("text", 16, 4, tokenizer=tokenizer, details=True).alias("details"),
    )
    assert made.schema.simpleString() == (
        "struct<tokens:int,chunks:array<string>,"
        "details:array<struct<text:string,start:int,end:int,tokens:int>>>"
    )
    found = made.collect()
    column = pa.array([text for _, text in rows])
    chunks = split_text(column, 16, 4, tokenizer=tokenizer, details=True).to_pylist()
    assert [row.tokens for row in found] == count_tokens(column, tokenizer).to_pylist()
    assert [
        None if row.details is None else [each.asDict() for each in row.details] for row in found
    ] == chunks
    assert [row.chunks for row in found] == [each and [part["text"] for part in each] for each in chunks]


def test_the_name_of_a_column_says_that_it_is_estimated(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, "a")], SCHEMA)
    names = df.select(
        count_tokens("text"), count_tokens("text", "cl100k_base"), split_text("text", 8)
    ).columns
    assert names == ["estimated_tokens(text)", "count_tokens(text)", "split_text_by_estimate(text)"]


@pytest.mark.contract(
    "SQL calls the functions of tokens that are registered, and a null stays null.",
    convicts=["null_has_no_tokens", "null_has_no_chunks", "column_run_once"],
)
def test_functions_of_tokens_are_functions_of_sql(spark: SparkSession) -> None:
    spark.udf.register("tokens_of", token_counter("cl100k_base"))
    spark.udf.register("chunks_of", text_splitter(8, tokenizer="cl100k_base"))
    values = "values ('A box is red. It takes letters.'), (null) as v(t)"
    query = f"select tokens_of(t) as n, chunks_of(t) as c from {values}"
    assert [tuple(row) for row in spark.sql(query).collect()] == [
        (9, ["A box is red.", " It takes letters."]),
        (None, None),
    ]
    assert spark.sql("select explode(chunks_of('a')) as c where tokens_of('b') > 0").collect()[0].c == "a"


@pytest.mark.contract(
    "A tokenizer goes to the workers with the function: they need neither its file nor the network.",
    convicts=["tokenizer_of_a_file_kept", "tokenizer_sent_empty", "kinds_of_tokenizers_confused"],
)
def test_workers_need_no_file_of_the_tokenizer(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    byte_pairs().save(str(path))
    df = spark.createDataFrame([(1, TEXT)], SCHEMA)
    counted = df.select(count_tokens("text", str(path)).alias("tokens"))
    path.unlink()
    assert counted.first().tokens == len(byte_pairs().encode(TEXT).ids)
    with pytest.raises(TokenizerUnavailable, match="there is no file"):
        count_tokens("text", str(path))


def test_a_column_of_numbers_is_refused_in_words(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, "a")], SCHEMA)
    with pytest.raises(Exception, match="column: is of Arrow's type int32, must be of strings"):
        df.select(count_tokens("id")).collect()


def test_split_explode_embed(spark: SparkSession, rows: list[tuple[int, str | None]]) -> None:
    df = spark.createDataFrame(rows, SCHEMA)
    parts = df.select("id", F.explode(split_text("text", 16, 4, tokenizer="cl100k_base")).alias("text"))
    with serve(dimensions=4) as service:
        client = Embeddings(service.url, "any-model")
        found = embed_text(parts, "text", into="vector", client=client).collect()
    assert {row.id for row in found} == {1, 5}
    assert all(len(row.vector) == 4 for row in found)
