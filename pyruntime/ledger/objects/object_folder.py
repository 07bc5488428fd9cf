"""The folder of one scope in an object store, or in whatever `pyarrow.fs` reaches: an object a commit.

Objects appear whole or not at all, cannot be appended to, and nothing can be locked. Thread-safe.
"""

# What an object store lacks, and what stands in for it. Nothing can be appended to an object, so each commit
# is one; a multipart upload that is held open would be seen by nobody until its end, and be lost with its
# writer. Nothing can be locked, and `pyarrow.fs` has no conditional put: so two attempts of a task that run
# at the same time may both call, and both keep their answers. Each later reader takes the first by the
# store's clock, and all of them the same; only who pays is not decided here
# (docs/decisions/ledger-format.md).
#
# Blocks of 8 MiB are fetched, one is held: a scan goes forward through one object after the other, and a
# cache of several would hold what is not asked for again.

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.local_folder import OWN_NAME, PART, SEGMENT_NAME, SUFFIX, Segment

BLOCK_BYTES = 8 * 2**20
"""Bytes that are fetched at a time: a request costs more than the bytes of a small object."""


MAX_LISTING_TRIES = 10
"""Tries to list a folder that others make or delete at the same time."""


def list_folder(filesystem: Any, path: str, *, recursive: bool = False) -> list[Any]:
    """Return what Arrow knows of each object in a folder; nothing if there is no folder. Raises OSError.

    Arrow opens a folder and, if it is not there, looks a second time: one that another has made in between
    is an error for it.
    """
    from pyarrow import fs

    selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
    for _ in range(MAX_LISTING_TRIES - 1):
        try:
            return list(filesystem.get_file_info(selector))
        except FileNotFoundError:
            continue
    return list(filesystem.get_file_info(selector))


class ObjectSegment:
    """One commit, on its way to the store. For one thread."""

    def __init__(self, folder: ObjectFolder, name: str, header: bytes) -> None:
        self._folder = folder
        self._name = name
        self._parts: list[bytes | memoryview] = [header]
        self.end = len(header)

    def append(self, *parts: bytes | memoryview) -> None:
        """Add to what will be sent."""
        self._parts += parts
        self.end += sum(map(len, parts))

    def sync(self) -> None:
        """Send it. Raises LedgerError, and leaves nothing that could be taken for an object."""
        self._folder.put(self._name, b"".join(self._parts))

    def close(self) -> None:
        """Nothing is held."""
        self._parts.clear()


class ObjectFolder:
    """The objects of one scope. Any thread. block_bytes: those that are fetched at a time."""

    appends = False

    def __init__(self, filesystem: Any, path: str, block_bytes: int = BLOCK_BYTES) -> None:
        self._files = filesystem
        self.path = path
        self._block_bytes = block_bytes
        # Where a name appears before its content is complete, the content comes first, under another name.
        self._renames = filesystem.type_name not in {"s3", "gcs", "abfs"}
        self._mutex = threading.Lock()
        self._block: tuple[str, int, bytes] = ("", 0, b"")

    def make(self) -> None:
        """Make the folder, where there are any."""
        if self._renames:
            self._files.create_dir(self.path, recursive=True)

    def names(self) -> list[str]:
        """The names of all objects of the folder. Empty if there is no folder."""
        found = list_folder(self._files, self.path)
        return [info.base_name for info in found if info.is_file and not info.base_name.endswith(PART)]

    def leaves(self) -> list[str]:
        """The paths below this one of the folders that have objects, in no order."""
        found = list_folder(self._files, self.path, recursive=True)
        paths = {info.path[len(self.path) + 1 :].rpartition("/")[0] for info in found if info.is_file}
        return list(paths)

    def check_writable(self) -> None:
        """Raise LedgerError unless an object can be written here and deleted."""
        self.make()
        # Several drivers may start at a time, and none removes what another has just written.
        name = f".probe-{secrets.token_hex(8)}"
        self.put(name, b"")
        self.remove(name)

    def segments(self) -> list[Segment]:
        """All of them, the oldest first by the store's clock: the first record of a key counts."""
        found = [
            (info.mtime_ns or 0, info.base_name, info.size)
            for info in list_folder(self._files, self.path)
            if info.is_file and info.base_name.endswith(SUFFIX)
        ]
        return [Segment(name, size, changed / 1e9) for changed, name, size in sorted(found)]

    def read_whole(self, name: str) -> bytes:
        """The content of a small object. Raises FileNotFoundError."""
        with self._files.open_input_file(self._join(name)) as file:
            content: bytes = file.readall()
            return content

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of an object, fewer at its end. Raises FileNotFoundError."""
        with self._mutex:
            held, begin, content = self._block
            if held != name or not begin <= offset <= offset + length <= begin + len(content):
                with self._files.open_input_file(self._join(name)) as file:
                    size = file.size()
                    content = file.read_at(max(0, min(max(length, self._block_bytes), size - offset)), offset)
                begin = offset
                self._block = name, begin, content
            return content[offset - begin :][:length]

    def size(self, name: str) -> int:
        """Bytes of an object. Raises FileNotFoundError."""
        info = self._files.get_file_info(self._join(name))
        if not info.is_file:
            raise FileNotFoundError(name)
        return int(info.size)

    def sync(self, name: str) -> None:
        """An object that is seen is durable."""

    def is_open(self, name: str) -> bool:
        """An object that is seen is complete."""
        return False

    def create(self, name: str, header: bytes) -> ObjectSegment:
        """A commit that is sent by its `sync`."""
        return ObjectSegment(self, name, header)

    def put(self, name: str, content: bytes) -> None:
        """Store an object. Raises LedgerError with the store's reason."""
        # A name of its own: two may store one object at a time.
        target = self._join(f".{secrets.token_hex(8)}{PART}" if self._renames else name)
        try:
            with self._files.open_output_stream(target) as stream:
                stream.write(content)
            if self._renames:
                self._files.move(target, self._join(name))
        except OSError as error:
            raise LedgerError(f"finished calls cannot be stored in {self.path}: {error}") from error

    def publish(self, part: str, name: str) -> None:
        """Give a finished object its name."""
        self._files.move(self._join(part), self._join(name))

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._files.delete_file(self._join(name))
        except FileNotFoundError:
            return

    def exists(self) -> bool:
        """Return True if there may be anything to delete."""
        return True

    def remove_folder(self, timeout: float, is_own: Callable[[str, int], bool]) -> tuple[int, list[str]]:
        """Delete every object of the ledger; returns the bytes of segments, and what was left.

        Several may try at a time. The names decide what is the ledger's, and not `is_own`: each object would
        have to be fetched.
        """
        freed = 0
        while True:
            found = list_folder(self._files, self.path)
            sizes = {info.base_name: info.size for info in found if info.is_file}
            names = [name for name in sizes if SEGMENT_NAME.fullmatch(name) or OWN_NAME.fullmatch(name)]
            if not names:
                return freed, sorted(sizes)
            # Until nothing is there: a merge at the same time gives a file another name.
            freed += sum(sizes[name] for name in names if name.endswith(SUFFIX))
            for name in names:
                self.remove(name)

    def changed(self, name: str) -> float:
        """Seconds since 1970 at which an object was stored, by the store's clock."""
        info = self._files.get_file_info(self._join(name))
        if not info.is_file:
            raise FileNotFoundError(name)
        return (info.mtime_ns or 0) / 1e9

    @contextmanager
    def lock(self, timeout: float, name: str = "") -> Iterator[int]:
        """There is no lock: of two attempts at a time each keeps its own, later ones take the first."""
        yield -1

    def close(self) -> None:
        """Forget what was fetched."""
        self._block = ("", 0, b"")

    def _join(self, name: str) -> str:
        return f"{self.path}/{name}"
