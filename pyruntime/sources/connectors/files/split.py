"""A part of a file: `FileSplit`, a plain value, and how it is written down. Any thread."""

from __future__ import annotations

import json
import lzma
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pillarbox.sources.split import Split

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource

END = 2**63 - 1
"""A `stop` behind the end of every file: for what is read to its end, wherever that is."""
MAX_INLINE_CHARS = 400
"""Characters of a list of splits that stands in the offset as it is."""


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
    """The time of its last modification then, in nanoseconds since 1970."""
    weight: float | None = None
    """Bytes of the file for a row, where positions are rows and somebody has looked."""
    counted: int | None = None
    """Rows from `start` to `stop`, where somebody has counted them; of text the lines, empty ones too."""
    in_offset: bool = field(default=False, compare=False)
    """True where a stream's offset says that this is read: whoever fails for it fails again at each start."""

    @property
    def rows(self) -> int | None:
        """Exact in Parquet, where the end is known; of text, what was counted, or None."""
        known = self.weight is not None and self.stop != END
        return int(self.stop - self.start) if self.counted is None and known else self.counted

    @property
    def nbytes(self) -> int | None:
        """Bytes of the file that it takes, about."""
        if self.weight is not None and self.rows is not None:
            return round(self.rows * self.weight)
        return self.size if self.stop == END else int(self.stop - self.start)

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

    def part(self, start: int, stop: int, weight: float | None = None) -> FileSplit:
        """The part from `start` to `stop` of this file, which is whole."""
        return replace(self, split_id=f"{self.split_id}+{start}", start=start, stop=stop, weight=weight)


class FileSplitSerializer:
    """Writes splits of `source` down, by names relative to what it lists. Thread-safe.

    A long list of them goes into the folder of `state=`, if there is one; else it is compressed.
    """

    version = 3

    def __init__(self, source: FileSource) -> None:
        self._source = source

    def to_json(self, split: FileSplit) -> Any:
        """A list, as an offset has thousands."""
        name, begin = self._source.relative(split.path), int(split.split_id.rpartition("+")[2])
        return [name, begin, split.start, split.stop, split.size, split.modified, split.weight, split.counted]

    def from_json(self, version: int, written: Any, in_offset: bool = False) -> FileSplit:
        """Return what `to_json` has written. Raises ValueError for another version, or what it has not."""
        if version != self.version:
            raise ValueError(
                f"version={version!r}: FileSplit reads version {self.version}: begin a new checkpoint"
            )
        try:
            name, begin, start, stop, *rest = written
            path = self._source.absolute(name)
            size, modified, weight, counted = rest
            return FileSplit(f"{name}+{begin}", start, stop, path, size, modified, weight, counted, in_offset)
        except (TypeError, ValueError, AttributeError):
            raise ValueError(f"written={written!r}: must be what FileSplit was written as") from None

    def list_to_json(self, splits: Sequence[FileSplit]) -> Any:
        """The splits of an offset. May block; raises OSError."""
        written = [self.to_json(split) for split in splits]
        text = json.dumps(written, separators=(",", ":"))
        if len(text) <= MAX_INLINE_CHARS:
            return written
        folder = self._source.state_folder
        if folder is not None:
            return {"list": folder.put_list(text.encode())}
        # Column by column: names are alike, and so are times.
        columns = json.dumps([*zip(*written, strict=True)], separators=(",", ":"))
        return {"packed": b64encode(lzma.compress(columns.encode())).decode()}

    def list_from_json(self, version: int, written: Any) -> list[FileSplit]:
        """Return what `list_to_json` has written. May block; raises ValueError, OSError."""
        if isinstance(written, dict) and "list" in written:
            folder = self._source.state_folder
            if folder is None:
                raise ValueError(
                    "state=None: the checkpoint has a list of files in a folder: give state=, that folder"
                )
            written = json.loads(folder.get_list(written["list"]))
        elif isinstance(written, dict):
            columns = json.loads(lzma.decompress(b64decode(written["packed"])))
            written = [*zip(*columns, strict=True)]
        return [self.from_json(version, each, in_offset=True) for each in written]
