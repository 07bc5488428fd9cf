"""Serializers of splits, checkpoints and states: JSON with a version. Any thread.

The idea is Flink's `SimpleVersionedSerializer`; here what is written is JSON, as Spark's offsets are.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


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
    """For values that are what JSON can hold already. Version 1. Thread-safe."""

    version = 1

    def to_json(self, value: Any) -> Any:
        """The value itself."""
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

    def to_json(self, value: T) -> Any:
        """The fields that differ from nothing: those that are None are left out."""
        # Not `asdict`, which copies what is inside: thirteen times slower, and an offset has thousands.
        return {name: each for name in self._fields if (each := getattr(value, name)) is not None}

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


class ExactJsonSerializer(JsonSerializer):
    """For values that JSON holds and gives back as they are. Version 1. Thread-safe."""

    def to_json(self, value: Any) -> Any:
        """The value itself. Raises TypeError for a tuple, a date, or whatever else JSON has no form for."""
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise TypeError(
                f"{value!r:.200}: JSON cannot hold it and give it back as it is; it can hold None, bool, "
                "int, float, str, and lists and dicts (with keys of str) of these. For another type give a "
                "serializer, as in serializer=DataclassSerializer(State)"
            )
        return value
