"""One use of the operator: the arguments that `async_map` and `async_udf` share, as the driver plans it.

An `OperatorPlan` is a value that is sent to the workers, with the function of a user, which `ship` wraps; all
else is for the driver's thread.
"""

# Prompt delivery: the JVM collects rows for an Arrow batch; the worker collects output, and so does the
# JVM; and while the JVM waits for its own input it reads no output. Each needs a setting. What no setting
# ends: the JVM looks one row ahead, so a row reaches a worker once the next is there, or the end.

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import inspect
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from pillarbox.aio.errors import shorten
from pillarbox.aio.function import check_function, collector_parameter, never_returns
from pillarbox.aio.hedge import check_hedged
from pillarbox.aio.ledger_scope import budget_of_run, time_of_run
from pillarbox.aio.limits.rate import AgreedNumber, SharedLimits
from pillarbox.aio.options import Latency, Options
from pillarbox.providers import DEAD_LETTER_OF, LOCAL_COORDINATOR, provided
from pillarbox.spark.error_column import ERROR, ERROR_TYPE, DeadLetters
from pillarbox.spark.ledger_plan import LedgerPlan, is_connect, plan_ledger
from pillarbox.spark.observation import JobProgress, TotalsChannel
from pillarbox.spark.outcomes import Outcomes, outcomes_of
from pillarbox.spark.schema import check_unique, kept_columns, time_zone
from pillarbox.spark.shipment import ship, use_driver_python

log = logging.getLogger("pillarbox")


def check_on_driver(fn: object) -> None:
    """Raise what `fn` says that it lacks, such as a tokenizer: each task would fail for it. Blocks."""
    check = getattr(fn, "check_on_driver", None)
    if callable(check) and not isinstance(fn, type):
        check()


def check_callable(fn: Callable[..., Any], options: Options) -> None:
    """Raise TypeError unless `fn` can be called as `options` say; warn of one that never returns a value.

    Raises what `fn` says that it lacks.
    """
    check_function(fn, in_batches=options.batch is not None, gets_endpoints=options.endpoints is not None)
    check_hedged(fn, options.hedge)
    check_on_driver(fn)
    if never_returns(fn) and collector_parameter(fn) is None:
        log.warning(
            "%s never returns a value, so that each of its results is null; is a `return` missing?",
            name_of(fn),
        )


def check_sendable(fn: Callable[..., Any], options: Options) -> str:
    """As `check_callable`, and that both can be sent to workers; returns the identity of `fn` there.

    The identity is that of the pickled function, so the same function shares its resource in a worker.
    The function itself still goes the way of Spark's own, which also knows broadcast variables.
    Raises TypeError.
    """
    check_callable(fn, options)
    try:
        pickled: bytes = cloudpickle.dumps(fn)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"fn={shorten(fn)}: cannot be sent to Spark's workers ({type(error).__name__}: {error}); "
            "open clients and connections in __aenter__ of an object instead"
        ) from error
    try:
        cloudpickle.dumps(options)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"the options cannot be sent to Spark's workers ({type(error).__name__}: {error}); "
            "look at the functions among them"
        ) from error
    return hashlib.sha256(pickled).hexdigest()


def name_of(fn: Callable[..., Any]) -> str:
    """The name of `fn` in plans, in the user interface of Spark, and of a column that it makes."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def map_in_arrow(
    df: DataFrame, run: Callable[[Iterator[Any]], Iterator[Any]], name: str, output: T.StructType | str
) -> DataFrame:
    """The DataFrame of what `run`, called `name`, makes of the batches of `df` in each task. On the driver.

    output: its columns. Raises ValueError for a DataFrame without columns.
    """
    names = df.columns
    if not names:
        raise ValueError(
            "df: has no columns, and Spark hands no rows on without any; give it one, as by "
            "df.withColumn('n', F.lit(0))"
        )
    if not any(mark in name for name in names for mark in ".`"):
        return df.mapInArrow(ship(run, name), output)
    # PySpark's own takes such a name for a path into a struct.
    numbered = df.toDF(*[f"_{place}" for place in range(len(names))])
    return numbered.mapInArrow(ship(partial(_run_named, run, names), name), output)


def _run_named(
    run: Callable[[Iterator[Any]], Iterator[Any]], names: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Do what `run` does, for batches whose columns have got numbers for names."""
    # Not `rename_columns`, which batches of the oldest pyarrow do not have.
    return run(type(batch).from_arrays(batch.columns, names=names) for batch in batches)


def share_budget(options: Options, session: SparkSession | None, *, is_alone: bool = False) -> Options:
    """`options` with a coordinator for their budget, where one is needed and none was given. Any thread.

    is_alone: the job is one task, which needs none. In local mode that is one on loopback, which ends with
    the process, and a gate of its own there; it shares the budget, and the rate is still that of each task.
    Elsewhere nothing is started that listens beyond loopback unasked: raises ValueError, which says to give
    one.
    """
    if options.budget.max_seconds is not None:
        # Tasks begin at different times; the job has one end.
        options = dataclasses.replace(options, budget=options.budget.begun(time.time()))
    budget = options.budget
    if not budget.counts or options.limits is not None or is_alone:
        return options
    name = "max_calls" if budget.max_calls is not None else "max_cost"
    given = f"{name}={getattr(budget, name)!r}"
    # The client of Spark Connect does not know it.
    master = None if session is None or is_connect(session) else str(session.sparkContext.master)
    if master is None or not master.startswith("local"):
        where = f"on {master}" if master else "over Spark Connect" if session else "without an active session"
        raise ValueError(
            f"{given}: is for the whole job, whose tasks count together through a coordinator; "
            f"{where} give one that the workers reach: limits=Coordinator(...)"
        )
    # Several jobs of one run in this process count together, unless one has another budget.
    ledger = options.ledger
    gate: str | None = None
    if ledger is not None and ledger.run is not None:
        named = repr((ledger.location, ledger.run, ledger.uid, budget.max_calls, budget.max_cost))
        gate = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
    return dataclasses.replace(options, limits=_local_limits(given).named(gate))


def _local_limits(option: str) -> SharedLimits:
    limits: SharedLimits = provided(LOCAL_COORDINATOR, option)()
    return limits


PIPELINED = "spark.python.udf.pipelined.enabled"
BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"

LOW_LATENCY = {PIPELINED: "true", BUFFER: "64", RECORDS: "1"}
"""The configuration of a session for `latency="low"`: `SparkSession.builder.config(map=LOW_LATENCY)`.

The last two may also be set while the session runs, before the query is started. With more records in a
batch each waits for the others. All three hold for every Python function of the session and cost throughput.
"""

_MAX_DEFAULTS = {BUFFER: ("65536", 4096), RECORDS: ("10000", 1000)}
"""The default of a setting, and the most that is still prompt; one row's output is more than 64 bytes."""


def knows_pipelined() -> bool:
    """True if this PySpark has workers that read, call and write at the same time."""
    return "flush_per_batch" in inspect.signature(ArrowStreamSerializer.__init__).parameters


def check_latency(latency: Latency, session: SparkSession | None) -> bool:
    """True if latency is to be low. Raises ValueError if the session is not set up for it.

    session: a Spark session, or None where there is none yet.
    """
    if latency == "normal":
        return False
    if not knows_pipelined():
        raise ValueError(f"latency='low': needs a PySpark that knows {PIPELINED}, which 4.3 does")
    if session is None:
        raise ValueError("latency='low': there is no active Spark session whose settings could be checked")
    wrong = []
    if str(session.conf.get(PIPELINED, "false")).lower() != "true":
        wrong.append(f"{PIPELINED}=true (read when Spark starts)")
    for name, (default, most) in _MAX_DEFAULTS.items():
        if not 0 < int(str(session.conf.get(name, default))) <= most:
            wrong.append(f"{name} of at most {most}")
    if wrong:
        raise ValueError(
            f"latency='low': the session needs {', '.join(wrong)}; build it with "
            "SparkSession.builder.config(map=pillarbox.spark.operator_plan.LOW_LATENCY)"
        )
    return True


def agreement_of(
    fn: Callable[..., Any], options: Options, session: SparkSession | None
) -> AgreedNumber | None:
    """The place for the length of the vectors that `fn` gives; None where there is none, or it has no need.

    That is the coordinator that was given, or in local mode one on loopback.
    """
    if not getattr(fn, "agrees_on_length", False):
        return None
    limits = options.limits
    if limits is None and session is not None and not is_connect(session):
        is_local = str(session.sparkContext.master).startswith("local")
        limits = _local_limits(f"fn={name_of(fn)}") if is_local else None
    return None if limits is None else limits.agreement(uuid.uuid4().hex)


@dataclass(frozen=True)
class OperatorPlan:
    """The function of an operator, and all that a task needs to call it.

    token: the function's identity among a worker's resources. zone: the session's time zone, by name.
    progress: the way for live counts. dead_letters: where failed rows are put aside. prompt: whether
    results leave at once. ledger_plan: how the ledger is used. spread: whether rows are tuples of arguments.
    uid: the name of the function in a chain. outcomes: where a task reports its rows; None for nowhere.
    agreement: where its tasks agree on facts about the service; None for nowhere.
    """

    fn: Callable[..., Any]
    token: str
    options: Options
    zone: str | None = None
    progress: TotalsChannel | None = None
    dead_letters: DeadLetters | None = None
    prompt: bool = False
    ledger_plan: LedgerPlan | None = None
    spread: bool = False
    uid: str | None = None
    outcomes: Accumulator[Outcomes] | None = None
    agreement: AgreedNumber | None = None

    @property
    def time_zone(self) -> datetime.tzinfo | None:
        """The time zone of naive datetimes of results; None where it is not known."""
        return None if self.zone is None else time_zone(self.zone)


def output_schema(
    given: T.StructType,
    keep: object,
    results: T.StructType,
    errors: str,
    error_type: T.StructType = ERROR_TYPE,
) -> tuple[list[str], T.StructType]:
    """The columns of `given` that are kept, and all that leave: these, the results, `_error` if asked for.

    Raises TypeError or ValueError for columns that cannot be.
    """
    check_unique("df", given.names)
    kept = kept_columns(keep, given)
    fields = list(results.fields)
    if errors in ("null", "column"):
        # A failed row has no result: NOT NULL is asked of results, and not of the column.
        fields = [T.StructField(each.name, each.dataType, True, each.metadata) for each in fields]
    output = T.StructType([given[name] for name in kept] + fields)
    if errors == "column":
        if ERROR in output.names:
            raise ValueError(
                f"errors='column': keep and schema have a column {ERROR!r} already, which says what failed"
            )
        output = output.add(ERROR, error_type)
    check_unique("keep and schema", output.names)
    return kept, output


def plan_operator(
    fn: Callable[..., Any],
    options: Options,
    *,
    session: SparkSession | None,
    token: str,
    progress: JobProgress | None,
    columns: Sequence[str],
    results: T.DataType | None,
    streaming: bool | None = None,
    arguments: str | None = None,
    uid: str | None = None,
    is_behind: bool = False,
    zone: str | None = None,
) -> OperatorPlan:
    """The plan for one use of `fn`; raises TypeError or ValueError for what cannot be.

    token: as `check_sendable` gave it. columns: those of the input row. results: the type of what the
    function gives, None where another function gets that. streaming: whether it is over a stream, None where
    that is not known. arguments: the columns of `async_udf`, in words. uid: the name of the function in a
    chain; is_behind: there is one in front of it. zone: the time zone of a job without Spark, which is
    one task in this process; None for one of Spark.
    """
    use_driver_python(session)
    letter: DeadLetters | None = None
    if options.errors.dead_letter is not None:
        letter = provided(DEAD_LETTER_OF, "dead_letter")(options.errors.dead_letter, columns)
    prompt = check_latency(options.latency, session)
    ledger = options.ledger
    run = None if ledger is None else ledger.run
    options = time_of_run(options, run)
    options = budget_of_run(share_budget(options, session, is_alone=zone is not None), run)
    way = None if progress is None else progress.new_operator()
    if session is not None:
        zone = session.conf.get("spark.sql.session.timeZone")
    ledger_plan = plan_ledger(
        fn,
        options,
        columns,
        results,
        zone,
        session=session,
        streaming=streaming,
        arguments=arguments,
        is_behind=is_behind,
    )
    outcomes = outcomes_of(session, name_of(fn))
    return OperatorPlan(
        fn, token, options, zone, way, letter, prompt, ledger_plan, arguments is not None, uid, outcomes,
        agreement_of(fn, options, session),
    )  # fmt: skip
