"""The option `Retry`, and its budget. Values without state: safe in any thread."""

# Why the jitter is full. Rows that failed together failed for one reason, and pauses of equal length bring
# them back together, to fail together again. A draw between 0 and the bound spreads them over all of it; half
# of the bound and a draw of the other half leaves the first half of each pause without a call. What a service
# asked for is not an estimate, so a pause is never drawn below it, only made a little longer.
#
# Why refusals of an overloaded service are not attempts: they say nothing of the row. With three attempts a
# service that is away for a minute would fail every row that began in it, and a job of hours would end with
# thousands of good rows failed. So they count against time, and hold back the calls of all rows, as the next
# one would be refused as well.

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pillarbox.aio.causes import is_mistake
from pillarbox.validate import (
    check_bool,
    check_function_or_none,
    check_int,
    check_number,
    check_positive_int,
    check_positive_number,
    naming_arguments,
)
from pillarbox.wire import is_permanent, leaves, retry_after_of

MAX_RETRY_AFTER = 300.0
"""Seconds: a service that asks for more is called again after these, if nobody says otherwise."""
MAX_OUTAGE_S = 600.0
"""Seconds for which an overloaded service is waited for, if nobody says otherwise."""
SPREAD = 0.1
"""The share of a delay that `somewhat_later` adds, at most."""


@naming_arguments
@dataclass(frozen=True)
class RetryBudget:
    """Limit the retries of one task: in any `seconds`, `least` plus a `share` of the rows begun.

    When a service fails, retries multiply its load: three attempts triple it. A budget limits that. A retry
    beyond the budget is not made: the row fails with the error of its last attempt.

    share: retries for each row begun in the last `seconds` (0 or more; 0.2: one retry for five rows).
    least: retries in `seconds` that need no rows (0 or more), for tasks with few rows.
    seconds: the period in which rows and retries are counted, with a resolution of a tenth of it.

        >>> from pillarbox import Retry, RetryBudget, async_map
        >>> async def call(row):
        ...     return row + 1
        >>> list(async_map([1, 2], call, retry=Retry(4, budget=RetryBudget(share=0.2, least=10))))
        [2, 3]

    After the retry budgets of Finagle and of "Site Reliability Engineering" (Google, 2016, chapter 21).
    A value; any thread may use it. Raises TypeError or ValueError for a bad argument.
    """

    share: float = 0.2
    least: int = 10
    _: KW_ONLY
    seconds: float = 10.0

    def __post_init__(self) -> None:
        check_number("share", self.share, minimum=0.0)
        check_int("least", self.least, 0)
        check_positive_number("seconds", self.seconds)


@naming_arguments
@dataclass(frozen=True)
class Retry:
    """Retry failed calls, with exponential backoff and full jitter.

    Before attempt n + 1 the pause is drawn between 0 and `initial * multiplier ** (n - 1)` seconds,
    at most `maximum` seconds; without jitter it is that bound. A call that waits holds no slot.

    attempts: calls of one row in all, the first included (1 or more).
    initial, maximum: seconds. multiplier: 1 or more.
    on: exception types to retry (None: `Exception`). An attempt that exceeded `Timeout.attempt` counts as
        `CallTimeout`, a `TimeoutError`; `timeout` for all attempts is final.
    when: a function of the error that returns True to retry. `on` and `when` must both agree. Without either,
        an error that `is_permanent` recognizes (400, 401, 403, 404, 422 and similar, an account without
        credit) is final, and so is a mistake in the program: `NameError`, `ImportError`, `SyntaxError`,
        `NotImplementedError`, a missing attribute of None or of a module.
    result: a function of the result that returns True to repeat the call for a bad result. `on` and `when`
        are not called then; after the last attempt the row fails with `ResultRejected`.
    retry_after: a function of the error that returns the seconds for which the service asked to wait. If it
        returns None, and without it, `Retry-After` is read, see `retry_after_of`. The pause is the larger of
        the drawn one and this one; with jitter this one is extended by up to a tenth, so that rows that the
        service refused together do not return together.
    max_retry_after: seconds. A longer `Retry-After` is reduced to this, so that one bad header does not stop
        the job for days.
    max_outage: seconds. An attempt that an overloaded service refused (see `is_overload`) does not count
        against `attempts` or `budget`: all calls of the task pause for the time that the service asked for,
        then resume gradually. A row that was refused for this long fails with an error that reports it, and
        so does every row while the service has refused all calls for this long. Refused and broken
        connections count as refusals if the first calls of several rows in sequence, with no answer between
        them, end so; for a service that was never reached the limit is 30 s. 0: a refusal is an ordinary
        attempt and delays its own row only.
    budget: a `RetryBudget` for all rows of a task together; None for no limit.
    jitter: draw the pause at random, so that rows that failed together do not return together.

        >>> from pillarbox import Retry, async_map, current_call
        >>> async def call(row):
        ...     if current_call().attempt < 3:
        ...         raise ConnectionResetError
        ...     return f"{row} after {current_call().attempt} attempts"
        >>> list(async_map(["a"], call, retry=Retry(4, initial=0.001, on=(OSError,))))
        ['a after 3 attempts']

    The functions are called on the mailbox thread and must return at once. If one raises, its row fails with
    that error. With Spark they are sent to the workers.

    Full jitter: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
    A value; any thread may use it. Raises TypeError or ValueError for a bad argument.
    """

    attempts: int = 3
    _: KW_ONLY
    initial: float = 0.1
    maximum: float = 30.0
    multiplier: float = 2.0
    on: tuple[type[BaseException], ...] | None = None
    when: Callable[[BaseException], Any] | None = None
    result: Callable[[Any], Any] | None = None
    retry_after: Callable[[BaseException], float | None] | None = None
    max_retry_after: float = MAX_RETRY_AFTER
    max_outage: float = MAX_OUTAGE_S
    budget: RetryBudget | None = None
    jitter: bool = True

    def __post_init__(self) -> None:
        check_positive_int("attempts", self.attempts)
        for name, minimum in (("initial", 0.0), ("maximum", 0.0), ("multiplier", 1.0), ("max_outage", 0.0)):
            check_number(name, getattr(self, name), minimum=minimum)
        if self.on is not None:
            on = self.on if isinstance(self.on, tuple | list) else (self.on,)
            for kind in on:
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(f"on={self.on!r}: must be an exception type or several, {kind!r} is none")
            object.__setattr__(self, "on", tuple(on))
        check_function_or_none("when", self.when, "the error")
        check_function_or_none("result", self.result, "the result")
        check_function_or_none("retry_after", self.retry_after, "the error")
        check_positive_number("max_retry_after", self.max_retry_after)
        if not (self.budget is None or isinstance(self.budget, RetryBudget)):
            raise TypeError(f"budget={self.budget!r}: must be a pillarbox.RetryBudget or None")
        check_bool("jitter", self.jitter)

    def applies(self, attempt: int, error: BaseException) -> bool:
        """Return True if another attempt may follow after number `attempt` (from 1) ended with `error`.

        Raises what `when` raises.
        """
        return attempt < self.attempts and self.wants(error)

    def wants(self, error: BaseException) -> bool:
        """Return True if `error` is to be tried again, whatever the number of attempts.

        Raises what `when` raises.
        """
        wanted = Exception if self.on is None else self.on
        # Of a group of errors, as a task group raises it, each must be one to try again.
        members = [*leaves(error)]
        if not isinstance(error, wanted) and not all(isinstance(each, wanted) for each in members):
            return False
        if self.when is not None:
            return bool(self.when(error))
        # Whoever names exceptions has decided already, and is not overruled by a status.
        return self.on is not None or not any(is_permanent(each) or is_mistake(each) for each in members)

    def bound(self, attempt: int) -> float:
        """The longest drawn pause after attempt number `attempt` (from 1), in seconds."""
        try:
            return min(self.maximum, self.initial * self.multiplier ** (attempt - 1))
        except OverflowError:
            # Refusals are not bounded by `attempts`: after a thousand a float has no such power.
            return self.maximum if self.initial else 0.0

    def pause(self, attempt: int, retry_after: float | None = None) -> float:
        """The pause after attempt number `attempt` (from 1), in seconds; drawn anew at each call.

        retry_after: seconds after which the service asked to be called again, if it did.
        """
        bound = self.bound(attempt)
        pause = random.uniform(0.0, bound) if self.jitter else bound
        if retry_after is None:
            return pause
        return max(pause, somewhat_later(retry_after) if self.jitter else retry_after)


def check_retry(retry: Any) -> Retry:
    """Accept a `Retry`; raises TypeError for anything else."""
    if not isinstance(retry, Retry):
        a_class = "; give an object of the class: Retry(3)" if isinstance(retry, type) else ""
        raise TypeError(f"retry={retry!r}: must be a number of attempts, a pillarbox.Retry or None{a_class}")
    return retry


def bounded_retry_after(error: BaseException) -> float | None:
    """Bound `retry_after_of` by `MAX_RETRY_AFTER`: one bad header does not stop a job for days."""
    delay = retry_after_of(error)
    return None if delay is None else min(delay, MAX_RETRY_AFTER)


def somewhat_later(delay: float) -> float:
    """`delay` seconds or up to a tenth more, at random: rows sent away together come back one by one."""
    return delay * random.uniform(1.0, 1.0 + SPREAD)
