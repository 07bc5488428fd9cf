"""Pillarbox: slow asynchronous work over Spark DataFrames, bounded, in order or as it finishes.

`async_map` is the operator over a Spark DataFrame or any iterable. Importing this package imports neither
Spark nor Arrow, and the module of a name when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pillarbox.aio import (
        Adaptive,
        AsyncMapIterator,
        Batch,
        Budget,
        Buffer,
        CallFailed,
        CallTimeout,
        Coordinator,
        CoordinatorError,
        Dedupe,
        ErrorInfo,
        Errors,
        NotCalled,
        Options,
        Outcome,
        Rate,
        RedisCoordinator,
        Retry,
        RetryBudget,
        Step,
        Timeout,
        TooManyFailures,
        Usage,
    )
    from pillarbox.api import async_map
    from pillarbox.kernel import (
        Collector,
        PillarboxError,
    )
    from pillarbox.ledger import Ledger
    from pillarbox.redaction import Redact
    from pillarbox.spark import async_stream, async_udf

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "AsyncMapIterator",
    "Batch",
    "Budget",
    "Buffer",
    "CallFailed",
    "CallTimeout",
    "Collector",
    "Coordinator",
    "CoordinatorError",
    "Dedupe",
    "ErrorInfo",
    "Errors",
    "Ledger",
    "NotCalled",
    "Options",
    "Outcome",
    "PillarboxError",
    "Rate",
    "Redact",
    "RedisCoordinator",
    "Retry",
    "RetryBudget",
    "Step",
    "Timeout",
    "TooManyFailures",
    "Usage",
    "__version__",
    "async_map",
    "async_stream",
    "async_udf",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Imported at the first use: `pillarbox doctor` runs with a broken kernel too.
        if name in __all__:
            # What needs Spark comes last: nothing else imports it.
            for package in ("redaction", "kernel", "ledger", "aio", "api", "spark"):
                value = getattr(import_module(f"pillarbox.{package}"), name, None)
                # A module may have the name of its function.
                if not isinstance(value, NoneType | ModuleType):
                    globals()[name] = value
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
