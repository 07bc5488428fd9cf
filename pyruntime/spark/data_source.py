"""A source of Pillarbox as Spark sees it: `PillarboxSource`, its readers, and `register_source`.

Spark makes a `PillarboxSource` from the options and pickles it, in one process, and makes readers of it in
others; rows are read in tasks. A stream has one `StreamReader`, in a process of its own for each query: Spark
asks it one thing at a time, on one thread. Sources are registered on the driver. Option names are in lower
case, as Spark hands them over; those that Pillarbox does not read itself belong to the source.
"""

# Two things are refused here that would work. A password in an option: Spark prints options with the plan, in
# its UI and its event log, and hides them by their names only. And a source by any name that can be imported:
# who may write SQL may write options, so `source` would be a way to run whatever is installed; the list of
# what it may name belongs to who registers the format, in Python.
#
# Unsigned numbers take the next larger type, since Spark has none: the upper half of them has no place in the
# type of the same size.
#
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

import os
import pkgutil
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from pillarbox.sources.enumerating import discover_all
from pillarbox.sources.enumerator import ReadLimit, SourceEvent, SplitEnumerator
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split_coordinator import SplitCoordinator
from pillarbox.spark.border import Border
from pillarbox.spark.compat import (
    SOURCE_STREAMS_SINCE,
    SOURCES_SINCE,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    report_no_profile,
    require,
)
from pillarbox.spark.micro_batches import (
    DEFAULT_MAX_FILES,
    MAX_SPLITS_UNLIMITED,
    Json,
    MicroBatches,
    OffsetCodec,
    cut,
    number_of,
    pack,
)
from pillarbox.spark.schema import ROOMIER_TYPES, arrow_field
from pillarbox.spark.shipment import reduced, use_driver_python
from pillarbox.spark.shown_errors import show_errors_in_words
from pillarbox.spark.task_connection import begin_task, prompt_connection
from pillarbox.spark.worker_errors import in_words
from pillarbox.validate import suggesting_names

AnySource = Source[Any, Any]

CONNECTORS = {
    "files": "pillarbox.sources.connectors.files:FileSource",
    "generator": "pillarbox.sources.connectors.generator:GeneratorSource",
    "kafka": "pillarbox.sources.connectors.kafka:KafkaSource",
    "redis": "pillarbox.sources.connectors.redis_streams:RedisStreamSource",
}

LARGEST = 2**63

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_REDACTED = re.compile(r"secret|password|token|access[.]?key|url", re.IGNORECASE)
"""Names whose values Spark hides in plans (`spark.redaction.regex`, `spark.sql.redaction.options.regex`)."""
_PASSWORD = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|password[\"']?\s*[:=]|\bpwd\s*=|secret[_.-]?(access[_.-]?)?key[\"']?\s*[:=]",
    re.IGNORECASE,
)


class AllowedSources:
    """The sources that the option `source` may name: nothing else is imported. A plain value that pickles.

    given: short names of connectors, classes of sources, which are named "module:Class", and such names. What
    a name stands for is imported when a read asks for it. Raises TypeError or ValueError for what is neither.
    """

    def __init__(self, given: Iterable[str | type[AnySource]]) -> None:
        self._found: dict[str, str | type[AnySource]] = {}
        for each in given:
            if isinstance(each, type) and issubclass(each, Source):
                self._found[f"{each.__module__}:{each.__qualname__}"] = each
            elif isinstance(each, str) and (each in CONNECTORS or _NAME.fullmatch(each)):
                self._found[each] = CONNECTORS.get(each, each)
            else:
                kind = ValueError if isinstance(each, str) else TypeError
                raise kind(
                    f"source=[{each!r}]: must be a class of sources, its name 'module:Class', or one of "
                    f"{', '.join(CONNECTORS)}"
                )
        if not self._found:
            raise ValueError("source=[]: must name a source, or be None for the connectors")

    def source_class(self, name: str | None) -> type[AnySource]:
        """The class that the option `source` names. Raises ValueError for any other."""
        allowed = f"must be one of {', '.join(self._found)}"
        if name is None:
            raise ValueError(f"option 'source' is missing: {allowed}")
        found: Any = self._found.get(name)
        if found is None:
            # Whoever may write SQL may write this, and an import runs what is imported.
            raise ValueError(
                f"option 'source' is {name!r}: {allowed}. Whoever registers the format may allow others: "
                "register_source(spark, [...]) with a list of what this option may name"
            )
        try:
            found = pkgutil.resolve_name(found) if isinstance(found, str) else found
        except (ImportError, AttributeError) as error:
            raise ValueError(f"option 'source' is {name!r}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, Source)):
            raise ValueError(
                f"option 'source' is {name!r}: is not a class derived from pillarbox.sources.Source"
            )
        return found


Registered = AnySource | type[AnySource] | AllowedSources


@dataclass(frozen=True)
class Read:
    """One read of a source. A plain value that pickles, for planner and tasks. Its text shows no option.

    schema: as Spark wants the rows; None where nobody has asked for rows yet. partitions: the most tasks of a
    read, or of a micro-batch. min_partitions: slices of a micro-batch are cut until there are so many, where
    they can be. limit: what a micro-batch may read.
    """

    source: AnySource = field(repr=False)
    schema: pa.Schema
    partitions: int
    min_partitions: int
    limit: ReadLimit

    @classmethod
    def of(
        cls,
        registered: Registered,
        options: Mapping[str, str],
        schema: pa.Schema | None = None,
        parallelism: int | None = None,
    ) -> Read:
        """The read that the options describe. Raises ValueError that names the option and its value.

        registered: what the format stands for. parallelism: the tasks that Spark runs at a time, if known.
        Refused is a value with a password in it under a name that Spark does not hide: its plans would show
        it.
        """
        rest = {name.lower(): value for name, value in options.items()}
        for name, value in rest.items():
            if _PASSWORD.search(value) and not _REDACTED.search(name):
                raise ValueError(
                    f"option {name!r} holds a password, and Spark's plans would show it: Spark hides the "
                    "values of options whose names have 'secret', 'password', 'token', 'access.key' or 'url' "
                    "in them; or give the source itself to pillarbox.spark.register_source"
                )
        return cls(
            schema=schema,
            partitions=_number(rest, "partitions") or parallelism or os.cpu_count() or 1,
            min_partitions=_number(rest, "min_partitions") or 1,
            limit=ReadLimit(
                rows=_number(rest, "max_rows"),
                nbytes=_number(rest, "max_bytes"),
                files=_number(rest, "max_files") or DEFAULT_MAX_FILES,
            ),
            # The last, for it takes the options that are left.
            source=_make_source(registered, rest, schema),
        )


def _make_source(given: Registered, options: dict[str, str], schema: pa.Schema | None) -> AnySource:
    name = options.pop("source", None)
    if isinstance(given, AllowedSources):
        given = given.source_class(name)
    elif name is not None:
        raise ValueError("option 'source': this name stands for a source already")
    if not isinstance(given, Source):
        return given.from_options(options, schema)
    for option in options:
        raise ValueError(f"option {option!r}: this source was made already and takes no options of its own")
    return given


def _number(rest: dict[str, str], name: str) -> int | None:
    given = rest.pop(name, None)
    if given is None:
        return None
    value = int(given) if given.strip().isdecimal() else 0
    if not 1 <= value < LARGEST:
        raise ValueError(f"option {name!r} is {given!r}: must be a whole number, at least 1")
    return value


def spark_schema(arrow: pa.Schema) -> StructType:
    """Spark's schema for what a source gives.

    A timestamp without a time zone is `timestamp_ntz`; unsigned numbers become the next larger type. Raises
    TypeError that names the column, for a type that Spark does not have.
    """
    if not isinstance(arrow, pa.Schema):
        raise TypeError(f"arrow_schema() gave {arrow!r}: must be a pyarrow.Schema")
    fields = []
    for column in arrow:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        try:
            spark = from_arrow_type(ROOMIER_TYPES.get(kind, kind), prefer_timestamp_ntz=True)
        except Exception as error:
            raise TypeError(f"column {column.name!r}: Spark has no type for {column.type}: {error}") from None
        fields.append(StructField(column.name, spark, column.nullable))
    return StructType(fields)


# -- tasks ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class TaskPartition(InputPartition):
    """The part of a read that one task reads: these splits. A plain value that pickles."""

    number: int
    splits: list[Any]


def read_partition(read: Read, partition: TaskPartition) -> Iterator[Any]:
    """The rows of a partition, as tuples or Arrow batches with the columns of the read's schema.

    Closing the iterator ends the reading.
    """
    context = ReaderContext(subtask=partition.number, send=_no_events, schema=read.schema)
    reader = read.source.create_reader(context)
    border = Border(read.schema)
    with prompt_connection(), closing(read_splits(reader, partition.splits)) as reading:
        for fetched in reading:
            if not isinstance(fetched.records, pa.RecordBatch):
                border.check_records(fetched.records)
                yield from fetched.records
            elif fetched.records.num_rows:
                yield fit(fetched.records, read.schema, border)


def _no_events(event: SourceEvent) -> NoReturn:
    raise RuntimeError(
        f"event {event.kind!r}: a read of Spark has no way to its enumerator, which ends when the read is "
        "planned; readers and enumerators of a task (SourceInput) can say events to each other"
    )


def fit(batch: pa.RecordBatch, schema: pa.Schema, border: Border) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, in its order, with its types. border: the check of the schema.

    Raises ValueError that names the column, for one that is missing, has values of another type, nulls that
    the schema does not have, at any depth, or text that is not UTF-8.
    """
    fits = batch.schema.equals(schema)
    columns = batch.columns if fits else [_column(batch, field) for field in schema]
    for row, why in border.misfits(columns).items():
        raise ValueError(f"row {row:,} of a batch that was read: {why}")
    return batch if fits else pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    at = batch.schema.get_all_field_indices(field.name)
    if len(at) != 1:
        raise ValueError(
            f"column {field.name!r} stands {len(at)} times in what was read, which has the columns "
            f"{', '.join(batch.schema.names)}"
        )
    column = batch.column(at[0])
    try:
        # Spark's timestamps are microseconds.
        return column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ValueError(f"column {field.name!r} is {column.type} and not {field.type}: {error}") from None


# -- streams ----------------------------------------------------------------------------------------

FIRST_IDLE_S, MAX_IDLE_S = 0.01, 0.2
"""Seconds between two plans if the first has found nothing: it doubles. Spark asks without a pause."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a source in micro-batches. `read` says what is read, and how."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._codec: OffsetCodec[Any, Any] = OffsetCodec(read.source)
        self._parallelism = max(read.partitions, read.min_partitions)
        self._told = 0
        self._idle = FIRST_IDLE_S
        self._plan_at = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(type(self._read.source).__name__, StreamReader, self._read)

    @cached_property
    def _batches(self) -> MicroBatches[Any, Any]:
        return MicroBatches(self._read.source, self._parallelism)

    # -- what Spark asks; the process of the query -----------------------------------------------------

    def initialOffset(self) -> Json:
        """Begin a new query, with nothing known."""
        return {"version": 1, "number": 0}

    def getDefaultReadLimit(self) -> Any:
        """The limit of files, for there is always one; the options' other limits hold all the same."""
        return ReadMaxFiles(cast("int", self._read.limit.files))

    @in_words
    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there, and end."""
        self._batches.only_what_is_there(self._read.limit)

    @in_words
    def latestOffset(self, start: Json, limit: Any) -> Json:
        """The offset after the next micro-batch; `start` itself if there is nothing to read.

        After one that has found nothing, the next one waits for some milliseconds.
        """
        batches = self._batches
        time.sleep(max(0.0, self._plan_at - time.monotonic()))
        # Another number: an offset of before was not used, or this process is new.
        if number_of(start) != batches.number:
            batches.take_up(self._codec.from_json(start))
        # Spark knows no limit but the one above, or one that must not count (`Trigger.Once`).
        planned = batches.plan(ReadLimit() if isinstance(limit, ReadAllAvailable) else self._read.limit)
        if planned is not None:
            self._idle = FIRST_IDLE_S
            return self._codec.to_json(planned)
        # Spark does not say so of the last micro-batch, but it is done, or nobody would ask.
        told = self._committed(start)
        if told is not None:
            told.result()
        self._plan_at = time.monotonic() + self._idle
        self._idle = min(2 * self._idle, MAX_IDLE_S)
        return start

    @in_words
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a micro-batch: what `end` says is read, in as many parts as the options say."""
        # spec: SplitAssignment!Run
        slices = self._codec.slices(start, end)
        if not slices:
            return []
        batches, least = self._batches, self._read.min_partitions
        if batches.number < 0:
            # After a restart this is the first that is heard of.
            batches.take_up(self._codec.from_json(end))

        def packed() -> list[list[Any]]:
            enumerator = batches.thread.enumerator
            # What goes to one partition by rule need not be cut: its pieces would meet there again.
            ruled = [each for each in slices if enumerator.assigned_to(each) is not None]
            free = [each for each in slices if enumerator.assigned_to(each) is None]
            pieces = ruled + cut(free, least - len(ruled), enumerator.advance)
            return pack(pieces, self._parallelism, enumerator.assigned_to)

        return [TaskPartition(*part) for part in enumerate(batches.thread.call(packed))]

    @in_words
    def commit(self, end: Json) -> None:
        """Tell the source that what was read up to `end` is durable; do not wait for it."""
        # spec: SplitAssignment!NotifyCommitted
        self._committed(end)

    def stop(self) -> None:
        """End what runs here."""
        self._batches.close()

    def _committed(self, end: Json) -> Future[None] | None:
        """Tell the source what is durable, on its thread, if it hears that. What it raises is logged."""
        batches = self._batches
        if batches.number < 0 or end["number"] <= self._told:
            return None
        if type(batches.thread.enumerator).notify_committed is SplitEnumerator.notify_committed:
            return None
        self._told = end["number"]
        positions = self._codec.from_json(end).positions()
        return batches.thread.submit(batches.coordinator.notify_committed, positions)

    # -- in a task -----------------------------------------------------------------------------------

    @in_words
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one part of a micro-batch."""
        assert isinstance(partition, TaskPartition)
        return read_partition(self._read, partition)


# -- the format -------------------------------------------------------------------------------------

STREAM_OPTIONS = ("max_rows", "max_bytes", "max_files", "min_partitions")

LOADED = "loaded"
"""The option with which `register_source` asks whether a server can load the source: asks it nothing else."""


class PillarboxSource(DataSource):
    """Data source of the format "pillarbox", for `spark.read` and `spark.readStream`, once it is registered.

    `spark.dataSource.register(PillarboxSource)` registers it; `register_source` makes a format with a
    source's own name. Splits of a batch read are assigned to its tasks when it is planned.

        >>> from pillarbox.spark.data_source import PillarboxSource
        >>> spark.dataSource.register(PillarboxSource)
        >>> reader = spark.read.format("pillarbox").option("source", "generator").option("rows", 5)
        >>> reader.load().count()
        5

    Options: `source` is the short name of a connector ("files", "generator", "kafka", "redis"), or another
    name that `register_source` was given. `partitions` is the largest number of tasks. For streams:
    `min_partitions`; `max_rows`, `max_bytes` and `max_files` of a micro-batch. All others are the source's.
    Needs PySpark 4.0 for batch reads, 4.2 for streams. On the driver.
    """

    registered: ClassVar[Registered] = AllowedSources(CONNECTORS)
    """The source, or its class, that the name stands for, or those that the option `source` may name."""
    format_name: ClassVar[str] = "pillarbox"
    parallelism: ClassVar[int | None] = None
    """The tasks that Spark runs at a time, where it is known."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark plans a read in workers of their own: one makes this object, and another its reader.
        begin_task()
        report_no_profile()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.format_name

    @in_words
    def schema(self) -> StructType:
        """Return the columns of the source. Raises the errors of making the source from its options."""
        # Only whether the class can be loaded is asked: to look for columns might ask a service.
        if LOADED in self.options:
            return StructType()
        return spark_schema(Read.of(self.registered, self.options).source.arrow_schema())

    @in_words
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

    @in_words
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises ValueError with a PySpark that is too old."""
        require(SOURCE_STREAMS_SINCE, f"format {self.name()!r} as a stream")
        return StreamReader(self._read(schema))

    def _read(self, schema: StructType) -> Read:
        begin_task()
        report_no_profile()
        wanted = pa.schema(list(map(arrow_field, schema)))
        return Read.of(self.registered, self.options, wanted, self.parallelism)


class BatchReader(DataSourceReader):
    """Reads a bounded source."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(type(self._read.source).__name__, BatchReader, self._read)

    @in_words
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, to which all splits are dealt out by rule. Raises what discovery raises."""
        read = self._read
        context: SplitCoordinator[Any] = SplitCoordinator(read.partitions, planned=True)
        with closing(read.source.create_enumerator(context)) as enumerator:
            steps = discover_all(enumerator, enumerator.checkpoint, MAX_SPLITS_UNLIMITED)
            found = [split for splits, _ in steps for split in splits]
            parts = pack(found, read.partitions, enumerator.assigned_to)
            return [TaskPartition(*part) for part in enumerate(parts)]

    @in_words
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task. Spark makes a partition itself where there is none."""
        return read_partition(self._read, partition) if isinstance(partition, TaskPartition) else iter(())


@suggesting_names
def register_source(
    spark: SparkSession,
    source: AnySource | type[AnySource] | Collection[str | type[AnySource]] | None = None,
    name: str | None = None,
) -> str:
    """Register `source` as the format `name` of `spark.read` and `spark.readStream`; return the name.

    source: a source, which then takes no options, so that its secrets are in no option; a class of sources,
        which is made from the options; or a list for a format whose option `source` selects one: short names
        of connectors, classes, "module:Class". None lists the connectors. Nothing else is imported, whatever
        the option names.
    name: by default "pillarbox" for a list and None, else the class's name in lower case, without "source" at
        its end.

        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> from pillarbox.spark import register_source
        >>> register_source(spark, GeneratorSource(rows=5), "numbers")
        'numbers'
        >>> spark.read.format("numbers").load().count()
        5

    On the driver; any thread. Raises TypeError or ValueError for a bad argument, and ValueError if the
    server of Spark Connect lacks a module that the source needs. The idea of a short name is
    Spark's own `DataSourceRegister`.
    """
    require(SOURCES_SINCE, "register_source")
    registered, default = _resolve(source)
    name = default if name is None else name
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name={name!r}: must be letters, digits and '_', a letter first")
    use_driver_python(spark)
    show_errors_in_words()
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
