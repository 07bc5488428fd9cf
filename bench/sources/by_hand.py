"""Data sources for Spark as one writes them by hand, for one purpose each. Plain values that pickle.

They give Arrow batches, since that is the quicker of the two shapes that Spark takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from pillarbox.spark.compat import ReadMaxFiles, SupportsTriggerAvailableNow

AT_ONCE = 5_000
"""Entries, or messages, of one request."""


class HandRedis(DataSource):
    """The field `n` of the entries of a stream: XRANGE with redis-py, from one id to the next."""

    @classmethod
    def name(cls) -> str:
        return "hand_redis"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: Any) -> DataSourceReader:
        return HandRedisReader(self.options["url"], self.options["stream"])


class HandRedisReader(DataSourceReader):
    def __init__(self, url: str, stream: str) -> None:
        self._url = url
        self._stream = stream

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for entries in redis_entries(self._url, self._stream):
            numbers = [int(fields[b"n"]) for _, fields in entries]
            yield pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


def redis_entries(url: str, stream: str) -> Iterator[list[tuple[bytes, dict[bytes, bytes]]]]:
    """The entries of a stream, a request after the other."""
    import redis

    with redis.Redis.from_url(url) as client:
        after: Any = "-"
        while entries := client.xrange(stream, after, "+", AT_ONCE):
            yield entries
            after = b"(" + entries[-1][0]


class HandKafka(DataSource):
    """The values of partition 0 of a topic as numbers: `consume` of confluent-kafka, up to the end of now."""

    @classmethod
    def name(cls) -> str:
        return "hand_kafka"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return HandKafkaReader(self.options["servers"], self.options["topic"])


class HandKafkaReader(DataSourceReader):
    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for messages in kafka_messages(self._servers, self._topic):
            values = [message.value() for message in messages]
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def kafka_messages(servers: str, topic: str) -> Iterator[list[Any]]:
    """The messages of partition 0 of a topic up to the end of now, a call of `consume` after the other."""
    from confluent_kafka import Consumer, TopicPartition

    properties = {"bootstrap.servers": servers, "group.id": "by-hand", "enable.auto.commit": False}
    consumer = Consumer({**properties, "isolation.level": "read_committed", "log_level": 0})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30.0)
        consumer.assign([TopicPartition(topic, 0, 0)])
        position = 0
        while position < end:
            messages = consumer.consume(AT_ONCE, timeout=1.0)
            if messages:
                position = messages[-1].offset() + 1
                yield messages
    finally:
        consumer.close()


class HandRows(DataSource):
    """As many rows a micro-batch as time has passed: the least that a stream of two partitions can be."""

    @classmethod
    def name(cls) -> str:
        return "hand_rows"

    def schema(self) -> str:
        return "id long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return HandRowsReader(float(self.options["rate"]))


class HandRowsReader(DataSourceStreamReader):
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = time.time()

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"rows": int((time.time() - self._began) * self._rate)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        half = (start["rows"] + end["rows"]) // 2
        return [InputPartition((start["rows"], half)), InputPartition((half, end["rows"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ids = pa.array(range(*partition.value), pa.int64())
        yield pa.RecordBatch.from_arrays([ids], names=["id"])


COLUMNS: dict[str, tuple[str, Any]] = {
    "id": ("long", 7),
    "x": ("double", 0.5),
    "text": ("string", "row12345-5"),
    "value": ("binary", b"123456"),
}
"""The columns that a constant batch may have: type, and the value in each row."""


class HandConstant(DataSource):
    """The same Arrow batch again and again: the least that so many rows cost by a data source in Python.

    Options: `columns` of `COLUMNS`, by commas; `rows` in all; `at_once`, those of a batch; `limit`, those of
    a micro-batch.
    """

    @classmethod
    def name(cls) -> str:
        return "hand_constant"

    def schema(self) -> str:
        return ", ".join(f"{name} {COLUMNS[name][0]}" for name in self.options["columns"].split(","))

    def _rows(self) -> ConstantRows:
        return ConstantRows(self.options["columns"].split(","), int(self.options["at_once"]))

    def reader(self, schema: Any) -> DataSourceReader:
        return HandConstantReader(self._rows(), int(self.options["rows"]))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return HandConstantStreamReader(self._rows(), int(self.options["rows"]), int(self.options["limit"]))


class ConstantRows:
    """Batches of these columns, of at most so many rows each."""

    def __init__(self, columns: list[str], at_once: int) -> None:
        self._columns = columns
        self._at_once = at_once

    def of(self, rows: int) -> Iterator[pa.RecordBatch]:
        """So many rows."""
        kinds = {"long": pa.int64(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()}
        made = [(kinds[kind], value) for kind, value in (COLUMNS[name] for name in self._columns)]
        count = min(rows, self._at_once)
        arrays = [pa.repeat(pa.scalar(value, kind), count) for kind, value in made]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._columns)
        for done in range(0, rows, self._at_once):
            yield batch.slice(0, min(self._at_once, rows - done))


class HandConstantReader(DataSourceReader):
    def __init__(self, constant: ConstantRows, rows: int) -> None:
        self._constant = constant
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._constant.of(self._rows)


class HandConstantStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, constant: ConstantRows, rows: int, limit: int) -> None:
        self._constant = constant
        self._rows = rows
        self._limit = limit

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxFiles(1)

    def prepareForTriggerAvailableNow(self) -> None:
        """All is there."""

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"rows": min(self._rows, start["rows"] + self._limit)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._constant.of(partition.value)
