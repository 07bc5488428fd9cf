"""Pillarbox: slow asynchronous work over Spark DataFrames, bounded, in order or as it finishes.

`pillarbox.async_map` is the operator for any iterable; `pillarbox.spark` has it for DataFrames.
Importing this package imports neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pillarbox.aio import (
    Adaptive,
    AsyncMapIterator,
    Batch,
    BatchResultError,
    CallFailed,
    CallTimeout,
    CoordinatorError,
    ErrorInfo,
    NotCalled,
    OpenFailed,
    OperatorStatistics,
    Options,
    Outcome,
    Rate,
    ResultRejected,
    Retry,
    RetryBudget,
    Step,
    TooManyFailures,
    Usage,
    async_map,
    is_overload,
    is_permanent,
    retry_after_of,
    status_of,
)
from pillarbox.kernel import (
    CapacityError,
    Collector,
    ForkedError,
    MailboxClosedError,
    PillarboxError,
    WrongThreadError,
)
from pillarbox.ledger import Ledger
from pillarbox.redaction import Redact

if TYPE_CHECKING:
    from pillarbox.aio import Coordinator, RedisCoordinator

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "AsyncMapIterator",
    "Batch",
    "BatchResultError",
    "CallFailed",
    "CallTimeout",
    "CapacityError",
    "Collector",
    "Coordinator",
    "CoordinatorError",
    "ErrorInfo",
    "ForkedError",
    "Ledger",
    "MailboxClosedError",
    "NotCalled",
    "OpenFailed",
    "OperatorStatistics",
    "Options",
    "Outcome",
    "PillarboxError",
    "Rate",
    "Redact",
    "RedisCoordinator",
    "ResultRejected",
    "Retry",
    "RetryBudget",
    "Step",
    "TooManyFailures",
    "Usage",
    "WrongThreadError",
    "__version__",
    "async_map",
    "is_overload",
    "is_permanent",
    "retry_after_of",
    "status_of",
]


def __getattr__(name: str) -> Any:
    if name in ("Coordinator", "RedisCoordinator"):
        from pillarbox import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
