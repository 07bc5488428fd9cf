"""`PillarboxSource`: a source of Pillarbox as Spark sees it. In Spark's planning processes and in tasks.

Spark makes one from the options and pickles it, in one process; makes readers of it in others.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pillarbox.sources.channel import ChannelHandle
from pillarbox.sources.source import Boundedness
from pillarbox.spark.source.batch import BatchReader
from pillarbox.spark.source.named import CONNECTORS, AllowedSources, Registered, make_source
from pillarbox.spark.source.options import parse_options
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.schemas import arrow_schema, spark_schema

STREAM_OPTIONS = ("max_rows", "max_bytes", "max_files", "min_partitions", "max_drift")

LOADED = "loaded"
"""The option with which `register_source` asks whether a server can load the source: asks it nothing else."""


class PillarboxSource(DataSource):
    """`spark.read.format("pillarbox")` and `spark.readStream.format("pillarbox")`, once it is registered.

    `spark.dataSource.register(PillarboxSource)` does that; or `register_source`, which makes a name of a
    source's own, gives splits out while the read runs, and lets a reader and the enumerator talk in batch
    reads.

    Options: `source` is the short name of a connector ("files", "generator", "kafka", "redis"),
    or of what else `register_source` was told to allow. `partitions` is the most tasks. For streams:
    `min_partitions`; `max_rows`, `max_bytes` and `max_files` of a micro-batch; `timestamp` (a column),
    `out_of_order`, `idle_after` and `max_drift`, all three in seconds, align splits in event time;
    `channel.host`, `channel.port` and `channel.advertise` say where the driver listens for its tasks,
    by default on this machine alone. All others are the source's.
    """

    registered: ClassVar[Registered] = AllowedSources(CONNECTORS)
    """The source, or its class, that the name stands for, or those that the option `source` may name."""
    format_name: ClassVar[str] = "pillarbox"
    registration: ClassVar[str] = ""
    """As what the driver's Python process knows it: a name may be registered anew, for another source."""
    driver: ClassVar[ChannelHandle | None] = None
    """The way to the driver's Python process, where there is one."""
    parallelism: ClassVar[int | None] = None
    """The tasks that Spark runs at a time, where it is known."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.format_name

    def schema(self) -> StructType:
        """The columns that the source has. Raises what making the source from its options raises."""
        if self.registration and self.options.get(LOADED) == self.registration:
            return StructType()
        return spark_schema(make_source(self.registered, parse_options(self.options), None).arrow_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. Raises ValueError for a source without an end."""
        read = self._read(schema)
        if read.source.boundedness is not Boundedness.BOUNDED:
            raise ValueError(
                f"format {self.name()!r}: the source has no end, so spark.read would never be done: use "
                "spark.readStream, or options that give it an end"
            )
        for name in STREAM_OPTIONS:
            if name in self.options:
                raise ValueError(
                    f"option {name!r} is for spark.readStream; spark.read reads all that there is"
                )
        return BatchReader(read, self.driver, self.registration, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises RuntimeError with a PySpark that is too old."""
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise RuntimeError(
                f"format {self.name()!r}: streams of Pillarbox's sources need PySpark 4.2 or later, and "
                f"this is {pyspark.__version__}, which does not tell a source where a micro-batch starts"
            )
        from pillarbox.spark.source.stream import StreamReader

        return StreamReader(self._read(schema))

    def _read(self, schema: StructType) -> Read:
        options = parse_options(self.options)
        arrow = arrow_schema(schema)
        return Read(make_source(self.registered, options, arrow), options, arrow, self.parallelism)
