"""Executions of a DataFrame of `async_map`, each of which calls for every row: a warning, and `called_once`.

Spark tells of each query that has ended, in a thread of its own. Classic Spark only: Connect has no listener.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

log = logging.getLogger("pillarbox")

MAX_OPERATORS = 10_000
"""Operators that are remembered; the oldest are forgotten."""

_OPERATOR = re.compile(r"MapInArrow\b.*?\)#(\d+)")


class ExecutionListener:
    """Counts the executions of operators, by the id that Spark gives the function of each. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: OrderedDict[str, str] = OrderedDict()
        self._seen: dict[str, tuple[int, int]] = {}
        self._sessions: set[str] = set()

    def watch(self, df: DataFrame, name: str) -> None:
        """Warn when `df`, the result of an operator called `name`, is executed a second time."""
        session = df.sparkSession
        # Of the operators below it has been told already.
        (operator, *_) = _OPERATOR.findall(df._jdf.queryExecution().logical().toString())
        with self._lock:
            self._names[operator] = name
            while len(self._names) > MAX_OPERATORS:
                self._seen.pop(self._names.popitem(last=False)[0], None)
            jsession = session._jsparkSession
            identity = str(jsession.sessionUUID())
            if identity in self._sessions:
                return
            self._sessions.add(identity)
        from pyspark.java_gateway import ensure_callback_server_started

        gateway = session.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        jsession.listenerManager().register(self)

    def onSuccess(self, action: str, execution: Any, nanoseconds: int) -> None:
        """Spark has executed a query. In Spark's thread for listeners."""
        try:
            operators = operators_in(execution.optimizedPlan().toString())
            self.executed(operators, (execution.id(), nanoseconds), is_command=action == "command")
        except Exception:
            log.debug("a plan could not be looked at", exc_info=True)

    def onFailure(self, action: str, execution: Any, error: Any) -> None:
        """A query has failed: whoever executes it again means to."""

    def executed(self, operators: set[str], execution: tuple[int, int], *, is_command: bool) -> None:
        """The operators of these ids were executed; warns of those that were before.

        execution: the number of the query and the nanoseconds that it took. A DataFrame has one number for
        all of its executions. A session that was cloned tells the same twice. A command that lets another
        write for it, as `saveAsTable` does, is told of behind that one, and has a lower number.
        """
        again = []
        with self._lock:
            for operator in operators & self._names.keys():
                first = self._seen.setdefault(operator, execution)
                if first != execution and not (is_command and execution[0] < first[0]):
                    again.append(self._names.pop(operator))
                    del self._seen[operator]
        for name in again:
            log.warning(
                "async_map(..., %s) was executed a second time, and has called for its rows again: every "
                "action calls. Write its result once and read on from there, or use "
                "pillarbox.spark.called_once, or a ledger",
                name,
            )

    class Java:
        """The interface of Spark that this implements, for py4j."""

        implements = ["org.apache.spark.sql.util.QueryExecutionListener"]  # noqa: RUF012


def operators_in(plan: str) -> set[str]:
    """The ids of the operators that a plan runs; what it takes from a cache it does not run."""
    found = set()
    cached: int | None = None
    for line in plan.splitlines():
        depth = len(line) - len(line.lstrip(" :+-*"))
        if cached is not None and depth > cached:
            continue
        cached = depth if "InMemoryRelation" in line else None
        found.update(_OPERATOR.findall(line))
    return found


_listener = ExecutionListener()


def warn_of_second_execution(df: DataFrame, name: str) -> None:
    """Warn in the log `pillarbox` when `df`, a batch, is executed a second time. On the driver.

    Where Spark does not tell, as over Connect, nothing is said.
    """
    if type(df).__module__.startswith("pyspark.sql.connect"):
        return
    try:
        _listener.watch(df, name)
    except Exception:
        log.debug("executions of %s cannot be counted", name, exc_info=True)


@contextmanager
def called_once(df: DataFrame) -> Iterator[DataFrame]:
    """Call for the rows of `df` now, once, and keep the results for all that is done with them in the block.

        def write(batch, number):  # of foreachBatch
            with called_once(async_map(batch, lookup, schema="price double", keep="*")) as priced:
                priced.write.mode("append").parquet("prices")
                priced.where("price > 100").write.mode("append").parquet("dear")

    df: a batch DataFrame, such as what `async_map` gives. Its rows are persisted (memory, then disk), and let
    go at the end of the block. Where an executor is lost with what it kept, its partitions are called again;
    a ledger keeps that from being paid. On the driver. Raises TypeError, ValueError for a stream, and what
    the job raises.
    """
    if not callable(getattr(df, "persist", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    if df.isStreaming:
        raise ValueError(
            "df: is a stream, whose rows cannot be kept; use it on micro-batches, in foreachBatch"
        )
    kept = df.persist()
    try:
        # Every partition, which the first use of the rows may not need.
        kept.write.format("noop").mode("overwrite").save()
        yield kept
    finally:
        kept.unpersist()
