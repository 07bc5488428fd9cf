"""The options that Pillarbox itself reads in `spark.read` and `spark.readStream`. Pure; any thread.

What is left belongs to the source. Option names are in lower case, as Spark hands them over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.spark.source.admission import DEFAULT_MAX_FILES

T = TypeVar("T", int, float)

LARGEST = 2**63

_REDACTED = re.compile(r"secret|password|token|access[.]?key|url", re.IGNORECASE)
"""Names whose values Spark hides in plans (`spark.redaction.regex`, `spark.sql.redaction.options.regex`)."""
_PASSWORD = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|password[\"']?\s*[:=]|\bpwd\s*=|secret[_.-]?(access[_.-]?)?key[\"']?\s*[:=]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SourceOptions:
    """What Pillarbox reads of the options of one read. A plain value.

    source: the name of a connector, or of another source that is allowed. partitions: the most tasks of a
    read, or of a micro-batch. min_partitions: slices of a micro-batch are cut until there are so many, where
    they can be. limit: what a micro-batch may read. watermarks: how splits are aligned, None if they are not.
    host, port and advertise: where the channel of a stream listens, and the name that tasks reach it by.
    rest: the options of the source itself.
    """

    source: str | None
    partitions: int | None
    min_partitions: int | None
    limit: ReadLimit
    watermarks: WatermarkStrategy | None
    host: str
    port: int
    advertise: str | None
    rest: dict[str, str]


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Read what is Pillarbox's. Raises ValueError that names the option and its value.

    Refused is a value with a password in it under a name that Spark does not hide: its plans would show it.
    """
    rest = {name.lower(): value for name, value in options.items()}
    for name, value in rest.items():
        if _PASSWORD.search(value) and not _REDACTED.search(name):
            raise ValueError(
                f"option {name!r} holds a password, and Spark's plans would show it: Spark hides the "
                "values of options whose names have 'secret', 'password', 'token', 'access.key' or 'url' in "
                "them; or give the source itself to pillarbox.spark.register_source"
            )
    host = rest.pop("channel.host", "127.0.0.1")
    return SourceOptions(
        source=rest.pop("source", None),
        partitions=_number(rest, "partitions", int, 1),
        min_partitions=_number(rest, "min_partitions", int, 1),
        limit=ReadLimit(
            rows=_number(rest, "max_rows", int, 1),
            nbytes=_number(rest, "max_bytes", int, 1),
            files=_number(rest, "max_files", int, 1) or DEFAULT_MAX_FILES,
        ),
        watermarks=_watermarks(rest),
        host=host,
        port=_number(rest, "channel.port", int, 0) or 0,
        advertise=rest.pop("channel.advertise", None),
        rest=rest,
    )


def _watermarks(rest: dict[str, str]) -> WatermarkStrategy | None:
    timestamp = rest.pop("timestamp", None)
    out_of_order = _number(rest, "out_of_order", float, 0)
    idle_after = _number(rest, "idle_after", float, 0)
    max_drift = _number(rest, "max_drift", float, 0)
    if max_drift is None:
        given = (("timestamp", timestamp), ("out_of_order", out_of_order), ("idle_after", idle_after))
        for name, value in given:
            if value is not None:
                raise ValueError(f"option {name!r} is for splits that are aligned: give 'max_drift' too")
        return None
    return WatermarkStrategy(timestamp, out_of_order or 0.0, idle_after, max_drift)


def _number(rest: dict[str, str], name: str, kind: Callable[[str], T], least: int) -> T | None:
    given = rest.pop(name, None)
    if given is None:
        return None
    try:
        value = kind(given)
    except ValueError:
        value = None
    if value is None or not -LARGEST < value < LARGEST or value < least:
        what = "a whole number" if kind is int else "a number of seconds"
        raise ValueError(f"option {name!r} is {given!r}: must be {what}, at least {least}")
    return value
