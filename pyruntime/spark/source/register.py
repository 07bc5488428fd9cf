"""`register_source`: gives a source a name that `spark.read` and `spark.readStream` know. In the driver."""

from __future__ import annotations

import re
import threading
import uuid
import weakref
from collections.abc import Collection
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pillarbox.sources.channel import ChannelHandle, SourceChannel
from pillarbox.sources.source import Source
from pillarbox.spark.function import use_driver_python
from pillarbox.spark.source.data_source import LOADED, PillarboxSource
from pillarbox.spark.source.driver import DriverReads
from pillarbox.spark.source.named import CONNECTORS, AllowedSources, AnySource, Registered

SERVICE = "reads"

_lock = threading.Lock()
_own: SourceChannel | None = None
_services: weakref.WeakKeyDictionary[SourceChannel, DriverReads] = weakref.WeakKeyDictionary()


def register_source(
    spark: SparkSession,
    source: AnySource | type[AnySource] | Collection[str | type[AnySource]] | None = None,
    name: str | None = None,
    *,
    channel: SourceChannel | None = None,
) -> str:
    """Have `spark.read.format(name)` and `spark.readStream.format(name)` read `source`; gives the name.

    source: a source, which then takes no options of its own, so that its secrets are in no option; a class of
        sources, which is made from the options; or, for the format whose option `source` says which, a list
        of those that it may name: short names of connectors, classes, "module:Class". None stands for the
        connectors. Nothing else is imported, whatever the option says.
    name: by default "pillarbox" for a list and None, else the class's name in lower case, without "source" at
        its end.
    channel: where tasks ask this process for splits, started. By default one on this machine alone, if Spark
        runs here; on a cluster there is none unless you give one.

    With a channel, splits of batch reads are given out by need, while discovery goes on, and readers and
    enumerator can say events to each other. Without one they are dealt out when the read is planned. Streams
    have a channel of their own.

    On the driver; any thread. Raises TypeError or ValueError for a bad argument, and ValueError where the
    server of Spark Connect lacks a module that the source needs. The idea of a short name is
    Spark's own `DataSourceRegister`.
    """
    registered = _registered(source)
    if name is None:
        name = _default_name(registered)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name={name!r}: must be letters, digits and '_', a letter first")
    if channel is not None and not isinstance(channel, SourceChannel):
        raise TypeError(f"channel={channel!r}: must be a SourceChannel or None")
    use_driver_python(spark)
    registration = uuid.uuid4().hex
    service, handle = _service(spark, channel)
    members: dict[str, Any] = {
        "registered": registered,
        "registration": registration,
        "format_name": name,
        "parallelism": _parallelism(spark),
        "driver": handle,
    }
    if service is not None:
        service.register(registration, registered)
    try:
        spark.dataSource.register(type("RegisteredSource", (PillarboxSource,), members))
    except PySparkException as error:
        if service is not None:
            service.forget(registration)
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        raise ValueError(f"name={name!r}: Spark has a format of this name; give another") from None
    if _context(spark) is None:
        _check_server_loads(spark, name, registration)
    return name


def _check_server_loads(spark: SparkSession, name: str, registration: str) -> None:
    """Have the server of Spark Connect load what was registered: it may lack a module that is here."""
    try:
        _ = spark.read.format(name).option(LOADED, registration).load().schema
    except PySparkException as error:
        found = re.findall(r"(?m)^(?:ModuleNotFound|Import|Attribute)Error: .*$", str(error))
        if not found:
            raise
        raise ValueError(
            f"source of the format {name!r}: the server of Spark Connect cannot load it ({found[-1]}); "
            "install that there, or send it before register_source: "
            "spark.addArtifacts('<file>.py', pyfile=True), a package as a .zip"
        ) from None


def _registered(source: Any) -> Registered:
    if source is None:
        return AllowedSources(CONNECTORS)
    if isinstance(source, list | tuple | set | frozenset):
        return AllowedSources(source)
    if isinstance(source, Source) or (isinstance(source, type) and issubclass(source, Source)):
        return source
    raise TypeError(
        f"source={source!r}: must be a Source, a class of them, a list of what the option 'source' may name, "
        "or None"
    )


def _default_name(registered: Registered) -> str:
    if isinstance(registered, AllowedSources):
        return "pillarbox"
    kind = registered if isinstance(registered, type) else type(registered)
    return kind.__name__.lower().removesuffix("source")


def _service(
    spark: SparkSession, channel: SourceChannel | None
) -> tuple[DriverReads | None, ChannelHandle | None]:
    global _own
    with _lock:
        if channel is None:
            context = _context(spark)
            if context is None or not context.master.startswith("local"):
                return None, None
            if _own is None:
                _own = SourceChannel().start()
            channel = _own
        service = _services.get(channel)
        if service is None:
            service = DriverReads()
            channel.serve(SERVICE, service)
            _services[channel] = service
        return service, channel.handle(SERVICE)


def _context(spark: SparkSession) -> Any:
    """The session's SparkContext; None with Connect, which has none."""
    try:
        return spark.sparkContext
    except Exception:
        return None


def _parallelism(spark: SparkSession) -> int | None:
    context = _context(spark)
    return None if context is None else int(context.defaultParallelism)
