"""Objects of tenacity as retry policies: they decide, and the operator waits.

`TenacityRetry` is a value: safe in any thread. `TenacityPolicy` is confined to the mailbox thread.
tenacity is imported only where somebody has made such an object.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox.aio.errors import ResultRejected
from pillarbox.aio.function import is_async
from pillarbox.aio.retry_after import MAX_OUTAGE_S, bounded_retry_after, somewhat_later

_PARTS = ("stop", "wait", "retry", "after", "before_sleep")


@dataclass(frozen=True)
class TenacityRetry:
    """What an object of tenacity decides by; unlike the object it can be sent to another process.

    stop, wait, retry, after, before_sleep: as in tenacity. enabled: False for no retries at all.
    """

    stop: Callable[[Any], Any]
    wait: Callable[[Any], Any]
    retry: Callable[[Any], Any]
    after: Callable[[Any], Any] | None
    before_sleep: Callable[[Any], Any] | None
    enabled: bool = True


def is_of_tenacity(value: Any) -> bool:
    """Whether `value` is an `AsyncRetrying`, `Retrying` or the like. Does not import tenacity. Any thread."""
    tenacity = sys.modules.get("tenacity")
    return tenacity is not None and isinstance(value, tenacity.BaseRetrying)


def adapt(retrying: Any) -> TenacityRetry:
    """What decides in an object of tenacity. Raises ValueError for one that asks for what cannot be done."""
    import tenacity

    if retrying.before is not None and retrying.before is not tenacity.before_nothing:
        raise ValueError(
            f"retry.before={retrying.before!r}: is not called before attempts; "
            "use before_sleep or after, or call it in the function"
        )
    if retrying.retry_error_callback is not None:
        raise ValueError(
            f"retry.retry_error_callback={retrying.retry_error_callback!r}: "
            "cannot stand in for a failed row; use errors='null', 'column' or 'drop'"
        )
    if retrying.retry_error_cls is not tenacity.RetryError:
        raise ValueError(
            f"retry.retry_error_cls={retrying.retry_error_cls!r}: is never raised; "
            "a row that fails for good has the error of its last attempt, as with reraise=True"
        )
    parts = {name: getattr(retrying, name) for name in _PARTS}
    for name, part in parts.items():
        if part is not None and _is_awaited(part):
            raise ValueError(
                f"retry.{name}={part!r}: must be a plain function or object, its answer cannot be awaited"
            )
    return TenacityRetry(**parts, enabled=getattr(retrying, "enabled", True))


def _is_awaited(part: Any) -> bool:
    while isinstance(part, functools.partial):
        part = part.func
    return is_async(part)


class TenacityPolicy:
    """What an object of tenacity decides for one operator. Confined to the mailbox thread.

    Each decision sees a `RetryCallState` of its own, with the attempt's number, its outcome, the time since
    the row's first attempt began (`seconds_since_start`) and, once they are known, `upcoming_sleep` and
    `next_action`. `fn` is None, `args` is empty, `idle_for` has the coming pause only. So rows share no state
    with each other, nor with a function that the same object decorates.
    """

    counts_attempts = False
    refused = 0
    max_outage = MAX_OUTAGE_S

    def __init__(self, retry: TenacityRetry, clock: Callable[[], float]) -> None:
        import tenacity

        self._tenacity: Any = tenacity
        self._retry = retry
        self._clock = clock
        self._retrying = tenacity.Retrying(stop=retry.stop, wait=retry.wait, retry=retry.retry)
        self.checks_results = retry.enabled and not _looks_at_errors_only(retry.retry)

    def began(self, attempt: int) -> None:
        """Nothing: tenacity counts attempts by their number."""

    def backoff(self, trips: int) -> float:
        """Doubles from a tenth of a second up to half a minute: `wait` is asked for rows."""
        return min(30.0, 0.1 * 2.0 ** min(trips - 1, 16))

    def rejects(self, result: Any, attempt: int, elapsed: float) -> bool:
        """Whether `retry` says to ask again for this result."""
        return self.checks_results and bool(self._retry.retry(self._state(attempt, elapsed, result, False)))

    def pause(self, attempt: int, error: BaseException, elapsed: float) -> float | None:
        """Ask `retry`, `after`, `wait`, `stop` and `before_sleep`, in this order, as tenacity does."""
        retry = self._retry
        if not retry.enabled:
            return None
        if isinstance(error, ResultRejected):
            state = self._state(attempt, elapsed, error.result, False)
        else:
            state = self._state(attempt, elapsed, error, True)
            if not (isinstance(error, self._tenacity.TryAgain) or retry.retry(state)):
                return None
        if retry.after is not None:
            retry.after(state)
        pause = max(0.0, float(retry.wait(state)))
        delay = self.retry_after(error)
        if delay is not None:
            pause = max(pause, somewhat_later(delay))
        state.upcoming_sleep = pause
        if retry.stop(state):
            return None
        state.next_action = self._tenacity.RetryAction(pause)
        state.idle_for = pause
        if retry.before_sleep is not None:
            retry.before_sleep(state)
        return pause

    def retry_after(self, error: BaseException) -> float | None:
        """What the error says of `Retry-After`, at most `MAX_RETRY_AFTER`."""
        return bounded_retry_after(error)

    def _state(self, attempt: int, elapsed: float, value: Any, failed: bool) -> Any:
        state = self._tenacity.RetryCallState(self._retrying, fn=None, args=(), kwargs={})
        state.attempt_number = attempt
        state.outcome = self._tenacity.Future.construct(attempt, value, failed)
        state.outcome_timestamp = self._clock()
        state.start_time = state.outcome_timestamp - elapsed
        return state


def _looks_at_errors_only(retry: Any) -> bool:
    # Those that inherit this call answer False to every result; others may override it.
    from tenacity import retry_if_exception

    return getattr(type(retry), "__call__", None) is retry_if_exception.__call__  # noqa: B004
