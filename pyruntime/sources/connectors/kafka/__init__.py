"""Kafka as a source. `KafkaSource` is all that others need."""

from pillarbox.sources.connectors.kafka.source import KafkaSource
from pillarbox.sources.connectors.kafka.split import KafkaSplit

__all__ = ["KafkaSource", "KafkaSplit"]
