"""Vectors that come in blocks are kept in blocks, and found again as any other results are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql")

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox import Batch, Ledger, Options
from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.keys import Scope
from pillarbox.spark.dataframe import MapTask
from pillarbox.spark.operator_plan import plan_operator

SCHEMA = T.StructType([T.StructField("vector", T.ArrayType(T.FloatType()))])
WIDTH = 32


class Vectors:
    """Gives each text a vector of its own, as one block, and notes the rows."""

    def __init__(self) -> None:
        self.called: list[int] = []

    async def __call__(self, batch: Any) -> Any:
        ids = batch.column("id").to_pylist()
        self.called += ids
        return expected(ids)


def expected(ids: list[int]) -> Any:
    return np.array(ids, np.float32)[:, None] / 7 + np.arange(WIDTH, dtype=np.float32)


def rows(ids: Any, text: str = "text") -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": [*ids], "text": [f"{text} {number}" for number in ids]})


def run(ledger: Ledger, fn: Any, given: Iterator[pa.RecordBatch], **more: Any) -> dict[int, list[float]]:
    """The vectors that a task gives, by the ids of its rows."""
    options = Options(capacity=2, batch=Batch(16, arrow=True), ledger=ledger, **more)
    plan = plan_operator(
        fn,
        options,
        session=None,
        token="token",
        progress=None,
        columns=["id", "text"],
        results=SCHEMA,
        streaming=False,
    )
    found = MapTask([plan], SCHEMA, ["id"], "fail", skips=False).run(given)
    columns = [batch.to_pydict() for batch in found]
    return {id: vector for each in columns for id, vector in zip(each["id"], each["vector"], strict=True)}


def check(found: dict[int, list[float]], ids: list[int]) -> None:
    assert sorted(found) == sorted(ids)
    assert np.array_equal(np.array([found[id] for id in ids], np.float32), expected(ids))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"), uid="uid", run="run", key=["id"])


@pytest.mark.contract
def test_vectors_of_a_block_are_found_again_in_any_order_without_a_call(ledger: Ledger) -> None:
    ids = [*range(200)]
    check(run(ledger, Vectors(), rows(ids)), ids)
    for again in (ids, ids[::-1], ids[50:150], ids[::3]):
        fn = Vectors()
        check(run(ledger, fn, rows(again)), again)
        assert fn.called == []


@pytest.mark.contract
def test_only_rows_whose_vectors_are_not_kept_or_of_another_input_are_called(ledger: Ledger) -> None:
    run(ledger, Vectors(), rows(range(40, 100)))
    fn = Vectors()
    check(run(ledger, fn, rows(range(200))), [*range(200)])
    assert sorted(fn.called) == [*range(40), *range(100, 200)]
    fn = Vectors()
    check(run(ledger, fn, rows(range(20), "another")), [*range(20)])
    assert sorted(fn.called) == [*range(20)]


@pytest.mark.contract
def test_two_rows_of_a_block_with_one_key_and_two_inputs_end_the_job(ledger: Ledger) -> None:
    given = pa.RecordBatch.from_pydict({"id": [1, 2, 1], "text": ["one", "two", "three"]})
    with pytest.raises(LedgerConflictError, match="differ in text"):
        run(ledger, Vectors(), iter([given]))


def test_rows_of_a_block_with_one_key_and_one_input_share_a_call(ledger: Ledger) -> None:
    fn = Vectors()
    run(ledger, fn, rows([1, 2, 1, 1, 3]))
    assert sorted(fn.called) == [1, 2, 3]


def test_a_block_is_kept_in_few_frames_with_the_bytes_of_its_vectors(ledger: Ledger) -> None:
    run(ledger, Vectors(), rows(range(160)))
    (scope,) = ledger.scopes("run")
    assert isinstance(scope, Scope)
    frames = [found for found, _ in ledger.reader(scope).frames()]
    assert len(frames) == 10
    for frame in frames:
        vectors = frame.vectors
        assert vectors is not None and vectors.dtype == np.float32 and vectors.shape == (16, WIDTH)
        assert np.array_equal(frame.record(3).value[0], vectors[3])
