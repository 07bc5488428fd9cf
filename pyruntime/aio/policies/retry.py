"""Decides whether a failed attempt is made again, and after which pause. Confined to the mailbox thread."""

# A policy decides and the operator waits: a policy that slept, as decorators do that run a call themselves,
# would hold a slot while nothing is called.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import ResultRejected, ServiceResting
from pillarbox.aio.limits.rate import SlidingCounts
from pillarbox.aio.policy import Again, CallPolicy, HookFailed
from pillarbox.aio.retry import Retry
from pillarbox.aio.usage import repeats_of
from pillarbox.wire import is_unsent, retry_after_of

# A share of rows is a sum of floats: 0.29 * 100 is 28.999999999999996, and the 29th retry is allowed.
_ROUNDING = 1e-9


_ROWS, _RETRIES = 0, 1


class RetryPolicy(CallPolicy):
    """The decisions of a `Retry` for one operator, and the used part of its budget.

    waits_out: whether attempts that an overloaded service refused are decided by `pause_of_overload`.
    max_outage: seconds for which an overload is waited for; 0 for not. Each method raises what a function of
    the user's raises.
    """

    def __init__(self, retry: Retry, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry = retry
        self._clock = clock
        # Rows begun and retries, of the time that the budget is about.
        self._counts = None if retry.budget is None else SlidingCounts(2, retry.budget.seconds, clock())
        self.skips = frozenset(
            [*(["accept"] if retry.result is None else []), *(["begin"] if self._counts is None else [])]
        )
        self.max_outage = retry.max_outage
        self.waits_out = retry.max_outage > 0.0

    def snapshot(self) -> Any:
        """Rows and retries of each tenth of the time, the present one last; None where there is no budget."""
        return None if self._counts is None else self._counts.snapshot(self._clock())

    def restore(self, state: Any) -> None:
        """Continue with the budget of a snapshot, as if no time had passed."""
        if self._counts is not None and state is not None:
            self._counts.restore(state, self._clock())

    def begin(self, calls: Sequence[Call]) -> None:
        """Count an attempt; one of a batch once, as a batch that is tried again is one retry."""
        if calls[0].hedges is not None:
            # Of an attempt that has begun.
            return
        self.began(min([call.attempt for call in calls]))

    def accept(self, call: Call, result: Any) -> Any:
        """Refuse a result for which `Retry.result` asks for another attempt."""
        try:
            is_bad = self.rejects(result)
        except BaseException as error:
            raise HookFailed(error) from error
        if is_bad:
            raise ResultRejected(result)
        return result

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Decide by the attempts, the error and the budget."""
        pause = self.pause(calls[0].charged, error)
        return None if pause is None else Again(pause)

    def began(self, attempt: int) -> None:
        """Note that attempt number `attempt` (from 1) of some row begins: the first adds to the budget."""
        if attempt == 1 and self._counts is not None:
            self._counts.add(_ROWS, self._clock())

    def backoff(self, trips: int) -> float:
        """Seconds of the cool-down number `trips` (from 1) in a row that the service did not ask for."""
        return self._retry.bound(trips)

    def rejects(self, result: Any) -> bool:
        """Return True if the result is one to be asked for again."""
        return self._retry.result is not None and bool(self._retry.result(result))

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the attempt that follows after number `attempt` ended with `error`; None for none.

        `error` is a `ResultRejected` where `rejects` said so. At least as long as the service asked for, as
        far as the budget allows.
        """
        retry = self._retry
        if isinstance(error, ResultRejected):
            follows = attempt < retry.attempts
        else:
            follows = retry.applies(attempt, error)
        if not follows:
            return None
        pause = retry.pause(attempt, self.retry_after(error))
        # The last question: what is not wanted, or has a hook that raises, must not use the budget up.
        return pause if self._take() else None

    def _take(self) -> bool:
        """Count a retry, if the budget has one left; otherwise return False."""
        budget = self._retry.budget
        if self._counts is None or budget is None:
            return True
        now = self._clock()
        rows, retries = self._counts.totals(now)
        if retries + 1 > budget.least + budget.share * rows + _ROUNDING:
            return False
        self._counts.add(_RETRIES, now)
        return True

    def pause_of_overload(self, refusals: int, error: BaseException) -> float | None:
        """Seconds until a row is called again that an overloaded service refused so often; None for none.

        Neither the number of attempts nor the budget bounds it. A call for which nothing was sent is wanted.
        """
        if not (isinstance(error, ResultRejected | ServiceResting) or self._retry.wants(error)):
            return None
        return self._retry.pause(refusals, self.retry_after(error))

    def retry_after(self, error: BaseException) -> float | None:
        """Seconds after which the service asked to be called again; None where it said nothing.

        By the hook, or else by the error, at most `max_retry_after`.
        """
        delay = None if self._retry.retry_after is None else _checked(self._retry.retry_after(error))
        if delay is None:
            delay = retry_after_of(error)
        return None if delay is None else min(delay, self._retry.max_retry_after)


def _checked(delay: Any) -> float | None:
    if delay is None:
        return None
    if isinstance(delay, bool) or not isinstance(delay, Real):
        raise TypeError(f"retry_after gave {delay!r}: must be a number of seconds or None")
    if math.isnan(delay):
        raise ValueError(f"retry_after gave {delay!r}: must be a number of seconds or None")
    return max(0.0, float(delay))


class RepeatPolicy(CallPolicy):
    """Repeats a call at once: its function asks for it (`AskAgain`), or nothing of its request was read.

    retry: decides whether the latter is wanted; None for never.
    """

    def __init__(self, retry: RetryPolicy | None) -> None:
        self._retry = retry

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Decide by what `error` asks for, and how often the rows have been repeated."""
        # spec: Operator!AskAgain
        repeats = repeats_of(error)
        if not repeats and self._retry is not None and is_unsent(error):
            # A kept connection was closed.
            repeats = int(self._retry.pause_of_overload(1, error) is not None)
        if any(call.repeats >= repeats for call in calls):
            return None
        return Again(0.0, "repeat")
