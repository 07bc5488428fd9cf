"""Columns of more than 2 GiB: nothing joins what is apart.

The large ones are of nulls: an array of Arrow counts the bytes that a null spans, and nobody reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the package pyspark is not installed")

from pillarbox.frames import async_map, count_tokens
from pillarbox.spark.large_columns import joined, rows_at, small_chunks, small_parts
from pillarbox.spark.records import concat_rows

TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=40)
HALF = 1_600_000_000


def large(*texts: str) -> pa.Array:
    """A null that spans 1.6 GB, and these texts behind it."""
    ends = np.cumsum([0, *map(len, texts)]) + HALF
    valid = np.packbits([0] + [1] * len(texts), bitorder="little")
    offsets = pa.py_buffer(np.array([0, *ends], np.int32))
    return pa.StringArray.from_buffers(1 + len(texts), offsets, _bytes(HALF, texts), pa.py_buffer(valid), 1)


def beyond(*texts: str) -> pa.Array:
    """Texts with 64 bits, behind 3.2 GB of which no row is."""
    offsets = pa.py_buffer(np.cumsum([2 * HALF, *map(len, texts)], dtype=np.int64))
    return pa.LargeStringArray.from_buffers(len(texts), offsets, _bytes(2 * HALF, texts))


def _bytes(front: int, texts: Sequence[str]) -> pa.Buffer:
    behind = "".join(texts).encode()
    found = np.zeros(front + len(behind), np.uint8)
    found[front:] = np.frombuffer(behind, np.uint8)
    return pa.py_buffer(found)


@given(texts=st.lists(TEXTS, max_size=4), most=st.integers(1, 200), rows=st.integers(1, 50))
def test_parts_are_the_whole_and_small(texts: list[list[str | None]], most: int, rows: int) -> None:
    column = pa.chunked_array([pa.array(each, pa.string()) for each in texts], pa.string())
    parts = [*small_parts(pa.table({"text": column}), rows, most)]
    assert [text for part in parts for text in part["text"].to_pylist()] == column.to_pylist()
    assert all(part.num_rows == 1 or (part.nbytes <= most and part.num_rows <= rows) for part in parts)
    chunks = small_chunks(column, most)
    assert [text for chunk in chunks for text in chunk.to_pylist()] == column.to_pylist()
    assert chunks and all(len(chunk) <= 1 or chunk.nbytes <= most for chunk in chunks)


@pytest.mark.contract(
    "Tables of Arrow, Polars and pandas may have more than 2 GiB of texts in a column.",
    convicts=["parts_of_whole_offsets", "large_columns_are_joined"],
)
@pytest.mark.parametrize("chunks", [[large("a"), large("b")], [beyond("a", "b")]])
def test_a_table_may_have_more_than_two_gibibytes_of_texts(chunks: list[pa.Array]) -> None:
    table = pa.table({"text": pa.chunked_array(chunks)})

    async def call(row: Any) -> Any:
        if row.text is None:
            raise ValueError("no text")
        return {"twice": 2 * row.text}

    made = async_map(table, call, schema="twice string", keep=["text"], errors="drop")
    assert made.select(["text", "twice"]).to_pylist() == [
        {"text": "a", "twice": "aa"},
        {"text": "b", "twice": "bb"},
    ]


@pytest.mark.contract(
    "Columns of more than 2 GiB of texts are counted and split.", convicts=["columns_are_joined"]
)
@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_a_column_may_have_more_than_two_gibibytes_of_texts(kind: str) -> None:
    column = pa.chunked_array([large("a pillar box"), large("red")])
    given: Any = column
    if kind == "pandas":
        given = pd.Series(pd.arrays.ArrowExtensionArray(column))
    found = count_tokens(given)
    counts = found.tolist() if kind == "pandas" else found.to_pylist()
    red, box = count_tokens(pa.array(["red", "a pillar box"])).to_pylist()
    assert [None if each is None or each is pd.NA else int(each) for each in counts] == [None, box, None, red]


@given(rows=st.lists(st.integers(0, 5), max_size=12))
def test_rows_of_chunks_are_taken_as_arrow_takes_them(rows: list[int]) -> None:
    texts = pa.chunked_array([["a", "b"], ["c"], ["d", "e", "f"]])
    table = pa.table({"text": texts, "number": pa.chunked_array([range(6)])})
    huge = table.append_column("huge", pa.chunked_array([large("a"), large("b"), large("c")]))
    positions = np.array(rows, np.int64)
    assert rows_at(table, positions).equals(table.take(positions))
    assert rows_at(huge, positions).select(["text", "number"]).equals(table.take(positions))


def test_texts_of_several_columns_are_joined_whatever_their_bytes() -> None:
    parts = [pa.array(["a", "b"]), pa.array(["c"])]
    assert joined(parts).to_pylist() == joined(parts, 2).to_pylist() == ["a", "b", "c"]
    assert joined(parts, 2).type == pa.large_string()
    assert joined(parts[:1]) is parts[0]


@pytest.mark.contract(
    "Rows that have no room in one batch of Arrow are an error, and none of them is lost.",
    convicts=["rows_beyond_a_batch_are_lost"],
)
def test_rows_beyond_one_batch_are_an_error() -> None:
    batches = [pa.record_batch({"text": large(text)}) for text in "ab"]
    with pytest.raises(ValueError, match="column 'text' has more than 2 GiB in one batch"):
        concat_rows(batches)
