"""`async_stream`: the operator over a stream whose slow calls leave with a later micro-batch."""

from pillarbox.spark.stream.async_stream import async_stream
from pillarbox.spark.stream.bucket_state import StreamStateError

__all__ = ["StreamStateError", "async_stream"]
