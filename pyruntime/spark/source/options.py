"""One read of a source as Spark's options say it: `Read`. Any process; pure, but for the import of a source.

Option names are in lower case, as Spark hands them over. What Pillarbox does not read itself belongs to the
source. Spark wants what a data source gives in exactly the Arrow types that it has for a schema itself.
"""

# Two things are refused here that would work. A password in an option: Spark prints options with the plan, in
# its UI and its event log, and hides them by their names only. And a source by any name that can be imported:
# who may write SQL may write options, so `source` would be a way to run whatever is installed; the list of
# what it may name belongs to who registers the format, in Python.
#
# Unsigned numbers take the next larger type, since Spark has none: the upper half of them has no place in the
# type of the same size.

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.source import Source
from pillarbox.spark.schema import arrow_field

AnySource = Source[Any, Any]

CONNECTORS = {
    "files": "pillarbox.sources.connectors.files:FileSource",
    "generator": "pillarbox.sources.connectors.generator:GeneratorSource",
    "kafka": "pillarbox.sources.connectors.kafka:KafkaSource",
    "redis": "pillarbox.sources.connectors.redis_streams:RedisStreamSource",
}

DEFAULT_MAX_FILES = 10_000
"""Files of a micro-batch where no option says how many: its plan stands in the offset, and in its tasks."""
LARGEST = 2**63

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_REDACTED = re.compile(r"secret|password|token|access[.]?key|url", re.IGNORECASE)
"""Names whose values Spark hides in plans (`spark.redaction.regex`, `spark.sql.redaction.options.regex`)."""
_PASSWORD = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|password[\"']?\s*[:=]|\bpwd\s*=|secret[_.-]?(access[_.-]?)?key[\"']?\s*[:=]",
    re.IGNORECASE,
)
_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


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
                why = "must be a class of sources, its name 'module:Class', or one of " + ", ".join(
                    CONNECTORS
                )
                kind = ValueError if isinstance(each, str) else TypeError
                raise kind(f"source=[{each!r}]: {why}")
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
            why = (
                f"{allowed}. Whoever registers the format may allow others: register_source(spark, [...]) "
                "with a list of what this option may name"
            )
            raise ValueError(f"option 'source' is {name!r}: {why}")
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
            source=_make_source(registered, rest.pop("source", None), rest, schema),
        )


def _make_source(
    given: Registered, name: str | None, options: dict[str, str], schema: pa.Schema | None
) -> AnySource:
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
            spark = from_arrow_type(_UNSIGNED.get(kind, kind), prefer_timestamp_ntz=True)
        except Exception as error:
            raise TypeError(f"column {column.name!r}: Spark has no type for {column.type}: {error}") from None
        fields.append(StructField(column.name, spark, column.nullable))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark wants the rows of `schema`."""
    return pa.schema([arrow_field(column) for column in schema])
