"""The plan of one `async_stream`, as its tasks get it. Any thread."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.ledger.keys import execution_id
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.stream.bucket_state import Columns


@dataclass(frozen=True)
class StreamPlan:
    """The arguments of `async_stream` that a task needs.

    name: tells this stream apart. operator: as `ordered` is kept here, it gives results as they come.
    schema: the columns of results. kept: input columns in front of them. columns: those of the input. output:
    what leaves, in words. max_wait: seconds.
    """

    name: str
    operator: OperatorPlan
    schema: T.StructType
    kept: tuple[str, ...]
    columns: Columns
    output: str
    ordered: bool
    max_wait: float


STREAM_RUN = "stream"
"""The run of the calls of a stream that names none. The id of its query will not do: a task of an action in a
thread of foreachBatch does not know it, and calls whatever a task begins first."""


def open_stream_session(operator: OperatorPlan, *, identify: Callable[[Any], bytes]) -> LedgerSession:
    """The ledger's part in the calls of a stream, for the process that makes them.

    identify: the key of a row. It says all: micro-batch, row, number among equal ones.
    """
    options = operator.options
    ledger = options.ledger
    assert ledger is not None
    assert operator.ledger_plan is not None
    operator.ledger_plan.check_place(ledger)
    run = STREAM_RUN if ledger.run is None else ledger.run
    return LedgerSession(
        options,
        run,
        config=operator.ledger_plan.config(ledger),
        # It may be looked up twice, so nothing is counted here.
        identify=lambda row: (identify(row), b""),
        execution=execution_id(),
        prepare=operator.ledger_plan.prepare(),
        # A lease is for attempts with the same rows; here, each process has its own.
        attempt=uuid.uuid4().hex,
    )
