"""Rows of a chain and of a bucket of a stream stand in their order, whatever slices they are from."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pillarbox.aio.calls import Call
from pillarbox.spark.records import Record, from_ipc, rows_of
from pillarbox.spark.stream.buckets import BUCKET, BUCKETS, KEY, NUMBER, ROWS, pack
from pillarbox.spark.writer import RowWriter

SCHEMA = T.StructType().add("n", T.LongType())


def made(ids: list[int]) -> list[Record]:
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], ["id"])
    return list(rows_of(batch).rows)


@given(st.lists(st.integers(0, 11), min_size=1).map(sorted), st.sampled_from([[1], [2], [1, None], [3, 0]]))
def test_rows_of_a_chain_are_written_in_the_order_of_its_input(order: list[int], counts: list[Any]) -> None:
    rows = [*made([0, 1, 2, 3]), *made([4, 5, 6, 7]), *made([8, 9, 10, 11])]
    chunk = []
    expected = []
    for place in order:
        count = counts[place % len(counts)]
        call = Call("what the function in front gave", 0)
        call.source = rows[place]
        chunk.append((call, place if count is None else [place] * count))
        expected += [(place, place)] * (1 if count is None else count)
    writer = RowWriter(["id"], SCHEMA, None, is_behind=True)
    batch = writer.write(chunk)
    found = zip(batch.column("id").to_pylist(), batch.column("n").to_pylist(), strict=True)
    assert [*found] == expected


@given(st.permutations(range(12)), st.sampled_from([[1], [1, None], [3, 0]]))
def test_rows_out_of_order_leave_with_their_own_results(order: list[int], counts: list[Any]) -> None:
    rows = [*made([0, 1, 2, 3]), *made([4, 5, 6, 7]), *made([8, 9, 10, 11])]
    chunk = []
    expected = []
    for place in order:
        count = counts[place % len(counts)]
        chunk.append((Call(rows[place], 0), place if count is None else [place] * count))
        expected += [(place, place)] * (1 if count is None else count)
    batch = RowWriter(["id"], SCHEMA, None, ordered=False).write(chunk)
    found = zip(batch.column("id").to_pylist(), batch.column("n").to_pylist(), strict=True)
    assert sorted(found) == sorted(expected)


KEYS = st.integers(-10, 10) | st.integers(-(2**63), 2**63 - 1)


@pytest.mark.contract(convicts=["numbers_of_pieces_overlap"])
@given(st.lists(st.lists(KEYS, max_size=20), min_size=1, max_size=4))
@example([[0, 1, 2, 2], [2]])
def test_rows_of_a_key_are_in_one_bucket_and_in_the_order_of_their_pieces(batches: list[list[int]]) -> None:
    keys = [key for batch in batches for key in batch]
    places = pa.table({"place": range(len(keys)), KEY: pa.array(keys, pa.int64())})
    start = 0
    given = []
    for batch in batches:
        given += places.slice(start, len(batch)).combine_chunks().to_batches()
        start += len(batch)
    pieces = [piece for packed in pack(iter(given)) for piece in packed.to_pylist()]
    found: dict[int, list[int]] = {}
    # Spark may bring them in any order.
    for each in sorted(pieces, key=lambda piece: (piece[NUMBER], piece[BUCKET])):
        assert each[BUCKET] in BUCKETS
        for piece in from_ipc(each[ROWS]):
            for key, place in zip(piece[KEY].to_pylist(), piece["place"].to_pylist(), strict=True):
                assert found.setdefault(key, [each[BUCKET]])[0] == each[BUCKET]
                found[key].append(place)
    for key, (_, *order) in found.items():
        assert order == [place for place, each in enumerate(keys) if each == key]
    assert sum(len(order) - 1 for order in found.values()) == len(keys)
