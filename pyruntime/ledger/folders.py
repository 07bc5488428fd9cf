"""The interface of the folder of one scope, wherever it lies: on a file system, or in an object store.

Any thread. Methods raise LedgerError and OSError. What locks, leases and logs of commits need has
`LocalFolder` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from pillarbox.ledger.local_folder import Segment


class OpenSegment(Protocol):
    """A segment that is written. For one thread."""

    end: int

    def append(self, *parts: bytes | memoryview) -> None:
        """Write parts at the end, one after another."""

    def sync(self) -> None:
        """Wait until what was appended is durable."""

    def close(self) -> None:
        """Let others merge it."""


class Folder(Protocol):
    """The segments of one scope, and the small files beside them."""

    path: str

    @property
    def appends(self) -> bool:
        """True if a segment takes several commits."""

    def make(self) -> None:
        """Make the folder, where there are any."""

    def exists(self) -> bool:
        """Return True if there may be anything in it."""

    def check_writable(self) -> None:
        """Raise LedgerError unless something can be written here and deleted."""

    def names(self) -> list[str]:
        """The names of all files; empty if there is no folder."""

    def leaves(self) -> list[str]:
        """The paths below this one of the folders that have files, in no order."""

    def segments(self) -> list[Segment]:
        """All segments, in the order in which their records count."""

    def is_open(self, name: str) -> bool:
        """Return True while somebody may write into a segment."""

    def changed(self, name: str) -> float:
        """Seconds since 1970 at which a file was written last. Raises FileNotFoundError."""

    def size(self, name: str) -> int:
        """Bytes of a file. Raises FileNotFoundError."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file, fewer at its end. Raises FileNotFoundError."""

    def read_whole(self, name: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError."""

    def sync(self, name: str) -> None:
        """Wait until a file, which another process may have written, is durable."""

    def create(self, name: str, header: bytes) -> OpenSegment:
        """Begin a segment."""

    def publish(self, part: str, name: str) -> None:
        """Give a finished segment its name."""

    def put(self, name: str, content: bytes) -> None:
        """Store a small file."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def remove_folder(self, timeout: float, is_own: Callable[[str, int], bool]) -> tuple[int, list[str]]:
        """Delete what is the ledger's; returns the bytes of segments, and the names of what was left."""

    def lock(self, timeout: float, name: str = ...) -> AbstractContextManager[int]:
        """Keep other commits out, where there are locks; gives the file of the lock, or -1."""

    def close(self) -> None:
        """Let go of what is held for reading."""
