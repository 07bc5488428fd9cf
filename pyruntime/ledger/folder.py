"""The folder of one scope on a local file system: segments that grow, fsync, the lock that orders commits.

Uses the operating system's own calls: pyarrow cannot append, sync or lock. Thread-safe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pillarbox.ledger.errors import LedgerError, LedgerFullError

SUFFIX = ".arrow"
PART = ".part"
LOCK = ".lock"
OPEN_FILES = 64
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NAP = 0.002
"""Seconds between two looks at a lock that another process holds."""


def full_error(path: str, error: OSError) -> LedgerFullError:
    """What a task fails with when there is no room."""
    return LedgerFullError(
        f"no room for finished calls in {path}: {error.strerror}. Everything acknowledged before is kept; "
        "make room and run the task again, and it calls only what is missing"
    )


class Segment:
    """A segment that this process appends to, under the folder's lock. For one thread."""

    def __init__(self, path: str, header: bytes) -> None:
        self._path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o644)
        try:
            # The kernel lets go of it when the process dies: then the segment is closed. Who only looks
            # whether it is open holds it for a moment.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.end = 0
            self.append(header)
        except BaseException:
            self.close()
            os.unlink(path)
            raise

    def append(self, content: bytes) -> None:
        """Write at the end. Raises LedgerFullError or OSError, and leaves nothing behind if that can be."""
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self.end)
            if error.errno in FULL:
                # spec: Ledger!DiskFull
                raise full_error(self._path, error) from error
            raise
        self.end += len(content)

    def sync(self) -> None:
        """Wait until what was appended is on the disk. Never to be tried again after it has failed.

        A second fsync may succeed although the first one has lost data (Rebello et al., "Can applications
        recover from fsync failures?", 2020).
        """
        try:
            os.fsync(self._file)
        except OSError as error:
            if error.errno in FULL:
                raise full_error(self._path, error) from error
            raise

    def close(self) -> None:
        """Let others merge it."""
        os.close(self._file)


class LocalFolder:
    """The segments of one scope. Any thread."""

    appends = True

    def __init__(self, path: str) -> None:
        self.path = path
        self._files: OrderedDict[str, int] = OrderedDict()
        self._mutex = threading.Lock()

    def make(self) -> None:
        """Make the folder, durably."""
        try:
            missing = []
            parent = self.path
            while not os.path.isdir(parent):
                missing.append(parent)
                parent = os.path.dirname(parent)
            os.makedirs(self.path, exist_ok=True)
            for folder in missing:
                sync_folder(os.path.dirname(folder))
        except OSError as error:
            if error.errno in FULL:
                raise full_error(self.path, error) from error
            raise LedgerError(f"the folder {self.path} cannot be made: {error.strerror}") from error

    def segments(self) -> list[tuple[str, int]]:
        """Name and bytes of each, in the order in which their records count. Empty if there is no folder."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    with suppress(FileNotFoundError):
                        found.append((entry.name, entry.stat().st_size))
        return sorted(found)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a segment, fewer at its end. Raises FileNotFoundError if it has been merged or expired."""
        with self._mutex:
            file = self._files.get(name)
            if file is None:
                file = os.open(self._join(name), os.O_RDONLY)
                self._files[name] = file
                if len(self._files) > OPEN_FILES:
                    os.close(self._files.popitem(last=False)[1])
            else:
                self._files.move_to_end(name)
            parts = []
            while length > 0 and (part := os.pread(file, length, offset)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, name: str) -> int:
        """Bytes that a segment has now. Raises FileNotFoundError."""
        return os.stat(self._join(name)).st_size

    def sync(self, name: str) -> None:
        """Wait until a segment, which another process may have written, is on the disk."""
        file = os.open(self._join(name), os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def is_open(self, name: str) -> bool:
        """Whether a process that lives appends to it."""
        try:
            file = os.open(self._join(name), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def create(self, name: str, header: bytes) -> Segment:
        """A new segment to append to. Under the lock, or it may be taken for closed before it is."""
        try:
            segment = Segment(self._join(name), header)
            sync_folder(self.path)
        except OSError as error:
            if error.errno in FULL:
                raise full_error(self.path, error) from error
            raise
        return segment

    def publish(self, part: str, name: str) -> None:
        """Give a finished file its name, durably."""
        os.rename(self._join(part), self._join(name))
        sync_folder(self.path)

    def remove(self, name: str) -> None:
        """Delete a file of the folder, if it is there."""
        with self._mutex:
            file = self._files.pop(name, None)
        if file is not None:
            os.close(file)
        with suppress(FileNotFoundError):
            os.unlink(self._join(name))

    def remove_parts(self) -> None:
        """Delete what compactions left that were killed. Under the lock of compactions."""
        for name in os.listdir(self.path):
            if name.endswith(PART):
                self.remove(name)

    def remove_folder(self) -> None:
        """Delete the folder with locks and leases, and folders above it that are empty then."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                self.remove(name)
        folder = self.path
        with suppress(OSError):
            # run=.../batch=.../uid=.../config=...
            for _ in range(4):
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    def changed(self, name: str) -> float:
        """Seconds since 1970 at which a segment was changed last."""
        return os.stat(self._join(name)).st_mtime

    @contextmanager
    def lock(self, patience: float, name: str = LOCK) -> Iterator[None]:
        """Hold the lock of the folder; the kernel gives it back when the process dies.

        Raises LedgerError after `patience` seconds, or if the folder has gone.
        """
        try:
            file = os.open(self._join(name), os.O_CREAT | os.O_RDWR, 0o644)
        except FileNotFoundError:
            raise LedgerError(f"{self.path} has expired, or was deleted") from None
        except OSError as error:
            if error.errno in FULL:
                raise full_error(self.path, error) from error
            raise
        try:
            deadline = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise LedgerError(
                            f"another process has held {self._join(name)} for {patience:g} s: is it stopped?"
                        ) from None
                    time.sleep(NAP)
            yield
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the files that were read."""
        with self._mutex:
            while self._files:
                os.close(self._files.popitem()[1])

    def _join(self, name: str) -> str:
        return os.path.join(self.path, name)


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
