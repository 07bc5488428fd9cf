"""Pillarbox: slow asynchronous work over Spark DataFrames, bounded, in order or as it finishes.

`pillarbox.async_map` is the operator for any iterable; `pillarbox.spark` has it for DataFrames.
Importing this package imports neither Spark nor Arrow.
"""

from pillarbox.aio import AsyncMapIterator, CallFailed, CallTimeout, OperatorStatistics, Retry, async_map
from pillarbox.kernel import CapacityError, ForkedError, MailboxClosedError, PillarboxError, WrongThreadError

__version__ = "0.1.0"

__all__ = [
    "AsyncMapIterator",
    "CallFailed",
    "CallTimeout",
    "CapacityError",
    "ForkedError",
    "MailboxClosedError",
    "OperatorStatistics",
    "PillarboxError",
    "Retry",
    "WrongThreadError",
    "__version__",
    "async_map",
]
