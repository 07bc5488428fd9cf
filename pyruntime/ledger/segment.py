"""A segment on a local file system, as its writer has it: it grows, and is synced; others read it meanwhile.

Uses the operating system's own calls: pyarrow cannot append, sync or lock. For one thread.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from pillarbox.ledger.errors import LedgerError, LedgerFullError
from pillarbox.ledger.forks import kept_from_forks, let_go, lock_file
from pillarbox.ledger.private_files import FILE_MODE, open_own

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def full_error(path: str, error: OSError) -> LedgerFullError:
    """What a task fails with when there is no room."""
    return LedgerFullError(
        f"no room for finished calls in {path}: {error.strerror}. Everything acknowledged before is kept; "
        "make room and run the task again, and it calls only what is missing"
    )


class Segment:
    """A segment that this process appends to, under the folder's lock. For one thread."""

    def __init__(self, path: str, header: bytes, mode: int = FILE_MODE) -> None:
        self._path = path
        self._file = kept_from_forks(open_own(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, mode))
        try:
            # The kernel lets go of it when the process dies: then the segment is closed. Who only looks
            # whether it is open holds it for a moment.
            lock_file(self._file, wait=True)
            self.end = self._synced = 0
            self.append(header)
        except BaseException:
            self.close()
            os.unlink(path)
            raise

    def append(self, content: bytes) -> None:
        """Write at the end. Raises LedgerFullError or OSError, and leaves nothing behind if that can be.

        Raises LedgerError if the segment has been deleted.
        """
        if self.end and not os.fstat(self._file).st_nlink:
            raise LedgerError(f"{self._path} has expired, or was deleted")
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

        A second fsync may succeed although the first one has lost data, and other processes still read it
        from memory (Rebello et al., "Can applications recover from fsync failures?", 2020). So what is not
        known to be on the disk is cut off: nobody can take it for durable.
        """
        end = self.end
        try:
            os.fsync(self._file)
            self._synced = end
        except OSError as error:
            # spec: Ledger!SyncFails
            with suppress(OSError):
                os.ftruncate(self._file, self._synced)
            if error.errno in FULL:
                raise full_error(self._path, error) from error
            raise

    def close(self) -> None:
        """Let others merge it."""
        let_go(self._file)


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
