"""A part of a file: `FileSplit`, a plain value, and how it is written down. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox.sources.split import Split

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource

END = 2**63 - 1
"""A `stop` behind the end of every file: for what is read to its end, wherever that is."""


@dataclass(frozen=True)
class FileSplit(Split):
    """A part of a file, from position `start` up to `stop`.

    Positions are bytes in text, after decompression, and rows in Parquet. In text `start` and `stop` need not
    be at a line's edge: the lines are read that *begin* between them. So any cuts read each line once.
    """

    path: str = ""
    size: int = 0
    """Bytes of the file when it was found."""
    modified: int = 0
    """When it had been modified then, in nanoseconds since 1970."""
    weight: float | None = None
    """Bytes for one position; None if unknown."""
    by_rows: bool = False
    """Whether positions are rows."""
    counted: int | None = None
    """Rows from `start` to `stop`, where somebody has counted them; of text the lines, empty ones too."""

    @property
    def rows(self) -> int | None:
        """Exact in Parquet, where the end is known; of text, what was counted, or None."""
        if self.counted is not None:
            return self.counted
        return int(self.stop - self.start) if self.by_rows and self.stop != END else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the file that it takes, about."""
        count = self.rows if self.by_rows else self.stop - self.start
        return self.size if self.weight is None or count is None else round(count * self.weight)

    @property
    def files(self) -> int:
        """1 for the front of a file, so that a file counts once."""
        return int(self.start == 0)

    def starting_at(self, position: Any) -> FileSplit:
        """The rest of it, which nobody has counted."""
        return replace(self, start=position, counted=None)

    def up_to(self, position: Any) -> FileSplit:
        """The front of it, which nobody has counted."""
        return replace(self, stop=position, counted=None)


class FileSplitSerializer:
    """Writes splits of `source` down, by names relative to what it lists. Thread-safe.

    A list of them goes into the folder of `state=`, if there is one and it is long.
    """

    version = 2

    def __init__(self, source: FileSource) -> None:
        self._source = source

    def to_json(self, split: FileSplit) -> Any:
        """A list, as an offset has thousands."""
        name, begin = self._source.relative(split.path), split.split_id.rpartition("+")[2]
        rest = (
            split.start,
            split.stop,
            split.size,
            split.modified,
            split.weight,
            split.by_rows,
            split.counted,
        )
        return [name, int(begin), *rest]

    def from_json(self, version: int, written: Any) -> FileSplit:
        """What `to_json` has written. Raises ValueError for another version, or what it has not."""
        if version != self.version:
            raise ValueError(
                f"version={version!r}: FileSplit reads version {self.version}: begin a new checkpoint"
            )
        try:
            name, begin, start, stop, *rest = written
            size, modified, weight, by_rows, counted = rest
            path = self._source.absolute(name)
            return FileSplit(
                f"{name}+{begin}", start, stop, path, size, modified, weight, bool(by_rows), counted
            )
        except (TypeError, ValueError, AttributeError):
            raise ValueError(f"written={written!r}: must be what FileSplit was written as") from None

    def list_to_json(self, splits: Sequence[FileSplit]) -> Any:
        """The splits of an offset. May block; raises OSError."""
        written = [self.to_json(split) for split in splits]
        folder = self._source.state_folder
        return written if folder is None else folder.put_list(written)

    def list_from_json(self, version: int, written: Any) -> list[FileSplit]:
        """What `list_to_json` has written. May block; raises ValueError, OSError."""
        folder = self._source.state_folder
        if folder is not None:
            written = folder.get_list(written)
        elif not isinstance(written, list):
            raise ValueError(
                "state=None: the checkpoint has a list of files in a folder: give state=, that folder"
            )
        return [self.from_json(version, each) for each in written]
