"""The async operator: calls over rows, bounded, in order or as they finish, with time-outs and retries."""

from pillarbox.aio.async_map import AsyncMapIterator, async_map
from pillarbox.aio.counts import OperatorStatistics
from pillarbox.aio.errors import CallFailed, CallTimeout
from pillarbox.aio.options import Options
from pillarbox.aio.retry import Retry

__all__ = [
    "AsyncMapIterator",
    "CallFailed",
    "CallTimeout",
    "OperatorStatistics",
    "Options",
    "Retry",
    "async_map",
]
