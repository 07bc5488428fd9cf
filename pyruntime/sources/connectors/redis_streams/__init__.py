"""Redis Streams as a source. `RedisStreamSource` is all that others need."""

from pillarbox.sources.connectors.redis_streams.source import RedisStreamSource

__all__ = ["RedisStreamSource"]
