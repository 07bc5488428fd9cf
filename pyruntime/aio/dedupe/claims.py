"""Claims: of all tasks that have a row, one calls, while the others wait for its record.

A claim of a key is a lock of some byte of a file, at a place that follows from the key. The kernel keeps it
for the open file, and takes it back when the process dies, so nothing has to be renewed, and nothing is left
behind. It is about money only. Idea: ranges of bytes that are locked (POSIX), in the form that belongs to an
open file (Linux 3.15). `HeldClaims` has those of a session.
"""

# The alternatives, with figures, are in docs/decisions/claims.md. The kernel keeps the locks of a file in a
# list, and goes along all of it for each lock that is taken or freed: hence several files.

from __future__ import annotations

import errno
import os
import struct

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.keys import KEY_BYTES
from pillarbox.ledger.local_folder import (
    CLAIMS,
    SHARE_HINT,
    LocalFolder,
    close_file,
    closed_in_forks,
    naming_full_disk,
)
from pillarbox.ledger.private_files import FILE_MODE, locked_out, open_own
from pillarbox.redaction import shown_address

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

CLAIM_FILES = 32
"""Files of a scope among which claims are spread."""
OFFSET_BITS = 62
"""Bits of a key that say at which byte it is claimed."""
RECORD_LOCK = struct.Struct("hhqqi4x")
"""The `struct flock` of the system: type, origin, first byte, bytes, process."""


def check_claims() -> None:
    """Raise LedgerError where the operating system has no locks that belong to an open file."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        raise LedgerError(
            "across_tasks=True: needs locks of parts of open files (F_OFD_SETLK of Linux), which this "
            "operating system has not: leave it out, and equal rows of each task share calls"
        )


def check_place(ledger: Ledger) -> None:
    """Raise LedgerError if tasks cannot share calls there. Any thread; for the driver, after `check`."""
    # It stays: another driver may be here at the same time.
    _claims_in(ledger, ledger.root()).claim(bytes(KEY_BYTES))


def claims_of(ledger: Ledger, scope: Scope) -> Claims:
    """The claims of a task in a scope that a writer has made. Raises LedgerError without locks."""
    return _claims_in(ledger, ledger.folder(scope))


def _claims_in(ledger: Ledger, folder: Folder) -> Claims:
    if not isinstance(folder, LocalFolder):
        raise LedgerError(
            f"location={shown_address(ledger.location)!r}: an object store has no locks, by which tasks "
            "share calls: give a folder that all of them see, or leave out across_tasks"
        )
    return Claims(folder.path, folder.mode)


class Claims:
    """The keys for which one task calls now, in a folder that is there. For one thread, but `close`.

    mode: of the files. Two tasks of one process have an object each. A process that is forked holds none of
    its parent's claims.
    """

    def __init__(self, folder: str, mode: int = FILE_MODE) -> None:
        self._files: dict[int, int] = {}
        check_claims()
        self._folder = folder
        self._mode = mode
        self._process = os.getpid()

    def __del__(self) -> None:
        self.close()

    def claim(self, key: bytes) -> bool:
        """Try to claim a key; never waits. False if another has it, or by chance a key with the same place.

        Raises LedgerError if the folder has expired or its file system has no locks, and OSError.
        """
        # spec: Ledger!Claim
        file = self._files.get(key[0] % CLAIM_FILES)
        if file is None:
            file = self._open(key[0] % CLAIM_FILES)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _record_lock(fcntl.F_WRLCK, key))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise LedgerError(
                f"{self._folder}: no part of a file can be locked there ({error.strerror}), which "
                "Dedupe(across_tasks=True) needs: use a file system that has locks, or leave it out"
            ) from error
        return True

    def free(self, key: bytes) -> None:
        """Let others claim a key. One that is not claimed stays so."""
        # spec: Ledger!Release
        file = self._files.get(key[0] % CLAIM_FILES)
        if file is not None:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _record_lock(fcntl.F_UNLCK, key))

    def close(self) -> None:
        """Let go of all claims. Any thread, when no other uses them any more; a second time does nothing."""
        while self._files:
            file = self._files.popitem()[1]
            # In a fork it is closed, and its number may be another file's.
            if self._process == os.getpid():
                close_file(file)

    def _open(self, number: int) -> int:
        path = os.path.join(self._folder, f"{CLAIMS}{number:02x}")
        try:
            with naming_full_disk(self._folder):
                file = closed_in_forks(open_own(path, os.O_CREAT | os.O_RDWR, self._mode))
        except FileNotFoundError:
            raise LedgerError(f"{self._folder} has expired, or was deleted") from None
        except PermissionError as error:
            raise LedgerError(locked_out(path, SHARE_HINT)) from error
        self._files[number] = file
        return file


def _record_lock(kind: int, key: bytes) -> bytes:
    offset = int.from_bytes(key[1:9], "big") >> (64 - OFFSET_BITS)
    return RECORD_LOCK.pack(kind, os.SEEK_SET, offset, 1, 0)
