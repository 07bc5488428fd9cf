"""The async operator: calls over rows, bounded, in order or as they finish, with time-outs and retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pillarbox.aio.async_map import AsyncMapIterator
from pillarbox.aio.batching import Batch
from pillarbox.aio.chained import Step
from pillarbox.aio.concurrency import Adaptive
from pillarbox.aio.errors import (
    BatchResultError,
    CallFailed,
    CallTimeout,
    ErrorInfo,
    NotCalled,
    OpenFailed,
    Outcome,
    ResultRejected,
    TooManyFailures,
)
from pillarbox.aio.limits.rate import Rate
from pillarbox.aio.limits.shared import CoordinatorError
from pillarbox.aio.meter import Usage
from pillarbox.aio.options import Budget, Buffer, Dedupe, Errors, Options, Timeout
from pillarbox.aio.retry import Retry, RetryBudget
from pillarbox.aio.service_errors import is_overload, is_permanent, retry_after_of, status_of

if TYPE_CHECKING:
    from pillarbox.aio.limits.coordinator import Coordinator
    from pillarbox.aio.limits.redis_limits import RedisCoordinator

__all__ = [
    "Adaptive",
    "AsyncMapIterator",
    "Batch",
    "BatchResultError",
    "Budget",
    "Buffer",
    "CallFailed",
    "CallTimeout",
    "Coordinator",
    "CoordinatorError",
    "Dedupe",
    "ErrorInfo",
    "Errors",
    "NotCalled",
    "OpenFailed",
    "Options",
    "Outcome",
    "Rate",
    "RedisCoordinator",
    "ResultRejected",
    "Retry",
    "RetryBudget",
    "Step",
    "Timeout",
    "TooManyFailures",
    "Usage",
    "is_overload",
    "is_permanent",
    "retry_after_of",
    "status_of",
]


def __getattr__(name: str) -> Any:
    # Most jobs share no limits, and every worker imports this package.
    if name == "Coordinator":
        from pillarbox.aio.limits.coordinator import Coordinator

        return Coordinator
    if name == "RedisCoordinator":
        from pillarbox.aio.limits.redis_limits import RedisCoordinator

        return RedisCoordinator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
