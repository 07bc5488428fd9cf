"""Kafka as a source. `KafkaSource` is all that others need."""

from pillarbox.sources.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
