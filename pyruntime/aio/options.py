"""The options of one operator, checked when they are given. A value without state: safe in any thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from pillarbox.aio.batching import Batch
from pillarbox.aio.concurrency import Adaptive
from pillarbox.aio.limits.rate import Rate
from pillarbox.aio.limits.shared import SharedLimits
from pillarbox.aio.retry import check_retry
from pillarbox.ledger import KeyMaker, Ledger, Scope
from pillarbox.redaction import Redact, check_redact
from pillarbox.validate import (
    check_bool,
    check_choice,
    check_function_or_none,
    check_int,
    check_limit_of_time,
    check_positive_int,
    check_positive_number,
)

DEFAULT_CAPACITY = 100
REORDER_FACTOR = 8
MAX_WINDOW = 2**24
"""Rows that a result queue can hold."""
DEFAULT_MAX_BYTES = 256 * 2**20

ERRORS = ("fail", "null", "column", "drop")

ErrorMode: TypeAlias = Literal["fail", "null", "column", "drop"]


class _Raise:
    """The default of `on_timeout`: a time-out is an error like others."""

    def __repr__(self) -> str:
        return "RAISE"

    def __reduce__(self) -> str:
        return "RAISE"


RAISE = _Raise()


@dataclass(frozen=True)
class Options:
    """What bounds the calls of one operator and what becomes of their outcomes.

    ordered: results leave in the order of their rows; otherwise as calls finish.
    capacity: calls in flight, at most (1 or more). A call that waits for its retry or for the rate is not
        counted. "auto" or an `Adaptive` finds the number while it runs.
    reorder: rows admitted and not yet emitted, at most; None for 8 x `capacity`. At least `capacity`.
    max_bytes: bytes of rows admitted and not yet emitted, and of their results, at most, by estimate; None
        for no limit. One row is always admitted, however large. What `memo` keeps has a bound of as many.
    timeout: seconds over all attempts of a row, from the start of its first; None for no limit.
    attempt_timeout: seconds for one attempt; None for no limit.
    on_timeout: what a row gets that times out for good: a value, or a function of the row that gives it.
        Default: a time-out is an error, and `errors` says what becomes of it.
    retry: a `Retry`, or an object of tenacity (`AsyncRetrying`, `Retrying`); None to call once.
    rate: a `Rate`: calls a second, units a minute, for this task or shared.
    batch: a `Batch`: the function takes a list of rows and gives a list of results, by position.
    errors: what becomes of a row that fails for good. "fail" (the default) ends the job with the first;
        "null" gives None for it; "column" says it beside the results; "drop" leaves it out.
    fail_after: with `errors` other than "fail", end the job after all when more rows than this have failed:
        a number (int), or a fraction of the rows (float below 1).
    dedupe: equal rows in flight share one call; True to compare whole rows, or a function that gives what
        is compared, which must be hashable.
    memo: results kept for equal rows that come later, at most; 0 for none. Implies `dedupe`.
    usage: a function of row and result (for `async_udf`: of the arguments and the result) that gives what a
        call cost: a number, or a `Usage`.
    max_calls: attempts, at most; of batches, where there are batches. max_cost: cost, as `usage` gives it.
        Rows beyond are not called: they fail with `NotCalled`, so `errors` may not be "fail".
    coordinator: a `Coordinator`: `rate`, `max_calls` and `max_cost` hold for all tasks that share it
        together, otherwise for each task alone.
    ledger: a `Ledger`: what a call gave is kept before its row is emitted, and not called again by whoever
        runs the same rows again.
    uid: the operator's name in the ledger, to be changed with what the function does. Needed with a ledger;
        each operator of a run has another.
    run: the name of what may be run again. None in a streaming query, which has names of its own.
    key: the names of the columns by which a row is known again (where a row is one value, leave it out);
        None for the whole row, where equal rows are counted. A row whose key is null is known by its content.
    redact: what is taken out of the texts of errors, besides keys, passwords and queries of URLs: a
        function of the text, or a `Redact`, which can leave rows out as well.

    Raises TypeError or ValueError that name the argument, its value and what is allowed.
    """

    ordered: bool = True
    capacity: int | Literal["auto"] | Adaptive = DEFAULT_CAPACITY
    reorder: int | None = None
    max_bytes: int | None = DEFAULT_MAX_BYTES
    timeout: float | None = None
    attempt_timeout: float | None = None
    on_timeout: Any = RAISE
    retry: Any = None
    rate: Rate | None = None
    batch: Batch | None = None
    errors: ErrorMode = "fail"
    fail_after: int | float | None = None
    dedupe: bool | Callable[[Any], Hashable] = False
    memo: int = 0
    usage: Callable[[Any, Any], Any] | None = None
    max_calls: int | None = None
    max_cost: float | None = None
    coordinator: SharedLimits | None = None
    ledger: Ledger | None = None
    uid: str | None = None
    run: str | None = None
    key: Sequence[str | int] | None = None
    redact: Callable[[str], str] | Redact | None = None

    def __post_init__(self) -> None:
        check_bool("ordered", self.ordered)
        self._check_capacity()
        for name in ("timeout", "attempt_timeout"):
            check_limit_of_time(name, getattr(self, name))
        if self.max_bytes is not None:
            check_positive_int("max_bytes", self.max_bytes)
        if self.retry is not None:
            # The parts of an object of tenacity: not each version of the object can be pickled.
            object.__setattr__(self, "retry", check_retry(self.retry))
        for name, kind, shown in (
            ("rate", Rate, "Rate"),
            ("batch", Batch, "Batch"),
            ("coordinator", SharedLimits, "Coordinator"),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name}={value!r}: must be a pillarbox.{shown} or None")
        if self.coordinator is not None:
            # One that cannot be reached is refused here; what it is called is settled for each operator.
            self.coordinator.named()
        object.__setattr__(self, "redact", None if self.redact is None else check_redact(self.redact))
        self._check_errors()
        self._check_sharing()
        self._check_ledger()

    def _check_ledger(self) -> None:
        if self.ledger is None:
            for name in ("uid", "run", "key"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)!r}: is for a ledger, and ledger is None")
            return
        if not isinstance(self.ledger, Ledger):
            raise TypeError(f"ledger={self.ledger!r}: must be a pillarbox.Ledger or None")
        if self.uid is None:
            raise ValueError(
                "uid=None: with a ledger the operator needs a name, such as uid='embed-v1'; "
                "give another when the function changes, and its old results are not found"
            )
        Scope("run" if self.run is None else self.run, self.uid)
        if self.key is not None:
            try:
                KeyMaker(self.key)
            except (TypeError, ValueError) as error:
                raise type(error)(str(error).replace("columns=", "key=", 1)) from None
            object.__setattr__(self, "key", tuple(self.key))

    def _check_capacity(self) -> None:
        if isinstance(self.capacity, str):
            check_choice("capacity", self.capacity, ("auto",))
        elif not isinstance(self.capacity, Adaptive):
            check_positive_int("capacity", self.capacity)
        if self.reorder is not None:
            check_positive_int("reorder", self.reorder)
            if self.reorder < self.most:
                raise ValueError(
                    f"reorder={self.reorder!r}: must be at least capacity ({self.most}), "
                    f"or None for {REORDER_FACTOR} x capacity"
                )
        if self.window > MAX_WINDOW:
            batch = "" if self.batch is None else f", batch={self.batch!r}"
            raise ValueError(
                f"capacity={self.capacity!r}, reorder={self.reorder!r}{batch}: "
                f"the window of rows may be at most {MAX_WINDOW:,}"
            )

    def _check_errors(self) -> None:
        check_choice("errors", self.errors, ERRORS)
        limit = self.fail_after
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, int | float):
                raise TypeError(f"fail_after={limit!r}: must be a number of rows or a fraction of them")
            if not (limit >= 0 if isinstance(limit, int) else 0.0 <= limit < 1.0):
                raise ValueError(
                    f"fail_after={limit!r}: must be a number of rows (int, 0 or more) "
                    "or a fraction of them (float, below 1)"
                )
            if self.errors == "fail":
                raise ValueError(
                    f"fail_after={limit!r}: errors='fail' ends the job with the first failed row; "
                    "use another of " + ", ".join(repr(each) for each in ERRORS[1:])
                )
        if self.max_calls is not None:
            check_positive_int("max_calls", self.max_calls)
        if self.max_cost is not None:
            check_positive_number("max_cost", self.max_cost)
            if self.usage is None:
                raise ValueError(f"max_cost={self.max_cost!r}: needs usage, which says what a call cost")
        if self.limits_calls and self.errors == "fail":
            raise ValueError(
                "max_calls, max_cost: rows that are not called must be marked, "
                "so errors may not be 'fail': use 'column', 'null' or 'drop'"
            )

    def _check_sharing(self) -> None:
        if not isinstance(self.dedupe, bool) and not callable(self.dedupe):
            raise TypeError(f"dedupe={self.dedupe!r}: must be True, False or a function of the row")
        check_int("memo", self.memo, 0)
        check_function_or_none("usage", self.usage)
        if callable(self.dedupe):
            check_function_or_none("dedupe", self.dedupe)
        if callable(self.on_timeout):
            check_function_or_none("on_timeout", self.on_timeout)

    @property
    def redaction(self) -> Redact:
        """What is taken out of the texts of errors."""
        return check_redact(self.redact)

    @property
    def limits_calls(self) -> bool:
        """Whether there may be rows that are not called at all."""
        return not (self.max_calls is None and self.max_cost is None)

    @property
    def adaptive(self) -> Adaptive | None:
        """How the capacity is found, or None where it is given."""
        if isinstance(self.capacity, Adaptive):
            return self.capacity
        return Adaptive() if self.capacity == "auto" else None

    @property
    def most(self) -> int:
        """Calls in flight, at most, whatever is found."""
        if isinstance(self.capacity, int):
            return self.capacity
        adaptive = self.adaptive
        assert adaptive is not None
        return adaptive.most

    @property
    def rows_in_flight(self) -> int:
        """Rows whose calls may be in flight at a time."""
        return self.most * (1 if self.batch is None else self.batch.size)

    @property
    def window(self) -> int:
        """Rows admitted and not yet emitted, at most."""
        return self.rows_in_flight * REORDER_FACTOR if self.reorder is None else self.reorder

    def spread(self) -> Options:
        """The same for rows that are tuples of arguments: the functions of a row get the arguments."""
        rate = self.rate
        if rate is not None and rate.weight is not None:
            rate = dataclasses.replace(rate, weight=_spread(rate.weight))
        batch = self.batch
        if batch is not None and batch.weight is not None:
            batch = dataclasses.replace(batch, weight=_spread(batch.weight))
        return dataclasses.replace(
            self,
            rate=rate,
            batch=batch,
            dedupe=self.dedupe if isinstance(self.dedupe, bool) else _spread(self.dedupe),
            usage=None if self.usage is None else _spread(self.usage),
            on_timeout=_spread(self.on_timeout) if callable(self.on_timeout) else self.on_timeout,
        )


def _spread(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda row, *more: fn(*row, *more)


def merge_options(options: Options | None, given: dict[str, Any]) -> Options:
    """The options of one operator: `options`, or the defaults, with those given by name.

    Raises TypeError for an unknown name.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options={options!r}: must be a pillarbox.Options or None")
    unknown = sorted(set(given) - _NAMES)
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}: the options are {', '.join(sorted(_NAMES))}")
    merged = Options(**given) if options is None else dataclasses.replace(options, **given)
    if merged.coordinator is None:
        return merged
    # Operators share their limits only if they were given one name.
    return dataclasses.replace(merged, coordinator=merged.coordinator.named())


def settle_options(
    options: Options | None, given: dict[str, Any], dead_letter: Any, *, instead: str
) -> Options:
    """The options that were given, by name or as one object.

    instead: `errors` where dead letters are asked for and `errors` is not. Raises TypeError or ValueError.
    """
    if dead_letter is not None:
        if given.get("errors") == "fail":
            raise ValueError(
                "errors='fail', dead_letter: a row that fails either ends the job or is put aside; "
                "leave out errors, or use 'drop', 'null' or 'column'"
            )
        if "errors" not in given and (options is None or getattr(options, "errors", "fail") == "fail"):
            given = {**given, "errors": instead}
    return merge_options(options, given)


_NAMES = frozenset(field.name for field in dataclasses.fields(Options))

if TYPE_CHECKING:

    class CommonOptionNames(TypedDict, total=False):
        """The options by name, but for those on which the type of a result depends. For type checkers."""

        ordered: bool
        capacity: int | Literal["auto"] | Adaptive
        reorder: int | None
        max_bytes: int | None
        timeout: float | None
        attempt_timeout: float | None
        on_timeout: Any
        retry: Any
        rate: Rate | None
        fail_after: int | float | None
        dedupe: bool | Callable[[Any], Hashable]
        memo: int
        usage: Callable[[Any, Any], Any] | None
        max_calls: int | None
        max_cost: float | None
        coordinator: SharedLimits | None
        ledger: Ledger | None
        uid: str | None
        run: str | None
        key: Sequence[str | int] | None
        redact: Callable[[str], str] | Redact | None

    class OptionNames(CommonOptionNames, total=False):
        """The options by name, for type checkers."""

        batch: Batch | None
        errors: ErrorMode
