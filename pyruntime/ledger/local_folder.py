"""The folder of one scope on a local file system: segments, the lock that orders commits, and their log.

Uses the operating system's own calls: pyarrow cannot append, sync or lock. A `LocalFolder` is thread-safe, a
`LocalSegment` is for one thread.

A lock of `flock` belongs to the open file, which a forked process shares: a worker of a `multiprocessing`
pool would go on holding what its parent, killed meanwhile, had locked. So each fork closes its copies at
once; the parent's locks stay.
"""

# Why `flock`, and how it is taken.
#
# - Locks of `fcntl` (POSIX) belong to the process: two tasks of one worker would both hold them, and closing
#   any other descriptor of the file, such as a reader's, gives them up.
# - A file that is made with O_EXCL and deleted afterwards stays when its owner is killed; somebody would have
#   to judge by its age whether that one lives.
# - A lock that is waited for in the kernel has no time-out but a signal, which Python handles in the main
#   thread only. So it is tried, with pauses that double up to 2 ms: a commit usually holds it for less.
# - A lock is of the file, and not of its name. Whoever has waited may have got the lock of a file that was
#   deleted meanwhile, while the next process makes another one and locks that; hence `is_at` behind each.
#
# Why the log of commits stands in the file of the lock: who reads it holds the lock, and has the file open.
# It is not synced: it need not outlive the processes that read it, as a new one begins by looking at all
# segments.

from __future__ import annotations

import errno
import functools
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from pillarbox.ledger.errors import LedgerBusyError, LedgerError, LedgerFullError
from pillarbox.ledger.private_files import FILE_MODE, locked_out, make_folders, open_own

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

Buffer: TypeAlias = "bytes | memoryview"

_kept: set[int] = set()


def closed_in_forks(file: int) -> int:
    """Have processes that are forked from now on close a descriptor; for `close_file` in the end."""
    _kept.add(file)
    return file


def close_file(file: int) -> None:
    """Close a descriptor that was kept from forks."""
    _kept.discard(file)
    os.close(file)


def check_locks() -> None:
    """Raise LedgerError where the operating system has no locks of files."""
    if fcntl is None:
        raise LedgerError(
            "a ledger in a local folder needs locks of files (fcntl), which this operating system has not: "
            "give it the URL of an object store, such as s3://bucket/folder"
        )


def lock_file(file: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed, or its process dies.

    Raises BlockingIOError if another holds it and `wait` is False, LedgerError where there are no locks.
    """
    check_locks()
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def _forget() -> None:
    for file in list(_kept):
        with suppress(OSError):
            os.close(file)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def naming_full_disk(path: str) -> Iterator[None]:
    """Raise LedgerFullError, which a task fails with, for an OSError that says that there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise LedgerFullError(
            f"no room for finished calls in {path}: {error.strerror}. Everything acknowledged before is "
            "kept; make room and run the task again, and it calls only what is missing"
        ) from error


MIN_UNCACHED_BYTES = 2**16
"""Bytes of a part that is not kept in the system's page cache when it is on the disk."""
MAX_PARTS_AT_A_TIME = 512
"""Parts that the system writes at a time; each system takes as many."""


def write_all(file: int, *parts: Buffer) -> None:
    """Write all of them at the end of an open file: the system may take less at a time. Raises OSError."""
    left = deque([memoryview(part) for part in parts])
    while left:
        written = os.writev(file, [*islice(left, MAX_PARTS_AT_A_TIME)])
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = left[0][written:]


class LocalSegment:
    """A segment that this process appends to, under the folder's lock. For one thread."""

    def __init__(self, path: str, header: bytes, mode: int = FILE_MODE) -> None:
        self._path = path
        self._file = closed_in_forks(open_own(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, mode))
        try:
            # The kernel lets go of it when the process dies: then the segment is closed. Who only looks
            # whether it is open holds it for a moment.
            lock_file(self._file, wait=True)
            self.end = self._synced = 0
            self._has_large = False
            self.append(header)
        except BaseException:
            self.close()
            os.unlink(path)
            raise

    def append(self, *parts: Buffer) -> None:
        """Write parts at the end, one after another.

        Raises LedgerFullError or OSError, and leaves nothing behind if that can be; LedgerError if the
        segment has been deleted.
        """
        if self.end and not os.fstat(self._file).st_nlink:
            raise LedgerError(f"{self._path} has expired, or was deleted")
        # spec: Ledger!DiskFull
        with naming_full_disk(self._path):
            try:
                write_all(self._file, *parts)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, self.end)
                raise
        lengths = [*map(len, parts)]
        self._has_large = self._has_large or max(lengths) >= MIN_UNCACHED_BYTES
        self.end += sum(lengths)

    def sync(self) -> None:
        """Wait until what was appended is on the disk. Never to be tried again after it has failed.

        A second fsync may succeed although the first one has lost data, and other processes still read it
        from memory (Rebello et al., "Can applications recover from fsync failures?", 2020). So what is not
        known to be on the disk is cut off: nobody can take it for durable.
        """
        end = self.end
        with naming_full_disk(self._path):
            try:
                os.fsync(self._file)
            except OSError:
                # spec: Ledger!SyncFails
                with suppress(OSError):
                    os.ftruncate(self._file, self._synced)
                raise
        if self._has_large and hasattr(os, "posix_fadvise"):
            # Vectors are read again by a restart only: their pages serve the next ones, and take none from
            # other processes.
            with suppress(OSError):
                os.posix_fadvise(self._file, self._synced, end - self._synced, os.POSIX_FADV_DONTNEED)
        self._synced, self._has_large = end, False

    def close(self) -> None:
        """Let others merge it."""
        close_file(self._file)


def sync_path(path: str) -> None:
    """Wait until a file, which another process may have written, or the names in a folder are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


SUFFIX = ".arrow"
PART = ".part"
LOCK = ".lock"
CLAIMS = ".claims-"
PART_MAX_AGE_S = 3600.0
"""Age from which a small file that never got its name was left by one that was killed."""
PART_NAME = re.compile(r"\.?[0-9a-f]{16}\.part")
SEGMENT_NAME = re.compile(r"[0-9a-f]{16}\.arrow")
OWN_NAME = re.compile(
    rf"\.lock|\.compact|\.lease-[0-9a-f]{{32}}(\.[0-9a-f]{{32}})?|\.found-[0-9a-f]+-[0-9a-f]{{16}}"
    rf"|\.holder(-\d{{16}})?|\.probe-[0-9a-f]{{16}}|\.pin-[0-9a-f]{{16}}|\.claims-[0-9a-f]{{2}}|{PART_NAME.pattern}"
)
"""The names of what a ledger has in a folder beside its segments."""
MAX_OPEN_FILES = 64
LOG_ENTRY_BYTES = 8
LOG_ID_BYTES = 16
"""Bytes of an entry of the log of commits, and of what it begins with."""
FOLDER_LEVELS = 5
"""Folders that a ledger makes in each other: v1/run=.../batch=.../uid=.../config=..."""
MAX_MAKE_TRIES = 100
LOCK_POLL_MIN_S = 0.0001
LOCK_POLL_MAX_S = 0.002
"""Seconds between two looks at a lock that another process holds."""
LOCKED_OUT_S = 0.5
"""Seconds in which another user's process says who may use a folder that it has made: a hundred times what it
takes, and some ten times what a process waits for its turn on a machine that is busy."""


SHARE_HINT = "Ledger(mode=0o660)"
Method = TypeVar("Method", bound=Callable[..., Any])


def explained(method: Method) -> Method:
    """Have a method of `LocalFolder` say in words that a disk is full, or that another user owns a folder."""

    @functools.wraps(method)
    def call(folder: LocalFolder, *arguments: object) -> Any:
        pause_s, waited_s = LOCK_POLL_MIN_S, 0.0
        while True:
            try:
                with naming_full_disk(folder.path):
                    return method(folder, *arguments)
            except PermissionError as error:
                # Another user's process makes a folder or file, and then says who may use it: the umask may
                # have taken that away.
                if not folder.is_shared or waited_s >= LOCKED_OUT_S:
                    path = folder.path if error.filename is None else str(error.filename)
                    raise LedgerError(locked_out(path, SHARE_HINT)) from error
                time.sleep(pause_s)
                waited_s += pause_s
                # Half of what was waited so far: few looks, and none much later than it could have been.
                pause_s = max(pause_s, waited_s / 2)

    return cast("Method", call)


class Segment(NamedTuple):
    """A segment as it was seen."""

    name: str
    size: int
    """Bytes."""
    changed: float
    """The time when something was written into it last, in seconds since 1970."""


def by_age(segment: Segment) -> tuple[float, str]:
    """The order of segments by their last change, the oldest first."""
    return segment.changed, segment.name


class Mark(NamedTuple):
    """A position up to which the log of commits was read."""

    log: bytes
    """The identity of the log: it begins anew with the folder."""
    end: int


class LocalFolder:
    """The segments of one scope. Any thread.

    mode: of the files that are made here; folders have the same, with the right to enter. Where another
    user's mode keeps this process out, each method raises LedgerError, which names both users.
    """

    appends = True

    def __init__(self, path: str, mode: int = FILE_MODE) -> None:
        self.path = path
        self.mode = mode
        self._files: OrderedDict[str, int] = OrderedDict()
        self._log: int | None = None
        self._mutex = threading.Lock()

    def __del__(self) -> None:
        # Nobody has it any more, so nobody holds its mutex.
        for file in self._files.values():
            os.close(file)
        if self._log is not None:
            os.close(self._log)

    @property
    def is_shared(self) -> bool:
        """True if other users may have files here."""
        return self.mode & 0o077 != 0

    @explained
    def exists(self) -> bool:
        """Return True if there may be anything to delete."""
        try:
            return stat.S_ISDIR(os.stat(self.path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    @explained
    def make(self) -> None:
        """Make the folder, durably, whoever has made it: who did may have been killed before that was."""
        try:
            made = self._make_all()
            for folder in dict.fromkeys([*made, *self._inner()]):
                sync_path(os.path.dirname(folder))
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS or isinstance(error, PermissionError):
                raise
            raise LedgerError(f"the folder {self.path} cannot be made: {error.strerror}") from error

    def _make_all(self) -> list[str]:
        """Make the folder and what is missing above it; returns what was missing, the lowest first."""
        for _ in range(MAX_MAKE_TRIES):
            with suppress(FileNotFoundError):
                # An expiry takes folders away that are empty, perhaps those just made.
                return make_folders(self.path, self.mode)
        raise FileNotFoundError(errno.ENOENT, "something deletes it all the time", self.path)

    def _inner(self) -> list[str]:
        """The folders of the ledger that lead here, itself included."""
        folders = [self.path]
        while len(folders) < FOLDER_LEVELS:
            folders.append(os.path.dirname(folders[-1]))
        return folders

    @explained
    def names(self) -> list[str]:
        """The names of everything in the folder. Empty if there is no folder."""
        try:
            # What has no name yet is not there: its writer may be killed before it is whole.
            return [name for name in os.listdir(self.path) if not name.endswith(PART)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    @explained
    def leaves(self) -> list[str]:
        """The paths below this one of the folders that have no others in them, in no order."""
        found = []
        for folder, inner, _ in os.walk(self.path, onerror=_raise_unless_gone):
            if not inner:
                found.append(os.path.relpath(folder, self.path).replace(os.sep, "/"))
        return found

    def check_writable(self) -> None:
        """Make the folder. Raises LedgerError if this process may not write there, or files have no locks."""
        check_locks()
        self.make()
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise LedgerError(locked_out(self.path, SHARE_HINT))

    @explained
    def put(self, name: str, content: bytes) -> None:
        """Make a small file, or another in its place, durably. Raises LedgerFullError and OSError."""
        part = f".{secrets.token_hex(8)}{PART}"
        try:
            file = open_own(self._join(part), os.O_CREAT | os.O_EXCL | os.O_WRONLY, self.mode)
            try:
                write_all(file, content)
                os.fsync(file)
            finally:
                os.close(file)
            self.publish(part, name)
        except OSError:
            with suppress(OSError):
                os.unlink(self._join(part))
            raise

    @explained
    def segments(self) -> list[Segment]:
        """All of them, in the order in which their records count. Empty if there is no folder."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    # Nothing is read from a pipe or a folder that somebody has given such a name.
                    with suppress(FileNotFoundError):
                        if entry.is_file():
                            status = entry.stat()
                            found.append(Segment(entry.name, status.st_size, status.st_mtime))
        return sorted(found)

    @explained
    def read_whole(self, name: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError."""
        with open(self._join(name), "rb") as file:
            return file.read()

    @explained
    def set_changed(self, name: str, changed: float) -> None:
        """Say when the records of a merged segment were written last, in seconds since 1970."""
        os.utime(self._join(name), (changed, changed))

    @explained
    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a segment, fewer at its end. Raises FileNotFoundError if it has been merged or expired."""
        # One file position is not shared, `pread` has its own; but a file must not be closed under a reader.
        with self._mutex:
            file = self._files.get(name)
            if file is None:
                file = os.open(self._join(name), os.O_RDONLY)
                self._files[name] = file
                if len(self._files) > MAX_OPEN_FILES:
                    os.close(self._files.popitem(last=False)[1])
            else:
                self._files.move_to_end(name)
            parts = []
            while length > 0 and (part := os.pread(file, length, offset)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @explained
    def size(self, name: str) -> int:
        """Bytes that a segment has now. Raises FileNotFoundError."""
        return os.stat(self._join(name)).st_size

    @explained
    def sync(self, name: str) -> None:
        """Wait until a segment, which another process may have written, is on the disk."""
        sync_path(self._join(name))

    @explained
    def is_open(self, name: str) -> bool:
        """Return True if a process that lives appends to it."""
        try:
            file = os.open(self._join(name), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            lock_file(file, shared=True)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def committed(self, lock: int, mark: Mark | None) -> tuple[set[str] | None, Mark]:
        """The segments to which something was committed since `mark`, and the mark for the next time.

        None stands for all of them. lock: the file of the lock, which the caller holds. It has the log of
        commits in it: an identity, and then the identity of a segment for each. So a commit need not look at
        segments that nobody appends to any more. The log is no more durable than the processes that read it.
        """
        names, now = _since(lock, mark)
        if now is None:
            now = Mark(secrets.token_bytes(LOG_ID_BYTES), LOG_ID_BYTES)
            self._write_log(lock, now.log, 0)
        return names, now

    @explained
    def committed_by_now(self, mark: Mark | None) -> tuple[set[str] | None, Mark | None]:
        """As `committed`, for who does not hold the lock: all that was committed before this began is in it.

        The last commit may be under way, with its entry written and its records not: it is named again the
        next time, as long as it is the last.
        """
        with self._mutex:
            if self._log is None:
                try:
                    self._log = os.open(self._join(LOCK), os.O_RDONLY)
                except FileNotFoundError:
                    # Nobody has committed yet.
                    return set(), None
            if not os.fstat(self._log).st_nlink:
                # It has expired, and there may be another by now.
                os.close(self._log)
                self._log = None
                return None, None
            names, now = _since(self._log, mark)
        if now is None:
            return set(), None
        return names, now._replace(end=max(LOG_ID_BYTES, now.end - LOG_ENTRY_BYTES))

    def announce(self, lock: int, name: str) -> None:
        """Say in the log that something is about to be appended to a segment. Before it is, under the lock.

        Who was killed in between has said too much, which costs a look; the other way round, others would
        not see what he has written.
        """
        # spec: Ledger!Write
        end = os.fstat(lock).st_size // LOG_ENTRY_BYTES * LOG_ENTRY_BYTES
        self._write_log(lock, bytes.fromhex(name.removesuffix(SUFFIX)), end)

    @explained
    def _write_log(self, lock: int, content: bytes, at: int) -> None:
        if os.pwrite(lock, content, at) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @explained
    def create(self, name: str, header: bytes) -> LocalSegment:
        """A new segment to append to. Under the lock, or it may be taken for closed before it is."""
        segment = LocalSegment(self._join(name), header, self.mode)
        sync_path(self.path)
        return segment

    @explained
    def publish(self, part: str, name: str) -> None:
        """Give a finished file its name, durably."""
        os.rename(self._join(part), self._join(name))
        sync_path(self.path)

    @explained
    def remove(self, name: str) -> None:
        """Delete a file of the folder, if it is there."""
        with self._mutex:
            file = self._files.pop(name, None)
        if file is not None:
            os.close(file)
        with suppress(FileNotFoundError):
            os.unlink(self._join(name))

    def remove_parts(self) -> None:
        """Delete what was left by those that were killed as they wrote it. Under the lock of compactions.

        The lock says that no segment is being merged. A small file may be on its way: it goes when it is old.
        """
        for name in os.listdir(self.path):
            if PART_NAME.fullmatch(name):
                with suppress(FileNotFoundError):
                    changed = os.stat(self._join(name)).st_mtime
                    if not name.startswith(".") or time.time() - changed > PART_MAX_AGE_S:
                        self.remove(name)

    def remove_folder(self, timeout: float, is_own: Callable[[str, int], bool]) -> tuple[int, list[str]]:
        """Delete what the ledger has in the folder, and the folder and those above it that are empty then.

        Returns the bytes of the segments that were deleted, and what was left as the ledger has not made it.
        is_own: tells by name and size whether a segment is of this folder.

        Under the lock, so that whoever commits at the time has done so or will see that it has gone. Several
        may try at a time. Raises LedgerBusyError after `timeout` seconds.
        """
        freed = 0
        left: list[str] = []
        try:
            with self.lock(timeout):
                own = {name: size for name, size, _ in self.segments() if is_own(name, size)}
                # The lock last: without its file another would lock a new one, and commit into what is being
                # deleted.
                for name in sorted(os.listdir(self.path), key=LOCK.__eq__):
                    if name not in own and not OWN_NAME.fullmatch(name):
                        left.append(name)
                        continue
                    self.remove(name)
                    freed += own.get(name, 0)
                with suppress(OSError):
                    os.rmdir(self.path)
        except LedgerBusyError:
            raise
        except (LedgerError, FileNotFoundError):
            # Another has done it.
            if self.exists():
                raise
        folder = self.path
        with suppress(OSError):
            for _ in range(FOLDER_LEVELS - 2):
                folder = os.path.dirname(folder)
                os.rmdir(folder)
        return freed, left

    @explained
    def changed(self, name: str) -> float:
        """Seconds since 1970 at which a segment was changed last."""
        return os.stat(self._join(name)).st_mtime

    @contextmanager
    def lock(self, timeout: float, name: str = LOCK) -> Iterator[int]:
        """Hold the lock of the folder; the kernel gives it back when the process dies.

        Raises LedgerBusyError after `timeout` seconds, LedgerError if the folder has gone.
        """
        deadline = time.monotonic() + timeout
        file = None
        pause_s = LOCK_POLL_MIN_S
        try:
            while True:
                if file is None:
                    file = closed_in_forks(self._open_lock(name))
                try:
                    lock_file(file)
                except BlockingIOError:
                    pass
                else:
                    if is_at(file, self._join(name)):
                        break
                    # It has expired while this waited; whoever comes next locks another file.
                    close_file(file)
                    file = None
                    continue
                if time.monotonic() >= deadline:
                    raise LedgerBusyError(
                        f"another process has held {self._join(name)} for {timeout:g} s: is it stopped?"
                    )
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LOCK_POLL_MAX_S)
            yield file
        finally:
            if file is not None:
                close_file(file)

    @explained
    def _open_lock(self, name: str) -> int:
        try:
            return open_own(self._join(name), os.O_CREAT | os.O_RDWR, self.mode)
        except FileNotFoundError:
            raise LedgerError(f"{self.path} has expired, or was deleted") from None
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS or isinstance(error, PermissionError):
                raise
            raise LedgerError(f"{self._join(name)} {error.strerror}") from error

    def close(self) -> None:
        """Close the files that were read."""
        with self._mutex:
            while self._files:
                os.close(self._files.popitem()[1])
            if self._log is not None:
                os.close(self._log)
                self._log = None

    def _join(self, name: str) -> str:
        return os.path.join(self.path, name)


def is_at(file: int, path: str) -> bool:
    """Return True if an open file still has this path: it may have been replaced or deleted."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


def _since(log: int, mark: Mark | None) -> tuple[set[str] | None, Mark | None]:
    """The segments of which a log of commits tells since `mark`, and the mark of its end.

    None for the segments stands for all of them, and for the mark where nothing has been written yet.
    """
    end = os.fstat(log).st_size // LOG_ENTRY_BYTES * LOG_ENTRY_BYTES
    if end < LOG_ID_BYTES:
        return None, None
    now = Mark(os.pread(log, LOG_ID_BYTES, 0), end)
    if mark is None or mark.log != now.log or mark.end > end:
        return None, now
    new = os.pread(log, end - mark.end, mark.end)
    return {new[at : at + LOG_ENTRY_BYTES].hex() + SUFFIX for at in range(0, len(new), LOG_ENTRY_BYTES)}, now


def _raise_unless_gone(error: OSError) -> None:
    # What has expired in the meantime is nothing to list; what another user's mode hides is there.
    if isinstance(error, PermissionError):
        raise error
