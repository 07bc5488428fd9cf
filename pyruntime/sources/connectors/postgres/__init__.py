"""PostgreSQL as a source. `PostgresSource` is all that others need."""

from pillarbox.sources.connectors.postgres.source import PostgresSource
from pillarbox.sources.connectors.postgres.split import PostgresSplit

__all__ = ["PostgresSource", "PostgresSplit"]
