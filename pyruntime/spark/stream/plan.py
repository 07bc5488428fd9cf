"""What the tasks of one `async_stream` need to know. Any thread."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from pillarbox.aio.journal import Journal, StaleAnswers, open_journal
from pillarbox.aio.options import Options
from pillarbox.ledger import execution_id
from pillarbox.spark.stream.bucket_state import Columns
from pillarbox.spark.work import Work


@dataclass(frozen=True)
class StreamPlan:
    """What a task needs of `async_stream`.

    name: tells this stream apart. work: as `ordered` is kept here, its operator gives results as they come.
    schema: the columns of results. kept: input columns in front of them. columns: those of the input. output:
    what leaves, in words. max_wait: seconds.
    """

    name: str
    work: Work
    schema: T.StructType
    kept: tuple[str, ...]
    columns: Columns
    output: str
    ordered: bool
    max_wait: float


STREAM_RUN = "stream"
"""The run of the calls of a stream that names none. The id of its query will not do: a task of an action in a
thread of foreachBatch does not know it, and calls whatever a task begins first."""


def open_stream_journal(work: Work, *, identify: Callable[[Any], bytes]) -> Journal:
    """The ledger's part in the calls of a stream, for the process that makes them.

    identify: the key of a row. It says all: micro-batch, row, number among equal ones.
    """
    options: Options = work.options
    assert options.ledger is not None
    assert work.keeping is not None
    work.keeping.check_place(options.ledger)
    run = STREAM_RUN if options.run is None else options.run
    if work.keeping.keep_code(options, run):
        work.keeping.tell(StaleAnswers(other_code=True), options, run)
    return open_journal(
        options,
        run,
        config=work.keeping.config,
        # It may be looked up twice, so nothing is counted here.
        identify=lambda row: (identify(row), b""),
        execution=execution_id(),
        prepare=work.keeping.prepare(),
        # A lease is for attempts with the same rows; here, each process has its own.
        attempt=uuid.uuid4().hex,
    )
