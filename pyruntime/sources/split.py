"""A split: the part of a source that one reader reads; lost data; and how splits and states are written down.

The ideas are Flink's `SourceSplit` (FLIP-27) and `SimpleVersionedSerializer`. Here a split says from where to
where, so that one shape serves a range of a file, a partition of a log, and the piece of it that a
micro-batch reads; and what is written is JSON with a version, as Spark's offsets are. Any thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.kernel import PillarboxError


class DataLossError(PillarboxError):
    """Data that was to be read is gone: expired, trimmed or deleted before it was read. The text says which.

    Raised in a task it is the `__cause__` of a `ReadFailed`. Connectors that can go on without take
    `on_data_loss="ignore"`.
    """


S = TypeVar("S", bound="Split")


@dataclass(frozen=True)
class Split:
    """Part of a source. Derive a frozen dataclass from it for further information that a reader needs.

        >>> from dataclasses import dataclass
        >>> from pillarbox.sources import Split
        >>> @dataclass(frozen=True)
        ... class Page(Split):
        ...     table: str = ""
        >>> Page("orders-1", 0, 100, table="orders").starting_at(40)
        Page(split_id='orders-1', start=40, stop=100, table='orders')

    Fields hold JSON values: None, bool, int, float, str, and lists and dicts of these, unless the source has
    its own serializer. Secrets belong into the source, not here: splits are written into checkpoints. A
    value; any thread may use it.
    """

    split_id: str
    """Names the part, whatever its positions are. Unique in the source, and the same after a restart."""
    start: Any = None
    """The position to read from; None is the beginning."""
    stop: Any = None
    """The position to read up to, itself excluded; None where there is no end, or only the reader knows."""

    @property
    def rows(self) -> int | None:
        """Rows from `start` to `stop`, approximately; None if unknown."""
        return None

    @property
    def nbytes(self) -> int | None:
        """Bytes from `start` to `stop`, approximately; None if unknown."""
        return None

    @property
    def files(self) -> int:
        """The number of files that it counts for in `max_files`."""
        return 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the machines near its data."""
        return ()

    def starting_at(self: S, position: Any) -> S:
        """Return the rest of it, from `position` on."""
        return replace(self, start=position)

    def up_to(self: S, position: Any) -> S:
        """Return the front of it, up to `position`."""
        return replace(self, stop=position)


@dataclass(frozen=True)
class OffsetSplit(Split):
    """Split whose positions are integers, each of one row at most: offsets, ids, row numbers.

        >>> from pillarbox.sources.split import OffsetSplit
        >>> split = OffsetSplit("part-1", 10, 25)
        >>> split.rows, split.up_to(20).rows
        (15, 10)

    A value; any thread may use it.
    """

    start: int = 0

    @property
    def rows(self) -> int | None:
        """At most so many, as numbers may be missing."""
        return None if self.stop is None else max(0, int(self.stop) - self.start)


# -- serializers ------------------------------------------------------------------------------------

T = TypeVar("T")

JSON_SCALARS = frozenset({int, str, bool, type(None)})


def is_json(value: object) -> bool:
    """Return True if JSON gives `value` back as it is. Any thread."""
    if type(value) in JSON_SCALARS:
        return True
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(is_json, value))
    return isinstance(value, dict) and all(
        type(name) is str and is_json(each) for name, each in value.items()
    )


class Serializer(Protocol[T]):
    """Writes a value as JSON, and reads what earlier versions of it have written. Thread-safe."""

    @property
    def version(self) -> int:
        """The version that `to_json` writes; it counts from 1."""

    def to_json(self, value: T) -> Any:
        """The value as what JSON can hold."""

    def from_json(self, version: int, written: Any) -> T:
        """The value that `to_json` of that version has written. Raises ValueError for what it has not."""


class JsonSerializer:
    """For values that JSON holds and gives back as they are. Version 1. Thread-safe."""

    version = 1

    def to_json(self, value: Any) -> Any:
        """The value itself. Raises TypeError for a tuple, a date, or whatever else JSON has no form for."""
        if not is_json(value):
            raise TypeError(
                f"{value!r:.200}: JSON cannot hold it and give it back as it is; it can hold None, bool, "
                "int, float, str, and lists and dicts (with keys of str) of these. For another type give a "
                "serializer, as in serializer=DataclassSerializer(State)"
            )
        return value

    def from_json(self, version: int, written: Any) -> Any:
        """The value itself. Raises ValueError for another version."""
        if version != self.version:
            raise ValueError(f"version={version!r}: this reads version {self.version}")
        return written


class DataclassSerializer(JsonSerializer, Generic[T]):
    """The serializer of a dataclass whose fields hold what JSON can. Thread-safe.

    Version 1; a field that is added later needs a default. Raises TypeError for what is not a dataclass.
    """

    def __init__(self, kind: type[T]) -> None:
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise TypeError(f"kind={kind!r}: must be a dataclass")
        self._kind = kind
        self._fields = tuple(field.name for field in fields(kind) if field.init)
        self._omitted = {field.name for field in fields(kind) if field.default is None}

    def to_json(self, value: T) -> Any:
        """The fields; without those that are None, as they are by default."""
        # Not `asdict`, which copies what is inside: thirteen times slower, and an offset has thousands.
        return {
            name: each
            for name in self._fields
            if (each := getattr(value, name)) is not None or name not in self._omitted
        }

    def from_json(self, version: int, written: Any) -> T:
        """The value with these fields. Raises ValueError for another version or unknown fields."""
        super().from_json(version, written)
        if not isinstance(written, dict) or not written.keys() <= set(self._fields):
            raise ValueError(
                f"written={written!r}: must hold fields of {self._kind.__name__}, {self._fields}"
            )
        try:
            return self._kind(**written)
        except TypeError as error:
            raise ValueError(f"written={written!r}: no {self._kind.__name__}: {error}") from None
