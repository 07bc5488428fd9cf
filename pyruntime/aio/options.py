"""The options of one operator, checked when they are given. Values without state: safe in any thread.

`Options` is the one source of the names, types and descriptions of options: `make options` writes them into
`CommonOptionNames`, the docstrings of the public functions and the documentation.
"""

# Options that belong together are one value (`Timeout`, `Errors`, `Budget`, `Ledger`), for which a plain
# value stands in the usual case. `Options` turns plain values into the objects when it is made, so that the
# code below it reads one form only, `options.timeout.attempt`. That is why `__init__` is written out: its
# parameters take what users write, the fields hold what the operator reads. Converters of fields would say it
# in half the lines, but neither mypy nor dataclasses know them.
#
# The functions that take options by name have them as `**more: Unpack[RowOptionNames]`: type checkers and
# editors know the names and types from there, `suggesting_options` refuses other names, and a name that was
# not given is told apart from its default, as it must be beside `options=`. See docs/decisions/signatures.md.

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.batching import Batch
from pillarbox.aio.hedge import Hedge, check_hedge
from pillarbox.aio.limits.rate import Rate, SharedLimits
from pillarbox.aio.limits.shared import Shared, SharedSlots
from pillarbox.aio.policy import CallPolicy, check_policies
from pillarbox.aio.retry import Retry, check_retry
from pillarbox.aio.service_addresses import Endpoints
from pillarbox.ledger import Ledger
from pillarbox.providers import CHECK_CLAIMS, COST_POLICY, EQUAL_CALLS, check_provided, provided
from pillarbox.redaction import Redact, check_redact, shown_address
from pillarbox.validate import (
    check_bool,
    check_choice,
    check_function_or_none,
    check_int,
    check_limit_of_time,
    check_positive_int,
    check_positive_number,
    naming_arguments,
    suggesting_names,
)

DEFAULT_CAPACITY = 100
REORDER_FACTOR = 8
MAX_WINDOW_ROWS = 2**24
"""Rows that a result queue can hold."""
DEFAULT_MAX_BYTES = 256 * 2**20

DEFAULT_FLOOR = 100
"""Rows of a job that all fail for one cause, at its begin, before it ends."""

ERROR_MODES = ("fail", "null", "column", "drop")
LATENCIES = ("normal", "low")

ErrorMode: TypeAlias = Literal["fail", "null", "column", "drop"]
Latency: TypeAlias = Literal["normal", "low"]


Fixed: TypeAlias = Literal["returns", "retry", "fit", "repeat", "limits", "load"]
FIXED: tuple[Fixed, ...] = get_args(Fixed)
"""The policies that stand in the stack of an operator whatever its options are, in their order."""


class Brings(NamedTuple):
    """The policy that an option brings, as the declaration of the option says.

    policy: the name of a class derived from `OptionPolicy`, as `pillarbox.providers` has names. behind: the
    fixed policy behind which it stands in the stack; of several behind one, in the order of their options.
    when: returns True for a value of the option that brings it. option: the name of the option.
    """

    policy: str
    behind: Fixed
    when: Callable[[Any], bool]
    option: str = ""


def _brings(
    policy: str, *, behind: Fixed, when: Callable[[Any], bool] = lambda value: value is not None
) -> dict[str, Brings]:
    """The metadata of the field of an option that brings a policy."""
    return {"brings": Brings(policy, behind, when)}


class _Unset:
    """The default of an argument that was not given, where None is a value like others."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        # By name, so that it is the same object behind a pickle: it is looked for with `is`.
        return "UNSET"


UNSET: Any = _Unset()


@naming_arguments
@dataclass(frozen=True)
class Timeout:
    """Limit the time of a row's calls.

    total: seconds for all attempts of a row, from the start of the first; None for no limit.
    attempt: seconds for one attempt; None for no limit. A longer attempt has failed, and `retry` decides
        whether another follows.
    fallback: the result of a row that times out for good: a value, or a function of the row that returns it.
        Without a fallback a timeout is an error like any other.

        >>> import asyncio
        >>> from pillarbox import Timeout, async_map
        >>> async def call(row):
        ...     await asyncio.sleep(3600)
        >>> list(async_map(["a"], call, timeout=Timeout(0.01, fallback="too late")))
        ['too late']

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    total: float | None = None
    attempt: float | None = dataclasses.field(default=None, kw_only=True)
    fallback: Any = dataclasses.field(default=UNSET, kw_only=True)

    def __post_init__(self) -> None:
        check_limit_of_time("timeout", self.total)
        check_limit_of_time("attempt", self.attempt)
        if callable(self.fallback):
            check_function_or_none("fallback", self.fallback)


@naming_arguments
@dataclass(frozen=True)
class Errors:
    """Define the treatment of rows that fail for good.

    mode: "fail" ends the job at the first failed row; "null" emits None for it; "column" emits the error
        beside the result; "drop" omits the row. The default is "drop" with a `dead_letter`, otherwise "fail".
    stop_after: end the job when more rows than this have failed: a number of rows (int), or a fraction of the
        rows (float below 1). Not with "fail".
    floor: end the job, in any mode, when its first rows, as many as this, all fail for one cause. With "null"
        and "drop", which show no errors, also when all rows of the job have failed, ten at least. For a
        DataFrame it applies to each task. None never ends the job.
    redact: a function of the text, or a `Redact`, that removes more from the texts of errors than keys,
        passwords and queries of URLs, which are always removed. A `Redact` can omit rows as well.
    dead_letter: the place that stores failed rows, in addition to `mode`. For a DataFrame a folder or a
        `DeadLetter`; otherwise a file of JSON lines with the item, the error and the time.
    bad_state: for `async_stream`, a folder or a `DeadLetter` for rows of its committed state that cannot be
        continued, such as a null in a column that is NOT NULL. Each is dropped and stored there once, and the
        query continues. None ends the query with an error that names the row.

        >>> from pillarbox import Errors, async_map
        >>> async def call(row):
        ...     return 10 // row
        >>> list(async_map([5, 0, 2], call, errors=Errors("null", stop_after=0.5)))
        [2, None, 5]

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    mode: ErrorMode = UNSET
    stop_after: int | float | None = dataclasses.field(default=None, kw_only=True)
    floor: int | None = dataclasses.field(default=DEFAULT_FLOOR, kw_only=True)
    redact: Callable[[str], str] | Redact | None = dataclasses.field(default=None, kw_only=True)
    dead_letter: Any = dataclasses.field(default=None, kw_only=True)
    bad_state: Any = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.mode is UNSET:
            object.__setattr__(self, "mode", "fail" if self.dead_letter is None else "drop")
        check_choice("errors", self.mode, ERROR_MODES)
        object.__setattr__(self, "redact", None if self.redact is None else check_redact(self.redact))
        if self.dead_letter is not None and self.mode == "fail":
            raise ValueError(
                "errors='fail', dead_letter: a row that fails either ends the job or is put aside; "
                "leave out the mode, or use 'drop', 'null' or 'column'"
            )
        if self.floor is not None:
            check_positive_int("floor", self.floor)
        limit = self.stop_after
        if limit is None:
            return
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise TypeError(f"stop_after={limit!r}: must be a number of rows or a fraction of them")
        if not (limit >= 0 if isinstance(limit, int) else 0.0 <= limit < 1.0):
            raise ValueError(
                f"stop_after={limit!r}: must be a number of rows (int, 0 or more) "
                "or a fraction of them (float, below 1)"
            )
        if self.mode == "fail":
            raise ValueError(
                f"stop_after={limit!r}: errors='fail' ends the job with the first failed row; "
                "use another of " + ", ".join(repr(each) for each in ERROR_MODES[1:])
            )

    @property
    def redaction(self) -> Redact:
        """The value that redacts the texts of errors."""
        return check_redact(self.redact)


@naming_arguments
@dataclass(frozen=True)
class Budget:
    """Limit, or only count, the calls and the cost of a whole job.

    max_calls: attempts, at most; with `batch`, calls with a batch.
    max_cost: total cost, at most, in the currency of the reported costs: a function reports cost with a
        `Result`, a `Chat` or an `Embeddings` with its prices, or `usage` computes it.
    usage: a function of the row and the result (for `async_udf`: of the arguments and the result) that
        returns the cost of a call, a number, or a `Usage`. It is called for results that do not report their
        cost. Without `max_cost` the cost is only counted.
    max_seconds: seconds after the first row, or for a DataFrame after the call of `async_map`, from which on
        no call begins. Calls in flight end, and the other rows are not called. With a ledger, the seconds of
        the run's earlier executions count, each from its first call to its last result.
    until: the moment from which on no call begins: a datetime with its time zone, or a text such as
        "2026-11-29T06:00:00+01:00".

        >>> from pillarbox import Budget, async_map
        >>> async def call(row):
        ...     return row.upper()
        >>> list(async_map(list("abcd"), call, capacity=1, errors="null", budget=Budget(max_calls=2)))
        ['A', 'B', None, None]

    A failed attempt counts if its error has a `Usage` as its attribute `usage`. Rows beyond the budget are
    not
    called: they fail with `NotCalled`, so `errors` cannot be "fail".

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    max_calls: int | None = None
    max_cost: float | None = None
    usage: Callable[..., Any] | None = None
    max_seconds: float | None = dataclasses.field(default=None, kw_only=True)
    until: datetime.datetime | str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_function_or_none("usage", self.usage)
        if self.max_seconds is not None:
            check_positive_number("max_seconds", self.max_seconds)
        if self.until is not None:
            object.__setattr__(self, "until", _moment(self.until))
        if self.max_calls is not None:
            check_positive_int("max_calls", self.max_calls)
        if self.max_cost is not None:
            check_positive_number("max_cost", self.max_cost)
        if self.max_cost is not None or self.usage is not None:
            check_provided(COST_POLICY, "budget")

    @property
    def limits_calls(self) -> bool:
        """True if there may be rows that are not called at all."""
        return self.counts or self.has_end

    @property
    def counts(self) -> bool:
        """True if calls or their cost are limited, which the tasks of a job count together."""
        return not (self.max_calls is None and self.max_cost is None)

    @property
    def has_end(self) -> bool:
        """True if there is a moment from which on no call begins."""
        return not (self.max_seconds is None and self.until is None)

    def time_left(self, now: float) -> tuple[float, str]:
        """Seconds until no call begins any more, and the limit in words. now: seconds since 1970."""
        left: list[tuple[float, str]] = []
        if self.max_seconds is not None:
            left.append((self.max_seconds, f"max_seconds={self.max_seconds:g}"))
        if isinstance(self.until, datetime.datetime):
            left.append((self.until.timestamp() - now, f"until={self.until.isoformat()}"))
        return min(left)

    def begun(self, now: float, spent: float = 0.0) -> Budget:
        """The same budget for tasks that begin later: `max_seconds` counts from now. now: since 1970.

        spent: seconds of it that are used up.
        """
        if self.max_seconds is None:
            return self
        end = datetime.datetime.fromtimestamp(now + self.max_seconds - spent, datetime.timezone.utc)
        if isinstance(self.until, datetime.datetime):
            end = min(end, self.until)
        return dataclasses.replace(self, max_seconds=None, until=end)


@naming_arguments
@dataclass(frozen=True)
class Buffer:
    """Limit the rows that are admitted and not yet emitted.

    rows: rows, at most, and at least `capacity`; None for 8 x `capacity`.
    max_bytes: estimated bytes of these rows and of their results, at most; None for no limit. One row is
        always admitted, however large. The results that `Dedupe.memo` keeps have the same limit.

        >>> from pillarbox import Buffer, Options, async_map
        >>> async def call(row):
        ...     return row + 1
        >>> list(async_map(range(3), call, options=Options(buffer=Buffer(rows=500, max_bytes=2**20))))
        [1, 2, 3]

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    rows: int | None = None
    max_bytes: int | None = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if self.rows is not None:
            check_positive_int("buffer", self.rows)
        if self.max_bytes is not None:
            check_positive_int("max_bytes", self.max_bytes)


@naming_arguments
@dataclass(frozen=True)
class Dedupe:
    """Share one call among equal rows.

    key: a function of the row that returns the hashable value to compare; None compares whole rows.
    memo: results kept for later equal rows, at most; 0 shares only calls in flight.
    across_tasks: equal rows of all tasks share one call through the `ledger`, which keeps the result for
        later rows. The ledger must be in a folder, on a file system with locks. Linux only.

        >>> from pillarbox import Dedupe, Options, async_map
        >>> called = []
        >>> async def call(row):
        ...     called.append(row)
        ...     return row.upper()
        >>> list(async_map(["a", "b", "a"], call, options=Options(dedupe=Dedupe(memo=1000))))
        ['A', 'B', 'A']
        >>> called
        ['a', 'b']

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    key: Callable[..., Hashable] | None = None
    memo: int = 0
    across_tasks: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_provided(EQUAL_CALLS, "dedupe")
        if self.key is not None and not callable(self.key):
            raise TypeError(f"dedupe={self.key!r}: must be True, False, a function of the row, or a Dedupe")
        check_function_or_none("dedupe", self.key)
        check_int("memo", self.memo, 0)
        check_bool("across_tasks", self.across_tasks)
        if self.across_tasks and self.memo:
            raise ValueError(
                f"memo={self.memo!r}, across_tasks=True: results are kept in the ledger, for rows that come "
                "later too; leave memo out"
            )

    def check_across_tasks(self, ledger: Ledger | None) -> None:
        """Raise ValueError where tasks cannot share calls, LedgerError where the system has no such locks."""
        if ledger is None:
            raise ValueError(
                "across_tasks=True: tasks share calls by way of a ledger, such as "
                "ledger=Ledger(folder, uid='embed-v1', run='2026-11-21')"
            )
        if ledger.local_path is None:
            raise ValueError(
                f"across_tasks=True: needs locks, which {shown_address(ledger.location)} has not: give the "
                "ledger a folder that all tasks see, or leave across_tasks out"
            )
        if self.key is not None and not (ledger.key is None and ledger.inputs is None):
            raise ValueError(
                f"dedupe: key=..., across_tasks=True, ledger: key={ledger.key!r}, inputs={ledger.inputs!r}: "
                "both say which rows are equal; leave one of them out"
            )
        provided(CHECK_CLAIMS, "dedupe")()


@naming_arguments
@dataclass(frozen=True)
class Limit:
    """Call rows of one key in their order, one after the other; rows of other keys go on beside them.

    key: a function of the row (for `async_udf`: of the arguments) that returns its key, a hashable value.
        None stands for a row without a key, which is not limited.
    at_once: rows of one key, at most, that are called or wait for a retry (1 or more). They begin in
        the order of their rows; with 1 each begins after the result of the one before.

        >>> from pillarbox import Limit, Options, async_map
        >>> balance = {"ann": 0, "bob": 0}
        >>> async def add(row):
        ...     user, amount = row
        ...     balance[user] += amount
        ...     return user, balance[user]
        >>> rows = [("ann", 5), ("bob", 2), ("ann", -3)]
        >>> list(async_map(rows, add, options=Options(per_key=Limit(key=lambda row: row[0]))))
        [('ann', 5), ('bob', 2), ('ann', 2)]

    For a DataFrame it applies to each task: put the rows of a key into one partition, in their order, by
    `df.repartition("user").sortWithinPartitions("time")`. Kafka's name for it is order by key.

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    key: Callable[..., Hashable]
    at_once: int = 1

    def __post_init__(self) -> None:
        if not callable(self.key):
            raise TypeError(f"key={self.key!r}: must be a function of the row that returns its key")
        check_function_or_none("key", self.key)
        check_positive_int("at_once", self.at_once)


@dataclass(frozen=True, init=False)
class Options:
    """Options of one operator: the limits of its calls and the treatment of their outcomes.

    ordered: emit results in the order of their rows; otherwise in the order in which calls finish.
    capacity: the concurrency: calls in flight, at most (1 or more). A call that waits for a retry or for the
        rate does not count. "auto" or an `Adaptive` finds the number at run time; a `Shared` is a number for
        all tasks together, which needs `limits`.
    timeout: seconds for all attempts of a row, or a `Timeout`; None for no limit.
    retry: the number of attempts (1 or more) or a `Retry`; None for one attempt.
    rate: a `Rate` that limits calls per second or units per minute, for this task or shared.
    hedge: a `Hedge`: while the call of a row is slow another one is made, and the first good answer counts;
        for async functions that may be called twice with one row without harm.
    batch: a `Batch`: the function takes a list of rows and returns a list of results, by position.
    errors: the treatment of rows that fail for good: "fail" (the default) ends the job at the first one;
        "null" emits None; "column" emits the error beside the result; "drop" omits the row. Or an `Errors`.
    budget: a `Budget` that limits the calls and the cost of the whole job.
    endpoints: the `Endpoints` of the service that the function calls: each attempt gets one of them, which
        the function finds as `current_call().endpoint`. Clients have their own.
    ledger: a `Ledger` with `uid` and `run`: it stores each result before the row is emitted, and a later run
        of the same rows does not repeat the call.
    limits: a `Coordinator`, or one `at` an address: all tasks that use it share one `rate` and one `budget`.
        Without it `rate` applies to each task alone.
    buffer: a `Buffer` that limits the rows and bytes that are admitted and not yet emitted.
    dedupe: equal rows in flight share one call: True compares whole rows, a function returns the value to
        compare, and a `Dedupe` can also keep results for later equal rows or share calls among tasks.
    per_key: a `Limit`: rows of one key are called one after the other, in their order, or a few at a time.
    latency: "low" emits each result of a DataFrame at once, for streams; the session needs the settings in
        `LOW_LATENCY`.
    where: a Column or SQL condition on a DataFrame: the function is called only with rows that satisfy it;
        the other rows get nulls. Not for a list of functions.
    policies: objects derived from `CallPolicy`, asked before the options at each moment of a call's life.

        >>> from pillarbox import Options, async_map
        >>> async def call(row):
        ...     return row * row
        >>> polite = Options(capacity=4, retry=3, timeout=30.0)
        >>> list(async_map([1, 2, 3], call, options=polite, ordered=True))
        [1, 4, 9]

    A value; any thread may use it. An option that is given by name takes precedence over `options`. Raises
    TypeError or ValueError that names the argument, its value and the allowed values.
    """

    ordered: bool
    capacity: int | Adaptive | Shared = dataclasses.field(
        metadata=_brings(
            "pillarbox.aio.policies.slots:SlotPolicy",
            behind="limits",
            when=lambda capacity: isinstance(capacity, Shared),
        )
    )
    timeout: Timeout
    retry: Any
    rate: Rate | None
    hedge: Hedge | None = dataclasses.field(
        metadata=_brings("pillarbox.aio.policies.hedge:HedgePolicy", behind="load")
    )
    batch: Batch | None
    errors: Errors
    budget: Budget = dataclasses.field(
        metadata=_brings(
            "pillarbox.aio.policies.time_budget:TimeBudgetPolicy",
            behind="limits",
            when=lambda budget: budget.has_end,
        )
    )
    endpoints: Endpoints | None = dataclasses.field(
        metadata=_brings("pillarbox.aio.policies.endpoints:EndpointPolicy", behind="fit")
    )
    ledger: Ledger | None
    limits: SharedLimits | None
    buffer: Buffer
    dedupe: Dedupe | None
    per_key: Limit | None = dataclasses.field(
        metadata=_brings("pillarbox.aio.policies.per_key:KeyPolicy", behind="load")
    )
    latency: Latency
    where: Any
    policies: tuple[CallPolicy, ...]

    @suggesting_names
    def __init__(
        self,
        *,
        ordered: bool = True,
        capacity: int | Literal["auto"] | Adaptive | Shared = DEFAULT_CAPACITY,
        timeout: float | Timeout | None = None,
        retry: Any = None,
        rate: Rate | None = None,
        hedge: Hedge | None = None,
        batch: Batch | None = None,
        errors: ErrorMode | Errors = "fail",
        budget: Budget | None = None,
        endpoints: Endpoints | None = None,
        ledger: Ledger | None = None,
        limits: SharedLimits | None = None,
        buffer: Buffer | None = None,
        dedupe: bool | Callable[..., Hashable] | Dedupe | None = None,
        per_key: Limit | None = None,
        latency: Latency = "normal",
        where: Any = None,
        policies: Sequence[CallPolicy] = (),
    ) -> None:
        if isinstance(retry, int) and not isinstance(retry, bool):
            retry = Retry(attempts=retry)
        if dedupe is None or isinstance(dedupe, bool):
            dedupe = Dedupe() if dedupe else None
        values = {
            "ordered": check_bool("ordered", ordered),
            "capacity": _check_capacity(capacity),
            "timeout": timeout if isinstance(timeout, Timeout) else Timeout(timeout),
            "retry": None if retry is None else check_retry(retry),
            "rate": _check_instance("rate", rate, Rate),
            "hedge": check_hedge(hedge),
            "batch": _check_instance("batch", batch, Batch),
            "errors": errors if isinstance(errors, Errors) else Errors(errors),
            "budget": Budget() if budget is None else _check_instance("budget", budget, Budget),
            "endpoints": _check_instance("endpoints", endpoints, Endpoints),
            "ledger": _check_instance("ledger", ledger, Ledger),
            "limits": _check_instance("limits", limits, SharedLimits, "Coordinator"),
            "buffer": Buffer() if buffer is None else _check_instance("buffer", buffer, Buffer),
            "dedupe": dedupe if dedupe is None or isinstance(dedupe, Dedupe) else Dedupe(dedupe),
            "per_key": _check_instance("per_key", per_key, Limit),
            "latency": check_choice("latency", latency, LATENCIES),
            "where": where,
            "policies": check_policies(policies),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for brought in self.brought():
            check_provided(brought.policy, brought.option)
        if limits is not None:
            # One that cannot be reached is refused here; each operator gets a name of its own later.
            limits.named()

    def check_together(self) -> None:
        """Raise ValueError for options that cannot be together, which is asked once all of them are known."""
        rows = self.buffer.rows
        if rows is not None and rows < self.max_capacity:
            raise ValueError(
                f"buffer={rows!r}: must be at least capacity ({self.max_capacity}), "
                f"or None for {REORDER_FACTOR} x capacity"
            )
        if self.window > MAX_WINDOW_ROWS:
            batch = "" if self.batch is None else f", batch={self.batch!r}"
            raise ValueError(
                f"capacity={self.capacity!r}, buffer={rows!r}{batch}: "
                f"the window of rows may be at most {MAX_WINDOW_ROWS:,}"
            )
        if self.budget.limits_calls and self.errors.mode == "fail":
            raise ValueError(
                "max_calls, max_cost, max_seconds, until: rows that are not called must be marked, "
                "so errors may not be 'fail': use 'column', 'null' or 'drop'"
            )
        if isinstance(self.capacity, Shared) and self.limits is None:
            raise ValueError(
                f"capacity={self.capacity!r}: tasks share slots by way of a coordinator: start one on the "
                "driver, `with Coordinator() as coordinator:`, and give limits=coordinator.named('service')"
            )
        if self.dedupe is not None and self.dedupe.across_tasks:
            self.dedupe.check_across_tasks(self.ledger)
        if self.ledger is not None and self.ledger.uid is None:
            raise ValueError(
                "uid=None: with a ledger the operator needs a name, such as Ledger(folder, uid='embed-v1'); "
                "give another when the function changes, and its old results are not found"
            )

    def brought(self) -> list[Brings]:
        """Policies that these options bring, in the order of the options."""
        return [each for each in BRINGS if each.when(getattr(self, each.option))]

    @property
    def adaptive(self) -> Adaptive | None:
        """The rule that finds the capacity, or None where it is given."""
        return self.capacity if isinstance(self.capacity, Adaptive) else None

    @property
    def max_capacity(self) -> int:
        """Calls in flight, at most, whatever is found."""
        if isinstance(self.capacity, Shared):
            return self.capacity.most
        return self.capacity if isinstance(self.capacity, int) else self.capacity.most

    def shared_slots(self) -> SharedSlots | None:
        """Return the slots of one task, of a capacity that is shared; None for one that is not."""
        if not isinstance(self.capacity, Shared) or self.limits is None:
            return None
        return self.limits.open_slots(self.capacity.slots)

    @property
    def rows_in_flight(self) -> int:
        """Rows whose calls may be in flight at a time."""
        return self.max_capacity * (1 if self.batch is None else self.batch.size)

    @property
    def window(self) -> int:
        """Rows admitted and not yet emitted, at most."""
        return self.rows_in_flight * REORDER_FACTOR if self.buffer.rows is None else self.buffer.rows

    def spread(self) -> Options:
        """The same for rows that are tuples of arguments: the functions of a row get the arguments."""
        return dataclasses.replace(
            self,
            rate=_spread_field(self.rate, "weight"),
            batch=_spread_field(self.batch, "weight"),
            dedupe=_spread_field(self.dedupe, "key"),
            per_key=_spread_field(self.per_key, "key"),
            budget=_spread_field(self.budget, "usage"),
            timeout=_spread_field(self.timeout, "fallback"),
        )


BRINGS = tuple(
    [
        each.metadata["brings"]._replace(option=each.name)
        for each in dataclasses.fields(Options)
        if "brings" in each.metadata
    ]
)
"""The policies of options, in the order of the options."""


def _moment(until: Any) -> datetime.datetime:
    """The moment of `Budget.until`."""
    moment = until
    if isinstance(until, str):
        try:
            moment = datetime.datetime.fromisoformat(f"{until[:-1]}+00:00" if until[-1:] == "Z" else until)
        except ValueError as error:
            raise ValueError(f"until={until!r}: must be a time as in '2026-11-29T06:00:00+01:00'") from error
    if not isinstance(moment, datetime.datetime):
        raise TypeError(f"until={until!r}: must be a datetime.datetime with its time zone, or a text of one")
    if moment.tzinfo is None:
        raise ValueError(
            f"until={until!r}: must have a time zone, such as '+00:00' or tzinfo=datetime.timezone.utc"
        )
    return moment


def _check_capacity(capacity: Any) -> int | Adaptive | Shared:
    if isinstance(capacity, str):
        check_choice("capacity", capacity, ("auto",))
        return Adaptive()
    if isinstance(capacity, Adaptive | Shared):
        return capacity
    return check_positive_int("capacity", capacity)


def _check_instance(name: str, value: Any, kind: type, shown: str | None = None) -> Any:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name}={value!r}: must be a pillarbox.{shown or kind.__name__} or None")
    return value


def _spread_field(value: Any, name: str) -> Any:
    """`value` with the function in its field `name`, where there is one, called with the parts of a row."""
    fn = getattr(value, name, None)
    if not callable(fn):
        return value
    return dataclasses.replace(value, **{name: lambda row, *more: fn(*row, *more)})


def resolve_options(options: Options | None, given: Mapping[str, Any]) -> Options:
    """The options of one operator: `options`, or the defaults, with those given by name.

    Raises TypeError or ValueError for what cannot be together.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options={options!r}: must be a pillarbox.Options or None")
    resolved = Options(**given) if options is None else dataclasses.replace(options, **given)
    resolved.check_together()
    if resolved.limits is None:
        return resolved
    # Operators share their limits only if they were given one name.
    return dataclasses.replace(resolved, limits=resolved.limits.named())


class CommonOptionNames(TypedDict, total=False):
    """The options that every function takes by name, but for those on which the type of a result depends."""

    # From `Options`, but ordered, batch, errors, budget:
    capacity: int | Literal["auto"] | Adaptive | Shared
    timeout: float | Timeout | None
    retry: Any
    rate: Rate | None
    hedge: Hedge | None
    endpoints: Endpoints | None
    ledger: Ledger | None
    limits: SharedLimits | None


class ColumnOptionNames(CommonOptionNames, total=False):
    """The options of a column by name, in the same way."""

    budget: Budget | None


class OptionNames(ColumnOptionNames, total=False):
    """The options of rows by name, in the same way."""

    ordered: bool


class UdfOptionNames(ColumnOptionNames, total=False):
    """All options of a column by name."""

    batch: Batch | None
    errors: ErrorMode | Errors


class RowOptionNames(OptionNames, total=False):
    """All options of rows by name."""

    batch: Batch | None
    errors: ErrorMode | Errors


class StreamOptionNames(CommonOptionNames, total=False):
    """All options of a stream by name."""

    ordered: bool
    batch: Batch | None
    errors: ErrorMode | Errors
