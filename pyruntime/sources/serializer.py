"""Serializers of splits and checkpoints: JSON with a version. Any thread.

The idea is Flink's `SimpleVersionedSerializer`; here what is written is JSON, as Spark's offsets are. What
comes from a user's code, as states of old sources do, is written with the name of its serializer. A pickle
runs what it says: it is read only by who has asked for pickles, and only if who has written it knew the key.
"""

from __future__ import annotations

import base64
import hmac
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

MIN_KEY_BYTES = 16


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
                "int, float, str, and lists and dicts (with keys of str) of these. For another type register "
                "a serializer and name it, as in register_serializer('my.State', DataclassSerializer(State)) "
                "and serializer='my.State'"
            )
        return value


class PickleSerializer(JsonSerializer):
    """Writes pickles with a code (HMAC-SHA256), and unpickles nothing whose code is not right. Thread-safe.

    For what has no other form. key: at least 16 bytes that only the job knows; or a function that gives them,
    called in each process, for a key that shall not travel with the source. It is in no text and in no
    checkpoint. Raises TypeError or ValueError for another key.
    """

    def __init__(self, key: bytes | Callable[[], bytes]) -> None:
        if not callable(key):
            _check_key(key)
        self._key = key

    def to_json(self, value: Any) -> Any:
        """The pickle and its code."""
        pickled = pickle.dumps(value)
        return {"pickle": base64.b64encode(pickled).decode(), "code": self._code(pickled)}

    def from_json(self, version: int, written: Any) -> Any:
        """The value. Raises ValueError, with nothing unpickled, unless it was written with this key."""
        super().from_json(version, written)
        try:
            pickled, code = base64.b64decode(written["pickle"], validate=True), written["code"].encode()
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(f"written={written!r:.200}: must be a pickle and its code") from None
        if not hmac.compare_digest(code, self._code(pickled).encode()):
            raise ValueError(
                "a pickle in a checkpoint does not have the code that this key gives, and was not read: it "
                "was written with another key, or by someone who may write the folder but has no key"
            )
        return pickle.loads(pickled)

    def _code(self, pickled: bytes) -> str:
        key = _check_key(self._key() if callable(self._key) else self._key)
        return hmac.digest(key, b"pillarbox pickle 1\0" + pickled, "sha256").hex()


def _check_key(key: Any) -> bytes:
    if not isinstance(key, bytes):
        raise TypeError(f"key: must be bytes, or a function that gives bytes, not {type(key).__name__}")
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"key: must have at least {MIN_KEY_BYTES} bytes, and has {len(key)}")
    return key


@dataclass(frozen=True)
class NamedSerializer:
    """A serializer whose name stands with what it has written. Thread-safe; pickles with the serializer."""

    name: str
    serializer: Serializer[Any]

    def write(self, value: Any) -> Any:
        """The value as what JSON can hold."""
        written = self.serializer.to_json(value)
        return {"serializer": self.name, "version": self.serializer.version, "value": written}

    def read(self, written: Any) -> Any:
        """The value. Raises ValueError, with nothing read, for what another serializer has written."""
        by = written.get("serializer") if isinstance(written, dict) else None
        if by != self.name:
            raise ValueError(
                f"serializer={self.name!r}: what the checkpoint holds was written by {by!r}, and was not "
                "read: give the source that serializer, or begin with a new checkpoint"
            )
        return self.serializer.from_json(written.get("version"), written.get("value"))


_registered: dict[str, Serializer[Any]] = {"json": ExactJsonSerializer()}


def register_serializer(name: str, serializer: Serializer[Any]) -> None:
    """Have `serializer=name` mean this one. Any thread, before the source is made.

    The name stands in checkpoints, so it must stay. The serializer travels with the source: it must pickle.
    Raises ValueError for "json", "pickle" and what is not a name.
    """
    if not isinstance(name, str) or name in ("", "json", "pickle"):
        raise ValueError(f'name={name!r}: must be a str that is not empty, and neither "json" nor "pickle"')
    _registered[name] = serializer


def named_serializer(given: str | PickleSerializer) -> NamedSerializer:
    """The serializer of that name, or the one for pickles. Raises ValueError for another. Any thread."""
    if isinstance(given, PickleSerializer):
        return NamedSerializer("pickle", given)
    if not isinstance(given, str) or given not in _registered:
        raise ValueError(
            f"serializer={given!r}: must be {', '.join(map(repr, _registered))}, another name that "
            "register_serializer was given before, or PickleSerializer(key)"
        )
    return NamedSerializer(given, _registered[given])
