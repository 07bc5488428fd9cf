"""Which source a read is of: by a short name or "module:Class", made from Spark's options. Any process."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pillarbox.sources.source import Source
from pillarbox.spark.source.options import SourceOptions

CONNECTORS = {
    "files": "pillarbox.sources.connectors.files:FileSource",
    "generator": "pillarbox.sources.connectors.generator:GeneratorSource",
    "kafka": "pillarbox.sources.connectors.kafka:KafkaSource",
    "redis": "pillarbox.sources.connectors.redis_streams:RedisStreamSource",
}

_REMOVED = {
    "postgres": "Pillarbox has no connector for PostgreSQL any more: read a table with spark.read.jdbc, and "
    "its changes through Debezium and Kafka; docs/tables.md shows both",
}

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

AnySource = Source[Any, Any]


class AllowedSources:
    """The sources that the option `source` may name: nothing else is imported. A plain value that pickles.

    given: short names of connectors, classes of sources, which are named "module:Class", and such names. What
    a name stands for is imported when a read asks for it. Raises TypeError or ValueError for what is neither.
    """

    def __init__(self, given: Iterable[str | type[AnySource]]) -> None:
        self._found: dict[str, str | type[AnySource]] = {}
        for each in given:
            if isinstance(each, str) and each in _REMOVED:
                raise ValueError(f"source=[{each!r}]: {_REMOVED[each]}")
            if isinstance(each, type) and issubclass(each, Source):
                self._found[f"{each.__module__}:{each.__qualname__}"] = each
            elif isinstance(each, str) and (each in CONNECTORS or _NAME.fullmatch(each)):
                self._found[each] = CONNECTORS.get(each, each)
            else:
                kind = ValueError if isinstance(each, str) else TypeError
                raise kind(
                    f"source=[{each!r}]: must be a class of sources, its name 'module:Class', or one of "
                    + ", ".join(CONNECTORS)
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
            if name in _REMOVED:
                raise ValueError(f"option 'source' is {name!r}: {_REMOVED[name]}")
            # Whoever may write SQL may write this, and an import runs what is imported.
            raise ValueError(
                f"option 'source' is {name!r}: {allowed}. Whoever registers the format may allow others: "
                "register_source(spark, [...]) with a list of what this option may name"
            )
        if isinstance(found, str):
            module, _, path = found.partition(":")
            try:
                found = importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ValueError(f"option 'source' is {name!r}: {error}") from error
            for part in path.split("."):
                found = getattr(found, part, None)
        if not (isinstance(found, type) and issubclass(found, Source)):
            raise ValueError(
                f"option 'source' is {name!r}: is no class derived from pillarbox.sources.Source"
            )
        return found


Registered = AnySource | type[AnySource] | AllowedSources


def make_source(given: Registered, options: SourceOptions, schema: pa.Schema | None) -> AnySource:
    """The source of a read.

    given: what was registered; what is allowed where the option `source` says it.
    Raises ValueError for bad options.
    """
    if isinstance(given, AllowedSources):
        given = given.source_class(options.source)
    elif options.source is not None:
        raise ValueError("option 'source': this name stands for a source already")
    if not isinstance(given, Source):
        return given.from_options(options.rest, schema)
    if options.rest:
        name = next(iter(options.rest))
        raise ValueError(f"option {name!r}: this source was made already and takes no options of its own")
    return given
