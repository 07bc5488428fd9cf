"""`PillarboxSource`, a source of Pillarbox as Spark sees it, and `register_source`, which gives it a name.

Spark makes a `PillarboxSource` from the options and pickles it, in one process, and makes readers of it in
others. Sources are registered on the driver.
"""

# Why the splits of a read are dealt out with its plan, where a `StreamTask` asks for them. Tasks of Spark run
# when there is a core, perhaps one after the other, and are run again: a coordinator would have to know which
# attempt has read what, and two attempts of a task would read different rows, of which Spark takes either.
# With the plan an attempt has the splits of the one before. What is lost is that a fast task takes more; so
# `pack` weighs splits by their size.
#
# Why `register_source` makes a class for each source. Spark makes a source from a class and options of text;
# an object, with secrets that must not be text in a plan, can reach it as an attribute of the class alone.
# Such a class is in no module, so that it is pickled with what it has.

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ClassVar

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pillarbox.sources.enumerating import discover_all
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split_coordinator import SplitCoordinator
from pillarbox.spark.operator_plan import use_driver_python
from pillarbox.spark.source.options import (
    CONNECTORS,
    AllowedSources,
    AnySource,
    Read,
    Registered,
    arrow_schema,
    spark_schema,
)
from pillarbox.spark.source.planning import MAX_SPLITS_UNLIMITED, pack
from pillarbox.spark.source.tasks import TaskPartition, read_partition

STREAM_OPTIONS = ("max_rows", "max_bytes", "max_files", "min_partitions")

LOADED = "loaded"
"""The option with which `register_source` asks whether a server can load the source: asks it nothing else."""


class PillarboxSource(DataSource):
    """`spark.read.format("pillarbox")` and `spark.readStream.format("pillarbox")`, once it is registered.

    `spark.dataSource.register(PillarboxSource)` does that; or `register_source`, which makes a name of a
    source's own. Splits of a batch read are dealt out to its tasks when it is planned.

    Options: `source` is the short name of a connector ("files", "generator", "kafka", "redis"),
    or of what else `register_source` was told to allow. `partitions` is the most tasks. For streams:
    `min_partitions`; `max_rows`, `max_bytes` and `max_files` of a micro-batch. All others are the source's.
    """

    registered: ClassVar[Registered] = AllowedSources(CONNECTORS)
    """The source, or its class, that the name stands for, or those that the option `source` may name."""
    format_name: ClassVar[str] = "pillarbox"
    parallelism: ClassVar[int | None] = None
    """The tasks that Spark runs at a time, where it is known."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.format_name

    def schema(self) -> StructType:
        """The columns that the source has. Raises what making the source from its options raises."""
        # Only whether the class can be loaded is asked: to look for columns might ask a service.
        if LOADED in self.options:
            return StructType()
        return spark_schema(Read.of(self.registered, self.options).source.arrow_schema())

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
        return BatchReader(read)

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
        return Read.of(self.registered, self.options, arrow_schema(schema), self.parallelism)


class BatchReader(DataSourceReader):
    """Reads a bounded source."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return deal_out(self._read)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task. Spark makes a partition itself where there is none."""
        return read_partition(self._read, partition) if isinstance(partition, TaskPartition) else iter(())


def deal_out(read: Read) -> list[TaskPartition]:
    """Discover all splits of a bounded source, and deal them out by rule. Raises what discovery raises."""
    context: SplitCoordinator[Any] = SplitCoordinator(read.partitions, planned=True)
    enumerator = read.source.create_enumerator(context)
    try:
        steps = discover_all(enumerator, enumerator.checkpoint, MAX_SPLITS_UNLIMITED)
        found = [split for splits, _ in steps for split in splits]
        parts = pack(found, read.partitions, enumerator.assigned_to)
        return [TaskPartition(*part) for part in enumerate(parts)]
    finally:
        enumerator.close()


def register_source(
    spark: SparkSession,
    source: AnySource | type[AnySource] | Collection[str | type[AnySource]] | None = None,
    name: str | None = None,
) -> str:
    """Have `spark.read.format(name)` and `spark.readStream.format(name)` read `source`; gives the name.

    source: a source, which then takes no options of its own, so that its secrets are in no option; a class of
        sources, which is made from the options; or, for the format whose option `source` says which, a list
        of those that it may name: short names of connectors, classes, "module:Class". None stands for the
        connectors. Nothing else is imported, whatever the option says.
    name: by default "pillarbox" for a list and None, else the class's name in lower case, without "source" at
        its end.

    On the driver; any thread. Raises TypeError or ValueError for a bad argument, and ValueError where the
    server of Spark Connect lacks a module that the source needs. The idea of a short name is
    Spark's own `DataSourceRegister`.
    """
    registered, default = _resolve(source)
    name = default if name is None else name
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name={name!r}: must be letters, digits and '_', a letter first")
    use_driver_python(spark)
    context: Any = None
    # That of Connect has none.
    with suppress(Exception):
        context = spark.sparkContext
    members: dict[str, Any] = {
        "registered": registered,
        "format_name": name,
        "parallelism": None if context is None else int(context.defaultParallelism),
    }
    try:
        spark.dataSource.register(type("RegisteredSource", (PillarboxSource,), members))
        if context is None:
            # The server of Spark Connect may lack a module that is here.
            _ = spark.read.format(name).option(LOADED, "true").load().schema
    except PySparkException as error:
        if error.getCondition() == "DATA_SOURCE_ALREADY_EXISTS":
            raise ValueError(f"name={name!r}: Spark has a format of this name; give another") from None
        missing = re.findall(r"(?m)^(?:ModuleNotFound|Import|Attribute)Error: .*$", str(error))
        if not missing:
            raise
        raise ValueError(
            f"source of the format {name!r}: the server of Spark Connect cannot load it ({missing[-1]}); "
            "install that there, or send it before register_source: "
            "spark.addArtifacts('<file>.py', pyfile=True), a package as a .zip"
        ) from None
    return name


def _resolve(source: Any) -> tuple[Registered, str]:
    """Return what is registered, and the name of its format. Raises TypeError or ValueError."""
    if source is None or isinstance(source, list | tuple | set | frozenset):
        return AllowedSources(CONNECTORS if source is None else source), "pillarbox"
    kind = source if isinstance(source, type) else type(source)
    if issubclass(kind, Source):
        return source, kind.__name__.lower().removesuffix("source")
    raise TypeError(
        f"source={source!r}: must be a Source, a class of them, a list of what the option 'source' may name, "
        "or None"
    )
