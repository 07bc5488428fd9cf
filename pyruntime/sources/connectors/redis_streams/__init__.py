"""Redis Streams as a source. `RedisStreamSource` is all that others need, and `DataLossError`, its error."""

from pillarbox.sources.connectors.redis_streams.position import DataLossError
from pillarbox.sources.connectors.redis_streams.source import RedisStreamSource
from pillarbox.sources.connectors.redis_streams.split import RedisStreamSplit

__all__ = ["DataLossError", "RedisStreamSource", "RedisStreamSplit"]
