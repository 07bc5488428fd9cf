"""One use of the operator: the arguments that `async_map` and `async_udf` share, as the driver plans it.

An `OperatorPlan` is a value that is sent to the workers; `plan_operator` is for the driver's thread.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from pillarbox.aio.ledger_scope import budget_of_run
from pillarbox.aio.options import Options
from pillarbox.spark.budget import share_budget
from pillarbox.spark.dead_letters import DeadLetterTarget, dead_letter_of
from pillarbox.spark.error_column import ERROR, ERROR_TYPE
from pillarbox.spark.function import use_driver_python
from pillarbox.spark.latency import check_latency
from pillarbox.spark.ledger_plan import LedgerPlan, plan_ledger
from pillarbox.spark.progress import Progress
from pillarbox.spark.progress_channel import ProgressHandle
from pillarbox.spark.schema import check_unique, kept_columns, time_zone


@dataclass(frozen=True)
class OperatorPlan:
    """The function of an operator, and all that a task needs to call it.

    token: the function's identity among a worker's resources. zone: the session's time zone, by name.
    progress: the way for live counts. dead_letters: where failed rows are put aside. prompt: whether
    results leave at once. ledger_plan: how the ledger is used. spread: whether rows are tuples of arguments.
    uid: the name of the function in a chain.
    """

    fn: Callable[..., Any]
    token: str
    options: Options
    zone: str | None = None
    progress: ProgressHandle | None = None
    dead_letters: DeadLetterTarget | None = None
    prompt: bool = False
    ledger_plan: LedgerPlan | None = None
    spread: bool = False
    uid: str | None = None

    @property
    def time_zone(self) -> datetime.tzinfo | None:
        """The time zone of naive datetimes of results; None where it is not known."""
        return None if self.zone is None else time_zone(self.zone)


def check_nullable(errors: str, schema: T.StructType) -> None:
    """Raise ValueError where `errors` puts nulls into a column that has none."""
    for field in schema.fields:
        if errors in ("null", "column") and not field.nullable:
            raise ValueError(f"errors={errors!r}: column {field.name!r} of the schema is NOT NULL")


def output_schema(
    given: T.StructType,
    keep: Any,
    results: T.StructType,
    errors: str,
    error_type: T.StructType = ERROR_TYPE,
) -> tuple[list[str], T.StructType]:
    """The columns of `given` that are kept, and all that leave: these, the results, `_error` if asked for.

    Raises TypeError or ValueError for columns that cannot be.
    """
    check_unique("df", given.names)
    kept = kept_columns(keep, given)
    output = T.StructType([given[name] for name in kept] + results.fields)
    if errors == "column":
        if ERROR in output.names:
            raise ValueError(
                f"errors='column': keep and schema have a column {ERROR!r} already, which says what failed"
            )
        output = output.add(ERROR, error_type)
    check_unique("keep and schema", output.names)
    check_nullable(errors, results)
    return kept, output


def check_progress(progress: Any) -> None:
    """Raise TypeError unless `progress` is a `Progress` or None."""
    if progress is not None and not isinstance(progress, Progress):
        raise TypeError(f"progress={progress!r}: must be a pillarbox.spark.Progress or None")


def plan_operator(
    fn: Callable[..., Any],
    options: Options,
    *,
    session: Any,
    token: str,
    progress: Progress | None,
    columns: Sequence[str],
    results: T.DataType | None,
    streaming: bool | None = None,
    arguments: str | None = None,
    only_failed: bool = False,
    uid: str | None = None,
    is_behind: bool = False,
) -> OperatorPlan:
    """The plan for one use of `fn`; raises TypeError or ValueError for what cannot be.

    token: as `check_sendable` gave it. columns: those of the input row. results: the type of what the
    function gives, None where another function gets that. streaming: whether it is over a stream, None where
    that is not known. arguments: the columns of `async_udf`, in words. only_failed: call only rows
    of which the ledger says that they failed. uid: the name of the function in a chain; is_behind: there is
    one in front of it.
    """
    use_driver_python(session)
    letter = dead_letter_of(options.errors.dead_letter, columns)
    target = None if letter is None else DeadLetterTarget(letter, tuple(columns))
    prompt = check_latency(options.latency, session)
    ledger = options.ledger
    options = budget_of_run(share_budget(options, session), None if ledger is None else ledger.run)
    way = None if progress is None else progress.new_operator()
    zone = None if session is None else session.conf.get("spark.sql.session.timeZone")
    ledger_plan = plan_ledger(
        fn,
        options,
        columns,
        results,
        zone,
        session=session,
        streaming=streaming,
        arguments=arguments,
        only_failed=only_failed,
        is_behind=is_behind,
    )
    return OperatorPlan(
        fn, token, options, zone, way, target, prompt, ledger_plan, arguments is not None, uid
    )
