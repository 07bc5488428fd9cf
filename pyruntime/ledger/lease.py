"""A lease: one of several attempts of a task calls, while the others wait for its results.

A file that the holder locks: the kernel gives the lock back when the holder dies, so a file that is left
behind means nothing. Who holds it also renews the file's time of change, and who does not, because it is
stopped, or does so for too long, because it hangs, loses it: another file gets its name. It is only about
money: two holders at a time do no harm, their records are ordered by the folder's lock. Who waits measures by
its own monotonic clock for how long nothing was renewed, so that clocks need not agree. Idea: Gray and
Cheriton, "Leases", 1989. Thread-safe.
"""

# Why a lease has both a lock and a time. The lock alone would be right for holders that die, which the kernel
# tells at once; but a worker that is stopped (SIGSTOP, a machine that sleeps) keeps its locks. The time alone
# would let the next attempt of each task wait for five seconds after every death. `hung_after` is for a
# holder whose thread renews while its calls come to nothing.
#
# Why a lease that is taken over is a new file in place of the old: nobody can take a lock from its owner. The
# owner learns of it by `is_at`, a look at the name, before it calls.

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from contextlib import suppress

from pillarbox.ledger.errors import LedgerBusyError, LedgerError
from pillarbox.ledger.local_folder import (
    SHARE_HINT,
    LocalFolder,
    close_file,
    closed_in_forks,
    is_at,
    lock_file,
)
from pillarbox.ledger.private_files import FILE_MODE, locked_out, open_own

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

RENEWAL_INTERVAL_S = 1.0
"""Seconds between two renewals."""
STALLED_AFTER_S = 5.0
"""Seconds without a renewal after which a holder that lives is taken for stopped."""
HUNG_AFTER_S = 60.0
"""Seconds after which a holder is taken for hung, although it renews."""
OWNER_BYTES = 32


class Lease:
    """The right to call for what `name` means, in a folder that is there. Any thread.

    name: the same for all attempts of a task, such as the key of its first row.
    stalled_after, hung_after: seconds, as above. mode: of its file.

    Attempts of one process have a lease object each. A process that is forked does not hold its parent's.
    """

    def __init__(
        self,
        folder: str,
        name: str,
        *,
        stalled_after: float = STALLED_AFTER_S,
        hung_after: float = HUNG_AFTER_S,
        mode: int = FILE_MODE,
    ) -> None:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self.path = os.path.join(folder, f".lease-{digest}")
        self._folder = LocalFolder(folder, mode)
        self._mode = mode
        self._owner = secrets.token_hex(OWNER_BYTES // 2)
        self._stalled_after = stalled_after
        self._hung_after = hung_after
        self._mutex = threading.Lock()
        self._file: int | None = None
        self._process = os.getpid()
        self._seen: tuple[str, int] | None = None
        self._seen_at = self._first_at = 0.0

    def acquire(self) -> bool:
        """Try to get the lease, or to take it over; never waits. True if this attempt should call.

        Ask again from time to time while it is False, and look for the holder's results in between.
        Raises LedgerError if the folder has expired, and OSError.
        """
        with self._mutex:
            if self._holds():
                return True
            self._drop()
            # spec: Ledger!Acquire
            try:
                return self._lock(self.path, os.O_CREAT) or self._take_over()
            except FileNotFoundError:
                raise LedgerError(f"{self._folder.path} has expired, or was deleted") from None
            except PermissionError as error:
                raise LedgerError(locked_out(self.path, SHARE_HINT)) from error

    def renew(self) -> bool:
        """Renew it; False if it is another's by now. About every `RENEWAL_INTERVAL_S` seconds."""
        with self._mutex:
            if not self._holds():
                self._drop()
                return False
            assert self._file is not None
            with suppress(OSError):
                os.utime(self._file)
            return True

    def is_held(self) -> bool:
        """Return True while nobody has taken it over from this attempt. Costs two calls of the system."""
        with self._mutex:
            return self._holds()

    def release(self) -> None:
        """Let others call at once, if it is still this attempt's. A second time it does nothing."""
        with self._mutex:
            # Under the lock, or the file could have become another's before it is deleted.
            with suppress(LedgerError, OSError), self._folder.lock(0.0):
                if self._holds():
                    os.unlink(self.path)
            self._drop()

    # -- inside, with the mutex held ----------------------------------------------------------

    def _lock(self, path: str, flags: int) -> bool:
        """Lock a file and write into it whose it is; False if it is locked, or is no longer at its place."""
        file = open_own(path, flags | os.O_RDWR, self._mode)
        try:
            lock_file(file)
            if is_at(file, path):
                os.pwrite(file, self._owner.encode(), 0)
                self._file, self._process = closed_in_forks(file), os.getpid()
                return True
        except BlockingIOError:
            pass
        finally:
            if self._file != file:
                os.close(file)
        return False

    def _take_over(self) -> bool:
        """Put another file in the place of the one that a stopped or hung holder has locked."""
        held = self._look()
        if held is None:
            return False
        now = time.monotonic()
        if self._seen is None or self._seen[0] != held[0]:
            self._first_at = now
        if held != self._seen:
            self._seen, self._seen_at = held, now
        if now - self._seen_at < self._stalled_after and now - self._first_at < self._hung_after:
            return False
        # spec: Ledger!TakeOver
        part = f"{self.path}.{self._owner}"
        try:
            with self._folder.lock(0.0):
                if self._look() != held:
                    return False
                if self._lock(part, os.O_CREAT):
                    os.replace(part, self.path)
                return self._holds()
        except LedgerBusyError:
            return False

    def _holds(self) -> bool:
        if self._file is None or self._process != os.getpid():
            return False
        return is_at(self._file, self.path)

    def _drop(self) -> None:
        if self._file is not None and self._process == os.getpid():
            close_file(self._file)
        self._file = None

    def _look(self) -> tuple[str, int] | None:
        """Owner and time of the last renewal; None if there is no such file."""
        try:
            with os.fdopen(open_own(self.path, os.O_RDONLY), "rb") as file:
                owner = file.read(OWNER_BYTES).decode("ascii", "replace")
                return owner, os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
