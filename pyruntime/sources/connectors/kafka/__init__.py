"""Kafka as a source. `KafkaSource` is all that others need, and `KafkaDataLossError`, its error."""

from pillarbox.sources.connectors.kafka.client import KafkaDataLossError
from pillarbox.sources.connectors.kafka.source import KafkaSource
from pillarbox.sources.connectors.kafka.split import KafkaSplit

__all__ = ["KafkaDataLossError", "KafkaSource", "KafkaSplit"]
