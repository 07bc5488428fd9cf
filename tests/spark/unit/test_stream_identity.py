"""Rows of a stream that nearly look alike keep their own results, in whichever order executions see them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.versions import needs_async_stream

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox import Options
from pillarbox.loop_thread import LoopThread
from pillarbox.spark.records import Record, rows_of
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.stream.bucket_state import (
    BATCH,
    IDENTITY,
    OWN_COLUMNS,
    Finished,
    StreamPlan,
    decode,
    ledger_key,
)
from pillarbox.spark.stream.buckets import KEY, NUMBER, PART, ROWS, TIME, BucketProcessor, pack, unpack
from pillarbox.spark.stream.held_calls import HeldCalls
from pillarbox.spark.writer import RowWriter
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import UncleanTable, unclean_tables
from tests.search import examples
from tests.spark.unit.unclean_arrow import arrow_batch

pytestmark = [needs_async_stream]

RESULTS = T.StructType().add("answer", T.StringType())
LONG_S = 3600.0
"""Seconds beyond the time-out of every test, which alone ends a wait for what never comes."""


def shown(values: Any) -> str:
    """A row as a service gets it: a text in which all rows that differ do."""
    return repr(identity(tuple(values)))


class Service:
    """Answers with the row and the number of the call. Some calls end when `gate` opens, and not before."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._numbers = itertools.count()

    def is_slow(self, row: str) -> bool:
        return not self.gate.is_set() and len(row) % 3 == 0

    async def __call__(self, record: Record) -> str:
        row = shown(record)
        while self.is_slow(row):
            await asyncio.sleep(0.001)
        return f"{next(self._numbers)} {row}"


class Calls:
    """The process that holds the calls, in this one. Notes under which key a ledger would keep each row."""

    def __init__(self, service: Service, thread: LoopThread) -> None:
        self._service = service
        self.held = HeldCalls(
            service,
            Options(ordered=False),
            RowWriter([], RESULTS, None),
            loop_thread=thread,
            convert=RowEncoder(RESULTS, None, one_row=True),
        )
        self.kept: dict[bytes, str] = {}

    def advance(
        self, bucket: int, time_ms: int, rows: pa.RecordBatch | None, waiting: int, *, ticked: bool
    ) -> Finished:
        wanted, quick = [], []
        if rows is not None:
            wanted, batches = rows.column(IDENTITY).to_pylist(), rows.column(BATCH).to_pylist()
            own = rows.select([name for name in rows.schema.names if name not in OWN_COLUMNS])
            for each, batch, record in zip(wanted, batches, rows_of(own).rows, strict=True):
                row = shown(record)
                kept = self.kept.setdefault(ledger_key(each, batch), row)
                # Not at the end: a row that is taken for a slow one would be waited for.
                assert kept == row, "two rows have one identity"
                quick += [] if self._service.is_slow(row) else [each]
        assert self.held.open(bucket, time_ms, wanted[:waiting], ticked=ticked) == []
        if rows is not None:
            self.held.begin(bucket, time_ms, rows)
        self.held.wait(bucket, quick, len(quick), time.monotonic() + LONG_S)
        return self.held.read(bucket, time_ms, wanted)

    def close(self) -> None:
        """Of a task: the calls go on."""


class Processor(BucketProcessor):
    """Of the buckets of one execution, whose calls are made in this process."""

    def __init__(self, plan: StreamPlan, calls: Calls, committed: bytes | None) -> None:
        super().__init__(plan)
        self._made: Any = calls
        self._state: Any = self
        self.blob = committed

    def _calls(self) -> Any:
        return self._made

    def get(self) -> tuple[bytes] | None:
        return None if self.blob is None else (self.blob,)

    def update(self, value: tuple[bytes]) -> None:
        (self.blob,) = value

    def clear(self) -> None:
        self.blob = None


class Execution(NamedTuple):
    """order: of the rows of its micro-batch. size: rows that come together."""

    order: list[int]
    size: int


@st.composite
def histories(draw: st.DrawFn) -> tuple[UncleanTable, list[tuple[int, int, list[Execution]]]]:
    """Rows, and micro-batches of them: begin, end, and executions, the last of which counts."""
    # Few types, so that many examples have two columns of one.
    table = draw(unclean_tables(min_rows=1, columns=2, plain=("string", "string", "double")))
    count = len(table.rows)
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=1)))
    batches = []
    for begin, end in itertools.pairwise([0, *cuts, count]):
        executions = [
            Execution(order, draw(st.integers(1, 12)))
            for order in draw(st.lists(st.permutations(range(begin, end)), min_size=2, max_size=3))
        ]
        batches.append((begin, end, executions))
    return table, batches


@pytest.fixture(scope="module")
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test-loop")
    yield made
    assert made.close(10)


def frame_of(rows: pa.RecordBatch, execution: Execution, time_ms: int) -> pd.DataFrame:
    """The input of a bucket, of rows in the order in which the execution sees them; all have one key."""
    ordered = rows.take(pa.array(execution.order, pa.int64()))
    keyed = pa.RecordBatch.from_arrays(
        [*ordered.columns, pa.array(np.zeros(len(ordered), np.int64))], [*ordered.schema.names, KEY]
    )
    slices = [keyed.slice(at, execution.size) for at in range(0, len(keyed), execution.size)]
    pieces = [piece for packed in pack(iter(slices)) for piece in packed.to_pylist()]
    return pd.DataFrame(
        [(time_ms, piece[PART], piece[NUMBER], piece[ROWS]) for piece in pieces]
        + [(time_ms, None, None, None)],
        columns=[TIME, PART, NUMBER, ROWS],
    )


def left(processor: Processor, frame: pd.DataFrame) -> list[tuple[str, str]]:
    """The rows that leave in an execution, each with its answer."""
    frames = processor.handleInputRows((12,), iter([frame]), None)  # type: ignore[arg-type]
    blobs = [pa.RecordBatch.from_pydict({ROWS: [*each[ROWS]]}) for each in frames]
    return [
        (shown([*record][:-1]), record["answer"])
        for batch in unpack(iter(blobs))
        for record in rows_of(batch).rows
    ]


@pytest.mark.contract(
    "Each row of a stream leaves once, with the answer to itself, however alike rows look and in whichever "
    "order executions of its micro-batch see them; a ledger keeps no two of them under one key.",
    convicts=["null_digested_as_value", "lengths_not_digested", "nulls_not_digested", "zeros_digested_alike"],
)
@settings(max_examples=examples(500))
@given(histories(), st.booleans())
def test_rows_that_look_alike_leave_once_each_with_the_answer_to_itself(
    thread: LoopThread, history: Any, ordered: bool
) -> None:
    table, batches = history
    rows = arrow_batch(table)
    columns: Sequence[tuple[str, Any]] = [(each.name, each.type) for each in rows.schema]
    operator: Any = None
    plan = StreamPlan("s", operator, RESULTS, tuple(table.types), columns, "output", ordered, 1.0)
    service = Service()
    calls = Calls(service, thread)
    out: list[tuple[str, str]] = []
    committed = None
    try:
        # With micro-batches behind them that finish everything.
        for time_ms, (_, _, executions) in enumerate([*batches, *[(0, 0, [Execution([], 1)] * 2)] * 3]):
            if time_ms == len(batches):
                service.gate.set()
            emitted = []
            for execution in executions:
                processor = Processor(plan, calls, committed)
                emitted.append(left(processor, frame_of(rows, execution, time_ms)))
            # Each execution emits the same.
            assert all(each == emitted[0] for each in emitted)
            out += emitted[0]
            committed = processor.blob
    finally:
        calls.held.close()
    assert committed is None or decode(committed, columns, "output").is_empty
    given = Counter(map(shown, (tuple(each) for each in rows_of(rows).rows)))
    assert Counter(row for row, _ in out) == given
    answers = [answer.partition(" ") for _, answer in out]
    # Equal rows have a call each, too.
    assert len({number for number, _, _ in answers}) == len(out)
    assert [row for row, _ in out] == [row for _, _, row in answers]
