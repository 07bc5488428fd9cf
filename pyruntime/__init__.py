"""Pillarbox: slow asynchronous work over Spark DataFrames, bounded, in order or as it finishes.

`pillarbox.async_map` is the operator for any iterable; `pillarbox.spark` has it for DataFrames.
Importing this package imports neither Spark nor Arrow, and a name's module when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pillarbox.aio import (
        Adaptive,
        AsyncMapIterator,
        Batch,
        BatchResultError,
        CallFailed,
        CallTimeout,
        Coordinator,
        CoordinatorError,
        ErrorInfo,
        NotCalled,
        OpenFailed,
        Options,
        Outcome,
        Rate,
        RedisCoordinator,
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Imported at the first use: `pillarbox doctor` runs with a broken kernel too.
        if name in __all__:
            for package in ("redaction", "kernel", "ledger", "aio"):
                value = getattr(import_module(f"pillarbox.{package}"), name, None)
                if value is not None:
                    globals()[name] = value
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
