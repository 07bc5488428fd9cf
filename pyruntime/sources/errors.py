"""Errors that several connectors raise. Plain values, any thread."""

from pillarbox.kernel import PillarboxError


class DataLossError(PillarboxError):
    """Data that was to be read is gone: expired, trimmed or deleted before it was read. The text says which.

    Raised in a task it is the `__cause__` of a `ReadFailed`. Connectors that can go on without take
    `on_data_loss="ignore"`.
    """
