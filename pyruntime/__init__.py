"""Pillarbox: slow asynchronous work over Spark DataFrames, bounded, in order or as it finishes.

`async_map` is the operator over a Spark DataFrame or any iterable. Importing this package imports neither
Spark nor Arrow, and the module of a name when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.lazy_names import at_first_use

if TYPE_CHECKING:
    from pillarbox.aio.adaptive import Adaptive
    from pillarbox.aio.batching import Batch
    from pillarbox.aio.current import current_call
    from pillarbox.aio.errors import (
        CallFailed,
        CallTimeout,
        ErrorInfo,
        NothingSucceeded,
        Outcome,
        QuotaUsedUp,
        TooManyFailures,
    )
    from pillarbox.aio.hedge import Hedge
    from pillarbox.aio.limits.coordinator import Coordinator
    from pillarbox.aio.limits.rate import Rate
    from pillarbox.aio.limits.shared import Shared
    from pillarbox.aio.options import Budget, Buffer, Dedupe, Errors, Limit, Options, Timeout
    from pillarbox.aio.retry import Retry, RetryBudget
    from pillarbox.aio.service_addresses import Endpoints
    from pillarbox.aio.stages import Step
    from pillarbox.aio.usage import AskAgain, Result, Usage
    from pillarbox.api import async_map
    from pillarbox.job import run
    from pillarbox.kernel import Collector, PillarboxError
    from pillarbox.ledger import Ledger
    from pillarbox.redaction import Redact
    from pillarbox.spark.async_udf import async_udf
    from pillarbox.spark.stream.async_stream import async_stream

__version__ = "0.2.0"

__all__ = [
    "Adaptive",
    "AskAgain",
    "Batch",
    "Budget",
    "Buffer",
    "CallFailed",
    "CallTimeout",
    "Collector",
    "Coordinator",
    "Dedupe",
    "Endpoints",
    "ErrorInfo",
    "Errors",
    "Hedge",
    "Ledger",
    "Limit",
    "NothingSucceeded",
    "Options",
    "Outcome",
    "PillarboxError",
    "QuotaUsedUp",
    "Rate",
    "Redact",
    "Result",
    "Retry",
    "RetryBudget",
    "Shared",
    "Step",
    "Timeout",
    "TooManyFailures",
    "Usage",
    "__version__",
    "async_map",
    "async_stream",
    "async_udf",
    "current_call",
    "run",
]


# In its module each name is where its docstring says; the lazy import keeps `import pillarbox` light.
_MODULES = {
    "aio.batching": ["Batch"],
    "aio.adaptive": ["Adaptive"],
    "aio.limits.shared": ["Shared"],
    "aio.current": ["current_call"],
    "aio.errors": [
        *("CallFailed", "CallTimeout", "ErrorInfo", "NothingSucceeded", "Outcome", "QuotaUsedUp"),
        "TooManyFailures",
    ],
    "aio.hedge": ["Hedge"],
    "aio.limits.coordinator": ["Coordinator"],
    "aio.limits.rate": ["Rate"],
    "aio.options": ["Budget", "Buffer", "Dedupe", "Errors", "Limit", "Options", "Timeout"],
    "aio.retry": ["Retry", "RetryBudget"],
    "aio.service_addresses": ["Endpoints"],
    "aio.stages": ["Step"],
    "aio.usage": ["AskAgain", "Result", "Usage"],
    "api": ["async_map"],
    "job": ["run"],
    "kernel": ["Collector", "PillarboxError"],
    "ledger": ["Ledger"],
    "redaction": ["Redact"],
    "spark": ["async_stream", "async_udf"],
}


if not TYPE_CHECKING:
    # At the first use: `pillarbox doctor` runs with a broken kernel too.
    __getattr__ = at_first_use(__name__, _MODULES)
