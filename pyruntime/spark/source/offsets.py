"""The offsets of a stream: versioned JSON that says by itself what a micro-batch reads. Pure; any thread.

Spark writes an offset into its log before it runs the micro-batch that ends there. So a micro-batch that is
run again after a crash, by another process or with other parallelism, reads the same ranges: they stand in
the offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pillarbox.sources.source import Source
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)
C = TypeVar("C")

VERSION = 1

Json = dict[str, Any]


@dataclass(frozen=True)
class Offset(Generic[S, C]):
    """The place of a stream after some micro-batches. A plain value.

    number: how many micro-batches lie before it; with 0 nothing is known yet, and nothing else is written.
    checkpoint: what the enumerator knows. splits: those that are not finished, each starting where the next
    read begins, those that have waited longest first. slices: what is read between the offset before this
    one and this one.
    """

    number: int = 0
    checkpoint: C | None = None
    splits: tuple[S, ...] = ()
    slices: tuple[S, ...] = ()

    def positions(self) -> dict[str, Any]:
        """The position up to which each split has been read, by its id."""
        found = {split.split_id: split.start for split in self.splits if split.start is not None}
        return found | {split.split_id: split.stop for split in self.slices}


class OffsetCodec(Generic[S, C]):
    """Writes the offsets of a source as JSON, and reads them. Thread-safe."""

    def __init__(self, source: Source[S, C]) -> None:
        self._splits = source.split_serializer
        self._checkpoints = source.checkpoint_serializer

    def to_json(self, offset: Offset[S, C]) -> Json:
        """As the offset log holds it."""
        if offset.number == 0:
            return {"version": VERSION, "number": 0}
        return {
            "version": VERSION,
            "number": offset.number,
            "enumerator": {
                "version": self._checkpoints.version,
                "checkpoint": self._checkpoints.to_json(cast("C", offset.checkpoint)),
            },
            "split_version": self._splits.version,
            "splits": self._write(offset.splits),
            "slices": self._write(offset.slices),
        }

    def from_json(self, written: Json) -> Offset[S, C]:
        """Read what `to_json` has written. Raises ValueError for what it has not."""
        number = number_of(written)
        if number == 0:
            return Offset()
        kept = written["enumerator"]
        return Offset(
            number=number,
            checkpoint=self._checkpoints.from_json(kept["version"], kept["checkpoint"]),
            splits=self._read(written, "splits"),
            slices=self._read(written, "slices"),
        )

    def slices(self, start: Json, end: Json) -> tuple[S, ...]:
        """Give what is read from `start` to `end`: what `end` says, and nothing else.

        Raises ValueError unless the one follows the other, or is the same.
        """
        begun, number = number_of(start), number_of(end)
        if begun == number:
            return ()
        if number != begun + 1:
            raise ValueError(
                f"a micro-batch from offset {begun} to {number}: must be from one offset to the next. Has "
                "the checkpoint folder been changed?"
            )
        return self._read(end, "slices")

    def _write(self, splits: tuple[S, ...]) -> Any:
        # A source with a place of its own for long lists says so.
        write_list = getattr(self._splits, "list_to_json", None)
        return [self._splits.to_json(split) for split in splits] if write_list is None else write_list(splits)

    def _read(self, written: Json, name: str) -> tuple[S, ...]:
        read, split_version = self._splits.from_json, written["split_version"]
        read_list = getattr(self._splits, "list_from_json", None)
        if read_list is not None:
            return tuple(read_list(split_version, written[name]))
        return tuple(read(split_version, each) for each in written[name])


def number_of(written: Json) -> int:
    """Give the number of an offset. Raises ValueError for what is none of Pillarbox."""
    if not isinstance(written, dict) or not isinstance(written.get("number"), int):
        raise ValueError(
            "the checkpoint folder holds an offset that is not one of Pillarbox: was the folder that of "
            "another source?"
        )
    version = written.get("version")
    if version != VERSION:
        raise ValueError(f"offset of version {version!r}: this Pillarbox reads version {VERSION}")
    number: int = written["number"]
    return number
