"""Which source a read is of: by a short name or "module:Class", made from Spark's options. Any process."""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa

from pillarbox.sources.source import Source
from pillarbox.spark.source.options import SourceOptions

CONNECTORS = {
    "files": "pillarbox.sources.connectors.files:FileSource",
    "generator": "pillarbox.sources.connectors.generator:GeneratorSource",
    "kafka": "pillarbox.sources.connectors.kafka:KafkaSource",
    "postgres": "pillarbox.sources.connectors.postgres:PostgresSource",
    "redis": "pillarbox.sources.connectors.redis_streams:RedisStreamSource",
}

AnySource = Source[Any, Any]


def source_class(name: str | None) -> type[AnySource]:
    """The class that the option `source` names. Raises ValueError for one that is none."""
    allowed = f"must be one of {', '.join(CONNECTORS)}, or 'module:Class'"
    if name is None:
        raise ValueError(f"option 'source' is missing: {allowed}")
    module, colon, path = CONNECTORS.get(name, name).partition(":")
    if not (module and colon and path):
        raise ValueError(f"option 'source' is {name!r}: {allowed}")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"option 'source' is {name!r}: {error}") from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise ValueError(f"option 'source' is {name!r}: is no class derived from pillarbox.sources.Source")
    return found


def make_source(
    given: AnySource | type[AnySource] | None, options: SourceOptions, schema: pa.Schema | None
) -> AnySource:
    """The source of a read.

    given: what was registered; None where the option `source` says it. Raises ValueError for bad options.
    """
    if isinstance(given, Source):
        left = [name for name in ("source", *options.rest) if name != "source" or options.source is not None]
        if left:
            raise ValueError(
                f"option {left[0]!r}: this source was made already and takes no options of its own"
            )
        return given
    if given is not None and options.source is not None:
        raise ValueError("option 'source': this name stands for a source already")
    kind = source_class(options.source) if given is None else given
    return kind.from_options(options.rest, schema)
